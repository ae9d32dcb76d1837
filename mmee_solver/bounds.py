"""Bounds of boxes of tilings: least occupancy and least cost of every tiling in a box (design §8).

A *box* is one structure with a range of positions [low, high] per axis. Its bound takes each figure
at the corner that favours it. For a box of a single tiling the bound is the tiling's exact figure
(up to the rounding of odd bits to bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.arrays import OpTable
from mmee_solver.encode import FREE_VECTOR, READ, RESCALE, VECTOR, WRITE, Encoding
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


@dataclass(frozen=True, slots=True)
class Figures:
    """Least figures of B boxes: DRAM bytes, energy in weight units, cycles, peak bytes; each (B,)."""

    dram: Floats
    energy: Floats
    latency: Floats
    peak: Floats

    def take(self, which: NDArray[np.generic]) -> Figures:
        """A selection."""
        return Figures(self.dram[which], self.energy[which], self.latency[which], self.peak[which])


@dataclass(frozen=True, slots=True)
class OpFigures:
    """Per array configuration: energy of buffer accesses, cycles, bits accessed; each (B, n_configs)."""

    energy: Floats
    cycles: Floats
    bits: Floats

    def take(self, which: NDArray[np.generic]) -> OpFigures:
        """A selection of boxes."""
        return OpFigures(self.energy[which], self.cycles[which], self.bits[which])


@dataclass(frozen=True, slots=True)
class View:
    """Boxes with their lowest and highest tile sizes and least steps per axis, each (B, A)."""

    boxes: Boxes
    low: Floats
    high: Floats
    steps: Floats

    def take(self, which: NDArray[np.generic]) -> View:
        """A selection of boxes."""
        return View(self.boxes.take(which), self.low[which], self.high[which], self.steps[which])


@dataclass(frozen=True, slots=True)
class Linear:
    """What the step monomials of B boxes add up to, before the ops' array configurations."""

    forms: Floats  # (B, FORMS)
    recompute: Floats  # (B, L)
    peak: Floats  # (B,)

    def take(self, which: NDArray[np.generic]) -> Linear:
        """A selection of boxes."""
        return Linear(self.forms[which], self.recompute[which], self.peak[which])


