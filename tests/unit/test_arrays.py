"""Array configurations: how arrays are spread, and that no configuration left out is ever better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from random import Random

import nests
import numpy as np
import pytest
from nests import build, einsum

from mmee_solver.accelerator import STATIONARITY, Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.arrays import configurations, extents, op_table, spreads, uses_array
from mmee_solver.cost import evaluate_group
from mmee_solver.errors import InputError
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold
from mmee_solver.trace import trace
from mmee_solver.validate import stationary, validate_group
from mmee_solver.workload import Graph, Op


def accelerator(
    count: int, *shapes: tuple[int, int], stationarity: tuple[str, ...] = STATIONARITY
) -> Accelerator:
    array = Array(count, shapes, 0.3, 0.5, stationarity)
    return Accelerator("any", 1e9, Dram(8e9, 1, 1), Buffer(1 << 30, 1, 1), array, Vector(1, 1))


def matmul(**sizes: int) -> Graph:
    spec = {"X": "mk", "A": "kn", "Y": "mn"}
    return build(spec, {"m": 64, "k": 64, "n": 64} | sizes, einsum("a", "X A", "Y"))


def short(config: ArrayConfig) -> str:
    pairs = [config.rows, config.cols, config.batch]
    return " ".join([*(f"{p[0]}{p[1]}" for p in pairs if p), config.inner])


def test_spreads_are_all_factorisations_into_three() -> None:
    assert spreads(1) == ((1, 1, 1),)
    assert set(spreads(2)) == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    # 4: 4·1·1 in three orders and 2·2·1 in three; 12 = 2²·3: 6 · 3
    assert (len(spreads(4)), len(spreads(12))) == (6, 18)
    assert all(a * b * c == 12 for a, b, c in spreads(12))
    assert len(set(spreads(12))) == 18


def test_extents_of_all_shapes_and_spreads() -> None:
    # rows 2, 4, 8; columns 4, 8, 16; a batch of 1, 2, 4
    assert extents(accelerator(4, (2, 4))) == (1, 2, 4, 8, 16)
    assert extents(accelerator(1, (3, 5), (1, 15))) == (1, 3, 5, 15)


def test_what_uses_the_arrays() -> None:
    assert uses_array(matmul(), matmul().op("a"))
    graph = build({"X": "mk", "B": "mk", "Y": "mk"}, {"m": 2, "k": 2}, einsum("a", "X B", "Y"))
    assert not uses_array(graph, graph.op("a"))
    graph = build({"X": "mk", "Y": "mk"}, {"m": 2, "k": 2}, Op("a", "elementwise", ("X",), "Y", "relu"))
    assert not uses_array(graph, graph.op("a"))


def test_configurations_of_one_array() -> None:
    found = configurations(matmul(), accelerator(1, (2, 4)), matmul().op("a"))
    # two of three dims in space, in both orders; the third runs inside
    assert {short(config) for config in found} == {
        "m2 k4 n",
        "k2 m4 n",
        "m2 n4 k",
        "n2 m4 k",
        "k2 n4 m",
        "n2 k4 m",
    }


def test_extents_beyond_a_dim_count_as_the_dim() -> None:
    # m = 2: 2 and 4 rows of m are the same, and 4 columns of n are more than 2
    found = configurations(matmul(m=2), accelerator(1, (2, 4)), matmul(m=2).op("a"))
    assert {short(config) for config in found if config.inner == "k"} == {"m2 n4 k"}
    # all dims of one element: one configuration per inner dim, whatever the shape
    tiny = matmul(m=1, k=1, n=1)
    assert len(configurations(tiny, accelerator(4, (2, 4)), tiny.op("a"))) == 3


def test_stationarity_decides_the_inner_dim() -> None:
    for kept, inner in (("output", "k"), ("weight", "m"), ("input", "n")):
        found = configurations(matmul(), accelerator(4, (2, 4), stationarity=(kept,)), matmul().op("a"))
        assert {config.inner for config in found} == {inner}


def test_a_sum_over_one_dim_has_one_configuration() -> None:
    graph = build({"X": "k", "A": "k", "Y": ""}, {"k": 64}, einsum("a", "X A", "Y"))
    (config,) = configurations(graph, accelerator(4, (2, 4)), graph.op("a"))
    assert config == ArrayConfig(("k", 8), None, None, "k", (2, 4))


# --- against all configurations ----------------------------------------------------------------------


def everything(graph: Graph, acc: Accelerator, op: Op) -> Iterator[ArrayConfig]:
    """Every configuration of §6, listed without a thought."""
    dims = graph.op_dims(op)
    ways = [(a, b, c) for a in (1, 2, 3, 4) for b in (1, 2, 3, 4) for c in (1, 2, 3, 4)]
    for shape in acc.array.shapes:
        for a, b, c in ways:
            if a * b * c != acc.array.count or (c > 1 and len(dims) < 3) or (b > 1 and len(dims) < 2):
                continue
            for mapped in permutations(dims, min(len(dims), 3 if c > 1 else 2)):
                pairs = [*zip(mapped, (shape[0] * a, shape[1] * b, c), strict=False), None, None][:3]
                for inner in [dim for dim in dims if dim not in mapped] or dims:
                    if stationary(graph, op, inner) in acc.array.stationarity:
                        yield ArrayConfig(pairs[0], pairs[1], pairs[2], inner, shape)


FIGURES = ("array_cycles", "buffer_read_bytes", "buffer_write_bytes")
SHAPES = [((2, 2),), ((1, 3),), ((2, 3),), ((1, 4), (2, 2))]


def draw(seed: int) -> tuple[Random, Graph, Accelerator]:
    rng = Random(seed)
    kind = rng.choice(["matmul", "batched", "three-input", "vector", "norm-matmul"])
    graph = nests.graph(rng, kind)
    array = Array(
        rng.choice([1, 2, 3, 4]),
        rng.choice(SHAPES),
        0.3,
        0.5,
        rng.choice([STATIONARITY, STATIONARITY, ("output",), ("input", "output")]),
        rng.choice(["ideal", "systolic"]),
    )
    return rng, graph, replace(accelerator(1, (1, 1)), array=array)


@pytest.mark.parametrize("seed", range(24))
def test_configurations_are_legal_and_none_left_out_is_better(seed: int) -> None:
    rng, graph, acc = draw(seed)
    (op,) = graph.ops
    listed = configurations(graph, acc, op)
    every = list(everything(graph, acc, op))
    assert set(listed) <= set(every)
    assert len(set(listed)) == len(listed)
    for _ in range(2):
        nest = nests.group(rng, graph, acc).nest
        costs = {
            config: tuple(
                getattr(evaluate_group(graph, acc, Group((op.name,), nest, {op.name: config})), name)
                for name in FIGURES
            )
            for config in every
        }
        for config in every:
            rivals = [costs[c] for c in listed if (c.inner, c.shape) == (config.inner, config.shape)]
            assert any(all(a <= b for a, b in zip(rival, costs[config], strict=True)) for rival in rivals)
    whole = (*(Hold(name) for name in op.tensors), Compute(op.name))
    for config in listed:
        validate_group(graph, acc, Group((op.name,), whole, {op.name: config}))


@pytest.mark.parametrize("seed", range(40))
def test_the_query_matrix_gives_the_figures_of_every_configuration(seed: int) -> None:
    rng, graph, acc = draw(seed)
    (op,) = graph.ops
    table = op_table(graph, acc, op)
    assert table is not None
    group = nests.group(rng, graph, acc)
    site = trace(graph, group.nest).compute_of(op.name)
    quantities = [
        quantity
        for dim in table.dims
        for quantity in (
            sum(count for _, count in site.pieces[dim]),
            *(sum(count * -(-extent // s) for extent, count in site.pieces[dim]) for s in extents(acc)),
        )
    ]
    monomials = np.rint(np.exp(np.log(np.array(quantities, dtype=float)) @ table.query))
    plain = evaluate_group(graph, acc, Group(group.ops, group.nest))
    for number, config in enumerate(table.configs):
        terms = monomials[table.terms[:, number]]
        found = evaluate_group(graph, acc, Group(group.ops, group.nest, {op.name: config}))
        assert terms[-2] + table.fill[number] * terms[-1] == found.array_cycles
        written = float(table.write_bits @ terms[:-2])
        assert -(-written // 8) + plain.dram_read_bytes == found.buffer_write_bytes
        read = float(table.read_bits @ terms[:-2]) + table.constant_read_bits
        assert -(-read // 8) + plain.dram_write_bytes == found.buffer_read_bytes
    assert table.macs == plain.array_macs


def test_an_op_without_reduction_has_no_table() -> None:
    graph = build({"X": "mk", "B": "mk", "Y": "mk"}, {"m": 2, "k": 2}, einsum("a", "X B", "Y"))
    assert op_table(graph, accelerator(1, (2, 2)), graph.op("a")) is None


def test_an_op_that_no_stationarity_allows_is_a_clear_error() -> None:
    graph = nests.build({"X": "mk", "B": "mk", "Y": "m"}, {"m": 4, "k": 6}, nests.einsum("a", "X B", "Y"))
    with pytest.raises(InputError, match='"a" cannot run weight stationary') as caught:
        op_table(graph, accelerator(4, (2, 4), stationarity=("weight",)), graph.op("a"))
    assert "array.stationarity" in str(caught.value)
