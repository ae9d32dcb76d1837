"""Objectives: what is minimised, and how ties are broken (design §6, §8)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from mmee_solver.bounds import Figures
from mmee_solver.cost import Metrics

Floats = NDArray[np.float64]
Key = tuple[Fraction, Fraction, Fraction, Fraction]
ROUNDING = 1e-12  # relative; of products and weighted sums in float64


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised first; ties go to energy, then latency, then peak occupancy.

    ``dram``, ``energy``, ``latency`` and ``edp`` are the objectives of §6; ``weighted`` minimises
    ``energy_weight`` · energy + ``latency_weight`` · latency (pJ, cycles), for the corners of a front.
    """

    name: str
    energy_weight: Fraction = Fraction(1)
    latency_weight: Fraction = Fraction(0)

    def key(self, metrics: Metrics) -> Key:
        """Exact key of a solution: least is best, in lexicographic order."""
        energy, latency = metrics.energy.total, Fraction(metrics.latency_cycles)
        peak = Fraction(metrics.peak_buffer_bytes)
        return self.order(Fraction(metrics.dram_bytes), energy, latency, peak)

    def additive(self, metrics: Metrics) -> tuple[Fraction, ...]:
        """The parts of the key that add up over groups: all but the peak."""
        return self.without_peak(self.key(metrics))

    def without_peak(self, key: Key) -> tuple[Fraction, ...]:
        """The parts of a key before the peak."""
        return key[:2] if self.name in ("energy", "latency") else key[:3]

    def order(self, dram: Fraction, energy: Fraction, latency: Fraction, peak: Fraction) -> Key:
        """Arrange exact figures by importance."""
        if self.name == "dram":
            return dram, energy, latency, peak
        if self.name == "energy":
            return energy, latency, peak, Fraction(0)
        if self.name == "latency":
            return latency, energy, peak, Fraction(0)
        if self.name == "edp":
            return energy * latency, energy, latency, peak
        value = self.energy_weight * energy + self.latency_weight * latency
        return value, energy, latency, peak

    def columns(self, figures: Figures, scale: int) -> tuple[Floats, Floats, Floats, Floats]:
        """The same key for arrays of figures, energy in units of 1/scale pJ."""
        f, zero = figures, np.zeros_like(figures.peak)
        if self.name == "dram":
            return f.dram, f.energy, f.latency, f.peak
        if self.name == "energy":
            return f.energy, f.latency, f.peak, zero
        if self.name == "latency":
            return f.latency, f.energy, f.peak, zero
        if self.name == "edp":
            return f.energy * f.latency, f.energy, f.latency, f.peak
        value = float(self.energy_weight / scale) * f.energy + float(self.latency_weight) * f.latency
        return value, f.energy, f.latency, f.peak

    def scaled(self, key: Key, scale: int) -> tuple[float, float, float, float]:
        """An exact key in the units of ``columns``."""
        first, second, third, last = key
        if self.name in ("dram", "latency"):
            return float(first), float(second * scale), float(third), float(last)
        if self.name in ("energy", "edp"):
            first = first * scale
        if self.name != "energy":
            second = second * scale
        return float(first), float(second), float(third), float(last)

    @property
    def rounding(self) -> float:
        """Relative rounding of the first column."""
        return ROUNDING if self.name in ("edp", "weighted") else 0.0
