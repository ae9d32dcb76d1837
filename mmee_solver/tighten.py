"""Contract and bound tops and rows: what cannot fit or cannot win goes (design §8)."""

from __future__ import annotations

import numpy as np

from mmee_solver.arena import Arena
from mmee_solver.bounds import DRAM, ENERGY, Boxes
from mmee_solver.encode import FORMS, READ, WRITE
from mmee_solver.objective import ROUNDING
from mmee_solver.tables import Draft, Floats, Mask, State, Table, least

PAIRS = 1 << 19  # rows times configurations looked at together: bounds the memory


def fit(arena: Arena, draft: Draft) -> None:
    """Drop and shrink what cannot fit: rows within their top, all others at their least."""
    _within(arena, draft)
    if not len(draft.tops):
        return
    own = _occupied(arena, draft)
    total = own + sum(least(o, s) for o, s in zip(draft.occupancy, draft.starts, strict=True))
    room = draft.capacity[:, None] - total
    for leaf, bounder in enumerate(arena.leaves):
        top = draft.top[leaf]
        spare = (room + least(draft.occupancy[leaf], draft.starts[leaf]))[top]
        which = np.flatnonzero(draft.fresh[leaf])
        draft.replace(leaf, which, bounder.shrink(draft.boxes[leaf].take(which), spare[which]))
        over = ~draft.fresh[leaf] & (draft.occupancy[leaf] > spare + arena.best.capacity * 1e-12).any(axis=1)
        draft.boxes[leaf].high[over] = -1
    draft.tops = arena.top.shrink(draft.tops, room + own)
    _nonempty(arena, draft)


def _occupied(arena: Arena, draft: Draft) -> Floats:
    """Least bytes during each leaf, of tops (T, L); of fresh rows, into the draft."""
    for leaf, bounder in enumerate(arena.leaves):
        which = np.flatnonzero(draft.fresh[leaf])
        boxes = draft.boxes[leaf].take(which)
        draft.occupancy[leaf][which] = bounder.occupancy(boxes)
    return arena.top.occupancy(draft.tops)


def _within(arena: Arena, draft: Draft) -> None:
    """Cut the path axes of rows to the ranges of their top; rows that change are fresh."""
    for leaf, part in enumerate(arena.program.leaves):
        boxes, top = draft.boxes[leaf], draft.top[leaf]
        axes = part.path_axes[draft.tops.structure]
        width = axes.shape[1]
        if not width:
            continue
        every, place = np.arange(len(axes))[:, None], np.maximum(axes, 0)
        real = axes >= 0
        low = np.where(real, draft.tops.low[every, place], -1)[top]
        high = np.where(real, draft.tops.high[every, place], 1 << 60)[top]
        changed = (low > boxes.low[:, :width]) | (high < boxes.high[:, :width])
        which = np.flatnonzero(changed.any(axis=1))
        if not len(which):
            continue
        new_low, new_high = boxes.low.copy(), boxes.high.copy()
        new_low[which, :width] = np.maximum(low[which], new_low[which, :width])
        new_high[which, :width] = np.minimum(high[which], new_high[which, :width])
        draft.boxes[leaf] = Boxes(boxes.structure, new_low, new_high)
        draft.fresh[leaf][which] = True
    _drop_empty(draft)


def _drop_empty(draft: Draft) -> None:
    tops_ok = np.asarray((draft.tops.low <= draft.tops.high).all(axis=1))
    rows_ok = [np.asarray((boxes.low <= boxes.high).all(axis=1)) for boxes in draft.boxes]
    draft.select(tops_ok, rows_ok)


