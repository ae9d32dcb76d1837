"""The facade: graph and accelerator in, proved mapping out."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Any

from mmee_solver.accelerator import Accelerator
from mmee_solver.canon import Form, Names, canonical, renamed
from mmee_solver.certify import certificate
from mmee_solver.cost import Metrics, add_metrics
from mmee_solver.enumerate import (
    Counts,
    GroupResult,
    Objective,
    search_program,
)
from mmee_solver.errors import InfeasibleError, InputError, did_you_mean
from mmee_solver.fold import fold
from mmee_solver.mapping import FUSION, OBJECTIVES, TILES, Mapping, Options, number
from mmee_solver.master import Partition, choose_partition
from mmee_solver.program import Program, group_program
from mmee_solver.trees import legal_groups
from mmee_solver.workload import Graph

Ops = tuple[str, ...]
Progress = Callable[[str, int, int], None]
SHORT = 4  # ops of a graph up to which groups of three are searched; in longer ones they take minutes


def solve(
    graph: Graph,
    accelerator: Accelerator,
    objective: str = "energy",
    tiles: str = "integer",
    fusion: str = "auto",
    recompute: bool = True,
    progress: Progress | None = None,
) -> Mapping:
    """Find the best dataflow of a graph on an accelerator, and prove it.

    Parameters
    ----------
    graph : Graph
        Folded or not.
    accelerator : Accelerator
        DRAM, buffer, arrays and vector unit.
    objective : str
        ``dram`` (bytes), ``energy`` (pJ), ``latency`` (cycles) or ``edp``.
    tiles : str
        ``integer`` (any tile size) or ``divisors``.
    fusion : str
        ``none`` (every op alone), ``auto`` (whatever is best) or ``all`` (as few groups as can be).
    recompute : bool
        Whether recomputation is in the space.
    progress : callable, optional
        Called with (what is being solved, how many are done, how many there are).

    Returns
    -------
    Mapping
        Status ``optimal``; its bound equals its value.

    Raises
    ------
    InputError
        For an option that is not known.
    InfeasibleError
        If an op does not fit the buffer at all.
    """
    for name, value, known in (
        ("objective", objective, OBJECTIVES),
        ("tiles", tiles, TILES),
        ("fusion", fusion, FUSION),
    ):
        if value not in known:
            hint = did_you_mean(str(value), known)
            raise InputError(f'{name} "{value}"; expected one of {", ".join(known)}{hint}')
    start = time.perf_counter()
    options = Options(objective, tiles, fusion, recompute)
    solver = _Solver(fold(graph), accelerator, options, progress)
    mapping = solver.run()
    object.__setattr__(mapping, "seconds", time.perf_counter() - start)
    return mapping


@dataclass(slots=True)
class _Choice:
    """A partition with the result of each of its groups."""

    partition: Partition
    results: tuple[GroupResult, ...]
    metrics: Metrics


@dataclass(slots=True)
class _Solver:
    graph: Graph
    accelerator: Accelerator
    options: Options
    progress: Progress | None
    counts: dict[Ops, Counts] = field(default_factory=dict)
    dropped: dict[Ops, None] = field(default_factory=dict)
    done: int = 0
    forms: dict[Ops, tuple[Form, Names]] = field(default_factory=dict)
    programs: dict[Form, Program] = field(default_factory=dict)
    cache: dict[tuple[Any, ...], tuple[Names, GroupResult]] = field(default_factory=dict)

    def run(self) -> Mapping:
        """Solve, and put the mapping together."""
        name = self.options.objective
        alone: _Choice | None
        singles: list[Ops] = [(op.name,) for op in self.graph.ops]
        if name == "edp":
            choice = self._least_edp(self._candidates())
        else:
            choice = self._best(Objective(name), self._candidates())
        try:
            alone = self._least_edp(singles) if name == "edp" else self._best(Objective(name), singles)
        except InfeasibleError:
            alone = None
        value = Fraction(choice.metrics.value(name))
        bound = value if name == "edp" else choice.partition.bound
        groups = tuple(result.group for result in choice.results if result.group is not None)
        return Mapping(
            status="optimal",
            options=self.options,
            graph=self.graph,
            accelerator=self.accelerator,
            groups=groups,
            group_metrics=tuple(r.metrics for r in choice.results if r.metrics is not None),
            metrics=choice.metrics,
            bound=bound,
            unfused=None if alone is None else alone.metrics,
            certificate=self._certificate(choice, bound),
        )

    def _certificate(self, choice: _Choice, bound: Fraction) -> dict[str, Any]:
        master = {"status": choice.partition.status, "groups": len(choice.partition.groups)}
        return certificate(
            self.options, self._largest, self.counts, list(self.dropped), master, number(bound)
        )

    def _candidates(self) -> list[Ops]:
        return list(legal_groups(self.graph, self._largest))

    @property
    def _largest(self) -> int:
        """Ops in a group at most."""
        if self.options.fusion == "none":
            return 1
        return 3 if len(self.graph.ops) <= SHORT else 2

    def _best(self, objective: Objective, candidates: list[Ops]) -> _Choice:
        """The best partition into candidates under an additive objective."""
        found: dict[Ops, GroupResult] = {}
        costs: dict[Ops, tuple[Fraction, ...]] = {}
        refused: dict[Ops, InfeasibleError] = {}
        for group in candidates:
            cutoff = None
            if len(group) > 1 and self.options.fusion == "auto":
                cutoff = best_split(group, costs)
            try:
                result = self._solve_group(group, objective, cutoff)
            except InfeasibleError as error:
                refused[group] = error
                continue
            if result.metrics is None:
                self.dropped[group] = None
                continue
            found[group] = result
            costs[group] = self._additive(objective, result.metrics)
        self._check_covered(costs, refused)
        partition = choose_partition(self.graph, costs, self.options.fusion == "all")
        results = tuple(found[group] for group in partition.groups)
        total = add_metrics([r.metrics for r in results if r.metrics is not None])
        return _Choice(partition, results, total)

    def _check_covered(
        self, costs: dict[Ops, tuple[Fraction, ...]], refused: dict[Ops, InfeasibleError]
    ) -> None:
        """Raise if an op fits in no group; names the least capacity that would do for it."""
        for op in self.graph.ops:
            if not any(op.name in group for group in costs):
                errors = [error for group, error in refused.items() if op.name in group]
                raise min(errors, key=lambda error: error.demand_bytes)

    @staticmethod
    def _additive(objective: Objective, metrics: Metrics) -> tuple[Fraction, ...]:
        """Keys that add over groups: the value, energy, latency (a peak does not add)."""
        key = objective.key(metrics)
        return key[:2] if objective.name in ("energy", "latency") else key[:3]

    def _solve_group(
        self, group: Ops, objective: Objective, cutoff: tuple[Fraction, ...] | None
    ) -> GroupResult:
        """The best dataflow of a group; groups of equal form are searched once."""
        if self.progress:
            self.progress(" + ".join(group), self.done, len(self._candidates()))
        self.done += 1
        if group not in self.forms:
            self.forms[group] = canonical(self.graph, group)
        form, names = self.forms[group]
        limit = None if cutoff is None else (*cutoff, *(Fraction(0),) * (4 - len(cutoff)))
        key = (form, objective, limit)
        if key not in self.cache:
            if form not in self.programs:  # edp searches a group several times over
                recut = self.options.tiles == "divisors"
                self.programs[form] = group_program(
                    self.graph, self.accelerator, group, self.options.recompute, recut
                )
            result = search_program(
                self.programs[form],
                self.accelerator,
                objective,
                self.options.tiles,
                limit,  # type: ignore[arg-type]
                beats_split=limit is not None,
            )
            self.counts.setdefault(group, Counts()).add(result.counts)
            self.cache[key] = (names, result)
        return _under_names(*self.cache[key], names)

    def _least_edp(self, candidates: list[Ops]) -> _Choice:
        """Least (sum of energies) × (sum of latencies) over all partitions.

        The product is quasi-concave, so over all solutions it is least at a corner of the convex
        hull of their (energy, latency) points; a corner is the least of a weighted sum, which is
        additive. Corners are found by dichotomy between the extremes. A pair of corners is not
        refined when even the point that joins their best coordinates is no better than the best.
        """
        left = self._best(Objective("energy"), candidates)
        right = self._best(Objective("latency"), candidates)
        best = min((left, right), key=self._edp_key)
        stack = [(left, right)]
        while stack:
            low, high = stack.pop()
            energy = high.metrics.energy.total - low.metrics.energy.total
            latency = low.metrics.latency_cycles - high.metrics.latency_cycles
            ideal = low.metrics.energy.total * high.metrics.latency_cycles
            if energy <= 0 or latency <= 0 or ideal >= best.metrics.edp:
                continue
            weighted = Objective("weighted", Fraction(latency), energy)
            middle = self._best(weighted, candidates)
            value = weighted.key(middle.metrics)[0]
            if value >= weighted.key(low.metrics)[0]:
                continue
            best = min((best, middle), key=self._edp_key)
            stack += [(low, middle), (middle, high)]
        return best

    @staticmethod
    def _edp_key(choice: _Choice) -> tuple[Fraction, ...]:
        return Objective("edp").key(choice.metrics)


def best_split(group: Ops, costs: MappingABC[Ops, tuple[Fraction, ...]]) -> tuple[Fraction, ...] | None:
    """The least cost of a group's ops in smaller groups whose cost is known; None if some op has none.

    Parts of a convex group of at most three ops never wait for each other in a circle.

    Parameters
    ----------
    group : tuple of str
        Op names in topological order.
    costs : mapping of group to sequence of Fraction
        Additive keys, most important first.

    >>> one = Fraction(1)
    >>> costs = {("a",): (5 * one,), ("b",): (5 * one,), ("c",): (4 * one,), ("a", "b"): (7 * one,)}
    >>> best_split(("a", "b", "c"), costs)
    (Fraction(11, 1),)
    """
    least: dict[Ops, tuple[Fraction, ...] | None] = {(): (Fraction(0),) * 3}

    def rest(ops: Ops) -> tuple[Fraction, ...] | None:
        if ops not in least:
            found = []
            for count in range(len(ops)):
                for others in combinations(ops[1:], count):
                    part = (ops[0], *others)
                    if part == group or part not in costs:
                        continue
                    behind = rest(tuple(op for op in ops if op not in part))
                    if behind is not None:
                        found.append(tuple(a + b for a, b in zip(costs[part], behind, strict=False)))
            least[ops] = min(found) if found else None
        return least[ops]

    return rest(group)


def _under_names(old: Names, result: GroupResult, new: Names) -> GroupResult:
    if result.group is None or result.metrics is None:
        return result
    group, metrics = renamed(result.group, result.metrics, old, new)
    return GroupResult(group, metrics, result.counts)
