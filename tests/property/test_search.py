"""The engine against brute force of the declared space, on random tiny instances."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import brute
import instances
import nests
import pytest
import threes

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.enumerate import Objective, SearchOptions, search_group, search_program
from mmee_solver.errors import InfeasibleError
from mmee_solver.plan import best_split
from mmee_solver.program import group_program
from mmee_solver.trees import legal_groups
from mmee_solver.validate import validate_group
from mmee_solver.workload import Graph, Step, Tensor

OBJECTIVES = ("dram", "energy", "latency", "edp")


def agree(seed: int, looped: int, kinds: tuple[str, ...] = instances.KINDS, double: float = 0) -> None:
    rng = Random(seed)
    make = threes.graph if kinds[0] in threes.KINDS else instances.graph
    graph = make(rng, kinds[seed % len(kinds)], looped=looped)
    accelerator = instances.accelerator(rng, graph)
    if rng.random() < double:
        accelerator = replace(accelerator, buffer=replace(accelerator.buffer, double_buffered=True))
    objective = OBJECTIVES[seed // len(kinds) % 4]
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


@pytest.mark.parametrize("seed", range(192))
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


@pytest.mark.parametrize("seed", range(70_000, 70_072))
def test_engine_equals_brute_force_on_further_kinds(seed: int) -> None:
    agree(seed, 2 + (seed % 5 == 0), instances.FURTHER_KINDS, double=0.4)


@pytest.mark.parametrize("seed", range(90_000, 90_028))
def test_engine_equals_brute_force_on_three_ops(seed: int) -> None:
    agree(seed, 2, threes.KINDS[:7], double=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(12))
def test_engine_equals_brute_force_on_three_ops_at_length(block: int) -> None:
    for seed in range(91_000 + 32 * block, 91_032 + 32 * block):
        agree(seed, 2 + (seed % 8 == 0), threes.KINDS, double=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_engine_equals_brute_force_on_further_kinds_at_length(block: int) -> None:
    for seed in range(80_000 + 50 * block, 80_050 + 50 * block):
        agree(seed, 3, instances.FURTHER_KINDS, double=0.4)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_engine_equals_brute_force_at_length(block: int) -> None:
    for seed in range(20_000 + 50 * block, 20_050 + 50 * block):
        agree(seed, looped=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50_000, 50_072))
def test_engine_equals_brute_force_on_four_loops(seed: int) -> None:
    agree(seed, looped=4)


@pytest.mark.parametrize("seed", range(95_000, 95_024))
def test_what_falls_apart_is_not_missed_if_smaller_groups_are_the_cutoff(seed: int) -> None:
    rng = Random(seed)
    kind = ("siblings", "two-readers", "three-siblings", "norm-fork")[seed % 4]
    graph = (threes if kind in threes.KINDS else instances).graph(rng, kind, looped=2)
    accelerator = instances.accelerator(rng, graph)
    name = ("dram", "energy")[seed // 4 % 2]
    objective = Objective(name)
    ops = tuple(op.name for op in graph.ops)
    try:
        whole = search_group(graph, accelerator, ops, objective)
        parts = {
            group: objective.key(result.metrics)[:2]
            for group in legal_groups(graph, len(ops) - 1)
            if (result := search_group(graph, accelerator, group, objective)).metrics is not None
        }
    except InfeasibleError:
        return
    cheapest = best_split(graph, ops, parts)
    assert cheapest is not None
    split = cheapest[0]
    assert whole.metrics is not None
    program = group_program(graph, accelerator, ops, True, False)
    cutoff = (*split, *(Fraction(0),) * 2)
    found = search_program(program, accelerator, objective, "integer", cutoff, beats_split=True)
    value = objective.key(whole.metrics)[:2] if name == "dram" else objective.key(whole.metrics)[:1]
    least = split[: len(value)]
    if found.metrics is not None:
        least = min(least, objective.key(found.metrics)[: len(value)])
    assert least == value


def test_statistics_of_an_output_that_one_step_makes_are_not_doubled() -> None:
    graph = nests.build(
        {"X": "mk", "A": "kqn", "Y": "mn"},
        {"m": 20, "n": 1, "k": 8, "q": 2},
        nests.einsum("a", "X A", "Y", Step("norm", "normalize", "rmsnorm", "k", tensor="X")),
        dtype="int8",
    )
    buffer = Buffer(44, 2, 2.3, None, double_buffered=True)
    array, dram = Array(1, ((2, 2),), 0.3, 0.5), Dram(1e9, 64, 64)
    accelerator = Accelerator("tiny", 1e9, dram, buffer, array, Vector(1, 0.4))
    result = search_group(graph, accelerator, ("a",), Objective("dram"))
    assert result.metrics is not None
    assert result.metrics.dram_bytes == 196


def test_every_choice_of_arrays_is_costed_when_sums_of_odd_bits_are_rounded() -> None:
    graph = nests.build(
        {"Q": "ik", "K": "lk", "P": "il", "X": "im", "W": "ml", "Y": "il"},
        {"i": 1, "k": 4, "l": 1, "m": 4},
        nests.einsum("a", "Q K", "P", nests.SOFTMAX),
        nests.einsum("b", "X W", "Y", nests.pointwise("mul", "P")),
        dtype="int4",
    )
    buffer = Buffer(23, 2.0, 0.1, 4, double_buffered=True)
    array, dram = Array(1, ((2, 2),), 0.3, 0.5), Dram(2e9, 7.03, 64)
    accelerator = Accelerator("tiny", 1e9, dram, buffer, array, Vector(2, 0.4))
    expected = brute.solve(graph, accelerator, ("a", "b"), "latency", "integer", True)
    result = search_group(graph, accelerator, ("a", "b"), Objective("latency"))
    assert result.metrics is not None
    assert Objective("latency").key(result.metrics) == expected


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


def _three(sizes: dict[str, int], wide: bool, gated: bool, dtype: str) -> Graph:
    """Three ops that read X; the last takes the output of one before it."""
    spec = {"X": "me", "A": "ef", "B": "ef" if wide else "ea", "C": "ef"}
    spec |= {"G": "mf", "H": "mf" if wide else "ma", "Y": "mf"}
    second = [nests.pointwise("mul", "G")] if gated else []
    last = nests.pointwise("mul", "H" if gated else "G")
    ops = (nests.einsum("a", "X A", "G"), nests.einsum("b", "X B", "H", *second))
    return nests.build(spec, sizes, *ops, nests.einsum("c", "X C", "Y", last), dtype=dtype)


def test_a_shared_hold_may_end_before_another_op_reads_its_tensor() -> None:
    # X for a and b only: a loop of one step ends its hold, so that Y has room; found by the monolithic model
    graph = _three({"m": 1, "e": 2, "f": 3}, wide=True, gated=True, dtype="int8")
    buffer = Buffer(8, 40, 0.1, 4, double_buffered=True)
    array = Array(1, ((2, 3),), 0.3, 0.5, pipeline="systolic")
    accelerator = Accelerator("tiny", 1e9, Dram(1e12, 64, 64), buffer, array, Vector(1, 0.4))
    result = search_group(graph, accelerator, ("a", "b", "c"), Objective("energy"))
    assert result.group is not None
    assert validate_group(graph, accelerator, result.group).energy.total == Fraction(42936, 10)


@pytest.mark.parametrize(
    ("sizes", "capacity", "least"),
    [
        ({"m": 2, "e": 3, "f": 1, "a": 2}, 26, Fraction(449264, 100)),
        ({"m": 1, "e": 2, "f": 1, "a": 3}, 15, Fraction(66041, 25)),
    ],
)
def test_a_shared_hold_may_serve_the_last_ops_only(
    sizes: dict[str, int], capacity: int, least: Fraction
) -> None:
    graph = _three(sizes, wide=False, gated=False, dtype="fp16")
    array, dram = Array(4, ((2, 3),), 0.3, 0.5), Dram(2e9, 7.03, 64)
    accelerator = Accelerator("tiny", 1e9, dram, Buffer(capacity, 40, 0.1), array, Vector(1, 0.4, "add"))
    result = search_group(graph, accelerator, ("a", "b", "c"), Objective("energy"))
    assert result.group is not None
    assert validate_group(graph, accelerator, result.group).energy.total == least


def test_statistics_that_count_twice_can_make_a_group_too_large() -> None:
    widths = {"X": "fp32", "W": "fp32", "K": "fp16", "Q": "fp32", "P": "fp32", "V": "fp16", "O": "fp16"}
    dims = {"X": "le", "W": "ek", "K": "lk", "Q": "ik", "P": "il", "V": "lj", "O": "ij"}
    tensors = {name: Tensor(name, tuple(dims[name]), dtype) for name, dtype in widths.items()}
    ops = (nests.einsum("a", "X W", "K"), nests.einsum("b", "Q K", "P", nests.SOFTMAX))
    graph = Graph(
        "rows",
        dict(zip("eijkl", (1, 1, 2, 2, 2), strict=True)),
        tensors,
        (*ops, nests.einsum("c", "P V", "O")),
    )
    buffer = Buffer(22, 0.25, 2.3, None, double_buffered=True)
    array = Array(1, ((2, 2),), 0.3, 0.5, ("weight", "output"))
    accelerator = Accelerator("tiny", 1e9, Dram(1e12, 7.03, 64), buffer, array, Vector(128, 0.4))
    options = SearchOptions("divisors")
    with pytest.raises(InfeasibleError) as caught:
        search_group(graph, accelerator, ("a", "b", "c"), Objective("dram"), options)
    assert caught.value.demand_bytes == 24
    found = search_group(graph, accelerator.with_buffer(24), ("a", "b", "c"), Objective("dram"), options)
    assert found.metrics is not None
    assert found.metrics.peak_buffer_bytes == 24
