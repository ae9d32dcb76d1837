"""What groups cost: searched once per canonical form, capacity and objective, and kept (design §8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from mmee_solver.accelerator import Accelerator
from mmee_solver.arrays import OpTable
from mmee_solver.candidates import FLAT, Candidates
from mmee_solver.canon import Form, Names, canonical, renamed
from mmee_solver.cost import evaluate_group
from mmee_solver.enumerate import Counts, GroupResult, Objective, search_program
from mmee_solver.errors import GaveUpError, InfeasibleError
from mmee_solver.mapping import Options
from mmee_solver.master import Cost, Ops
from mmee_solver.nest import Group
from mmee_solver.plan import Priced, Variant
from mmee_solver.program import Program, group_program
from mmee_solver.units import bits_to_bytes
from mmee_solver.workload import Graph

Progress = Callable[[str, int, int], None]
_NONE: frozenset[str] = frozenset()
EFFORT = 8_000  # boxes that the search of a group of many ops may bound


@dataclass(slots=True)
class _Searched:
    """A search at a capacity: its result holds for every capacity from its peak to there."""

    capacity_bytes: int
    least_bytes: int
    names: Names
    result: GroupResult | None
    gave_up: bool = False


@dataclass(slots=True)
class Pricer:
    """Searches groups of one graph on one accelerator; equal searches are done once."""

    graph: Graph
    accelerator: Accelerator
    options: Options
    progress: Progress | None = None
    candidates: Candidates | None = None  # which order trees a group takes; every one unless given
    expected: int = 0  # groups to be searched in all, as far as it is known
    counts: dict[Ops, Counts] = field(default_factory=dict)
    given_up: dict[Ops, None] = field(default_factory=dict)
    done: int = 0
    forms: dict[tuple[Ops, frozenset[str]], tuple[Form, Names]] = field(default_factory=dict)
    tables: dict[str, OpTable | None] = field(default_factory=dict)
    programs: dict[Form, tuple[Names, Program]] = field(default_factory=dict)
    searched: dict[tuple[Form, Objective, Cost | None, bool], list[_Searched]] = field(default_factory=dict)
    least: dict[tuple[Form, int], Group] = field(default_factory=dict)  # dataflows of least traffic by room

    def search(
        self,
        variant: Variant,
        objective: Objective,
        cutoff: Cost | None = None,
        floor: Cost | None = None,
        more_bytes: int = 0,
        lazily: bool = False,
    ) -> GroupResult:
        """The best dataflow of a group with what stays in the buffer.

        Parameters
        ----------
        variant : Variant
            The group; tensors that stay with it and beside it.
        objective : Objective
            What to minimise.
        cutoff : tuple of Fraction, optional
            Additive keys of its ops in smaller groups: only what is below is of interest.
        floor : tuple of Fraction, optional
            A known bound of the additive keys, at which the search may stop.
        more_bytes : int
            Room beyond the buffer's capacity, for bounds.
        lazily : bool
            Whether to stop at the least traffic if that is below the cutoff.

        Raises
        ------
        InfeasibleError
            If nothing fits.
        GaveUpError
            If a group of many ops takes more than EFFORT boxes.
        """
        beside = sum(bits_to_bytes(self.graph.bits(name)) for name in variant.beside)
        accelerator = self.accelerator
        capacity = accelerator.buffer.capacity_bytes + more_bytes - beside
        form, names = self.form(variant)
        known = self.searched.setdefault((form, objective, cutoff, lazily), [])
        for one in known:
            if one.least_bytes <= capacity <= one.capacity_bytes:
                if one.gave_up:
                    self.given_up[variant.group] = None
                    raise GaveUpError(" + ".join(variant.group))
                if one.result is None:
                    raise InfeasibleError(" + ".join(variant.group), 0, capacity)
                return _under_names(one.names, one.result, names)
        kept = sum(bits_to_bytes(self.graph.bits(name)) for name in variant.resident)
        if capacity <= kept:
            known.append(_Searched(capacity, 0, names, None))
            raise InfeasibleError(" + ".join(variant.group), kept + 1, capacity)
        if self.progress:
            self.progress(" + ".join(variant.group), self.done, max(self.expected, self.done + 1))
        self.done += 1
        if form not in self.programs:  # edp searches a group several times over
            self.programs[form] = (
                names,
                group_program(
                    self.graph,
                    accelerator,
                    variant.group,
                    self.options.recompute,
                    self.options.tiles == "divisors",
                    variant.resident,
                    None if self.candidates is None else self.candidates.trees(variant.group),
                    self.tables,
                ),
            )
        first, program = self.programs[form]  # under the names of the group that came first
        size = len(variant.group)
        limit = None if cutoff is None else (*cutoff, *(Fraction(0),) * (4 - len(cutoff)))
        try:
            result = search_program(
                program,
                accelerator.with_buffer(capacity),
                objective,
                self.options.tiles,
                limit,  # type: ignore[arg-type]
                beats_split=limit is not None,
                floor=floor,
                effort=None if self.candidates is None or self.candidates.kind(size) != FLAT else EFFORT,
                least=self.least.get((form, capacity)) if objective.name == "dram" else None,
                lazily=lazily,
            )
        except GaveUpError:
            self.given_up[variant.group] = None
            known.append(_Searched(capacity, capacity, first, None, gave_up=True))
            raise
        except InfeasibleError:
            known.append(_Searched(capacity, 0, first, None))
            raise
        if result.bound is not None and result.group is not None:
            self.least[form, capacity] = result.group
        self.counts.setdefault(variant.group, Counts()).add(result.counts)
        # nothing beats the cutoff with less room either
        least = 0 if result.metrics is None else result.metrics.peak_buffer_bytes
        known.append(_Searched(capacity, least, first, result))
        return _under_names(first, result, names)

    def price(
        self,
        variant: Variant,
        objective: Objective,
        bound: Cost,
        cutoff: Cost | None,
        near: GroupResult | None,
    ) -> Priced | None:
        """The price of a variant; None if it does not fit, or nothing beats the cutoff.

        ``near`` is the best dataflow with nothing resident: often it is the best here as well, and then
        reaches the bound.
        """
        if near is not None and near.group is not None:
            found = self.priced(variant, near.group)
            if (
                found.metrics.peak_buffer_bytes <= self.accelerator.buffer.capacity_bytes
                and objective.additive(found.metrics) <= bound
            ):
                return found
        try:
            result = self.search(variant, objective, cutoff, floor=bound)
        except (InfeasibleError, GaveUpError):
            return None
        return None if result.group is None else self.priced(variant, result.group)

    def priced(self, variant: Variant, group: Group) -> Priced:
        """A dataflow with its exact cost, the bytes of all that stays in its peak."""
        metrics = evaluate_group(self.graph, self.accelerator, group, variant.resident, variant.beside)
        return Priced(group, metrics)

    def form(self, variant: Variant) -> tuple[Form, Names]:
        """The canonical form of a group with its residents, and its names."""
        key = variant.group, variant.resident
        if key not in self.forms:
            self.forms[key] = canonical(self.graph, variant.group, variant.resident)
        return self.forms[key]


def alone(group: Ops) -> Variant:
    """A group with nothing resident."""
    return Variant(group, _NONE, _NONE)


def _under_names(old: Names, result: GroupResult, new: Names) -> GroupResult:
    if result.group is None or result.metrics is None:
        return result
    group, metrics = renamed(result.group, result.metrics, old, new)
    return GroupResult(group, metrics, result.counts, result.bound)
