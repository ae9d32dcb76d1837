"""One CP-SAT model of a small graph that decides everything: a second road to the same optimum.

Partition and order of the groups, order of the ops, shared and private loops, tile sizes, holds,
granules and array configurations are variables of one model, solved once (design §7, §8). It shares
the cost model's definitions with the engine, but none of its enumeration: a check of both.

Left out are tensors that stay resident between groups (§7.6), and what obviously gains nothing: loops over
dims that no op of the group has, and private loops over dims that the op lacks (they only recompute).
Loops of one step are there where they tell something: a hold of a list can end before the last op of
the list that reads its tensor.

The model is for graphs of few ops and dims of few tile sizes: small sizes, or divisors. Sizes are not
what limits it, but values: attention of GPT-3 with tile sizes that divide takes seconds.

References
----------
Design §8: "For small cases one monolithic CP-SAT model (tile sizes and all) proves the same optimum by
another road."
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise
from math import prod

from ortools.sat.python import cp_model

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import Metrics, add_metrics
from mmee_solver.errors import InputError, MmeeError, did_you_mean
from mmee_solver.fold import fold
from mmee_solver.monolith_costs import Costs, add_costs, energy_scale
from mmee_solver.monolith_nest import chosen_group
from mmee_solver.monolith_paths import GroupFacts, Paths, add_paths
from mmee_solver.monolith_sites import Sites, add_sites
from mmee_solver.monolith_terms import Literal, Quantity, Sum, Terms, linear, most
from mmee_solver.nest import Group
from mmee_solver.validate import validate_groups
from mmee_solver.workload import Graph

OBJECTIVES = ("dram", "energy", "latency", "edp")
FUSION = ("none", "auto", "all")
TILES = ("integer", "divisors")
MOST_OPS = 6
LARGEST_GROUP = 3
MOST_TILINGS = 100_000
MOST_ROWS = 400_000

Ops = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MonolithOptions:
    """What is minimised, the restrictions of the space, and the time limit in seconds (None: no limit).

    ``fewest`` puts the number of groups before the objective.
    """

    objective: str = "energy"
    tiles: str = "integer"
    recompute: bool = True
    fewest: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, given, known in (
            ("objective", self.objective, OBJECTIVES),
            ("tiles", self.tiles, TILES),
        ):
            if given not in known:
                hint = did_you_mean(given, known)
                raise InputError(f'{name} "{given}"; expected one of {", ".join(known)}{hint}')


@dataclass(frozen=True, slots=True)
class MonolithResult:
    """What CP-SAT found: ``value`` and its proven ``bound``, in bytes, pJ, cycles or pJ · cycles.

    ``status`` is ``optimal``, ``feasible`` (stopped by the time limit), ``infeasible`` or ``unknown``;
    without a solution the value is None and there are no groups.
    """

    status: str
    value: Fraction | None
    bound: Fraction | None
    groups: tuple[Group, ...] = ()
    metrics: Metrics | None = None


@dataclass(frozen=True, slots=True)
class _GroupModel:
    """Variables of one candidate group; ``take`` says whether it is part of the partition."""

    facts: GroupFacts
    take: cp_model.IntVar
    paths: Paths
    sites: Sites
    costs: Costs


def solve_monolith(
    graph: Graph,
    accelerator: Accelerator,
    objective: str = "energy",
    tiles: str = "integer",
    recompute: bool = True,
    fusion: str = "auto",
    largest: int | None = None,
    seconds: float | None = None,
) -> MonolithResult:
    """The best dataflow of a small graph by one CP-SAT model, and its proven bound.

    Parameters
    ----------
    graph : Graph
        Folded or not.
    accelerator : Accelerator
        DRAM, buffer, arrays and vector unit.
    objective : str
        ``dram`` (bytes), ``energy`` (pJ), ``latency`` (cycles) or ``edp`` (pJ · cycles).
    tiles : str
        ``integer`` (any tile size) or ``divisors``.
    recompute : bool
        Whether recomputation is in the space.
    fusion : str
        ``none`` (every op alone), ``auto`` (whatever is best) or ``all`` (as few groups as can be).
    largest : int, optional
        Most ops in a group, at most 3 (the default).
    seconds : float, optional
        Time limit; without one the model is solved to the end.

    Raises
    ------
    InputError
        For an option that is not known, or a graph that is too large.
    MmeeError
        If the chosen nests do not cost what CP-SAT says: an error of this program.
    """
    if fusion not in FUSION:
        hint = did_you_mean(fusion, FUSION)
        raise InputError(f'fusion "{fusion}"; expected one of {", ".join(FUSION)}{hint}')
    limit = LARGEST_GROUP if largest is None else largest
    if not 1 <= limit <= LARGEST_GROUP:
        raise InputError(f"groups of {limit} ops; expected 1 to {LARGEST_GROUP}", "largest")
    graph = fold(graph)
    if len(graph.ops) > MOST_OPS:
        raise InputError(f"{len(graph.ops)} ops; a monolithic model is solved for at most {MOST_OPS}", "ops")
    groups = connected_groups(graph, 1 if fusion == "none" else limit)
    options = MonolithOptions(objective, tiles, recompute, fusion == "all", seconds)
    return solve_groups(graph, accelerator, groups, options)


def solve_groups(
    graph: Graph, accelerator: Accelerator, groups: Sequence[Ops], options: MonolithOptions
) -> MonolithResult:
    """The same with the candidate groups given, for a graph that is folded already.

    Parameters
    ----------
    graph : Graph
        Taken as it is.
    accelerator : Accelerator
        DRAM, buffer, arrays and vector unit.
    groups : sequence of tuple of str
        Candidates, at most 3 ops each in topological order; they must be able to cover the graph.
    options : MonolithOptions
        Objective and restrictions.

    Raises
    ------
    InputError
        If the model would be too large.
    MmeeError
        If the chosen nests do not cost what CP-SAT says: an error of this program.
    """
    candidates = [
        GroupFacts.of(graph, accelerator, names, options.tiles, options.recompute) for names in groups
    ]
    _check_size(candidates)
    terms = Terms(cp_model.CpModel(), MOST_ROWS)
    models = [_add_group(terms, facts) for facts in candidates]
    _add_partition(terms, graph, models)
    return _solved(terms, graph, accelerator, models, options)


def connected_groups(graph: Graph, largest: int) -> tuple[Ops, ...]:
    """Sets of at most ``largest`` ops connected by shared tensors that no path leaves and enters again."""
    reach: dict[str, set[str]] = {op.name: set() for op in graph.ops}
    for op in reversed(graph.ops):
        for name in graph.consumers(op.output):
            reach[op.name] |= {name} | reach[name]
    found: list[Ops] = []
    for size in range(1, largest + 1):
        for members in combinations((op.name for op in graph.ops), size):
            outside = [op.name for op in graph.ops if op.name not in members]
            back = any(
                any(name in reach[one] for one in members) and reach[name] & set(members) for name in outside
            )
            if not back and _connected(graph, members):
                found.append(members)
    return tuple(found)


def _connected(graph: Graph, members: Ops) -> bool:
    reached, tensors = {members[0]}, set(graph.op(members[0]).tensors)
    for _ in members:
        for name in members:
            if name not in reached and tensors & set(graph.op(name).tensors):
                reached.add(name)
                tensors |= set(graph.op(name).tensors)
    return len(reached) == len(members)


def _check_size(candidates: Iterable[GroupFacts]) -> None:
    """Refuse what would take too long: by the tilings of every op of every candidate."""
    tilings = sum(
        prod(len(facts.sizes(dim)) for dim in facts.graph.op_dims(op))
        for facts in candidates
        for op in facts.ops
    )
    if tilings > MOST_TILINGS:
        raise InputError(
            f"the ops of the candidate groups have {tilings} tilings in all; "
            f"a monolithic model is solved for at most {MOST_TILINGS}",
            "dims",
        )


def _add_group(terms: Terms, facts: GroupFacts) -> _GroupModel:
    take = terms.literal("take " + "+".join(op.name for op in facts.ops))
    paths = add_paths(terms, facts)
    sites = add_sites(terms, facts, paths)
    return _GroupModel(facts, take, paths, sites, add_costs(terms, facts, paths, sites, take))


def _add_partition(terms: Terms, graph: Graph, models: Sequence[_GroupModel]) -> None:
    """Every op is in one group that is taken, and the groups can run one after the other."""
    names = [op.name for op in graph.ops]
    # place[op]: position of the op's group among the groups
    place = {name: terms.model.new_int_var(0, len(names) - 1, f"place {name}") for name in names}
    home: dict[str, list[_GroupModel]] = {name: [] for name in names}
    for model in models:
        members = [op.name for op in model.facts.ops]
        for name in members:
            home[name].append(model)
        for first, second in pairwise(members):
            terms.model.add(place[first] == place[second]).only_enforce_if(model.take)
    for name in names:
        terms.model.add_exactly_one(model.take for model in home[name])
        for tensor in graph.op(name).reads:
            maker = graph.producer(tensor)
            if maker is not None:
                together = sum(model.take for model in home[maker] if model in home[name])
                terms.model.add(place[name] >= place[maker] + 1 - together)


def _total(terms: Terms, models: Sequence[_GroupModel], sums: Sequence[Sum]) -> Quantity:
    """A sum over the groups that are taken."""
    parts: Sum = []
    for model, group_sum in zip(models, sums, strict=True):
        part = terms.model.new_int_var(0, max(0, most(group_sum)), "part")
        terms.model.add(part >= linear(group_sum)).only_enforce_if(model.take)
        parts.append((1, Quantity(part, (0, max(0, most(group_sum))))))
    total = terms.model.new_int_var(0, most(parts), "total")
    terms.model.add(total == linear(parts))
    return Quantity(total, (0, most(parts)))


def _objective(terms: Terms, models: Sequence[_GroupModel], objective: str) -> Quantity:
    if objective != "edp":
        return _total(terms, models, [model.costs.value(objective) for model in models])
    energy = _total(terms, models, [model.costs.energy for model in models])
    latency = _total(terms, models, [model.costs.value("latency") for model in models])
    top = energy.values[-1] * latency.values[-1]
    if top >= 1 << 62:
        raise InputError(f"an energy-delay product of up to {top} units does not fit 62 bits")
    found = terms.model.new_int_var(0, top, "edp")
    terms.model.add_multiplication_equality(found, [energy.term, latency.term])
    return Quantity(found, (0, top))


def _solver(seconds: float | None) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.catch_sigint_signal = False
    if seconds is not None:
        solver.parameters.max_time_in_seconds = seconds
    return solver


def _solved(
    terms: Terms,
    graph: Graph,
    accelerator: Accelerator,
    models: Sequence[_GroupModel],
    options: MonolithOptions,
) -> MonolithResult:
    """Solve, build the nests, and compare their exact cost with CP-SAT's."""
    objective = options.objective
    goal = _objective(terms, models, objective)
    if options.fewest:
        taken = sum(model.take for model in models)
        terms.model.minimize(taken)
        solver = _solver(options.seconds)
        code = solver.solve(terms.model)
        if code != cp_model.OPTIMAL:
            return MonolithResult("infeasible" if code == cp_model.INFEASIBLE else "unknown", None, None)
        terms.model.add(taken == round(solver.objective_value))
    terms.model.minimize(goal.term)
    solver = _solver(options.seconds)
    code = solver.solve(terms.model)
    if code == cp_model.MODEL_INVALID:
        raise InputError(f"the figures are too large for CP-SAT: {terms.model.validate()}")
    unit = Fraction(1, energy_scale(accelerator) if objective in ("energy", "edp") else 1)
    if code not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        bound = None if code == cp_model.INFEASIBLE else round(solver.best_objective_bound) * unit
        return MonolithResult("infeasible" if code == cp_model.INFEASIBLE else "unknown", None, bound)
    groups = _groups(solver, graph, models)
    metrics = add_metrics(validate_groups(graph, accelerator, groups))
    found, exact_value = Fraction(solver.value(goal.term)) * unit, Fraction(metrics.value(objective))
    optimal = code == cp_model.OPTIMAL
    if exact_value > found or (optimal and exact_value < found):
        raise MmeeError(f"CP-SAT finds {found} {objective}, but the nests cost {exact_value}")
    bound = exact_value if optimal else round(solver.best_objective_bound) * unit
    return MonolithResult("optimal" if optimal else "feasible", exact_value, bound, groups, metrics)


def _groups(solver: cp_model.CpSolver, graph: Graph, models: Sequence[_GroupModel]) -> tuple[Group, ...]:
    """The groups that are taken, in an order in which they can run."""

    def value(quantity: Quantity) -> int:
        return quantity.term if isinstance(quantity.term, int) else solver.value(quantity.term)

    def holds(literal: Literal) -> bool:
        return literal if isinstance(literal, bool) else solver.boolean_value(literal)

    waiting = [
        chosen_group(model.facts, model.paths, model.sites, model.costs.mapped, holds, value)
        for model in models
        if solver.boolean_value(model.take)
    ]
    done: list[Group] = []
    made: set[str | None] = {None}
    while waiting:
        ready = next(
            group
            for group in waiting
            if {graph.producer(t) for op in group.ops for t in graph.op(op).reads} <= made | set(group.ops)
        )
        waiting.remove(ready)
        made |= set(ready.ops)
        done.append(ready)
    return tuple(done)
