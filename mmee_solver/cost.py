"""The scalar cost model: what a nest costs, in exact integers (design §5 and §6).

This module is the specification in code. The matrix encoding must equal it element for element, and
the executor must count the same bytes. Nothing here is fast, and nothing here rounds early.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, prod

from mmee_solver.accelerator import Accelerator
from mmee_solver.nest import ArrayConfig, Group
from mmee_solver.roles import STATISTICS_BITS, Roles, RowStep, group_roles, row_steps
from mmee_solver.trace import ComputeSite, HoldSite, Trace, count_pieces, trace
from mmee_solver.units import bits_to_bytes, ceil_div, exact
from mmee_solver.workload import Graph, Op, vector_ops_per_element


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy by component, in pJ, exact."""

    dram: Fraction
    buffer: Fraction
    register: Fraction
    mac: Fraction
    vector: Fraction

    @property
    def total(self) -> Fraction:
        """Sum of the five components, in pJ."""
        return self.dram + self.buffer + self.register + self.mac + self.vector


@dataclass(frozen=True, slots=True)
class Metrics:
    """What a group or a graph costs. Bytes, cycles and counts are exact integers.

    ``macs`` counts the multiply-accumulates of every einsum, ``array_macs`` those that run on the
    arrays (einsums with a reduction; the others run on the vector unit and cost no MAC, design §6).
    ``vector_ops`` counts every vector operation, ``vector_cycles`` the cycles of those that occupy
    the vector unit. ``traffic`` maps a tensor to its (read, written) DRAM bytes. ``cycles`` maps
    each resource to the cycles that it is busy, rounded up.
    """

    dram_read_bytes: int
    dram_write_bytes: int
    buffer_read_bytes: int
    buffer_write_bytes: int
    peak_buffer_bytes: int
    macs: int
    array_cycles: int
    array_macs: int
    vector_ops: int
    vector_cycles: int
    latency_cycles: int
    energy: Energy
    traffic: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cycles: Mapping[str, int] = field(default_factory=dict)

    @property
    def dram_bytes(self) -> int:
        """Bytes moved between DRAM and buffer."""
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def edp(self) -> Fraction:
        """Energy × latency, in pJ · cycles."""
        return self.energy.total * self.latency_cycles

    def utilisation(self, accelerator: Accelerator) -> float:
        """Share of the PEs' cycles that do a MAC, of the cycles in which the arrays work."""
        rows, cols = accelerator.array.shapes[0]
        slots = self.array_cycles * accelerator.array.count * rows * cols
        return self.array_macs / slots if slots else 0.0

    def value(self, objective: str) -> int | Fraction:
        """The figure that an objective minimises: bytes, pJ, cycles or pJ · cycles.

        Raises
        ------
        KeyError
            If there is no such objective.
        """
        values: dict[str, int | Fraction] = {
            "dram": self.dram_bytes,
            "energy": self.energy.total,
            "latency": self.latency_cycles,
            "edp": self.edp,
        }
        return values[objective]


@dataclass(slots=True)
class _Counts:
    """Running sums of a group."""

    read_bytes: int = 0
    write_bytes: int = 0
    buffer_read_bits: int = 0
    buffer_write_bits: int = 0
    macs: int = 0
    array_macs: int = 0
    array_cycles: int = 0
    vector_ops: int = 0
    free_vector_ops: int = 0
    traffic: dict[str, tuple[int, int]] = field(default_factory=dict)


def evaluate_group(
    graph: Graph,
    accelerator: Accelerator,
    group: Group,
    resident: Collection[str] = (),
    beside: Collection[str] = (),
) -> Metrics:
    """Exact cost of one group.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    accelerator : Accelerator
        Figures of §4.
    group : Group
        Ops, nest, and the array configuration of every op with a reduction.
    resident : collection of str
        Tensors kept whole in the buffer during this group: their holds cost no traffic and no room.
    beside : collection of str
        Further tensors that occupy the buffer during this group without being touched.

    Raises
    ------
    MappingError
        If the nest cannot be walked (see :func:`mmee_solver.trace.trace`).

    References
    ----------
    Design §5 (traffic, occupancy) and §6 (cycles, accesses, energy, latency).
    """
    roles = group_roles(graph, group.ops)
    sites = trace(graph, group.nest)
    online = online_steps(graph, group.ops, sites)
    counts = _Counts()
    _add_traffic(counts, graph, roles, sites, online, set(resident))
    for name in group.ops:
        op = graph.op(name)
        _add_op(counts, graph, accelerator, op, sites.compute_of(name), group.array.get(name))
        _add_vector_work(counts, graph, op, sites)
    _add_online(counts, graph, accelerator, sites, online)
    peak = _peak_bytes(graph, accelerator, roles, sites, online, set(resident))
    peak += sum(bits_to_bytes(graph.bits(name)) for name in {*resident, *beside})
    return _metrics(accelerator, counts, peak)


