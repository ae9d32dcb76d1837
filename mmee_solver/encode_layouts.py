"""The layouts of one leaf in matrix form, all at once (design §1, §6; see :mod:`mmee_solver.encode`).

A layout is a *stem* (a path and the places on it where the op's own tensors are held) with a private
*part*. Both are few; layouts, their combinations, are many. So stems and parts are turned into small
arrays one by one, and whatever depends on both is looked up for all layouts together.

Before they are packed, axes have fixed columns: the loops of the path, a private loop for every dim of
the op, a granule for every dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.arrays import OpTable
from mmee_solver.encode import (
    FORMS,
    FREE_VECTOR,
    READ,
    RESCALE,
    VECTOR,
    WRITE,
    Encoding,
    Floats,
    Ints,
    copies_of,
    encoding,
)
from mmee_solver.layouts import Layouts, Part, Stem
from mmee_solver.roles import STATISTICS_BITS, RowStep
from mmee_solver.skeletons import GRANULE, PRIVATE
from mmee_solver.space import GroupSpace

Mask = NDArray[np.bool_]
_PRIVATE, _ELSEWHERE = -1, -2  # places of tensors that are held privately, or by others
_FINE = {PRIVATE: 1, GRANULE: 2}  # what cuts a dim last within a part; 0: nothing


def encode_layouts(
    space: GroupSpace,
    stems: Sequence[Stem],
    accelerator: Accelerator,
    twice: frozenset[str],
    configurations: OpTable | None,
) -> Encoding:
    """Encode layouts of one leaf: its own tiles and traffic, its work, its row statistics.

    Parameters
    ----------
    space : GroupSpace
        The group; leaf i is its op i.
    stems : sequence of Stem
        At least one, all of one leaf; their layouts are encoded one after the other.
    accelerator : Accelerator
        Extents, stationarity, pipeline, rescale and energies.
    twice : frozenset of str
        Dims whose shared tiles some leaf cuts once more.
    configurations : OpTable or None
        The op's array configurations.
    """
    table = _Layouts.of(space, stems)
    matrices = _axes(table, twice) | _tiles(table, accelerator) | _steps(table, accelerator)
    packed = _packed(table, matrices)
    return encoding(space, Layouts(space, stems), accelerator, table.leaf, configurations, packed)


@dataclass(frozen=True)
class _Layouts:
    """Layouts as arrays: n layouts, S stems, P loops on a path at most, T tensors, D dims, L leaves.

    A = P + 2 D columns of axes. ``level`` has the column that cuts each dim last above each hold.
    """

    space: GroupSpace
    leaf: int
    tensors: tuple[str, ...]
    dims: tuple[str, ...]
    loops: list[tuple[str, ...]]  # of each stem
    stem: Ints  # (n,)
    own: Mask  # (n, T) whether the op holds the tensor itself
    alive: Mask  # (n, T, L)
    has: Mask  # (T, D) dims of the tensors
    level: Ints  # (n, T, D) -1: not cut
    lacked: Mask  # (n, T, P) loops of the path above the hold over dims that the op lacks
    recompute: Mask  # (n, P) all such loops
    finest: Ints  # (n, D) column that cuts a dim last of all
    private: Mask  # (n, D)
    granule: Mask  # (n, D)
    outer: Ints  # (n, D) column that a granule cuts

    @property
    def path(self) -> int:
        """P."""
        return int(self.recompute.shape[1])

    @property
    def columns(self) -> int:
        """A."""
        return self.path + 2 * len(self.dims)

    @classmethod
    def of(cls, space: GroupSpace, stems: Sequence[Stem]) -> _Layouts:
        leaf = stems[0].path.leaf
        tensors, dims = tuple(dict.fromkeys(space.ops[leaf].tensors)), space.dims_of_ops[leaf]
        loops = [tuple(dim for dim, _ in stem.path.loops) for stem in stems]
        parts = {id(part): part for stem in stems for part in stem.parts}
        number = {key: index for index, key in enumerate(parts)}
        cuts, kinds = _cuts(list(parts.values()), tensors, dims)
        stem = np.repeat(np.arange(len(stems)), [len(one.parts) for one in stems])
        part = np.array([number[id(one)] for each in stems for one in each.parts], dtype=np.int64)
        place, own, alive = _places(stems, tensors, len(space.ops))
        width = max(map(len, loops))
        path = np.array(
            [
                [*(dims.index(d) if d in dims else -1 for d in one), *[-2] * (width - len(one))]
                for one in loops
            ],
            dtype=np.int64,
        ).reshape(len(stems), width)
        column = np.full((len(stems), len(dims)), -1, dtype=np.int64)  # of a dim's loop on the path
        at, loop = np.nonzero(path >= 0)
        column[at, path[at, loop]] = loop
        every, step = np.arange(len(dims)), np.arange(width)
        place, column, lacks = place[stem], column[stem], (path == -1)[stem]
        depth = np.where(place == _PRIVATE, width, place)
        above = np.where(column[:, None, :] < depth[:, :, None], column[:, None, :], -1)
        fine = np.where((place == _PRIVATE)[:, :, None], cuts[part][:, :-1], 0)
        last = cuts[part][:, -1]
        private, granule = kinds[part][:, 0], kinds[part][:, 1]
        return cls(
            space,
            leaf,
            tensors,
            dims,
            loops,
            stem,
            own[stem],
            alive[stem],
            np.array([[d in space.graph.tensors[name].dims for d in dims] for name in tensors]),
            np.where(fine > 0, width + (fine - 1) * len(dims) + every, above),
            lacks[:, None, :] & (step < depth[:, :, None]),
            lacks,
            np.where(last > 0, width + (last - 1) * len(dims) + every, column),
            private,
            granule,
            np.where(granule, np.where(column >= 0, column, np.where(private, width + every, -1)), -1),
        )

    def mask(self, columns: Ints) -> Mask:
        """Columns of axes as 0/1 rows: (..., D) numbers, -1 for none, to (..., A)."""
        found = np.zeros((*columns.shape[:-1], self.columns + 1), dtype=np.bool_)
        np.put_along_axis(found, np.where(columns < 0, self.columns, columns), True, axis=-1)
        return found[..., :-1]

    def online(self) -> list[tuple[RowStep, Ints]]:
        """Row steps of this op, with the column (n,) that steps each's rows above their hold, -1: none."""
        found = []
        for row in self.space.rows:
            if row.consumer == self.space.ops[self.leaf].name:
                tensor, dim = self.tensors.index(row.tensor), self.dims.index(row.step.axis)
                found.append((row, self.level[:, tensor, dim]))
        return found

    def wholes(self, tensor: int, has: Mask) -> Floats:
        """Product of the sizes of some dims (D,) that nothing cuts above a tensor's hold, (n,)."""
        sizes = np.array([float(self.space.graph.dims[d]) for d in self.dims])
        return np.asarray(np.where(has & (self.level[:, tensor] < 0), sizes, 1.0).prod(axis=1))


