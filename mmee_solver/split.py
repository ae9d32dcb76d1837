"""Split the most promising tops: along a shared axis, the rows of one leaf, or a clash (design §8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmee_solver.arena import Arena
from mmee_solver.bounds import DRAM, ENERGY, Bounder, Boxes
from mmee_solver.tables import Draft, Floats, Ints, Mask, State, best_rows, least, most, ranks

FEW = 512  # rows below which a round splits several times over
ROWS = 640  # rows looked at in a round, about
SPLITS = 16  # rows of one leaf below one top split at once, the most promising ones
EVEN = 0.3  # share of cost that an axis has in any case when a split is chosen


@dataclass(frozen=True, slots=True)
class Plan:
    """How each top is split: along a shared axis, else the rows of one leaf, or (leaf -1) a clash apart.

    ``shared`` (T, A) and ``own`` (R, A of each leaf) score axes; ``apart`` (R,) are the rows of a clash
    that go to the second part.
    """

    split_top: Mask
    leaf: Ints
    shared: Floats
    own: list[Floats]
    apart: list[Mask]


def divide(arena: Arena, state: State) -> Draft:
    """Split each top along the axis on which most hangs: width times its share of cost and of bytes."""
    plan = _plan(arena, state)
    rows = sum(len(table) for table in state.tables)
    # few rows are split several times over, for a round costs about the same
    times = 1 + (rows < 2 * FEW) + (rows < FEW // 2) + (rows < FEW // 8)
    both, clash = np.flatnonzero(plan.split_top), np.flatnonzero(plan.leaf < 0)
    # tops: all old ones (the first piece of those that are split), further pieces, copies of clashes
    pieces, source = _pieces(arena.top, state.tops.take(both), plan.shared[both], times)
    extra = np.arange(len(both), len(source))
    parent = both[source[extra]]
    tops = Boxes.joined([state.tops, pieces.take(extra), state.tops.take(clash)])
    tops.low[both], tops.high[both] = pieces.low[: len(both)], pieces.high[: len(both)]
    capacity = arena.best.bytes(state.keys)
    room = np.concatenate([capacity, capacity[parent], capacity[clash]])
    draft = Draft.of(tops, room, [], [], arena.top.width)
    for number in range(len(state.tables)):
        _divide_rows(arena, state, draft, number, plan, parent, times)
    return draft


def _plan(arena: Arena, state: State) -> Plan:
    count = len(state)
    cost = np.maximum(_cost_scale(arena, state), 1.0)
    shared = _scores(arena, arena.top, state.tops, cost)
    own, widest, bests = [], [], []
    for leaf, (bounder, table) in enumerate(zip(arena.leaves, state.tables, strict=True)):
        score = _scores(arena, bounder, table.boxes, cost[table.top])
        best = best_rows(table, count)
        bests.append(best)
        axes = arena.program.leaves[leaf].path_axes[state.tops.structure]
        for column in range(axes.shape[1]):
            real = np.flatnonzero(axes[:, column] >= 0)
            at = axes[real, column]
            open_ = (state.tops.low < state.tops.high)[real, at]
            shared[real, at] += np.where(open_, score[best[real], column], 0.0)
        private = np.where(bounder.encoding.shared[table.boxes.structure], 0.0, score)
        own.append(private)
        of_best = private.max(axis=1)[best]
        of_all = most(private.max(axis=1), table.starts(count))
        widest.append(np.where(of_best > 0, of_best, of_all * 1e-9))  # the others matter last
    per_leaf = np.array(widest)
    split_top = (shared.max(axis=1) > 0) & (shared.max(axis=1) >= per_leaf.max(axis=0))
    apart = _conflicts(arena, state, bests)
    clash = np.zeros(count, dtype=np.bool_)
    for table, part in zip(state.tables, apart, strict=True):
        clash[table.top[part]] = True
    return Plan(split_top & ~clash, np.where(clash, -1, per_leaf.argmax(axis=0)), shared, own, apart)


def _divide_rows(
    arena: Arena, state: State, draft: Draft, number: int, plan: Plan, parent: Ints, times: int
) -> None:
    """The rows of one leaf below the new tops; only boxes that change are fresh."""
    count, table, bounder = len(state), state.tables[number], arena.leaves[number]
    open_ = plan.own[number].max(axis=1) > 0
    splits = (~plan.split_top & (plan.leaf == number))[table.top] & open_
    splits &= ranks(table, ~open_) < max(4, min(SPLITS, ROWS // count))
    again, stay = np.flatnonzero(splits), np.flatnonzero(~splits & ~plan.apart[number])
    parts = [(table.boxes.take(stay), stay, table.top[stay], False)]
    if len(again):
        halves, of = _pieces(bounder, table.boxes.take(again), plan.own[number][again], times)
        parts.append((halves, again[of], table.top[again[of]], True))
    # a further piece of a top gets a copy of all of its rows
    starts = table.starts(count)
    sizes = np.diff(starts)[parent]
    copied = np.repeat(starts[parent] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
    copied = (copied + np.arange(len(copied))).astype(np.int64)
    place = count + np.repeat(np.arange(len(parent)), sizes)
    parts.append((table.boxes.take(copied), copied, place, False))
    # the second part of a clash gets the rows set apart, or of another leaf all rows
    clash = np.flatnonzero(plan.leaf < 0)
    parted = np.zeros(count, dtype=np.bool_)
    parted[table.top[plan.apart[number]]] = True
    moved = np.flatnonzero((plan.leaf < 0)[table.top] & (plan.apart[number] | ~parted[table.top]))
    place = count + len(parent) + np.searchsorted(clash, table.top[moved])
    parts.append((table.boxes.take(moved), moved, place, False))
    top = np.concatenate([part[2] for part in parts])
    row = np.concatenate([part[1] for part in parts])
    fresh = np.concatenate([np.full(len(part[1]), part[3]) for part in parts])
    order = np.argsort(top, kind="stable")
    draft.boxes.append(Boxes.joined([part[0] for part in parts]).take(order))
    draft.top.append(top[order])
    draft.columns.append(table.columns[row[order]])
    draft.occupancy.append(table.occupancy[row[order]])
    draft.fresh.append(fresh[order])


def _conflicts(arena: Arena, state: State, bests: list[Ints]) -> list[Mask]:
    """Rows to tell apart where the best rows of all leaves do not fit together.

    Each row fits with the least of the others, but tensors held above shared loops may crowd each
    other out. Rows of one leaf that leave the others' best rows their room, and rows that do not,
    then go their own ways: in either part some best row is out. Gives the rows that do not.
    """
    every = np.arange(len(state))
    capacity = arena.best.bytes(state.keys) * (1 + 1e-12)
    used = arena.top.occupancy(state.tops)
    best = [table.occupancy[row] for table, row in zip(state.tables, bests, strict=True)]
    used = used + sum(best)
    moment = (used - capacity[:, None]).argmax(axis=1)
    over = used[every, moment] > capacity
    lows = [least(table.occupancy, table.starts(len(state)))[every, moment] for table in state.tables]
    gain = np.array([mine[every, moment] - low for mine, low in zip(best, lows, strict=True)])
    leaf = gain.argmax(axis=0)
    found = []
    for number, table in enumerate(state.tables):
        mine = over & (leaf == number) & (gain[number] > 0)
        room = capacity - used[every, moment] + best[number][every, moment]
        allowed = np.maximum(room, lows[number])
        used_by = table.occupancy[np.arange(len(table)), moment[table.top]]
        found.append(mine[table.top] & (used_by > allowed[table.top]))
    return found


def _cost_scale(arena: Arena, state: State) -> Floats:
    """Least energy (traffic, if nothing else counts) of each top."""
    column = DRAM if arena.best.traffic_only else ENERGY
    own = arena.shared(state.tops)[:, column]
    parts = [least(table.columns[:, column], table.starts(len(state))) for table in state.tables]
    return np.asarray(own + sum(parts))


def _scores(arena: Arena, bounder: Bounder, boxes: Boxes, cost: Floats) -> Floats:
    weights = arena.top.form_columns[:, DRAM] if arena.best.traffic_only else arena.top.form_weights
    width, costs, bytes_ = bounder.sensitivity(boxes, weights)
    return np.asarray(width * (costs / cost[:, None] + bytes_ / arena.best.capacity + EVEN))


def _pieces(bounder: Bounder, boxes: Boxes, score: Floats, times: int) -> tuple[Boxes, Ints]:
    """Each box halved ``times`` over, each time along its axis of highest score, at the geometric mean.

    Gives all pieces that are not empty, and the box that each comes from: the first pieces are in the
    order of the boxes, one of each.
    """
    source, number = np.arange(len(boxes)), bounder.tilings.number
    low, high, score = boxes.low.copy(), boxes.high.copy(), score.copy()
    structure = boxes.structure
    for _ in range(times):
        every, axis = np.arange(len(source)), score.argmax(axis=1)
        lists = number[structure, axis]
        first, last = low[every, axis], high[every, axis]
        middle = np.sqrt(bounder.tilings.value(lists, first) * bounder.tilings.value(lists, last))
        cut = np.clip(bounder.tilings.floor(lists, middle), first, np.maximum(first, last - 1))
        score[every, axis] /= 2
        upper = np.flatnonzero(first < last)
        new_low = low[upper]
        new_low[np.arange(len(upper)), axis[upper]] = cut[upper] + 1
        low, high = np.concatenate([low, new_low]), np.concatenate([high, high[upper]])
        high[every[upper], axis[upper]] = cut[upper]
        structure = np.concatenate([structure, structure[upper]])
        source, score = np.concatenate([source, source[upper]]), np.concatenate([score, score[upper]])
    return Boxes(structure, low, high), source
