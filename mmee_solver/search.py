"""The search loop of one group: bound, contract, split, until every tiling is decided (design §8).

The enumeration is exhaustive. A box leaves it only by a proof: it cannot fit, its bound is not below
the best value, or it is a single tiling that was evaluated. The most promising boxes are split first.
:class:`Counts` says how many left by which rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.bounds import COLUMNS, DRAM, ENERGY, Bounder, Boxes, Rates
from mmee_solver.cost import Metrics, evaluate_group
from mmee_solver.emit import Chosen, emit
from mmee_solver.encode import FORMS, READ, WRITE
from mmee_solver.layouts import Layout
from mmee_solver.nest import ArrayConfig, Group
from mmee_solver.objective import ROUNDING, Key, Objective
from mmee_solver.program import Program
from mmee_solver.skeletons import Skeleton
from mmee_solver.tables import Floats, Ints, State, Table, least, most
from mmee_solver.tilings import tilings

FEW = 512  # rows below which a round splits twice
ROWS = 640  # rows looked at in a round: bounds the memory and the work of a round
SPLITS = 16  # rows of one leaf below one top split at once, the most promising ones
EVEN = 0.3  # share of cost that an axis has in any case when a split is chosen
PAIRS = 1 << 19  # rows times configurations looked at together: bounds the memory
CHOICES = 1 << 18  # joint choices of leaves looked at together
_EXACT = float(1 << 52)  # whole numbers below are exact in float64, and so are their sums
_LARGE_ROUNDING = 1e-14  # relative; of sums of whole numbers that are not
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Counts:
    """What became of the search space, for the certificate.

    ``trees`` and ``structures`` are the placements searched, ``tilings`` their tile sizes in all (classes
    of equal tiles count once), ``candidates`` the same with every choice of array configurations.
    ``bounded`` boxes of tilings were bounded, ``evaluated`` single candidates costed exactly;
    ``pruned_capacity`` boxes cannot fit (or cost too much at their largest tiles), ``pruned_bound``
    cannot beat the best.
    """

    trees: int = 0
    structures: int = 0
    tilings: int = 0
    candidates: int = 0
    bounded: int = 0
    evaluated: int = 0
    pruned_capacity: int = 0
    pruned_bound: int = 0

    def add(self, other: Counts) -> None:
        """Add another search's counts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int]:
        """Counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class Draft:
    """Tops and rows on their way to a State; rows of a leaf stay sorted by top.

    ``fresh`` marks rows whose columns and occupancy are still to be found; those of the others, whose
    boxes have not changed, stay valid bounds.
    """

    tops: Boxes
    capacity: Floats  # (T,) bytes that a better solution may occupy
    boxes: list[Boxes]
    top: list[Ints]
    columns: list[Floats]
    occupancy: list[Floats]
    fresh: list[Mask]
    starts: list[Ints] = field(default_factory=list)

    @classmethod
    def of(cls, tops: Boxes, capacity: Floats, boxes: list[Boxes], top: list[Ints]) -> Draft:
        """All rows fresh."""
        rows = [len(part) for part in top]
        return cls(
            tops,
            capacity,
            boxes,
            top,
            [np.zeros((n, COLUMNS)) for n in rows],
            [np.zeros((n, len(rows))) for n in rows],
            [np.ones(n, dtype=np.bool_) for n in rows],
        )

    def select(self, tops_ok: Mask, rows_ok: list[Mask] | None = None) -> Ints | None:
        """Keep some tops and rows; a top that lacks rows of a leaf goes, and rows go with their top.

        Gives the numbers of the tops that stay, None if all do.
        """
        if rows_ok is not None:
            for leaf, ok in enumerate(rows_ok):
                if not ok.all():
                    self._rows(leaf, np.flatnonzero(ok))
        tops_ok = tops_ok.copy()
        for top in self.top:
            tops_ok &= np.bincount(top, minlength=len(self.tops)) > 0
        kept: Ints | None = None
        if not tops_ok.all():
            kept = np.flatnonzero(tops_ok)
            place = np.full(len(self.tops), -1, dtype=np.int64)
            place[kept] = np.arange(len(kept))
            self.tops, self.capacity = self.tops.take(kept), self.capacity[kept]
            for leaf in range(len(self.top)):
                self.top[leaf] = place[self.top[leaf]]
                self._rows(leaf, np.flatnonzero(self.top[leaf] >= 0))
        self.starts = [np.searchsorted(top, np.arange(len(self.tops) + 1)) for top in self.top]
        return kept

    def _rows(self, leaf: int, kept: Ints) -> None:
        if len(kept) == len(self.top[leaf]):
            return
        self.boxes[leaf], self.top[leaf] = self.boxes[leaf].take(kept), self.top[leaf][kept]
        self.columns[leaf] = self.columns[leaf][kept]
        self.occupancy[leaf] = self.occupancy[leaf][kept]
        self.fresh[leaf] = self.fresh[leaf][kept]

    def replace(self, leaf: int, which: Ints, boxes: Boxes) -> None:
        """Put other boxes in the place of some rows."""
        old = self.boxes[leaf]
        if len(which) == len(old):
            self.boxes[leaf] = boxes
            return
        low, high = old.low.copy(), old.high.copy()
        low[which], high[which] = boxes.low, boxes.high
        self.boxes[leaf] = Boxes(old.structure, low, high)


class Search:
    """Decides all tilings of a program; keeps the best group, its metrics and its key."""

    def __init__(
        self,
        program: Program,
        accelerator: Accelerator,
        objective: Objective,
        counts: Counts,
        cutoff: Key | None,
    ) -> None:
        self.program, self.accelerator = program, accelerator
        self.graph = program.space.graph
        self.objective, self.counts = objective, counts
        self.capacity = float(accelerator.buffer.capacity_bytes)
        self.rates = Rates.of(accelerator)
        self.scale = program.top.weights.scale
        self.best_key: Key | None = cutoff
        self.best_group: Group | None = None
        self.best_metrics: Metrics | None = None
        self.limit: tuple[float, float, float, float] = (np.inf,) * 4
        if cutoff is not None:
            self.limit = objective.scaled(cutoff, self.scale)
        self.traffic_only = False
        self.floor_bits = 0.0

    # -- the loop ----------------------------------------------------------------------------------

    def least_traffic(self, mode: str) -> None:
        """First pass of the dram objective: traffic alone, at most the cutoff's.

        It leaves ``best_metrics`` None if no tiling moves as little as the cutoff. Else the second
        pass (``run``) looks for the least energy among the tilings that move no more.
        """
        cutoff = self.best_key
        self.traffic_only = True
        # A bound is hopeless from this value on; equal traffic may still win by energy.
        self.limit = (np.nextafter(self.limit[0], np.inf), np.inf, np.inf, np.inf)
        self.best_key = None
        self.run(mode)
        self.traffic_only = False
        if cutoff is not None and self.best_key is not None and self.best_key >= cutoff:
            self.best_group, self.best_key = None, cutoff
        if self.best_key is not None:
            self.limit = self.objective.scaled(self.best_key, self.scale)
            self.floor_bits = 8.0 * float(self.best_key[0])
            if self.program.odd_bits:  # bytes are rounded up tensor by tensor
                self.floor_bits = 0.0

    def run(self, mode: str) -> None:
        """Decide every tiling of every structure, tile sizes ``integer`` or ``divisors``."""
        program = self.program
        self.top = Bounder(program.top, tilings(program.top, mode, self.traffic_only))
        self.leaves = [
            Bounder(leaf.encoding, tilings(leaf.encoding, mode, self.traffic_only)) for leaf in program.leaves
        ]
        if not self.traffic_only:
            self._count()
        state = self._evaluate(self._everything())
        rounds = 0
        while len(state):
            if not self.traffic_only and rounds % 6 == 1:
                self._drop_configurations(state)
            if rounds & (rounds - 1) == 0 or rounds % 8 == 0:
                self._probe(state)
            rounds += 1
            order = np.lexsort(state.keys[::-1])
            sizes = sum(np.diff(table.starts(len(state))) for table in state.tables)
            count = max(1, int(np.searchsorted(np.cumsum(np.asarray(sizes)[order]), ROWS)))
            chosen, rest = np.sort(order[:count]), np.sort(order[count:])
            children = self._evaluate(self._divide(state.take(chosen)))
            state = State.joined([state.take(rest), children])
            keep = np.flatnonzero(~self._hopeless(state.keys))
            if len(keep) < len(state):
                self.counts.pruned_bound += len(state) - len(keep)
                state = state.take(keep)

    def _everything(self) -> Draft:
        """One top per skeleton with all rows of all leaves: every tiling of every structure."""
        tops = self.top.all_boxes()
        boxes, top = [], []
        for leaf, bounder in zip(self.program.leaves, self.leaves, strict=True):
            top.append(np.repeat(np.arange(len(tops)), [len(found) for found in leaf.layouts]))
            boxes.append(bounder.all_boxes().take(np.concatenate(leaf.layouts)))
        return Draft.of(tops, np.full(len(tops), self.capacity), boxes, top)

    def _count(self) -> None:
        """Size of the space: tilings of all structures, and with every choice of configurations."""
        shared = self.program.top.shared
        lengths = self.top.tilings.length[self.top.tilings.number] - shared
        whole = [prod(int(n) for n in row) for row in lengths]
        configs = 1
        for leaf, bounder in zip(self.program.leaves, self.leaves, strict=True):
            lengths = bounder.tilings.length[bounder.tilings.number]
            own = [prod(int(n) for n in row) for row in np.where(leaf.encoding.shared, 1, lengths)]
            whole = [n * sum(own[i] for i in found) for n, found in zip(whole, leaf.layouts, strict=True)]
            configs *= len(leaf.encoding.table.configs) if leaf.encoding.table else 1
        self.counts.tilings += sum(whole)
        self.counts.candidates += sum(whole) * configs

    # -- bounds ------------------------------------------------------------------------------------

    def _evaluate(self, draft: Draft) -> State:
        """Contract and bound tops and rows; settle tops that are single throughout; return the rest."""
        before = len(draft.tops) + sum(len(top) for top in draft.top)
        self._fit(draft)
        fitting = len(draft.tops) + sum(len(top) for top in draft.top)
        state = self._bound(draft)
        self.counts.bounded += before
        self.counts.pruned_capacity += before - fitting
        self.counts.pruned_bound += fitting - len(state.tops) - sum(len(table) for table in state.tables)
        single = state.tops.single()
        for table in state.tables:
            open_ = np.flatnonzero(~table.boxes.single())
            single[table.top[open_]] = False
        which = np.flatnonzero(single)
        if len(which):
            self._settle(state.take(which))
            left = np.flatnonzero(~single & ~self._hopeless(state.keys))
            state = state.take(left)
        return state

    def _fit(self, draft: Draft) -> None:
        """Drop and shrink what cannot fit: rows within their top, all others at their least."""
        self._within(draft)
        if not len(draft.tops):
            return
        own = self._occupied(draft)
        total = own + sum(least(o, s) for o, s in zip(draft.occupancy, draft.starts, strict=True))
        room = draft.capacity[:, None] - total
        for leaf, bounder in enumerate(self.leaves):
            top = draft.top[leaf]
            spare = (room + least(draft.occupancy[leaf], draft.starts[leaf]))[top]
            which = np.flatnonzero(draft.fresh[leaf])
            draft.replace(leaf, which, bounder.shrink(draft.boxes[leaf].take(which), spare[which]))
            over = ~draft.fresh[leaf] & (draft.occupancy[leaf] > spare + self.capacity * 1e-12).any(axis=1)
            draft.boxes[leaf].high[over] = -1
        draft.tops = self.top.shrink(draft.tops, room + own)
        self._nonempty(draft)

    def _occupied(self, draft: Draft) -> Floats:
        """Least bytes during each leaf, of tops (T, L); of fresh rows, into the draft."""
        for leaf, bounder in enumerate(self.leaves):
            which = np.flatnonzero(draft.fresh[leaf])
            boxes = draft.boxes[leaf].take(which)
            draft.occupancy[leaf][which] = bounder.occupancy(boxes.structure, bounder.lowest(boxes))
        return self.top.occupancy(draft.tops.structure, self.top.lowest(draft.tops))

    def _within(self, draft: Draft) -> None:
        """Cut the path axes of rows to the ranges of their top; rows that change are fresh."""
        for leaf, part in enumerate(self.program.leaves):
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
        self._drop_empty(draft)

    @staticmethod
    def _drop_empty(draft: Draft) -> None:
        tops_ok = np.asarray((draft.tops.low <= draft.tops.high).all(axis=1))
        rows_ok = [np.asarray((boxes.low <= boxes.high).all(axis=1)) for boxes in draft.boxes]
        draft.select(tops_ok, rows_ok)

    def _nonempty(self, draft: Draft) -> None:
        """Drop empty boxes; cut tops to the path axes that some row of every leaf still has."""
        self._drop_empty(draft)
        if not len(draft.tops):
            return
        low, high = draft.tops.low.copy(), draft.tops.high.copy()
        every = np.arange(len(low))
        for leaf, part in enumerate(self.program.leaves):
            axes = part.path_axes[draft.tops.structure]
            width = axes.shape[1]
            if not width:
                continue
            starts = draft.starts[leaf]
            lowest = least(draft.boxes[leaf].low[:, :width], starts)
            highest = most(draft.boxes[leaf].high[:, :width], starts)
            for column in range(width):
                real = np.flatnonzero(axes[:, column] >= 0)
                axis, at = axes[real, column], every[real]
                low[at, axis] = np.maximum(low[at, axis], lowest[real, column])
                high[at, axis] = np.minimum(high[at, axis], highest[real, column])
        draft.tops = Boxes(draft.tops.structure, low, high)
        self._within(draft)

    def _bound(self, draft: Draft) -> State:
        """Bound tops and rows by cost, cheaply first; drop what is hopeless."""
        empty = State(draft.tops, (np.zeros(len(draft.tops)),) * 4, ())
        if not len(draft.tops):
            return self._no_state(empty)
        for raised in (False, True):
            own = self._filter(draft, self._quick(draft))
            if not len(draft.tops):
                return self._no_state(empty)
            if not raised and np.isfinite(self.limit[0]):
                self._raise(draft, own)
                if not len(draft.tops):
                    return self._no_state(empty)
        if not self.traffic_only:
            for leaf in range(len(self.leaves)):
                every = np.ones(len(draft.tops), dtype=np.bool_)
                ok = [np.ones(len(top), dtype=np.bool_) for top in draft.top]
                ok[leaf] = self._configured(draft, own, leaf)
                kept = draft.select(every, ok)
                own = own if kept is None else own[kept]
                if not len(draft.tops):
                    return self._no_state(empty)
            self._filter(draft, own)
            if not len(draft.tops):
                return self._no_state(empty)
        return self._state(draft)

    def _no_state(self, like: State) -> State:
        nothing = np.zeros(0, dtype=np.int64)
        tables = []
        for bounder in self.leaves:
            boxes = bounder.all_boxes().take(nothing)
            leaves = len(self.leaves)
            tables.append(Table(boxes, nothing, np.zeros((0, COLUMNS)), np.zeros((0, leaves)), np.zeros(0)))
        return State(like.tops.take(nothing), tuple(key[nothing] for key in like.keys), tuple(tables))

    def _quick(self, draft: Draft) -> Floats:
        """Columns of tops (T, COLUMNS); of fresh rows, with the op at its least, into the draft."""
        for leaf, bounder in enumerate(self.leaves):
            which = np.flatnonzero(draft.fresh[leaf])
            columns, recompute = bounder.linear(bounder.view(draft.boxes[leaf].take(which)))
            if not self.traffic_only:
                columns += recompute[:, None] * bounder.least
            draft.columns[leaf][which] = columns
        return self.top.linear(self.top.view(draft.tops))[0]

    def _totals(self, draft: Draft, own: Floats) -> tuple[Floats, Floats]:
        """Least columns and peaks of tops with every leaf at its least."""
        columns = own + sum(least(c, s) for c, s in zip(draft.columns, draft.starts, strict=True))
        bytes_ = self.top.occupancy(draft.tops.structure, self.top.lowest(draft.tops))
        bytes_ = bytes_ + sum(least(o, s) for o, s in zip(draft.occupancy, draft.starts, strict=True))
        return columns, bytes_.max(axis=1)

    def _filter(self, draft: Draft, own: Floats) -> Floats:
        """Drop hopeless tops, and rows that are hopeless with all others at their least; own of the rest."""
        total, peak = self._totals(draft, own)
        tops_ok = ~self._hopeless(self._keys(total, peak))
        rows_ok = []
        for leaf, columns in enumerate(draft.columns):
            top = draft.top[leaf]
            rest = total - least(columns, draft.starts[leaf])
            rows_ok.append(tops_ok[top] & ~self._hopeless(self._keys(rest[top] + columns, peak[top])))
        kept = draft.select(tops_ok, rows_ok)
        return own if kept is None else own[kept]

    def _raise(self, draft: Draft, own: Floats) -> None:
        """Raise the lowest tiles of rows and tops by what a better solution can cost."""
        weights, column, limit = self._linear_limit(draft, own)
        total = own[:, column] + sum(
            least(c[:, column], s) for c, s in zip(draft.columns, draft.starts, strict=True)
        )
        spare = limit - total
        for leaf, bounder in enumerate(self.leaves):
            top = draft.top[leaf]
            mine = least(draft.columns[leaf][:, column], draft.starts[leaf])
            which = np.flatnonzero(draft.fresh[leaf])
            boxes = draft.boxes[leaf].take(which)
            fixed = draft.columns[leaf][which, column] - self._form_part(bounder, boxes, weights)
            limits = (spare + mine)[top[which]] - fixed
            draft.replace(leaf, which, bounder.raise_low(boxes, weights, limits))
        draft.tops = self.top.raise_low(draft.tops, weights, spare + own[:, column])
        self._nonempty(draft)

    @staticmethod
    def _form_part(bounder: Bounder, boxes: Boxes, weights: Floats) -> Floats:
        """What the forms alone cost at the largest tiles."""
        enc, s = bounder.encoding, boxes.structure
        view = bounder.view(boxes)
        monomials = bounder._monomials(enc.step_query[s], view.steps)
        costs = (monomials[:, None, :] @ enc.forms[s])[:, 0, :] + enc.constants[s]
        return np.asarray(costs @ weights)

    def _linear_limit(self, draft: Draft, own: Floats) -> tuple[Floats, int, Floats]:
        """Weights of forms, the column that they add up to, and the most of it in a better solution."""
        traffic = np.zeros(FORMS)
        traffic[READ] = traffic[WRITE] = 1
        size = len(draft.tops)
        if self.objective.name == "dram":
            return traffic, DRAM, np.full(size, self.limit[0] * 8)
        if self.objective.name == "latency":
            return traffic, DRAM, np.full(size, self.limit[0] / self.rates.dram_cycles * 8)
        if self.objective.name == "energy":
            return self.top.form_weights, ENERGY, np.full(size, self.limit[0])
        total, peak = self._totals(draft, own)
        cycles = np.maximum(1.0, self.rates.figures(total, peak).latency)
        most = self.limit[0] * (1 + ROUNDING)
        if self.objective.name == "edp":
            return self.top.form_weights, ENERGY, most / cycles
        weight = float(self.objective.energy_weight / self.scale)
        return self.top.form_weights, ENERGY, (most - float(self.objective.latency_weight) * cycles) / weight

    def _configured(self, draft: Draft, own: Floats, leaf: int) -> Mask:
        """Replace the columns of a leaf's rows by the least over configurations that are not hopeless."""
        bounder, top = self.leaves[leaf], draft.top[leaf]
        total, peak = self._totals(draft, own)
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
            able = ~self._hopeless(self._keys(rest[top[which]][:, None, :] + each, peaks))
            ok[which] = able.any(axis=1)
            draft.columns[leaf][which] = np.where(able[:, :, None], each, np.inf).min(axis=1)
        return ok

    def _state(self, draft: Draft) -> State:
        own = self.top.linear(self.top.view(draft.tops))[0]
        total, peak = self._totals(draft, own)
        tables = []
        for leaf, columns in enumerate(draft.columns):
            top = draft.top[leaf]
            rest = total - least(columns, draft.starts[leaf])
            keys = self._keys(rest[top] + columns, peak[top])
            rank = np.empty(len(top))
            rank[np.lexsort(keys[::-1])] = np.arange(len(top))
            tables.append(Table(draft.boxes[leaf], top, columns, draft.occupancy[leaf], rank))
        return State(draft.tops, self._keys(total, peak), tuple(tables))

    def _drop_configurations(self, state: State) -> None:
        """Drop array configurations that no open top can use in a better solution.

        With configuration k, an op costs at least what k costs when nothing is cut, and the rest at
        least what the best open top costs without the op.
        """
        own = self.top.linear(self.top.view(state.tops))[0]
        parts = [least(table.columns, table.starts(len(state))) for table in state.tables]
        total = own + sum(parts)
        for bounder, part in zip(self.leaves, parts, strict=True):
            if bounder.encoding.table is None:
                continue
            rest = (total - part).min(axis=0)
            columns = rest + bounder.uncut[bounder.active]
            kept = np.flatnonzero(~self._hopeless(self._keys(columns, np.zeros(len(columns)))))
            bounder.active = bounder.active[kept]

    def _keys(self, columns: Floats, peak: Floats) -> tuple[Floats, ...]:
        """Keys of sums of columns. What a bound lacks of the proved least traffic is moved in any case."""
        if self.floor_bits:
            columns = columns.copy()
            lacking = np.maximum(self.floor_bits - columns[..., DRAM], 0.0)
            columns[..., DRAM] += lacking
            columns[..., ENERGY] += lacking * min(self.top.form_weights[READ], self.top.form_weights[WRITE])
        figures = self.rates.figures(columns, peak)
        if self.traffic_only:
            zero = np.zeros_like(figures.dram)
            return figures.dram, zero, zero, zero
        return self.objective.columns(figures, self.scale)

    def _tolerance(self) -> float:
        """Relative difference that float64 may owe to rounding: none as long as figures are below 2⁵²."""
        largest = max((value for value in self.limit if np.isfinite(value)), default=0.0)
        if self.objective.rounding and np.isfinite(self.limit[0]):
            largest = max(value for value in self.limit[1:] if np.isfinite(value))
        return 0.0 if largest < _EXACT else _LARGE_ROUNDING

    def _hopeless(self, keys: tuple[Floats, ...]) -> Mask:
        """Boxes of which no tiling is better than the best, by lexicographic comparison of bounds.

        A product or weighted sum (edp) is rounded, so equal ones are told apart by their parts: a box is
        only dropped if it is no better in energy, latency and peak.
        """
        first, last = keys[0], keys[-1]
        if self.traffic_only:
            return np.asarray(first >= self.limit[0])
        tolerance = self._tolerance()
        slack = self.objective.rounding or tolerance
        above = [first > self.limit[0] * (1 + slack)]
        equal = [~above[0] & (first >= self.limit[0] * (1 - slack))]
        for key, best in zip(keys[1:3], self.limit[1:3], strict=True):
            above.append(key > best * (1 + tolerance))
            equal.append(~above[-1] & (key >= best * (1 - tolerance)))
        if self.objective.rounding:
            no_better = (above[1] | equal[1]) & (above[2] | equal[2])
            dominated = no_better & (above[1] | above[2] | (last >= self.limit[3]))
            return np.asarray(above[0] | (equal[0] & dominated))
        tied = equal[2] & (last >= self.limit[3])
        return np.asarray(above[0] | (equal[0] & (above[1] | (equal[1] & (above[2] | tied)))))

    def _bytes(self, keys: tuple[Floats, ...]) -> Floats:
        """Bytes that a better solution of each top may occupy.

        Where the bound equals the best in all but the peak, only a lower peak is better.
        """
        bytes_ = np.full(len(keys[0]), self.capacity)
        if self.traffic_only or not np.isfinite(self.limit[-1]):
            return bytes_
        last = {"energy": 2, "latency": 2}.get(self.objective.name, 3)
        first = 1 if self.objective.rounding else 0
        tied = np.ones(len(bytes_), dtype=np.bool_)
        tolerance = self._tolerance()
        for key, best in list(zip(keys, self.limit, strict=True))[first:last]:
            tied &= key >= best * (1 - tolerance)
        return np.where(tied, np.minimum(bytes_, self.limit[last] - 1), bytes_)

    # -- splitting ---------------------------------------------------------------------------------

    def _divide(self, state: State) -> Draft:
        """Halve each top along a shared axis, or the best rows of one leaf along private ones.

        The axis is the one along which most can change: width times its share of cost and of bytes.
        """
        count = len(state)
        cost = np.maximum(self._cost_scale(state), 1.0)
        shared, scores, widest, bests = self._scores(self.top, state.tops, cost), [], [], []
        for leaf, (bounder, table) in enumerate(zip(self.leaves, state.tables, strict=True)):
            score = self._scores(bounder, table.boxes, cost[table.top])
            best = self._best_rows(table, count)
            bests.append(best)
            axes = self.program.leaves[leaf].path_axes[state.tops.structure]
            for column in range(axes.shape[1]):
                real = np.flatnonzero(axes[:, column] >= 0)
                at = axes[real, column]
                open_ = (state.tops.low < state.tops.high)[real, at]
                shared[real, at] += np.where(open_, score[best[real], column], 0.0)
            private = np.where(bounder.encoding.shared[table.boxes.structure], 0.0, score)
            scores.append(private)
            of_best = private.max(axis=1)[best]
            of_all = most(private.max(axis=1), table.starts(count))
            widest.append(np.where(of_best > 0, of_best, of_all * 1e-9))  # the others matter last
        per_leaf = np.array(widest)
        split_top = (shared.max(axis=1) > 0) & (shared.max(axis=1) >= per_leaf.max(axis=0))
        leaf = per_leaf.argmax(axis=0)
        apart = self._conflicts(state, bests)
        clash = np.zeros(count, dtype=np.bool_)
        for table, part in zip(state.tables, apart, strict=True):
            clash[table.top[part]] = True
        return self._children(state, split_top & ~clash, np.where(clash, -1, leaf), shared, scores, apart)

    def _conflicts(self, state: State, bests: list[Ints]) -> list[Mask]:
        """Rows to tell apart where the best rows of all leaves do not fit together.

        Each row fits with the least of the others, but tensors held above shared loops may crowd each
        other out. Rows of one leaf that leave the others' best rows their room, and rows that do not,
        then go their own ways: in either part some best row is out. Gives the rows that do not.
        """
        every = np.arange(len(state))
        capacity = self._bytes(state.keys) * (1 + 1e-12)
        used = self.top.occupancy(state.tops.structure, self.top.lowest(state.tops))
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
            most_ = np.maximum(room, lows[number])
            found.append(
                mine[table.top]
                & (table.occupancy[np.arange(len(table)), moment[table.top]] > most_[table.top])
            )
        return found

    def _cost_scale(self, state: State) -> Floats:
        """Least energy (traffic, if nothing else counts) of each top."""
        column = DRAM if self.traffic_only else ENERGY
        own = self.top.linear(self.top.view(state.tops))[0][:, column]
        parts = [least(table.columns[:, column], table.starts(len(state))) for table in state.tables]
        return np.asarray(own + sum(parts))

    def _scores(self, bounder: Bounder, boxes: Boxes, cost: Floats) -> Floats:
        weights = self.top.form_columns[:, DRAM] if self.traffic_only else self.top.form_weights
        width, costs, bytes_ = bounder.sensitivity(boxes, weights)
        return np.asarray(width * (costs / cost[:, None] + bytes_ / self.capacity + EVEN))

    @staticmethod
    def _best_rows(table: Table, tops: int) -> Ints:
        """The row of least rank of each top."""
        order = np.lexsort((np.arange(len(table)), table.rank, table.top))
        return order[np.searchsorted(table.top[order], np.arange(tops))]

    def _children(
        self,
        state: State,
        split_top: Mask,
        leaf: Ints,
        shared: Floats,
        scores: list[Floats],
        apart: list[Mask],
    ) -> Draft:
        """Tops and rows after the split: few ones several times over, for a round costs about the same."""
        count, capacity = len(state), self._bytes(state.keys)
        rows = sum(len(table) for table in state.tables)
        times = 1 + (rows < 2 * FEW) + (rows < FEW // 2) + (rows < FEW // 8)
        both, clash = np.flatnonzero(split_top), np.flatnonzero(leaf < 0)
        # tops: all old ones (the first piece of those that are split), further pieces, copies of clashes
        pieces, source = _pieces(self.top, state.tops.take(both), shared[both], times)
        extra = np.arange(len(both), len(source))
        parent = both[source[extra]]
        tops = Boxes.joined([state.tops, pieces.take(extra), state.tops.take(clash)])
        tops.low[both], tops.high[both] = pieces.low[: len(both)], pieces.high[: len(both)]
        each = max(4, min(SPLITS, ROWS // count))
        draft = Draft.of(tops, np.concatenate([capacity, capacity[parent], capacity[clash]]), [], [])
        for number, (bounder, table) in enumerate(zip(self.leaves, state.tables, strict=True)):
            open_ = scores[number].max(axis=1) > 0
            splits = (~split_top & (leaf == number))[table.top] & open_
            splits &= _ranks(table, ~open_) < each
            again, stay = np.flatnonzero(splits), np.flatnonzero(~splits & ~apart[number])
            parts = [(table.boxes.take(stay), stay, table.top[stay], False)]
            if len(again):
                halves, of = _pieces(bounder, table.boxes.take(again), scores[number][again], times)
                parts.append((halves, again[of], table.top[again[of]], True))
            starts = table.starts(count)
            sizes = np.diff(starts)[parent]
            copied = np.repeat(starts[parent] - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes)
            copied = (copied + np.arange(len(copied))).astype(np.int64)
            place = count + np.repeat(np.arange(len(parent)), sizes)
            parts.append((table.boxes.take(copied), copied, place, False))
            # of a clash, the new top gets the rows set apart, or of another leaf all rows
            parted = np.zeros(count, dtype=np.bool_)
            parted[table.top[apart[number]]] = True
            moved = np.flatnonzero((leaf < 0)[table.top] & (apart[number] | ~parted[table.top]))
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
        return draft

    # -- single tilings ----------------------------------------------------------------------------

    def _settle(self, state: State) -> None:
        """Evaluate tops whose rows are all single tilings, the most promising first."""
        starts = [table.starts(len(state)) for table in state.tables]
        for index in np.lexsort(state.keys[::-1]):
            if self._hopeless(tuple(key[[index]] for key in state.keys))[0]:
                self.counts.pruned_bound += 1
                continue
            rows = [np.arange(s[index], s[index + 1]) for s in starts]
            self._settle_one(state.tops.take(np.array([index])), state, rows)

    def _settle_one(self, top: Boxes, state: State, rows: list[Ints]) -> None:
        """Choose a row and a configuration per leaf: joint choices, exactly, as long as they can be best."""
        own = self.top.linear(self.top.view(top))[0]
        bytes_ = self.top.occupancy(top.structure, self.top.lowest(top))
        options = []
        for bounder, table, mine in zip(self.leaves, state.tables, rows, strict=True):
            view = bounder.view(table.boxes.take(mine))
            linear, recompute = bounder.linear(view)
            if self.traffic_only:
                each = linear[:, None, :]
            else:
                each = linear[:, None, :] + bounder.op(view, recompute)
            configs = each.shape[1]
            options.append(
                (
                    each.reshape(-1, COLUMNS),
                    np.repeat(table.occupancy[mine], configs, axis=0),
                    np.repeat(mine, configs),
                    np.tile(np.arange(configs), len(mine)),
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
                ok = ~self._hopeless(self._keys(sums + rest, peak))
                ok &= peak <= self.capacity
                kept = np.flatnonzero(ok)
                left, right = np.divmod(kept, len(each))
                chosen = np.concatenate([picks[start + left], right[:, None]], axis=1)
                found.append((sums[kept], used[kept], chosen))
            if not any(len(part[0]) for part in found):
                return
            columns = np.concatenate([part[0] for part in found])
            occupied = np.concatenate([part[1] for part in found])
            picks = np.concatenate([part[2] for part in found])
        keys = self._keys(columns, occupied.max(axis=1))
        for index in np.lexsort(keys[::-1]):
            if self._hopeless(tuple(key[[index]] for key in keys))[0]:
                self.counts.pruned_bound += 1
                break
            chosen_rows = [options[leaf][2][pick] for leaf, pick in enumerate(picks[index])]
            configs_ = [options[leaf][3][pick] for leaf, pick in enumerate(picks[index])]
            self._cost(top, state, chosen_rows, configs_)

    def _cost(self, top: Boxes, state: State, rows: list[int], picks: list[int]) -> None:
        """Cost one candidate exactly, and keep it if it is the best; picks number active configurations."""
        skeleton = self.program.skeletons[int(top.structure[0])]
        chosen, configs = [], {}
        for leaf, (bounder, table, row) in enumerate(zip(self.leaves, state.tables, rows, strict=True)):
            box = table.boxes.take(np.array([row]))
            layout = bounder.encoding.structures[int(box.structure[0])]
            assert isinstance(layout, Layout)
            chosen.append(Chosen(layout, self._tiles(bounder, box, len(layout.axes))))
            if bounder.encoding.table is not None:
                config = bounder.encoding.table.configs[int(bounder.active[picks[leaf]])]
                configs[skeleton.ops[leaf]] = config
        tiles = self._tiles(self.top, top, len(skeleton.axes))
        self._offer(skeleton, tiles, chosen, configs)

    @staticmethod
    def _tiles(bounder: Bounder, box: Boxes, axes: int) -> list[int]:
        return [int(value) for value in bounder.lowest(box)[0][:axes]]

    def _offer(
        self, skeleton: Skeleton, tiles: list[int], chosen: list[Chosen], configs: dict[str, ArrayConfig]
    ) -> None:
        group = emit(self.graph, skeleton, tiles, chosen, configs)
        metrics = evaluate_group(self.graph, self.accelerator, group)
        self.counts.evaluated += 1
        if metrics.peak_buffer_bytes > self.accelerator.buffer.capacity_bytes:
            return
        key = self.objective.key(metrics)
        if self.traffic_only:
            if metrics.dram_bytes < self.limit[0]:
                self._accept(key, group, metrics)
                self.limit = (float(metrics.dram_bytes), np.inf, np.inf, np.inf)
        elif self.best_key is None or key < self.best_key:
            self._accept(key, group, metrics)

    def _accept(self, key: Key, group: Group, metrics: Metrics) -> None:
        self.best_key, self.best_group, self.best_metrics = key, group, metrics
        self.limit = self.objective.scaled(key, self.scale)

    # -- promising single tilings ------------------------------------------------------------------

    def _probe(self, state: State, count: int = 32) -> None:
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
        grown, leaves = self._grown(tops, boxes)
        aligned, others = self._aligned(grown, leaves)
        tops = Boxes.joined([grown, aligned])
        rows = [Boxes.joined([one, other]) for one, other in zip(leaves, others, strict=True)]
        every = np.arange(len(tops))
        draft = Draft.of(tops, np.full(len(tops), self.capacity), rows, [every] * len(rows))
        self._fit(draft)
        found = self._bound(draft)
        if len(found):
            self._settle(found)

    def _aligned(self, tops: Boxes, leaves: list[Boxes]) -> tuple[Boxes, list[Boxes]]:
        """Round tiles of single tilings down to multiples of an array extent, which pad no pass."""
        rounded = [
            _round_down(bounder, boxes)
            for bounder, boxes in zip([self.top, *self.leaves], [tops, *leaves], strict=True)
        ]
        return rounded[0], rounded[1:]

    def _grown(self, tops: Boxes, leaves: list[Boxes]) -> tuple[Boxes, list[Boxes]]:
        """Fill the buffer from the least tiles of tops with one row per leaf: shared axes, then private ones.

        Bytes are linear in each axis: what is left over says how far one axis can grow.
        """
        bounders = [self.top, *self.leaves]
        parts = [tops, *leaves]
        limits = [bounder.values(boxes) for bounder, boxes in zip(bounders, parts, strict=True)]
        values = [low.copy() for low, _ in limits]
        axes = [np.broadcast_to(np.arange(tops.low.shape[1]), tops.low.shape)]
        for leaf, boxes in zip(self.program.leaves, leaves, strict=True):
            mine = np.full(boxes.low.shape, -1, dtype=np.int64)
            mine[:, : leaf.path_axes.shape[1]] = leaf.path_axes[tops.structure]
            axes.append(mine)
        width = np.log(limits[0][1] / limits[0][0])
        order = np.argsort(-width, axis=1, kind="stable")
        for rank in range(order.shape[1]):
            axis = order[:, rank]
            masks = [mine == axis[:, None] for mine in axes]
            high = np.take_along_axis(limits[0][1], axis[:, None], axis=1)[:, 0]
            self._grow(parts, values, masks, high)
        for number in range(1, len(parts)):
            low, high = limits[number]
            encoding = self.leaves[number - 1].encoding
            width = np.where(encoding.shared[parts[number].structure], 0.0, np.log(high / low))
            # a loop before what cuts its tile once more
            order = np.argsort(
                -width + 99.0 * encoding.granule[parts[number].structure], axis=1, kind="stable"
            )
            for rank in range(order.shape[1]):
                axis = order[:, rank][:, None]
                if not (np.take_along_axis(width, axis, axis=1) > 0).any():
                    continue
                masks = [np.zeros(value.shape, dtype=np.bool_) for value in values]
                np.put_along_axis(masks[number], axis, np.take_along_axis(width, axis, axis=1) > 0, axis=1)
                most_ = np.take_along_axis(high, axis, axis=1)
                outer = np.take_along_axis(encoding.outer[parts[number].structure], axis, axis=1)
                cut = np.take_along_axis(values[number], np.maximum(outer, 0), axis=1)
                self._grow(parts, values, masks, np.where(outer >= 0, np.minimum(most_, cut), most_)[:, 0])
        found = []
        for bounder, boxes, value in zip(bounders, parts, values, strict=True):
            index = np.maximum(bounder.tilings.floor(bounder.tilings.number[boxes.structure], value), 0)
            found.append(Boxes(boxes.structure, index, index))
        return found[0], found[1:]

    def _grow(self, parts: list[Boxes], values: list[Floats], masks: list[Mask], high: Floats) -> None:
        """Raise the masked axes of all parts of each solution to one value, at most ``high``."""
        room: Floats = np.full((len(high), len(self.leaves)), self.capacity)
        shares = np.zeros_like(room)
        start = np.zeros(len(high))
        for bounder, boxes, value, mask in zip([self.top, *self.leaves], parts, values, masks, strict=True):
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
    value = bounder.values(boxes)[0]
    size, rounded = encoding.size[boxes.structure], value.copy()
    for extent in encoding.extents:
        rounded = np.where((value >= extent) & (value < size), value - value % extent, rounded)
    index = np.maximum(tilings_.floor(tilings_.number[boxes.structure], rounded), 0)
    return Boxes(boxes.structure, index, index)


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


def _ranks(table: Table, last: Mask) -> Ints:
    """Place of each row among the rows of its top, best first, some after all others."""
    order = np.lexsort((np.arange(len(table)), table.rank, last, table.top))
    place = np.empty(len(table), dtype=np.int64)
    place[order] = np.arange(len(table))
    first = np.searchsorted(table.top, table.top)
    return place - first