def _cuts(parts: Sequence[Part], tensors: Sequence[str], dims: Sequence[str]) -> tuple[Ints, Mask]:
    """What cuts each dim last above each tensor, and below all, (Q, T + 1, D); kinds of loops (Q, 2, D)."""
    cuts = np.zeros((len(parts), len(tensors) + 1, len(dims)), dtype=np.int64)
    kinds = np.zeros((len(parts), 2, len(dims)), dtype=np.bool_)
    for number, part in enumerate(parts):
        level = [0] * len(dims)
        for entry in part.entries:
            if isinstance(entry, str):
                cuts[number, tensors.index(entry)] = level
            else:
                dim = dims.index(entry[0])
                level[dim] = _FINE[entry[1]]
                kinds[number, level[dim] - 1, dim] = True
        cuts[number, -1] = level
    return cuts, kinds


def _places(stems: Sequence[Stem], tensors: Sequence[str], leaves: int) -> tuple[Ints, Mask, Mask]:
    """Where on the path each tensor is held, whether by the op itself, and leaves it is alive in."""
    place = np.full((len(stems), len(tensors)), _ELSEWHERE, dtype=np.int64)
    own = np.zeros((len(stems), len(tensors)), dtype=np.bool_)
    alive = np.zeros((len(stems), len(tensors), leaves), dtype=np.bool_)
    rank = {name: index for index, name in enumerate(tensors)}
    for number, stem in enumerate(stems):
        path = stem.path
        for name, position in stem.places:
            at = rank[name]
            place[number, at], own[number, at] = position, True
            alive[number, at, list(path.loops[position][1]) if position >= 0 else path.leaf] = True
        for given in path.given:
            place[number, rank[given.tensor]] = given.depth
            alive[number, rank[given.tensor], list(given.alive)] = True
    return place, own, alive


