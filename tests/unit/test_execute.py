"""Runs that are counted by hand, and what only the executor can notice."""

from __future__ import annotations

import numpy as np
import pytest
from nests import SOFTMAX, arrays, build, einsum, pointwise

from mmee_solver.errors import MappingError
from mmee_solver.execute import Execution, run_group
from mmee_solver.nest import Compute, Group, Hold, Loop, Nest
from mmee_solver.numerics import plain
from mmee_solver.workload import Graph, Op, Step


def run(graph: Graph, *nest: object, double_buffered: bool = False) -> Execution:
    """Run a nest of all ops, and compare what leaves with plain numpy."""
    values = arrays(graph)
    group = Group(tuple(op.name for op in graph.ops), nest)  # type: ignore[arg-type]
    found = run_group(graph, group, values, double_buffered)
    expected = plain(graph, values)
    for name, result in found.arrays.items():
        np.testing.assert_allclose(result, expected[name], rtol=1e-9, atol=1e-11)
    return found


def matmul(*steps: Step) -> Graph:
    """Y[m,n] = X[m,k] · A[k,n] with m, k, n = 4, 6, 5."""
    spec = {"X": "mk", "A": "kn", "Y": "mn"}
    return build(spec, {"m": 4, "k": 6, "n": 5}, einsum("a", "X A", "Y", *steps))


def test_a_run_counts_what_it_copies() -> None:
    found = run(matmul(), Loop("k", 4, (Hold("X"), Hold("A"), Hold("Y"), Compute("a"))))
    # k by 4: 4 + 2. X and A once in two parts; Y, 20 elements of 2 bytes, back and forth once
    assert found.traffic == {"X": (48, 0), "A": (60, 0), "Y": (40, 80)}
    assert (found.dram_read_bytes, found.dram_write_bytes) == (148, 80)
    # X 4·4, A 4·5, Y 4·5 elements
    assert found.peak_buffer_bytes == 2 * (16 + 20 + 20)


