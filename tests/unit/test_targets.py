"""The figures that the project promises, each against its reference (facts.md, Timeloop's curves)."""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from instances import chain

from mmee_graphs import attention
from mmee_solver import Accelerator, load_accelerator, load_graph, solve
from mmee_solver.cost import add_metrics, evaluate_group
from mmee_solver.fold import fold
from mmee_solver.io import graph_from_json
from mmee_solver.mapping import Mapping
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Loop
from mmee_solver.validate import validate_groups

REFERENCE = Path(__file__).parents[1] / "reference"
KIB, MIB = 1024, 1024 * 1024


def elements(name: str, capacity_bytes: int, tiles: str = "integer", **options: str) -> int:
    """Least DRAM traffic in 2-byte elements; the mapping is proved and consistent."""
    accelerator = load_accelerator("accel1").with_buffer(capacity_bytes)
    mapping = solve(load_graph(name), accelerator, "dram", tiles, **options)
    assert mapping.status == "optimal"
    assert mapping.bound == mapping.value
    assert mapping.metrics.peak_buffer_bytes <= capacity_bytes
    return mapping.metrics.dram_bytes // 2


def curve(name: str) -> list[tuple[int, int]]:
    with (REFERENCE / f"timeloop_skislope_{name}.csv").open() as file:
        return [(int(row[0]), int(row[1])) for row in list(csv.reader(file))[1:]]


@pytest.mark.parametrize("name", ["64-64-64", "16384-1024-1024"])
def test_divisors_are_at_most_timeloops_curve(name: str) -> None:
    graph = {"64-64-64": "matmul-64", "16384-1024-1024": "matmul-16384-1024-1024"}[name]
    for buffer_words, dram_words in curve(name):
        assert elements(graph, 2 * buffer_words, "divisors") <= dram_words, buffer_words


def test_ffm_front_is_met() -> None:
    with (REFERENCE / "ffm_front_64-64-64.csv").open() as file:
        for buffer_words, dram_words in list(csv.reader(file))[1:]:
            found = elements("matmul-64", 2 * int(buffer_words), "divisors")
            assert found <= int(dram_words), buffer_words


@pytest.mark.parametrize("tiles", ["integer", "divisors"])
def test_algorithmic_minimum_at_exactly_its_buffer(tiles: str) -> None:
    # |A| + |B| + |C| = 2·16384·1024 + 1024·1024; B whole, one row of A, one element of C.
    least = 2 * 16384 * 1024 + 1024 * 1024
    assert least == 34603008
    assert elements("matmul-16384-1024-1024", 2 * 1049601, tiles) == least
    assert elements("matmul-16384-1024-1024", 2 * 1049600, tiles) > least


def test_primes() -> None:
    assert elements("matmul-61-67-71", 2 * 1000) <= 26106


@pytest.mark.parametrize(
    ("capacity_bytes", "integer", "divisors"),
    [
        (64 * KIB, 9437184, 13107200),
        (256 * KIB, 3145728, 3670016),
        (MIB, 1310720, 1310720),
    ],
)
def test_attention_head(capacity_bytes: int, integer: int, divisors: int) -> None:
    assert elements("attention-head", capacity_bytes) <= integer
    assert elements("attention-head", capacity_bytes, "divisors") <= divisors
    assert elements("attention-head-softmax", capacity_bytes) <= 1.03 * integer
    assert elements("attention-head-softmax", capacity_bytes, "divisors") <= 1.03 * divisors


@pytest.mark.parametrize(
    ("capacity_bytes", "integer", "divisors"),
    [
        (256 * KIB, 1577058304, 2189426688),
        (MIB, 830472192, 1115684864),
        (4 * MIB, 486539264, 578813952),
    ],
)
def test_ffn(capacity_bytes: int, integer: int, divisors: int) -> None:
    assert elements("gpt3-6.7b-ffn", capacity_bytes) <= integer
    assert elements("gpt3-6.7b-ffn", capacity_bytes, "divisors") <= divisors


def test_recomputing_pair() -> None:
    assert elements("recompute-pair", 600) <= 104000
    assert elements("recompute-pair", 600, recompute=False) > 104000  # type: ignore[arg-type]


