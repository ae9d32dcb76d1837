"""Promising single tilings of a box. They only make the search quicker; the proof does not need them."""

from __future__ import annotations

import numpy as np

from mmee_solver.bounds import Bounder, Boxes


def greedy(bounder: Bounder, boxes: Boxes) -> Boxes:
    """Fill the buffer from the least tiles of each box, widest axis first.

    Parameters
    ----------
    bounder : Bounder
        Knows how far each axis can grow.
    boxes : Boxes
        B boxes.

    Returns
    -------
    Boxes
        B single tilings.
    """
    tried = Boxes(boxes.structure, boxes.low.copy(), boxes.low.copy())
    low, high = bounder.values(boxes)
    axes = np.argsort(-np.log(high / low), axis=1, kind="stable")
    rows = np.arange(len(boxes))
    used = int((boxes.low < boxes.high).sum(axis=1).max())
    for rank in range(used):
        axis = axes[:, rank]
        widened = tried.high.copy()
        widened[rows, axis] = boxes.high[rows, axis]
        grown = bounder.fit(Boxes(tried.structure, tried.low, widened))
        tried.low[rows, axis] = grown[rows, axis]
        tried.high[rows, axis] = grown[rows, axis]
    return tried


def aligned(bounder: Bounder, boxes: Boxes) -> Boxes:
    """Round tiles of single tilings down to multiples of an array extent, which pad no pass."""
    tilings, encoding = bounder.tilings, bounder.encoding
    number = tilings.number[boxes.structure]
    value = tilings.value(number, boxes.low)
    size = encoding.size[boxes.structure]
    rounded = value.copy()
    for extent in encoding.extents:
        rounded = np.where((value >= extent) & (value < size), value - value % extent, rounded)
    index = np.maximum(tilings.floor(number, rounded), 0)
    return Boxes(boxes.structure, index, index)