def _nonempty(arena: Arena, draft: Draft) -> None:
    """Drop empty boxes; cut tops to the path axes that some row of every leaf still has."""
    _drop_empty(draft)
    if not len(draft.tops):
        return
    low, high = draft.tops.low.copy(), draft.tops.high.copy()
    every = np.arange(len(low))
    for leaf, part in enumerate(arena.program.leaves):
        axes = part.path_axes[draft.tops.structure]
        width = axes.shape[1]
        if not width:
            continue
        starts = draft.starts[leaf]
        lowest = np.minimum.reduceat(draft.boxes[leaf].low[:, :width], starts[:-1], axis=0)
        highest = np.maximum.reduceat(draft.boxes[leaf].high[:, :width], starts[:-1], axis=0)
        for column in range(width):
            real = np.flatnonzero(axes[:, column] >= 0)
            axis, at = axes[real, column], every[real]
            low[at, axis] = np.maximum(low[at, axis], lowest[real, column])
            high[at, axis] = np.minimum(high[at, axis], highest[real, column])
    draft.tops = Boxes(draft.tops.structure, low, high)
    _within(arena, draft)


def bound(arena: Arena, draft: Draft) -> State:
    """Bound tops and rows by cost, cheaply first; drop what is hopeless."""
    own = _filter(arena, draft, _quick(arena, draft))
    if np.isfinite(arena.best.limit[0]):
        _raise(arena, draft, own)
        own = _filter(arena, draft, _quick(arena, draft))
    if not arena.best.traffic_only:
        for leaf in range(len(arena.leaves)):
            ok = [np.ones(len(top), dtype=np.bool_) for top in draft.top]
            ok[leaf] = _configured(arena, draft, own, leaf)
            kept = draft.select(np.ones(len(draft.tops), dtype=np.bool_), ok)
            own = own if kept is None else own[kept]
        _filter(arena, draft, own)
    return _state(arena, draft)


def _quick(arena: Arena, draft: Draft) -> Floats:
    """Columns of tops (T, width); of fresh rows, with the op at its least, into the draft."""
    for leaf, bounder in enumerate(arena.leaves):
        which = np.flatnonzero(draft.fresh[leaf])
        columns, recompute = bounder.linear(bounder.view(draft.boxes[leaf].take(which)))
        if not arena.best.traffic_only:
            columns += recompute[:, None] * bounder.least
        draft.columns[leaf][which] = columns
    return arena.shared(draft.tops)


def _totals(arena: Arena, draft: Draft, own: Floats) -> tuple[Floats, Floats]:
    """Least columns and peaks of tops with every leaf at its least."""
    columns = own + sum(least(c, s) for c, s in zip(draft.columns, draft.starts, strict=True))
    bytes_ = arena.top.occupancy(draft.tops)
    bytes_ = bytes_ + sum(least(o, s) for o, s in zip(draft.occupancy, draft.starts, strict=True))
    return columns, bytes_.max(axis=1)


def _filter(arena: Arena, draft: Draft, own: Floats) -> Floats:
    """Drop hopeless tops, and rows that are hopeless with all others at their least; own of the rest."""
    total, peak = _totals(arena, draft, own)
    tops_ok = ~arena.best.hopeless(arena.best.keys(total, peak))
    rows_ok = []
    for leaf, columns in enumerate(draft.columns):
        top = draft.top[leaf]
        rest = total - least(columns, draft.starts[leaf])
        rows_ok.append(tops_ok[top] & ~arena.best.hopeless(arena.best.keys(rest[top] + columns, peak[top])))
    kept = draft.select(tops_ok, rows_ok)
    return own if kept is None else own[kept]


def _raise(arena: Arena, draft: Draft, own: Floats) -> None:
    """Raise the lowest tiles of rows and tops by what a better solution can cost."""
    weights, column, limit = _linear_limit(arena, draft, own)
    total = own[:, column] + sum(
        least(c[:, column], s) for c, s in zip(draft.columns, draft.starts, strict=True)
    )
    spare = limit - total
    for leaf, bounder in enumerate(arena.leaves):
        top = draft.top[leaf]
        mine = least(draft.columns[leaf][:, column], draft.starts[leaf])
        which = np.flatnonzero(draft.fresh[leaf])
        boxes = draft.boxes[leaf].take(which)
        fixed = draft.columns[leaf][which, column] - bounder.forms(bounder.view(boxes)) @ weights
        limits = (spare + mine)[top[which]] - fixed
        draft.replace(leaf, which, bounder.raise_low(boxes, weights, limits))
    draft.tops = arena.top.raise_low(draft.tops, weights, spare + own[:, column])
    _nonempty(arena, draft)


