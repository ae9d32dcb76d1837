"""Accelerators: DRAM, one on-chip buffer, PE arrays and a vector unit (design §4)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from mmee_solver.errors import InputError, did_you_mean
from mmee_solver.units import exact

STATIONARITY = ("output", "weight", "input")


@dataclass(frozen=True, slots=True)
class Dram:
    """Off-chip memory: bandwidth in bytes/s, energies in pJ/byte."""

    bandwidth_bytes_per_s: float
    read_pj_per_byte: float
    write_pj_per_byte: float


@dataclass(frozen=True, slots=True)
class Buffer:
    """The on-chip buffer: capacity in bytes, bandwidth in bytes/cycle (None: never a bound)."""

    capacity_bytes: int
    read_pj_per_byte: float
    write_pj_per_byte: float
    bandwidth_bytes_per_cycle: float | None = None
    double_buffered: bool = False


@dataclass(frozen=True, slots=True)
class Array:
    """PE arrays: ``count`` arrays, each of one of ``shapes`` (rows, cols); energies in pJ/MAC."""

    count: int
    shapes: tuple[tuple[int, int], ...]
    mac_pj: float
    register_pj_per_mac: float
    stationarity: tuple[str, ...] = STATIONARITY
    pipeline: str = "ideal"

    @property
    def reconfigurable(self) -> bool:
        """Whether each op may choose its own shape."""
        return len(self.shapes) > 1


@dataclass(frozen=True, slots=True)
class Vector:
    """The vector unit: operations per cycle, pJ/operation, and how softmax rescales."""

    lanes: int
    pj_per_op: float
    rescale: str = "mul"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A whole accelerator, checked when it is built.

    Raises
    ------
    InputError
        Names the place, what stands there and what was expected.
    """

    name: str
    clock_hz: float
    dram: Dram
    buffer: Buffer
    array: Array
    vector: Vector
    source: str = ""

    def __post_init__(self) -> None:
        positive = {
            "clock_hz": self.clock_hz,
            "dram.bandwidth_bytes_per_s": self.dram.bandwidth_bytes_per_s,
            "buffer.capacity_bytes": self.buffer.capacity_bytes,
            "array.count": self.array.count,
            "vector.lanes": self.vector.lanes,
        }
        if self.buffer.bandwidth_bytes_per_cycle is not None:
            positive["buffer.bandwidth_bytes_per_cycle"] = self.buffer.bandwidth_bytes_per_cycle
        for place, value in positive.items():
            if not 0 < value < 1e18:
                raise InputError(f"{value}; expected a positive, finite number", place)
        energies = {
            "dram.read_pj_per_byte": self.dram.read_pj_per_byte,
            "dram.write_pj_per_byte": self.dram.write_pj_per_byte,
            "buffer.read_pj_per_byte": self.buffer.read_pj_per_byte,
            "buffer.write_pj_per_byte": self.buffer.write_pj_per_byte,
            "array.mac_pj": self.array.mac_pj,
            "array.register_pj_per_mac": self.array.register_pj_per_mac,
            "vector.pj_per_op": self.vector.pj_per_op,
        }
        for place, value in energies.items():
            if not 0 <= value < 1e12:
                raise InputError(f"{value}; expected a finite number of at least 0", place)
        self._check_array()
        _one_of(self.vector.rescale, ("mul", "add"), "vector.rescale")

    def _check_array(self) -> None:
        array = self.array
        if not array.shapes:
            raise InputError("no shape; expected at least one [rows, cols]", "array.shapes")
        for index, shape in enumerate(array.shapes):
            if len(shape) != 2 or not all(0 < side <= 1 << 20 for side in shape):
                raise InputError(
                    f"{list(shape)}; expected two sides between 1 and {1 << 20}",
                    f"array.shapes[{index}]",
                )
        if array.count > 1 << 16:
            raise InputError(f"{array.count}; at most {1 << 16} arrays are supported", "array.count")
        if not array.stationarity:
            raise InputError("empty; expected at least one", "array.stationarity")
        for index, name in enumerate(array.stationarity):
            _one_of(name, STATIONARITY, f"array.stationarity[{index}]")
        _one_of(array.pipeline, ("ideal", "systolic"), "array.pipeline")

    def with_buffer(self, capacity_bytes: int) -> Accelerator:
        """The same accelerator with another buffer capacity, in bytes."""
        return replace(self, buffer=replace(self.buffer, capacity_bytes=capacity_bytes))

    @property
    def dram_cycles_per_byte(self) -> Fraction:
        """Clock cycles that the DRAM takes for one byte."""
        return exact(self.clock_hz) / exact(self.dram.bandwidth_bytes_per_s)

    @property
    def buffer_cycles_per_byte(self) -> Fraction:
        """Clock cycles that the buffer takes for one byte; 0 if it is never a bound."""
        bandwidth = self.buffer.bandwidth_bytes_per_cycle
        return Fraction(0) if bandwidth is None else 1 / exact(bandwidth)


def _one_of(value: str, known: tuple[str, ...], place: str) -> None:
    if value not in known:
        hint = did_you_mean(value, known)
        raise InputError(f'"{value}"; expected one of {", ".join(known)}{hint}', place)
