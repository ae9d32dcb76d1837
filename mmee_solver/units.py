"""Dtypes, sizes and the way that numbers are written for people."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

from mmee_solver.errors import InputError, did_you_mean

DTYPE_BITS = {
    "fp32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8": 8,
    "int32": 32,
    "int8": 8,
    "int4": 4,
}

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}


def ceil_div(numerator: int, denominator: int) -> int:
    """Integer quotient, rounded up.

    >>> ceil_div(7, 2)
    4
    """
    return -(-numerator // denominator)


def bits_to_bytes(bits: int) -> int:
    """Bytes that hold ``bits`` bits.

    >>> bits_to_bytes(12)
    2
    """
    return ceil_div(bits, 8)


def exact(value: float) -> Fraction:
    """The decimal number that a person wrote, as a fraction (not its binary neighbour).

    >>> exact(0.1)
    Fraction(1, 10)
    """
    return Fraction(Decimal(str(value)))


def parse_size(text: str) -> int:
    """Bytes in a size such as ``256KiB``, ``1.5 MB`` or ``4096``.

    Raises
    ------
    InputError
        If the text is no size, or no whole number of bytes.

    >>> parse_size("256KiB")
    262144
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if match is None:
        raise InputError(f'"{text}" is no size; expected e.g. 256KiB, 1MB or 4096')
    unit = match[2].lower()
    if unit not in _SIZE_UNITS:
        hint = did_you_mean(match[2], ["KiB", "MiB", "GiB", "KB", "MB", "GB", "B"])
        raise InputError(f'unknown unit "{match[2]}" in "{text}"; use B, KiB, MiB, GiB{hint}')
    size = Fraction(match[1]) * _SIZE_UNITS[unit]
    if size.denominator != 1 or size < 1:
        raise InputError(f'"{text}" is no whole, positive number of bytes')
    return int(size)


def _scaled(value: float, step: int, names: tuple[str, ...]) -> str:
    value, index = float(value), 0
    while round(abs(value), 1) >= step and index < len(names) - 1:  # as printed: 999.96 kB is 1.00 MB
        value /= step
        index += 1
    digits = 0 if index == 0 and round(value, 6).is_integer() else 2 if abs(value) < 100 else 1
    return f"{value:.{digits}f} {names[index]}"


def si_bytes(value: float) -> str:
    """Bytes moved, with SI prefixes.

    >>> si_bytes(83_900_000)
    '83.90 MB'
    """
    return _scaled(value, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def iec_bytes(value: float) -> str:
    """Bytes held, with binary prefixes.

    >>> iec_bytes(524288)
    '512 KiB'
    """
    text = _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    number, unit = text.split()
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def si_energy(picojoules: float) -> str:
    """Energy, from picojoules.

    >>> si_energy(41_200_000_000)
    '41.20 mJ'
    """
    return _scaled(picojoules, 1000, ("pJ", "nJ", "uJ", "mJ", "J", "kJ"))


def si_time(seconds: float) -> str:
    """Time, from seconds.

    >>> si_time(0.0336)
    '33.60 ms'
    """
    return _scaled(seconds * 1e9, 1000, ("ns", "us", "ms", "s"))