def test_197_tokens_cost_about_what_196_do() -> None:
    accel1 = load_accelerator("accel1")
    for objective in ("dram", "energy", "latency", "edp"):
        odd, even = (
            solve(load_graph(name), accel1, objective).value
            for name in ("vit-b16-197-attention", "vit-b16-attention")
        )
        # 197 tokens are (197/196)² = 1.0102 times the work of attention.
        assert odd <= even * 1.02 * (197 / 196) ** 2, objective


def test_a_graph_that_no_preset_has() -> None:
    graph = graph_from_json(
        {
            "format": "mmee-graph/1",
            "name": "own",
            "dims": {"m": 101, "k": 37, "n": 53},
            "tensors": {"A": {"dims": ["m", "k"]}, "B": {"dims": ["k", "n"]}, "C": {"dims": ["m", "n"]}},
            "ops": [{"name": "mm", "kind": "einsum", "inputs": ["A", "B"], "output": "C"}],
        }
    )
    accelerator = load_accelerator("accel1")
    everything = 2 * (101 * 37 + 37 * 53 + 101 * 53)
    assert solve(graph, accelerator, "dram").value == everything
    # B (37 · 53), one row of A and one element of C: all that the compulsory traffic needs.
    least = 2 * (37 * 53 + 37 + 1)
    assert solve(graph, accelerator.with_buffer(least), "dram").value == everything
    assert solve(graph, accelerator.with_buffer(least - 2), "dram").value > everything


@pytest.mark.parametrize(
    ("capacity_bytes", "tiles", "most", "unfused"),
    [
        (MIB, "divisors", 1728053248, False),
        (16 * MIB, "divisors", 503316480, True),
        (MIB, "integer", 1308622848, False),
        # pairs without a shared input need 452984832; K and V, which read the same, get below
        (16 * MIB, "integer", 444596224, True),
    ],
)
def test_a_layer_of_gpt3_as_ffm_models_it(capacity_bytes: int, tiles: str, most: int, unfused: bool) -> None:
    found = elements("gpt3-6.7b-layer-ffm", capacity_bytes, tiles)
    assert found <= most
    if unfused:
        assert found < elements("gpt3-6.7b-layer-ffm", capacity_bytes, tiles, fusion="none")


def test_a_gate_and_its_products_fuse_to_one_group() -> None:
    mapping = solve(load_graph("llama3-8b-ffn"), load_accelerator("tpuv4i-like"), "dram", residency=False)
    assert [len(group.ops) for group in mapping.groups] == [3]


def rescaling(capacity_bytes: int, lanes: int = 128) -> tuple[Accelerator, Accelerator]:
    """accel1 with another buffer and vector unit: softmax rescales by `mul`, and by `add` (AMLA)."""
    accel1 = load_accelerator("accel1").with_buffer(capacity_bytes)
    mul = replace(accel1, vector=replace(accel1.vector, lanes=lanes, rescale="mul"))
    return mul, replace(mul, vector=replace(mul.vector, rescale="add"))


def value_on(accelerator: Accelerator, mapping: Mapping, objective: str) -> Fraction:
    """What the dataflow of a mapping costs on another accelerator."""
    graph = mapping.graph
    parts = [evaluate_group(graph, accelerator, group) for group in mapping.groups]
    return Fraction(add_metrics(parts).value(objective))


@pytest.mark.parametrize("objective", ["energy", "latency"])
def test_rescaling_by_add_changes_the_dataflow(objective: str) -> None:
    # 64 KiB: a row of 2048 scores is 4 KiB, so rows of a tile worth fetching K and V for do not fit whole
    mul, add = rescaling(64 * KIB)
    graph = load_graph("attention-head-softmax")
    by_mul, by_add = solve(graph, mul, objective), solve(graph, add, objective)
    assert by_add.value < 0.95 * by_mul.value
    assert [group.nest for group in by_add.groups] != [group.nest for group in by_mul.groups]
    # no tie: on either accelerator the other's dataflow is worse
    assert value_on(mul, by_add, objective) > by_mul.value
    assert value_on(add, by_mul, objective) > by_add.value


