"""The executor: really runs a nest on numpy arrays and counts what it moves and holds (design §5).

It shares no formula with :mod:`mmee_solver.cost`: bytes are counted when a tile is copied, the peak
when a tile is alive. Row statistics (softmax, normalize) run online where the nest steps their axis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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
from mmee_solver.workload import Graph, Op, Step

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
    """A tile in the buffer: the ranges of all dims when it came, its values, its size in bytes."""

    tensor: str
    ranges: Ranges
    values: Array
    size_bytes: int


@dataclass(slots=True)
class _Run:
    graph: Graph
    roles: Roles
    dram: dict[str, Array]
    rows: dict[tuple[str, str], tuple[RowStep, ...]]
    double_buffered: bool
    resident: frozenset[str]
    made: dict[str, Array] = field(default_factory=dict)
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
    resident: Collection[str] = (),
    beside: Collection[str] = (),
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
    resident, beside : collection of str
        Tensors kept whole in the buffer during the group: touched by it, and not.

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
    rows: dict[tuple[str, str], tuple[RowStep, ...]] = {}
    for row in row_steps(graph, group.ops):
        rows[row.consumer, row.tensor] = (*rows.get((row.consumer, row.tensor), ()), row)
    run = _Run(
        graph=graph,
        roles=roles,
        dram={name: np.asarray(value, dtype=np.float64) for name, value in arrays.items()},
        rows=rows,
        double_buffered=double_buffered,
        resident=frozenset(resident),
    )
    run.alive = run.peak = sum(bits_to_bytes(graph.bits(name)) for name in {*resident, *beside})
    run.dram.update({name: _unknown(graph, name) for name in roles.leaving})
    run.made.update({name: _unknown(graph, name) for name in roles.internal})
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
        if name not in run.resident  # it is in the buffer, not in DRAM
    }
    return Execution(finished, traffic, run.peak)


def _unknown(graph: Graph, tensor: str) -> Array:
    return np.full([graph.dims[dim] for dim in graph.tensors[tensor].dims], np.nan)


def _finish(run: _Run, name: str) -> Array:
    """Statistics of a leaving tensor travel beside it: apply what its rows still wait for."""
    op = next(op for op in run.graph.ops if op.output == name)
    value = Labelled(run.dram[name], run.graph.tensors[name].dims)
    return apply_chain(run.graph, row_part(op), value, _whole(run, row_part(op))).values


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
            for name in op.reads:
                for row in run.rows.get((op.name, name), ()) if name in held else ():
                    low, high = held[name][row.step.axis]
                    if high - low == run.graph.dims[row.step.axis]:
                        continue
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
    if tensor in run.resident:
        size = 0
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
    return _Tile(tensor, ranges, values, size)


def _online_rows(run: _Run, tensor: str) -> list[RowStep]:
    return [run.rows[key][0] for key in sorted(run.online) if run.graph.op(key[0]).output == tensor]


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
    if tensor in run.resident:  # whole, as it is
        ranges = {dim: (0, size) for dim, size in run.graph.dims.items()}
    size = bits_to_bytes(_statistics_bits(run, tensor, ranges, first=False))
    streamed = tensor not in run.roles.internal or tensor in run.roles.leaving
    doubled = run.double_buffered and streamed and tensor in run.revisited
    return 2 * size if doubled else size


def _release(run: _Run, tile: _Tile) -> None:
    run.alive -= tile.size_bytes
    if tile.tensor in run.roles.inputs or tile.tensor not in run.roles.leaving:
        return
    spec = run.graph.tensors[tile.tensor]
    where = _slices(run, tile.tensor, tile.ranges)
    run.dram[tile.tensor][where] = tile.values
    bits = tile.values.size * spec.bits
    run.write_bits[tile.tensor] = run.write_bits.get(tile.tensor, 0) + bits
    key = (f"{tile.tensor} left", tuple((part.start, part.stop) for part in where))
    if key in run.visited and tile.tensor not in run.roles.internal:
        run.write_bits[tile.tensor] += _statistics_bits(run, tile.tensor, tile.ranges, first=True)
    run.visited.add(key)


def _part(run: _Run, tile: _Tile, ranges: Ranges) -> Labelled:
    """The part of a held tile under some ranges."""
    dims = run.graph.tensors[tile.tensor].dims
    starts = [tile.ranges[dim][0] for dim in dims]
    where = [slice(ranges[d][0] - start, ranges[d][1] - start) for d, start in zip(dims, starts, strict=True)]
    return Labelled(tile.values[tuple(where)], dims)


def _compute(run: _Run, item: Compute, ranges: Ranges, held: dict[str, _Tile]) -> None:
    op = run.graph.op(item.op)
    for name in op.tensors:
        if name not in held:
            raise MappingError(f'"{op.name}" needs "{name}", which is not held there')
    tile = held[op.output]
    own = run.graph.op_dims(op)
    if any(ranges[dim][0] > tile.ranges[dim][0] for dim in ranges if dim not in own):
        return  # recomputed under the hold of its output: the same values once more, which must not add up
    reduction = run.graph.reduction_dims(op)
    first = all(ranges[dim][0] == 0 for dim in reduction)
    last = all(ranges[dim][1] == run.graph.dims[dim] for dim in reduction)
    target = _part(run, tile, ranges)
    deferred = [name for name in op.inputs if (op.name, name) in run.online]
    inputs = [_input(run, op, name, ranges, held[name]) for name in op.inputs]
    if deferred:
        value = _accumulate_online(run, op, deferred, inputs, ranges, target, (first, last))
    else:
        value = einsum(op, inputs, target.dims)
        if not first:
            value = Labelled(target.values + value.values, target.dims)
    if last:
        steps = element_steps(op)
        parts = {name: _read(run, op, name, ranges, held[name]) for step in steps for name in step.inputs}
        value = apply_chain(run.graph, steps, value, parts)
        if op.output in run.made:
            run.made[op.output][_slices(run, op.output, ranges)] = value.aligned(target.dims)
    target.values[...] = value.values


def _chain(run: _Run, name: str) -> tuple[Step, ...]:
    """Steps that a tensor made in the group still waits for: its row statistics and what follows."""
    maker = run.graph.producer(name) if name in run.roles.internal else None
    return () if maker is None else row_part(run.graph.op(maker))


def _whole(run: _Run, steps: Sequence[Step]) -> dict[str, Array]:
    """Further operands of steps, whole; of one that is made in the group, what is finished of it."""
    found = {}
    for name in [name for step in steps for name in step.inputs]:
        values = run.made[name] if name in run.made else run.dram[name]
        chain = _chain(run, name)
        whole = Labelled(values, run.graph.tensors[name].dims)
        found[name] = apply_chain(run.graph, chain, whole, _whole(run, chain)).values
    return found


def _input(run: _Run, op: Op, name: str, ranges: Ranges, tile: _Tile) -> Labelled:
    """An input as the einsum sees it: with its prologue, and with row statistics unless deferred."""
    prologue = tuple(step for step in op.prologue if step.tensor == name)
    return _read(run, op, name, ranges, tile, prologue)


def _read(
    run: _Run, op: Op, name: str, ranges: Ranges, tile: _Tile, prologue: tuple[Step, ...] = ()
) -> Labelled:
    """A part of a held tile after its row statistics, for which all of its rows are looked at."""
    chain = _chain(run, name) + prologue
    rows = run.rows.get((op.name, name), ())
    if (op.name, name) in run.online:
        chain, rows = chain[: chain.index(rows[0].step)], ()
    axes = {row.step.axis for row in rows}
    spanned = {**ranges, **{axis: (0, run.graph.dims[axis]) for axis in axes}}
    value = apply_chain(run.graph, chain, _part(run, tile, spanned), _whole(run, chain), spanned)
    where = [slice(*ranges[dim]) if dim in axes else slice(None) for dim in value.dims]
    return Labelled(value.values[tuple(where)], value.dims)


def _accumulate_online(
    run: _Run,
    op: Op,
    deferred: Sequence[str],
    inputs: list[Labelled],
    ranges: Ranges,
    target: Labelled,
    ends: tuple[bool, bool],
) -> Labelled:
    if len(deferred) > 1:
        raise MappingError(f'"{op.name}" would run the statistics of {" and ".join(deferred)} online at once')
    (carrier,) = deferred
    (row,) = run.rows[op.name, carrier]
    shape = tuple(run.graph.dims[dim] for dim in target.dims)
    state = run.states.setdefault(op.name, OnlineState(row.step, shape))
    chain = _chain(run, carrier) + tuple(step for step in op.prologue if step.tensor == carrier)
    after = chain[chain.index(row.step) + 1 :]
    operands = _whole(run, after)

    def scale(value: Labelled) -> Labelled:
        return apply_chain(run.graph, after, value, operands, ranges)

    where = tuple(slice(*ranges[dim]) for dim in target.dims)
    others = [dim for dim in run.graph.reduction_dims(op) if dim != row.step.axis]
    counted = all(ranges[dim][0] == 0 for dim in others)
    place, size = op.inputs.index(carrier), run.graph.dims[row.step.axis]
    values = state.step(op, inputs, place, scale, target, where, (*ends, counted), size)
    return Labelled(values, target.dims)
