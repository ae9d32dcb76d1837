"""The matrix encoding: structures as 0/1 query matrices over log quantities of tilings (design §1, §6).

Every figure of the cost model is a sum of monomials in per-dim quantities: the tile size t, the
steps ⌈N/t⌉ and the passes of an array extent. A structure says which quantities multiply: a row of
a *query matrix*. A tiling says how large they are: a column of a *log matrix*. So

    monomials = rint(exp(query @ log)),     figure = coefficients @ monomials,

for all structures and tilings at once. Monomials are whole numbers, and ``rint`` restores them
exactly as long as they stay below 10¹³ (float64 has 2⁵³ ≈ 9·10¹⁵; the exponential of a sum of a
dozen logarithms is off by some 10⁻¹⁵ relative).

Occupancy grows and every cost falls with each tile size, so the same matrices at the corners of a
*box* of tilings bound the whole box: tiles at their least give the least occupancy, steps and
passes at the largest tiles give the least cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.arrays import OpTable, extents, op_table, uses_array
from mmee_solver.roles import STATISTICS_BITS, RowStep
from mmee_solver.structures import GRANULE, SHARED, GroupSpace, HoldAt, LoopAt, Structure
from mmee_solver.units import exact
from mmee_solver.workload import Graph, Op

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

READ, WRITE, VECTOR, FREE_VECTOR, RESCALE = range(5)
FORMS = 5


@dataclass(frozen=True, slots=True)
class Weights:
    """Energy constants as whole numbers: one unit is 1/``scale`` pJ.

    ``read_bit``/``write_bit``: a bit moved from/to DRAM, its buffer access included;
    ``buffer_read_bit``/``buffer_write_bit``: a bit accessed by an op; ``mac``: with registers.
    """

    scale: int
    read_bit: int
    write_bit: int
    buffer_read_bit: int
    buffer_write_bit: int
    mac: int
    vector_op: int

    @classmethod
    def of(cls, accelerator: Accelerator) -> Weights:
        """Common denominator of all constants of an accelerator."""
        dram, buffer, array = accelerator.dram, accelerator.buffer, accelerator.array
        read, write = exact(buffer.read_pj_per_byte) / 8, exact(buffer.write_pj_per_byte) / 8
        parts = [
            exact(dram.read_pj_per_byte) / 8 + write,
            exact(dram.write_pj_per_byte) / 8 + read,
            read,
            write,
            exact(array.mac_pj) + exact(array.register_pj_per_mac),
            exact(accelerator.vector.pj_per_op),
        ]
        scale = lcm(*(part.denominator for part in parts))
        return cls(scale, *(int(part * scale) for part in parts))


@dataclass(frozen=True)
class Encoding:
    """All structures of one group in matrix form. S structures, A axes, M and K monomials, L leaves."""

    structures: tuple[Structure, ...]
    size: Floats  # (S, A) size of the axis' dim, 1 for an unused axis
    dim: Ints  # (S, A) index of the axis' dim in ``dims``, -1 for an unused axis
    outer: Ints  # (S, A) axis that a granule cuts, -1 for the whole dim
    granule: NDArray[np.bool_]  # (S, A)
    shared: NDArray[np.bool_]  # (S, A)
    tile_query: Floats  # (S, M, A)
    tile_bytes: Floats  # (S, M) bytes per unit of the monomial
    tile_doubled: Floats  # (S, M) 1 where double buffering counts the tile twice
    alive: Floats  # (S, L, M) 1 where the monomial is alive during the leaf
    step_query: Floats  # (S, K, A)
    forms: Floats  # (S, K, FORMS) in bits or vector operations
    constants: Floats  # (S, FORMS)
    recompute: Ints  # (S, L) index of the monomial of recomputation, K for none
    finest: Ints  # (S, L, D) axis that cuts an op's dim last, -1 for none
    tables: tuple[OpTable | None, ...]
    plain_bits: Floats  # (L, 2) buffer bits read and written by ops that use no array, per computation
    dims: tuple[str, ...]
    op_dims: tuple[tuple[str, ...], ...]
    op_sizes: tuple[Floats, ...]  # sizes of op_dims
    extents: tuple[int, ...]
    weights: Weights
    odd_bits: bool  # whether an element is no whole number of bytes, so that sums are rounded up


@dataclass(frozen=True, slots=True)
class _Site:
    """A hold in a structure: the finest axis per dim above it, and the leaves that it is alive in."""

    tensor: str
    level: dict[str, int]
    leaves: tuple[int, ...]
    serves: tuple[int, ...]


def encode(space: GroupSpace, structures: Sequence[Structure], accelerator: Accelerator) -> Encoding:
    """Encode structures of one group.

    Parameters
    ----------
    space : GroupSpace
        The group; leaf i is its op i.
    structures : sequence of Structure
        Placements of this group, at least one.
    accelerator : Accelerator
        Extents, stationarity, pipeline, rescale and energies.

    Returns
    -------
    Encoding
        Read-only matrices.
    """
    graph = space.graph
    rows = [_encode_one(space, structure, accelerator) for structure in structures]
    plain = np.array([_plain_bits(graph, op) for op in space.ops], dtype=np.float64)
    return Encoding(
        structures=tuple(structures),
        tables=tuple(op_table(graph, accelerator, op) for op in space.ops),
        plain_bits=plain,
        dims=tuple(dict.fromkeys(d for op in space.ops for d in graph.op_dims(op))),
        op_dims=tuple(graph.op_dims(op) for op in space.ops),
        op_sizes=tuple(np.array([float(graph.dims[d]) for d in graph.op_dims(op)]) for op in space.ops),
        extents=extents(accelerator),
        weights=Weights.of(accelerator),
        odd_bits=any(graph.tensors[n].bits % 8 for op in space.ops for n in op.tensors),
        **_fill(space, structures, rows),
    )


@dataclass(slots=True)
class _Row:
    """One structure's monomials: tiles (axes, bytes, twice?, leaves), steps (axes -> forms)."""

    tiles: list[tuple[frozenset[int], float, bool, tuple[int, ...]]]
    steps: dict[frozenset[int], list[float]]
    constants: list[float]
    recompute: list[frozenset[int]]
    finest: list[dict[str, int]]


