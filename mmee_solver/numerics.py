"""Numbers behind the executor: labelled arrays, elementwise functions, row statistics, online state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmee_solver.roles import carried_steps
from mmee_solver.workload import Graph, Op, Step

Array = NDArray[np.float64]
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Labelled:
    """An array and the dim of each of its axes."""

    values: Array
    dims: tuple[str, ...]

    def aligned(self, dims: Sequence[str]) -> Array:
        """The values with axes in the order of ``dims``, size 1 where a dim is lacking."""
        order = [self.dims.index(dim) for dim in dims if dim in self.dims]
        moved = np.transpose(self.values, order)
        shape = iter(moved.shape)
        return moved.reshape([next(shape) if dim in self.dims else 1 for dim in dims])


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


_UNARY: dict[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    "silu": _silu,
    "relu": lambda x: np.maximum(x, 0.0),
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "scale": lambda x: x * 0.5,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "max": np.maximum,
}


def elementwise(function: str, values: Sequence[Array]) -> Array:
    """Apply a named function to broadcastable arrays.

    A name that is not in the table stands for a product with 0.5, so that any workload can run: the
    cost model counts an elementwise op, it does not need to know it.
    """
    if len(values) == 1:
        return _UNARY.get(function, _UNARY["scale"])(values[0])
    combine = _BINARY.get(function, np.multiply)
    total = values[0]
    for value in values[1:]:
        total = combine(total, value)
    return total


def row_statistics(step: Step, value: Labelled) -> Array:
    """Softmax, rmsnorm or layernorm over the step's axis, which must be whole."""
    axis = value.dims.index(step.axis)
    x = value.values
    if step.kind == "softmax":
        shifted = np.exp(x - x.max(axis=axis, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=axis, keepdims=True))
    if step.function == "layernorm":
        x = x - x.mean(axis=axis, keepdims=True)
    return np.asarray(x / np.sqrt((x * x).mean(axis=axis, keepdims=True) + _EPSILON))


