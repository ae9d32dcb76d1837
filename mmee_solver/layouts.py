"""Layouts: where one op's own holds and loops stand, below the shared loops on its path (design §7.3, §7.4).

Only undominated layouts are listed. Each rule below moves one hold or loop and shows that no
occupancy and no cost grows, whatever the sizes; the brute force of the tests searches without them.

1. *Holds go up.* A hold directly below a loop over a dim that its tensor lacks moves above that
   loop: fewer visits, same tile, and it was alive during the whole loop body anyway. It does not
   leave the private part, or a node: above, it would be alive during other leaves.
2. *Loops go up.* A loop below a hold (and above the next one) over a dim that all tensors held
   just above it have moves above them: smaller tiles, same visits. A prologue's axis is excepted:
   looping it above the hold costs online statistics.
3. *Loops in one gap commute*: no hold between them tells their order.
4. *Loops are whole at worst.* A loop with tile N has one step, so a private dim is looped wherever
   rules 1 and 2 leave a place for it; leaving it out is the tile N of that place.
5. *Streaming* cuts only the innermost private hold: its own dims, once more, directly above it. A
   dim whose loop is followed only by tensors that have it needs no second cut, as long as the loop
   may take every size of the cut (``recut`` says that it may not: with divisors, a granule can be an
   array extent that divides nothing).

Between whole private parts, :func:`_drop_dominated` compares symbol by symbol.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, permutations, product
from typing import overload

import numpy as np
from numpy.typing import NDArray

from mmee_solver.nest import Hold
from mmee_solver.skeletons import GRANULE, PRIVATE, SHARED, Axis, Entry, LoopAt, Skeleton
from mmee_solver.space import GroupSpace


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor of the op that the skeleton holds: loops of the path above it, leaves it is alive in."""

    tensor: str
    depth: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """What one op's layouts depend on: shared loops above it, its own tensors, those held elsewhere.

    ``loops`` pairs each dim with the leaves below its loop; ``own`` pairs each tensor that the op holds
    itself with the places on the path (loop numbers) that it may be held directly above.
    """

    leaf: int
    loops: tuple[tuple[str, tuple[int, ...]], ...]
    own: tuple[tuple[str, tuple[int, ...]], ...]
    given: tuple[Given, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Axes (those of the path first) and entries of one op, outermost first."""

    path: Path
    axes: tuple[Axis, ...]
    entries: tuple[Entry, ...]


def leaf_path(space: GroupSpace, skeleton: Skeleton, leaf: int) -> Path:
    """What the layouts of one leaf of a skeleton depend on."""
    steps = skeleton.paths[leaf]
    given, served = [], set()
    for site in skeleton.sites:
        if leaf in site.serves:
            served.add(site.tensor)
            if any(row.consumer == space.ops[leaf].name for row in space.rows) or any(
                step.tensor == site.tensor for step in space.ops[leaf].prologue
            ):
                given.append(Given(site.tensor, len(site.level), site.alive))
    own = []
    for name in dict.fromkeys(space.ops[leaf].tensors):
        if name not in served:
            own.append((name, _places(space, leaf, name, skeleton)))
    return Path(leaf, tuple((step.dim, step.leaves) for step in steps), tuple(own), tuple(given))


def _places(space: GroupSpace, leaf: int, name: str, skeleton: Skeleton) -> tuple[int, ...]:
    """Loops of the path that a tensor may be held directly above (rules 1 and 2).

    At a node with other users of the tensor, holding it for one leaf alone is holding it for all.
    """
    steps = skeleton.paths[leaf]
    own, rows = space.dims(name), space.axes_of_rows(name, leaf)
    found = []
    for number, step in enumerate(steps):
        if len(set(space.users[name]) & set(step.leaves)) > 1:
            continue
        if space.must_span(name, leaf) & {other.dim for other in steps[:number]}:
            continue
        first = number == 0 or steps[number - 1].leaves != step.leaves
        if not first and steps[number - 1].dim not in own:
            continue
        if step.dim in own and step.dim not in rows:
            continue
        found.append(number)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Part:
    """Private entries of one op, outermost first: tensor names and (dim, kind) loops."""

    entries: tuple[str | tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Stem:
    """Layouts of one path that hold the op's own tensors at the same places of it, each with a private part.

    ``places`` pairs each own tensor with the loop of the path that it is held directly above, -1: private.
    """

    path: Path
    places: tuple[tuple[str, int], ...]
    parts: tuple[Part, ...]


class Layouts(Sequence[Layout]):
    """The layouts of some stems, one after the other; each is put together when it is asked for."""

    def __init__(self, space: GroupSpace, stems: Sequence[Stem]) -> None:
        self.space, self.stems = space, tuple(stems)
        self._ends = list(accumulate(len(stem.parts) for stem in self.stems))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, number: int) -> Layout: ...
    @overload
    def __getitem__(self, number: slice) -> list[Layout]: ...
    def __getitem__(self, number: int | slice) -> Layout | list[Layout]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = bisect_right(self._ends, number)
        stem = self.stems[at]
        part = stem.parts[number - self._ends[at] + len(stem.parts)]
        return _joined(stem, part, self.space.dims_of_ops[stem.path.leaf])


class LayoutLister:
    """Lists the layouts of paths; private parts are listed once per set of shared dims and tensors.

    ``twice`` collects dims of which a part cuts a shared tile once more.
    """

    def __init__(self, space: GroupSpace, recut: bool) -> None:
        self.space, self.recut = space, recut
        self.twice: set[str] = set()
        self._cache: dict[tuple[int, frozenset[str], tuple[str, ...]], tuple[Part, ...]] = {}

    def layouts(self, path: Path) -> Layouts:
        """Every undominated layout of a path."""
        return Layouts(self.space, self.stems(path))

    def stems(self, path: Path) -> list[Stem]:
        """The same, put together by the places of the op's own tensors."""
        loops = frozenset(dim for dim, _ in path.loops)
        cut = {name: self.space.must_span(name, path.leaf) & loops for name, _ in path.own}
        own = loops.intersection(self.space.dims_of_ops[path.leaf])
        found = []
        for choice in product(*((*places, -1) for _, places in path.own)):
            named = tuple((name, place) for (name, _), place in zip(path.own, choice, strict=True))
            private = tuple(name for name, place in named if place < 0)
            if any(cut[name] for name in private):
                continue
            if parts := self._private(path.leaf, own, private):
                found.append(Stem(path, named, parts))
        return found

    def _private(self, leaf: int, own: frozenset[str], tensors: tuple[str, ...]) -> tuple[Part, ...]:
        key = (leaf, own, tensors)
        if key not in self._cache:
            found = tuple(leaf_layouts(self.space, leaf, own, tensors, self.recut))
            self.twice |= {dim for dim in own for part in found if (dim, GRANULE) in part.entries}
            self._cache[key] = found
        return self._cache[key]


def _joined(stem: Stem, part: Part, dims: Sequence[str]) -> Layout:
    """A layout; its axes are those of the path, its private loops and its granules by the op's dims."""
    path = stem.path
    axes = [Axis(dim, SHARED) for dim, _ in path.loops]
    line: list[Entry] = []
    for number in range(len(axes)):
        line += [Hold(name) for name, place in stem.places if place == number]
        line.append(LoopAt(number))
    cut = {axis.dim: number for number, axis in enumerate(axes)}
    numbers: dict[tuple[str, str], int] = {}
    for kind in (PRIVATE, GRANULE):
        for dim in dims:
            if (dim, kind) in part.entries:
                numbers[dim, kind] = len(axes)
                axes.append(Axis(dim, kind, cut.get(dim, -1) if kind == GRANULE else -1))
                cut[dim] = numbers[dim, kind]
    line += [Hold(e) if isinstance(e, str) else LoopAt(numbers[e]) for e in part.entries]
    return Layout(path, tuple(axes), tuple(line))


def leaf_layouts(
    space: GroupSpace,
    leaf: int,
    shared: Collection[str],
    tensors: Sequence[str],
    recut: bool = False,
) -> list[Part]:
    """Undominated orders of an op's private holds and loops.

    Parameters
    ----------
    space : GroupSpace
        The group.
    leaf : int
        Index of the op.
    shared : collection of str
        Dims looped above.
    tensors : sequence of str
        Tensors that are held privately.
    recut : bool
        Whether a granule may take sizes that a loop may not (rule 5).
    """
    free = [dim for dim in space.op_dims(leaf) if dim not in shared]
    found: dict[Part, None] = {}
    for order in permutations(tensors):
        levels = [_levels(space, leaf, order, dim) for dim in free]
        for choice in product(*levels):
            places = dict(zip(free, choice, strict=True))
            for granules in _granules(space, leaf, order, shared, places, recut):
                layout = _leaf_entries(order, places, granules)
                if not _misses_span(space, leaf, layout):
                    found.setdefault(layout)
    return _drop_dominated(space, leaf, tensors, list(found))


def _levels(space: GroupSpace, leaf: int, order: Sequence[str], dim: str) -> list[int]:
    """Positions for a private loop: above the hold of that index; len(order): not looped (rules 2, 4)."""
    last = len(order) - 1
    found = []
    for index in range(last):
        if dim not in space.dims(order[index]):
            continue
        before = order[index - 1] if index else None
        repeated = before is not None and dim in space.dims(before)
        if before is not None and repeated and dim not in space.axes_of_rows(before, leaf):
            continue
        found.append(index)
    axis = any(dim in space.axes_of_rows(name, leaf) for name in order)
    return found if found and not axis else [*found, len(order)]


def _granules(
    space: GroupSpace,
    leaf: int,
    order: Sequence[str],
    shared: Collection[str],
    places: Mapping[str, int],
    recut: bool,
) -> Iterator[tuple[str, ...]]:
    """Dims that streaming cuts, directly above the innermost private hold (rule 5)."""
    if not order:
        yield ()
        return
    last = order[-1]
    always: list[str] = []
    maybe: list[str] = []
    for dim in sorted(space.dims(last)):
        start = places.get(dim, len(order))
        looped = dim not in shared and start < len(order)
        if looped and not recut and all(dim in space.dims(name) for name in order[start:]):
            continue
        (maybe if dim in space.axes_of_rows(last, leaf) else always).append(dim)
    for count in range(len(maybe) + 1):
        for chosen in combinations(maybe, count):
            yield (*always, *chosen)


def _leaf_entries(order: Sequence[str], places: Mapping[str, int], granules: Sequence[str]) -> Part:
    entries: list[str | tuple[str, str]] = []
    for index, name in enumerate(order):
        entries += [(dim, PRIVATE) for dim in sorted(places) if places[dim] == index]
        if index == len(order) - 1:
            entries += [(dim, GRANULE) for dim in granules]
        entries.append(name)
    return Part(tuple(entries))


def _misses_span(space: GroupSpace, leaf: int, layout: Part) -> bool:
    """Whether a loop cuts an axis above the hold of a tensor that must span it."""
    cut: set[str] = set()
    for entry in layout.entries:
        if isinstance(entry, str):
            if space.must_span(entry, leaf) & cut:
                return True
        else:
            cut.add(entry[0])
    return False


_FINE, _TILE, _WHOLE = 0, 1, 2  # how much of a dim a tile holds, smaller first
Symbols = NDArray[np.int8]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Private parts as symbols per dim: granule 0 ≤ tile 1 ≤ whole 2; n parts, T tensors, D dims."""

    tile: Symbols  # (n, T, D) above the hold; 2 for dims that the tensor lacks
    above: Mask  # (n, T, D) loops above the hold over dims that the tensor lacks
    online: Mask  # (n, T, D) loops above it over axes of its rows
    finest: Symbols  # (n, D) what cuts a dim last; 2: nothing
    private: Mask  # (n, D)
    granule: Mask  # (n, D)

    @classmethod
    def of(cls, space: GroupSpace, leaf: int, tensors: Sequence[str], parts: Sequence[Part]) -> _Shapes:
        dims = space.op_dims(leaf)
        wide = (len(parts), len(tensors), len(dims))
        self = cls(
            np.full(wide, _WHOLE, dtype=np.int8),
            np.zeros(wide, dtype=np.bool_),
            np.zeros(wide, dtype=np.bool_),
            np.full((len(parts), len(dims)), _WHOLE, dtype=np.int8),
            np.zeros((len(parts), len(dims)), dtype=np.bool_),
            np.zeros((len(parts), len(dims)), dtype=np.bool_),
        )
        has = np.zeros(wide[1:], dtype=np.bool_)
        axes = np.zeros(wide[1:], dtype=np.bool_)
        for number, name in enumerate(tensors):
            has[number] = [dim in space.dims(name) for dim in dims]
            axes[number] = [dim in space.axes_of_rows(name, leaf) for dim in dims]
        rank = {name: number for number, name in enumerate(tensors)}
        column = {dim: number for number, dim in enumerate(dims)}
        for number, part in enumerate(parts):
            level = self.finest[number]
            for entry in part.entries:
                if isinstance(entry, str):
                    at, cut = rank[entry], level < _WHOLE
                    self.tile[number, at] = np.where(has[at], level, _WHOLE)
                    self.above[number, at] = cut & ~has[at]
                    self.online[number, at] = cut & axes[at]
                else:
                    dim, kind = column[entry[0]], entry[1]
                    level[dim] = _TILE if kind == PRIVATE else _FINE
                    (self.private if kind == PRIVATE else self.granule)[number, dim] = True
        return self

    def beats(self, one: int, others: NDArray[np.int64]) -> Mask:
        """Which of some parts (numbers) one part beats or equals.

        It does if, with every tile of the one set to the tile of the same loop in the other (whole if the
        other lacks it), each tensor's tile is at most as large, each tensor is visited over a subset of
        the loops, no dim is cut finer and no further statistics run online (a loop over a row axis counts
        as online even if a whole tile makes it a single step).
        """
        tile = np.where(self.private[others], _TILE, _WHOLE)
        fine = np.where(self.granule[others], _FINE, np.where(self.private[one], tile, _WHOLE))
        mapped = np.stack([fine, tile, np.full_like(tile, _WHOLE)], axis=2)  # (n, D, symbol)
        every = np.arange(mapped.shape[1])
        tiles = mapped[:, every[None, :], self.tile[one]]  # (n, T, D)
        cut = mapped[:, every, self.finest[one]]  # (n, D)
        visited = self.above[one] & (cut != _WHOLE)[:, None, :]
        ok = (tiles <= self.tile[others]).all(axis=(1, 2))
        ok &= ~(visited & ~self.above[others]).any(axis=(1, 2))
        ok &= ~(self.online[one] & ~self.online[others]).any(axis=(1, 2))
        ok &= (cut >= self.finest[others]).all(axis=1)
        return np.asarray(ok)


def _drop_dominated(space: GroupSpace, leaf: int, tensors: Sequence[str], parts: list[Part]) -> list[Part]:
    """Drop parts that another one beats for all sizes (see `_Shapes.beats`); equal ones keep the first."""
    shapes = _Shapes.of(space, leaf, tensors, parts)
    left = np.arange(len(parts))
    number = 0
    while number < len(left):
        one = int(left[number])
        beaten = shapes.beats(one, left)
        for at in np.flatnonzero(beaten[: number + 1]):  # an equal one before stays, and so beats this one
            beaten[at] = at != number and not shapes.beats(int(left[at]), np.array([one]))[0]
        left = left[~beaten]
        number = int(np.searchsorted(left, one, side="right"))
    return [parts[index] for index in left]
