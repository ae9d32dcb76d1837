"""The matrix encoding: structures as 0/1 query matrices over log quantities of tilings (design §1, §6).

Every figure of the cost model is a sum of monomials in per-dim quantities: the tile size t, the
steps ⌈N/t⌉ and the passes of an array extent. A structure says which quantities multiply: a row of
a *query matrix*. A tiling says how large they are: a column of a *log matrix*. So

    monomials = rint(exp(query @ log)),     figure = coefficients @ monomials,

for all structures and tilings at once. What leaves share (a skeleton) and what each leaf has of its
own (a layout) are encoded apart: their figures add up. Monomials are whole numbers, and ``rint``
restores them exactly as long as they stay below 10¹³ (float64 has 2⁵³ ≈ 9·10¹⁵; the exponential of a
sum of a dozen logarithms is off by some 10⁻¹⁵ relative). Layouts are put into matrices by
:mod:`mmee_solver.encode_layouts`.

Occupancy grows and every cost falls with each tile size, so the same matrices at the corners of a
*box* of tilings bound the whole box: tiles at their least give the least occupancy, steps and
passes at the largest tiles give the least cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.arrays import OpTable, extents, uses_array
from mmee_solver.layouts import Layout
from mmee_solver.skeletons import Axis, Site, Skeleton
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

    structures: Sequence[Skeleton | Layout]
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
    rows = []
    for skeleton in found:
        row = _Row(skeleton.axes)
        for site in skeleton.sites:
            _site_terms(space, accelerator, row, site)
        rows.append(row)
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
        "finest": np.full((s, 0), -1, dtype=np.int64),
    }
    for index, row in enumerate(rows):
        _fill(out, index, row, space.graph, twice)
    return encoding(space, found, accelerator, None, None, out)


def encoding(
    space: GroupSpace,
    found: Sequence[Skeleton | Layout],
    accelerator: Accelerator,
    leaf: int | None,
    table: OpTable | None,
    matrices: Mapping[str, NDArray[Any]],
) -> Encoding:
    """Matrices of skeletons, or of the layouts of one leaf, with what holds for all of them."""
    graph = space.graph
    op = None if leaf is None else space.ops[leaf]
    for array in matrices.values():
        array.setflags(write=False)
    return Encoding(
        structures=found,
        table=table,
        plain_bits=(0.0, 0.0) if op is None else _plain_bits(graph, op),
        op_sizes=np.array([float(graph.dims[d]) for d in (() if op is None else graph.op_dims(op))]),
        extents=extents(accelerator),
        weights=Weights.of(accelerator),
        **matrices,
    )


@dataclass(slots=True)
class _Row:
    """Monomials of one skeleton: products of axes with their coefficients."""

    axes: tuple[Axis, ...]
    steps: dict[frozenset[int], list[float]] = field(default_factory=dict)
    constants: list[float] = field(default_factory=lambda: [0.0] * FORMS)
    tiles: list[tuple[frozenset[int], float, bool, tuple[int, ...]]] = field(default_factory=list)


def _add(row: _Row, axes: frozenset[int], form: int, amount: float) -> None:
    """Add amount × (product of the axes' steps) to a form."""
    if axes:
        row.steps.setdefault(axes, [0.0] * FORMS)[form] += amount
    else:
        row.constants[form] += amount


def _site_terms(space: GroupSpace, accelerator: Accelerator, row: _Row, site: Site) -> None:
    """Tile and traffic of one hold; none if its tensor is resident."""
    if site.tensor in space.resident:
        return
    graph, roles, level = space.graph, space.roles, site.level
    tensor = graph.tensors[site.tensor]
    lacking = frozenset(axis for dim, axis in level.items() if dim not in tensor.dims)
    copies = copies_of(space, accelerator, site.tensor)
    axes = frozenset(level[d] for d in tensor.dims if d in level)
    whole = prod(graph.dims[d] for d in tensor.dims if d not in level)
    row.tiles.append((axes, copies * tensor.bits * whole / 8, copies > 1, site.alive))
    bits = float(graph.bits(site.tensor))
    if site.tensor in roles.inputs:
        _add(row, lacking, READ, bits)
    elif site.tensor not in roles.internal:
        raise AssertionError(f"{site.tensor} is made and leaves: its op holds it alone")
    elif site.tensor in roles.leaving:
        row.constants[WRITE] += bits


def copies_of(space: GroupSpace, accelerator: Accelerator, tensor: str) -> int:
    """How often a tile counts: twice where double buffering meets a tensor that moves."""
    roles = space.roles
    streamed = tensor not in roles.internal or tensor in roles.leaving
    return 2 if accelerator.buffer.double_buffered and streamed else 1


def _fill(out: dict[str, NDArray[Any]], index: int, row: _Row, graph: Graph, twice: frozenset[str]) -> None:
    for number, axis in enumerate(row.axes):
        out["size"][index, number] = graph.dims[axis.dim]
        out["shared"][index, number] = True
        out["twice"][index, number] = axis.dim in twice
    for number, (axes, size, doubled, alive) in enumerate(row.tiles):
        out["tile_query"][index, number, list(axes)] = 1
        out["tile_bytes"][index, number] = size
        out["tile_doubled"][index, number] = doubled
        out["alive"][index, list(alive), number] = 1
    for number, (axes, forms) in enumerate(row.steps.items()):
        out["step_query"][index, number, list(axes)] = 1
        out["forms"][index, number] = forms
    out["constants"][index] = row.constants


def _plain_bits(graph: Graph, op: Op) -> tuple[float, float]:
    """Buffer bits read and written outside of the array, each time the op is computed (§6)."""
    made = graph.elements(op.output)
    operands = sum(graph.tensors[name].bits for name in op.operands) * made
    if uses_array(graph, op):
        return float(operands), 0.0
    read = sum(graph.tensors[name].bits for name in op.inputs) * made
    return float(read + operands), float(graph.tensors[op.output].bits * made)
