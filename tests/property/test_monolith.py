"""One CP-SAT model that decides everything, against brute force and the engine, on random tiny instances."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import brute
import instances
import pytest
import threes
from nests import SOFTMAX, build, einsum, pointwise

from mmee_solver.accelerator import Accelerator
from mmee_solver.enumerate import Objective, SearchOptions, search_group
from mmee_solver.errors import InfeasibleError
from mmee_solver.master import choose_partition
from mmee_solver.monolith import MonolithOptions, connected_groups, solve_groups, solve_monolith
from mmee_solver.solve import solve
from mmee_solver.trees import legal_groups
from mmee_solver.workload import Graph

OBJECTIVES = ("dram", "energy", "latency", "edp")


def draw(seed: int, looped: int, kinds: tuple[str, ...]) -> tuple[Graph, Accelerator, MonolithOptions]:
    rng = Random(seed)
    make = threes.graph if kinds[0] in threes.KINDS else instances.graph
    graph = make(rng, kinds[seed % len(kinds)], looped=looped)
    accelerator = instances.accelerator(rng, graph)
    objective = OBJECTIVES[seed // len(kinds) % 4]
    tiles = rng.choice(["integer", "integer", "divisors"])
    return graph, accelerator, MonolithOptions(objective, tiles, rng.random() < 0.8)


def engine(graph: Graph, accelerator: Accelerator, options: MonolithOptions) -> Fraction | None:
    """What the engine finds for all ops in one group."""
    objective = Objective(options.objective)
    restrictions = SearchOptions(options.tiles, options.recompute)
    ops = tuple(op.name for op in graph.ops)
    try:
        result = search_group(graph, accelerator, ops, objective, restrictions)
    except InfeasibleError:
        return None
    assert result.metrics is not None
    return objective.key(result.metrics)[0]


def agree(seed: int, looped: int, kinds: tuple[str, ...], with_brute: bool = True) -> None:
    graph, accelerator, options = draw(seed, looped, kinds)
    ops = tuple(op.name for op in graph.ops)
    found = solve_groups(graph, accelerator, [ops], options)
    assert found.status == ("infeasible" if found.value is None else "optimal")
    assert found.bound == found.value
    assert found.value == engine(graph, accelerator, options)
    if with_brute:
        least = brute.solve(graph, accelerator, ops, options.objective, options.tiles, options.recompute)
        assert found.value == (None if least is None else least[0])


@pytest.mark.parametrize("seed", range(110_000, 110_045))
def test_one_or_two_ops_on_two_loops(seed: int) -> None:
    agree(seed, 2, instances.KINDS)


@pytest.mark.parametrize("seed", range(111_000, 111_036))
def test_further_kinds_on_two_loops(seed: int) -> None:
    agree(seed, 2, instances.FURTHER_KINDS)


@pytest.mark.parametrize("seed", range(112_000, 112_036))
def test_one_or_two_ops_on_three_loops(seed: int) -> None:
    agree(seed, 3, instances.KINDS, with_brute=False)


@pytest.mark.parametrize("seed", range(113_000, 113_007))
def test_three_ops_in_one_group(seed: int) -> None:
    agree(seed, 2, threes.KINDS[:7])


@pytest.mark.parametrize("seed", range(114_000, 114_032))
def test_three_ops_whose_partition_is_a_choice(seed: int) -> None:
    partition(seed, 3)


def partition(seed: int, looped: int) -> None:
    """The monolithic model against the facade, which searches groups and then picks among them."""
    graph, accelerator, options = draw(seed, looped, threes.KINDS)
    fusion = ("auto", "auto", "auto", "none", "all")[seed % 5]
    found = solve_monolith(
        graph, accelerator, options.objective, options.tiles, options.recompute, fusion=fusion
    )
    try:
        mapping = solve(
            graph, accelerator, options.objective, options.tiles, fusion, options.recompute, residency=False
        )
    except InfeasibleError:
        assert found.status == "infeasible"
        return
    assert found.status == "optimal"
    assert found.value == mapping.metrics.value(options.objective)
    if fusion != "auto":
        assert len(found.groups) == len(mapping.groups)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_four_ops_whose_partition_is_a_choice(objective: str) -> None:
    graph = build(
        {"X": "me", "W": "ek", "Q": "mk", "K": "lk", "P": "ml", "V": "lj", "O": "mj", "Z": "jn", "Y": "mn"},
        dict.fromkeys("meklj", 2) | {"n": 3},
        einsum("q", "X W", "Q"),
        einsum("qk", "Q K", "P", SOFTMAX),
        einsum("pv", "P V", "O"),
        einsum("o", "O Z", "Y", pointwise("gelu")),
    )
    accelerator = instances.accelerator(Random(3), graph).with_buffer(30)
    found = solve_monolith(graph, accelerator, objective)
    # the model has groups of up to three ops, the solver one of four as well
    assert found.value >= solve(graph, accelerator, objective).value
    if objective != "edp":
        costs = {}
        for group in legal_groups(graph, 3):
            result = search_group(graph, accelerator, group, Objective(objective))
            assert result.metrics is not None
            costs[group] = Objective(objective).additive(result.metrics)
        partition = choose_partition(graph, costs)
        assert partition is not None
        assert found.value == partition.bound


@pytest.mark.parametrize("seed", range(24))
def test_groups_are_those_of_the_engine(seed: int) -> None:
    graph = threes.graph(Random(seed), threes.KINDS[seed % len(threes.KINDS)])
    assert set(connected_groups(graph, 3)) == set(legal_groups(graph, 3))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(12))
def test_one_or_two_ops_at_length(block: int) -> None:
    kinds = instances.KINDS if block % 2 else instances.FURTHER_KINDS
    for seed in range(120_000 + 36 * block, 120_036 + 36 * block):
        agree(seed, 3, kinds)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_three_ops_at_length(block: int) -> None:
    for seed in range(130_000 + 100 * block, 130_100 + 100 * block):
        agree(seed, 2 + seed % 2, threes.KINDS, with_brute=seed % 12 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_partitions_at_length(block: int) -> None:
    for seed in range(140_000 + 50 * block, 140_050 + 50 * block):
        partition(seed, 4)