def sites(space: GroupSpace, structure: Structure) -> tuple[list[_Site], list[dict[str, int]]]:
    """Holds of a structure with the axes above them, and the finest axis per dim of each leaf."""
    found: list[_Site] = []
    everywhere = tuple(range(len(structure.leaves)))
    users = space.users
    level: dict[str, int] = {}
    for entry in structure.shared:
        if isinstance(entry, HoldAt):
            found.append(_Site(entry.tensor, dict(level), everywhere, users[entry.tensor]))
        else:
            level[structure.axes[entry.axis].dim] = entry.axis
    for name in structure.body:
        found.append(_Site(name, dict(level), everywhere, users[name]))
    finest = []
    for leaf, entries in enumerate(structure.leaves):
        inner = dict(level)
        for entry in entries:
            if isinstance(entry, LoopAt):
                inner[structure.axes[entry.axis].dim] = entry.axis
            else:
                found.append(_Site(entry.tensor, dict(inner), (leaf,), (leaf,)))
        finest.append(inner)
    return found, finest


def _encode_one(space: GroupSpace, structure: Structure, accelerator: Accelerator) -> _Row:
    graph, roles = space.graph, space.roles
    found, finest = sites(space, structure)
    row = _Row([], {}, [0.0] * FORMS, [], finest)
    shared = _shared_level(structure)
    for leaf in range(len(space.ops)):
        lacking = frozenset(a for d, a in shared.items() if d not in space.dims_of_ops[leaf])
        row.recompute.append(lacking)
        if lacking:
            row.steps.setdefault(lacking, [0.0] * FORMS)
        _vector_terms(space, row, found, leaf, lacking)
    for site in found:
        lacking = _lacking(space, site)
        streamed = site.tensor not in roles.internal or site.tensor in roles.leaving
        online = _online(space, found, site)
        _tile_terms(space, accelerator, row, site, streamed, online)
        bits = float(graph.bits(site.tensor))
        if site.tensor in roles.inputs:
            _add(row, lacking, READ, bits)
        elif site.tensor in roles.internal:
            if site.tensor in roles.leaving:
                row.constants[WRITE] += bits
        else:
            rows = sum(STATISTICS_BITS * prod(graph.dims[d] for d in r.rows) for r, _ in online)
            _add(row, lacking, READ, bits + rows)
            _add(row, lacking, WRITE, bits + rows)
            row.constants[READ] -= bits + rows
            row.constants[WRITE] -= rows
        _online_terms(space, accelerator, row, site, online)
    return row


