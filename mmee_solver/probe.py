"""Promising single tilings. They only make the search quicker; the proof does not need them."""

from __future__ import annotations

import numpy as np

from mmee_solver.arena import Arena
from mmee_solver.bounds import Bounder, Boxes
from mmee_solver.settle import settle
from mmee_solver.tables import Draft, Floats, Mask, State
from mmee_solver.tighten import bound, fit


def probe(arena: Arena, state: State, count: int = 32) -> None:
    """Settle a few greedy tilings of the most promising tops: good values early, no proof."""
    order = np.sort(np.lexsort(state.keys[::-1])[:count])
    part, depth = state.take(order), max(1, count // len(order))
    tops, boxes = part.tops, []
    for table in part.tables:
        ranked = np.lexsort((np.arange(len(table)), table.rank, table.top))
        starts = table.starts(len(part))
        places = starts[:-1, None] + np.arange(depth)
        boxes.append(table.boxes.take(ranked[np.minimum(places, starts[1:, None] - 1).ravel()]))
    tops = tops.take(np.repeat(np.arange(len(part)), depth))
    grown, leaves = _grown(arena, tops, boxes)
    aligned, others = _aligned(arena, grown, leaves)
    tops = Boxes.joined([grown, aligned])
    rows = [Boxes.joined([one, other]) for one, other in zip(leaves, others, strict=True)]
    every = np.arange(len(tops))
    capacity = np.full(len(tops), arena.best.capacity)
    draft = Draft.of(tops, capacity, rows, [every] * len(rows), arena.top.width)
    fit(arena, draft)
    settle(arena, bound(arena, draft))


def _aligned(arena: Arena, tops: Boxes, leaves: list[Boxes]) -> tuple[Boxes, list[Boxes]]:
    """Round tiles of single tilings down to multiples of an array extent, which pad no pass."""
    rounded = [
        _round_down(bounder, boxes)
        for bounder, boxes in zip([arena.top, *arena.leaves], [tops, *leaves], strict=True)
    ]
    return rounded[0], rounded[1:]


def _grown(arena: Arena, tops: Boxes, leaves: list[Boxes]) -> tuple[Boxes, list[Boxes]]:
    """Fill the buffer from the least tiles of tops with one row per leaf: shared axes, then private ones.

    Bytes are linear in each axis: what is left over says how far one axis can grow.
    """
    bounders = [arena.top, *arena.leaves]
    parts = [tops, *leaves]
    limits = [bounder.values(boxes) for bounder, boxes in zip(bounders, parts, strict=True)]
    values = [low.copy() for low, _ in limits]
    axes = [np.broadcast_to(np.arange(tops.low.shape[1]), tops.low.shape)]
    for leaf, boxes in zip(arena.program.leaves, leaves, strict=True):
        mine = np.full(boxes.low.shape, -1, dtype=np.int64)
        mine[:, : leaf.path_axes.shape[1]] = leaf.path_axes[tops.structure]
        axes.append(mine)
    width = np.log(limits[0][1] / limits[0][0])
    order = np.argsort(-width, axis=1, kind="stable")
    for rank in range(order.shape[1]):
        axis = order[:, rank]
        masks = [mine == axis[:, None] for mine in axes]
        high = np.take_along_axis(limits[0][1], axis[:, None], axis=1)[:, 0]
        _grow(arena, parts, values, masks, high)
    for number in range(1, len(parts)):
        low, high = limits[number]
        encoding = arena.leaves[number - 1].encoding
        width = np.where(encoding.shared[parts[number].structure], 0.0, np.log(high / low))
        # a loop before what cuts its tile once more
        order = np.argsort(-width + 99.0 * encoding.granule[parts[number].structure], axis=1, kind="stable")
        for rank in range(order.shape[1]):
            axis = order[:, rank][:, None]
            if not (np.take_along_axis(width, axis, axis=1) > 0).any():
                continue
            masks = [np.zeros(value.shape, dtype=np.bool_) for value in values]
            np.put_along_axis(masks[number], axis, np.take_along_axis(width, axis, axis=1) > 0, axis=1)
            most_ = np.take_along_axis(high, axis, axis=1)
            outer = np.take_along_axis(encoding.outer[parts[number].structure], axis, axis=1)
            cut = np.take_along_axis(values[number], np.maximum(outer, 0), axis=1)
            _grow(arena, parts, values, masks, np.where(outer >= 0, np.minimum(most_, cut), most_)[:, 0])
    found = []
    for bounder, boxes, value in zip(bounders, parts, values, strict=True):
        index = np.maximum(bounder.tilings.floor(bounder.tilings.number[boxes.structure], value), 0)
        found.append(Boxes(boxes.structure, index, index))
    return found[0], found[1:]


def _grow(arena: Arena, parts: list[Boxes], values: list[Floats], masks: list[Mask], high: Floats) -> None:
    """Raise the masked axes of all parts of each solution to one value, at most ``high``."""
    room: Floats = np.full((len(high), len(arena.leaves)), arena.best.capacity)
    shares = np.zeros_like(room)
    start = np.zeros(len(high))
    for bounder, boxes, value, mask in zip([arena.top, *arena.leaves], parts, values, masks, strict=True):
        used, grows = bounder.bytes(boxes.structure, value)
        room -= used
        shares += (grows * mask[:, None, :]).sum(axis=2)
        start = np.maximum(start, np.where(mask, value, 0.0).max(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(shares > 0, start[:, None] * (1 + np.maximum(room, 0) / shares), np.inf)
    value_ = np.maximum(start, np.minimum(np.floor(most.min(axis=1)), high))
    for number, mask in enumerate(masks):
        values[number] = np.where(mask, value_[:, None], values[number])


def _round_down(bounder: Bounder, boxes: Boxes) -> Boxes:
    encoding, tilings_ = bounder.encoding, bounder.tilings
    value = bounder.lowest(boxes)
    size, rounded = encoding.size[boxes.structure], value.copy()
    for extent in encoding.extents:
        rounded = np.where((value >= extent) & (value < size), value - value % extent, rounded)
    index = np.maximum(tilings_.floor(tilings_.number[boxes.structure], rounded), 0)
    return Boxes(boxes.structure, index, index)
