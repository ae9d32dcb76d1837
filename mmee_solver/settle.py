"""Tops whose rows are all single tilings: the best joint choice, evaluated exactly (design §8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmee_solver.arena import Arena
from mmee_solver.bounds import COLUMNS, Bounder, Boxes
from mmee_solver.emit import Chosen, emit
from mmee_solver.layouts import Layout
from mmee_solver.tables import Floats, Ints, State

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
        rows = [np.arange(s[index], s[index + 1]) for s in starts]
        _settle_one(arena, state.tops.take(np.array([index])), state, rows)


def _settle_one(arena: Arena, top: Boxes, state: State, rows: list[Ints]) -> None:
    """Choose a row and a configuration per leaf: joint choices, exactly, as long as they can be best."""
    best = arena.best
    columns = arena.top.linear(arena.top.view(top))[0]
    occupied = arena.top.occupancy(top.structure, arena.top.lowest(top))
    options = [_options(arena, state, leaf, mine) for leaf, mine in enumerate(rows)]
    if not np.isfinite(best.limit[0]):
        _try_first(arena, top, state, options)
    for leaf, mine in enumerate(options):
        rest = columns[0] + sum((o.columns.min(axis=0) for o in options), np.zeros(COLUMNS))
        rest = rest - mine.columns.min(axis=0)
        keys = best.keys(rest + mine.columns, np.zeros(len(mine)))
        options[leaf] = _undominated(arena, mine.take(np.flatnonzero(~best.hopeless(keys))))
        if not len(options[leaf]):
            return
    later = [(o.columns.min(axis=0), o.occupancy.min(axis=0)) for o in options]
    picks = np.zeros((1, 0), dtype=np.int64)
    for leaf, mine in enumerate(options):
        rest = sum((part[0] for part in later[leaf + 1 :]), np.zeros(COLUMNS))
        room = sum((part[1] for part in later[leaf + 1 :]), np.zeros(len(options)))
        step = max(1, CHOICES // len(mine))
        found = []
        for start in range(0, len(columns), step):
            part = slice(start, start + step)
            sums = (columns[part, None, :] + mine.columns[None, :, :]).reshape(-1, COLUMNS)
            used = (occupied[part, None, :] + mine.occupancy[None, :, :]).reshape(-1, len(options))
            peak = (used + room).max(axis=1)
            ok = ~best.hopeless(best.keys(sums + rest, peak)) & (peak <= best.capacity)
            kept = np.flatnonzero(ok)
            left, right = np.divmod(kept, len(mine))
            chosen = np.concatenate([picks[start + left], right[:, None]], axis=1)
            found.append((sums[kept], used[kept], chosen))
        columns, occupied, picks = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if not len(columns):
            return
    keys = best.keys(columns, occupied.max(axis=1))
    order = np.lexsort(keys[::-1])
    while len(order := order[~best.hopeless(tuple(key[order] for key in keys))]):
        _cost(arena, top, state, options, picks[order[0]])
        order = order[1:]


def _options(arena: Arena, state: State, leaf: int, rows: Ints) -> Options:
    bounder, table = arena.leaves[leaf], state.tables[leaf]
    boxes = table.boxes.take(rows)
    view = bounder.view(boxes)
    # the table's bytes are a bound of a time when the boxes may have been larger
    occupancy = bounder.occupancy(boxes.structure, view.low)
    linear, recompute = bounder.linear(view)
    each = linear[:, None, :]
    if not arena.best.traffic_only:
        each = each + bounder.op(view, recompute)
    configs = each.shape[1]
    return Options(
        each.reshape(-1, COLUMNS),
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


def _undominated(arena: Arena, options: Options) -> Options:
    """Options that no other one beats in all columns and all bytes; of equal ones, the first.

    All figures add up or take a maximum, so a beaten option is never needed, unless columns or bytes
    are only bounds: then every option stays.
    """
    if not arena.program.exact or len(options) < 2:
        return options
    table = np.concatenate([options.columns, options.occupancy], axis=1)
    order = np.lexsort((np.arange(len(table)), *table.T[::-1]))
    kept: list[int] = []
    front = np.zeros((0, table.shape[1]))
    for index in order:
        if not (front <= table[index]).all(axis=1).any():
            kept.append(int(index))
            front = np.concatenate([front, table[index : index + 1]])
    return options.take(np.sort(np.array(kept)))


def _cost(arena: Arena, top: Boxes, state: State, options: list[Options], picks: Ints) -> None:
    """Cost one candidate exactly, and keep it if it is the best."""
    skeleton = arena.program.skeletons[int(top.structure[0])]
    chosen, configs = [], {}
    for leaf, (bounder, mine, pick) in enumerate(zip(arena.leaves, options, picks, strict=True)):
        box = state.tables[leaf].boxes.take(mine.row[[pick]])
        layout = bounder.encoding.structures[int(box.structure[0])]
        assert isinstance(layout, Layout)
        chosen.append(Chosen(layout, _tiles(bounder, box, len(layout.axes))))
        if bounder.encoding.table is not None:
            config = bounder.encoding.table.configs[int(bounder.active[mine.config[pick]])]
            configs[skeleton.ops[leaf]] = config
    tiles = _tiles(arena.top, top, len(skeleton.axes))
    arena.counts.evaluated += 1
    arena.best.offer(emit(arena.program.space.graph, skeleton, tiles, chosen, configs))


def _tiles(bounder: Bounder, box: Boxes, axes: int) -> list[int]:
    return [int(value) for value in bounder.lowest(box)[0][:axes]]
