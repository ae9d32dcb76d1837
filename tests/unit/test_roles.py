"""What tensors are to a group, and which row statistics its ops meet."""

from __future__ import annotations

import pytest
from nests import SOFTMAX, build, einsum, pointwise

from mmee_solver.roles import Roles, RowStep, carried_steps, group_roles, row_steps
from mmee_solver.workload import Graph, Op, Step

RMSNORM = Step("norm", "normalize", "rmsnorm", "k", tensor="X")


def layer(outputs: tuple[str, ...] = ()) -> Graph:
    """H = X·A, then Y = H·B + X, then Z = Y·C."""
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fk", "Y": "mk", "C": "kn", "Z": "mn"}
    ops = (
        einsum("up", "X A", "H"),
        einsum("down", "H B", "Y", pointwise("add", "X")),
        einsum("out", "Y C", "Z"),
    )
    return build(spec, {"m": 2, "k": 3, "f": 4, "n": 5}, *ops, outputs=outputs)


@pytest.mark.parametrize(
    ("ops", "roles"),
    [
        (["up"], Roles(("X", "A"), (), ("H",))),
        (["up", "down"], Roles(("X", "A", "B"), ("H",), ("Y",))),
        (["down", "out"], Roles(("H", "B", "X", "C"), ("Y",), ("Z",))),
        (["up", "out"], Roles(("X", "A", "Y", "C"), (), ("H", "Z"))),
        (["up", "down", "out"], Roles(("X", "A", "B", "C"), ("H", "Y"), ("Z",))),
    ],
)
def test_roles_of_tensors(ops: list[str], roles: Roles) -> None:
    assert group_roles(layer(), ops) == roles


def test_a_graph_output_that_is_read_inside_is_internal_and_leaves() -> None:
    roles = group_roles(layer(outputs=("Y", "Z")), ["down", "out"])
    assert roles == Roles(("H", "B", "X", "C"), ("Y",), ("Y", "Z"))


def test_roles_do_not_depend_on_the_order_of_names() -> None:
    assert group_roles(layer(), ["down", "up"]) == group_roles(layer(), ["up", "down"])


def test_an_output_carries_its_op_if_that_is_row_wise() -> None:
    own = Op("s", "softmax", ("S",), "P", axis="l")
    assert carried_steps(own) == (Step("s", "softmax", axis="l"),)
    assert carried_steps(einsum("a", "Q K", "P", SOFTMAX, pointwise("scale"))) == (
        SOFTMAX,
        pointwise("scale"),
    )
    assert carried_steps(Op("f", "elementwise", ("S",), "P", "relu")) == ()


def attention(*steps: Step, output: str = "ij", value: str = "lj") -> Graph:
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": value, "O": output}
    spec |= {name: "l" for step in steps for name in step.inputs}
    sizes = dict.fromkeys("ijkl", 2)
    return build(spec, sizes, einsum("qk", "Q K", "P", *steps), einsum("pv", "P V", "O"))


def test_a_softmax_that_its_reader_sums_over_can_run_online() -> None:
    rows = row_steps(attention(SOFTMAX), ["qk", "pv"])
    assert rows == (RowStep("pv", "P", SOFTMAX, ("i",), deferrable=True),)


def test_statistics_travel_beside_a_tensor_that_leaves_its_group() -> None:
    assert row_steps(attention(SOFTMAX), ["qk"]) == ()
    assert row_steps(attention(SOFTMAX), ["pv"]) == ()


@pytest.mark.parametrize("function", ["mul", "scale"])
def test_scaling_after_statistics_can_wait(function: str) -> None:
    (row,) = row_steps(attention(SOFTMAX, pointwise(function, "g")), ["qk", "pv"])
    assert row.deferrable


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((SOFTMAX, pointwise("add", "b")), id="a bias after it"),
        pytest.param((SOFTMAX, pointwise("relu")), id="another function after it"),
        pytest.param((SOFTMAX, Step("norm", "normalize", "rmsnorm", "i")), id="a second statistic"),
        pytest.param((Step("norm", "normalize", "rmsnorm", "l"), SOFTMAX), id="two over one axis"),
    ],
)
def test_what_cannot_wait_for_the_end_of_the_sum(steps: tuple[Step, ...]) -> None:
    assert not any(row.deferrable for row in row_steps(attention(*steps), ["qk", "pv"]))


def test_the_axis_must_be_summed_over() -> None:
    # O[i,l] = P[i,l] · V[l]: nothing sums over l
    (row,) = row_steps(attention(SOFTMAX, output="il", value="l"), ["qk", "pv"])
    assert not row.deferrable


def test_the_output_must_tell_the_rows_apart() -> None:
    # O[j] = sum over i and l: one output element adds up several rows
    (row,) = row_steps(attention(SOFTMAX, output="j"), ["qk", "pv"])
    assert not row.deferrable


def test_a_prologue_is_met_wherever_its_input_comes_from() -> None:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "kf", "G": "mf"}
    ops = (einsum("a", "X A", "H", RMSNORM), einsum("b", "X B", "G"))
    graph = build(spec, {"m": 2, "k": 3, "f": 4}, *ops)
    row = RowStep("a", "X", RMSNORM, ("m",), deferrable=True)
    assert row_steps(graph, ["a"]) == (row,)
    assert row_steps(graph, ["a", "b"]) == (row,)


def test_an_operand_needs_whole_rows() -> None:
    spec = {"Q": "ik", "K": "lk", "P": "il", "X": "im", "W": "ml", "Y": "il"}
    ops = (einsum("qk", "Q K", "P", SOFTMAX), einsum("gate", "X W", "Y", pointwise("mul", "P")))
    graph = build(spec, dict.fromkeys("iklm", 2), *ops)
    assert row_steps(graph, ["qk", "gate"]) == (RowStep("gate", "P", SOFTMAX, (), deferrable=False),)


def test_every_reader_meets_the_statistics() -> None:
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij", "W": "ln", "R": "in"}
    ops = (einsum("qk", "Q K", "P", SOFTMAX), einsum("pv", "P V", "O"), einsum("pw", "P W", "R"))
    graph = build(spec, dict.fromkeys("ijkln", 2), *ops)
    assert [row.consumer for row in row_steps(graph, ["qk", "pv", "pw"])] == ["pv", "pw"]
