"""Bounds of boxes of tilings: least occupancy and least cost of every tiling in a box (design §8).

A *box* is one structure with a range of positions [low, high] per axis. Its bound takes each figure
at the corner that favours it. For a box of a single tiling the bound is the tiling's exact figure
(up to the rounding of odd bits to bytes).

Five figures add up over leaves and what they share; they are the columns of every table here:
DRAM bits, energy in weight units, array cycles, vector operations, buffer bits that ops access.
*Mixes* of them, weighted sums, may follow as further columns. They add up as well, and the least of a
sum says more than the sum of the least where one figure is had at the cost of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.encode import FORMS, FREE_VECTOR, READ, RESCALE, VECTOR, WRITE, Encoding
from mmee_solver.tilings import Tilings, nested_count, passes_bound, steps_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_BLOCK = 96
_SLACK = 1e-12  # relative; rounding of float64 must never cut off a tiling that fits


@dataclass(frozen=True, slots=True)
class Boxes:
    """B boxes: structure numbers (B,), positions of the lowest and highest tile per axis (B, A)."""

    structure: Ints
    low: Ints
    high: Ints

    def __len__(self) -> int:
        return len(self.structure)

    def take(self, which: NDArray[np.generic]) -> Boxes:
        """A selection of boxes."""
        return Boxes(self.structure[which], self.low[which], self.high[which])

    def single(self) -> NDArray[np.bool_]:
        """Which boxes hold exactly one tiling."""
        return np.asarray((self.low == self.high).all(axis=1))

    @staticmethod
    def joined(parts: Sequence[Boxes]) -> Boxes:
        """All boxes of several collections."""
        return Boxes(
            np.concatenate([part.structure for part in parts]),
            np.concatenate([part.low for part in parts]),
            np.concatenate([part.high for part in parts]),
        )


DRAM, ENERGY, CYCLES, VECTORS, ACCESSED = range(5)
COLUMNS = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """What objectives are made of: DRAM bytes, energy in weight units, cycles, peak bytes."""

    dram: Floats
    energy: Floats
    latency: Floats
    peak: Floats


@dataclass(frozen=True, slots=True)
class Rates:
    """Cycles that one unit of a column takes."""

    lanes: float
    dram_cycles: float
    buffer_cycles: float

    @classmethod
    def of(cls, accelerator: Accelerator) -> Rates:
        """The rates of an accelerator."""
        return cls(
            float(accelerator.vector.lanes),
            float(accelerator.dram_cycles_per_byte),
            float(accelerator.buffer_cycles_per_byte),
        )

    def figures(self, columns: Floats, peak: Floats) -> Figures:
        """Figures of sums of columns, (..., COLUMNS) and (...); a bound if the columns are bounds."""
        dram = columns[..., DRAM] / 8
        slowest = np.maximum(columns[..., VECTORS] / self.lanes, dram * self.dram_cycles)
        slowest = np.maximum(slowest, columns[..., CYCLES])
        if self.buffer_cycles:
            accessed = dram + columns[..., ACCESSED] / 8
            slowest = np.maximum(slowest, accessed * self.buffer_cycles)
        return Figures(dram, columns[..., ENERGY], np.ceil(slowest * (1 - _SLACK)), peak)


@dataclass(frozen=True, slots=True)
class View:
    """Boxes with their lowest and highest tile sizes and least steps per axis, each (B, A)."""

    boxes: Boxes
    low: Floats
    high: Floats
    steps: Floats


class Bounder:
    """Evaluates boxes of one encoding under one accelerator and one set of tilings."""

    def __init__(self, encoding: Encoding, tilings: Tilings, mixes: Floats | None = None) -> None:
        self.encoding, self.tilings = encoding, tilings
        # (COLUMNS, n) weights of the figures in each mix
        self.mixes = np.zeros((COLUMNS, 0)) if mixes is None else mixes
        weights = encoding.weights
        self.form_weights = np.zeros(FORMS)
        self.form_weights[READ] = weights.read_bit
        self.form_weights[WRITE] = weights.write_bit
        self.form_weights[VECTOR] = self.form_weights[FREE_VECTOR] = weights.vector_op
        self.form_weights[RESCALE] = weights.buffer_read_bit + weights.buffer_write_bit
        # columns of what forms count
        self.form_columns = np.zeros((FORMS, COLUMNS))
        self.form_columns[[READ, WRITE], DRAM] = 1
        self.form_columns[:, ENERGY] = self.form_weights
        self.form_columns[VECTOR, VECTORS] = 1
        self.form_columns[RESCALE, ACCESSED] = 2
        table = encoding.table
        self.active = np.arange(len(table.configs)) if table else np.zeros(1, dtype=np.int64)
        self.uncut = self._op(self._uncut_log(), np.ones(1))[0] if len(encoding.op_sizes) else None
        self.least = np.zeros(self.width) if self.uncut is None else self.uncut.min(axis=0)

    @property
    def width(self) -> int:
        """Columns and mixes in all."""
        return COLUMNS + int(self.mixes.shape[1])

    def _mixed(self, columns: Floats) -> Floats:
        return np.concatenate([columns, columns @ self.mixes], axis=-1) if self.mixes.size else columns

    def all_boxes(self) -> Boxes:
        """One box per structure: every tiling.

        A shared loop with tile N is one step. The tree without that loop holds every such tiling,
        and lets the leaves loop the dim besides, so shared tiles stay below N.
        """
        high = self.tilings.length[self.tilings.number] - 1 - self.encoding.shared
        return Boxes(np.arange(len(high)), np.zeros_like(high), high)

    def lowest(self, boxes: Boxes) -> Floats:
        """Lowest tile sizes, (B, A)."""
        return self.tilings.value(self.tilings.number[boxes.structure], boxes.low)

    def values(self, boxes: Boxes) -> tuple[Floats, Floats]:
        """Lowest and highest tile sizes, each (B, A)."""
        number = self.tilings.number[boxes.structure]
        return self.tilings.value(number, boxes.low), self.tilings.value(number, boxes.high)

    # -- contraction -------------------------------------------------------------------------------

    def shrink(self, boxes: Boxes, capacity: Floats) -> Boxes:
        """Lower the highest tiles to what can fit; boxes that cannot fit come out empty (low > high).

        Occupancy is linear in each tile size: with all others at their least, the capacity bounds it
        from above.

        Parameters
        ----------
        boxes : Boxes
            B boxes.
        capacity : ndarray of float64, shape (B, L)
            Bytes that a box may occupy during each leaf.
        """
        enc, s = self.encoding, boxes.structure
        number = self.tilings.number[s]
        low, high = self.values(boxes)
        used, shares = self.bytes(s, low)
        room = capacity * (1 + _SLACK) - used
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.where(shares > 0, low[:, None, :] * (1 + room[:, :, None] / shares), np.inf)
        limit = np.minimum(most.min(axis=1) * (1 + _SLACK), high)
        outer = enc.outer[s]
        cuts = outer >= 0
        above = np.take_along_axis(limit, np.maximum(outer, 0), axis=1)
        limit = np.where(cuts, np.minimum(limit, above), limit)
        new_high = np.minimum(boxes.high, self.tilings.floor(number, np.maximum(limit, 0)))
        fits = np.asarray((room >= 0).all(axis=1))
        new_high = np.where(fits[:, None], new_high, -1)
        new_low = boxes.low
        if cuts.any():
            new_low = new_low.copy()
            b, a = np.nonzero(cuts)
            o = outer[b, a]
            np.maximum.at(new_low, (b, o), self.tilings.ceil(number[b, o], low[b, a]))
        return Boxes(s, new_low, new_high)

    def raise_low(self, boxes: Boxes, weights: Floats, limit: Floats) -> Boxes:
        """Raise the lowest tiles to what can cost at most a limit; hopeless boxes come out empty.

        A linear cost falls with each tile size: with all others at their largest, the limit bounds
        its steps from above, hence the tile from below.

        Parameters
        ----------
        boxes : Boxes
            B boxes.
        weights : ndarray of float64, shape (FORMS,)
            Cost per unit of each form.
        limit : ndarray of float64, shape (B,)
            The most that a box may cost, without what the forms do not count.
        """
        enc, s = self.encoding, boxes.structure
        low, high = self.values(boxes)
        size, query = enc.size[s], enc.step_query[s]
        steps = self._steps(boxes, low, high)
        monomials = self._monomials(query, steps)
        costs = monomials * (enc.forms[s] @ weights)
        rest = limit + np.abs(limit) * _SLACK - enc.constants[s] @ weights
        total = costs.sum(axis=1)
        shares = (np.maximum(costs, 0)[:, None, :] @ query)[:, 0, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(shares > 0, 1 + (rest - total)[:, None] / shares, np.inf)
            most = np.floor(steps * np.minimum(factor, 1e15) * (1 + _SLACK))
            least = np.where(most >= 1, np.ceil(size / most), np.inf)
        least = np.where(enc.granule[s], 1.0, np.minimum(least, size))
        number = self.tilings.number[s]
        new_low = np.maximum(boxes.low, self.tilings.ceil(number, least))
        new_low = np.where((total <= rest + np.abs(total) * _SLACK)[:, None], new_low, boxes.high + 1)
        return Boxes(s, new_low, boxes.high)

    def sensitivity(self, boxes: Boxes, weights: Floats) -> tuple[Floats, Floats, Floats]:
        """What could change within each box along each axis: log width, cost share, byte share; (B, A).

        The cost (bytes) share of an axis is what the monomials that grow with its steps (tile) cost at
        the largest (take at the least) tiles.
        """
        enc, s = self.encoding, boxes.structure
        low, high = self.values(boxes)
        steps = self._steps(boxes, low, high)
        costs = self._monomials(enc.step_query[s], steps) * (enc.forms[s] @ weights)
        _, bytes_ = self.bytes(s, low)
        width = np.where(boxes.low < boxes.high, np.log(high / low), 0.0)
        return width, (np.abs(costs)[:, None, :] @ enc.step_query[s])[:, 0, :], bytes_.max(axis=1)

    # -- figures -----------------------------------------------------------------------------------

    def view(self, boxes: Boxes) -> View:
        """Look up tile sizes and steps once for everything that follows."""
        low, high = self.values(boxes)
        return View(boxes, low, high, self._steps(boxes, low, high))

    def bytes(self, structure: Ints, tile: Floats) -> tuple[Floats, Floats]:
        """Bytes of tilings during each leaf, (B, L), and what of them grows with each axis, (B, L, A)."""
        enc = self.encoding
        query = enc.tile_query[structure]
        tiles = self._monomials(query, tile) * enc.tile_bytes[structure]
        alive = enc.alive[structure] * tiles[:, None, :]
        return alive.sum(axis=2), alive @ query

    def occupancy(self, boxes: Boxes, whole_bytes: bool = False) -> Floats:
        """Least bytes of boxes during each leaf, (B, L); each tile rounded up to whole bytes if asked for."""
        enc, structure = self.encoding, boxes.structure
        tiles = self._monomials(enc.tile_query[structure], self.lowest(boxes)) * enc.tile_bytes[structure]
        if whole_bytes:
            copies = 1 + enc.tile_doubled[structure]
            tiles = np.ceil(tiles / copies) * copies
        return np.asarray((enc.alive[structure] @ tiles[:, :, None])[:, :, 0])

    def forms(self, view: View) -> Floats:
        """What each form adds up to at the largest tiles, (B, FORMS)."""
        s = view.boxes.structure
        return self._forms(s, self._monomials(self.encoding.step_query[s], view.steps))

    def _forms(self, structure: Ints, monomials: Floats) -> Floats:
        enc = self.encoding
        products = (monomials[:, None, :] @ enc.forms[structure])[:, 0, :]
        return np.asarray(enc.constants[structure] + products)

    def linear(self, view: View) -> tuple[Floats, Floats]:
        """Columns that do not depend on the array configuration, (B, width); recomputation, (B,)."""
        enc, s = self.encoding, view.boxes.structure
        monomials = self._monomials(enc.step_query[s], view.steps)
        forms = self._forms(s, monomials)
        padded = np.concatenate([monomials, np.ones((len(s), 1))], axis=1)
        recompute = padded[np.arange(len(s)), enc.recompute[s]]
        columns = forms @ self.form_columns
        if enc.table is not None:
            columns[:, ENERGY] += recompute * (enc.table.macs * enc.weights.mac)
        return self._mixed(columns), recompute

    def op(self, view: View, recompute: Floats) -> Floats:
        """Columns of the op for each of its active array configurations, (B, n_configs, width)."""
        passes = self._passes(view.boxes, view.low, view.high)
        return self._op(self._features(view.boxes, view.steps, passes), recompute)

    def _op(self, features: Floats, rec: Floats) -> Floats:
        weights, table = self.encoding.weights, self.encoding.table
        read, write = self.encoding.plain_bits
        active = self.active
        out = np.zeros((len(rec), len(active), COLUMNS))
        reads = np.full(out.shape[:2], read + (table.constant_read_bits if table else 0.0))
        writes = np.full(out.shape[:2], write)
        if table is not None:
            monomials = np.rint(np.exp(_rows_product(features, table.query)))
            for row in range(len(table.read_bits)):
                picked = monomials[:, table.terms[row, active]]
                reads += table.read_bits[row] * picked
                if table.write_bits[row]:
                    writes += table.write_bits[row] * picked
            cycles = monomials[:, table.terms[-2, active]]
            if table.fill.any():
                cycles = cycles + table.fill[active] * monomials[:, table.terms[-1, active]]
            out[:, :, CYCLES] = cycles
        out[:, :, ENERGY] = reads * weights.buffer_read_bit + writes * weights.buffer_write_bit
        out[:, :, ACCESSED] = reads + writes
        return self._mixed(out * rec[:, None, None])

    def _uncut(self) -> Floats:
        """Steps and passes per dim when no loop cuts it, (n_dims, 1 + n_extents)."""
        sizes = self.encoding.op_sizes
        extent = np.array(self.encoding.extents, dtype=np.float64)
        passes = np.ceil(sizes[:, None] / extent[None, :])
        return np.concatenate([np.ones((len(sizes), 1)), passes], axis=1)

    def _uncut_log(self) -> Floats:
        return np.asarray(np.log(self._uncut()).reshape(1, -1))

    def _features(self, boxes: Boxes, steps: Floats, passes: Floats) -> Floats:
        enc = self.encoding
        axis = enc.finest[boxes.structure]
        whole = self._uncut()
        chosen = np.maximum(axis, 0)
        got_steps = np.take_along_axis(steps, chosen, axis=1)
        got_passes = np.take_along_axis(passes, chosen[:, :, None], axis=1)
        both = np.concatenate([got_steps[:, :, None], got_passes], axis=2)
        both = np.where((axis >= 0)[:, :, None], both, whole[None, :, :])
        return np.asarray(np.log(both).reshape(len(boxes), -1))

    def _steps(self, boxes: Boxes, low: Floats, high: Floats) -> Floats:
        """Least steps per axis; for a granule, of the nested pair of loops. (B, A)."""
        enc, s = self.encoding, boxes.structure
        size = enc.size[s]
        steps = steps_of(size, high)
        granule = enc.granule[s]
        if not granule.any():
            return steps
        olow, ohigh = self._outer(boxes, low, high)
        exactly = (low == high) & (olow == ohigh)
        tile = np.minimum(high, ohigh)
        nested = nested_count(size, ohigh, tile, tile)
        least = np.maximum(steps, _nested_pieces(size, (olow, ohigh), high))
        return np.where(granule, np.where(exactly, nested, least), steps)

    def _outer(self, boxes: Boxes, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        outer = self.encoding.outer[boxes.structure]
        size = self.encoding.size[boxes.structure]
        place = np.maximum(outer, 0)
        cuts = outer >= 0
        return (
            np.where(cuts, np.take_along_axis(low, place, axis=1), size),
            np.where(cuts, np.take_along_axis(high, place, axis=1), size),
        )

    def _passes(self, boxes: Boxes, low: Floats, high: Floats) -> Floats:
        """Least passes per axis and extent; for a granule, of the nested pair of loops. (B, A, E)."""
        enc, s = self.encoding, boxes.structure
        extent = np.array(enc.extents, dtype=np.float64)[None, None, :]
        size = enc.size[s][:, :, None]
        passes = passes_bound(size, low[:, :, None], high[:, :, None], extent)
        granule = enc.granule[s]
        if not granule.any():
            return passes
        b, a = np.nonzero(granule)
        olow, ohigh = self._outer(boxes, low, high)
        passes[b, a] = _nested_passes(
            enc.size[s][b, a][:, None],
            (olow[b, a][:, None], ohigh[b, a][:, None]),
            (low[b, a][:, None], high[b, a][:, None]),
            extent[0],
        )
        return passes

    @staticmethod
    def _monomials(query: Floats, quantity: Floats) -> Floats:
        """rint(exp(query @ log)): (B, M, A), (B, A) -> (B, M)."""
        return np.rint(np.exp((query @ np.log(quantity)[:, :, None])[:, :, 0]))


def _rows_product(rows: Floats, matrix: Floats) -> Floats:
    """``rows @ matrix``, a block of rows at a time: small enough that BLAS starts no threads for it."""
    blocks = [rows[start : start + _BLOCK] @ matrix for start in range(0, len(rows), _BLOCK)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _nested_pieces(size: Floats, outer: tuple[Floats, Floats], granule: Floats) -> Floats:
    """Least pieces of a dim cut by an outer tile in a range and then by at most ``granule``.

    The q = ⌊N/t⌋ full tiles make at least ⌈t/g⌉ pieces each, with t at its least and q at t's largest.
    If q is the same over the range, the rest is least at t's largest; else a tile of the range that
    makes one full tile more stands in for the rest.
    """
    low, high = outer
    full = np.floor(size / high)
    each = np.ceil(low / granule)
    rest = np.ceil((size - full * high) / granule)
    rest = np.where(np.floor(size / low) == full, rest, np.minimum(rest, each))
    return np.asarray(full * each + rest)


def _nested_passes(
    size: Floats, outer: tuple[Floats, Floats], tile: tuple[Floats, Floats], extent: Floats
) -> Floats:
    """Least passes of a dim cut by an outer tile and a granule, each in a range; exact if both are one.

    A second cut never saves passes, each piece costs one, and each full granule pads as much as the
    least in its range.
    """
    low, high = tile[0], np.minimum(tile[1], outer[1])
    once = passes_bound(size, outer[0], outer[1], extent)
    blocks = np.ceil(high / extent)
    pad = np.where(np.ceil(low / extent) == blocks, blocks * extent - high, 0.0)
    full = np.floor(size / outer[1]) * np.floor(outer[0] / high)
    padded = np.ceil((size + full * pad) / extent)
    pieces = np.maximum(np.ceil(size / high), _nested_pieces(size, outer, high))
    least = np.maximum(np.maximum(once, padded), pieces)
    exactly = (low == high) & (outer[0] == outer[1])
    return np.where(exactly, nested_count(size, outer[1], high, extent), least)
