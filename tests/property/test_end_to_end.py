"""Solved mappings run: executor = stated figures, and the numbers equal plain numpy on the unfolded graph."""

from __future__ import annotations

from random import Random

import instances
import numpy as np
import pytest

from mmee_solver import load_accelerator, solve
from mmee_solver.errors import InfeasibleError
from mmee_solver.execute import run_group
from mmee_solver.fold import fold
from mmee_solver.mapping import Mapping
from mmee_solver.numerics import plain
from mmee_solver.workload import Graph, Op, Tensor


def check(graph: Graph, mapping: Mapping) -> None:
    random = np.random.default_rng(0)
    arrays = {
        name: random.standard_normal([graph.dims[d] for d in graph.tensors[name].dims])
        for name in graph.inputs()
    }
    expected = plain(graph, arrays)
    double = mapping.accelerator.buffer.double_buffered
    for index, (group, metrics) in enumerate(zip(mapping.groups, mapping.group_metrics, strict=True)):
        alive = {one.tensor for one in mapping.resident if one.first <= index <= one.last}
        touched = {name for op in group.ops for name in mapping.graph.op(op).tensors}
        run = run_group(mapping.graph, group, arrays, double, alive & touched, alive - touched)
        assert run.traffic == metrics.traffic
        assert run.peak_buffer_bytes == metrics.peak_buffer_bytes
        arrays.update(run.arrays)
    for name in graph.outputs:
        np.testing.assert_allclose(arrays[name], expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", range(54))
def test_pairs_run(seed: int) -> None:
    rng = Random(seed)
    graph = instances.graph(rng, instances.KINDS[seed % len(instances.KINDS)], largest=7, looped=4)
    try:
        mapping = solve(graph, instances.accelerator(rng, graph), ("dram", "energy")[seed % 2])
    except InfeasibleError:
        return
    check(graph, mapping)


def block(sizes: dict[str, int], seed: int) -> Graph:
    """Projection, attention with softmax, output projection with residual, gated FFN: a DAG, unfolded."""
    spec = {
        "X": "ie", "Wq": "ek", "Q": "ik", "K": "lk", "S": "il", "P": "il", "V": "lj", "A": "ij",
        "Wo": "je", "Z": "ie", "R": "ie", "N": "ie", "Wg": "ef", "G": "if", "H": "if", "Wu": "ef",
        "U": "if", "M": "if", "Wd": "fe", "D": "ie", "Y": "ie",
    }  # fmt: skip
    tensors = {name: Tensor(name, tuple(dims), "fp16") for name, dims in spec.items()}
    ops = [
        Op("q", "einsum", ("X", "Wq"), "Q"),
        Op("qk", "einsum", ("Q", "K"), "S"),
        Op("softmax", "softmax", ("S",), "P", axis="l"),
        Op("pv", "einsum", ("P", "V"), "A"),
        Op("out", "einsum", ("A", "Wo"), "Z"),
        Op("residual", "elementwise", ("Z", "X"), "R", function="add"),
        Op("norm", "normalize", ("R",), "N", function="rmsnorm", axis="e"),
        Op("gate", "einsum", ("N", "Wg"), "G"),
        Op("silu", "elementwise", ("G",), "H", function="silu"),
        Op("up", "einsum", ("N", "Wu"), "U"),
        Op("mul", "elementwise", ("H", "U"), "M", function="mul"),
        Op("down", "einsum", ("M", "Wd"), "D"),
        Op("add", "elementwise", ("D", "R"), "Y", function="add"),
    ]
    Random(seed).shuffle(ops)
    return Graph("block", sizes, tensors, tuple(ops))


@pytest.mark.parametrize("seed", range(4))
def test_a_whole_block_runs(seed: int) -> None:
    rng = Random(seed)
    sizes = {dim: rng.choice([2, 3, 5, 7, 8]) for dim in "iekljf"}
    graph = block(sizes, seed)
    assert {op.name for op in fold(graph).ops} == {"q", "qk", "pv", "out", "gate", "up", "down"}
    accelerator = load_accelerator("accel1").with_buffer(rng.choice([120, 200, 400]))
    mapping = solve(graph, accelerator, "dram")
    assert mapping.value <= solve(graph, accelerator, "dram", fusion="none").value
    check(graph, mapping)
