"""Plans of whole graphs against brute force over partitions, orders and residents (design §7.6)."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, permutations
from random import Random

import brute
import instances
import pytest
import threes

from mmee_solver.accelerator import Accelerator
from mmee_solver.enumerate import search_program
from mmee_solver.errors import InfeasibleError
from mmee_solver.fold import fold
from mmee_solver.objective import Objective
from mmee_solver.program import group_program
from mmee_solver.roles import group_roles
from mmee_solver.solve import solve
from mmee_solver.trees import legal_groups
from mmee_solver.units import bits_to_bytes
from mmee_solver.validate import validate_groups
from mmee_solver.workload import Graph

TILES = ("integer", "divisors")
Ops = tuple[str, ...]
Key = tuple[Fraction, ...]


def orders(graph: Graph) -> Iterator[tuple[Ops, ...]]:
    """Every partition into groups, in every order in which producers come first."""
    groups = legal_groups(graph, 3)
    names = [op.name for op in graph.ops]

    def partitions(left: frozenset[str]) -> Iterator[tuple[Ops, ...]]:
        if not left:
            yield ()
            return
        first = min(left, key=names.index)
        for group in groups:
            if first in group and left.issuperset(group):
                for rest in partitions(left - set(group)):
                    yield (group, *rest)

    for parts in partitions(frozenset(names)):
        for order in permutations(parts):
            made: set[str] = set()
            legal = True
            for group in order:
                made |= set(group)
                legal &= all(graph.producer(t) in (None, *made) for op in group for t in graph.op(op).reads)
            if legal:
                yield order


def least(graph: Graph, machine: Accelerator, objective: str, tiles: str) -> Key | None:
    """The least additive keys of any plan."""
    width = 2 if objective in ("energy", "latency") else 3
    free = [op.output for op in graph.ops if graph.consumers(op.output) and op.output not in graph.outputs]
    memo: dict[object, Key | None] = {}
    best: Key | None = None
    for order in orders(graph):
        place = {op: index for index, group in enumerate(order) for op in group}
        for count in range(len(free) + 1):
            for chosen in combinations(free, count):
                spans = {
                    t: (place[graph.producer(t) or ""], max(place[op] for op in graph.consumers(t)))
                    for t in chosen
                }
                if any(first == last for first, last in spans.values()):
                    continue
                total: list[Fraction] | None = [Fraction(0)] * width
                for index, group in enumerate(order):
                    alive = [t for t, (first, last) in spans.items() if first <= index <= last]
                    touched = {t for op in group for t in graph.op(op).tensors}
                    beside = sum(bits_to_bytes(graph.bits(t)) for t in alive if t not in touched)
                    room = machine.buffer.capacity_bytes - beside
                    key = group, frozenset(touched.intersection(alive)), room
                    if key not in memo:
                        memo[key] = None
                        if room > 0:
                            memo[key] = brute.solve(
                                graph, machine.with_buffer(room), group, objective, tiles, True, key[1]
                            )
                    if (cost := memo[key]) is None:
                        total = None
                        break
                    assert total is not None
                    total = [a + b for a, b in zip(total, cost, strict=False)]
                if total is not None and (best is None or tuple(total) < best):
                    best = tuple(total)
    return best


def compare(graph: Graph, machine: Accelerator, objective: str, tiles: str) -> bool:
    """Solver against brute force; whether something stays resident."""
    graph = fold(graph)
    expected = least(graph, machine, objective, tiles)
    if expected is None:
        with pytest.raises(InfeasibleError):
            solve(graph, machine, objective, tiles)
        return False
    mapping = solve(graph, machine, objective, tiles)
    assert Objective(objective).additive(mapping.metrics)[: len(expected)] == expected
    assert mapping.bound == mapping.value
    checked = validate_groups(mapping.graph, machine, mapping.groups, mapping.resident)
    assert checked == mapping.group_metrics
    return bool(mapping.resident)


@pytest.mark.parametrize("seed", range(24))
def test_plans_of_two_ops(seed: int) -> None:
    rng = Random(seed)
    kinds = [kind for kind in (*instances.KINDS, *instances.FURTHER_KINDS) if kind not in SINGLES]
    graph = instances.graph(rng, kinds[seed % len(kinds)], looped=2)
    machine = instances.accelerator(rng, graph)
    compare(graph, machine, ["dram", "energy", "latency"][seed % 3], TILES[seed // 3 % 2])


SINGLES = (
    "matmul",
    "batched",
    "three-input",
    "vector",
    "elementwise",
    "softmax-input",
    "norm-matmul",
    "norm-two-reductions",
)


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_three_ops(seed: int) -> None:
    rng = Random(1000 + seed)
    graph = threes.graph(rng, threes.KINDS[seed % len(threes.KINDS)])
    machine = instances.accelerator(rng, graph)
    compare(graph, machine, ["dram", "energy", "latency"][seed % 3], "integer")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_plans(block: int) -> None:
    for seed in range(block * 8, block * 8 + 8):
        rng = Random(5000 + seed)
        graph = threes.graph(rng, threes.KINDS[seed % len(threes.KINDS)])
        machine = instances.accelerator(rng, graph)
        compare(
            graph, machine, ["dram", "energy", "latency"][seed % 3], ["integer", "divisors"][seed // 3 % 2]
        )


@pytest.mark.parametrize("seed", range(27))
def test_groups_with_resident_tensors(seed: int) -> None:
    """One group, some of its tensors resident: nothing moved for them, no room beside their own bytes."""
    rng = Random(seed)
    kinds = (*instances.KINDS, *instances.FURTHER_KINDS)
    graph = instances.graph(rng, kinds[seed % len(kinds)], looped=2)
    machine = instances.accelerator(rng, graph)
    ops = tuple(op.name for op in graph.ops)
    roles = group_roles(graph, ops)
    within = set(roles.internal) - set(roles.leaving)
    resident = frozenset(name for name in graph.tensors if name not in within and rng.random() < 0.5)
    name, tiles = rng.choice(["dram", "energy", "latency"]), rng.choice(["integer", "divisors"])
    expected = brute.solve(graph, machine, ops, name, tiles, True, resident)
    program = group_program(graph, machine, ops, True, tiles == "divisors", resident)
    if expected is None:
        with pytest.raises(InfeasibleError):
            search_program(program, machine, Objective(name), tiles)
        return
    found = search_program(program, machine, Objective(name), tiles)
    assert found.metrics is not None
    assert Objective(name).key(found.metrics) == expected
