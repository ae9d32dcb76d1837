"""Workload graphs: dims, tensors and operators, checked when they are built (design §3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from mmee_solver.errors import InputError, did_you_mean
from mmee_solver.units import DTYPE_BITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import networkx as nx

KINDS = ("einsum", "elementwise", "softmax", "normalize")
EXP_LIKE = frozenset({"exp", "silu", "gelu", "sigmoid", "tanh"})
MAX_DIM_SIZE = 1 << 24
VECTOR_OPS = {"softmax": 5, "normalize": 4}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array: its dims, in order, and its dtype."""

    name: str
    dims: tuple[str, ...]
    dtype: str

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return DTYPE_BITS[self.dtype]


@dataclass(frozen=True, slots=True)
class Step:
    """An elementwise, softmax or normalize op folded into an einsum.

    ``tensor`` names the input that a prologue works on (empty for an epilogue); ``inputs`` are
    further operands (a residual, a gate, a bias), ``axis`` is the dim of row statistics.
    """

    name: str
    kind: str
    function: str = ""
    axis: str = ""
    inputs: tuple[str, ...] = ()
    tensor: str = ""

    @property
    def vector_ops(self) -> int:
        """Vector operations per element (design §6)."""
        return vector_ops_per_element(self.kind, self.function)

    @property
    def row_wise(self) -> bool:
        """Whether the step needs statistics over its axis."""
        return self.kind in VECTOR_OPS


