"""Leaf tables: what each leaf can do below shared boxes, and their sums (design §8, independence).

A *top* is a box of one skeleton: ranges of the shared tiles. Below it, every leaf has a *table* of
rows: boxes of one of its layouts, whose path axes lie within the top's ranges. Given the shared tiles
and holds, leaves are independent but for the buffer: costs add, occupancy takes the maximum over
moments. So a top's bound is its own figures plus, leaf by leaf, the least of the leaf's rows; and a
row stays only if it can be part of a better solution with every other leaf at its least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mmee_solver.bounds import Boxes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one leaf: boxes, their tops (ascending), least columns (R, width), least bytes (R, L)."""

    boxes: Boxes
    top: Ints
    columns: Floats
    occupancy: Floats
    rank: Floats  # (R,) order in which rows are worth looking at, by the key of the whole solution

    def __len__(self) -> int:
        return len(self.top)

    def take(self, which: NDArray[np.generic]) -> Table:
        """A selection of rows, in order."""
        return Table(
            self.boxes.take(which),
            self.top[which],
            self.columns[which],
            self.occupancy[which],
            self.rank[which],
        )

    def moved(self, top: Ints) -> Table:
        """The same rows below other tops."""
        return Table(self.boxes, top, self.columns, self.occupancy, self.rank)

    def starts(self, tops: int) -> Ints:
        """Where the rows of each top start, and the end, (tops + 1,)."""
        return segments(self.top, tops)

    @staticmethod
    def joined(parts: Sequence[Table]) -> Table:
        """Rows of several tables, sorted by top."""
        top = np.concatenate([part.top for part in parts])
        order = np.argsort(top, kind="stable")
        return Table(
            Boxes.joined([part.boxes for part in parts]).take(order),
            top[order],
            np.concatenate([part.columns for part in parts])[order],
            np.concatenate([part.occupancy for part in parts])[order],
            np.concatenate([part.rank for part in parts])[order],
        )


@dataclass(frozen=True, slots=True)
class State:
    """Open tops (T boxes of skeletons) with their keys, four arrays (T,), and one table per leaf."""

    tops: Boxes
    keys: tuple[Floats, ...]
    tables: tuple[Table, ...]

    def __len__(self) -> int:
        return len(self.tops)

    def take(self, which: Ints) -> State:
        """A selection of tops in ascending order, with their rows."""
        place = _places(which, len(self.tops))
        tables = []
        for table in self.tables:
            top = place[table.top]
            kept = np.flatnonzero(top >= 0)
            tables.append(table.take(kept).moved(top[kept]))
        return State(self.tops.take(which), tuple(key[which] for key in self.keys), tuple(tables))

    @staticmethod
    def joined(parts: Sequence[State]) -> State:
        """All tops of several states."""
        if len(parts) == 1:
            return parts[0]
        shift = np.cumsum([0, *(len(part) for part in parts[:-1])])
        tables = [
            Table.joined([t.moved(t.top + by) for t, by in zip(tables, shift, strict=True)])
            for tables in zip(*(part.tables for part in parts), strict=True)
        ]
        keys = zip(*(part.keys for part in parts), strict=True)
        return State(
            Boxes.joined([part.tops for part in parts]),
            tuple(np.concatenate(key) for key in keys),
            tuple(tables),
        )


@dataclass(slots=True)
class Draft:
    """Tops and rows on their way to a State; rows of a leaf stay sorted by top.

    ``fresh`` marks rows whose columns and occupancy are still to be found; those of the others, whose
    boxes have not changed, stay valid bounds.
    """

    tops: Boxes
    capacity: Floats  # (T,) bytes that a better solution may occupy
    boxes: list[Boxes]
    top: list[Ints]
    columns: list[Floats]
    occupancy: list[Floats]
    fresh: list[Mask]
    starts: list[Ints] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Tops and rows in all."""
        return len(self.tops) + sum(len(top) for top in self.top)

    @classmethod
    def of(cls, tops: Boxes, capacity: Floats, boxes: list[Boxes], top: list[Ints], width: int) -> Draft:
        """All rows fresh, with ``width`` columns."""
        rows = [len(part) for part in top]
        return cls(
            tops,
            capacity,
            boxes,
            top,
            [np.zeros((n, width)) for n in rows],
            [np.zeros((n, len(rows))) for n in rows],
            [np.ones(n, dtype=np.bool_) for n in rows],
        )

    def select(self, tops_ok: Mask, rows_ok: list[Mask] | None = None) -> Ints | None:
        """Keep some tops and rows; a top that lacks rows of a leaf goes, and rows go with their top.

        Gives the numbers of the tops that stay, None if all do.
        """
        if rows_ok is not None:
            for leaf, ok in enumerate(rows_ok):
                if not ok.all():
                    self._rows(leaf, np.flatnonzero(ok))
        tops_ok = tops_ok.copy()
        for top in self.top:
            tops_ok &= np.bincount(top, minlength=len(self.tops)) > 0
        kept: Ints | None = None
        if not tops_ok.all():
            kept = np.flatnonzero(tops_ok)
            place = _places(kept, len(self.tops))
            self.tops, self.capacity = self.tops.take(kept), self.capacity[kept]
            for leaf in range(len(self.top)):
                self.top[leaf] = place[self.top[leaf]]
                self._rows(leaf, np.flatnonzero(self.top[leaf] >= 0))
        self.starts = [segments(top, len(self.tops)) for top in self.top]
        return kept

    def _rows(self, leaf: int, kept: Ints) -> None:
        if len(kept) == len(self.top[leaf]):
            return
        self.boxes[leaf], self.top[leaf] = self.boxes[leaf].take(kept), self.top[leaf][kept]
        self.columns[leaf] = self.columns[leaf][kept]
        self.occupancy[leaf] = self.occupancy[leaf][kept]
        self.fresh[leaf] = self.fresh[leaf][kept]

    def replace(self, leaf: int, which: Ints, boxes: Boxes) -> None:
        """Put other boxes in the place of some rows."""
        old = self.boxes[leaf]
        if len(which) == len(old):
            self.boxes[leaf] = boxes
            return
        low, high = old.low.copy(), old.high.copy()
        low[which], high[which] = boxes.low, boxes.high
        self.boxes[leaf] = Boxes(old.structure, low, high)


def segments(top: Ints, tops: int) -> Ints:
    """Where the rows of each top start, and the end, (tops + 1,)."""
    return np.searchsorted(top, np.arange(tops + 1))


def _places(kept: Ints, count: int) -> Ints:
    """New numbers of ``count`` things of which some are kept, -1 for the others."""
    place = np.full(count, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    return place


def least(values: Floats, starts: Ints) -> Floats:
    """Least of each segment of rows, (R, n) and (T + 1,) -> (T, n); every segment has a row."""
    return np.minimum.reduceat(values, starts[:-1], axis=0)


def most(values: Floats, starts: Ints) -> Floats:
    """Greatest of each segment of rows."""
    return np.maximum.reduceat(values, starts[:-1], axis=0)


def best_rows(table: Table, tops: int) -> Ints:
    """The row of least rank of each top."""
    order = np.lexsort((np.arange(len(table)), table.rank, table.top))
    return order[np.searchsorted(table.top[order], np.arange(tops))]


def ranks(table: Table, last: Mask) -> Ints:
    """Place of each row among the rows of its top, best first, some after all others."""
    order = np.lexsort((np.arange(len(table)), table.rank, last, table.top))
    place = np.empty(len(table), dtype=np.int64)
    place[order] = np.arange(len(table))
    first = np.searchsorted(table.top, table.top)
    return place - first
