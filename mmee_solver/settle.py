"""Tops whose rows are all single tilings: the best joint choice, evaluated exactly (design §8)."""

from __future__ import annotations

import numpy as np

from mmee_solver.arena import Arena
from mmee_solver.bounds import COLUMNS, Bounder, Boxes
from mmee_solver.emit import Chosen, emit
from mmee_solver.layouts import Layout
from mmee_solver.tables import Ints, State

CHOICES = 1 << 18  # joint choices of leaves looked at together: bounds the memory


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
    own = arena.top.linear(arena.top.view(top))[0]
    bytes_ = arena.top.occupancy(top.structure, arena.top.lowest(top))
    options = []
    for bounder, table, mine in zip(arena.leaves, state.tables, rows, strict=True):
        view = bounder.view(table.boxes.take(mine))
        linear, recompute = bounder.linear(view)
        if arena.best.traffic_only:
            each = linear[:, None, :]
        else:
            each = linear[:, None, :] + bounder.op(view, recompute)
        each_row = each.shape[1]
        options.append(
            (
                each.reshape(-1, COLUMNS),
                np.repeat(table.occupancy[mine], each_row, axis=0),
                np.repeat(mine, each_row),
                np.tile(np.arange(each_row), len(mine)),
            )
        )
    later_columns = [option[0].min(axis=0) for option in options]
    later_bytes = [option[1].min(axis=0) for option in options]
    columns, occupied = own, bytes_
    picks = np.zeros((1, 0), dtype=np.int64)
    for leaf, (each, more, _, _) in enumerate(options):
        rest = sum(later_columns[leaf + 1 :], np.zeros(COLUMNS))
        room = sum(later_bytes[leaf + 1 :], np.zeros(len(options)))
        found = []
        for start in range(0, len(columns), max(1, CHOICES // len(each))):
            stop = start + max(1, CHOICES // len(each))
            sums = (columns[start:stop, None, :] + each[None, :, :]).reshape(-1, COLUMNS)
            used = (occupied[start:stop, None, :] + more[None, :, :]).reshape(-1, len(options))
            peak = (used + room).max(axis=1)
            ok = ~arena.best.hopeless(arena.best.keys(sums + rest, peak))
            ok &= peak <= arena.best.capacity
            kept = np.flatnonzero(ok)
            left, right = np.divmod(kept, len(each))
            chosen = np.concatenate([picks[start + left], right[:, None]], axis=1)
            found.append((sums[kept], used[kept], chosen))
        if not any(len(part[0]) for part in found):
            return
        columns = np.concatenate([part[0] for part in found])
        occupied = np.concatenate([part[1] for part in found])
        picks = np.concatenate([part[2] for part in found])
    keys = arena.best.keys(columns, occupied.max(axis=1))
    order = np.lexsort(keys[::-1])
    while len(order := order[~arena.best.hopeless(tuple(key[order] for key in keys))]):
        chosen_rows = [options[leaf][2][pick] for leaf, pick in enumerate(picks[order[0]])]
        configs = [options[leaf][3][pick] for leaf, pick in enumerate(picks[order[0]])]
        _cost(arena, top, state, chosen_rows, configs)
        order = order[1:]


def _cost(arena: Arena, top: Boxes, state: State, rows: list[int], picks: list[int]) -> None:
    """Cost one candidate exactly, and keep it if it is the best; picks number active configurations."""
    skeleton = arena.program.skeletons[int(top.structure[0])]
    chosen, configs = [], {}
    for leaf, (bounder, table, row) in enumerate(zip(arena.leaves, state.tables, rows, strict=True)):
        box = table.boxes.take(np.array([row]))
        layout = bounder.encoding.structures[int(box.structure[0])]
        assert isinstance(layout, Layout)
        chosen.append(Chosen(layout, _tiles(bounder, box, len(layout.axes))))
        if bounder.encoding.table is not None:
            config = bounder.encoding.table.configs[int(bounder.active[picks[leaf]])]
            configs[skeleton.ops[leaf]] = config
    tiles = _tiles(arena.top, top, len(skeleton.axes))
    arena.counts.evaluated += 1
    arena.best.offer(emit(arena.program.space.graph, skeleton, tiles, chosen, configs))


def _tiles(bounder: Bounder, box: Boxes, axes: int) -> list[int]:
    return [int(value) for value in bounder.lowest(box)[0][:axes]]
