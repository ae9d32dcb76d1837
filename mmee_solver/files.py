"""Plain data and files: JSON text, what no document may hold, and writing without half a file.

Nothing here knows what a graph is; :mod:`mmee_solver.io` does.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmee_solver.errors import InputError
from mmee_solver.units import iec_bytes

MAX_FILE_BYTES = 64 << 20
MAX_DEPTH = 500
MAX_INTEGER = 10**100
_SHOWN = 60
_LINE = 100


class _Doubled(dict[str, Any]):
    """A JSON object in which ``key`` stands twice: kept until its place is known."""

    key: str = ""


def printable(text: str, limit: int = _SHOWN) -> str:
    r"""Text that is safe to print: what is not printable escaped, cut where it is too long.

    Parameters
    ----------
    text : str
        Any text, lone surrogates too.
    limit : int
        Most characters of the text that are shown.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    cut = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:limit])
    return cut if len(text) <= limit else f"{cut}…"


def show(value: object) -> str:
    """How an error shows a value that stands in a document.

    Parameters
    ----------
    value : object
        Plain data; what is long is cut, and lists and objects are only named.

    >>> show("fp12"), show(None), show(True), show(2.5), show([1, 2])
    ('"fp12"', 'null', 'true', '2.5', 'a list of 2')
    """
    if isinstance(value, str):
        return f'"{printable(value)}"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        return "a number of more than 100 digits"
    if isinstance(value, int | float):
        return printable(repr(value))
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"


def check_plain(data: object) -> None:
    """Refuse what no document may hold, before anything else looks at it.

    Parameters
    ----------
    data : object
        Lists, dicts, strings, numbers, booleans and None, as a parser gives them.

    Raises
    ------
    InputError
        Nested deeper than 500, a key that is no string or stands twice, a lone surrogate, a number
        that is not finite or has more than 100 digits, or an object of another type.
    """
    stack: list[tuple[object, str, int]] = [(data, "", 0)]
    while stack:
        value, place, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"nested deeper than {MAX_DEPTH}", printable(place))
        if isinstance(value, dict):
            if isinstance(value, _Doubled):
                raise InputError(f"the key {show(value.key)} stands twice; expected it once", place)
            for key, entry in value.items():
                _check_text(key, place)
                stack.append((entry, join(place, key), depth + 1))
        elif isinstance(value, list | tuple):
            stack.extend((entry, f"{place}[{index}]", depth + 1) for index, entry in enumerate(value))
        else:
            _check_scalar(value, place)


def _check_scalar(value: object, place: str) -> None:
    if isinstance(value, str):
        _check_text(value, place)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{value}; expected a finite number", place)
    elif isinstance(value, int):
        if abs(value) >= MAX_INTEGER:
            raise InputError(f"{show(value)}; expected fewer", place)
    elif value is not None:
        raise InputError(f"{show(value)}; expected plain data", place)


def _check_text(text: object, place: str) -> None:
    if not isinstance(text, str):
        raise InputError(f"the key {show(text)} is no string", place)
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise InputError(f"{show(text)} holds half a character (a lone surrogate)", place)


def join(place: str, key: str) -> str:
    """The place of an entry of an object.

    Parameters
    ----------
    place : str
        The place of the object; empty for the whole document.
    key : str
        The key of the entry.

    >>> join("tensors", "Q"), join("", "dims")
    ('tensors.Q', 'dims')
    """
    return f"{place}.{printable(key)}" if place else printable(key)


