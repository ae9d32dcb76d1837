"""The master: CP-SAT picks the partition of a graph, the order of its groups, and what stays resident.

Costs of groups add up (design §7.6, §8). An intermediate that stays in the buffer between groups saves
its transfers there and takes room from every group that it outlives. What a group then costs is learnt
lazily (:mod:`mmee_solver.plan`): at first at least its cost without, less the transfers saved; every
:class:`Level` adds what a search has shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import lcm

from ortools.sat.python import cp_model

from mmee_solver.workload import Graph

Ops = tuple[str, ...]
Cost = tuple[Fraction, ...]
_LARGEST = 1 << 60


@dataclass(frozen=True, slots=True)
class Partition:
    """Groups in order, tensors that stay between them, the bound on the first key, CP-SAT's status."""

    groups: tuple[Ops, ...]
    bound: Fraction
    status: str
    resident: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Level:
    """A proved bound: while ``alive`` tensors stay in the buffer, the group costs at least ``extra`` more.

    More than without them, less the transfers that they save; ``extra`` None: it is not wanted then (does
    not fit, or its ops in smaller groups cost no more). ``exactly``: only if it touches no other one.
    """

    group: Ops
    alive: frozenset[str]
    extra: Cost | None
    exactly: bool = False


@dataclass(frozen=True, slots=True)
class Residency:
    """What may stay in the buffer between groups, what that saves, and what is known of its price.

    ``savings`` has the additive keys that one transfer of a tensor costs, read and written; ``second``
    are groups whose given cost is a bound, of use only while something is resident.
    """

    savings: Mapping[str, tuple[Cost, Cost]] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()
    second: frozenset[Ops] = frozenset()


def choose_partition(
    graph: Graph,
    costs: Mapping[Ops, Cost],
    fewest_groups: bool = False,
    residency: Residency | None = None,
) -> Partition | None:
    """The cheapest partition of a graph into candidate groups, ties broken by later keys.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    costs : mapping of group to sequence of Fraction
        Additive keys of every candidate group, most important first; single ops must be among them.
    fewest_groups : bool
        Whether the number of groups comes before every key (``--fusion all``).
    residency : Residency
        Tensors that may stay in the buffer between groups, if any.

    Returns
    -------
    Partition or None
        Every op in exactly one group; groups in topological order. None if levels leave no partition.

    Notes
    -----
    Lexicographic order by solving once per key, each with the earlier values fixed. Keys are exact:
    a common denominator makes them integers, and the least of each is proved by CP-SAT.
    """
    residency = residency or Residency()
    model = _Model.of(graph, costs, residency)
    bounds: list[Fraction] = []
    values: list[int] = []
    status = "OPTIMAL"
    keys = model.keys(len(next(iter(costs.values()))), fewest_groups)
    for index, key in enumerate(keys):
        weights, unit = _integers(list(key.values()))
        terms = list(zip(weights, key, strict=True))
        total = sum(weight * model.terms[name] for weight, name in terms)
        model.model.minimize(total)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False
        solver.parameters.random_seed = 0
        solver.parameters.linearization_level = 2  # long chains have many ties
        code = solver.solve(model.model)
        if code == cp_model.INFEASIBLE and residency.levels:
            return None
        if code != cp_model.OPTIMAL:
            raise AssertionError(f"CP-SAT: {solver.status_name(code)}")
        status = solver.status_name(code)
        values = [solver.value(variable) for variable in model.variables]
        least = sum(weight * solver.value(model.terms[name]) for weight, name in terms)
        bounds.append(Fraction(least) * unit)
        if index + 1 < len(keys):
            model.model.add(total <= least)
            model.hint(values)
    found = dict(zip(model.names, values, strict=True))
    groups = [group for group in model.take if found["take", group]]
    place = {op.name: found["place", op.name] for op in graph.ops}
    stay = tuple(name for name in residency.savings if found["stay", name])
    order = _in_order(graph, groups, place if residency.levels else None)
    return Partition(order, bounds[1 if fewest_groups else 0], status, stay)


Name = tuple[object, ...]


