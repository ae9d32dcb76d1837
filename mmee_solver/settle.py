"""Tops whose rows are all single tilings: the best joint choice, evaluated exactly (design §8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmee_solver.arena import Arena
from mmee_solver.bounds import Bounder, Boxes
from mmee_solver.program import Pick
from mmee_solver.tables import Floats, Ints, Mask, State
from mmee_solver.tilings import front

CHOICES = 1 << 18  # joint choices of leaves looked at together: bounds the memory


@dataclass(frozen=True, slots=True)
class Options:
    """What one leaf can choose from: a row of its table with a configuration, each (N,) or (N, ...)."""

    columns: Floats
    occupancy: Floats
    row: Ints
    config: Ints

    def __len__(self) -> int:
        return len(self.row)

    def take(self, which: Ints) -> Options:
        """A selection."""
        return Options(self.columns[which], self.occupancy[which], self.row[which], self.config[which])


def settle(arena: Arena, state: State) -> None:
    """Evaluate tops whose rows are all single tilings, the most promising first."""
    starts = [table.starts(len(state)) for table in state.tables]
    for index in np.lexsort(state.keys[::-1]):
        if arena.best.hopeless(tuple(key[[index]] for key in state.keys))[0]:
            arena.counts.pruned_bound += 1
            continue
        _settle_one(arena, state, *_choices(arena, state, starts, index))


def joinable(arena: Arena, state: State) -> State:
    """Drop rows (and tops left without) of which no joint choice with other rows can be better.

    Leaf by leaf, energy may be least in one row and cycles in another. Choices are compared whole here,
    with the least figures of every row's box: what is hopeless then is hopeless.
    """
    starts = [table.starts(len(state)) for table in state.tables]
    kept = [np.zeros(len(table), dtype=np.bool_) for table in state.tables]
    for index in range(len(state)):
        top, options = _choices(arena, state, starts, index)
        for leaf, mine in enumerate(options):
            others = [part if n != leaf else _least_of(mine) for n, part in enumerate(options)]
            joined = _joined(arena, top, others, bounds=True)
            if joined is None:
                break  # no joint choice at all
            _, columns, occupied, _ = joined
            able = _able(arena, mine, columns - _least_of(mine).columns, occupied)
            kept[leaf][mine.row[able]] = True
    every = np.ones(len(state), dtype=np.bool_)
    for mask, table in zip(kept, state.tables, strict=True):
        every &= np.bincount(table.top[mask], minlength=len(state)) > 0
    tables = [table.take(np.flatnonzero(mask)) for table, mask in zip(state.tables, kept, strict=True)]
    return State(state.tops, state.keys, tuple(tables)).take(np.flatnonzero(every))


def _least_of(options: Options) -> Options:
    """One option that stands for all: least columns, least bytes."""
    zero = np.zeros(1, dtype=np.int64)
    columns, occupancy = options.columns.min(axis=0), options.occupancy.min(axis=0)
    return Options(columns[None, :], occupancy[None, :], zero, zero)


def _able(arena: Arena, options: Options, columns: Floats, occupied: Floats) -> Mask:
    """Options that make, with one of some choices of the other leaves, something that is not hopeless."""
    found = np.zeros(len(options), dtype=np.bool_)
    step = max(1, CHOICES // len(columns))
    arena.spend(len(options) * len(columns))
    for start in range(0, len(options), step):
        part = slice(start, start + step)
        sums = options.columns[part, None, :] + columns[None, :, :]
        peak = np.broadcast_to(occupied.max(axis=1), sums.shape[:2])
        found[part] = (~arena.best.hopeless(arena.best.keys(sums, peak))).any(axis=1)
    return found


def _settle_one(arena: Arena, state: State, top: Boxes, options: list[Options]) -> None:
    """Choose a row and a configuration per leaf: joint choices, exactly, as long as they can be best."""
    best = arena.best
    if not np.isfinite(best.limit[0]):
        _try_first(arena, top, state, options)
    joined = _joined(arena, top, options, bounds=False)
    if joined is None:
        return
    left, columns, occupied, picks = joined
    keys = best.keys(columns, occupied.max(axis=1))
    order = np.lexsort(keys[::-1])
    while len(order := order[~best.hopeless(tuple(key[order] for key in keys))]):
        _cost(arena, top, state, left, picks[order[0]])
        order = order[1:]


def _joined(
    arena: Arena, top: Boxes, options: list[Options], bounds: bool
) -> tuple[list[Options], Floats, Floats, Ints] | None:
    """Joint choices that are not hopeless: options left, columns, bytes, and the option of every leaf.

    With ``bounds``, options stand for all tilings in their boxes.
    """
    best, width = arena.best, arena.top.width
    columns = arena.shared(top)
    occupied = arena.top.occupancy(top)
    options = list(options)
    for leaf, mine in enumerate(options):
        rest = columns[0] + sum((o.columns.min(axis=0) for o in options), np.zeros(width))
        rest = rest - mine.columns.min(axis=0)
        keys = best.keys(rest + mine.columns, np.zeros(len(mine)))
        left = mine.take(np.flatnonzero(~best.hopeless(keys)))
        options[leaf] = _undominated(left) if bounds or arena.program.exact else left
        if not len(options[leaf]):
            return None
    later = [(o.columns.min(axis=0), o.occupancy.min(axis=0)) for o in options]
    picks = np.zeros((1, 0), dtype=np.int64)
    for leaf, mine in enumerate(options):
        rest = sum((part[0] for part in later[leaf + 1 :]), np.zeros(width))
        room = sum((part[1] for part in later[leaf + 1 :]), np.zeros(len(options)))
        step = max(1, CHOICES // len(mine))
        arena.spend(len(columns) * len(mine))
        found = []
        for start in range(0, len(columns), step):
            part = slice(start, start + step)
            sums = (columns[part, None, :] + mine.columns[None, :, :]).reshape(-1, width)
            used = (occupied[part, None, :] + mine.occupancy[None, :, :]).reshape(-1, len(options))
            peak = (used + room).max(axis=1)
            fits = peak <= best.capacity * (1 + 1e-12)
            kept = np.flatnonzero(~best.hopeless(best.keys(sums + rest, peak)) & fits)
            before, chosen = np.divmod(kept, len(mine))
            found.append((sums[kept], used[kept], np.column_stack([picks[start + before], chosen])))
        columns, occupied, picks = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if not len(columns):
            return None
    return options, columns, occupied, picks


def _choices(arena: Arena, state: State, starts: list[Ints], index: int) -> tuple[Boxes, list[Options]]:
    """One top of a state, and what each of its leaves can choose from."""
    rows = [np.arange(*s[index : index + 2]) for s in starts]
    options = [_options(arena, state, leaf, mine) for leaf, mine in enumerate(rows)]
    return state.tops.take(np.array([index])), options


def _options(arena: Arena, state: State, leaf: int, rows: Ints) -> Options:
    bounder, table = arena.leaves[leaf], state.tables[leaf]
    boxes = table.boxes.take(rows)
    view = bounder.view(boxes)
    # the table's bytes are a bound of a time when the boxes may have been larger
    occupancy = bounder.occupancy(boxes)
    linear, recompute = bounder.linear(view)
    each = linear[:, None, :]
    if not arena.best.traffic_only:
        each = each + bounder.op(view, recompute)
    configs = each.shape[1]
    return Options(
        each.reshape(-1, arena.top.width),
        np.repeat(occupancy, configs, axis=0),
        np.repeat(rows, configs),
        np.tile(np.arange(configs), len(rows)),
    )


def _try_first(arena: Arena, top: Boxes, state: State, options: list[Options]) -> None:
    """Cost the choice that takes, leaf by leaf, the least key: something to compare with."""
    picks = []
    for mine in options:
        keys = arena.best.keys(mine.columns, mine.occupancy.max(axis=1))
        picks.append(np.lexsort(keys[::-1])[0])
    _cost(arena, top, state, options, np.array(picks))


def _undominated(options: Options) -> Options:
    """Options that no other one beats in all columns and all bytes; of equal ones, the first.

    All figures add up or take a maximum, so a beaten option is never needed. (Where figures of single
    tilings are only bounds, that says nothing of the tilings themselves.)
    """
    if len(options) < 2:
        return options
    table = np.concatenate([options.columns, options.occupancy], axis=1)
    order = np.lexsort((np.arange(len(table)), *table.T[::-1]))
    return options.take(np.sort(order[front(table[order])]))


def _cost(arena: Arena, top: Boxes, state: State, options: list[Options], picks: Ints) -> None:
    """Cost one candidate exactly, and keep it if it is the best."""
    leaves = []
    for bounder, table, mine, pick in zip(arena.leaves, state.tables, options, picks, strict=True):
        box = table.boxes.take(mine.row[[pick]])
        config = int(bounder.active[mine.config[pick]])
        leaves.append(Pick(int(box.structure[0]), _tiles(bounder, box), config))
    arena.counts.evaluated += 1
    arena.best.offer(arena.program.group(int(top.structure[0]), _tiles(arena.top, top), leaves))


def _tiles(bounder: Bounder, box: Boxes) -> list[int]:
    return [int(value) for value in bounder.lowest(box)[0]]