def _shared_level(structure: Structure) -> dict[str, int]:
    return {structure.axes[e.axis].dim: e.axis for e in structure.shared if isinstance(e, LoopAt)}


def _lacking(space: GroupSpace, site: _Site) -> frozenset[int]:
    own = space.graph.tensors[site.tensor].dims
    return frozenset(axis for dim, axis in site.level.items() if dim not in own)


def _add(row: _Row, axes: frozenset[int], form: int, amount: float) -> None:
    """Add amount × (product of the axes' steps) to a form."""
    if axes:
        row.steps.setdefault(axes, [0.0] * FORMS)[form] += amount
    else:
        row.constants[form] += amount


def _online(space: GroupSpace, found: Sequence[_Site], site: _Site) -> list[tuple[RowStep, int]]:
    """Row steps that run online into this output, each with the axis (index) that steps its rows."""
    pairs = []
    for row in space.rows:
        leaf = next(i for i, op in enumerate(space.ops) if op.name == row.consumer)
        if space.ops[leaf].output != site.tensor:
            continue
        carrier = next(s for s in found if s.tensor == row.tensor and leaf in s.serves)
        if row.step.axis in carrier.level:
            pairs.append((row, carrier.level[row.step.axis]))
    return pairs


def _tile_terms(
    space: GroupSpace,
    accelerator: Accelerator,
    row: _Row,
    site: _Site,
    streamed: bool,
    online: Sequence[tuple[RowStep, int]],
) -> None:
    graph = space.graph
    double = accelerator.buffer.double_buffered
    tensor = graph.tensors[site.tensor]
    items = [(tensor.dims, tensor.bits, 2 if double and streamed else 1)]
    for step, _ in online:
        # Double buffering doubles statistics only if the output is revisited, which a loop of one step
        # does not do: a bound must count them once. The exact evaluation decides.
        items.append((step.rows, STATISTICS_BITS, 1))
    for dims, bits, copies in items:
        axes = frozenset(site.level[d] for d in dims if d in site.level)
        whole = prod(graph.dims[d] for d in dims if d not in site.level)
        row.tiles.append((axes, copies * bits * whole / 8, copies > 1, site.leaves))


def _vector_terms(
    space: GroupSpace, row: _Row, found: Sequence[_Site], leaf: int, lacking: frozenset[int]
) -> None:
    graph, op = space.graph, space.ops[leaf]
    if space.vector_work[leaf]:
        _add(row, lacking, VECTOR, space.vector_work[leaf])
    for step in op.prologue:
        site = next(s for s in found if s.tensor == step.tensor and leaf in s.serves)
        work = float(step.vector_ops * graph.elements(step.tensor))
        _add(row, _lacking(space, site), VECTOR, work)