@dataclass(slots=True)
class _Model:
    """The model: its variables by name, and the 0/1 terms that keys weigh."""

    graph: Graph
    costs: Mapping[Ops, Cost]
    residency: Residency
    model: cp_model.CpModel
    # take[g]: candidate group g is part of the partition; place[op]: position of the op's group;
    # stay[t]: tensor t is resident; alive[t, g]: t stays while group g, which does not touch it, runs.
    take: dict[Ops, cp_model.IntVar]
    place: dict[str, cp_model.IntVar]
    stay: dict[str, cp_model.IntVar]
    alive: dict[tuple[str, Ops], cp_model.IntVar] = field(default_factory=dict)
    terms: dict[Name, cp_model.IntVar] = field(default_factory=dict)
    prices: dict[Name, Cost] = field(default_factory=dict)
    names: list[Name] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, costs: Mapping[Ops, Cost], residency: Residency) -> _Model:
        """Variables, the constraints on partition and order, residency, and a hint."""
        rank = {op.name: index for index, op in enumerate(graph.ops)}
        groups = sorted(costs, key=lambda group: (len(group), [rank[op] for op in group]))
        model = cp_model.CpModel()
        self = cls(
            graph,
            costs,
            residency,
            model,
            {group: model.new_bool_var("+".join(group)) for group in groups},
            {op.name: model.new_int_var(0, len(graph.ops) - 1, op.name) for op in graph.ops},
            {name: model.new_bool_var(f"stay {name}") for name in residency.savings},
        )
        self.names += [("take", group) for group in groups]
        self.names += [("place", name) for name in self.place]
        self.names += [("stay", name) for name in self.stay]
        for group in groups:
            self._term(("take", group), self.take[group], costs[group])
        self._partition()
        self._order()
        self._stay()
        self._levels()
        self.hint(self._greedy(rank))
        return self

    @property
    def variables(self) -> list[cp_model.IntVar]:
        """Variables in the order of ``names``."""
        return [*self.take.values(), *self.place.values(), *self.stay.values()]

    def keys(self, count: int, fewest_groups: bool) -> list[dict[Name, Fraction]]:
        """Weights of the terms, key by key; last, of equal plans that of more groups is taken."""
        found = [{name: price[k] for name, price in self.prices.items()} for k in range(count)]
        if fewest_groups:
            found.insert(0, {("take", group): Fraction(1) for group in self.take})
        if self.residency.savings:
            # less than any difference of the last key
            unit = lcm(*(value.denominator for value in found[-1].values())) * (len(self.graph.ops) + 1)
            for group in self.take:
                found[-1]["take", group] += Fraction(len(group) - 1, unit)
        return found

    def hint(self, values: Sequence[int]) -> None:
        """Where to start from."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for variable, value in zip(self.variables, values, strict=True):
            self.model.add_hint(variable, value)

    def _term(self, name: Name, variable: cp_model.IntVar, price: Cost) -> None:
        self.terms[name], self.prices[name] = variable, price

    def _partition(self) -> None:
        """Every op is in one group."""
        for op in self.graph.ops:
            self.model.add_exactly_one(self.take[group] for group in self.take if op.name in group)

    def _order(self) -> None:
        """Groups have an order: equal places within one, increasing along every edge between two."""
        for group, used in self.take.items():
            for first, second in pairwise(group):
                self.model.add(self.place[first] == self.place[second]).only_enforce_if(used)
        home: dict[str, list[Ops]] = {op.name: [] for op in self.graph.ops}
        for group in self.take:
            for name in group:
                home[name].append(group)
        for op in self.graph.ops:
            for tensor in op.reads:
                maker = self.graph.producer(tensor)
                if maker is None:
                    continue
                together = [self.take[group] for group in home[op.name] if maker in group]
                self.model.add(self.place[op.name] >= self.place[maker] + 1 - sum(together))

    def _stay(self) -> None:
        """A tensor that stays crosses the border of a group, and saves transfers of those that touch it.

        Its maker's group saves writing it. One reader saves one reading; of several, each group does.
        """
        for name, stay in self.stay.items():
            read, write = self.residency.savings[name]
            maker, users = self.graph.producer(name), set(self.graph.consumers(name))
            within = [used for group, used in self.take.items() if maker in group and users <= set(group)]
            self.model.add_at_most_one([*within, stay])
            saved = tuple(-value for value in write)
            if len(users) == 1:
                saved = tuple(a - b for a, b in zip(saved, read, strict=True))
            self._term(("saved", name), stay, saved)
            for group, used in self.take.items():
                if len(users) == 1 or maker in group or not users & set(group):
                    continue
                both = self.model.new_bool_var("")
                self.model.add_implication(both, used)
                self.model.add_implication(both, stay)
                self._term(("saved", name, group), both, tuple(-value for value in read))
        for group in self.residency.second:
            self.model.add_bool_or([~self.take[group], *self.stay.values()])

    def _levels(self) -> None:
        """While tensors stay beside a group or with it, it costs more, by one of its levels."""
        by_group: dict[Ops, list[Level]] = {}
        for level in self.residency.levels:
            by_group.setdefault(level.group, []).append(level)
        for group, levels in by_group.items():
            extras = sorted({level.extra for level in levels if level.extra is not None and any(level.extra)})
            rises = {extra: self.model.new_bool_var("") for extra in extras}
            for number, (extra, rise) in enumerate(rises.items()):
                self._term(("rise", group, number), rise, extra)
            for level in levels:
                if level.extra is not None and not any(level.extra):
                    continue
                held = [self.take[group], *(self._alive(name, group) for name in sorted(level.alive))]
                unless = [~one for one in held]
                if level.exactly:
                    touched = {name for op in group for name in self.graph.op(op).tensors}
                    others = touched.intersection(self.stay) - level.alive
                    unless += [self.stay[name] for name in sorted(others)]
                enough = [rise for extra, rise in rises.items() if level.extra and extra >= level.extra]
                self.model.add_bool_or([*unless, *enough])

    def _alive(self, name: str, group: Ops) -> cp_model.IntVar:
        """Whether a tensor stays in the buffer while a group runs."""
        maker, readers = self.graph.producer(name), self.graph.consumers(name)
        if maker in group or set(readers) & set(group):
            return self.stay[name]
        if (name, group) not in self.alive:
            assert maker is not None
            alive, before, after = (self.model.new_bool_var("") for _ in range(3))
            self.model.add_bool_or([~self.stay[name], ~self.take[group], alive, before, after])
            here = self.place[group[0]]
            self.model.add(here < self.place[maker]).only_enforce_if(before)
            for reader in readers:
                self.model.add(here > self.place[reader]).only_enforce_if(after)
            self.alive[name, group] = alive
        return self.alive[name, group]

    def _greedy(self, rank: Mapping[str, int]) -> list[int]:
        """A solution by taking what saves most against single ops, as long as the groups have an order."""
        single = {group[0]: cost for group, cost in self.costs.items() if len(group) == 1}
        gains = []
        for group, cost in self.costs.items():
            if len(group) > 1 and all(name in single for name in group):
                apart = (sum(column) for column in zip(*(single[name] for name in group), strict=True))
                gain = tuple(a - b for a, b in zip(cost, apart, strict=True))
                if gain < (0,) * len(cost) and group not in self.residency.second:
                    gains.append((gain, [rank[name] for name in group], group))
        chosen: list[Ops] = [(name,) for name in single]
        for _, _, group in sorted(gains):
            rest = [one for one in chosen if not set(one) & set(group)]
            if sum(map(len, rest)) + len(group) != sum(map(len, chosen)):
                continue
            if _acyclic(self.graph, [*rest, group]):
                chosen = [*rest, group]
        order = {name: place for place, one in enumerate(_in_order(self.graph, chosen)) for name in one}
        values = [int(group in chosen) for group in self.take]
        return [*values, *(order.get(name, 0) for name in self.place), *(0 for _ in self.stay)]


def _integers(key: Sequence[Fraction]) -> tuple[list[int], Fraction]:
    """Whole numbers proportional to a key, and the unit; rounded down only beyond 2⁶⁰ in all."""
    scale = lcm(*(value.denominator for value in key))
    whole = [int(value * scale) for value in key]
    shrink = max(1, -(-sum(abs(value) for value in whole) // _LARGEST))
    return [value // shrink for value in whole], Fraction(shrink, scale)


def _waits(graph: Graph, groups: Sequence[Ops]) -> dict[Ops, set[Ops]]:
    """The groups that each group needs something of."""
    home = {op: group for group in groups for op in group}
    return {
        group: {
            home[maker]
            for op in group
            for tensor in graph.op(op).reads
            if (maker := graph.producer(tensor)) is not None and home.get(maker, group) != group
        }
        for group in groups
    }


def _acyclic(graph: Graph, groups: Sequence[Ops]) -> bool:
    waits, done = _waits(graph, groups), set[Ops]()
    left = list(groups)
    while left:
        ready = [group for group in left if waits[group] <= done]
        if not ready:
            return False
        done.update(ready)
        left = [group for group in left if group not in done]
    return True


def _in_order(graph: Graph, groups: Sequence[Ops], place: Mapping[str, int] | None = None) -> tuple[Ops, ...]:
    """Groups so that producers come first; of several ready ones, by place, then earliest in the graph."""
    rank = {op.name: index for index, op in enumerate(graph.ops)}
    waits = _waits(graph, groups)
    order: list[Ops] = []
    left, done = list(groups), set[Ops]()
    while left:
        ready = [group for group in left if waits[group] <= done]
        first = min(ready, key=lambda group: (place[group[0]] if place else 0, rank[group[0]]))
        order.append(first)
        done.add(first)
        left.remove(first)
    return tuple(order)
