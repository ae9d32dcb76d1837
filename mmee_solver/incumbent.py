"""The best solution so far, and what a better one must still reach (design §8)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from mmee_solver.accelerator import Accelerator
from mmee_solver.bounds import ACCESSED, COLUMNS, CYCLES, DRAM, ENERGY, VECTORS, Rates
from mmee_solver.cost import Metrics, evaluate_group
from mmee_solver.encode import Weights
from mmee_solver.nest import Group
from mmee_solver.objective import Key, Objective
from mmee_solver.space import GroupSpace
from mmee_solver.tables import Floats, Mask

_EXACT = float(1 << 52)  # whole numbers below are exact in float64, and so are their sums
_LARGE_ROUNDING = 1e-14  # relative; of sums of whole numbers that are not


class Incumbent:
    """Keeps the best group, its metrics and its key; compares bounds with it.

    ``traffic_only`` looks at nothing but DRAM traffic; ``floor_bits`` is a proved least traffic;
    ``floor`` is a known bound of what adds up over groups (see :meth:`Objective.additive`).
    """

    def __init__(
        self,
        space: GroupSpace,
        accelerator: Accelerator,
        weights: Weights,
        objective: Objective,
        cutoff: Key | None,
        floor: tuple[Fraction, ...] | None = None,
    ) -> None:
        self.graph, self.resident = space.graph, space.resident
        self.accelerator, self.objective, self.floor = accelerator, objective, floor
        self.kept_bytes = float(space.kept_bytes)
        self.capacity = float(accelerator.buffer.capacity_bytes) - self.kept_bytes
        self.rates, self.scale = Rates.of(accelerator), weights.scale
        self.least_per_bit = float(min(weights.read_bit, weights.write_bit))
        self.traffic_only = False
        self.floor_bits = 0.0
        self.key: Key | None = cutoff
        self.group: Group | None = None
        self.metrics: Metrics | None = None
        self.limit: tuple[float, float, float, float] = (np.inf,) * 4
        if cutoff is not None:
            self.limit = objective.scaled(cutoff, self.scale)

    def offer(self, group: Group) -> None:
        """Cost one candidate exactly, and keep it if it fits and is the best."""
        metrics = evaluate_group(self.graph, self.accelerator, group, self.resident)
        if metrics.peak_buffer_bytes > self.accelerator.buffer.capacity_bytes:
            return
        key = self.objective.key(metrics)
        if self.traffic_only:
            if metrics.dram_bytes < self.limit[0]:
                self._accept(key, group, metrics)
                self.limit = (float(metrics.dram_bytes), np.inf, np.inf, np.inf)
        elif self.key is None or key < self.key:
            self._accept(key, group, metrics)

    def _accept(self, key: Key, group: Group, metrics: Metrics) -> None:
        self.key, self.group, self.metrics = key, group, metrics
        self.limit = self.objective.scaled(key, self.scale)

    @property
    def done(self) -> bool:
        """Whether the best reaches the floor, so that nothing is better (in what adds up over groups)."""
        if self.floor is None or self.metrics is None:
            return False
        if self.traffic_only:
            return self.metrics.dram_bytes <= self.floor[0]
        return self.objective.additive(self.metrics) <= self.floor

    def start_traffic(self) -> None:
        """Look for the least traffic alone, at most the cutoff's: equal traffic may still win by energy."""
        self.traffic_only = True
        self.limit = (np.nextafter(self.limit[0], np.inf), np.inf, np.inf, np.inf)
        self.key = None

    def end_traffic(self, cutoff: Key | None, exact: bool) -> None:
        """Look for the least energy among what moves no more; ``exact``: columns count whole bytes."""
        self.traffic_only = False
        if cutoff is not None and self.key is not None and self.key >= cutoff:
            self.group, self.key = None, cutoff
        if self.key is not None:
            self.limit = self.objective.scaled(self.key, self.scale)
            if exact and self.metrics is not None:
                self.floor_bits = 8.0 * float(self.metrics.dram_bytes)

    def mixes(self) -> Floats:
        """Mixes of columns that bound the value, (COLUMNS, n).

        A weighted sum of energy and latency is at least the same sum of energy and the cycles of one
        resource, whichever it is.
        """
        if self.objective.name != "weighted":
            return np.zeros((COLUMNS, 0))
        rates, energy = self.rates, float(self.objective.energy_weight / self.scale)
        latency = float(self.objective.latency_weight)
        found = []
        for column, cycles in (
            (CYCLES, 1.0),
            (VECTORS, 1 / rates.lanes),
            (DRAM, rates.dram_cycles / 8),
            (ACCESSED, rates.buffer_cycles / 8),
        ):
            if cycles:
                mix = np.zeros(COLUMNS)
                mix[ENERGY] = energy
                mix[column] += latency * cycles
                if column == ACCESSED:
                    mix[DRAM] += latency * cycles
                found.append(mix)
        return np.array(found).T

    def keys(self, columns: Floats, peak: Floats) -> tuple[Floats, ...]:
        """Keys of sums of columns. What a bound lacks of the proved least traffic is moved in any case."""
        if self.floor_bits:
            columns = columns.copy()
            lacking = np.maximum(self.floor_bits - columns[..., DRAM], 0.0)
            columns[..., DRAM] += lacking
            columns[..., ENERGY] += lacking * self.least_per_bit
        figures = self.rates.figures(columns, peak + self.kept_bytes)
        if self.traffic_only:
            zero = np.zeros_like(figures.dram)
            return figures.dram, zero, zero, zero
        keys = self.objective.columns(figures, self.scale)
        if columns.shape[-1] > COLUMNS:
            keys = (np.maximum(keys[0], columns[..., COLUMNS:].max(axis=-1)), *keys[1:])
        return keys

    def tolerance(self) -> float:
        """Relative difference that float64 may owe to rounding: none as long as figures are below 2⁵²."""
        largest = max((value for value in self.limit if np.isfinite(value)), default=0.0)
        if self.objective.rounding and np.isfinite(self.limit[0]):
            largest = max(value for value in self.limit[1:] if np.isfinite(value))
        return 0.0 if largest < _EXACT else _LARGE_ROUNDING

    def hopeless(self, keys: tuple[Floats, ...]) -> Mask:
        """Boxes of which no tiling is better than the best, by lexicographic comparison of bounds.

        A product or weighted sum (edp) is rounded, so equal ones are told apart by their parts: a box is
        only dropped if it is no better in energy, latency and peak.
        """
        first, last = keys[0], keys[-1]
        if self.traffic_only:
            return np.asarray(first >= self.limit[0])
        tolerance = self.tolerance()
        slack = self.objective.rounding or tolerance
        above = [first > self.limit[0] * (1 + slack)]
        equal = [~above[0] & (first >= self.limit[0] * (1 - slack))]
        for key, best in zip(keys[1:3], self.limit[1:3], strict=True):
            above.append(key > best * (1 + tolerance))
            equal.append(~above[-1] & (key >= best * (1 - tolerance)))
        if self.objective.rounding:
            no_better = (above[1] | equal[1]) & (above[2] | equal[2])
            dominated = no_better & (above[1] | above[2] | (last >= self.limit[3]))
            close = equal[0] & ~dominated
            if tolerance == 0.0 and close.any():
                dominated[close] = self._exactly_worse(keys[1][close], keys[2][close], last[close])
            return np.asarray(above[0] | (equal[0] & dominated))
        tied = equal[2] & (last >= self.limit[3])
        return np.asarray(above[0] | (equal[0] & (above[1] | (equal[1] & (above[2] | tied)))))

    def _exactly_worse(self, energy: Floats, latency: Floats, peak: Floats) -> Mask:
        """The same comparison in exact numbers, for whole energies and latencies that are bounds."""
        assert self.key is not None
        pairs, which = np.unique(np.stack([energy, latency], axis=1), axis=0, return_inverse=True)
        order = []
        for one, cycles in pairs:
            part = Fraction(int(one), self.scale), Fraction(int(cycles))
            found = self.objective.order(Fraction(0), *part, Fraction(0))[:3]
            order.append((found > self.key[:3]) - (found < self.key[:3]))
        sign = np.array(order)[which.reshape(-1)]
        return np.asarray((sign > 0) | ((sign == 0) & (peak >= float(self.key[3]))))

    def bytes(self, keys: tuple[Floats, ...]) -> Floats:
        """Bytes that a better solution of each top may occupy.

        Where the bound equals the best in all but the peak, only a lower peak is better.
        """
        most = np.full(len(keys[0]), self.capacity)
        if self.traffic_only or not np.isfinite(self.limit[-1]):
            return most
        last = {"energy": 2, "latency": 2}.get(self.objective.name, 3)
        first = 1 if self.objective.rounding else 0
        tied = np.ones(len(most), dtype=np.bool_)
        tolerance = self.tolerance()
        for key, best in list(zip(keys, self.limit, strict=True))[first:last]:
            tied &= key >= best * (1 - tolerance)
        return np.where(tied, np.minimum(most, self.limit[last] - 1 - self.kept_bytes), most)