def online_steps(graph: Graph, ops: Sequence[str], sites: Trace) -> tuple[RowStep, ...]:
    """Row-wise steps that run online: their axis is stepped above the hold of their tensor."""
    return tuple(
        row
        for row in row_steps(graph, ops)
        if sites.hold_of(row.consumer, row.tensor).steps(row.step.axis) > 1
    )


def visits(graph: Graph, site: HoldSite, tensor: str | None = None) -> int:
    """V of §5: steps of the loops above a hold over dims that its tensor lacks."""
    own = graph.tensors[tensor or site.tensor].dims
    return prod(count_pieces(p) for dim, p in site.pieces.items() if dim not in own)


def tile_bits(graph: Graph, site: HoldSite) -> int:
    """Bits of the full tile of a hold."""
    tensor = graph.tensors[site.tensor]
    return tensor.bits * prod(site.tile(dim) for dim in tensor.dims)


def _add_traffic(
    counts: _Counts,
    graph: Graph,
    roles: Roles,
    sites: Trace,
    online: Sequence[RowStep],
    resident: set[str],
) -> None:
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    for site in sites.holds:
        name = site.tensor
        if name in resident:
            continue
        bits, times = graph.bits(name), visits(graph, site)
        if name in roles.inputs:
            reads[name] = reads.get(name, 0) + bits * times
        elif name in roles.internal:
            if name in roles.leaving:
                writes[name] = bits
        else:
            reads[name] = bits * (times - 1)
            writes[name] = bits * times
            for row in online:
                if graph.op(row.consumer).output == name:
                    rows = prod(graph.dims[dim] for dim in row.rows)
                    reads[name] += STATISTICS_BITS * rows * (times - 1)
                    writes[name] += STATISTICS_BITS * rows * (times - 1)
    for name in [*reads, *(name for name in writes if name not in reads)]:
        moved = bits_to_bytes(reads.get(name, 0)), bits_to_bytes(writes.get(name, 0))
        counts.traffic[name] = moved
        counts.read_bytes += moved[0]
        counts.write_bytes += moved[1]


def recomputation(graph: Graph, op: Op, site: ComputeSite) -> int:
    """Times that an op is computed: steps over dims that it lacks (1: no recomputation)."""
    dims = graph.op_dims(op)
    return prod(count_pieces(p) for dim, p in site.pieces.items() if dim not in dims)


def _add_op(
    counts: _Counts,
    graph: Graph,
    accelerator: Accelerator,
    op: Op,
    site: ComputeSite,
    config: ArrayConfig | None,
) -> None:
    dims, reduction = graph.op_dims(op), graph.reduction_dims(op)
    rec = recomputation(graph, op, site)
    work = rec * prod(graph.dims[dim] for dim in dims)
    on_array = op.kind == "einsum" and bool(reduction) and config is not None
    passes = {
        dim: sum(
            count * ceil_div(extent, config.extent(dim) if on_array and config else 1)
            for extent, count in site.pieces[dim]
        )
        for dim in dims
    }
    walked = dict(passes)
    if on_array and config:
        walked[config.inner] = count_pieces(site.pieces[config.inner])
        counts.array_cycles += rec * prod(passes.values())
        counts.array_cycles += _fill_cycles(accelerator, config, reduction, rec, passes, walked)
    if op.kind == "einsum":
        counts.macs += work
        counts.array_macs += work if reduction else 0
    for name in op.inputs:
        tensor = graph.tensors[name]
        times = rec * prod(walked[dim] for dim in dims if dim not in tensor.dims)
        counts.buffer_read_bits += graph.bits(name) * times
    out = graph.tensors[op.output]
    stored = rec * prod(walked[dim] for dim in dims if dim not in out.dims)
    counts.buffer_write_bits += graph.bits(op.output) * stored
    counts.buffer_read_bits += graph.bits(op.output) * (stored - rec)
    for name in op.operands:
        counts.buffer_read_bits += graph.tensors[name].bits * rec * graph.elements(op.output)


def _fill_cycles(
    accelerator: Accelerator,
    config: ArrayConfig,
    reduction: Sequence[str],
    rec: int,
    passes: Mapping[str, int],
    walked: Mapping[str, int],
) -> int:
    """Fill and drain of a systolic array, per pass (SCALE-Sim's count plus one; facts.md)."""
    if accelerator.array.pipeline != "systolic":
        return 0
    rows, cols = config.shape
    each = rows + cols - 2 if config.inner in reduction else 2 * rows + cols - 2
    others = prod(count for dim, count in passes.items() if dim != config.inner)
    return rec * walked[config.inner] * others * each


def _add_vector_work(counts: _Counts, graph: Graph, op: Op, sites: Trace) -> None:
    rec = recomputation(graph, op, sites.compute_of(op.name))
    made = rec * graph.elements(op.output)
    counts.vector_ops += sum(step.vector_ops for step in op.epilogue) * made
    for step in op.prologue:
        times = visits(graph, sites.hold_of(op.name, step.tensor))
        counts.vector_ops += step.vector_ops * times * graph.elements(step.tensor)
    if op.kind != "einsum" or not graph.reduction_dims(op):
        counts.vector_ops += vector_ops_per_element(op.kind, op.function) * made