@pytest.mark.parametrize("objective", ["dram", "energy", "latency", "edp"])
def test_rescaling_by_add_is_never_worse(objective: str) -> None:
    graph = graph_from_json(attention(1, 256, 256, 64))
    by_mul, by_add = (solve(graph, accelerator, objective) for accelerator in rescaling(16 * KIB))
    assert by_add.value <= value_on(by_add.accelerator, by_mul, objective) <= by_mul.value
    if objective in ("energy", "edp"):
        assert by_add.value < by_mul.value
    if objective == "dram":  # no byte depends on how softmax rescales
        assert by_add.value == by_mul.value


def test_rescaling_by_add_saves_vector_cycles_and_buffer_accesses() -> None:
    graph = fold(load_graph("attention-head-softmax"))
    inner = (Hold("K"), Hold("P"), Compute("qk"), Hold("V"), Compute("pv"))
    nest = (Loop("i", 256, (Hold("Q"), Hold("O"), Loop("l", 512, inner))),)
    array = {
        "qk": ArrayConfig(("i", 64), ("l", 64), None, "k", (32, 32)),
        "pv": ArrayConfig(("i", 64), ("j", 64), None, "l", (32, 32)),
    }
    by_mul, by_add = (
        evaluate_group(graph, accelerator, Group(("qk", "pv"), nest, array))
        for accelerator in rescaling(2 * MIB, lanes=100)
    )
    # softmax: 5 ops for each of 2048 · 2048 scores; l has 4 steps, so O, 2048 · 128, is rescaled 3 times
    softmax, rescales = 5 * 2048 * 2048, 3 * 2048 * 128
    assert by_mul.vector_ops == by_add.vector_ops == softmax + rescales
    assert by_mul.vector_cycles == -(-(softmax + rescales) // 100) == 217580
    assert by_add.vector_cycles == -(-softmax // 100) == 209716
    assert by_mul.buffer_read_bytes - by_add.buffer_read_bytes == 2 * rescales
    assert by_mul.buffer_write_bytes - by_add.buffer_write_bytes == 2 * rescales
    # 2 bytes, read at 2.0 and written at 2.3 pJ; nothing else of the energy changes
    saved = 2 * rescales * Fraction(43, 10)
    assert by_mul.energy.total - by_add.energy.total == saved
    assert replace(by_mul.energy, buffer=by_mul.energy.buffer - saved) == by_add.energy
    assert (by_mul.traffic, by_mul.peak_buffer_bytes) == (by_add.traffic, by_add.peak_buffer_bytes)
    assert by_mul.array_cycles == by_add.array_cycles


@pytest.mark.parametrize("count", [2, 4, 8, 16, 32])
def test_chains_move_what_they_must_where_residents_fit(count: int) -> None:
    graph = chain(count, 2048, 128)
    mapping = solve(graph, load_accelerator("accel1").with_buffer(2 * MIB), "dram")
    assert mapping.metrics.dram_bytes == graph.compulsory_bytes()


def test_groups_of_many_ops_win_where_no_intermediate_fits() -> None:
    graph, accelerator = chain(8, 2048, 128), load_accelerator("accel1").with_buffer(MIB)
    mapping = solve(graph, accelerator, "dram")
    assert [len(group.ops) for group in mapping.groups] == [8]
    assert mapping.metrics.dram_bytes == graph.compulsory_bytes()
    assert mapping.unfused is not None
    # each of the seven intermediates, 512 KiB, written and read
    assert mapping.unfused.dram_bytes == graph.compulsory_bytes() + 7 * MIB


def test_residency_wins() -> None:
    graph, accelerator = load_graph("llama3-8b-decode-block"), load_accelerator("tpuv4i-like")
    kept, left = (solve(graph, accelerator, "dram", residency=choice) for choice in (True, False))
    assert kept.resident
    assert not left.resident
    assert kept.metrics.dram_bytes < left.metrics.dram_bytes
    assert validate_groups(kept.graph, accelerator, kept.groups, kept.resident) == kept.group_metrics
