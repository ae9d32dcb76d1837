"""Array configurations, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmee_solver import load_accelerator
from mmee_solver.arrays import configurations, extents, op_table, spreads, uses_array
from mmee_solver.validate import _check_config
from mmee_solver.workload import Graph, Op, Tensor

ACCEL1 = load_accelerator("accel1")


def matmul(m: int, k: int, n: int) -> Graph:
    spec = {"A": "mk", "B": "kn", "C": "mn"}
    tensors = {name: Tensor(name, tuple(dims), "fp16") for name, dims in spec.items()}
    return Graph("mm", {"m": m, "k": k, "n": n}, tensors, (Op("mm", "einsum", ("A", "B"), "C"),))


def test_spreads_are_all_factorisations() -> None:
    assert set(spreads(4)) == {(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)}
    assert len(spreads(12)) == 18  # 2² and 3: C(4, 2) · C(3, 2)


def test_extents_of_four_arrays() -> None:
    assert extents(ACCEL1) == (1, 2, 4, 32, 64, 128)


def test_configurations_are_legal_and_include_the_square_ones() -> None:
    graph = matmul(2048, 1024, 512)
    op = graph.op("mm")
    found = configurations(graph, ACCEL1, op)
    for config in found:
        _check_config(graph, ACCEL1, op, config)
    square = {(c.rows, c.cols, c.inner) for c in found if c.batch is None and c.rows and c.rows[1] == 64}
    assert (("m", 64), ("n", 64), "k") in square
    # Without a batch dim: 3 inner dims × 3 spreads (32×128, 64×64, 128×32) of the other two; on square
    # arrays, swapping rows and cols changes nothing.
    assert sum(c.batch is None for c in found) == 9


def test_small_dims_clip_extents() -> None:
    graph = matmul(1, 64, 64)
    found = configurations(graph, ACCEL1, graph.op("mm"))
    clipped = [(c.inner, *(min(c.extent(d), graph.dims[d]) for d in ("m", "k", "n"))) for c in found]
    assert len(clipped) == len(set(clipped))


def test_stationarity_restricts_the_inner_dim() -> None:
    graph = matmul(64, 64, 64)
    weight = replace(ACCEL1, array=replace(ACCEL1.array, count=1, stationarity=("weight",)))
    assert {c.inner for c in configurations(graph, weight, graph.op("mm"))} == {"m"}


@pytest.mark.parametrize("kind", ["elementwise", "hadamard"])
def test_ops_without_reduction_use_no_array(kind: str) -> None:
    tensors = {name: Tensor(name, ("i", "j"), "fp16") for name in "ABC"}
    op = (
        Op("op", "elementwise", ("A", "B"), "C", function="mul")
        if kind == "elementwise"
        else Op("op", "einsum", ("A", "B"), "C")
    )
    graph = Graph("g", {"i": 2, "j": 2}, tensors, (op,))
    assert not uses_array(graph, op)
    assert op_table(graph, ACCEL1, op) is None
