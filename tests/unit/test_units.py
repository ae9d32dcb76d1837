"""Sizes, rounding and the way that numbers are written for people."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmee_solver.errors import InputError
from mmee_solver.units import (
    DTYPE_BITS,
    bits_to_bytes,
    ceil_div,
    exact,
    iec_bytes,
    parse_size,
    si_bytes,
    si_energy,
    si_time,
)


def test_bits_of_every_dtype() -> None:
    assert DTYPE_BITS == {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int32": 32, "int8": 8, "int4": 4}


@given(st.integers(0, 10**30), st.integers(1, 10**15))
def test_ceil_div_is_the_least_multiple_that_covers(numerator: int, denominator: int) -> None:
    quotient = ceil_div(numerator, denominator)
    assert (quotient - 1) * denominator < numerator <= quotient * denominator


@pytest.mark.parametrize(
    ("bits", "expected"), [(0, 0), (1, 1), (8, 1), (9, 2), (12, 2), (10**30, 125 * 10**27)]
)
def test_bits_to_bytes_rounds_up(bits: int, expected: int) -> None:
    assert bits_to_bytes(bits) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, Fraction(1, 10)),
        (2.3, Fraction(23, 10)),
        (60.0e9, Fraction(60_000_000_000)),
        (1e-7, Fraction(1, 10**7)),
        (64, Fraction(64)),
        (0.0, Fraction(0)),
    ],
)
def test_exact_is_what_was_written(value: float, expected: Fraction) -> None:
    assert exact(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("1", 1),
        ("256KiB", 262144),
        ("256 kib", 262144),
        (" 1 MiB ", 1048576),
        ("1.5 MB", 1_500_000),
        ("0.5KiB", 512),
        ("2GiB", 2 << 30),
        ("3gb", 3_000_000_000),
        ("7 B", 7),
        ("0.000000001GB", 1),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", '"" is no size; expected e.g. 256KiB, 1MB or 4096'),
        ("-1", '"-1" is no size; expected e.g. 256KiB, 1MB or 4096'),
        ("1e6", '"1e6" is no size; expected e.g. 256KiB, 1MB or 4096'),
        ("1.", '"1." is no size; expected e.g. 256KiB, 1MB or 4096'),
        ("٣KiB", '"٣KiB" is no size; expected e.g. 256KiB, 1MB or 4096'),
        ("1KiBB", 'unknown unit "KiBB" in "1KiBB"; use B, KiB, MiB, GiB — did you mean "KiB"?'),
        ("1 TiB", 'unknown unit "TiB" in "1 TiB"; use B, KiB, MiB, GiB'),
        ("0", '"0" is no whole, positive number of bytes'),
        ("0.0MB", '"0.0MB" is no whole, positive number of bytes'),
        ("0.3KiB", '"0.3KiB" is no whole, positive number of bytes'),
    ],
)
def test_what_is_no_size(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_size(text)
    assert caught.value.message.startswith(message)
    assert caught.value.place == ""


def test_a_size_too_long_to_mean_anything_is_refused() -> None:
    with pytest.raises(InputError, match="is no size"):
        parse_size("9" * 5000)


@given(st.text(max_size=20))
def test_any_text_is_a_size_or_an_input_error(text: str) -> None:
    with suppress(InputError):
        assert parse_size(text) >= 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (83_900_000, "83.90 MB"),
        (999_949, "999.9 kB"),
        (999_999, "1.00 MB"),
        (1_140_000_000, "1.14 GB"),
        (123_456_789_012_345_678_901, "123456.8 PB"),
    ],
)
def test_bytes_moved(value: int, expected: str) -> None:
    assert si_bytes(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 B"),
        (6, "6 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (524288, "512 KiB"),
        (102400, "100 KiB"),
        (1048575, "1 MiB"),
        (1027604, "1003.5 KiB"),
        (1 << 20, "1 MiB"),
        (5 << 40, "5 TiB"),
    ],
)
def test_bytes_held(value: int, expected: str) -> None:
    assert iec_bytes(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 pJ"),
        (0.5, "0.50 pJ"),
        (1345798.0, "1.35 uJ"),
        (41_200_000_000, "41.20 mJ"),
        (999_999_999, "1.00 mJ"),
        (3.2e15, "3.20 kJ"),
        (Fraction(41_200_000_000), "41.20 mJ"),
    ],
)
def test_energy(value: float, expected: str) -> None:
    assert si_energy(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0 ns"), (1e-9, "1 ns"), (0.0336, "33.60 ms"), (0.00023, "230.0 us"), (7200.0, "7200.0 s")],
)
def test_time(value: float, expected: str) -> None:
    assert si_time(value) == expected