def _linear_limit(arena: Arena, draft: Draft, own: Floats) -> tuple[Floats, int, Floats]:
    """Weights of forms, the column that they add up to, and the most of it in a better solution."""
    traffic = np.zeros(FORMS)
    traffic[READ] = traffic[WRITE] = 1
    size = len(draft.tops)
    if arena.best.objective.name == "dram":
        return traffic, DRAM, np.full(size, arena.best.limit[0] * 8)
    if arena.best.objective.name == "latency":
        return traffic, DRAM, np.full(size, arena.best.limit[0] / arena.best.rates.dram_cycles * 8)
    if arena.best.objective.name == "energy":
        return arena.top.form_weights, ENERGY, np.full(size, arena.best.limit[0])
    total, peak = _totals(arena, draft, own)
    cycles = np.maximum(1.0, arena.best.rates.figures(total, peak).latency)
    limit = arena.best.limit[0] * (1 + ROUNDING)
    if arena.best.objective.name == "edp":
        return arena.top.form_weights, ENERGY, limit / cycles
    weight = float(arena.best.objective.energy_weight / arena.best.scale)
    return (
        arena.top.form_weights,
        ENERGY,
        (limit - float(arena.best.objective.latency_weight) * cycles) / weight,
    )


def _configured(arena: Arena, draft: Draft, own: Floats, leaf: int) -> Mask:
    """Replace the columns of a leaf's rows by the least over configurations that are not hopeless."""
    bounder, top = arena.leaves[leaf], draft.top[leaf]
    total, peak = _totals(arena, draft, own)
    rest = total - least(draft.columns[leaf], draft.starts[leaf])
    ok = np.ones(len(top), dtype=np.bool_)
    fresh = np.flatnonzero(draft.fresh[leaf])
    step = max(1, PAIRS // len(bounder.active))
    for start in range(0, len(fresh), step):
        which = fresh[start : start + step]
        view = bounder.view(draft.boxes[leaf].take(which))
        linear, recompute = bounder.linear(view)
        each = linear[:, None, :] + bounder.op(view, recompute)
        peaks = np.broadcast_to(peak[top[which]][:, None], each.shape[:2])
        able = ~arena.best.hopeless(arena.best.keys(rest[top[which]][:, None, :] + each, peaks))
        ok[which] = able.any(axis=1)
        draft.columns[leaf][which] = np.where(able[:, :, None], each, np.inf).min(axis=1)
    return ok


def _state(arena: Arena, draft: Draft) -> State:
    own = arena.shared(draft.tops)
    total, peak = _totals(arena, draft, own)
    tables = []
    for leaf, columns in enumerate(draft.columns):
        top = draft.top[leaf]
        rest = total - least(columns, draft.starts[leaf])
        keys = arena.best.keys(rest[top] + columns, peak[top])
        rank = np.empty(len(top))
        rank[np.lexsort(keys[::-1])] = np.arange(len(top))
        tables.append(Table(draft.boxes[leaf], top, columns, draft.occupancy[leaf], rank))
    return State(draft.tops, arena.best.keys(total, peak), tuple(tables))


def drop_configurations(arena: Arena, state: State) -> None:
    """Drop array configurations that no open top can use in a better solution.

    With configuration k, an op costs at least what k costs when nothing is cut, and the rest at
    least what the best open top costs without the op.
    """
    own = arena.shared(state.tops)
    parts = [least(table.columns, table.starts(len(state))) for table in state.tables]
    total = own + sum(parts)
    for bounder, part in zip(arena.leaves, parts, strict=True):
        if bounder.encoding.table is None or bounder.uncut is None:
            continue
        rest = (total - part).min(axis=0)
        columns = rest + bounder.uncut[bounder.active]
        kept = np.flatnonzero(~arena.best.hopeless(arena.best.keys(columns, np.zeros(len(columns)))))
        bounder.active = bounder.active[kept]