@dataclass(frozen=True, slots=True)
class Op:
    """One operator; ``epilogue`` and ``prologue`` are filled in by folding."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    function: str = ""
    axis: str = ""
    epilogue: tuple[Step, ...] = ()
    prologue: tuple[Step, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        """Inputs of folded steps, each once, in order, without the op's own inputs."""
        names = dict.fromkeys(name for step in self.prologue + self.epilogue for name in step.inputs)
        return tuple(name for name in names if name not in self.inputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """Every tensor that the op reads, each once."""
        return tuple(dict.fromkeys(self.inputs)) + self.operands

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor that the op touches, the output last."""
        return (*self.reads, self.output)


def vector_ops_per_element(kind: str, function: str) -> int:
    """Vector operations per element of a step (design §6).

    >>> vector_ops_per_element("softmax", ""), vector_ops_per_element("elementwise", "gelu")
    (5, 4)
    """
    return VECTOR_OPS.get(kind, 4 if function in EXP_LIKE else 1)


@dataclass(frozen=True, slots=True)
class Graph:
    """A DAG of operators over named tensors, legal by construction.

    Raises
    ------
    InputError
        Names the place, what stands there and what was expected.
    """

    name: str
    dims: Mapping[str, int]
    tensors: Mapping[str, Tensor]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...] = ()
    source: str = ""
    dtype: str = "fp16"
    _producer: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_producer", {op.output: op.name for op in self.ops})
        _check_tensors(self)
        _check_ops(self)
        if not self.outputs:
            used = {name for op in self.ops for name in op.reads}
            left = tuple(op.output for op in self.ops if op.output not in used)
            object.__setattr__(self, "outputs", left)
        for index, name in enumerate(self.outputs):
            _known(name, self.tensors, f"outputs[{index}]", "tensor")
            if name in self.outputs[:index]:
                raise InputError(f'"{name}" stands twice; expected it once', f"outputs[{index}]")
            if name not in self._producer:
                raise InputError(f'"{name}" is made by no op', f"outputs[{index}]")
        object.__setattr__(self, "ops", _topological(self))

    def op(self, name: str) -> Op:
        """The op of that name.

        Raises
        ------
        KeyError
            If there is none.
        """
        for op in self.ops:
            if op.name == name:
                return op
        raise KeyError(name)

    def elements(self, tensor: str) -> int:
        """Elements of a whole tensor."""
        return prod(self.dims[dim] for dim in self.tensors[tensor].dims)

    def bits(self, tensor: str) -> int:
        """Bits of a whole tensor."""
        return self.elements(tensor) * self.tensors[tensor].bits

    def producer(self, tensor: str) -> str | None:
        """Name of the op that makes the tensor; None for a graph input."""
        return self._producer.get(tensor)

    def consumers(self, tensor: str) -> tuple[str, ...]:
        """Names of the ops that read the tensor, in order."""
        return tuple(op.name for op in self.ops if tensor in op.reads)

    def op_dims(self, op: Op) -> tuple[str, ...]:
        """Every dim of an op, in order of first use."""
        return tuple(dict.fromkeys(d for name in op.tensors for d in self.tensors[name].dims))

    def reduction_dims(self, op: Op) -> tuple[str, ...]:
        """Dims in an input of the op and not in its output."""
        output = self.tensors[op.output].dims
        return tuple(dim for dim in self.op_dims(op) if dim not in output)

    def inputs(self) -> tuple[str, ...]:
        """Tensors that the graph reads and no op makes, in order of first use."""
        names = dict.fromkeys(name for op in self.ops for name in op.reads)
        return tuple(name for name in names if name not in self._producer)

    def compulsory_bytes(self) -> int:
        """DRAM bytes that no mapping avoids: every graph input read once, every output written once."""
        return sum((self.bits(name) + 7) // 8 for name in (*self.inputs(), *self.outputs))

    def to_networkx(self) -> nx.DiGraph:
        """The graph as a ``networkx.DiGraph``: ops are nodes, an edge per produced→consumed tensor."""
        import networkx as nx  # costs 0.3 s to import, and a solve does not need it

        graph = nx.DiGraph(name=self.name)
        for op in self.ops:
            graph.add_node(op.name, op=op)
        for op in self.ops:
            for tensor in op.reads:
                if tensor in self._producer:
                    graph.add_edge(self._producer[tensor], op.name, tensor=tensor)
        return graph


def _known(name: str, table: Mapping[str, object], place: str, what: str) -> None:
    if name not in table:
        raise InputError(f'no {what} named "{name}"{did_you_mean(name, table)}', place)


def _check_tensors(graph: Graph) -> None:
    if not graph.ops:
        raise InputError("the graph has no op; expected at least one", "ops")
    _check_dtype(graph.dtype, "dtype")
    for name, size in graph.dims.items():
        place = f"dims.{name}"
        if size < 1:
            raise InputError(f"size {size}; expected a whole number of at least 1", place)
        if size > MAX_DIM_SIZE:
            raise InputError(f"size {size} is too large; at most {MAX_DIM_SIZE} is supported", place)
    for name, tensor in graph.tensors.items():
        place = f"tensors.{name}"
        for index, dim in enumerate(tensor.dims):
            if dim not in graph.dims:
                hint = did_you_mean(dim, graph.dims)
                raise InputError(f'dim "{dim}" has no size in "dims"{hint}', f"{place}.dims[{index}]")
        if len(set(tensor.dims)) != len(tensor.dims):
            raise InputError(f"a dim stands twice in {list(tensor.dims)}", f"{place}.dims")
        _check_dtype(tensor.dtype, f"{place}.dtype")


def _check_dtype(dtype: str, place: str) -> None:
    if dtype not in DTYPE_BITS:
        hint = did_you_mean(dtype, DTYPE_BITS)
        known = ", ".join(DTYPE_BITS)
        raise InputError(f'unknown dtype "{dtype}"; expected one of {known}{hint}', place)


def _check_ops(graph: Graph) -> None:
    names: set[str] = set()
    outputs: dict[str, str] = {}
    for index, op in enumerate(graph.ops):
        place = f"ops[{index}]"
        if op.name in names:
            raise InputError(f'the name "{op.name}" is taken by an op before it', f"{place}.name")
        names.add(op.name)
        if op.kind not in KINDS:
            hint = did_you_mean(op.kind, KINDS)
            known = ", ".join(KINDS)
            raise InputError(f'unknown kind "{op.kind}"; expected one of {known}{hint}', f"{place}.kind")
        if not op.inputs:
            raise InputError("no inputs; expected at least one", f"{place}.inputs")
        for number, name in enumerate(op.inputs):
            _known(name, graph.tensors, f"{place}.inputs[{number}]", "tensor")
        _known(op.output, graph.tensors, f"{place}.output", "tensor")
        for part in ("prologue", "epilogue"):
            _check_steps(graph, op, part, place)
        if op.output in outputs:
            message = f'"{op.output}" is made by "{outputs[op.output]}" already; expected one producer'
            raise InputError(message, f"{place}.output")
        outputs[op.output] = op.name
        _check_op_dims(graph, op, place)


def _check_steps(graph: Graph, op: Op, part: str, place: str) -> None:
    steps: tuple[Step, ...] = getattr(op, part)
    if steps and op.kind != "einsum":
        raise InputError(f'"{op.name}" is {op.kind}; only an einsum has steps', f"{place}.{part}")
    for number, step in enumerate(steps):
        where = f"{place}.{part}[{number}]"
        if step.kind not in KINDS[1:]:
            known = ", ".join(KINDS[1:])
            raise InputError(f'kind "{step.kind}"; expected one of {known}', f"{where}.kind")
        if part == "prologue" and step.tensor not in op.inputs:
            raise InputError(f'"{step.tensor}" is no input of "{op.name}"', f"{where}.tensor")
        if part == "epilogue" and step.tensor:
            raise InputError(f'"{step.tensor}"; an epilogue works on the output alone', f"{where}.tensor")
        carrier = step.tensor or op.output
        dims = graph.tensors[carrier].dims
        if step.row_wise and step.inputs:
            raise InputError(f"{len(step.inputs)}; {step.kind} takes no further inputs", f"{where}.inputs")
        for position, name in enumerate(step.inputs):
            spot = f"{where}.inputs[{position}]"
            _known(name, graph.tensors, spot, "tensor")
            _subset(graph, name, dims, carrier, spot)
        _check_function_and_axis(step, dims, carrier, where)


def _subset(graph: Graph, name: str, dims: tuple[str, ...], other: str, place: str) -> None:
    extra = [dim for dim in graph.tensors[name].dims if dim not in dims]
    if extra:
        raise InputError(f'"{name}" has dim "{extra[0]}", which "{other}" lacks', place)


def _check_function_and_axis(op: Op | Step, dims: tuple[str, ...], carrier: str, place: str) -> None:
    if op.kind == "elementwise" and not op.function:
        raise InputError('no "function"; expected e.g. add, mul, gelu', f"{place}.function")
    if op.kind in VECTOR_OPS and not op.axis:
        raise InputError(f'no "axis"; expected a dim of "{carrier}": {", ".join(dims)}', f"{place}.axis")
    if op.kind in VECTOR_OPS and op.axis not in dims:
        hint = did_you_mean(op.axis, dims)
        raise InputError(f'axis "{op.axis}" is no dim of "{carrier}"{hint}', f"{place}.axis")
    if op.kind not in VECTOR_OPS and op.axis:
        raise InputError(f'"{op.axis}"; only softmax and normalize have an axis', f"{place}.axis")
    if op.kind == "einsum" and op.function:
        raise InputError(f'"{op.function}"; an einsum has no function', f"{place}.function")


def _check_op_dims(graph: Graph, op: Op, place: str) -> None:
    output = graph.tensors[op.output].dims
    inputs = {dim for name in op.reads for dim in graph.tensors[name].dims}
    for index, dim in enumerate(output):
        if dim not in inputs:
            raise InputError(f'output dim {index} "{dim}" of "{op.output}" is in no input', f"{place}.output")
    _check_function_and_axis(op, output, op.output, place)
    if op.kind == "einsum":
        return
    for number, name in enumerate(op.inputs):
        _subset(graph, name, output, op.output, f"{place}.inputs[{number}]")
    if op.kind in VECTOR_OPS and len(op.inputs) != 1:
        raise InputError(f"{len(op.inputs)} inputs; {op.kind} takes one", f"{place}.inputs")


def _topological(graph: Graph) -> tuple[Op, ...]:
    """Ops in topological order, as near to the given order as can be; names a cycle if there is one."""
    by_name = {op.name: op for op in graph.ops}
    after: dict[str, list[str]] = {op.name: [] for op in graph.ops}
    missing = {op.name: 0 for op in graph.ops}
    for op in graph.ops:
        for tensor in op.reads:
            source = graph.producer(tensor)
            if source is not None:
                after[source].append(op.name)
                missing[op.name] += 1
    import heapq

    rank = {op.name: index for index, op in enumerate(graph.ops)}
    ready = [rank[name] for name in missing if missing[name] == 0]
    heapq.heapify(ready)
    done: list[Op] = []
    while ready:
        op = graph.ops[heapq.heappop(ready)]
        done.append(op)
        for name in after[op.name]:
            missing[name] -= 1
            if missing[name] == 0:
                heapq.heappush(ready, rank[name])
    if len(done) < len(by_name):
        stuck = [op.name for op in graph.ops if missing[op.name] > 0]
        raise InputError(f"a cycle runs through {', '.join(stuck[:5])}; expected a DAG", "ops")
    return tuple(done)
