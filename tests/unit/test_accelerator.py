"""Accelerators: what they derive, and every figure that makes no sense."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import inf, nan

import pytest

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.errors import InputError

GOOD = Accelerator(
    name="a",
    clock_hz=1.0e9,
    dram=Dram(60.0e9, 64.0, 64.0),
    buffer=Buffer(1048576, 2.0, 2.3),
    array=Array(4, ((32, 32),), 0.3, 0.5),
    vector=Vector(128, 0.4),
)


def changed(place: str, value: object) -> Accelerator:
    """The good accelerator with one figure replaced."""
    part, _, key = place.rpartition(".")
    if not part:
        return replace(GOOD, **{key: value})  # type: ignore[arg-type]
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **{key: value})})  # type: ignore[arg-type]


def test_defaults() -> None:
    assert GOOD.buffer.bandwidth_bytes_per_cycle is None
    assert not GOOD.buffer.double_buffered
    assert GOOD.array.stationarity == ("output", "weight", "input")
    assert GOOD.array.pipeline == "ideal"
    assert GOOD.vector.rescale == "mul"
    assert GOOD.source == ""


def test_bandwidths_are_exact() -> None:
    assert GOOD.dram_cycles_per_byte == Fraction(1, 60)
    assert changed("clock_hz", 1.05e9).dram_cycles_per_byte == Fraction(105, 6000)
    assert GOOD.buffer_cycles_per_byte == 0
    assert changed("buffer.bandwidth_bytes_per_cycle", 0.1).buffer_cycles_per_byte == 10


def test_more_than_one_shape_is_reconfigurable() -> None:
    assert not GOOD.array.reconfigurable
    assert changed("array.shapes", ((32, 32), (16, 64))).array.reconfigurable


def test_another_capacity_changes_nothing_else() -> None:
    small = GOOD.with_buffer(4096)
    assert small.buffer.capacity_bytes == 4096
    assert small.with_buffer(1048576) == GOOD


POSITIVE = (
    "clock_hz",
    "dram.bandwidth_bytes_per_s",
    "buffer.capacity_bytes",
    "buffer.bandwidth_bytes_per_cycle",
    "array.count",
    "vector.lanes",
)
NOT_NEGATIVE = (
    "dram.read_pj_per_byte",
    "dram.write_pj_per_byte",
    "buffer.read_pj_per_byte",
    "buffer.write_pj_per_byte",
    "array.mac_pj",
    "array.register_pj_per_mac",
    "vector.pj_per_op",
)


@pytest.mark.parametrize("place", POSITIVE)
@pytest.mark.parametrize("value", [0, -1, inf, nan, 10**18])
def test_figures_that_must_be_positive(place: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        changed(place, value)
    assert caught.value.place == place
    assert caught.value.message == f"{value}; expected a positive, finite number"


@pytest.mark.parametrize("place", NOT_NEGATIVE)
@pytest.mark.parametrize("value", [-0.1, inf, -inf, nan, 1e12])
def test_figures_that_must_not_be_negative(place: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        changed(place, value)
    assert caught.value.place == place
    assert caught.value.message == f"{value}; expected a finite number of at least 0"


@pytest.mark.parametrize("place", NOT_NEGATIVE)
def test_energy_may_be_nothing(place: str) -> None:
    assert changed(place, 0.0)


@pytest.mark.parametrize(
    ("place", "value", "where", "message"),
    [
        ("array.shapes", (), "array.shapes", "no shape; expected at least one [rows, cols]"),
        (
            "array.shapes",
            ((4, 4), (0, 4)),
            "array.shapes[1]",
            "[0, 4]; expected two sides between 1 and 1048576",
        ),
        (
            "array.shapes",
            ((4, 1 << 21),),
            "array.shapes[0]",
            "[4, 2097152]; expected two sides between 1 and 1048576",
        ),
        ("array.shapes", ((4,),), "array.shapes[0]", "[4]; expected two sides between 1 and 1048576"),
        ("array.count", 65537, "array.count", "65537; at most 65536 arrays are supported"),
        ("array.stationarity", (), "array.stationarity", "empty; expected at least one"),
        (
            "array.stationarity",
            ("output", "weigth"),
            "array.stationarity[1]",
            '"weigth"; expected one of output, weight, input — did you mean "weight"?',
        ),
        (
            "array.pipeline",
            "sistolic",
            "array.pipeline",
            '"sistolic"; expected one of ideal, systolic — did you mean "systolic"?',
        ),
        ("vector.rescale", "xor", "vector.rescale", '"xor"; expected one of mul, add'),
    ],
)
def test_wrong_choices(place: str, value: object, where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        changed(place, value)
    assert (caught.value.place, caught.value.message) == (where, message)