def _axes(table: _Layouts, twice: frozenset[str]) -> dict[str, NDArray[Any]]:
    """Sizes and kinds of axes, (n, A) each; ``used`` says which there are."""
    graph, n, width, count = table.space.graph, len(table.stem), table.path, len(table.dims)
    path_size = np.ones((len(table.loops), width))
    path_used = np.zeros((len(table.loops), width), dtype=np.bool_)
    path_twice = np.zeros((len(table.loops), width), dtype=np.bool_)
    for number, loops in enumerate(table.loops):
        path_size[number, : len(loops)] = [graph.dims[dim] for dim in loops]
        path_used[number, : len(loops)] = True
        path_twice[number, : len(loops)] = [dim in twice for dim in loops]
    sizes = np.array([float(graph.dims[dim]) for dim in table.dims])
    none = np.zeros((n, count), dtype=np.bool_)
    shared = path_used[table.stem]
    granule = np.concatenate([np.zeros_like(shared), none, table.granule], axis=1)
    cut_by = np.where(table.granule, table.outer, -1)
    again = np.concatenate([path_twice[table.stem], none, table.outer >= 0], axis=1) | table.mask(cut_by)
    own_sizes = [np.where(kind, sizes, 1.0) for kind in (table.private, table.granule)]
    return {
        "used": np.concatenate([shared, table.private, table.granule], axis=1),
        "size": np.concatenate([path_size[table.stem], *own_sizes], axis=1),
        "outer": np.concatenate([np.full((n, width + count), -1), table.outer], axis=1),
        "granule": granule,
        "shared": np.concatenate([shared, none, none], axis=1),
        "twice": again,
        "finest": table.finest,
    }


def _tiles(table: _Layouts, accelerator: Accelerator) -> dict[str, NDArray[Any]]:
    """Tiles of the op's own tensors, and of statistics beside its output.

    Double buffering doubles statistics only if the output is revisited, which a loop of one step does
    not do: a bound must count them once. The exact evaluation decides.
    """
    graph = table.space.graph
    queries, sizes, doubled, alive = [], [], [], []

    def add(tensor: int, has: Mask, bits: int, copies: int, counted: Mask) -> None:
        queries.append(table.mask(np.where(has, table.level[:, tensor], -1)))
        sizes.append(np.where(counted, copies * bits * table.wholes(tensor, has) / 8, 0.0))
        doubled.append(np.where(counted, float(copies > 1), 0.0))
        alive.append(table.alive[:, tensor])

    for number, name in enumerate(table.tensors):
        copies = copies_of(table.space, accelerator, name)
        add(number, table.has[number], graph.tensors[name].bits, copies, table.own[:, number])
    output = table.tensors.index(table.space.ops[table.leaf].output)
    for row, axis in table.online():
        has = np.array([dim in row.rows for dim in table.dims])
        add(output, has, STATISTICS_BITS, 1, axis >= 0)
    size = np.stack(sizes, axis=1)
    return {
        "tile_query": np.stack(queries, axis=1),
        "tile_bytes": size,
        "tile_doubled": np.stack(doubled, axis=1),
        "alive": np.stack(alive, axis=1),  # (n, M, L)
    }


def _steps(table: _Layouts, accelerator: Accelerator) -> dict[str, NDArray[Any]]:
    """Monomials of steps: traffic of the op's own tensors, vector work, statistics of rows."""
    space, n = table.space, len(table.stem)
    graph, op = space.graph, space.ops[table.leaf]
    constants = np.zeros((n, FORMS))
    pad = np.zeros((n, 2 * len(table.dims)), dtype=np.bool_)
    again = np.concatenate([table.recompute, pad], axis=1)
    masks, forms = [again], [np.zeros((n, FORMS))]
    forms[0][:, VECTOR] += space.vector_work[table.leaf]
    for number, name in enumerate(table.tensors):
        lacking = table.mask(np.where(table.has[number], -1, table.level[:, number]))
        lacking |= np.concatenate([table.lacked[:, number], pad], axis=1)
        amount, own = np.zeros((n, FORMS)), table.own[:, number]
        bits = float(graph.bits(name))
        if name in space.roles.inputs:
            amount[own, READ] = bits
        elif name == op.output:
            moved = np.full(n, bits)
            for row, axis in table.online():
                moved += np.where(axis >= 0, STATISTICS_BITS * float(_product(graph.dims, row.rows)), 0.0)
            amount[own, READ] = amount[own, WRITE] = moved[own]
            constants[own, READ] -= moved[own]
            constants[own, WRITE] -= moved[own] - bits
        for step in op.prologue:
            if step.tensor == name:
                amount[:, VECTOR] += float(step.vector_ops * graph.elements(name))
        masks.append(lacking)
        forms.append(amount)
    elements = float(graph.elements(op.output))
    rescaled = elements * graph.tensors[op.output].bits
    for row, axis in table.online():
        stepped = (axis >= 0).astype(np.float64)
        if row.step.kind == "normalize":
            forms[0][:, VECTOR] += elements * stepped
            continue
        work = {FREE_VECTOR: elements}
        if accelerator.vector.rescale != "add":
            work = {VECTOR: elements, RESCALE: rescaled}
        amount = np.zeros((n, FORMS))
        for form, each in work.items():
            amount[:, form] = each * stepped
        masks.append(again | table.mask(axis[:, None]))
        forms.append(amount)
        forms[0] -= amount
    return _merged(np.stack(masks, axis=1), np.stack(forms, axis=1), constants)


