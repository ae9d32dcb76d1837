"""The search loop of one group: bound, contract, split, until every tiling is decided (design §8).

The enumeration is exhaustive. A box leaves it only by a proof: it cannot fit, its bound is not below
the best value, or it is a single tiling that was evaluated. The most promising boxes are split first.
:class:`Counts` says how many left by which rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.bounds import Bounder, Boxes, Figures, Linear, OpFigures
from mmee_solver.cost import Metrics, evaluate_group
from mmee_solver.emit import emit
from mmee_solver.encode import FORMS, READ, WRITE, Encoding
from mmee_solver.nest import Group
from mmee_solver.objective import ROUNDING, Key, Objective
from mmee_solver.probe import aligned, greedy
from mmee_solver.structures import Structure
from mmee_solver.tilings import Tilings
from mmee_solver.workload import Graph

Floats = NDArray[np.float64]
CHUNK = 2048  # boxes split at once: bounds the memory
FEW = 512  # boxes below which a round splits twice
PAIRS = 1 << 20  # choices of configurations looked at together: bounds the memory
DIVE = 256  # open boxes from which on a beam search for better values pays
_EXACT = float(1 << 52)  # whole numbers below are exact in float64, and so are their sums
_LARGE_ROUNDING = 1e-14  # relative; of sums of whole numbers that are not


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


class Search:
    """Decides all tilings of an encoding; keeps the best group, its metrics and its key."""

    def __init__(
        self,
        graph: Graph,
        accelerator: Accelerator,
        encoding: Encoding,
        objective: Objective,
        counts: Counts,
        cutoff: Key | None,
    ) -> None:
        self.graph, self.accelerator, self.encoding = graph, accelerator, encoding
        self.objective, self.counts = objective, counts
        self.scale = encoding.weights.scale
        self.best_key: Key | None = cutoff
        self.best_group: Group | None = None
        self.best_metrics: Metrics | None = None
        self.limit: tuple[float, float, float, float] = (np.inf,) * 4
        if cutoff is not None:
            self.limit = objective.scaled(cutoff, self.scale)
        self.traffic_only = False
        self.rounds = 0

    # -- the loop ----------------------------------------------------------------------------------

    def least_traffic(self, sizes: Tilings) -> None:
        """First pass of the dram objective: traffic alone, at most the cutoff's.

        It leaves ``best_metrics`` None if no tiling moves as little as the cutoff. Else the second
        pass (``run``) looks for the least energy among the tilings that move no more.
        """
        cutoff = self.best_key
        self.traffic_only = True
        # A bound is hopeless from this value on; equal traffic may still win by energy.
        self.limit = (np.nextafter(self.limit[0], np.inf), np.inf, np.inf, np.inf)
        self.best_key = None
        self.run(sizes)
        self.traffic_only = False
        if cutoff is not None and self.best_key is not None and self.best_key >= cutoff:
            self.best_group, self.best_key = None, cutoff
        if self.best_key is not None:
            self.limit = self.objective.scaled(self.best_key, self.scale)

    def run(self, sizes: Tilings) -> None:
        """Decide every tiling of every structure."""
        self.bounder = Bounder(self.encoding, sizes, self.accelerator, self.accelerator.buffer.capacity_bytes)
        self.sizes, self.rounds = sizes, 0
        if not self.traffic_only:
            self._count(sizes)
        boxes, keys = self._bound(self.bounder.all_boxes())
        rounds = 0
        while len(boxes):
            if not self.traffic_only and rounds % 6 == 1:
                self._drop_configurations(boxes)
            rounds += 1
            if len(boxes) >= DIVE and rounds & (rounds - 1) == 0:
                self._dive(boxes, keys)
            order = np.lexsort(keys[::-1])
            chosen, rest = order[:CHUNK], order[CHUNK:]
            capacity = self._capacity(tuple(key[chosen] for key in keys))
            children, child_keys = self._bound(*self._divide(boxes.take(chosen), capacity))
            boxes = Boxes.joined([boxes.take(rest), children])
            keys = tuple(np.concatenate([old[rest], new]) for old, new in zip(keys, child_keys, strict=True))
            keep = ~self._hopeless(keys)
            self.counts.pruned_bound += int((~keep).sum())
            boxes, keys = boxes.take(keep), tuple(key[keep] for key in keys)

    def _capacity(self, keys: tuple[Floats, ...]) -> Floats:
        """Bytes that a better tiling of each box may occupy.

        Where the bound equals the best in all but the peak, only a lower peak is better.
        """
        most = np.full(len(keys[0]), self.bounder.capacity)
        if self.traffic_only or not np.isfinite(self.limit[-1]):
            return most
        last = {"energy": 2, "latency": 2}.get(self.objective.name, 3)
        first = 1 if self.objective.rounding else 0
        tied = np.ones(len(most), dtype=np.bool_)
        tolerance = self._tolerance()
        for key, best in list(zip(keys, self.limit, strict=True))[first:last]:
            tied &= key >= best * (1 - tolerance)
        return np.where(tied, np.minimum(most, self.limit[last] - 1), most)

    def _count(self, sizes: Tilings) -> None:
        """Size of the space: tilings of all structures, and with every choice of configurations."""
        lengths = sizes.length[sizes.number] - self.encoding.shared
        tilings = sum(prod(int(length) for length in row) for row in lengths)
        configs = prod(len(table.configs) for table in self.encoding.tables if table is not None)
        self.counts.tilings += tilings
        self.counts.candidates += tilings * configs

    def _bound(self, boxes: Boxes, capacity: Floats | None = None) -> tuple[Boxes, tuple[Floats, ...]]:
        """Contract and bound boxes, settle single tilings, try a few promising ones; return the rest."""
        boxes, linear, ops, keys = self._evaluate(boxes, capacity, count=True)
        if len(boxes):
            single = boxes.single()
            self._settle(boxes, linear, ops, keys, np.flatnonzero(single))
            open_ = np.flatnonzero(~single & ~self._hopeless(keys))
            boxes, keys = boxes.take(open_), tuple(key[open_] for key in keys)
            self.rounds += 1
            if self.rounds <= 12 or self.rounds % 3 == 0:
                self._probe(boxes, keys)
        return boxes, keys

    def _drop_configurations(self, boxes: Boxes) -> None:
        """Drop array configurations that no open box can use in a better tiling.

        With configuration k, an op costs at least what k costs when nothing is cut, and the rest at
        least what the best open box costs with every op at its own least.
        """
        quick = self.bounder.quick(self.bounder.linear(self.bounder.view(boxes)))
        for leaf, table in enumerate(self.encoding.tables):
            if table is None:
                continue
            uncut, least = self.bounder.uncut(leaf), self.bounder.least
            others = sum(part[1] for index, part in enumerate(least) if index != leaf)
            cycles = np.maximum(quick.latency.min(), np.ceil(uncut.cycles[0] + others))
            figures = Figures(
                np.full_like(cycles, quick.dram.min()),
                quick.energy.min() - least[leaf][0] + uncut.energy[0],
                cycles,
                np.zeros_like(cycles),
            )
            kept = np.flatnonzero(~self._hopeless(self._keys(figures)))
            self.bounder.active[leaf] = self.bounder.active[leaf][kept]

    def _evaluate(
        self, boxes: Boxes, capacity: Floats | None = None, count: bool = False
    ) -> tuple[Boxes, Linear, list[OpFigures] | None, tuple[Floats, ...]]:
        before = len(boxes)
        weights, limit = self._linear_limit()
        boxes = self.bounder.contract(boxes, weights, limit, capacity)
        view = self.bounder.view(boxes)
        linear = self.bounder.linear(view)
        keys = self._keys(self.bounder.quick(linear))
        keep = np.flatnonzero(~self._hopeless(keys))
        if count:
            self.counts.bounded += before
            self.counts.pruned_capacity += before - len(boxes)
            self.counts.pruned_bound += len(boxes) - len(keep)
        view, linear, keys = view.take(keep), linear.take(keep), tuple(key[keep] for key in keys)
        boxes = view.boxes
        if self.traffic_only or not len(boxes):
            return boxes, linear, None, keys
        ops = self.bounder.ops(view, linear)
        keys = self._keys(self.bounder.full(linear, ops))
        keep = np.flatnonzero(~self._hopeless(keys))
        alive = len(keep)
        if alive:
            linear, keys = linear.take(keep), tuple(key[keep] for key in keys)
            ops = [op.take(keep) for op in ops]
            keys = self._joint(linear, ops, keys)
            still = np.flatnonzero(~self._hopeless(keys))
            linear, keys = linear.take(still), tuple(key[still] for key in keys)
            ops, keep = [op.take(still) for op in ops], keep[still]
        if count:
            self.counts.pruned_bound += len(boxes) - len(keep)
        return boxes.take(keep), linear.take(np.arange(len(keep))), ops, tuple(k[: len(keep)] for k in keys)

    def _joint(self, linear: Linear, ops: list[OpFigures], keys: tuple[Floats, ...]) -> tuple[Floats, ...]:
        """Keys that know that energy and cycles belong to one choice of configurations.

        A better tiling uses *some* configuration of each op. So the least first key over all choices
        bounds the first key; the least second key over the choices whose first key is not beaten bounds
        the second, and so on: a later key only counts where all earlier ones are equal to the best.
        """
        needed = np.arange(len(keys[0]))
        if self.objective.name in ("dram", "energy"):
            tie = 1 if self.objective.name == "dram" else 0
            tolerance = self._tolerance()
            needed = np.flatnonzero(keys[tie] >= self.limit[tie] * (1 - tolerance))
        found = [key.copy() for key in keys]
        count = prod(op.energy.shape[1] for op in ops)
        step = max(1, PAIRS // count)
        for start in range(0, len(needed), step):
            part = needed[start : start + step]
            each = self._keys(self.bounder.choices(linear.take(part), [op.take(part) for op in ops]))
            self._tighten(found, each, part)
        return tuple(found)

    def _tighten(self, keys: list[Floats], each: tuple[Floats, ...], part: NDArray[np.int64]) -> None:
        """Raise the keys of some boxes to the least over their choices, (B, n_choices).

        A rounded first key (edp) is no lexicographic order of exact keys: there, energy and latency are
        each bounded over all choices whose first key is not beaten.
        """
        slack = max(self.objective.rounding, self._tolerance())
        able = np.ones(each[0].shape, dtype=np.bool_)
        for key, values, best in zip(keys[:3], each[:3], self.limit[:3], strict=True):
            least = np.where(able, values, np.inf).min(axis=1)
            key[part] = np.maximum(key[part], least)
            if key is keys[0] or not self.objective.rounding:
                able &= values <= best * (1 + slack)

    def _keys(self, figures: Figures) -> tuple[Floats, ...]:
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

    def _hopeless(self, keys: tuple[Floats, ...]) -> NDArray[np.bool_]:
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

    def _linear_limit(self) -> tuple[Floats | None, float]:
        """A linear cost and its limit, for contraction."""
        if not np.isfinite(self.limit[0]):
            return None, np.inf
        if self.objective.name in ("dram",):
            weights = np.zeros(FORMS)
            weights[READ] = weights[WRITE] = 1 / 8
            return weights, self.limit[0]
        fixed = sum(
            least[0] + (table.macs * self.encoding.weights.mac if table else 0.0)
            for least, table in zip(self.bounder.least, self.encoding.tables, strict=True)
        )
        if self.objective.name == "latency":
            weights = np.zeros(FORMS)
            weights[READ] = weights[WRITE] = self.bounder.dram_cycles / 8
            return weights, self.limit[0]
        cycles = max(1.0, sum(least[1] for least in self.bounder.least))
        return self.bounder.form_weights, self._most_energy(cycles) - fixed

    def _most_energy(self, cycles: float) -> float:
        """Energy that a better tiling can cost at most if it takes at least ``cycles``."""
        if self.objective.name == "energy":
            return self.limit[0]
        most = self.limit[0] * (1 + ROUNDING)
        if self.objective.name == "edp":
            return most / cycles
        weight = float(self.objective.energy_weight / self.scale)
        return (most - float(self.objective.latency_weight) * cycles) / weight

    def _divide(self, boxes: Boxes, capacity: Floats) -> tuple[Boxes, Floats]:
        """Split boxes, several times over where they are few: a round costs about the same then."""
        for _ in range(1 + (len(boxes) < FEW) + (len(boxes) < FEW // 8)):
            boxes, capacity = self._split(boxes), np.tile(capacity, 2)
            whole = np.flatnonzero((boxes.low <= boxes.high).all(axis=1))
            boxes, capacity = boxes.take(whole), capacity[whole]
        return boxes, capacity

    def _split(self, boxes: Boxes) -> Boxes:
        """Halve each box along its widest axis, at the geometric mean of its tile sizes.

        A single tiling gives itself and an empty box.
        """
        low, high = self.bounder.values(boxes)
        width = np.log(high / low)
        axis = np.argmax(np.where(boxes.low < boxes.high, width, -1.0), axis=1)[:, None]
        number = np.take_along_axis(self.sizes.number[boxes.structure], axis, axis=1)
        first = np.take_along_axis(boxes.low, axis, axis=1)
        last = np.take_along_axis(boxes.high, axis, axis=1)
        middle = np.sqrt(np.take_along_axis(low, axis, axis=1) * np.take_along_axis(high, axis, axis=1))
        cut = np.clip(self.sizes.floor(number, middle), first, last - 1)
        left, right = boxes.high.copy(), boxes.low.copy()
        np.put_along_axis(left, axis, cut, axis=1)
        np.put_along_axis(right, axis, cut + 1, axis=1)
        return Boxes.joined(
            [
                Boxes(boxes.structure, boxes.low, left),
                Boxes(boxes.structure, right, boxes.high),
            ]
        )

    # -- single tilings ----------------------------------------------------------------------------

    def _settle(
        self,
        boxes: Boxes,
        linear: Linear,
        ops: list[OpFigures] | None,
        keys: tuple[Floats, ...],
        which: NDArray[np.int64],
    ) -> None:
        """Evaluate single tilings exactly, the most promising first, as long as they can be best."""
        if not len(which):
            return
        order = which[np.lexsort(tuple(key[which] for key in keys[::-1]))]
        for index in order:
            one = np.array([index])
            if self._hopeless(tuple(key[one] for key in keys))[0]:
                self.counts.pruned_bound += 1
                continue
            part = linear.take(one)
            picked = (
                None
                if ops is None
                else [OpFigures(op.energy[one], op.cycles[one], op.bits[one]) for op in ops]
            )
            self._offer(boxes.take(one), part, picked)

    def _offer(self, box: Boxes, linear: Linear, ops: list[OpFigures] | None) -> None:
        structure = self.encoding.structures[int(box.structure[0])]
        values = self.sizes.value(self.sizes.number[box.structure], box.low)[0]
        tiles = [int(value) for value in values[: len(structure.axes)]]
        if ops is None:
            self._cost(structure, tiles, [0] * len(self.encoding.tables))
            return
        for picks, bound in self._choices(linear, ops):
            if self._hopeless(bound)[0]:
                self.counts.pruned_bound += 1
            else:
                self._cost(structure, tiles, picks)

    def _cost(self, structure: Structure, tiles: list[int], picks: list[int]) -> None:
        """Cost one candidate exactly, and keep it if it is the best; picks number active configurations."""
        tables = self.encoding.tables
        configs = {
            name: table.configs[int(self.bounder.active[leaf][picks[leaf]])]
            for leaf, (name, table) in enumerate(zip(structure.ops, tables, strict=True))
            if table is not None
        }
        group = emit(self.graph, structure, tiles, configs)
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

    def _choices(self, linear: Linear, ops: list[OpFigures]) -> list[tuple[list[int], tuple[Floats, ...]]]:
        """Joint choices of configurations that can be best, the most promising first, with their keys.

        Costs meet in the latency, so choices are compared whole. Keys are exact, and one choice is
        enough, unless odd bits are rounded up to bytes: then the keys are bounds, and every choice that
        is not hopeless may turn out to be the best.
        """
        odd = self.encoding.odd_bits
        fronts = [
            np.arange(len(op.energy[0])) if odd else _front(op.energy[0], op.cycles[0], op.bits[0])
            for op in ops
        ]
        flat = [grid.ravel() for grid in np.meshgrid(*fronts, indexing="ij")]
        choice = [
            (op.energy[0][pick], op.cycles[0][pick], op.bits[0][pick])
            for op, pick in zip(ops, flat, strict=True)
        ]
        keys = self._keys(self.bounder.combine(linear, choice))
        order = np.lexsort(keys[::-1])
        order = order[~self._hopeless(tuple(key[order] for key in keys))] if odd else order[:1]
        return [([int(pick[index]) for pick in flat], tuple(key[[index]] for key in keys)) for index in order]

    def _dive(self, boxes: Boxes, keys: tuple[Floats, ...], width: int = 48) -> None:
        """Follow the most promising boxes down to single tilings, a beam at a time: better values early."""
        order = np.lexsort(keys[::-1])[:width]
        beam = boxes.take(order)
        while len(beam):
            beam, linear, ops, found = self._evaluate(self._split(beam))
            if not len(beam):
                return
            single = beam.single()
            self._settle(beam, linear, ops, found, np.flatnonzero(single))
            open_ = np.flatnonzero(~single & ~self._hopeless(found))
            ranked = open_[np.lexsort(tuple(key[open_] for key in found[::-1]))[:width]]
            beam = beam.take(ranked)

    def _probe(self, boxes: Boxes, keys: tuple[Floats, ...], most: int = 32) -> None:
        """Settle a few greedy tilings of the most promising boxes: good values early."""
        if not len(boxes):
            return
        tried = greedy(self.bounder, boxes.take(np.lexsort(keys[::-1])[:most]))
        both = Boxes.joined([tried, aligned(self.bounder, tried)])
        found, linear, ops, found_keys = self._evaluate(both)
        self._settle(found, linear, ops, found_keys, np.arange(len(found)))


def _front(energy: Floats, cycles: Floats, bits: Floats) -> NDArray[np.int64]:
    """Positions that no other position beats in all three; of equal ones, the first."""
    order = np.lexsort((np.arange(len(energy)), bits, cycles, energy))
    kept: list[int] = []
    for index in order:
        if not any(cycles[k] <= cycles[index] and bits[k] <= bits[index] for k in kept):
            kept.append(int(index))
    return np.array(kept, dtype=np.int64)
