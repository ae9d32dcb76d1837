"""The result: a mapping with its figures, and its JSON form "mmee-mapping/1" (design §9)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import Metrics
from mmee_solver.nest import Group, Resident, array_to_json, nest_to_json
from mmee_solver.workload import Graph

FORMAT = "mmee-mapping/1"
OBJECTIVES = ("dram", "energy", "latency", "edp")
FUSION = ("none", "auto", "all")
TILES = ("integer", "divisors")


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for: objective, tile sizes, fusion, recomputation, residency between groups."""

    objective: str = "energy"
    tiles: str = "integer"
    fusion: str = "auto"
    recompute: bool = True
    residency: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Options by name."""
        return {
            "objective": self.objective,
            "tiles": self.tiles,
            "fusion": self.fusion,
            "recompute": self.recompute,
            "residency": self.residency,
        }


@dataclass(frozen=True, slots=True)
class Mapping:
    """A solved graph.

    ``graph`` is folded. ``value`` and ``bound`` are in the objective's unit (bytes, pJ, cycles,
    pJ · cycles); equal when ``status`` is ``optimal``. ``unfused`` is the cost of the best dataflow
    with every op alone. ``seconds`` is not part of the JSON: equal inputs give equal bytes.
    """

    status: str
    options: Options
    graph: Graph
    accelerator: Accelerator
    groups: tuple[Group, ...]
    group_metrics: tuple[Metrics, ...]
    metrics: Metrics
    bound: Fraction
    resident: tuple[Resident, ...] = ()
    unfused: Metrics | None = None
    certificate: MappingABC[str, Any] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)

    @property
    def value(self) -> Fraction:
        """The objective's value."""
        return Fraction(self.metrics.value(self.options.objective))

    @property
    def gap(self) -> float:
        """Relative distance between value and proven bound."""
        return float((self.value - self.bound) / self.value) if self.value else 0.0


def number(value: Fraction | int) -> int | float:
    """An exact integer where there is one, else the nearest float.

    >>> number(Fraction(6, 2)), number(Fraction(1, 4))
    (3, 0.25)
    """
    fraction = Fraction(value)
    return int(fraction) if fraction.denominator == 1 else float(fraction)


def digest(data: MappingABC[str, Any]) -> str:
    """SHA-256 of a JSON value in canonical form (sorted keys, no spaces).

    >>> digest({"a": 1})[:8]
    '015abd7f'
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def metrics_to_json(metrics: Metrics, accelerator: Accelerator) -> dict[str, Any]:
    """Figures as plain JSON data: counts as integers, energies in pJ, ``edp_js`` in J·s."""
    seconds = metrics.latency_cycles / accelerator.clock_hz
    energy = metrics.energy
    return {
        "dram_read_bytes": metrics.dram_read_bytes,
        "dram_write_bytes": metrics.dram_write_bytes,
        "dram_bytes": metrics.dram_bytes,
        "buffer_read_bytes": metrics.buffer_read_bytes,
        "buffer_write_bytes": metrics.buffer_write_bytes,
        "peak_buffer_bytes": metrics.peak_buffer_bytes,
        "macs": metrics.macs,
        "array_cycles": metrics.array_cycles,
        "vector_ops": metrics.vector_ops,
        "vector_cycles": metrics.vector_cycles,
        "latency_cycles": metrics.latency_cycles,
        "latency_s": seconds,
        "energy_pj": {
            name: float(getattr(energy, name))
            for name in ("dram", "buffer", "register", "mac", "vector", "total")
        },
        "edp_js": float(energy.total) * 1e-12 * seconds,
        "utilisation": metrics.utilisation(accelerator),
        "cycles": dict(metrics.cycles),
        "traffic": {
            name: {"read_bytes": read, "write_bytes": written}
            for name, (read, written) in metrics.traffic.items()
        },
    }


def mapping_to_json(mapping: Mapping, graph: dict[str, Any], accelerator: dict[str, Any]) -> dict[str, Any]:
    """The whole mapping as plain JSON data.

    Parameters
    ----------
    mapping : Mapping
        The result.
    graph, accelerator : dict
        Their JSON forms, from :mod:`mmee_solver.io`.
    """
    acc = mapping.accelerator
    return {
        "format": FORMAT,
        "status": mapping.status,
        "objective": mapping.options.objective,
        "value": number(mapping.value),
        "bound": number(mapping.bound),
        "gap": mapping.gap,
        "graph": graph,
        "accelerator": accelerator,
        "options": mapping.options.as_dict(),
        "groups": [
            {
                "ops": list(group.ops),
                "nest": nest_to_json(group.nest),
                "array": {name: array_to_json(config) for name, config in group.array.items()},
                "metrics": metrics_to_json(metrics, acc),
            }
            for group, metrics in zip(mapping.groups, mapping.group_metrics, strict=True)
        ],
        "resident": [{"tensor": r.tensor, "from": r.first, "to": r.last} for r in mapping.resident],
        "metrics": metrics_to_json(mapping.metrics, acc),
        "comparison": {
            "unfused": None if mapping.unfused is None else metrics_to_json(mapping.unfused, acc),
            "compulsory_bytes": mapping.graph.compulsory_bytes(),
        },
        "certificate": {
            **mapping.certificate,
            "inputs_sha256": {"graph": digest(graph), "accelerator": digest(accelerator)},
        },
    }
