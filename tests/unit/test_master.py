"""The partition into groups, against brute force over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest
from nests import build

from mmee_solver.master import Partition, choose_partition
from mmee_solver.trees import legal_groups
from mmee_solver.workload import Graph, Op

Ops = tuple[str, ...]
Costs = dict[Ops, tuple[Fraction, ...]]


def dag(edges: set[tuple[str, str]], names: str) -> Graph:
    """Ops named by letters, of one dim; an edge lets the second read what the first makes."""
    reads = {name: ["in", *(f"out{one}" for one, other in sorted(edges) if other == name)] for name in names}
    tensors = ["in", *(f"out{name}" for name in names)]
    ops = [Op(name, "einsum", tuple(found), f"out{name}") for name, found in reads.items()]
    return build(dict.fromkeys(tensors, "m"), {"m": 2}, *ops)


def partitions(names: frozenset[str], groups: list[Ops]) -> Iterator[list[Ops]]:
    """Every way to put all ops into groups that do not overlap."""
    if not names:
        yield []
        return
    first = min(names)
    for group in groups:
        if first in group and names.issuperset(group):
            for rest in partitions(names - set(group), groups):
                yield [group, *rest]


def in_order(graph: Graph, groups: list[Ops]) -> bool:
    """Whether the groups can run one after the other."""
    home = {op: group for group in groups for op in group}
    waits = {
        group: {
            home[p] for op in group for t in graph.op(op).reads if (p := graph.producer(t)) and p not in group
        }
        for group in groups
    }
    done: set[Ops] = set()
    while len(done) < len(groups):
        ready = [group for group in groups if group not in done and waits[group] <= done]
        if not ready:
            return False
        done.update(ready)
    return True


def total(costs: Mapping[Ops, tuple[Fraction, ...]], groups: tuple[Ops, ...] | list[Ops]) -> list[Fraction]:
    return [sum(column, Fraction(0)) for column in zip(*(costs[group] for group in groups), strict=True)]


def check_order(graph: Graph, found: Partition) -> None:
    """Every op once, and whatever a group reads is made before it or in it."""
    made: set[str] = set()
    for group in found.groups:
        made |= set(group)
        assert all(graph.producer(t) in (None, *made) for op in group for t in graph.op(op).reads)
    assert sorted(op for group in found.groups for op in group) == sorted(op.name for op in graph.ops)


def draw(seed: int) -> tuple[Graph, Costs]:
    rng = Random(seed)
    names = "abcdef"[: rng.randint(1, 6)]
    density = rng.choice([0.2, 0.5, 0.8])
    graph = dag({pair for pair in combinations(names, 2) if rng.random() < density}, names)
    candidates = list(legal_groups(graph))
    # and a few larger ones, convex or not
    for _ in range(4):
        larger = tuple(op.name for op in graph.ops if rng.random() < 0.6)
        if len(larger) > 2 and larger not in candidates:
            candidates.append(larger)
    rng.shuffle(candidates)
    # few values, so that there are ties; thirds and halves, so that they are no whole numbers
    costs = {
        group: tuple(Fraction(rng.randint(0, 3 * len(group)), rng.choice([1, 2, 3])) for _ in range(3))
        for group in candidates
    }
    return graph, costs


@pytest.mark.parametrize("fewest", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_the_partition_is_the_least_of_all(seed: int, fewest: bool) -> None:
    graph, costs = draw(seed)
    found = choose_partition(graph, costs, fewest)
    check_order(graph, found)
    every = [p for p in partitions(frozenset(op.name for op in graph.ops), list(costs)) if in_order(graph, p)]
    keys = [[Fraction(len(p) if fewest else 0), *total(costs, p)] for p in every]
    expected = min(keys)
    assert total(costs, found.groups) == expected[1:]
    assert len(found.groups) == expected[0] or not fewest
    assert found.bound == expected[1]
    assert found.status == "OPTIMAL"


def test_later_keys_break_ties_and_nothing_else() -> None:
    graph = dag({("a", "b"), ("b", "c")}, "abc")
    zero, one, ten = Fraction(0), Fraction(1), Fraction(10)
    costs = {("a",): (one, ten), ("b",): (one, ten), ("c",): (one, ten)}
    # the same first key: the pair with the lower second key wins
    tied = costs | {("a", "b"): (2 * one, 5 * one), ("b", "c"): (2 * one, 6 * one)}
    assert choose_partition(graph, tied).groups == (("a", "b"), ("c",))
    # a first key that is lower by a trifle outweighs any second key
    dear = costs | {("a", "b"): (2 * one, zero), ("b", "c"): (2 * one - Fraction(1, 10**9), 1000 * ten)}
    assert choose_partition(graph, dear).groups == (("a",), ("b", "c"))


def test_fewest_groups_come_before_any_cost() -> None:
    graph = dag({("a", "b"), ("b", "c")}, "abc")
    costs = {(name,): (Fraction(1),) for name in "abc"}
    costs |= {("a", "b"): (Fraction(100),), ("b", "c"): (Fraction(90),)}
    assert choose_partition(graph, costs).groups == (("a",), ("b",), ("c",))
    found = choose_partition(graph, costs, fewest_groups=True)
    assert found.groups == (("a",), ("b", "c"))
    # the bound is that of the cost
    assert found.bound == 91


def test_groups_that_wait_for_each_other_are_not_taken_together() -> None:
    # p feeds s and r feeds q: {p, q} and {r, s} are fine alone, but neither could run first
    graph = dag({("p", "s"), ("r", "q")}, "pqrs")
    costs = {(name,): (Fraction(10),) for name in "pqrs"}
    costs |= {("p", "q"): (Fraction(1),), ("r", "s"): (Fraction(2),)}
    found = choose_partition(graph, costs)
    # r before the pair that reads it, s after
    assert found.groups == (("r",), ("p", "q"), ("s",))
    assert found.bound == 21


def test_the_earliest_of_several_ready_groups_runs_first() -> None:
    graph = dag({("a", "d")}, "abcd")
    costs = {(name,): (Fraction(1),) for name in "dcba"} | {("a", "c"): (Fraction(1),)}
    assert choose_partition(graph, costs).groups == (("a", "c"), ("b",), ("d",))


def test_the_order_of_candidates_does_not_matter() -> None:
    graph, costs = draw(7)
    backwards = dict(reversed(costs.items()))
    assert choose_partition(graph, costs) == choose_partition(graph, backwards)


def test_energies_of_large_graphs_are_no_overflow() -> None:
    graph = dag({("a", "b")}, "ab")
    huge = Fraction(10**22 + 1, 80)
    costs = {("a",): (huge,), ("b",): (huge,), ("a", "b"): (huge,)}
    assert choose_partition(graph, costs).groups == (("a", "b"),)
