"""Tile sizes: the list of candidate sizes of every axis, and exact step and pass counts (§7.2, §7.4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mmee_solver.encode import Encoding

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_KEY = float(1 << 26)  # above any dim size: (list number, value) pairs sort as one number


def divisors(size: int) -> tuple[int, ...]:
    """Divisors of a size, ascending.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, int(size**0.5) + 1) if size % d == 0]
    return tuple(sorted({*small, *(size // d for d in small)}))


def step_classes(size: int) -> tuple[int, ...]:
    """The smallest tile of every class of tiles with equal step counts, ascending.

    Tiles of one class have the same traffic and differ only in footprint, so the smallest stands for
    its class as long as nothing but steps counts (the DRAM objective).

    >>> step_classes(10)
    (1, 2, 3, 4, 5, 10)
    """
    root = int(size**0.5) + 1
    steps = {*range(1, root + 1), *(-(-size // t) for t in range(1, root + 1))}
    return tuple(sorted({-(-size // s) for s in steps}))


def front(rows: NDArray[np.generic]) -> list[int]:
    """Numbers of the rows that no kept row before them beats or equals in all columns.

    If rows stand in such an order that none is beaten by a later one, no two of those left beat each other.

    >>> front(np.array([[1, 5], [2, 4], [2, 6], [3, 1], [3, 1]]))
    [0, 1, 3]
    """
    kept: list[int] = []
    found = rows[:0]
    for number in range(len(rows)):
        if not (found <= rows[number]).all(axis=1).any():
            kept.append(number)
            found = rows[kept]
    return kept


@cache
def undominated_tiles(size: int, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Tiles of which no smaller one has as few steps and as few passes for every extent, ascending.

    Occupancy grows with a tile size; all other figures grow with its steps and passes. So a tile
    that is beaten in all of them can be replaced, unless a second loop cuts it again (the passes of
    the pair are not a function of the pair's own passes).

    Parameters
    ----------
    size : int
        N of the dim.
    extents : tuple of int
        Spatial extents of the arrays.

    >>> undominated_tiles(10, (1, 4))
    (1, 2, 3, 4, 5, 6, 10)
    """
    tile = np.arange(1, size + 1, dtype=np.int64)
    whole, rest = np.divmod(size, tile)
    columns = [whole + (rest > 0)]
    columns += [whole * -(-tile // s) + -(-rest // s) for s in extents if 1 < s < size]
    table = np.stack(columns, axis=1)
    _, first = np.unique(table, axis=0, return_index=True)
    first = np.sort(first)
    return tuple(int(tile[index]) for index in first[front(table[first])])


def steps_of(size: Floats, tile: Floats) -> Floats:
    """Steps of a loop: ⌈size / tile⌉."""
    return np.asarray(np.ceil(size / tile))


def passes_bound(size: Floats, low: Floats, high: Floats, extent: Floats) -> Floats:
    """Least passes of any tile in [low, high], for an array extent s; exact if low = high.

    N = q·t + r costs q·⌈t/s⌉ + ⌈r/s⌉ = ⌈(N + q·(s·⌈t/s⌉ − t)) / s⌉ passes. If ⌈t/s⌉ is the same for
    the whole range, the padding s·⌈t/s⌉ − t and q = ⌊N/t⌋ are least at its upper end; else a multiple
    of s pads nothing.
    """
    blocks = np.ceil(high / extent)
    pad = np.where(np.ceil(low / extent) == blocks, blocks * extent - high, 0.0)
    return np.asarray(np.ceil((size + np.floor(size / high) * pad) / extent))


def nested_count(size: Floats, tile: Floats, granule: Floats, extent: Floats) -> Floats:
    """Passes of a dim cut by ``tile`` and then by ``granule``; with extent ≥ granule: its steps."""

    def within(length: Floats) -> Floats:
        whole = np.floor(length / granule)
        rest = length - whole * granule
        return whole * np.ceil(granule / extent) + np.ceil(rest / extent)

    outer = np.floor(size / tile)
    return outer * within(tile) + within(size - outer * tile)


@dataclass(frozen=True)
class Tilings:
    """Candidate tile sizes per axis. A list is either all of 1..N or a table of values.

    ``table`` holds all table lists one after the other; ``start``/``length`` locate a list;
    ``identity`` marks lists of all sizes; ``number`` (S, A) gives the list of each axis.
    """

    number: Ints
    identity: NDArray[np.bool_]
    start: Ints
    length: Ints
    table: Floats
    keys: Floats

    def value(self, number: Ints, index: Ints) -> Floats:
        """Tile sizes at positions ``index`` of the lists ``number``; arrays of one shape."""
        if self.identity.all():
            return np.asarray(index + 1.0)
        place = np.minimum(self.start[number] + index, len(self.table) - 1)
        return np.where(self.identity[number], index + 1.0, self.table[place])

    def floor(self, number: Ints, value: Floats) -> Ints:
        """Position of the largest size ≤ value; -1 if there is none."""
        value = np.floor(np.minimum(value, self.length_cap))
        if self.identity.all():
            return (np.minimum(value, self.length[number]) - 1).astype(np.int64)
        found = np.searchsorted(self.keys, number * _KEY + value, side="right") - 1
        listed = found - self.start[number]
        return np.where(self.identity[number], np.minimum(value, self.length[number]) - 1, listed).astype(
            np.int64
        )

    def ceil(self, number: Ints, value: Floats) -> Ints:
        """Position of the smallest size ≥ value; the list's length if there is none."""
        value = np.ceil(np.minimum(value, self.length_cap))
        if self.identity.all():
            return (value - 1).astype(np.int64)
        found = np.searchsorted(self.keys, number * _KEY + value, side="left")
        listed = found - self.start[number]
        return np.where(self.identity[number], value - 1, listed).astype(np.int64)

    @property
    def length_cap(self) -> float:
        """A number above every tile size that keeps keys apart."""
        return _KEY - 1


def tilings(encoding: Encoding, mode: str, traffic_only: bool) -> Tilings:
    """Candidate sizes for every axis of an encoding.

    Parameters
    ----------
    encoding : Encoding
        Structures with their axes.
    mode : str
        ``integer`` (any size) or ``divisors``. Granules of streaming may also be an array extent.
    traffic_only : bool
        Only DRAM traffic is asked for: classes of equal steps stand for all integers, and a granule
        of one element is best.
    """
    lists: dict[tuple[str, int], int] = {}
    kinds = np.where(encoding.granule, 1, 0) + 2 * encoding.twice
    codes = kinds * (1 << 25) + encoding.size.astype(np.int64)
    found, number = np.unique(codes, return_inverse=True)
    for code in found:
        lists[_KINDS[int(code) >> 25], int(code) & ((1 << 25) - 1)] = len(lists)
    number = number.reshape(codes.shape)
    identity: list[bool] = []
    start: list[int] = []
    length: list[int] = []
    values: list[float] = []
    keys: list[float] = []
    for index, (kind, whole) in enumerate(lists):
        sizes = _sizes(kind, whole, mode, traffic_only, encoding.extents)
        identity.append(sizes is None)
        start.append(len(values))
        length.append(whole if sizes is None else len(sizes))
        for value in sizes or ():
            values.append(float(value))
            keys.append(index * _KEY + value)
    return Tilings(
        number,
        np.array(identity),
        np.array(start, dtype=np.int64),
        np.array(length, dtype=np.int64),
        np.array(values or [1.0]),
        np.array(keys or [-1.0]),
    )


# A granule may also be an array extent; an axis that is cut twice takes any size.
_KINDS = ("tile", "granule", "cut tile", "cut granule")
_LARGEST_FILTERED = 1 << 16


def _sizes(
    kind: str, size: int, mode: str, traffic_only: bool, extents: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The candidate sizes of one kind of axis; None for all of 1..size."""
    granule = kind.endswith("granule")
    if granule and traffic_only:
        return (1,)
    if mode == "divisors":
        found = set(divisors(size))
        if granule:
            found |= {extent for extent in extents if extent <= size}
        return tuple(sorted(found))
    if traffic_only:
        return step_classes(size)
    if kind.startswith("cut") or size > _LARGEST_FILTERED:
        return None
    return undominated_tiles(size, extents)
