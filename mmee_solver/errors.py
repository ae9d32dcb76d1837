"""Exceptions that a user may see: where, what stands there, what was expected, what to do."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class MmeeError(Exception):
    """Base of every error that this library raises on purpose."""


class InputError(MmeeError):
    """Bad input: names the file (if any), the place in it and what was expected.

    Parameters
    ----------
    message : str
        What stands there and what was expected.
    place : str
        Path inside the document, e.g. ``ops[2].inputs[0]``; empty for the whole document.
    file : str
        File name, added by the reader; empty for objects built in Python.
    """

    def __init__(self, message: str, place: str = "", file: str = "") -> None:
        self.message, self.place, self.file = message, place, file
        super().__init__(": ".join(part for part in (file, place, message) if part))

    def in_file(self, file: str) -> InputError:
        """Return the same error with the name of the file it was found in."""
        return InputError(self.message, self.place, file)


class InfeasibleError(MmeeError):
    """No mapping fits: carries the demand, the bound and the op that needs it.

    Parameters
    ----------
    op : str
        The op that cannot run.
    demand_bytes : int
        The least capacity, in bytes, that would do.
    capacity_bytes : int
        The capacity that there is, in bytes.
    detail : str
        What the demand is made of.
    """

    def __init__(self, op: str, demand_bytes: int, capacity_bytes: int, detail: str = "") -> None:
        self.op, self.demand_bytes, self.capacity_bytes = op, demand_bytes, capacity_bytes
        tail = f" ({detail})" if detail else ""
        super().__init__(
            f"buffer.capacity_bytes {capacity_bytes} is too small: "
            f"{op} needs at least {demand_bytes} bytes{tail}"
        )


class GaveUpError(MmeeError):
    """A search that was allowed a number of boxes and needs more."""


class MappingError(MmeeError):
    """A mapping that breaks a rule of the nest: carries the group and the rule."""


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """Return `` — did you mean "x"?`` for the closest known name, or an empty string.

    >>> did_you_mean("capcity", ["capacity", "count"])
    ' — did you mean "capacity"?'
    >>> did_you_mean("zzz", ["capacity"])
    ''
    """
    close = get_close_matches(found, list(known), n=1)
    return f' — did you mean "{close[0]}"?' if close else ""
