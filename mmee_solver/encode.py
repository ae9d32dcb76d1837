"""The matrix encoding: structures as 0/1 query matrices over log quantities of tilings (design §1, §6).

Every figure of the cost model is a sum of monomials in per-dim quantities: the tile size t, the
steps ⌈N/t⌉ and the passes of an array extent. A structure says which quantities multiply: a row of
a *query matrix*. A tiling says how large they are: a column of a *log matrix*. So

    monomials = rint(exp(query @ log)),     figure = coefficients @ monomials,

for all structures and tilings at once. What leaves share (a skeleton) and what each leaf has of its
own (a layout) are encoded apart: their figures add up. Monomials are whole numbers, and ``rint``
restores them exactly as long as they stay below 10¹³ (float64 has 2⁵³ ≈ 9·10¹⁵; the exponential of a
sum of a dozen logarithms is off by some 10⁻¹⁵ relative).

Occupancy grows and every cost falls with each tile size, so the same matrices at the corners of a
*box* of tilings bound the whole box: tiles at their least give the least occupancy, steps and
passes at the largest tiles give the least cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.arrays import OpTable, extents, op_table, uses_array
from mmee_solver.layouts import Given, Layout
from mmee_solver.nest import Hold
from mmee_solver.roles import STATISTICS_BITS, RowStep
from mmee_solver.skeletons import GRANULE, SHARED, Axis, Site, Skeleton
from mmee_solver.space import GroupSpace
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
    """Skeletons, or the layouts of one leaf, in matrix form.

    S structures, A axes, M and K monomials, L leaves of the group, D dims of the leaf's op (none for
    skeletons).
    """

    structures: tuple[Skeleton | Layout, ...]
    size: Floats  # (S, A) size of the axis' dim, 1 for an unused axis
    outer: Ints  # (S, A) axis that a granule cuts, -1 for the whole dim
    granule: NDArray[np.bool_]  # (S, A)
    shared: NDArray[np.bool_]  # (S, A)
    twice: NDArray[np.bool_]  # (S, A) whether another loop cuts the axis' dim, in this leaf or another
    tile_query: Floats  # (S, M, A)
    tile_bytes: Floats  # (S, M) bytes per unit of the monomial
    tile_doubled: Floats  # (S, M) 1 where double buffering counts the tile twice
    alive: Floats  # (S, L, M) 1 where the monomial is alive during the leaf
    step_query: Floats  # (S, K, A)
    forms: Floats  # (S, K, FORMS) in bits or vector operations
    constants: Floats  # (S, FORMS)
    recompute: Ints  # (S,) index of the monomial of recomputation, K for none
    finest: Ints  # (S, D) axis that cuts an op's dim last, -1 for none
    table: OpTable | None
    plain_bits: tuple[float, float]  # buffer bits read and written by an op that uses no array
    op_sizes: Floats  # (D,) sizes of the op's dims
    extents: tuple[int, ...]
    weights: Weights


def has_odd_bits(space: GroupSpace) -> bool:
    """Whether an element is no whole number of bytes, so that sums are rounded up."""
    return any(space.graph.tensors[name].bits % 8 for op in space.ops for name in op.tensors)


def encode_skeletons(
    space: GroupSpace, found: Sequence[Skeleton], accelerator: Accelerator, twice: frozenset[str]
) -> Encoding:
    """Encode what leaves share: the tiles and the traffic of shared holds.

    Parameters
    ----------
    space : GroupSpace
        The group; leaf i is its op i.
    found : sequence of Skeleton
        At least one.
    accelerator : Accelerator
        Double buffering and energies.
    twice : frozenset of str
        Dims whose shared tiles some leaf cuts once more.
    """
    parts = []
    for skeleton in found:
        row = _Row(skeleton.axes, {})
        for site in skeleton.sites:
            _site_terms(space, accelerator, row, site, [])
        parts.append(row)
    return _encoding(space, found, parts, accelerator, None, twice)


def encode_layouts(
    space: GroupSpace, found: Sequence[Layout], accelerator: Accelerator, twice: frozenset[str]
) -> Encoding:
    """Encode layouts of one leaf: its own tiles and traffic, its work, its row statistics.

    Parameters
    ----------
    space : GroupSpace
        The group; leaf i is its op i.
    found : sequence of Layout
        At least one, all of one leaf.
    accelerator : Accelerator
        Extents, stationarity, pipeline, rescale and energies.
    twice : frozenset of str
        Dims whose shared tiles some leaf cuts once more.
    """
    rows = [_layout_row(space, layout, accelerator) for layout in found]
    return _encoding(space, found, rows, accelerator, found[0].path.leaf, twice)


@dataclass(slots=True)
class _Row:
    """Monomials of one structure: products of axes with their coefficients."""

    axes: tuple[Axis, ...]
    finest: dict[str, int]
    steps: dict[frozenset[int], list[float]] = field(default_factory=dict)
    constants: list[float] = field(default_factory=lambda: [0.0] * FORMS)
    tiles: list[tuple[frozenset[int], float, bool, tuple[int, ...]]] = field(default_factory=list)
    recompute: frozenset[int] = frozenset()


def _layout_row(space: GroupSpace, layout: Layout, accelerator: Accelerator) -> _Row:
    path, own = layout.path, []
    level: dict[str, int] = {}
    loops = len(path.loops)
    for place, entry in enumerate(layout.entries):
        if isinstance(entry, Hold):
            on_path = next((e.axis for e in layout.entries[place:] if not isinstance(e, Hold)), loops)
            alive = path.loops[on_path][1] if on_path < loops else (path.leaf,)
            own.append(Site(entry.tensor, dict(level), alive, (path.leaf,)))
        else:
            level[layout.axes[entry.axis].dim] = entry.axis
    row = _Row(layout.axes, level)
    op_dims = space.dims_of_ops[path.leaf]
    row.recompute = frozenset(axis for axis, (dim, _) in enumerate(path.loops) if dim not in op_dims)
    if row.recompute:
        row.steps.setdefault(row.recompute, [0.0] * FORMS)
    everything = own + [_given_site(path.loops, given, path.leaf) for given in path.given]
    _vector_terms(space, row, everything, path.leaf)
    online = _online(space, everything, path.leaf)
    output = space.ops[path.leaf].output
    for site in own:
        _site_terms(space, accelerator, row, site, online if site.tensor == output else [])
    if online:
        held = next(site for site in everything if site.tensor == output)
        if held not in own:
            _statistics_tiles(space, row, held, online)
        _online_terms(space, accelerator, row, output, online)
    return row


def _given_site(loops: Sequence[tuple[str, tuple[int, ...]]], given: Given, leaf: int) -> Site:
    level = {dim: axis for axis, (dim, _) in enumerate(loops[: given.depth])}
    return Site(given.tensor, level, given.alive, (leaf,))


def _lacking(space: GroupSpace, site: Site) -> frozenset[int]:
    own = space.graph.tensors[site.tensor].dims
    return frozenset(axis for dim, axis in site.level.items() if dim not in own)


def _add(row: _Row, axes: frozenset[int], form: int, amount: float) -> None:
    """Add amount × (product of the axes' steps) to a form."""
    if axes:
        row.steps.setdefault(axes, [0.0] * FORMS)[form] += amount
    else:
        row.constants[form] += amount


def _online(space: GroupSpace, found: Sequence[Site], leaf: int) -> list[tuple[RowStep, int]]:
    """Row steps that run online into a leaf's output, each with the axis (index) that steps its rows."""
    pairs = []
    for row in space.rows:
        if row.consumer != space.ops[leaf].name:
            continue
        carrier = next((site for site in found if site.tensor == row.tensor), None)
        if carrier is not None and row.step.axis in carrier.level:
            pairs.append((row, carrier.level[row.step.axis]))
    return pairs


def _site_terms(
    space: GroupSpace,
    accelerator: Accelerator,
    row: _Row,
    site: Site,
    online: Sequence[tuple[RowStep, int]],
) -> None:
    """Tile and traffic of one hold, with the statistics that run online into it; none if it is resident."""
    if site.tensor in space.resident:
        return
    graph, roles = space.graph, space.roles
    tensor, lacking = graph.tensors[site.tensor], _lacking(space, site)
    streamed = site.tensor not in roles.internal or site.tensor in roles.leaving
    copies = 2 if accelerator.buffer.double_buffered and streamed else 1
    _tile(space, row, site, tensor.dims, copies * tensor.bits, copies > 1)
    _statistics_tiles(space, row, site, online)
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


def _tile(space: GroupSpace, row: _Row, site: Site, dims: Sequence[str], bits: int, doubled: bool) -> None:
    axes = frozenset(site.level[d] for d in dims if d in site.level)
    whole = prod(space.graph.dims[d] for d in dims if d not in site.level)
    row.tiles.append((axes, bits * whole / 8, doubled, site.alive))


def _statistics_tiles(
    space: GroupSpace, row: _Row, site: Site, online: Sequence[tuple[RowStep, int]]
) -> None:
    """Statistics beside an output.

    Double buffering doubles them only if the output is revisited, which a loop of one step does not
    do: a bound must count them once. The exact evaluation decides.
    """
    for step, _ in online:
        _tile(space, row, site, step.rows, STATISTICS_BITS, doubled=False)


def _vector_terms(space: GroupSpace, row: _Row, found: Sequence[Site], leaf: int) -> None:
    graph, op = space.graph, space.ops[leaf]
    if space.vector_work[leaf]:
        _add(row, row.recompute, VECTOR, space.vector_work[leaf])
    for step in op.prologue:
        site = next(s for s in found if s.tensor == step.tensor)
        work = float(step.vector_ops * graph.elements(step.tensor))
        _add(row, _lacking(space, site), VECTOR, work)


def _online_terms(
    space: GroupSpace,
    accelerator: Accelerator,
    row: _Row,
    output: str,
    online: Sequence[tuple[RowStep, int]],
) -> None:
    graph = space.graph
    for step, axis in online:
        lacking, elements = row.recompute, float(graph.elements(output))
        if step.step.kind == "normalize":
            _add(row, lacking, VECTOR, elements)
            continue
        form = FREE_VECTOR if accelerator.vector.rescale == "add" else VECTOR
        _add(row, lacking | {axis}, form, elements)
        _add(row, lacking, form, -elements)
        if form == VECTOR:
            bits = elements * graph.tensors[output].bits
            _add(row, lacking | {axis}, RESCALE, bits)
            _add(row, lacking, RESCALE, -bits)


def _encoding(
    space: GroupSpace,
    found: Sequence[Skeleton | Layout],
    rows: Sequence[_Row],
    accelerator: Accelerator,
    leaf: int | None,
    twice: frozenset[str],
) -> Encoding:
    """Pad every structure's monomials into common matrices."""
    graph = space.graph
    op = None if leaf is None else space.ops[leaf]
    dims = () if op is None else graph.op_dims(op)
    s, a = len(rows), max(len(row.axes) for row in rows) or 1
    m, k = max(len(row.tiles) for row in rows) or 1, max(len(row.steps) for row in rows) or 1
    out: dict[str, NDArray[Any]] = {
        "size": np.ones((s, a)),
        "outer": np.full((s, a), -1, dtype=np.int64),
        "granule": np.zeros((s, a), dtype=np.bool_),
        "shared": np.zeros((s, a), dtype=np.bool_),
        "twice": np.zeros((s, a), dtype=np.bool_),
        "tile_query": np.zeros((s, m, a)),
        "tile_bytes": np.zeros((s, m)),
        "tile_doubled": np.zeros((s, m)),
        "alive": np.zeros((s, len(space.ops), m)),
        "step_query": np.zeros((s, k, a)),
        "forms": np.zeros((s, k, FORMS)),
        "constants": np.zeros((s, FORMS)),
        "recompute": np.full(s, k, dtype=np.int64),
        "finest": np.full((s, len(dims)), -1, dtype=np.int64),
    }
    for index, row in enumerate(rows):
        _fill(out, index, row, graph, twice)
        for column, dim in enumerate(dims):
            out["finest"][index, column] = row.finest.get(dim, -1)
    for array in out.values():
        array.setflags(write=False)
    return Encoding(
        structures=tuple(found),
        table=None if op is None else op_table(graph, accelerator, op),
        plain_bits=(0.0, 0.0) if op is None else _plain_bits(graph, op),
        op_sizes=np.array([float(graph.dims[d]) for d in dims]),
        extents=extents(accelerator),
        weights=Weights.of(accelerator),
        **out,
    )


def _fill(out: dict[str, NDArray[Any]], index: int, row: _Row, graph: Graph, twice: frozenset[str]) -> None:
    for number, axis in enumerate(row.axes):
        out["size"][index, number] = graph.dims[axis.dim]
        out["outer"][index, number] = axis.outer
        out["granule"][index, number] = axis.kind == GRANULE
        out["shared"][index, number] = axis.kind == SHARED
        if axis.kind == SHARED:
            out["twice"][index, number] = axis.dim in twice
        if axis.outer >= 0:
            out["twice"][index, [number, axis.outer]] = True
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
    if row.recompute:
        out["recompute"][index] = numbers[row.recompute]


def _plain_bits(graph: Graph, op: Op) -> tuple[float, float]:
    """Buffer bits read and written outside of the array, each time the op is computed (§6)."""
    made = graph.elements(op.output)
    operands = sum(graph.tensors[name].bits for name in op.operands) * made
    if uses_array(graph, op):
        return float(operands), 0.0
    read = sum(graph.tensors[name].bits for name in op.inputs) * made
    return float(read + operands), float(graph.tensors[op.output].bits * made)
