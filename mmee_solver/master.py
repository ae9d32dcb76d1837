"""The master: CP-SAT picks the partition of a graph into groups and their order (design §7.6, §8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm

from ortools.sat.python import cp_model

from mmee_solver.workload import Graph

_LARGEST = 1 << 60


@dataclass(frozen=True, slots=True)
class Partition:
    """Groups in topological order, the proven bound on the first key, and CP-SAT's status."""

    groups: tuple[tuple[str, ...], ...]
    bound: Fraction
    status: str


def choose_partition(
    graph: Graph,
    costs: Mapping[tuple[str, ...], Sequence[Fraction]],
    fewest_groups: bool = False,
) -> Partition:
    """The cheapest partition of a graph into candidate groups, ties broken by later keys.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    costs : mapping of group to sequence of Fraction
        Additive keys of every candidate group, most important first; single ops must be among them.
    fewest_groups : bool
        Whether the number of groups comes before every key (``--fusion all``).

    Returns
    -------
    Partition
        Every op in exactly one group; groups in topological order.

    Notes
    -----
    Lexicographic order by solving once per key, each with the earlier values fixed. Keys are exact:
    a common denominator makes them integers, and the least of each is proved by CP-SAT.
    """
    groups = sorted(costs, key=lambda group: (len(group), [_rank(graph)[op] for op in group]))
    model = cp_model.CpModel()
    # take[g]: candidate group g is part of the partition; place[op]: position of the op's group.
    take = {group: model.new_bool_var("+".join(group)) for group in groups}
    place = {op.name: model.new_int_var(0, len(graph.ops) - 1, op.name) for op in graph.ops}
    for op in graph.ops:
        model.add_exactly_one(take[group] for group in groups if op.name in group)
    _add_order(model, graph, take, place)
    for group in groups:
        model.add_hint(take[group], len(group) == 1)
    keys = [[costs[group][k] for group in groups] for k in range(len(costs[groups[0]]))]
    if fewest_groups:
        keys.insert(0, [Fraction(1)] * len(groups))
    bounds, status = [], "OPTIMAL"
    chosen: list[tuple[str, ...]] = []
    for index, key in enumerate(keys):
        weights, unit = _integers(key)
        model.minimize(sum(w * take[g] for w, g in zip(weights, groups, strict=True)))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False
        solver.parameters.random_seed = 0
        code = solver.solve(model)
        if code != cp_model.OPTIMAL:
            raise AssertionError(f"CP-SAT: {solver.status_name(code)}")
        status = solver.status_name(code)
        chosen = [group for group in groups if solver.value(take[group])]
        total = sum(w for w, g in zip(weights, groups, strict=True) if g in chosen)
        bounds.append(Fraction(total) * unit)
        if index + 1 < len(keys):
            model.add(sum(w * take[g] for w, g in zip(weights, groups, strict=True)) <= total)
    order = _topological(graph, chosen)
    return Partition(order, bounds[1 if fewest_groups else 0], status)


def _rank(graph: Graph) -> dict[str, int]:
    return {op.name: index for index, op in enumerate(graph.ops)}


def _add_order(
    model: cp_model.CpModel,
    graph: Graph,
    take: Mapping[tuple[str, ...], cp_model.IntVar],
    place: Mapping[str, cp_model.IntVar],
) -> None:
    """Groups have an order: equal places within one, increasing along every edge between two."""
    for group, used in take.items():
        for first, second in pairwise(group):
            model.add(place[first] == place[second]).only_enforce_if(used)
    for op in graph.ops:
        for tensor in op.reads:
            maker = graph.producer(tensor)
            if maker is None:
                continue
            together = [used for group, used in take.items() if maker in group and op.name in group]
            model.add(place[op.name] >= place[maker] + 1 - sum(together))


def _integers(key: Sequence[Fraction]) -> tuple[list[int], Fraction]:
    """Whole numbers proportional to a key, and the unit; rounded down only beyond 2⁶⁰ in all."""
    scale = lcm(*(value.denominator for value in key))
    whole = [int(value * scale) for value in key]
    shrink = max(1, -(-sum(abs(value) for value in whole) // _LARGEST))
    return [value // shrink for value in whole], Fraction(shrink, scale)


def _topological(graph: Graph, groups: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Order groups so that producers come first; of several ready ones, the earliest in the graph."""
    rank = _rank(graph)
    home = {op: group for group in groups for op in group}
    waits = {
        group: {
            home[maker]
            for op in group
            for tensor in graph.op(op).reads
            if (maker := graph.producer(tensor)) is not None and home[maker] != group
        }
        for group in groups
    }
    order: list[tuple[str, ...]] = []
    while len(order) < len(groups):
        ready = [group for group in groups if group not in order and waits[group] <= set(order)]
        order.append(min(ready, key=lambda group: rank[group[0]]))
    return tuple(order)