def _product(sizes: Any, dims: Sequence[str]) -> int:
    found = 1
    for dim in dims:
        found *= sizes[dim]
    return found


def _merged(masks: Mask, forms: Floats, constants: Floats) -> dict[str, NDArray[Any]]:
    """Monomials over equal axes as one, those over none among the constants; the first stays in any case."""
    codes = masks @ (1 << np.arange(masks.shape[2], dtype=np.int64))
    count = codes.shape[1]
    for later in range(1, count):
        for first in range(later):
            same = (codes[:, first] == codes[:, later])[:, None] & (forms[:, later] != 0)
            forms[:, first] += np.where(same, forms[:, later], 0.0)
            forms[:, later] = np.where(same, 0.0, forms[:, later])
    plain = codes == 0
    constants = constants + np.where(plain[:, :, None], forms, 0.0).sum(axis=1)
    used = ~plain & (forms != 0).any(axis=2)
    used[:, 0] = ~plain[:, 0]
    recompute = np.where(plain[:, 0], -1, 0)  # sorting keeps it in front
    return {
        "step_used": used,
        "step_query": masks,
        "forms": np.where(used[:, :, None], forms, 0.0),
        "constants": constants,
        "recompute": recompute,
    }


def _packed(table: _Layouts, found: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The matrices of an encoding: axes and monomials that a layout does not use left out."""
    used = found.pop("used")
    axes = _front(used)
    place = np.where(used, np.cumsum(used, axis=1) - 1, -1)
    place = np.concatenate([place, np.full((len(used), 1), -1)], axis=1)  # for -1
    tiles, steps = _front(found["tile_bytes"] > 0), _front(found.pop("step_used"))

    def along(values: NDArray[Any], order: Ints, axis: int) -> NDArray[Any]:
        shape = [1] * values.ndim
        shape[0], shape[axis] = order.shape
        return np.take_along_axis(values, order.reshape(shape), axis=axis)

    def query(values: Mask, order: Ints) -> Floats:
        return along(along(values, order, 1), axes, 2).astype(np.float64)

    outer = np.take_along_axis(place, along(found["outer"], axes, 1), axis=1)
    steps_query = query(found["step_query"], steps)
    forms = along(found["forms"], steps, 1)
    live = (forms != 0).any(axis=2)
    live[:, 0] |= found["recompute"] == 0
    recompute = np.where(found["recompute"] == 0, 0, steps.shape[1])
    return {
        "size": along(found["size"], axes, 1),
        "outer": outer,
        "granule": along(found["granule"], axes, 1),
        "shared": along(found["shared"], axes, 1),
        "twice": along(found["twice"], axes, 1),
        "tile_query": query(found["tile_query"], tiles),
        "tile_bytes": along(found["tile_bytes"], tiles, 1),
        "tile_doubled": along(found["tile_doubled"], tiles, 1),
        "alive": along(found["alive"], tiles, 1).transpose(0, 2, 1).astype(np.float64),
        "step_query": steps_query * live[:, :, None],
        "forms": forms,
        "constants": found["constants"],
        "recompute": recompute.astype(np.int64),
        "finest": np.take_along_axis(place, found["finest"], axis=1),
    }


def _front(used: Mask) -> Ints:
    """Numbers of the used columns of each row first, in order, as many as any row has (one at least)."""
    width = max(1, int(used.sum(axis=1).max(initial=0)))
    return np.argsort(~used, axis=1, kind="stable")[:, :width]