def _add_online(
    counts: _Counts,
    graph: Graph,
    accelerator: Accelerator,
    sites: Trace,
    online: Sequence[RowStep],
) -> None:
    for row in online:
        op = graph.op(row.consumer)
        rec = recomputation(graph, op, sites.compute_of(op.name))
        made = rec * graph.elements(op.output)
        if row.step.kind == "normalize":
            counts.vector_ops += made
            continue
        rescaled = made * (sites.hold_of(op.name, row.tensor).steps(row.step.axis) - 1)
        if accelerator.vector.rescale == "add":
            counts.free_vector_ops += rescaled
            continue
        counts.vector_ops += rescaled
        counts.buffer_read_bits += rescaled * graph.tensors[op.output].bits
        counts.buffer_write_bits += rescaled * graph.tensors[op.output].bits


def _peak_bytes(
    graph: Graph,
    accelerator: Accelerator,
    roles: Roles,
    sites: Trace,
    online: Sequence[RowStep],
    resident: set[str],
) -> int:
    sizes = []
    for site in sites.holds:
        name = site.tensor
        streamed = name not in roles.internal or name in roles.leaving
        copies = 2 if accelerator.buffer.double_buffered and streamed else 1
        size = 0 if name in resident else copies * bits_to_bytes(tile_bits(graph, site))
        for row in online:
            if graph.op(row.consumer).output == name:
                revisited = streamed and visits(graph, site) > 1
                twice = 2 if accelerator.buffer.double_buffered and revisited else 1
                sizes_of = graph.dims.__getitem__ if name in resident else site.tile
                rows = prod(sizes_of(dim) for dim in row.rows)
                size += twice * bits_to_bytes(STATISTICS_BITS * rows)
        sizes.append(size)
    return max(sum(sizes[index] for index in alive) for alive in sites.moments)


def _metrics(accelerator: Accelerator, counts: _Counts, peak: int) -> Metrics:
    reads, writes = bits_to_bytes(counts.buffer_read_bits), bits_to_bytes(counts.buffer_write_bits)
    reads, writes = reads + counts.write_bytes, writes + counts.read_bytes
    ops = counts.vector_ops + counts.free_vector_ops
    dram, buffer, array = accelerator.dram, accelerator.buffer, accelerator.array
    energy = Energy(
        dram=counts.read_bytes * exact(dram.read_pj_per_byte)
        + counts.write_bytes * exact(dram.write_pj_per_byte),
        buffer=reads * exact(buffer.read_pj_per_byte) + writes * exact(buffer.write_pj_per_byte),
        register=counts.array_macs * exact(array.register_pj_per_mac),
        mac=counts.array_macs * exact(array.mac_pj),
        vector=ops * exact(accelerator.vector.pj_per_op),
    )
    moved = counts.read_bytes + counts.write_bytes
    cycles = {
        "array": counts.array_cycles,
        "vector": ceil(counts.vector_ops / exact(accelerator.vector.lanes)),
        "dram": ceil(moved * accelerator.dram_cycles_per_byte),
        "buffer": ceil((reads + writes) * accelerator.buffer_cycles_per_byte),
    }
    return Metrics(
        dram_read_bytes=counts.read_bytes,
        dram_write_bytes=counts.write_bytes,
        buffer_read_bytes=reads,
        buffer_write_bytes=writes,
        peak_buffer_bytes=peak,
        macs=counts.macs,
        array_macs=counts.array_macs,
        array_cycles=counts.array_cycles,
        vector_ops=ops,
        vector_cycles=cycles["vector"],
        latency_cycles=max(cycles.values()),
        energy=energy,
        traffic=counts.traffic,
        cycles=cycles,
    )


def add_metrics(parts: Sequence[Metrics]) -> Metrics:
    """Cost of groups run one after the other: sums, and the largest peak."""
    traffic: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (read, written) in part.traffic.items():
            before = traffic.get(name, (0, 0))
            traffic[name] = before[0] + read, before[1] + written
    zero = Fraction(0)
    energy = Energy(
        *(
            sum((getattr(part.energy, name) for part in parts), zero)
            for name in ("dram", "buffer", "register", "mac", "vector")
        )
    )
    total = {
        name: sum(getattr(part, name) for part in parts)
        for name in (
            "dram_read_bytes",
            "dram_write_bytes",
            "buffer_read_bytes",
            "buffer_write_bytes",
            "macs",
            "array_macs",
            "array_cycles",
            "vector_ops",
            "vector_cycles",
            "latency_cycles",
        )
    }
    busy = {name: sum(part.cycles[name] for part in parts) for name in ("array", "vector", "dram", "buffer")}
    return Metrics(
        **total,
        peak_buffer_bytes=max(part.peak_buffer_bytes for part in parts),
        energy=energy,
        traffic=traffic,
        cycles=busy,
    )
