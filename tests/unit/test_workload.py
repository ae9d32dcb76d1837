"""Workload graphs: what they derive, and every way in which one can be wrong."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmee_solver.errors import InputError
from mmee_solver.workload import MAX_DIM_SIZE, Graph, Op, Step, Tensor, vector_ops_per_element

DIMS = {"i": 4, "k": 3, "l": 5, "j": 2}
SHAPES = {
    "Q": ("i", "k"),
    "K": ("l", "k"),
    "S": ("i", "l"),
    "P": ("i", "l"),
    "V": ("l", "j"),
    "O": ("i", "j"),
    "R": ("l",),
}
QK = Op("qk", "einsum", ("Q", "K"), "S")
SOFTMAX = Op("softmax", "softmax", ("S",), "P", axis="l")
PV = Op("pv", "einsum", ("P", "V"), "O")
FOLDED = replace(QK, output="P", epilogue=(Step("softmax", "softmax", axis="l"),))


def tensors(**dtypes: str) -> dict[str, Tensor]:
    return {name: Tensor(name, dims, dtypes.get(name, "fp16")) for name, dims in SHAPES.items()}


def graph(*ops: Op, outputs: tuple[str, ...] = (), **changes: object) -> Graph:
    parts: dict[str, object] = {
        "name": "g",
        "dims": DIMS,
        "tensors": tensors(),
        "ops": ops,
        "outputs": outputs,
    }
    return Graph(**(parts | changes))  # type: ignore[arg-type]


def error_of(*ops: Op, outputs: tuple[str, ...] = (), **changes: object) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        graph(*ops, outputs=outputs, **changes)
    assert caught.value.file == ""
    return caught.value.place, caught.value.message


def test_attention_derives_what_it_is_made_of() -> None:
    attention = graph(QK, SOFTMAX, PV)
    assert attention.outputs == ("O",)
    assert attention.inputs() == ("Q", "K", "V")
    assert attention.producer("S") == "qk"
    assert attention.producer("Q") is None
    assert attention.consumers("S") == ("softmax",)
    assert attention.consumers("O") == ()
    assert attention.op("pv") is attention.ops[2]
    assert attention.op_dims(PV) == ("i", "l", "j")
    assert attention.reduction_dims(PV) == ("l",)
    assert attention.reduction_dims(SOFTMAX) == ()
    assert attention.elements("Q") == 12
    assert attention.bits("Q") == 192
    # Q 24, K 30, V 20, O 16
    assert attention.compulsory_bytes() == 90


def test_no_op_of_that_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        graph(QK).op("nothing")


def test_compulsory_bytes_round_up_tensor_by_tensor() -> None:
    narrow = graph(QK, tensors=tensors(Q="int4", K="int4", S="int4"), dims={**DIMS, "k": 1, "i": 3, "l": 1})
    # Q 3 × 4 bits → 2, K 4 bits → 1, S 12 bits → 2
    assert narrow.compulsory_bytes() == 5


def test_a_scalar_has_one_element() -> None:
    total = Tensor("T", (), "fp32")
    summed = Op("sum", "einsum", ("Q",), "T")
    whole = graph(summed, tensors=tensors() | {"T": total})
    assert whole.elements("T") == 1
    assert whole.reduction_dims(summed) == ("i", "k")


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("fp32", 32), ("fp16", 16), ("bf16", 16), ("fp8", 8), ("int32", 32), ("int8", 8), ("int4", 4)],
)
def test_bits_of_a_tensor(dtype: str, bits: int) -> None:
    assert Tensor("T", ("i",), dtype).bits == bits


@given(st.permutations([QK, SOFTMAX, PV]))
def test_ops_come_in_topological_order_however_they_are_given(ops: list[Op]) -> None:
    assert [op.name for op in graph(*ops).ops] == ["qk", "softmax", "pv"]


def test_independent_ops_keep_the_order_given() -> None:
    other = Op("other", "einsum", ("R", "V"), "O")
    late = Op("late", "elementwise", ("R",), "P", function="exp")
    shapes = tensors() | {"O": Tensor("O", ("j",), "fp16"), "P": Tensor("P", ("l",), "fp16")}
    ops = graph(late, QK, other, tensors=shapes).ops
    assert [op.name for op in ops] == ["late", "qk", "other"]


def test_outputs_given_are_kept_and_may_be_read_in_the_graph() -> None:
    assert graph(QK, SOFTMAX, PV, outputs=("P", "O")).outputs == ("P", "O")
    assert graph(QK, SOFTMAX, PV, outputs=("P",)).compulsory_bytes() == 24 + 30 + 20 + 40


def test_as_networkx_the_ops_are_nodes_and_the_tensors_edges() -> None:
    net = graph(QK, SOFTMAX, PV).to_networkx()
    assert isinstance(net, nx.DiGraph)
    assert net.name == "g"
    assert list(net.nodes) == ["qk", "softmax", "pv"]
    assert net.nodes["qk"]["op"] == QK
    assert list(net.edges(data="tensor")) == [("qk", "softmax", "S"), ("softmax", "pv", "P")]
    assert nx.is_directed_acyclic_graph(net)


def test_values_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        QK.name = "x"  # type: ignore[misc]


def test_what_an_op_reads() -> None:
    gated = Op(
        "mm",
        "einsum",
        ("Q", "K", "Q"),
        "S",
        prologue=(Step("scale", "elementwise", "mul", inputs=("R",), tensor="K"),),
        epilogue=(Step("add", "elementwise", "add", inputs=("P", "K")),),
    )
    assert gated.operands == ("R", "P")
    assert gated.reads == ("Q", "K", "R", "P")
    assert gated.tensors == ("Q", "K", "R", "P", "S")


@pytest.mark.parametrize(
    ("kind", "function", "expected"),
    [
        ("softmax", "", 5),
        ("normalize", "rmsnorm", 4),
        ("elementwise", "exp", 4),
        ("elementwise", "silu", 4),
        ("elementwise", "gelu", 4),
        ("elementwise", "sigmoid", 4),
        ("elementwise", "tanh", 4),
        ("elementwise", "add", 1),
        ("elementwise", "rope", 1),
    ],
)
def test_vector_operations_per_element(kind: str, function: str, expected: int) -> None:
    assert vector_ops_per_element(kind, function) == expected
    step = Step("s", kind, function, axis="l")
    assert step.vector_ops == expected
    assert step.row_wise == (kind != "elementwise")


UNKNOWN_KIND = (
    'unknown kind "einsun"; expected one of einsum, elementwise, softmax, normalize — did you mean "einsum"?'
)
UNKNOWN_DTYPE = (
    'unknown dtype "fp61"; expected one of fp32, fp16, bf16, fp8, int32, int8, int4 — did you mean "fp16"?'
)
GELU = Op("gelu", "elementwise", ("S",), "P", function="gelu")


@pytest.mark.parametrize(
    ("ops", "place", "message"),
    [
        ((), "ops", "the graph has no op; expected at least one"),
        ((QK, replace(PV, name="qk")), "ops[1].name", 'the name "qk" is taken by an op before it'),
        ((replace(QK, kind="einsun"),), "ops[0].kind", UNKNOWN_KIND),
        ((replace(QK, inputs=()),), "ops[0].inputs", "no inputs; expected at least one"),
        ((QK, replace(PV, inputs=("P", "W"))), "ops[1].inputs[1]", 'no tensor named "W"'),
        ((replace(QK, output="SS"),), "ops[0].output", 'no tensor named "SS" — did you mean "S"?'),
        (
            (QK, replace(SOFTMAX, output="S", inputs=("P",))),
            "ops[1].output",
            '"S" is made by "qk" already; expected one producer',
        ),
        ((replace(QK, inputs=("Q",)),), "ops[0].output", 'output dim 1 "l" of "S" is in no input'),
        ((replace(GELU, function=""),), "ops[0].function", 'no "function"; expected e.g. add, mul, gelu'),
        (
            (replace(GELU, inputs=("S", "V")),),
            "ops[0].inputs[1]",
            '"V" has dim "j", which "P" lacks',
        ),
        ((replace(SOFTMAX, axis=""),), "ops[0].axis", 'no "axis"; expected a dim of "P": i, l'),
        ((replace(SOFTMAX, axis="j"),), "ops[0].axis", 'axis "j" is no dim of "P"'),
        ((replace(SOFTMAX, inputs=("S", "R")),), "ops[0].inputs", "2 inputs; softmax takes one"),
        ((replace(QK, axis="l"),), "ops[0].axis", '"l"; only softmax and normalize have an axis'),
        ((replace(GELU, axis="l"),), "ops[0].axis", '"l"; only softmax and normalize have an axis'),
        ((replace(QK, function="relu"),), "ops[0].function", '"relu"; an einsum has no function'),
        ((replace(GELU, output="S"),), "ops", "a cycle runs through gelu; expected a DAG"),
        (
            (GELU, replace(SOFTMAX, inputs=("P",), output="S")),
            "ops",
            "a cycle runs through gelu, softmax; expected a DAG",
        ),
        (
            (replace(SOFTMAX, epilogue=(Step("g", "elementwise", "gelu"),)),),
            "ops[0].epilogue",
            '"softmax" is softmax; only an einsum has steps',
        ),
    ],
)
def test_wrong_ops(ops: tuple[Op, ...], place: str, message: str) -> None:
    assert error_of(*ops) == (place, message)


@pytest.mark.parametrize(
    ("part", "step", "place", "message"),
    [
        (
            "epilogue",
            Step("s", "einsum"),
            "kind",
            'kind "einsum"; expected one of elementwise, softmax, normalize',
        ),
        ("epilogue", Step("s", "elementwise"), "function", 'no "function"; expected e.g. add, mul, gelu'),
        ("epilogue", Step("s", "softmax", axis="k"), "axis", 'axis "k" is no dim of "S"'),
        ("epilogue", Step("s", "softmax"), "axis", 'no "axis"; expected a dim of "S": i, l'),
        (
            "epilogue",
            Step("s", "softmax", axis="l", inputs=("R",)),
            "inputs",
            "1; softmax takes no further inputs",
        ),
        ("epilogue", Step("s", "elementwise", "add", inputs=("X",)), "inputs[0]", 'no tensor named "X"'),
        (
            "epilogue",
            Step("s", "elementwise", "add", inputs=("R", "V")),
            "inputs[1]",
            '"V" has dim "j", which "S" lacks',
        ),
        (
            "epilogue",
            Step("s", "elementwise", "add", tensor="Q"),
            "tensor",
            '"Q"; an epilogue works on the output alone',
        ),
        ("prologue", Step("s", "elementwise", "exp", tensor="V"), "tensor", '"V" is no input of "qk"'),
        ("prologue", Step("s", "elementwise", "exp", tensor="no"), "tensor", '"no" is no input of "qk"'),
        ("prologue", Step("s", "elementwise", "exp"), "tensor", '"" is no input of "qk"'),
        ("prologue", Step("s", "normalize", axis="l", tensor="Q"), "axis", 'axis "l" is no dim of "Q"'),
        (
            "prologue",
            Step("s", "elementwise", "mul", inputs=("R",), tensor="Q"),
            "inputs[0]",
            '"R" has dim "l", which "Q" lacks',
        ),
    ],
)
def test_wrong_steps(part: str, step: Step, place: str, message: str) -> None:
    good = Step("first", "elementwise", "exp", tensor="K" if part == "prologue" else "")
    wrong = replace(QK, **{part: (good, step)})
    assert error_of(wrong) == (f"ops[0].{part}[1].{place}", message)


def test_an_unknown_operand_of_a_later_step_is_an_input_error() -> None:
    steps = (
        Step("a", "elementwise", "mul", inputs=("Q",), tensor="Q"),
        Step("b", "elementwise", "mul", inputs=("nowhere",), tensor="K"),
    )
    assert error_of(replace(QK, prologue=steps))[0] == "ops[0].prologue[1].inputs[0]"


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"dims": {**DIMS, "l": 0}}, "dims.l", "size 0; expected a whole number of at least 1"),
        ({"dims": {**DIMS, "l": -3}}, "dims.l", "size -3; expected a whole number of at least 1"),
        (
            {"dims": {**DIMS, "l": MAX_DIM_SIZE + 1}},
            "dims.l",
            "size 16777217 is too large; at most 16777216 is supported",
        ),
        (
            {"dims": {"i": 4, "ll": 5, "k": 3}},
            "tensors.K.dims[0]",
            'dim "l" has no size in "dims" — did you mean "ll"?',
        ),
        (
            {"tensors": tensors() | {"X": Tensor("X", ("i", "l", "i"), "fp16")}},
            "tensors.X.dims",
            "a dim stands twice in ['i', 'l', 'i']",
        ),
        ({"tensors": tensors(V="fp61")}, "tensors.V.dtype", UNKNOWN_DTYPE),
        ({"dtype": "fp61"}, "dtype", UNKNOWN_DTYPE),
        ({"outputs": ("X",)}, "outputs[0]", 'no tensor named "X"'),
        ({"outputs": ("S", "Q")}, "outputs[1]", '"Q" is made by no op'),
        ({"outputs": ("S", "S")}, "outputs[1]", '"S" stands twice; expected it once'),
    ],
)
def test_wrong_parts(changes: dict[str, object], place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        graph(QK, **changes)  # type: ignore[arg-type]
    assert (caught.value.place, caught.value.message) == (place, message)


def test_the_largest_dim_is_accepted() -> None:
    assert graph(QK, dims={**DIMS, "l": MAX_DIM_SIZE}).elements("S") == 4 * MAX_DIM_SIZE


def test_an_error_can_be_given_the_name_of_its_file() -> None:
    with pytest.raises(InputError) as caught:
        graph(QK, outputs=("X",))
    assert str(caught.value.in_file("g.json")) == 'g.json: outputs[0]: no tensor named "X"'
