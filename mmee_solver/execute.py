"""The executor: really runs a nest on numpy arrays and counts what it moves and holds (design §5).

It shares no formula with :mod:`mmee_solver.cost`: bytes are counted when a tile is copied, the peak
when a tile is alive. Row statistics (softmax, normalize) run online where the nest steps their axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmee_solver.errors import MappingError
from mmee_solver.nest import Compute, Group, Hold, Loop, Nest, computes
from mmee_solver.numerics import (
    Labelled,
    OnlineState,
    apply_chain,
    einsum,
    element_steps,
    row_part,
)
from mmee_solver.roles import Roles, RowStep, group_roles, row_steps
from mmee_solver.units import bits_to_bytes
from mmee_solver.workload import Graph, Op

Array = NDArray[np.float64]
Ranges = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Execution:
    """What a run did: result arrays, bytes moved per tensor as (read, written), peak bytes alive."""

    arrays: Mapping[str, Array]
    traffic: Mapping[str, tuple[int, int]]
    peak_buffer_bytes: int

    @property
    def dram_read_bytes(self) -> int:
        """Bytes read from DRAM."""
        return sum(read for read, _ in self.traffic.values())

    @property
    def dram_write_bytes(self) -> int:
        """Bytes written to DRAM."""
        return sum(written for _, written in self.traffic.values())


@dataclass(slots=True)
class _Tile:
    """A tile in the buffer: where it starts along each dim, its values, its size in bytes."""

    tensor: str
    start: dict[str, int]
    values: Array
    size_bytes: int
    moved: bool


@dataclass(slots=True)
class _Run:
    graph: Graph
    roles: Roles
    dram: dict[str, Array]
    rows: dict[tuple[str, str], RowStep]
    double_buffered: bool
    read_bits: dict[str, int] = field(default_factory=dict)
    write_bits: dict[str, int] = field(default_factory=dict)
    visited: set[tuple[str, tuple[tuple[int, int], ...]]] = field(default_factory=set)
    states: dict[str, OnlineState] = field(default_factory=dict)
    online: set[tuple[str, str]] = field(default_factory=set)
    revisited: set[str] = field(default_factory=set)
    alive: int = 0
    peak: int = 0


def run_group(
    graph: Graph,
    group: Group,
    arrays: Mapping[str, Array],
    double_buffered: bool = False,
) -> Execution:
    """Run one group's nest.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    group : Group
        Ops and nest; the array configuration does not change what is moved.
    arrays : mapping of str to ndarray of float64
        Every tensor that the group reads from outside, whole, dims in the tensor's order.
    double_buffered : bool
        Whether tiles streamed from or to DRAM take twice their room.

    Returns
    -------
    Execution
        Arrays holds every tensor that leaves the group.

    Raises
    ------
    MappingError
        If a tensor is needed where it is not held, or a value is read before it is finished.
    """
    roles = group_roles(graph, group.ops)
    run = _Run(
        graph=graph,
        roles=roles,
        dram={name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()},
        rows={(row.consumer, row.tensor): row for row in row_steps(graph, group.ops)},
        double_buffered=double_buffered,
    )
    for name in roles.leaving:
        shape = tuple(graph.dims[dim] for dim in graph.tensors[name].dims)
        run.dram[name] = np.full(shape, np.nan)
    _mark_online(run, group.nest, {dim: (0, size) for dim, size in graph.dims.items()}, {})
    _walk(run, group.nest, {dim: (0, size) for dim, size in graph.dims.items()}, {})
    finished = {name: _finish(run, name) for name in roles.leaving}
    names = [*run.read_bits, *(name for name in run.write_bits if name not in run.read_bits)]
    traffic = {
        name: (
            bits_to_bytes(run.read_bits.get(name, 0)),
            bits_to_bytes(run.write_bits.get(name, 0)),
        )
        for name in names
    }
    return Execution(finished, traffic, run.peak)


def _finish(run: _Run, name: str) -> Array:
    """Statistics of a leaving tensor travel beside it: apply what its rows still wait for."""
    op = next(op for op in run.graph.ops if op.output == name)
    value = Labelled(run.dram[name], run.graph.tensors[name].dims)
    return apply_chain(run.graph, row_part(op), value, run.dram).values


def _mark_online(run: _Run, nest: Nest, ranges: Ranges, held: dict[str, Ranges]) -> None:
    """Look ahead, without running: which row-wise inputs have their axis cut above their hold."""
    held = dict(held)
    for item in nest:
        if isinstance(item, Hold):
            held[item.tensor] = ranges
            own = run.graph.tensors[item.tensor].dims
            lacking = [d for d, (lo, hi) in ranges.items() if d not in own and hi - lo < run.graph.dims[d]]
            if lacking:
                run.revisited.add(item.tensor)
        elif isinstance(item, Loop):
            low, high = ranges[item.dim]
            inner = {**ranges, item.dim: (low, min(high, low + item.tile))}
            _mark_online(run, item.body, inner, held)
        else:
            op = run.graph.op(item.op)
            for name in op.inputs:
                row = run.rows.get((op.name, name))
                if row is None or name not in held:
                    continue
                low, high = held[name][row.step.axis]
                if high - low < run.graph.dims[row.step.axis]:
                    if not row.deferrable:
                        raise MappingError(
                            f'"{name}" must span "{row.step.axis}": "{op.name}" cannot run '
                            f'"{row.step.name}" online'
                        )
                    run.online.add((op.name, name))


def _walk(run: _Run, nest: Nest, ranges: Ranges, held: dict[str, _Tile]) -> None:
    ends: dict[str, int] = {}
    for index, item in enumerate(nest):
        for name in computes((item,)):
            for tensor in run.graph.op(name).tensors:
                ends[tensor] = index
    held, own = dict(held), []
    for index, item in enumerate(nest):
        if isinstance(item, Hold):
            held[item.tensor] = _bring(run, item.tensor, ranges)
            own.append(item.tensor)
        elif isinstance(item, Loop):
            low, high = ranges[item.dim]
            for start in range(low, high, item.tile):
                inner = {**ranges, item.dim: (start, min(high, start + item.tile))}
                _walk(run, item.body, inner, held)
        else:
            _compute(run, item, ranges, held)
        for tensor in [name for name in own if ends.get(name, -1) <= index]:
            if not isinstance(item, Hold):
                own.remove(tensor)
                _release(run, held.pop(tensor))


def _slices(run: _Run, tensor: str, ranges: Ranges) -> tuple[slice, ...]:
    return tuple(slice(*ranges[dim]) for dim in run.graph.tensors[tensor].dims)


def _bring(run: _Run, tensor: str, ranges: Ranges) -> _Tile:
    spec, roles = run.graph.tensors[tensor], run.roles
    where = _slices(run, tensor, ranges)
    shape = tuple(part.stop - part.start for part in where)
    bits = int(np.prod(shape, dtype=np.int64)) * spec.bits
    streamed = tensor not in roles.internal or tensor in roles.leaving
    size = bits_to_bytes(bits) * (2 if streamed and run.double_buffered else 1)
    if tensor in roles.inputs:
        values = run.dram[tensor][where].copy()
        run.read_bits[tensor] = run.read_bits.get(tensor, 0) + bits
    else:
        values = np.full(shape, np.nan)
        key = (tensor, tuple((part.start, part.stop) for part in where))
        if tensor not in roles.internal:
            run.read_bits.setdefault(tensor, 0)
            if key in run.visited:
                values = run.dram[tensor][where].copy()
                run.read_bits[tensor] += bits + _statistics_bits(run, tensor, ranges, first=True)
            run.visited.add(key)
        size += _statistics_bytes(run, tensor, ranges)
    run.alive += size
    run.peak = max(run.peak, run.alive)
    start = {dim: ranges[dim][0] for dim in spec.dims}
    return _Tile(tensor, start, values, size, streamed)


def _online_rows(run: _Run, tensor: str) -> list[RowStep]:
    return [run.rows[key] for key in sorted(run.online) if run.graph.op(key[0]).output == tensor]


def _statistics_bits(run: _Run, tensor: str, ranges: Ranges, first: bool) -> int:
    """Two fp32 numbers per row of the tile; of several tiles with the same rows, the first counts."""
    bits = 0
    for row in _online_rows(run, tensor):
        others = [d for d in run.graph.tensors[tensor].dims if d not in row.rows]
        if first and any(ranges[dim][0] > 0 for dim in others):
            continue
        count = 1
        for dim in row.rows:
            count *= ranges[dim][1] - ranges[dim][0]
        bits += 2 * 32 * count
    return bits


def _statistics_bytes(run: _Run, tensor: str, ranges: Ranges) -> int:
    size = bits_to_bytes(_statistics_bits(run, tensor, ranges, first=False))
    streamed = tensor not in run.roles.internal or tensor in run.roles.leaving
    doubled = run.double_buffered and streamed and tensor in run.revisited
    return 2 * size if doubled else size


def _release(run: _Run, tile: _Tile) -> None:
    run.alive -= tile.size_bytes
    if tile.tensor in run.roles.inputs or tile.tensor not in run.roles.leaving:
        return
    spec = run.graph.tensors[tile.tensor]
    where = tuple(
        slice(tile.start[dim], tile.start[dim] + extent)
        for dim, extent in zip(spec.dims, tile.values.shape, strict=True)
    )
    run.dram[tile.tensor][where] = tile.values
    bits = tile.values.size * spec.bits
    run.write_bits[tile.tensor] = run.write_bits.get(tile.tensor, 0) + bits
    key = (f"{tile.tensor} left", tuple((part.start, part.stop) for part in where))
    if key in run.visited and tile.tensor not in run.roles.internal:
        ranges = {dim: (part.start, part.stop) for dim, part in zip(spec.dims, where, strict=True)}
        run.write_bits[tile.tensor] += _statistics_bits(run, tile.tensor, ranges, first=True)
    run.visited.add(key)


def _part(run: _Run, tile: _Tile, ranges: Ranges, whole: str = "") -> Labelled:
    """The part of a held tile under the current ranges; all of the tile along ``whole``."""
    dims = run.graph.tensors[tile.tensor].dims
    where = tuple(
        slice(None)
        if dim == whole
        else slice(ranges[dim][0] - tile.start[dim], ranges[dim][1] - tile.start[dim])
        for dim in dims
    )
    return Labelled(tile.values[where], dims)


def _compute(run: _Run, item: Compute, ranges: Ranges, held: dict[str, _Tile]) -> None:
    op = run.graph.op(item.op)
    for name in op.tensors:
        if name not in held:
            raise MappingError(f'"{op.name}" needs "{name}", which is not held there')
    reduction = run.graph.reduction_dims(op)
    first = all(ranges[dim][0] == 0 for dim in reduction)
    last = all(ranges[dim][1] == run.graph.dims[dim] for dim in reduction)
    target = _part(run, held[op.output], ranges)
    deferred = [name for name in op.inputs if (op.name, name) in run.online]
    operands = {name: _operand(run, op, name, ranges, held[name]) for name in op.inputs}
    if deferred:
        value = _accumulate_online(run, op, deferred[0], operands, ranges, target, (first, last))
    else:
        value = einsum(op, [operands[name] for name in op.inputs], target.dims)
        if not first:
            value = Labelled(target.values + value.values, target.dims)
    if last:
        parts = {name: _part(run, held[name], ranges) for name in op.operands}
        value = apply_chain(run.graph, element_steps(op), value, parts)
    target.values[...] = value.values


def _operand(run: _Run, op: Op, name: str, ranges: Ranges, tile: _Tile) -> Labelled:
    """An input as the einsum sees it: with its prologue, and with row statistics unless deferred."""
    maker = next((o for o in run.graph.ops if o.output == name), None)
    chain = row_part(maker) if maker is not None and name in run.roles.internal else ()
    chain += tuple(step for step in op.prologue if step.tensor == name)
    row = run.rows.get((op.name, name))
    if row is None:
        return apply_chain(run.graph, chain, _part(run, tile, ranges), run.dram, ranges)
    axis = row.step.axis
    if (op.name, name) in run.online:
        before = chain[: chain.index(row.step)]
        return apply_chain(run.graph, before, _part(run, tile, ranges), run.dram, ranges)
    spanned = {**ranges, axis: (0, run.graph.dims[axis])}
    value = apply_chain(run.graph, chain, _part(run, tile, ranges, axis), run.dram, spanned)
    where: list[Any] = [slice(*ranges[dim]) if dim == axis else slice(None) for dim in value.dims]
    return Labelled(value.values[tuple(where)], value.dims)


def _accumulate_online(
    run: _Run,
    op: Op,
    carrier: str,
    operands: dict[str, Labelled],
    ranges: Ranges,
    target: Labelled,
    ends: tuple[bool, bool],
) -> Labelled:
    row = run.rows[op.name, carrier]
    shape = tuple(run.graph.dims[dim] for dim in target.dims)
    state = run.states.setdefault(op.name, OnlineState(row.step, shape))
    maker = next((o for o in run.graph.ops if o.output == carrier), None)
    chain = row_part(maker) if maker is not None and carrier in run.roles.internal else ()
    chain += tuple(step for step in op.prologue if step.tensor == carrier)
    after = chain[chain.index(row.step) + 1 :]

    def scale(value: Labelled) -> Labelled:
        return apply_chain(run.graph, after, value, run.dram, ranges)

    where = tuple(slice(*ranges[dim]) for dim in target.dims)
    inputs = [operands[name] for name in op.inputs]
    place = op.inputs.index(carrier)
    values = state.step(op, inputs, place, scale, target, where, ends, run.graph.dims[row.step.axis])
    return Labelled(values, target.dims)
