"""The engine against brute force of the declared space, on random tiny instances."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import brute
import instances
import pytest

from mmee_solver.enumerate import Objective, SearchOptions, search_group
from mmee_solver.errors import InfeasibleError
from mmee_solver.validate import validate_group

OBJECTIVES = ("dram", "energy", "latency", "edp")


def agree(seed: int, looped: int) -> None:
    rng = Random(seed)
    kind = instances.KINDS[seed % len(instances.KINDS)]
    graph = instances.graph(rng, kind, looped=looped)
    accelerator = instances.accelerator(rng, graph)
    objective = OBJECTIVES[seed // len(instances.KINDS) % 4]
    options = SearchOptions(rng.choice(["integer", "integer", "divisors"]), rng.random() < 0.8)
    ops = tuple(op.name for op in graph.ops)
    expected = brute.solve(graph, accelerator, ops, objective, options.tiles, options.recompute)
    if expected is None:
        with pytest.raises(InfeasibleError):
            search_group(graph, accelerator, ops, Objective(objective), options)
        return
    result = search_group(graph, accelerator, ops, Objective(objective), options)
    assert result.group is not None
    assert validate_group(graph, accelerator, result.group) == result.metrics
    assert Objective(objective).key(result.metrics) == expected


@pytest.mark.parametrize("seed", range(288))
def test_engine_equals_brute_force_on_two_loops(seed: int) -> None:
    agree(seed, looped=2)


@pytest.mark.parametrize("seed", range(60_000, 60_072))
def test_weighted_sums_for_the_corners_of_edp(seed: int) -> None:
    rng = Random(seed)
    graph = instances.graph(rng, instances.KINDS[seed % len(instances.KINDS)], looped=2 + (seed % 4 == 0))
    accelerator = instances.accelerator(rng, graph)
    ops = tuple(op.name for op in graph.ops)
    weight = rng.choice([1, 10, 60, 400])
    expected = brute.solve(graph, accelerator, ops, f"weighted {weight}")
    if expected is None:
        return
    objective = Objective("weighted", Fraction(1), Fraction(weight))
    result = search_group(graph, accelerator, ops, objective)
    assert result.metrics is not None
    assert objective.key(result.metrics) == expected


@pytest.mark.parametrize("seed", range(10_000, 10_036))
def test_engine_equals_brute_force_on_three_loops(seed: int) -> None:
    agree(seed, looped=3)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_engine_equals_brute_force_at_length(block: int) -> None:
    for seed in range(20_000 + 50 * block, 20_050 + 50 * block):
        agree(seed, looped=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50_000, 50_072))
def test_engine_equals_brute_force_on_four_loops(seed: int) -> None:
    agree(seed, looped=4)


@pytest.mark.parametrize("seed", range(30_000, 30_018))
def test_least_capacity_is_exact(seed: int) -> None:
    rng = Random(seed)
    graph = instances.graph(rng, instances.KINDS[seed % len(instances.KINDS)])
    accelerator = instances.accelerator(rng, graph).with_buffer(1)
    ops = tuple(op.name for op in graph.ops)
    with pytest.raises(InfeasibleError) as caught:
        search_group(graph, accelerator, ops, Objective("dram"))
    least = caught.value.demand_bytes
    assert search_group(graph, accelerator.with_buffer(least), ops, Objective("dram")).group is not None
    with pytest.raises(InfeasibleError):
        search_group(graph, accelerator.with_buffer(least - 1), ops, Objective("dram"))
