"""The facade: graph and accelerator in, proved mapping out."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from mmee_solver.accelerator import Accelerator
from mmee_solver.candidates import ALWAYS, Candidates, candidates
from mmee_solver.canon import Form
from mmee_solver.certify import Space, certificate
from mmee_solver.cost import Metrics, add_metrics
from mmee_solver.enumerate import GroupResult, Objective
from mmee_solver.errors import GaveUpError, InfeasibleError, InputError, did_you_mean
from mmee_solver.fold import fold
from mmee_solver.mapping import FUSION, OBJECTIVES, TILES, Mapping, Options, number
from mmee_solver.master import Cost, Ops
from mmee_solver.plan import Plan, Priced, Variant, best_plan, best_split, stayers
from mmee_solver.pricing import Pricer, Progress, alone
from mmee_solver.units import bits_to_bytes
from mmee_solver.workload import Graph


def solve(
    graph: Graph,
    accelerator: Accelerator,
    objective: str = "energy",
    tiles: str = "integer",
    fusion: str = "auto",
    recompute: bool = True,
    residency: bool = True,
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
    residency : bool
        Whether an intermediate may stay whole in the buffer between groups (not with ``fusion`` none).
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
    options = Options(objective, tiles, fusion, recompute, residency)
    folded = fold(graph)
    mapping = _Solver.of(folded, accelerator, options, progress).run()
    object.__setattr__(mapping, "seconds", time.perf_counter() - start)
    return mapping


FEW = 4  # ops of a graph up to which ties of plans that move the least are decided among all groups


@dataclass(slots=True)
class _Choice:
    """A plan with the cost of the whole graph."""

    plan: Plan
    metrics: Metrics


@dataclass(slots=True)
class _Solver:
    graph: Graph
    accelerator: Accelerator
    options: Options
    pricer: Pricer
    candidates: Candidates
    dropped: dict[Ops, None] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: Graph, accelerator: Accelerator, options: Options, progress: Progress | None
    ) -> _Solver:
        """A solver of a folded graph, with its candidate groups."""
        pricer = Pricer(graph, accelerator, options, progress)
        largest = 1 if options.fusion == "none" else None
        found = candidates(graph, lambda group: pricer.form(alone(group))[0], options.recompute, largest)
        pricer.candidates, pricer.expected = found, len(found.groups)
        return cls(graph, accelerator, options, pricer, found)

    def run(self) -> Mapping:
        """Solve, and put the mapping together."""
        name = self.options.objective
        choice = self._choose_in_stages(list(self.candidates.groups), self._resident())
        value = Fraction(choice.metrics.value(name))
        bound = value if name == "edp" else choice.plan.partition.bound
        return Mapping(
            status="optimal",
            options=self.options,
            graph=self.graph,
            accelerator=self.accelerator,
            groups=tuple(part.group for part in choice.plan.parts),
            group_metrics=tuple(part.metrics for part in choice.plan.parts),
            metrics=choice.metrics,
            bound=bound,
            resident=choice.plan.resident,
            unfused=self._unfused(),
            certificate=self._certificate(choice.plan, bound),
        )

    def _unfused(self) -> Metrics | None:
        """The cost of the best dataflow with every op alone; None if some op does not fit alone."""
        try:
            return self._choose([(op.name,) for op in self.graph.ops], ()).metrics
        except InfeasibleError:
            return None

    def _certificate(self, plan: Plan, bound: Fraction) -> dict[str, Any]:
        master = {
            "status": plan.partition.status,
            "groups": len(plan.partition.groups),
            "rounds": plan.rounds,
            "variants": plan.variants,
            "ties": "open" if plan.ties_open else "decided",
        }
        space = Space(self.candidates, bool(self._resident()), tuple(self.pricer.given_up))
        counts, dropped = self.pricer.counts, list(self.dropped)
        return certificate(self.options, space, counts, dropped, master, number(bound))

    def _resident(self) -> tuple[str, ...]:
        """Tensors that may stay in the buffer between groups."""
        if not self.options.residency or self.options.fusion == "none":
            return ()
        return stayers(self.graph, self.accelerator)

    def _choose_in_stages(self, groups: list[Ops], resident: tuple[str, ...]) -> _Choice:
        """The best plan; for traffic, larger groups only if smaller ones, or one, move more than they must.

        No mapping moves less than the compulsory traffic, so a plan that moves no more is best, whatever
        the groups; one of equal traffic might have lower later keys, which graphs of few ops have decided.
        """
        small = [group for group in groups if len(group) <= ALWAYS]
        whole = [group for group in groups if len(group) == len(self.graph.ops)]
        if self.options.objective == "dram" and self.options.fusion == "auto" and len(self.graph.ops) > FEW:
            least = Fraction(self.graph.compulsory_bytes())
            for some in (small, [*small, *whole]):
                choice = self._best(Objective("dram"), some, resident, least)
                if choice is not None:
                    choice.plan = replace(choice.plan, ties_open=some != groups)
                    return choice
        return self._choose(groups, resident)

    def _choose(self, groups: list[Ops], resident: tuple[str, ...]) -> _Choice:
        """The best plan with some candidate groups and residents."""
        name = self.options.objective
        if name == "edp":
            return self._least_edp(groups, resident)
        return self._surely(Objective(name), groups, resident)

    def _surely(self, objective: Objective, groups: list[Ops], resident: tuple[str, ...]) -> _Choice:
        """The best plan under an additive objective."""
        choice = self._best(objective, groups, resident)
        assert choice is not None
        return choice

    def _best(
        self,
        objective: Objective,
        groups: list[Ops],
        resident: tuple[str, ...],
        most: Fraction | None = None,
    ) -> _Choice | None:
        """The best plan under an additive objective; None if it costs more than ``most``."""
        found: dict[Ops, GroupResult] = {}
        costs: dict[Ops, Cost] = {}  # bounds, where a group moves less than its split
        reached: dict[Ops, Cost] = {}
        second: dict[Ops, None] = {}
        refused: dict[Ops, InfeasibleError] = {}
        cutoffs: dict[Form, Cost | None] = {}  # of groups of equal form, the splits cost the same
        lazily = objective.name == "dram" and self.options.fusion == "auto"
        more = 0
        if resident and self.accelerator.buffer.double_buffered:
            more = sum(bits_to_bytes(self.graph.bits(name)) for name in resident)
        for group in groups:
            cutoff = None
            if len(group) > 1 and self.options.fusion == "auto":
                form = self.pricer.form(alone(group))[0]
                if form not in cutoffs:
                    split = best_split(self.graph, group, reached)
                    cutoffs[form] = None if split is None else split[0]
                cutoff = cutoffs[form]
            try:
                result = self.pricer.search(
                    alone(group), objective, cutoff, more_bytes=more, lazily=lazily and len(group) > 1
                )
            except InfeasibleError as error:
                refused[group] = error
                continue
            except GaveUpError:
                continue
            if result.metrics is not None:
                reached[group] = costs[group] = objective.additive(result.metrics)
                if result.bound is None:
                    found[group] = result
                else:
                    costs[group] = result.bound
                continue
            self.dropped[group] = None
            if resident and cutoff is not None:
                costs[group] = cutoff
                second[group] = None
        self._check_covered(costs, refused)

        def price(variant: Variant, bound: Cost, cutoff: Cost | None) -> Priced | None:
            return self.pricer.price(variant, objective, bound, cutoff, found.get(variant.group))

        fewest = self.options.fusion == "all"
        plan = best_plan(
            self.graph, self.accelerator, objective, costs, second, price, fewest, resident, most
        )
        if plan is None and most is not None:
            return None
        if plan is None:  # what has more room fits, the buffer itself is too small
            for op in self.graph.ops:
                self.pricer.search(alone((op.name,)), objective)
            raise AssertionError("no plan fits, but every op does")
        return _Choice(plan, add_metrics([part.metrics for part in plan.parts]))

    def _check_covered(self, costs: dict[Ops, Cost], refused: dict[Ops, InfeasibleError]) -> None:
        """Raise if an op fits in no group; names the least capacity that would do for it."""
        for op in self.graph.ops:
            if not any(op.name in group for group in costs):
                errors = [error for group, error in refused.items() if op.name in group]
                raise min(errors, key=lambda error: error.demand_bytes)

    def _least_edp(self, groups: list[Ops], resident: tuple[str, ...]) -> _Choice:
        """Least (sum of energies) × (sum of latencies) over all plans.

        The product is quasi-concave, so over all solutions it is least at a corner of the convex
        hull of their (energy, latency) points; a corner is the least of a weighted sum, which is
        additive. Corners are found by dichotomy between the extremes. A pair of corners is not
        refined when even the point that joins their best coordinates is no better than the best.
        """
        left = self._surely(Objective("energy"), groups, resident)
        right = self._surely(Objective("latency"), groups, resident)
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
            middle = self._surely(weighted, groups, resident)
            value = weighted.key(middle.metrics)[0]
            if value >= weighted.key(low.metrics)[0]:
                continue
            best = min((best, middle), key=self._edp_key)
            stack += [(low, middle), (middle, high)]
        return best

    @staticmethod
    def _edp_key(choice: _Choice) -> tuple[Fraction, ...]:
        return Objective("edp").key(choice.metrics)
