"""Folding: where each op goes, and that the folded graph computes the same numbers."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmee_solver.fold import fold
from mmee_solver.workload import Graph, Op, Step, Tensor

Array = np.ndarray


def make(shapes: dict[str, str], *ops: Op, outputs: tuple[str, ...] = ()) -> Graph:
    """A graph whose tensors have one-letter dims, each of its own size."""
    dims = {dim: 2 + index for index, dim in enumerate(sorted({d for dims in shapes.values() for d in dims}))}
    tensors = {name: Tensor(name, tuple(dims_), "fp16") for name, dims_ in shapes.items()}
    return Graph("g", dims, tensors, ops, outputs)


def einsum(name: str, inputs: str, output: str) -> Op:
    return Op(name, "einsum", tuple(inputs.split()), output)


def pointwise(name: str, inputs: str, output: str, function: str = "add") -> Op:
    return Op(name, "elementwise", tuple(inputs.split()), output, function)


def summary(graph: Graph) -> dict[str, str]:
    """What each op reads and makes and which steps it carries, in short."""
    text = {}
    for op in graph.ops:
        before = "".join(f"{step.name}({' '.join((step.tensor, *step.inputs))}) " for step in op.prologue)
        after = "".join(f" {' '.join((step.name, *step.inputs))}" for step in op.epilogue)
        text[op.name] = f"{before}{' '.join(op.inputs)} → {op.output}{after and ' :'}{after}"
    return text


# --- where each op goes ------------------------------------------------------------------------------


def test_attention_folds_its_softmax_into_the_first_matmul() -> None:
    graph = make(
        {"Q": "ik", "K": "lk", "S": "il", "P": "il", "V": "lj", "O": "ij"},
        einsum("qk", "Q K", "S"),
        Op("softmax", "softmax", ("S",), "P", axis="l"),
        einsum("pv", "P V", "O"),
    )
    folded = fold(graph)
    assert summary(folded) == {"qk": "Q K → P : softmax", "pv": "P V → O"}
    assert folded.ops[0].epilogue == (Step("softmax", "softmax", axis="l"),)
    assert "S" not in folded.tensors
    assert folded.outputs == ("O",)


def test_a_chain_folds_one_after_the_other() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "C": "ij", "D": "ij", "E": "ij", "F": "ij"},
        einsum("mm", "A B", "C"),
        pointwise("scale", "C", "D", "scale"),
        pointwise("gelu", "D", "E", "gelu"),
        Op("norm", "normalize", ("E",), "F", "rmsnorm", "j"),
    )
    folded = fold(graph)
    assert summary(folded) == {"mm": "A B → F : scale gelu norm"}
    assert folded.ops[0].epilogue[2] == Step("norm", "normalize", "rmsnorm", "j")
    assert set(folded.tensors) == {"A", "B", "F"}


def test_a_residual_becomes_an_operand() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "C": "ij", "R": "ij", "D": "ij"},
        einsum("mm", "A B", "C"),
        pointwise("add", "R C", "D"),
    )
    folded = fold(graph)
    assert summary(folded) == {"mm": "A B → D : add R"}
    assert folded.ops[0].reads == ("A", "B", "R")
    assert folded.inputs() == ("A", "B", "R")


def test_a_bias_of_fewer_dims_becomes_an_operand() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "C": "ij", "b": "j", "D": "ij"},
        einsum("mm", "A B", "C"),
        pointwise("bias", "C b", "D"),
    )
    assert summary(fold(graph)) == {"mm": "A B → D : bias b"}


def test_a_gate_folds_into_the_later_of_two_producers() -> None:
    shapes = {"X": "ik", "U": "kj", "G": "kj", "u": "ij", "g": "ij", "s": "ij", "H": "ij"}
    ops = (
        einsum("gate", "X G", "g"),
        einsum("up", "X U", "u"),
        pointwise("silu", "g", "s", "silu"),
        pointwise("mul", "s u", "H", "mul"),
    )
    # silu is folded into gate; what gate then makes comes later than what up makes
    assert summary(fold(make(shapes, *ops))) == {"gate": "X G → H : silu mul u", "up": "X U → u"}
    plain = (ops[0], ops[1], pointwise("mul", "g u", "H", "mul"))
    assert summary(fold(make(shapes, *plain))) == {"gate": "X G → g", "up": "X U → H : mul g"}


def test_an_input_read_twice_carries_nothing() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "C": "ij", "D": "ij"},
        einsum("mm", "A B", "C"),
        pointwise("square", "C C", "D", "mul"),
    )
    assert summary(fold(graph)) == {"mm": "A B → C", "square": "C C → D"}


def test_another_consumer_of_the_input_makes_it_a_prologue() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "C": "ij", "D": "ij", "W": "jm", "O": "im", "E": "ij"},
        einsum("mm", "A B", "C"),
        pointwise("gelu", "C", "D", "gelu"),
        einsum("down", "D W", "O"),
        pointwise("exp", "C", "E", "exp"),
    )
    folded = fold(graph)
    assert summary(folded) == {"mm": "A B → C", "down": "gelu(C) C W → O", "exp": "C → E"}
    assert folded.ops[1].prologue == (Step("gelu", "elementwise", "gelu", tensor="C"),)


def test_a_graph_output_is_not_folded_away() -> None:
    shapes = {"A": "ik", "B": "kj", "C": "ij", "D": "ij", "W": "jm", "O": "im"}
    ops = (einsum("mm", "A B", "C"), pointwise("gelu", "C", "D", "gelu"), einsum("down", "D W", "O"))
    kept = fold(make(shapes, *ops, outputs=("C", "O")))
    assert summary(kept) == {"mm": "A B → C", "down": "gelu(C) C W → O"}
    # U an output: an epilogue is all it can be
    both = fold(make(shapes, *ops, outputs=("D", "O")))
    assert summary(both) == {"mm": "A B → D : gelu", "down": "D W → O"}
    # T and U both outputs: it stays
    alone = fold(make(shapes, *ops, outputs=("C", "D", "O")))
    assert summary(alone) == {"mm": "A B → C", "gelu": "C → D", "down": "D W → O"}


def test_a_prologue_goes_into_every_consumer() -> None:
    graph = make(
        {"X": "ik", "N": "ik", "Wq": "kj", "Wk": "kl", "Q": "ij", "K": "il"},
        Op("norm", "normalize", ("X",), "N", "rmsnorm", "k"),
        einsum("q", "N Wq", "Q"),
        einsum("k", "Wk N", "K"),
    )
    folded = fold(graph)
    assert summary(folded) == {"q": "norm(X) X Wq → Q", "k": "norm(X) Wk X → K"}
    assert folded.inputs() == ("X", "Wq", "Wk")


def test_a_chain_of_prologues_keeps_its_order() -> None:
    graph = make(
        {"X": "ik", "Y": "ik", "b": "k", "Z": "ik", "W": "kj", "O": "ij"},
        Op("norm", "normalize", ("X",), "Y", "layernorm", "k"),
        pointwise("bias", "Y b", "Z"),
        einsum("mm", "Z W", "O"),
    )
    assert summary(fold(graph)) == {"mm": "norm(X) bias(X b) X W → O"}


def test_prologues_on_both_inputs() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "a": "ik", "b": "kj", "O": "ij"},
        pointwise("fa", "A", "a", "exp"),
        pointwise("fb", "B", "b", "relu"),
        einsum("mm", "a b", "O"),
    )
    assert summary(fold(graph)) == {"mm": "fa(A) fb(B) A B → O"}


def test_one_consumer_that_is_no_einsum_keeps_the_op() -> None:
    graph = make(
        {"X": "ik", "N": "ik", "W": "kj", "Q": "ij", "R": "ik"},
        Op("norm", "normalize", ("X",), "N", "rmsnorm", "k"),
        einsum("q", "N W", "Q"),
        pointwise("add", "N X", "R"),
    )
    assert summary(fold(graph)) == {"norm": "X → N", "q": "N W → Q", "add": "N X → R"}


def test_a_consumer_that_reads_both_sides_keeps_the_op() -> None:
    graph = make(
        {"X": "ik", "N": "ik", "O": "i"},
        pointwise("exp", "X", "N", "exp"),
        einsum("dot", "N X", "O"),
    )
    assert summary(fold(graph)) == {"exp": "X → N", "dot": "N X → O"}


def test_a_consumer_that_reads_it_twice_keeps_the_op() -> None:
    graph = make(
        {"X": "ik", "N": "ik", "O": "i"},
        pointwise("exp", "X", "N", "exp"),
        einsum("norm", "N N", "O"),
    )
    assert summary(fold(graph)) == {"exp": "X → N", "norm": "N N → O"}


def test_an_operand_of_an_epilogue_is_no_place_for_a_prologue() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "C": "ij", "R": "ij", "r": "ij", "D": "ij"},
        pointwise("exp", "R", "r", "exp"),
        einsum("mm", "A B", "C"),
        pointwise("add", "C r", "D"),
    )
    assert summary(fold(graph)) == {"exp": "R → r", "mm": "A B → D : add r"}


def test_an_input_that_is_an_operand_too_takes_no_prologue() -> None:
    graph = make(
        {"X": "ij", "P": "ij", "W": "j", "C": "ij", "O": "ij"},
        Op("softmax", "softmax", ("X",), "P", axis="j"),
        einsum("mm", "P W", "C"),
        pointwise("add", "P C", "O"),
    )
    assert summary(fold(graph)) == {"softmax": "X → P", "mm": "P W → O : add P"}


def test_an_operand_is_never_a_tile_that_another_step_changes_in_place() -> None:
    graph = make(
        {"X": "ik", "N": "ik", "B": "ikj", "M": "ikj", "O": "ij"},
        pointwise("gate", "B X", "M", "mul"),
        Op("norm", "normalize", ("X",), "N", "rmsnorm", "k"),
        einsum("mm", "N M", "O"),
    )
    assert summary(fold(graph)) == {"gate": "B X → M", "mm": "norm(X) X M → O"}


def test_a_producer_of_fewer_dims_takes_no_epilogue() -> None:
    graph = make(
        {"A": "ik", "c": "i", "R": "ij", "D": "ij", "W": "jm", "O": "im"},
        einsum("rows", "A", "c"),
        pointwise("mul", "c R", "D", "mul"),
        einsum("mm", "D W", "O"),
    )
    assert summary(fold(graph)) == {"rows": "A → c", "mm": "mul(R c) R W → O"}


def test_dims_in_another_order_are_the_same_dims() -> None:
    graph = make(
        {"A": "ik", "B": "kj", "C": "ij", "D": "ji"},
        einsum("mm", "A B", "C"),
        pointwise("relu", "C", "D", "relu"),
    )
    assert summary(fold(graph)) == {"mm": "A B → D : relu"}


def test_without_an_einsum_nothing_folds() -> None:
    graph = make(
        {"X": "ik", "Y": "ik", "Z": "ik"},
        pointwise("exp", "X", "Y", "exp"),
        Op("softmax", "softmax", ("Y",), "Z", axis="k"),
    )
    assert summary(fold(graph)) == {"exp": "X → Y", "softmax": "Y → Z"}


def test_name_source_and_dtypes_are_kept() -> None:
    tensors = {
        "A": Tensor("A", ("i",), "int8"),
        "B": Tensor("B", ("i",), "fp8"),
        "C": Tensor("C", ("i",), "fp32"),
        "unused": Tensor("unused", ("z",), "fp32"),
    }
    ops = (Op("scale", "einsum", ("A",), "B"), pointwise("exp", "B", "C", "exp"))
    folded = fold(Graph("n", {"i": 7, "z": 2}, tensors, ops, source="s", dtype="bf16"))
    assert (folded.name, folded.source, folded.dtype) == ("n", "s", "bf16")
    assert folded.dims == {"i": 7}
    assert folded.tensors == {"A": tensors["A"], "C": tensors["C"]}


def test_long_graphs_fold_in_linear_time() -> None:
    layers = 600
    shapes = {"H0": "ab"}
    ops = []
    for layer in range(layers):
        shapes |= {f"G{layer}": "ab", f"W{layer}": "b", f"H{layer + 1}": "ab"}
        ops.append(einsum(f"mm{layer}", f"H{layer} W{layer}", f"G{layer}"))
        ops.append(pointwise(f"act{layer}", f"G{layer}", f"H{layer + 1}", "gelu"))
    folded = fold(make(shapes, *ops))
    assert len(folded.ops) == layers
    assert all(len(op.epilogue) == 1 for op in folded.ops)


# --- the same numbers --------------------------------------------------------------------------------


def aligned(graph: Graph, name: str, value: Array, dims: tuple[str, ...]) -> Array:
    """A value with the axes of ``dims``, of size 1 where the tensor lacks one."""
    own = graph.tensors[name].dims
    order = [own.index(dim) for dim in dims if dim in own]
    shape = [graph.dims[dim] if dim in own else 1 for dim in dims]
    return value.transpose(order).reshape(shape)


def apply(kind: str, function: str, parts: list[Array], axis: int) -> Array:
    if kind == "softmax":
        raised = np.exp(parts[0] - parts[0].max(axis, keepdims=True))
        return raised / raised.sum(axis, keepdims=True)
    if kind == "normalize":
        return parts[0] / np.sqrt((parts[0] ** 2).mean(axis, keepdims=True) + 1)
    if function == "exp":
        return np.tanh(reduce(np.add, parts))
    return reduce(np.multiply if function == "mul" else np.add, parts)


def step_value(
    graph: Graph, step: Step | Op, carrier: Array, dims: tuple[str, ...], known: dict[str, Array]
) -> Array:
    others = [aligned(graph, name, known[name], dims) for name in step.inputs if isinstance(step, Step)]
    axis = dims.index(step.axis) if step.axis else 0
    return np.broadcast_to(apply(step.kind, step.function, [carrier, *others], axis), carrier.shape)


def einsum_value(graph: Graph, op: Op, known: dict[str, Array]) -> Array:
    letters = {dim: chr(97 + index) for index, dim in enumerate(graph.dims)}
    words, values = [], []
    for name in op.inputs:
        value = known[name]
        for step in op.prologue:
            if step.tensor == name:
                value = step_value(graph, step, value, graph.tensors[name].dims, known)
        values.append(value)
        words.append("".join(letters[dim] for dim in graph.tensors[name].dims))
    output = graph.tensors[op.output].dims
    covered = {dim for name in op.inputs for dim in graph.tensors[name].dims}
    target = "".join(letters[dim] for dim in output if dim in covered)
    result = np.einsum(f"{','.join(words)}->{target}", *values)
    for step in op.epilogue:
        result = step_value(graph, step, result, output, known)
    return result


def values(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """Every tensor of a graph, by plain numpy."""
    known = dict(inputs)
    for op in graph.ops:
        if op.kind == "einsum":
            known[op.output] = einsum_value(graph, op, known)
            continue
        dims = graph.tensors[op.output].dims
        shape = [graph.dims[dim] for dim in dims]
        parts = [np.broadcast_to(aligned(graph, name, known[name], dims), shape) for name in op.inputs]
        known[op.output] = apply(op.kind, op.function, parts, dims.index(op.axis) if op.axis else 0)
    return known


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of up to 8 ops over 3 dims."""
    dims = {dim: draw(st.integers(1, 3)) for dim in "abc"}
    orders = [order for size in (1, 2, 3) for order in permutations("abc", size)]
    tensors = {f"X{n}": Tensor(f"X{n}", draw(st.sampled_from(orders)), "fp16") for n in range(2)}
    ops: list[Op] = []
    for number in range(draw(st.integers(1, 8))):
        kind = draw(
            st.sampled_from(["einsum", "einsum", "elementwise", "elementwise", "softmax", "normalize"])
        )
        count = draw(st.integers(1, 2)) if kind in ("einsum", "elementwise") else 1
        inputs = tuple(draw(st.sampled_from(sorted(tensors))) for _ in range(count))
        union = sorted({dim for name in inputs for dim in tensors[name].dims})
        output = tuple(draw(st.permutations(union)))
        if kind == "einsum":
            output = output[: draw(st.integers(1, len(output)))]
        name = f"T{number}"
        axis = draw(st.sampled_from(output)) if kind in ("softmax", "normalize") else ""
        function = draw(st.sampled_from(["add", "mul", "exp"])) if kind == "elementwise" else ""
        ops.append(Op(f"op{number}", kind, inputs, name, function, axis))
        tensors[name] = Tensor(name, output, "fp16")
    made = [op.output for op in ops]
    outputs = draw(st.just([]) | st.lists(st.sampled_from(made), unique=True, max_size=3))
    read = {name for op in ops for name in op.inputs}
    if outputs:
        outputs = sorted({*outputs, *(name for name in made if name not in read)})
    return Graph("random", dims, tensors, tuple(ops), tuple(outputs))


