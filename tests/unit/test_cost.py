"""The cost model against arithmetic done by hand; every expected number says where it comes from."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from nests import SOFTMAX, build, einsum, pointwise

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.cost import Metrics, add_metrics, evaluate_group
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Loop, Nest
from mmee_solver.workload import Graph, Op, Step

ACCELERATOR = Accelerator(
    "small",
    clock_hz=1e9,
    dram=Dram(bandwidth_bytes_per_s=8e9, read_pj_per_byte=10, write_pj_per_byte=20),
    buffer=Buffer(1 << 20, read_pj_per_byte=1, write_pj_per_byte=2, bandwidth_bytes_per_cycle=16),
    array=Array(1, ((2, 2),), mac_pj=0.5, register_pj_per_mac=0.25),
    vector=Vector(lanes=8, pj_per_op=0.1),
)
DOUBLE = replace(ACCELERATOR, buffer=replace(ACCELERATOR.buffer, double_buffered=True))
ADD = replace(ACCELERATOR, vector=replace(ACCELERATOR.vector, rescale="add"))
OUTPUT_STAYS = ArrayConfig(("m", 2), ("n", 2), None, "k", (2, 2))


def matmul(dtype: str = "fp16", *steps: Step) -> Graph:
    """Y[m,n] = X[m,k] · A[k,n] with m, k, n = 4, 6, 5."""
    spec = {"X": "mk", "A": "kn", "Y": "mn"}
    return build(spec, {"m": 4, "k": 6, "n": 5}, einsum("a", "X A", "Y", *steps), dtype=dtype)


def cost(
    graph: Graph, *nest: object, accelerator: Accelerator = ACCELERATOR, **array: ArrayConfig
) -> Metrics:
    ops = tuple(op.name for op in graph.ops)
    return evaluate_group(graph, accelerator, Group(ops, nest, array))  # type: ignore[arg-type]


# --- one matmul: every figure ------------------------------------------------------------------------

# k = 6 by 4: 4 + 2; n = 5 by 2: 2 + 2 + 1
TILED: Nest = (Hold("Y"), Loop("k", 4, (Hold("X"), Loop("n", 2, (Hold("A"), Compute("a"))))))


def test_traffic_and_occupancy_of_a_matmul() -> None:
    found = cost(matmul(), *TILED)
    # no tensor is under a loop over a dim that it lacks: 24, 30 and 20 elements of 2 bytes, once
    assert found.traffic == {"Y": (0, 40), "X": (48, 0), "A": (60, 0)}
    assert (found.dram_read_bytes, found.dram_write_bytes, found.dram_bytes) == (108, 40, 148)
    # Y 4·5, X 4·4, A 4·2 elements
    assert found.peak_buffer_bytes == 40 + 32 + 16


def test_cycles_and_accesses_of_a_matmul() -> None:
    found = cost(matmul(), *TILED, a=OUTPUT_STAYS)
    # passes: m ⌈4/2⌉ = 2; n ⌈2/2⌉ + ⌈2/2⌉ + ⌈1/2⌉ = 3; k 6
    assert found.array_cycles == 2 * 3 * 6
    assert (found.macs, found.array_macs) == (120, 120)
    assert found.utilisation(ACCELERATOR) == pytest.approx(120 / (36 * 4))
    # X is read per pass of n, A per pass of m; Y is written per step of k (2), and read but for the first
    assert found.buffer_read_bytes == 2 * (24 * 3 + 30 * 2 + 20 * (2 - 1)) + 40
    assert found.buffer_write_bytes == 2 * 20 * 2 + 108
    assert found.vector_ops == 0


def test_energy_and_latency_of_a_matmul() -> None:
    found = cost(matmul(), *TILED, a=OUTPUT_STAYS)
    assert found.energy.dram == 108 * 10 + 40 * 20
    assert found.energy.buffer == 344 * 1 + 188 * 2
    assert found.energy.register == 120 * Fraction(1, 4)
    assert found.energy.mac == 120 * Fraction(1, 2)
    assert found.energy.total == 1880 + 720 + 30 + 60
    # DRAM 148 bytes at 8 per cycle: 18.5; buffer 344 + 188 bytes at 16 per cycle: 33.25
    assert found.cycles == {"array": 36, "vector": 0, "dram": 19, "buffer": 34}
    assert found.latency_cycles == 36
    assert found.edp == 2690 * 36
    assert [found.value(name) for name in ("dram", "energy", "latency", "edp")] == [148, 2690, 36, 96840]
    with pytest.raises(KeyError):
        found.value("area")


@pytest.mark.parametrize(
    ("config", "cycles", "reads", "writes"),
    [
        # weights stay (x = m): passes k ⌈4/2⌉ + ⌈2/2⌉ = 3, n 3, m 4. X per pass of n; A per step of m (1);
        # Y per pass of k
        (("k", "n", "m"), 3 * 3 * 4, 24 * 3 + 30 * 1 + 20 * (3 - 1), 20 * 3),
        # inputs stay (x = n): passes k 3, m 2, n 5. X per step of n (3); A per pass of m; Y per pass of k
        (("k", "m", "n"), 3 * 2 * 5, 24 * 3 + 30 * 2 + 20 * (3 - 1), 20 * 3),
    ],
)
def test_stationarity_decides_what_is_walked_in_steps(
    config: tuple[str, str, str], cycles: int, reads: int, writes: int
) -> None:
    rows, cols, inner = config
    found = cost(matmul(), *TILED, a=ArrayConfig((rows, 2), (cols, 2), None, inner, (2, 2)))
    assert found.array_cycles == cycles
    assert found.buffer_read_bytes == 2 * reads + 40
    assert found.buffer_write_bytes == 2 * writes + 108


def test_arrays_can_share_a_batch_dim() -> None:
    spec = {"X": "hmk", "A": "hkn", "Y": "hmn"}
    graph = build(spec, {"h": 3, "m": 4, "k": 6, "n": 5}, einsum("a", "X A", "Y"))
    config = ArrayConfig(("m", 2), ("n", 2), ("h", 2), "k", (2, 2))
    found = cost(graph, Hold("X"), Hold("A"), Hold("Y"), Compute("a"), a=config)
    # h ⌈3/2⌉ = 2, m 2, n 3, k 6
    assert found.array_cycles == 2 * 2 * 3 * 6


def test_without_a_configuration_there_are_no_cycles() -> None:
    found = cost(matmul(), *TILED)
    assert (found.array_cycles, found.utilisation(ACCELERATOR)) == (0, 0)


# --- traffic -----------------------------------------------------------------------------------------


def test_inputs_are_read_once_per_step_of_a_dim_that_they_lack() -> None:
    # m by 3: 2 steps; n by 2: 3 steps; only X lacks n
    found = cost(matmul(), Loop("n", 2, (Hold("A"), Loop("m", 3, (Hold("X"), Hold("Y"), Compute("a"))))))
    assert found.traffic == {"A": (60, 0), "X": (3 * 48, 0), "Y": (0, 40)}


def test_a_revisited_output_is_read_once_less_than_it_is_written() -> None:
    # k by 2: 3 visits of every tile of Y
    found = cost(matmul(), Loop("k", 2, (Hold("X"), Hold("A"), Hold("Y"), Compute("a"))))
    assert found.traffic["Y"] == (2 * 40, 3 * 40)


def test_bits_add_up_before_they_are_rounded() -> None:
    graph = build({"X": "m", "A": "n", "Y": "mn"}, {"m": 5, "n": 3}, einsum("a", "X A", "Y"), dtype="int4")
    found = cost(graph, Loop("n", 1, (Hold("X"), Hold("A"), Hold("Y"), Compute("a"))))
    # X: 3 visits of 20 bits are 60 bits, 8 bytes, not 3 · 3; A: 12 bits; Y: 60 bits
    assert found.traffic == {"X": (8, 0), "A": (2, 0), "Y": (0, 8)}
    # tiles are rounded one by one: X 20 bits, A 4 bits, Y 20 bits
    assert found.peak_buffer_bytes == 3 + 1 + 3


def test_holds_of_one_tensor_add_up_before_they_are_rounded() -> None:
    spec = {"X": "k", "A": "kf", "H": "f", "B": "kf", "G": "f"}
    graph = build(spec, {"k": 5, "f": 2}, einsum("a", "X A", "H"), einsum("b", "X B", "G"), dtype="int4")
    twice = cost(
        graph,
        Loop("f", 2, (Hold("X"), Hold("A"), Hold("H"), Compute("a"))),
        Loop("f", 2, (Hold("X"), Hold("B"), Hold("G"), Compute("b"))),
    )
    # 20 + 20 bits are 5 bytes, not 3 + 3
    assert twice.traffic["X"] == (5, 0)
    once = cost(graph, Hold("X"), Hold("A"), Hold("H"), Compute("a"), Hold("B"), Hold("G"), Compute("b"))
    assert once.traffic["X"] == (3, 0)


def test_streamed_tiles_take_twice_their_room_when_double_buffered() -> None:
    assert cost(matmul(), *TILED, accelerator=DOUBLE).peak_buffer_bytes == 2 * 88
    fused = cost(ffn(), *FUSED, accelerator=DOUBLE)
    # H stays on the chip: 2·(A 24 + X 8) + H 16, then 2·(Y 20 + B 40) + H 16
    assert fused.peak_buffer_bytes == 2 * 60 + 16


# --- fused pairs -------------------------------------------------------------------------------------


def ffn(*steps: Step, outputs: tuple[str, ...] = ()) -> Graph:
    """H[m,f] = X[m,k] · A[k,f], Y[m,n] = H · B[f,n] with m, k, f, n = 4, 3, 4, 5."""
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
    sizes = {"m": 4, "k": 3, "f": 4, "n": 5}
    return build(spec, sizes, einsum("a", "X A", "H", *steps), einsum("b", "H B", "Y"), outputs=outputs)


FUSED: Nest = (
    Loop("m", 2, (Hold("H"), Hold("A"), Hold("X"), Compute("a"), Hold("B"), Hold("Y"), Compute("b"))),
)


def test_an_internal_tensor_moves_nothing() -> None:
    found = cost(ffn(), *FUSED)
    # A and B, 12 and 20 elements, once per step of m
    assert found.traffic == {"A": (48, 0), "X": (24, 0), "B": (80, 0), "Y": (0, 40)}
    # H 2·4, A 12, X 2·3 elements; H, B 20, Y 2·5
    assert found.peak_buffer_bytes == max(16 + 24 + 12, 16 + 40 + 20)


def test_an_internal_tensor_that_is_needed_later_is_written_once() -> None:
    found = cost(ffn(outputs=("H", "Y")), *FUSED)
    assert found.traffic["H"] == (0, 32)
    # and streamed: twice its room when double-buffered
    assert cost(ffn(outputs=("H", "Y")), *FUSED, accelerator=DOUBLE).peak_buffer_bytes == 2 * (16 + 40 + 20)


def test_recomputation_repeats_work_and_traffic() -> None:
    gelu = pointwise("gelu")
    # n by 2: 3 steps; a lacks n
    nest = (
        Hold("Y"),
        Loop("n", 2, (Hold("H"), Hold("X"), Hold("A"), Compute("a"), Hold("B"), Compute("b"))),
    )
    configs = {
        "a": ArrayConfig(("m", 2), ("f", 2), None, "k", (2, 2)),
        "b": ArrayConfig(("m", 2), ("n", 2), None, "f", (2, 2)),
    }
    found = cost(ffn(gelu), *nest, **configs)
    assert found.traffic == {"Y": (0, 40), "X": (3 * 24, 0), "A": (3 * 24, 0), "B": (40, 0)}
    assert found.macs == 3 * 4 * 3 * 4 + 4 * 4 * 5
    assert found.vector_ops == 3 * 4 * 16
    # a: m 2 · f 2 · k 3 passes, three times; b: m 2 · n (1 + 1 + 1) · f 4
    assert found.array_cycles == 3 * 12 + 24
    # a: X per pass of f, A per pass of m, H never read back (k in one step); b: H per pass of n, B of m
    reads = 3 * (12 * 2 + 12 * 2) + 16 * 3 + 20 * 2
    assert found.buffer_read_bytes == 2 * reads + 40
    assert found.buffer_write_bytes == 2 * (3 * 16 + 20) + 72 + 72 + 40


# --- vector work -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "each"),
    [
        (Step("s", "softmax", axis="n"), 5),
        (Step("s", "normalize", "rmsnorm", "n"), 4),
        (pointwise("gelu"), 4),
        (pointwise("exp"), 4),
        (pointwise("silu"), 4),
        (pointwise("sigmoid"), 4),
        (pointwise("tanh"), 4),
        (pointwise("relu"), 1),
        (pointwise("rope"), 1),
    ],
)
def test_vector_operations_of_an_epilogue(step: Step, each: int) -> None:
    assert cost(matmul("fp16", step), *TILED).vector_ops == each * 20


def test_a_prologue_works_whenever_its_input_is_read() -> None:
    silu = Step("silu", "elementwise", "silu", tensor="X")
    # X, 24 elements, is read 3 times (n by 2)
    found = cost(matmul("fp16", silu), Hold("Y"), Loop("n", 2, (Hold("X"), Hold("A"), Compute("a"))))
    assert found.vector_ops == 4 * 3 * 24
    # 288 operations on 8 lanes
    assert found.vector_cycles == 36


def test_an_operand_costs_a_buffer_read_per_output_element() -> None:
    spec = {"X": "mk", "A": "kn", "b": "n", "Y": "mn"}
    add = einsum("a", "X A", "Y", pointwise("add", "b"))
    graph = build(spec, {"m": 4, "k": 6, "n": 5}, add)
    found = cost(graph, Hold("X"), Hold("A"), Hold("b"), Hold("Y"), Compute("a"), a=OUTPUT_STAYS)
    assert found.vector_ops == 20
    # X per pass of n (3), A per pass of m (2), b per element of Y
    assert found.buffer_read_bytes == 2 * (24 * 3 + 30 * 2 + 20) + 40
    assert found.traffic["b"] == (10, 0)


def test_an_op_without_reduction_uses_no_array() -> None:
    graph = build(
        {"X": "mk", "b": "k", "Y": "mk"}, {"m": 4, "k": 6}, Op("f", "elementwise", ("X", "b"), "Y", "add")
    )
    found = cost(graph, Hold("X"), Hold("b"), Hold("Y"), Compute("f"))
    assert (found.macs, found.array_cycles, found.vector_ops) == (0, 0, 24)
    # X and b are read, and Y written, once per element of Y
    assert found.buffer_read_bytes == 2 * (24 + 24) + 48
    assert found.buffer_write_bytes == 2 * 24 + 48 + 12
    assert found.energy.mac == found.energy.register == 0


def test_a_product_without_sum_runs_on_the_vector_unit() -> None:
    graph = build({"X": "mk", "B": "mk", "Y": "mk"}, {"m": 4, "k": 6}, einsum("a", "X B", "Y"))
    found = cost(graph, Hold("X"), Hold("B"), Hold("Y"), Compute("a"))
    assert (found.macs, found.array_macs, found.array_cycles, found.vector_ops) == (24, 0, 0, 24)
    assert found.energy.mac == found.energy.register == 0


# --- online statistics -------------------------------------------------------------------------------


def attention() -> Graph:
    """P[i,l] = softmax(Q[i,k] · K[l,k]), O[i,j] = P · V[l,j] with i, l, k, j = 4, 6, 2, 3."""
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij"}
    sizes = {"i": 4, "l": 6, "k": 2, "j": 3}
    return build(spec, sizes, einsum("qk", "Q K", "P", SOFTMAX), einsum("pv", "P V", "O"))


INSIDE: Nest = (Hold("P"), Hold("K"), Compute("qk"), Hold("V"), Compute("pv"))
# i by 2: 2 steps; l by 4: 2 steps
ONLINE: Nest = (Loop("i", 2, (Hold("Q"), Hold("O"), Loop("l", 4, INSIDE))),)


def test_online_softmax_rescales_once_per_further_step() -> None:
    found = cost(attention(), *ONLINE)
    # 5 per element of P; then O, 12 elements, once more
    assert found.vector_ops == 5 * 24 + 12
    assert cost(attention(), Hold("Q"), Hold("O"), *INSIDE).vector_ops == 5 * 24
    assert found.traffic == {"Q": (16, 0), "O": (0, 24), "K": (2 * 24, 0), "V": (2 * 36, 0)}
    # without arrays every dim is walked one by one: Q per l, K per i, P as output per k; P per j, V per i,
    # O per l; the rescaling reads and writes O once
    reads = (8 * 6 + 12 * 4 + 24 * (2 - 1)) + (24 * 3 + 18 * 4 + 12 * (6 - 1)) + 12
    assert found.buffer_read_bytes == 2 * reads + 24
    assert found.buffer_write_bytes == 2 * (24 * 2 + 12 * 6 + 12) + 16 + 48 + 72


def test_online_statistics_take_room_where_the_output_is_held() -> None:
    # Q 8, O 12 and two fp32 numbers per row of i: 2 · 8; P 16; then K 16 or V 24
    assert cost(attention(), *ONLINE).peak_buffer_bytes == 8 + 12 + 16 + 16 + 24
    # l in one step: no statistics
    nest = (Loop("i", 2, (Hold("Q"), Hold("O"), Loop("l", 6, INSIDE))),)
    assert cost(attention(), *nest).peak_buffer_bytes == 8 + 12 + 24 + 36


def test_adding_on_the_exponent_costs_energy_only() -> None:
    mul, add = cost(attention(), *ONLINE), cost(attention(), *ONLINE, accelerator=ADD)
    assert add.vector_ops == mul.vector_ops == 132
    assert add.energy.vector == mul.energy.vector == Fraction(132, 10)
    # 120 and 132 operations on 8 lanes
    assert (add.vector_cycles, mul.vector_cycles) == (15, 17)
    assert mul.buffer_read_bytes - add.buffer_read_bytes == 24
    assert mul.buffer_write_bytes - add.buffer_write_bytes == 24


def test_statistics_travel_with_an_output_that_is_revisited() -> None:
    nest = (Loop("l", 4, (Hold("Q"), *INSIDE[:4], Hold("O"), Compute("pv"))),)
    found = cost(attention(), *nest)
    # v = 2. Read once: 12 · 16 + 4 rows · 64 bits; written: 2 · 12 · 16 + 4 · 64 bits
    assert found.traffic["O"] == (448 // 8, 640 // 8)
    # P 32 with Q 16 and K 16; then P 32, V 24, O 24 and 4 · 8 of statistics
    assert found.peak_buffer_bytes == 32 + 24 + 24 + 32
    # statistics that travel are streamed as O is
    assert cost(attention(), *nest, accelerator=DOUBLE).peak_buffer_bytes == 32 + 2 * (24 + 24 + 32)


def test_statistics_that_stay_are_not_double_buffered() -> None:
    # 2 · (Q 8 + O 12 + V 24) + P 16 + statistics 16
    assert cost(attention(), *ONLINE, accelerator=DOUBLE).peak_buffer_bytes == 2 * 44 + 32


def test_online_normalize_scales_once_at_the_end() -> None:
    norm = Step("norm", "normalize", "rmsnorm", "k", tensor="X")
    whole = (Hold("Y"), Hold("A"), Hold("X"), Compute("a"))
    cut = (Hold("Y"), Hold("A"), Loop("k", 2, (Hold("X"), Compute("a"))))
    assert cost(matmul("fp16", norm), *whole).vector_ops == 4 * 24
    assert cost(matmul("fp16", norm), *cut).vector_ops == 4 * 24 + 20
    # Y 40, A 60, X 4·2 elements, statistics of 4 rows
    assert cost(matmul("fp16", norm), *cut).peak_buffer_bytes == 40 + 60 + 16 + 32


# --- residency, and several groups -------------------------------------------------------------------


def test_what_is_resident_moves_nothing_and_takes_its_room_whole() -> None:
    graph = ffn()
    group = Group(("b",), (Loop("m", 2, (Hold("H"), Hold("B"), Hold("Y"), Compute("b"))),))
    alone = evaluate_group(graph, ACCELERATOR, group)
    assert alone.traffic == {"H": (32, 0), "B": (80, 0), "Y": (0, 40)}
    assert alone.peak_buffer_bytes == 16 + 40 + 20
    kept = evaluate_group(graph, ACCELERATOR, group, resident=["H"])
    assert kept.traffic == {"B": (80, 0), "Y": (0, 40)}
    assert kept.peak_buffer_bytes == 32 + 40 + 20
    # A stays too, for a later group: 24 bytes more, no traffic
    beside = evaluate_group(graph, ACCELERATOR, group, resident=["H"], beside=["A"])
    assert (beside.traffic, beside.peak_buffer_bytes) == (kept.traffic, 92 + 24)


def test_what_stays_resident_is_not_written() -> None:
    group = Group(("a",), (Hold("X"), Hold("A"), Hold("H"), Compute("a")))
    assert evaluate_group(ffn(), ACCELERATOR, group).traffic["H"] == (0, 32)
    assert "H" not in evaluate_group(ffn(), ACCELERATOR, group, resident=["H"]).traffic


def test_groups_add_up_but_for_the_peak() -> None:
    graph = ffn()
    config = ArrayConfig(("m", 2), ("f", 2), None, "k", (2, 2))
    first = evaluate_group(
        graph, ACCELERATOR, Group(("a",), (Hold("X"), Hold("A"), Hold("H"), Compute("a")), {"a": config})
    )
    config = ArrayConfig(("m", 2), ("n", 2), None, "f", (2, 2))
    second = evaluate_group(
        graph, ACCELERATOR, Group(("b",), (Hold("H"), Hold("B"), Hold("Y"), Compute("b")), {"b": config})
    )
    total = add_metrics([first, second])
    assert total.traffic == {"X": (24, 0), "A": (24, 0), "H": (32, 32), "B": (40, 0), "Y": (0, 40)}
    assert total.peak_buffer_bytes == max(24 + 24 + 32, 32 + 40 + 40)
    # a: m 2 · f 2 · k 3; b: m 2 · n 3 · f 4
    assert total.array_cycles == 12 + 24
    # each group has a bound of its own
    assert total.latency_cycles == first.latency_cycles + second.latency_cycles
    assert total.energy.total == first.energy.total + second.energy.total
    assert total.edp == total.energy.total * total.latency_cycles
    assert total.cycles == {name: first.cycles[name] + second.cycles[name] for name in first.cycles}
