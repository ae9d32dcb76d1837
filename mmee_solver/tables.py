"""Leaf tables: what each leaf can do below shared boxes, and their sums (design §8, independence).

A *top* is a box of one skeleton: ranges of the shared tiles. Below it, every leaf has a *table* of
rows: boxes of one of its layouts, whose path axes lie within the top's ranges. Given the shared tiles
and holds, leaves are independent but for the buffer: costs add, occupancy takes the maximum over
moments. So a top's bound is its own figures plus, leaf by leaf, the least of the leaf's rows; and a
row stays only if it can be part of a better solution with every other leaf at its least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmee_solver.bounds import Boxes

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one leaf: boxes, their tops (ascending), least columns (R, COLUMNS), least bytes (R, L)."""

    boxes: Boxes
    top: Ints
    columns: Floats
    occupancy: Floats
    rank: Floats  # (R,) order in which rows are worth looking at: the first key of the whole solution

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
        return np.searchsorted(self.top, np.arange(tops + 1))

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
        place = np.full(len(self.tops), -1, dtype=np.int64)
        place[which] = np.arange(len(which))
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


def least(values: Floats, starts: Ints) -> Floats:
    """Least of each segment of rows, (R, n) and (T + 1,) -> (T, n); every segment has a row."""
    return np.minimum.reduceat(values, starts[:-1], axis=0)


def most(values: Ints, starts: Ints) -> Ints:
    """Greatest of each segment of rows."""
    return np.maximum.reduceat(values, starts[:-1], axis=0)
