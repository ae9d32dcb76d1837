"""Cycles of a systolic array against SCALE-Sim 3.0.0: its figure plus one (facts.md, "Reference results")."""

from __future__ import annotations

import pytest

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.cost import evaluate_group
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Item, Loop
from mmee_solver.validate import stationary, validate_group
from mmee_solver.workload import Graph, Op, Tensor

ACCELERATOR = Accelerator(
    "systolic",
    clock_hz=1e9,
    dram=Dram(1e12, 1, 1),
    buffer=Buffer(1 << 30, 1, 1),
    array=Array(1, ((32, 32),), 1, 1, pipeline="systolic"),
    vector=Vector(1, 1),
)
# one array of 32×32, GEMM M×N×K, total cycles without prefetch
SCALE_SIM = {
    (64, 64, 64): {"output": 503, "weight": 631, "input": 631},
    (128, 96, 256): {"output": 3815, "weight": 5327, "input": 6079},
    (100, 50, 70): {"output": 1055, "weight": 1163, "input": 1727},
}
# rows, cols, inner: what stays is the tensor that lacks the inner dim (Y[m,n], A[k,n], X[m,k])
LAYOUT = {"output": ("m", "n", "k"), "weight": ("k", "n", "m"), "input": ("k", "m", "n")}


def matmul(m: int, n: int, k: int) -> Graph:
    shapes = {"X": ("m", "k"), "A": ("k", "n"), "Y": ("m", "n")}
    tensors = {name: Tensor(name, dims, "fp16") for name, dims in shapes.items()}
    return Graph("gemm", {"m": m, "n": n, "k": k}, tensors, (Op("a", "einsum", ("X", "A"), "Y"),))


def array_cycles(
    graph: Graph, kept: str, *loops: tuple[str, int], accelerator: Accelerator = ACCELERATOR
) -> int:
    rows, cols, inner = LAYOUT[kept]
    assert stationary(graph, graph.op("a"), inner) == kept
    items: tuple[Item, ...] = (Compute("a"),)
    for dim, tile in reversed(loops):
        items = (Loop(dim, tile, items),)
    nest = (Hold("X"), Hold("A"), Hold("Y"), *items)
    group = Group(("a",), nest, {"a": ArrayConfig((rows, 32), (cols, 32), None, inner, (32, 32))})
    validate_group(graph, accelerator, group)
    return evaluate_group(graph, accelerator, group).array_cycles


@pytest.mark.parametrize("kept", LAYOUT)
@pytest.mark.parametrize("sizes", SCALE_SIM, ids=str)
def test_cycles_are_scale_sims_plus_one(sizes: tuple[int, int, int], kept: str) -> None:
    assert array_cycles(matmul(*sizes), kept) == SCALE_SIM[sizes][kept] + 1


def test_the_ideal_pipeline_fills_nothing() -> None:
    array = Array(1, ((32, 32),), 1, 1, pipeline="ideal")
    ideal = Accelerator("i", 1e9, ACCELERATOR.dram, ACCELERATOR.buffer, array, ACCELERATOR.vector)
    # 100×50×70: ⌈100/32⌉ · ⌈50/32⌉ passes of 70 cycles
    assert array_cycles(matmul(100, 50, 70), "output", accelerator=ideal) == 4 * 2 * 70


def test_cutting_the_inner_dim_fills_once_more_per_piece() -> None:
    # 64×64×64, k in two pieces: 4 passes of 32 cycles each time, and each fills R + C − 2 = 62 cycles
    assert array_cycles(matmul(64, 64, 64), "output", ("k", 32)) == 2 * 4 * (32 + 62)
    # k in 40 and 24: as many fills, no more compute
    assert array_cycles(matmul(64, 64, 64), "output", ("k", 40)) == 4 * 64 + 2 * 4 * 62


def test_cutting_a_spatial_dim_pads_every_piece() -> None:
    # m = 64 in pieces of 40 and 24: ⌈40/32⌉ + ⌈24/32⌉ = 3 passes instead of 2; n: 2
    assert array_cycles(matmul(64, 64, 64), "output", ("m", 40)) == 3 * 2 * (64 + 62)
    # weights: k in 48 and 16 gives 2 + 1 passes, loaded first: 2R + C − 2 = 94
    assert array_cycles(matmul(64, 64, 64), "weight", ("k", 48)) == 3 * 2 * (64 + 94)


def test_fills_of_a_prime_size() -> None:
    # 61 = 8 · 7 + 5: nine pieces of one pass each; k in ⌈71/32⌉ = 3 passes, of n = 67 cycles and 94 of fill
    assert array_cycles(matmul(61, 67, 71), "input", ("m", 7)) == 9 * 3 * (67 + 94)