def _online_terms(
    space: GroupSpace,
    accelerator: Accelerator,
    row: _Row,
    site: _Site,
    online: Sequence[tuple[RowStep, int]],
) -> None:
    graph = space.graph
    for step, axis in online:
        leaf = next(i for i, op in enumerate(space.ops) if op.name == step.consumer)
        lacking, elements = row.recompute[leaf], float(graph.elements(site.tensor))
        if step.step.kind == "normalize":
            _add(row, lacking, VECTOR, elements)
            continue
        form = FREE_VECTOR if accelerator.vector.rescale == "add" else VECTOR
        _add(row, lacking | {axis}, form, elements)
        _add(row, lacking, form, -elements)
        if form == VECTOR:
            bits = elements * graph.tensors[site.tensor].bits
            _add(row, lacking | {axis}, RESCALE, bits)
            _add(row, lacking, RESCALE, -bits)


def _fill(
    space: GroupSpace, structures: Sequence[Structure], rows: Sequence[_Row]
) -> dict[str, NDArray[Any]]:
    """Pad every structure's monomials into common matrices."""
    graph, leaves = space.graph, len(space.ops)
    dims = tuple(dict.fromkeys(d for op in space.ops for d in graph.op_dims(op)))
    op_dims = [graph.op_dims(op) for op in space.ops]
    s, widest = len(rows), max(len(d) for d in op_dims)
    a = max((len(structure.axes) for structure in structures), default=0) or 1
    m, k = max(len(row.tiles) for row in rows), max(len(row.steps) for row in rows) or 1
    out: dict[str, NDArray[Any]] = {
        "size": np.ones((s, a)),
        "dim": np.full((s, a), -1, dtype=np.int64),
        "outer": np.full((s, a), -1, dtype=np.int64),
        "granule": np.zeros((s, a), dtype=np.bool_),
        "shared": np.zeros((s, a), dtype=np.bool_),
        "tile_query": np.zeros((s, m, a)),
        "tile_bytes": np.zeros((s, m)),
        "tile_doubled": np.zeros((s, m)),
        "alive": np.zeros((s, leaves, m)),
        "step_query": np.zeros((s, k, a)),
        "forms": np.zeros((s, k, FORMS)),
        "constants": np.zeros((s, FORMS)),
        "recompute": np.full((s, leaves), k, dtype=np.int64),
        "finest": np.full((s, leaves, widest), -1, dtype=np.int64),
    }
    for index, (structure, row) in enumerate(zip(structures, rows, strict=True)):
        for number, axis in enumerate(structure.axes):
            out["size"][index, number] = graph.dims[axis.dim]
            out["dim"][index, number] = dims.index(axis.dim)
            out["outer"][index, number] = axis.outer
            out["granule"][index, number] = axis.kind == GRANULE
            out["shared"][index, number] = axis.kind == SHARED
        for number, (axes, size, doubled, alive) in enumerate(row.tiles):
            out["tile_query"][index, number, list(axes)] = 1
            out["tile_bytes"][index, number] = size
            out["tile_doubled"][index, number] = doubled
            out["alive"][index, list(alive), number] = 1
        numbers = {axes: number for number, axes in enumerate(row.steps)}
        for axes, number in numbers.items():
            out["step_query"][index, number, list(axes)] = 1
            out["forms"][index, number] = row.steps[axes]
        out["constants"][index] = row.constants
        for leaf, axes in enumerate(row.recompute):
            if axes:
                out["recompute"][index, leaf] = numbers[axes]
            for column, dim in enumerate(op_dims[leaf]):
                out["finest"][index, leaf, column] = row.finest[leaf].get(dim, -1)
    for array in out.values():
        array.setflags(write=False)
    return out


def _plain_bits(graph: Graph, op: Op) -> tuple[float, float]:
    """Buffer bits read and written outside of the array, each time the op is computed (§6)."""
    made = graph.elements(op.output)
    operands = sum(graph.tensors[name].bits for name in op.operands) * made
    if uses_array(graph, op):
        return float(operands), 0.0
    read = sum(graph.tensors[name].bits for name in op.inputs) * made
    return float(read + operands), float(graph.tensors[op.output].bits * made)
