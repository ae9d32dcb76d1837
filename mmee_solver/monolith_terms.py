"""Quantities of a CP-SAT model with few values, tied together by tables.

Everything that a nest multiplies (tile sizes, step counts, passes) takes few values when dims are
small. A :class:`Quantity` is a variable with the list of its values; a quantity that follows from
others is a table over their values, which propagates fully and needs no formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from ortools.sat.python import cp_model

from mmee_solver.errors import InputError

Switch = cp_model.IntVar | bool  # a 0/1 variable, or a constant
Literal = cp_model.BoolVarT | bool  # a switch or its opposite
TABLE_ROWS = 4_000  # of one product; beyond, CP-SAT multiplies
MOST_VALUES = 20_000  # of one quantity


@dataclass(frozen=True, slots=True)
class Quantity:
    """A variable, or a constant, and the values that it can take, ascending."""

    term: cp_model.IntVar | int
    values: tuple[int, ...]

    @property
    def constant(self) -> bool:
        """Whether there is but one value."""
        return len(self.values) == 1


Sum = list[tuple[int, Quantity]]  # coefficients and what they multiply


def number(value: int) -> Quantity:
    """A constant."""
    return Quantity(value, (value,))


def flag(switch: Switch) -> Quantity:
    """A switch as a quantity: 0 or 1."""
    return number(int(switch)) if isinstance(switch, bool) else Quantity(switch, (0, 1))


def switch(quantity: Quantity) -> Switch:
    """A quantity of 0 or 1 as a switch."""
    return bool(quantity.term) if isinstance(quantity.term, int) else quantity.term


def negated(literal: Literal) -> Literal:
    """The opposite of a literal, which may be a constant."""
    return not literal if isinstance(literal, bool) else ~literal


def most(terms: Sum) -> int:
    """The largest value of a sum.

    >>> most([(2, Quantity(0, (1, 4))), (-1, number(3))])
    5
    """
    return sum(max(factor * q.values[0], factor * q.values[-1]) for factor, q in terms)


def linear(terms: Sum) -> cp_model.LinearExprT:
    """A sum as an expression of CP-SAT."""
    return cp_model.LinearExpr.weighted_sum([q.term for _, q in terms], [factor for factor, _ in terms])


@dataclass(slots=True)
class Terms:
    """A model under construction, with what it holds already.

    ``limit`` is the number of table rows beyond which the model is refused.
    """

    model: cp_model.CpModel
    limit: int
    rows: int = 0
    # products by the sorted indices of their factors
    products: dict[tuple[int, ...], Quantity] = field(default_factory=dict)

    def literal(self, name: str) -> cp_model.IntVar:
        """A new 0/1 variable."""
        return self.model.new_bool_var(name)

    def choose(self, name: str, values: Iterable[int]) -> Quantity:
        """A new variable with the given values; a constant if there is only one."""
        found = tuple(sorted(set(values)))
        if len(found) == 1:
            return number(found[0])
        return Quantity(
            self.model.new_int_var_from_domain(cp_model.Domain.from_values(list(found)), name), found
        )

    def clause(self, *literals: Literal) -> None:
        """At least one literal holds; a clause that a constant satisfies is left out."""
        if True not in [one for one in literals if isinstance(one, bool)]:
            self.model.add_bool_or([one for one in literals if not isinstance(one, bool)])

    def derived(self, name: str, inputs: Sequence[Quantity], rule: Callable[..., int | None]) -> Quantity:
        """A quantity that follows from others; None forbids a combination of their values.

        Raises
        ------
        InputError
            If the model grows beyond the limit.
        """
        (found,) = self.table([name], inputs, lambda *values: _alone(rule(*values)))
        return found

    def table(
        self,
        names: Sequence[str],
        inputs: Sequence[Quantity],
        rule: Callable[..., tuple[int, ...] | None],
    ) -> list[Quantity]:
        """Several quantities that follow from the same ones, in one table.

        Raises
        ------
        InputError
            If the model grows beyond the limit.
        """
        rows = [
            (*given, *follows)
            for given in product(*(q.values for q in inputs))
            if (follows := rule(*given)) is not None
        ]
        self.rows += len(rows)
        if self.rows > self.limit:
            raise InputError(f"more than {self.limit} table rows; the monolithic model is for smaller graphs")
        if not rows:
            self.clause()
            return [number(0) for _ in names]
        start = len(inputs)
        found = [self.choose(name, {row[start + i] for row in rows}) for i, name in enumerate(names)]
        columns = [i for i, q in enumerate([*inputs, *found]) if not q.constant]
        if columns:
            variables = [[*inputs, *found][i].term for i in columns]
            tuples = sorted({tuple(row[i] for i in columns) for row in rows})
            self.model.add_allowed_assignments(variables, tuples)
        return found

    def product(self, factors: Iterable[Quantity]) -> Quantity:
        """The product of quantities of at least 0, two at a time; equal products are built once.

        Raises
        ------
        InputError
            If the model grows beyond the limit.
        """
        scale, variables = 1, []
        for factor in factors:
            if isinstance(factor.term, int):
                scale *= factor.term
            else:
                variables.append((factor.term.index, factor))
        if scale == 0:
            return number(0)
        variables.sort(key=lambda pair: pair[0])
        if not variables:
            return number(scale)
        indices: tuple[int, ...] = (variables[0][0],)
        found = variables[0][1]
        for index, factor in variables[1:]:
            indices = (*indices, index)
            if indices not in self.products:
                self.products[indices] = self._times(found, factor)
            found = self.products[indices]
        return found if scale == 1 else self._scaled(found, scale)

    def _scaled(self, quantity: Quantity, scale: int) -> Quantity:
        return self.derived("scaled", [quantity], lambda value: scale * value)

    def _times(self, left: Quantity, right: Quantity) -> Quantity:
        if len(left.values) * len(right.values) <= TABLE_ROWS:
            return self.derived("product", [left, right], lambda a, b: a * b)
        values = {a * b for a in left.values for b in right.values}
        if len(values) > MOST_VALUES:
            raise InputError(
                f"a product of {len(values)} values, of at most {MOST_VALUES}; "
                "the monolithic model is for smaller graphs"
            )
        found = self.choose("product", values)
        self.model.add_multiplication_equality(found.term, [left.term, right.term])
        return found


def _alone(value: int | None) -> tuple[int] | None:
    return None if value is None else (value,)