def apply_chain(
    graph: Graph,
    chain: Sequence[Step],
    value: Labelled,
    operands: Mapping[str, Array] | Mapping[str, Labelled],
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> Labelled:
    """Apply steps one after the other; ``operands`` are whole arrays (cut by ``ranges``) or parts."""
    for step in chain:
        if step.row_wise:
            value = Labelled(row_statistics(step, value), value.dims)
            continue
        others = [_operand(graph, operands[name], name, ranges) for name in step.inputs]
        dims = tuple(dict.fromkeys([*value.dims, *(dim for other in others for dim in other.dims)]))
        parts = [part.aligned(dims) for part in (value, *others)]
        value = Labelled(elementwise(step.function, parts), dims)
    return value


def _operand(
    graph: Graph,
    operand: Array | Labelled,
    name: str,
    ranges: Mapping[str, tuple[int, int]] | None,
) -> Labelled:
    if isinstance(operand, Labelled):
        return operand
    dims = graph.tensors[name].dims
    where = tuple(slice(None) if ranges is None else slice(*ranges[dim]) for dim in dims)
    return Labelled(operand[where], dims)


def element_steps(op: Op) -> tuple[Step, ...]:
    """The epilogue up to its first row-wise step: it works on any tile."""
    steps = carried_steps(op)
    first = next((i for i, step in enumerate(steps) if step.row_wise), len(steps))
    return steps[:first]


def row_part(op: Op) -> tuple[Step, ...]:
    """The epilogue from its first row-wise step on: it needs whole rows, or runs online."""
    return carried_steps(op)[len(element_steps(op)) :]


def einsum(op: Op, inputs: Sequence[Labelled], output: tuple[str, ...]) -> Labelled:
    """The op itself on parts of its inputs, without epilogue."""
    if op.kind == "elementwise":
        return Labelled(elementwise(op.function, [part.aligned(output) for part in inputs]), output)
    if op.kind != "einsum":
        return Labelled(inputs[0].aligned(output), output)
    names = list(dict.fromkeys([*output, *(dim for part in inputs for dim in part.dims)]))
    arguments: list[object] = []
    for part in inputs:
        arguments += [part.values, [names.index(dim) for dim in part.dims]]
    result = np.einsum(*arguments, [names.index(dim) for dim in output])  # type: ignore[call-overload]
    return Labelled(np.asarray(result), output)


def plain(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Every tensor of a graph (folded or not), computed by numpy without any tiling.

    Parameters
    ----------
    graph : Graph
        The workload.
    arrays : mapping of str to ndarray of float64
        The graph's inputs.
    """
    known = {name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()}
    for op in graph.ops:
        output = graph.tensors[op.output].dims
        inputs = []
        for name in op.inputs:
            chain = [step for step in op.prologue if step.tensor == name]
            inputs.append(apply_chain(graph, chain, Labelled(known[name], graph.tensors[name].dims), known))
        value = einsum(op, inputs, output)
        full = np.broadcast_to(value.values, tuple(graph.dims[dim] for dim in output))
        chained = apply_chain(graph, carried_steps(op), Labelled(full, output), known)
        known[op.output] = chained.aligned(output)
    return known


@dataclass(slots=True)
class OnlineState:
    """Statistics of one consumer whose input is softmaxed or normalized step by step.

    Arrays have the shape of the consumer's whole output, so that every element knows its own row:
    ``peak`` the running maximum, ``total`` the running sum (of exponentials, or of squares),
    ``mean`` and ``weights`` what a layernorm subtracts at the end.
    """

    rule: Step
    shape: tuple[int, ...]
    peak: Array = field(init=False)
    total: Array = field(init=False)
    mean: Array = field(init=False)
    weights: Array = field(init=False)

    def __post_init__(self) -> None:
        self.peak = np.full(self.shape, -np.inf)
        self.total = np.zeros(self.shape)
        self.mean = np.zeros(self.shape)
        self.weights = np.zeros(self.shape)

    def step(
        self,
        op: Op,
        inputs: list[Labelled],
        place: int,
        scale: Callable[[Labelled], Labelled],
        target: Labelled,
        where: tuple[slice, ...],
        ends: tuple[bool, bool, bool],
        axis_size: int,
    ) -> Array:
        """Add one part of the axis to the output under ``where``; finish it at the last part.

        ``ends`` says whether this is the first part of the sum, its last, and whether the part of the
        axis is met for the first time: a loop over another reduction dim meets it again.
        """
        first, last, counted = ends
        if first:
            self.peak[where], self.total[where] = -np.inf, 0.0
            self.mean[where], self.weights[where] = 0.0, 0.0
        before = np.zeros(target.values.shape) if first else target.values
        if self.rule.kind == "softmax":
            value = self._softmax(op, inputs, place, scale, target, where, before, counted)
            return value / self.total[where] if last else value
        part = inputs[place]
        value = before + self._multiply(op, inputs, place, scale(part), target)
        if counted:
            self.total[where] += self._rows(part.values**2, part.dims, target)
        if self.rule.function == "layernorm":
            ones = Labelled(np.ones_like(part.values), part.dims)
            if counted:
                self.mean[where] += self._rows(part.values, part.dims, target)
            self.weights[where] += self._multiply(op, inputs, place, scale(ones), target)
        if not last:
            return value
        mean = self.mean[where] / axis_size
        variance = self.total[where] / axis_size - mean**2
        return (value - mean * self.weights[where]) / np.sqrt(variance + _EPSILON)

    def _rows(self, values: Array, dims: tuple[str, ...], target: Labelled) -> Array:
        axis = dims.index(self.rule.axis)
        rows = Labelled(values.sum(axis=axis), tuple(dim for dim in dims if dim != self.rule.axis))
        return np.broadcast_to(rows.aligned(target.dims), target.values.shape)

    def _multiply(
        self, op: Op, inputs: list[Labelled], place: int, part: Labelled, target: Labelled
    ) -> Array:
        replaced = [part if index == place else other for index, other in enumerate(inputs)]
        return einsum(op, replaced, target.dims).values

    def _softmax(
        self,
        op: Op,
        inputs: list[Labelled],
        place: int,
        scale: Callable[[Labelled], Labelled],
        target: Labelled,
        where: tuple[slice, ...],
        before: Array,
        counted: bool,
    ) -> Array:
        part = inputs[place]
        axis = part.dims.index(self.rule.axis)
        rows = tuple(dim for dim in part.dims if dim != self.rule.axis)
        local = Labelled(part.values.max(axis=axis), rows)
        old = self.peak[where]
        new = np.maximum(old, np.broadcast_to(local.aligned(target.dims), old.shape))
        # Every output element of a row has seen the same parts, so any of them gives the row's peak.
        others = tuple(i for i, dim in enumerate(target.dims) if dim not in rows)
        kept = Labelled(new.max(axis=others), tuple(dim for dim in target.dims if dim in rows))
        powers = np.exp(part.values - kept.aligned(part.dims))
        factor = np.exp(old - new)
        self.peak[where] = new
        self.total[where] *= factor
        if counted:
            self.total[where] += self._rows(powers, part.dims, target)
        before = np.where(np.isneginf(old), 0.0, before)
        added = self._multiply(op, inputs, place, scale(Labelled(powers, part.dims)), target)
        return before * factor + added