def read_bytes(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> bytes | None:
    """Bytes of a file; None if there is no such file.

    Parameters
    ----------
    path : str or path
        The file.
    limit : int
        Most bytes that are accepted.

    Raises
    ------
    InputError
        If it cannot be read, or is larger than the limit.
    """
    file = printable(os.fspath(path), 4096)
    try:
        with open(path, "rb") as stream:
            raw = stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", "", file) from None
    except ValueError as error:  # a null character in the name
        raise InputError(f"is no file name: {error}", "", file) from None
    if len(raw) > limit:
        raise InputError(f"is larger than {iec_bytes(limit)}, the most that is read", "", file)
    return raw


def decode_text(raw: bytes, file: str = "") -> str:
    """Text of a UTF-8 file, with or without a byte order mark.

    Parameters
    ----------
    raw : bytes
        All of the file.
    file : str
        Name for errors.

    Raises
    ------
    InputError
        If it is no UTF-8; says at which byte.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise InputError(f"{found} is no UTF-8; expected a text file in UTF-8", "", file) from None


def parse_json(text: str | bytes, file: str = "") -> Any:
    """Plain data from JSON text.

    Parameters
    ----------
    text : str or bytes
        JSON; bytes are UTF-8.
    file : str
        Name for errors.

    Raises
    ------
    InputError
        If it is no JSON (says line and column), or holds what :func:`check_plain` refuses.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if isinstance(text, bytes):
        text = decode_text(text, file)
    try:
        data = json.loads(text, object_pairs_hook=_object)
        check_plain(data)
    except json.JSONDecodeError as error:
        what = error.msg[:1].lower() + error.msg[1:]
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"no valid JSON: {what}", place, file) from None
    except InputError as error:
        raise error.in_file(file) from None
    except RecursionError:
        raise InputError("nested too deeply", "", file) from None
    except ValueError:  # Python refuses to convert integers of more than 4300 digits
        raise InputError("a number has more than 4300 digits", "", file) from None
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) == len(pairs):
        return data
    doubled = _Doubled(data)
    seen: set[str] = set()
    doubled.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return doubled


def dump_json(data: object) -> str:
    """JSON text for people and diffs: keys as they come, integers exact, what is short on one line.

    Parameters
    ----------
    data : object
        Plain data: dicts with strings as keys, lists, tuples, strings, numbers, booleans, None.

    Returns
    -------
    str
        The same text for the same data, with a newline at the end.

    Raises
    ------
    ValueError
        If a number is not finite.
    TypeError
        If it is no plain data.

    >>> print(dump_json({"dims": {"i": 2}, "note": "x" * 90}), end="")
    {
     "dims": {"i": 2},
     "note": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
    }
    """
    return _json_text(data, "\n") + "\n"


def _json_text(value: object, newline: str) -> str:
    """JSON of a value; ``newline`` starts a line at the level of the value."""
    inner = newline + " "
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is no string")
        parts = [f"{_scalar_text(key)}: {_json_text(entry, inner)}" for key, entry in value.items()]
        opening, closing = "{}"
    elif isinstance(value, list | tuple):
        parts = [_json_text(entry, inner) for entry in value]
        opening, closing = "[]"
    else:
        return _scalar_text(value)
    line = f"{opening}{', '.join(parts)}{closing}"
    if len(line) <= _LINE and "\n" not in line:
        return line
    return f"{opening}{inner}{f',{inner}'.join(parts)}{newline}{closing}"


def _scalar_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write a file whole or not at all: a temporary file beside it, then a rename.

    A symbolic link is followed, the mode of a file that stands there is kept, and what is no regular
    file (a pipe, a device) is written to as it is.

    Parameters
    ----------
    path : str or path
        Where to.
    text : str
        Written in UTF-8, with the newlines as they are.

    Raises
    ------
    InputError
        If it cannot be written; names the path. No temporary file is left.
    """
    try:
        target = Path(os.path.realpath(path))
        data = text.encode("utf-8")
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        file = printable(os.fspath(path), 4096)
        raise InputError(f"cannot be written: {reason or error}", "", file) from None


def _replace(target: Path, data: bytes) -> None:
    temporary = target.with_name(f".mmee-{secrets.token_hex(8)}.tmp")
    try:
        # mode x: never through somebody else's file; the process's umask decides who may read it
        with open(temporary, "xb") as stream:
            stream.write(data)
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