@settings(max_examples=300, deadline=None)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_the_folded_graph_computes_the_same(graph: Graph, seed: int) -> None:
    folded = fold(graph)
    assert folded.outputs == graph.outputs
    assert set(folded.inputs()) == set(graph.inputs())
    assert folded.compulsory_bytes() == graph.compulsory_bytes()
    random = np.random.default_rng(seed)
    inputs = {
        name: random.uniform(-1, 1, [graph.dims[dim] for dim in graph.tensors[name].dims])
        for name in graph.inputs()
    }
    expected, found = values(graph, inputs), values(folded, inputs)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_folding_twice_changes_nothing(graph: Graph) -> None:
    once = fold(graph)
    assert fold(once) == once


@settings(max_examples=200, deadline=None)
@given(graphs())
def test_every_op_is_kept_or_folded_and_every_einsum_kept(graph: Graph) -> None:
    folded = fold(graph)
    kept = [op.name for op in folded.ops]
    steps = [step.name for op in folded.ops for step in op.prologue + op.epilogue]
    assert {*kept, *steps} == {op.name for op in graph.ops}
    assert not set(kept) & set(steps)
    assert {op.name for op in graph.ops if op.kind == "einsum"} <= set(kept)
    used = {name for op in folded.ops for name in op.tensors}
    assert set(folded.tensors) == used
    for op in graph.ops:
        if op.name in kept and op.kind != "einsum":
            assert not can_be_epilogue(folded, folded.op(op.name))


def can_be_epilogue(graph: Graph, op: Op) -> bool:
    """Whether design §3 would have the op folded into its producer."""
    return any(
        (maker := graph.producer(name)) is not None
        and graph.op(maker).kind == "einsum"
        and graph.consumers(name) == (op.name,)
        and name not in graph.outputs
        and op.inputs.count(name) == 1
        and set(graph.tensors[name].dims) == set(graph.tensors[op.output].dims)
        for name in op.inputs
    )


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_independent_ops_does_not_matter(order: tuple[int, ...]) -> None:
    ops = (
        einsum("qk", "Q K", "S"),
        Op("softmax", "softmax", ("S",), "P", axis="l"),
        einsum("pv", "P V", "O"),
    )
    shapes = {"Q": "ik", "K": "lk", "S": "il", "P": "il", "V": "lj", "O": "ij"}
    assert summary(fold(make(shapes, *(ops[index] for index in order)))) == {
        "qk": "Q K → P : softmax",
        "pv": "P V → O",
    }
