"""The partition that CP-SAT picks, against all partitions of small random DAGs."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from random import Random

import pytest

from mmee_solver.master import choose_partition
from mmee_solver.trees import legal_groups
from mmee_solver.workload import Graph, Op, Tensor

Groups = tuple[tuple[str, ...], ...]


def dag(rng: Random, size: int) -> Graph:
    """Ops over one dim, each reading one or two tensors made before it or coming from outside."""
    tensors, ops = {"In": Tensor("In", ("i",), "fp16")}, []
    for number in range(size):
        inputs = tuple(rng.sample(sorted(tensors), min(len(tensors), rng.choice([1, 1, 2]))))
        tensors[f"T{number}"] = Tensor(f"T{number}", ("i",), "fp16")
        ops.append(Op(f"op{number}", "elementwise", inputs, f"T{number}", function="add"))
    return Graph("dag", {"i": 3}, tensors, tuple(ops))


def partitions(ops: tuple[str, ...], groups: Groups) -> Iterator[Groups]:
    if not ops:
        yield ()
        return
    for group in groups:
        if group[0] == ops[0] and set(group) <= set(ops):
            rest = tuple(op for op in ops if op not in group)
            for others in partitions(rest, groups):
                yield (group, *others)


def acyclic(graph: Graph, groups: Groups) -> bool:
    home = {op: group for group in groups for op in group}
    left = set(groups)
    while left:
        ready = {
            group
            for group in left
            if not any(
                (maker := graph.producer(tensor)) and home[maker] in left - {group}
                for op in group
                for tensor in graph.op(op).reads
            )
        }
        if not ready:
            return False
        left -= ready
    return True


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("fewest", [False, True])
def test_least_key_of_all_partitions(seed: int, fewest: bool) -> None:
    rng = Random(seed)
    graph = dag(rng, rng.randint(1, 6))
    groups = legal_groups(graph)
    costs = {g: tuple(Fraction(rng.randint(0, 6), rng.choice([1, 3])) for _ in range(3)) for g in groups}

    def key(chosen: Groups) -> tuple[Fraction, ...]:
        total = tuple(sum((costs[g][k] for g in chosen), Fraction(0)) for k in range(3))
        return (Fraction(len(chosen)), *total) if fewest else total

    names = tuple(op.name for op in graph.ops)
    everything = [p for p in partitions(names, groups) if acyclic(graph, p)]
    best = min(key(p) for p in everything)
    found = choose_partition(graph, costs, fewest)
    assert key(found.groups) == best
    assert found.bound == best[1 if fewest else 0]
    place = {op: index for index, group in enumerate(found.groups) for op in group}
    for op in graph.ops:
        for tensor in op.reads:
            maker = graph.producer(tensor)
            assert maker is None or place[maker] <= place[op.name]


def test_two_groups_that_wait_for_each_other_are_no_partition() -> None:
    # a → c and d → b: {a, b} and {c, d} are convex each, but neither can run first.
    names = {"In", "A", "B", "C", "D"}
    tensors = {name: Tensor(name, ("i",), "fp16") for name in names}
    ops = (
        Op("a", "elementwise", ("In",), "A", function="relu"),
        Op("d", "elementwise", ("In",), "D", function="relu"),
        Op("b", "elementwise", ("In", "D"), "B", function="add"),
        Op("c", "elementwise", ("In", "A"), "C", function="add"),
    )
    graph = Graph("knot", {"i": 2}, tensors, ops)
    costs = {(op.name,): (Fraction(1),) for op in ops} | {
        ("a", "b"): (Fraction(0),),
        ("c", "d"): (Fraction(0),),
    }
    found = choose_partition(graph, costs)
    assert len(found.groups) == 3
    assert found.bound == 2


def test_keys_beyond_64_bits_still_decide() -> None:
    graph = dag(Random(1), 3)
    groups = legal_groups(graph)
    costs = {group: (Fraction(10**30 * len(group) - len(group) + 1),) for group in groups}
    assert len(choose_partition(graph, costs).groups) <= 3