def test_streamed_tiles_take_twice_their_room_when_double_buffered() -> None:
    graph = build(
        {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"},
        {"m": 4, "k": 3, "f": 4, "n": 5},
        einsum("a", "X A", "H"),
        einsum("b", "H B", "Y"),
    )
    nest = (Hold("H"), Hold("X"), Hold("A"), Compute("a"), Hold("B"), Hold("Y"), Compute("b"))
    assert run(graph, *nest).peak_buffer_bytes == 32 + 40 + 40
    assert run(graph, *nest, double_buffered=True).peak_buffer_bytes == 32 + 2 * (40 + 40)


def attention(*steps: Step, value: str = "lj", **sizes: int) -> Graph:
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": value, "O": "ij"}
    spec |= {name: "l" for step in steps for name in step.inputs}
    sizes = {"i": 4, "l": 6, "k": 2, "j": 3} | sizes
    return build(spec, sizes, einsum("qk", "Q K", "P", *steps), einsum("pv", "P V", "O"))


INSIDE: Nest = (Hold("P"), Hold("Q"), Hold("K"), Compute("qk"), Hold("V"))


def test_online_softmax_carries_two_numbers_per_row() -> None:
    found = run(attention(SOFTMAX), Loop("l", 4, (*INSIDE, Hold("O"), Compute("pv"))))
    # O, 12 elements of 16 bits and 4 rows of 64, is read once; the first write has no statistics with it
    assert found.traffic["O"] == ((12 * 16 + 4 * 64) // 8, (2 * 12 * 16 + 4 * 64) // 8)
    # P 4·4, V 4·3, O 12 elements of 2 bytes; statistics of 4 rows
    assert found.peak_buffer_bytes == 32 + 24 + 24 + 32


@pytest.mark.parametrize(
    "step", [SOFTMAX, Step("n", "normalize", "rmsnorm", "l"), Step("n", "normalize", "layernorm", "l")]
)
def test_another_reduction_does_not_count_the_row_again(step: Step) -> None:
    graph = attention(step, value="lqj", q=5)
    inner = (*INSIDE, Hold("O"), Loop("q", 2, (Compute("pv"),)))
    run(graph, Loop("l", 4, inner))
    # q outside of the step: P is kept and met again by each part of q
    run(graph, Loop("l", 2, (*INSIDE, Loop("q", 1, (Hold("O"), Compute("pv"))))))


def test_recomputing_under_the_hold_of_the_output_does_not_add_up() -> None:
    graph = build(
        {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"},
        {"m": 2, "k": 4, "f": 3, "n": 5},
        einsum("a", "X A", "H"),
        einsum("b", "H B", "Y"),
    )
    # each part of k is computed for every step of n, which H lacks
    first = Loop("k", 2, (Hold("X"), Loop("n", 1, (Hold("A"), Loop("k", 1, (Compute("a"),))))))
    found = run(graph, Hold("H"), first, Hold("B"), Hold("Y"), Compute("b"))
    # A, 12 elements of 2 bytes, for every of 5 steps
    assert found.traffic["A"] == (5 * 24, 0)


def test_a_recomputed_softmax_starts_anew() -> None:
    run(attention(SOFTMAX), Loop("j", 2, (Hold("O"), Loop("l", 4, (*INSIDE, Compute("pv"))))))


def test_an_operand_sees_its_statistics() -> None:
    spec = {"Q": "ik", "K": "lk", "P": "il", "X": "im", "W": "ml", "Y": "il"}
    ops = (einsum("qk", "Q K", "P", SOFTMAX), einsum("gate", "X W", "Y", pointwise("mul", "P")))
    graph = build(spec, {"i": 3, "k": 2, "l": 5, "m": 4}, *ops)
    qk = (Hold("Q"), Hold("K"), Compute("qk"))
    gate = (Hold("X"), Hold("W"), Hold("Y"), Compute("gate"))
    run(graph, Loop("i", 2, (Hold("P"), *qk, Loop("l", 2, gate))))


def test_an_operand_of_a_prologue_may_be_made_inside() -> None:
    spec = {"A": "mp", "B": "pk", "G": "mk", "X": "mk", "C": "kn", "Y": "mn"}
    gated = einsum("y", "X C", "Y", pointwise("mul", "G", tensor="X"))
    graph = build(spec, {"m": 4, "p": 2, "k": 5, "n": 3}, einsum("g", "A B", "G"), gated)
    made = (Hold("G"), Hold("A"), Hold("B"), Compute("g"))
    run(graph, Loop("m", 3, (*made, Hold("Y"), Loop("k", 2, (Hold("X"), Hold("C"), Compute("y"))))))


def test_two_statistics_of_two_axes_need_all_of_both() -> None:
    graph = attention(SOFTMAX, Step("n", "normalize", "layernorm", "i"))
    below = (Hold("O"), Loop("l", 2, (Hold("V"), Loop("i", 3, (Compute("pv"),)))))
    run(graph, *INSIDE[:4], *below)


def test_an_operand_that_the_op_also_reads() -> None:
    spec = {"X": "mk", "A": "kn", "B": "mn", "Y": "mn"}
    op = einsum("a", "X A B", "Y", pointwise("add", "B"))
    graph = build(spec, {"m": 4, "k": 3, "n": 5}, op)
    run(graph, Hold("Y"), Hold("B"), Loop("k", 2, (Hold("X"), Hold("A"), Loop("n", 2, (Compute("a"),)))))


def test_ops_without_sum_run_too() -> None:
    softmax = Op("s", "softmax", ("S",), "P", axis="l")
    add = Op("f", "elementwise", ("P", "c"), "R", "add")
    graph = build({"S": "il", "P": "il", "c": "l", "R": "il"}, {"i": 3, "l": 4}, softmax, add)
    found = run(graph, Loop("i", 2, (Hold("P"), Hold("S"), Compute("s"), Hold("c"), Hold("R"), Compute("f"))))
    # c, 4 elements of 2 bytes, for both steps of i
    assert found.traffic == {"S": (24, 0), "c": (16, 0), "R": (0, 24)}


# --- refusals ----------------------------------------------------------------------------------------


def refused(graph: Graph, *nest: object) -> str:
    with pytest.raises(MappingError) as caught:
        run(graph, *nest)
    return str(caught.value)


def test_what_is_needed_must_be_held() -> None:
    assert refused(matmul(), Hold("X"), Hold("Y"), Compute("a")) == '"a" needs "A", which is not held there'


def test_rows_that_cannot_wait_must_be_whole() -> None:
    graph = attention(SOFTMAX, pointwise("add", "b"))
    message = '"P" must span "l": "pv" cannot run "softmax" online'
    assert refused(graph, Loop("l", 4, (Hold("b"), *INSIDE, Hold("O"), Compute("pv")))) == message


def test_two_statistics_do_not_run_online_at_once() -> None:
    spec = {"X": "mk", "Z": "mk", "A": "kn", "Y": "mn"}
    norms = [Step(f"norm {t}", "normalize", "rmsnorm", "k", tensor=t) for t in "XZ"]
    graph = build(spec, {"m": 4, "k": 6, "n": 5}, einsum("a", "X Z A", "Y", *norms))
    nest = (Hold("Y"), Loop("k", 2, (Hold("X"), Hold("Z"), Hold("A"), Compute("a"))))
    assert refused(graph, *nest) == '"a" would run the statistics of X and Z online at once'