class Bounder:
    """Evaluates boxes of one encoding under one accelerator and one set of tilings."""

    def __init__(
        self, encoding: Encoding, tilings: Tilings, accelerator: Accelerator, capacity_bytes: int
    ) -> None:
        self.encoding, self.tilings, self.accelerator = encoding, tilings, accelerator
        self.capacity = float(capacity_bytes)
        self.lanes = float(accelerator.vector.lanes)
        self.dram_cycles = float(accelerator.dram_cycles_per_byte)
        self.buffer_cycles = float(accelerator.buffer_cycles_per_byte)
        weights = encoding.weights
        self.form_weights = np.zeros(5)
        self.form_weights[READ] = weights.read_bit
        self.form_weights[WRITE] = weights.write_bit
        self.form_weights[VECTOR] = self.form_weights[FREE_VECTOR] = weights.vector_op
        self.form_weights[RESCALE] = weights.buffer_read_bit + weights.buffer_write_bit
        self.active = [
            np.arange(len(table.configs)) if table else np.zeros(0, dtype=np.int64)
            for table in encoding.tables
        ]
        self.least = [self._least(leaf) for leaf in range(len(encoding.tables))]

    def all_boxes(self) -> Boxes:
        """One box per structure: every tiling.

        A shared loop with tile N is one step. The tree without that loop holds every such tiling,
        and lets the leaves loop the dim besides, so shared tiles stay below N.
        """
        high = self.tilings.length[self.tilings.number] - 1 - self.encoding.shared
        return Boxes(np.arange(len(high)), np.zeros_like(high), high)

    def values(self, boxes: Boxes) -> tuple[Floats, Floats]:
        """Lowest and highest tile sizes, each (B, A)."""
        number = self.tilings.number[boxes.structure]
        return self.tilings.value(number, boxes.low), self.tilings.value(number, boxes.high)

    # -- contraction -------------------------------------------------------------------------------

    def contract(
        self, boxes: Boxes, weights: Floats | None, limit: float, capacity: Floats | None = None
    ) -> Boxes:
        """Shrink boxes to the tilings that can fit and can cost at most ``limit``; drop empty ones.

        Occupancy is linear in each tile size: with all others at their least, the capacity bounds
        it from above. A linear cost falls with each tile size: with all others at their largest,
        the limit bounds its steps from above, hence the tile from below.

        Parameters
        ----------
        boxes : Boxes
            B boxes.
        weights : ndarray of float64, shape (FORMS,), or None
            Cost per unit of each form; None: no cost limit.
        limit : float
            The most that a tiling of interest costs, in the unit of ``weights``, without what the
            forms do not count.
        capacity : ndarray of float64, shape (B,), optional
            Bytes that each box may occupy; the buffer's capacity by default.
        """
        boxes = self._contract_high(boxes, capacity)
        if weights is None or not np.isfinite(limit) or not len(boxes):
            return boxes
        return self._contract_low(boxes, weights, limit)

    def fit(self, boxes: Boxes) -> Ints:
        """Highest positions that still fit with all other axes at their least, (B, A)."""
        return np.maximum(self._highest(boxes)[0], boxes.low)

    def _contract_high(self, boxes: Boxes, capacity: Floats | None) -> Boxes:
        new_high, room = self._highest(boxes, capacity)
        enc, s = self.encoding, boxes.structure
        outer = enc.outer[s]
        cuts = outer >= 0
        new_low = boxes.low
        if cuts.any():
            number = self.tilings.number[s]
            low, _ = self.values(boxes)
            new_low = new_low.copy()
            b, a = np.nonzero(cuts)
            o = outer[b, a]
            needed = self.tilings.ceil(number[b, o], low[b, a])
            np.maximum.at(new_low, (b, o), needed)
        keep = np.asarray((room >= 0).all(axis=1) & (new_high >= new_low).all(axis=1))
        return Boxes(s, new_low, new_high).take(keep)

    def _highest(self, boxes: Boxes, capacity: Floats | None = None) -> tuple[Ints, Floats]:
        """Highest position per axis that fits, and the room that the least tiles leave, (B, L)."""
        enc, s = self.encoding, boxes.structure
        number = self.tilings.number[s]
        low, high = self.values(boxes)
        query = enc.tile_query[s]
        tiles = self._monomials(query, low) * enc.tile_bytes[s]
        alive = enc.alive[s] * tiles[:, None, :]
        totals = alive.sum(axis=2)
        shares = alive @ query
        most_bytes = self.capacity if capacity is None else capacity[:, None]
        room = most_bytes * (1 + _SLACK) - totals
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.where(shares > 0, low[:, None, :] * (1 + room[:, :, None] / shares), np.inf)
        limit = np.minimum(most.min(axis=1) * (1 + _SLACK), high)
        outer = enc.outer[s]
        cuts = outer >= 0
        above = np.take_along_axis(limit, np.maximum(outer, 0), axis=1)
        limit = np.where(cuts, np.minimum(limit, above), limit)
        new_high = np.minimum(boxes.high, self.tilings.floor(number, np.maximum(limit, 0)))
        return new_high, room

    def _contract_low(self, boxes: Boxes, weights: Floats, limit: float) -> Boxes:
        enc, s = self.encoding, boxes.structure
        low, high = self.values(boxes)
        size, query = enc.size[s], enc.step_query[s]
        steps = self._steps(boxes, low, high)
        monomials = self._monomials(query, steps)
        costs = monomials * (enc.forms[s] @ weights)
        rest = limit * (1 + _SLACK) - enc.constants[s] @ weights
        total = costs.sum(axis=1)
        shares = (np.maximum(costs, 0)[:, None, :] @ query)[:, 0, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(shares > 0, 1 + (rest - total)[:, None] / shares, np.inf)
            most = np.floor(steps * np.minimum(factor, 1e15) * (1 + _SLACK))
            least = np.where(most >= 1, np.ceil(size / most), np.inf)
        least = np.where(enc.granule[s], 1.0, np.minimum(least, size))
        number = self.tilings.number[s]
        new_low = np.maximum(boxes.low, self.tilings.ceil(number, least))
        keep = np.asarray((total <= rest) & (new_low <= boxes.high).all(axis=1))
        return Boxes(s, np.minimum(new_low, boxes.high), boxes.high).take(keep)

    # -- figures -----------------------------------------------------------------------------------

    def view(self, boxes: Boxes) -> View:
        """Look up tile sizes and steps once for everything that follows."""
        low, high = self.values(boxes)
        return View(boxes, low, high, self._steps(boxes, low, high))

    def linear(self, view: View) -> Linear:
        """Forms, recomputation and peak of B boxes, without array configurations."""
        enc, s = self.encoding, view.boxes.structure
        peak = self.peaks(s, view.low)
        monomials = self._monomials(enc.step_query[s], view.steps)
        forms = enc.constants[s] + (monomials[:, None, :] @ enc.forms[s])[:, 0, :]
        padded = np.concatenate([monomials, np.ones((len(s), 1))], axis=1)
        return Linear(forms, np.take_along_axis(padded, enc.recompute[s], axis=1), peak)

    def peaks(self, structure: Ints, tile: Floats, whole_bytes: bool = False) -> Floats:
        """Peak bytes of tilings, (B,); each tile rounded up to whole bytes if asked for."""
        enc = self.encoding
        tiles = self._monomials(enc.tile_query[structure], tile) * enc.tile_bytes[structure]
        if whole_bytes:
            copies = 1 + enc.tile_doubled[structure]
            tiles = np.ceil(tiles / copies) * copies
        return np.asarray((enc.alive[structure] @ tiles[:, :, None])[:, :, 0].max(axis=1))

    def quick(self, linear: Linear) -> Figures:
        """Bounds that take every op at the least of any tiling: cheap, and weaker than ``full``."""
        energy = sum(linear.recompute[:, leaf] * least[0] for leaf, least in enumerate(self.least))
        cycles = sum(linear.recompute[:, leaf] * least[1] for leaf, least in enumerate(self.least))
        bits = sum(linear.recompute[:, leaf] * least[2] for leaf, least in enumerate(self.least))
        return self._figures(linear, np.asarray(energy), np.asarray(cycles), np.asarray(bits))

    def full(self, linear: Linear, ops: Sequence[OpFigures]) -> Figures:
        """Bounds that take every op at its best array configuration, figure by figure."""
        energy = sum(op.energy.min(axis=1) for op in ops)
        cycles = sum(op.cycles.min(axis=1) for op in ops)
        bits = sum(op.bits.min(axis=1) for op in ops)
        return self._figures(linear, np.asarray(energy), np.asarray(cycles), np.asarray(bits))

    def choices(self, linear: Linear, ops: Sequence[OpFigures]) -> Figures:
        """Bounds for every joint choice of active configurations; figures are (B, n_choices)."""
        energy, cycles, bits = ops[0].energy, ops[0].cycles, ops[0].bits
        for op in ops[1:]:
            energy = _outer_sum(energy, op.energy)
            cycles = _outer_sum(cycles, op.cycles)
            bits = _outer_sum(bits, op.bits)
        return self._figures(linear, energy, cycles, bits)

    def _figures(self, linear: Linear, energy: Floats, cycles: Floats, bits: Floats) -> Figures:
        """Join what the forms and what the ops cost; ``energy`` … are (B,) or (B, n)."""
        wide = (slice(None), *(None,) * (energy.ndim - 1))
        forms = linear.forms
        fixed = self.fixed_energy(linear)
        dram = (forms[:, READ] + forms[:, WRITE]) / 8
        floor = np.maximum(forms[:, VECTOR] / self.lanes, dram * self.dram_cycles)
        slowest = np.maximum(cycles, floor[wide])
        if self.buffer_cycles:
            accessed = (dram + forms[:, RESCALE] / 4)[wide] + bits / 8
            slowest = np.maximum(slowest, accessed * self.buffer_cycles)
        return Figures(
            np.broadcast_to(dram[wide], energy.shape),
            fixed[wide] + energy,
            np.ceil(slowest * (1 - _SLACK)),
            np.broadcast_to(linear.peak[wide], energy.shape),
        )

    def fixed_energy(self, linear: Linear) -> Floats:
        """Energy that does not depend on array configurations, (B,)."""
        macs = sum(
            linear.recompute[:, leaf] * (table.macs if table else 0.0)
            for leaf, table in enumerate(self.encoding.tables)
        )
        return np.asarray(linear.forms @ self.form_weights + macs * self.encoding.weights.mac)

    def combine(self, linear: Linear, choice: Sequence[tuple[Floats, Floats, Floats]]) -> Figures:
        """Figures of one box for many choices of configurations: (energy, cycles, bits) per op."""
        energy = sum(part[0] for part in choice)
        cycles = sum(part[1] for part in choice)
        bits = sum(part[2] for part in choice)
        count = len(np.atleast_1d(np.asarray(energy)))
        wide = Linear(
            np.repeat(linear.forms, count, axis=0),
            np.repeat(linear.recompute, count, axis=0),
            np.repeat(linear.peak, count, axis=0),
        )
        return self._figures(wide, np.asarray(energy), np.asarray(cycles), np.asarray(bits))

    def ops(self, view: View, linear: Linear) -> list[OpFigures]:
        """Figures of every op for each of its active array configurations."""
        passes = self._passes(view.boxes, view.low, view.high)
        found = []
        for leaf, table in enumerate(self.encoding.tables):
            features = self._features(view.boxes, leaf, view.steps, passes)
            rec = linear.recompute[:, leaf]
            found.append(self._op(leaf, table, features, rec))
        return found

    def _op(self, leaf: int, table: OpTable | None, features: Floats, rec: Floats) -> OpFigures:
        weights = self.encoding.weights
        read, write = self.encoding.plain_bits[leaf]
        rec = rec[:, None]
        if table is None:
            energy = rec * (read * weights.buffer_read_bit + write * weights.buffer_write_bit)
            return OpFigures(energy, np.zeros_like(energy), rec * (read + write))
        monomials = np.rint(np.exp(_rows_product(features, table.query)))
        active = self.active[leaf]
        reads = np.full((len(rec), len(active)), read + table.constant_read_bits)
        writes = np.zeros_like(reads)
        for row in range(len(table.read_bits)):
            picked = monomials[:, table.terms[row, active]]
            reads += table.read_bits[row] * picked
            if table.write_bits[row]:
                writes += table.write_bits[row] * picked
        cycles = monomials[:, table.terms[-2, active]]
        if table.fill.any():
            cycles = cycles + table.fill[active] * monomials[:, table.terms[-1, active]]
        energy = reads * weights.buffer_read_bit + writes * weights.buffer_write_bit
        return OpFigures(rec * energy, rec * cycles, rec * (reads + writes))

    def _least(self, leaf: int) -> tuple[float, float, float]:
        """Least energy, cycles and bits of an op over all configurations, uncut."""
        op = self.uncut(leaf)
        return float(op.energy.min()), float(op.cycles.min()), float(op.bits.min())

    def uncut(self, leaf: int) -> OpFigures:
        """An op's figures for each active configuration when no loop cuts a dim: least of any tiling."""
        return self._op(leaf, self.encoding.tables[leaf], self._uncut_log(leaf), np.ones(1))

    def _uncut(self, leaf: int) -> Floats:
        """Steps and passes per dim when no loop cuts it, (n_dims, 1 + n_extents)."""
        sizes = self.encoding.op_sizes[leaf]
        extent = np.array(self.encoding.extents, dtype=np.float64)
        passes = np.ceil(sizes[:, None] / extent[None, :])
        return np.concatenate([np.ones((len(sizes), 1)), passes], axis=1)

    def _uncut_log(self, leaf: int) -> Floats:
        return np.asarray(np.log(self._uncut(leaf)).reshape(1, -1))

    def _features(self, boxes: Boxes, leaf: int, steps: Floats, passes: Floats) -> Floats:
        enc = self.encoding
        dims = enc.op_dims[leaf]
        axis = enc.finest[boxes.structure, leaf, : len(dims)]
        whole = self._uncut(leaf)
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


def _outer_sum(first: Floats, second: Floats) -> Floats:
    """All sums of a value of one array and one of the other, per box: (B, m), (B, n) -> (B, m·n)."""
    return (first[:, :, None] + second[:, None, :]).reshape(len(first), -1)


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
