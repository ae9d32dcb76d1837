"""Lines of text for people: styled pieces, shortened names, bars, wrapping to a width.

A line is kept as pieces until the end, so that widths are counted before colours are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_CODES = {"": "", "bold": "1", "dim": "2", "good": "1;32", "bar": "36", "bad": "1;33"}


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text in one style: plain (``""``), ``bold``, ``dim``, ``good``, ``bad`` or ``bar``."""

    text: str
    style: str = ""


Line = tuple[Piece, ...]


def line(*parts: str | Piece) -> Line:
    """A line of plain text and pieces."""
    return tuple(Piece(part) if isinstance(part, str) else part for part in parts)


def plain(entry: Line) -> str:
    """The text of a line, without styles.

    >>> plain(line("a", Piece("b", "bold")))
    'ab'
    """
    return "".join(piece.text for piece in entry)


def shorten(text: str, limit: int) -> str:
    """Text of at most ``limit`` characters: both ends stay, the middle goes.

    >>> shorten("llama3-8b-decode-attention", 15)
    'llama3-…tention'
    """
    if len(text) <= limit:
        return text
    tail = max(0, limit - 1) // 2
    return text[: max(0, limit - 1 - tail)] + "…" + (text[-tail:] if tail else "")


def bar(share: float, unit: float = 0.04) -> str:
    """A bar for a share of 1, one block per ``unit``, rounded.

    >>> bar(0.38), bar(0.01)
    ('██████████', '')
    """
    return "█" * round(share / unit)


def render(lines: Iterable[Line], width: int, *, colour: bool = False) -> str:
    r"""Lines as text, cut at ``width``, with no blanks at the ends of lines.

    Parameters
    ----------
    lines : iterable of Line
        In order.
    width : int
        Most characters of a line.
    colour : bool
        Whether styles become terminal codes; without, they are dropped.

    >>> render([line("mmee", Piece(" is short")), line("long")], 8)
    'mmee is…\nlong'
    """
    return "\n".join(_render(_cut(entry, width), colour=colour) for entry in lines)


def _cut(entry: Line, width: int) -> Line:
    text = plain(entry).rstrip()
    cut = len(text) > width
    room = width - 1 if cut else len(text)
    kept: list[Piece] = []
    for piece in entry:
        kept.append(Piece(piece.text[:room], piece.style))
        room -= len(kept[-1].text)
    return (*kept, Piece("…")) if cut else tuple(kept)


def _render(entry: Line, *, colour: bool) -> str:
    if not colour:
        return plain(entry)
    return "".join(
        f"\x1b[{_CODES[piece.style]}m{piece.text}\x1b[0m"
        if piece.text.strip() and piece.style
        else piece.text
        for piece in entry
    )


def flow(head: Line, parts: Sequence[Line], width: int, *, between: str = "  ") -> list[Line]:
    r"""Parts one after the other, on as many lines as they take.

    Parameters
    ----------
    head : Line
        Stands before the first part; further lines are indented as far.
    parts : sequence of Line
        None of them is broken.
    width : int
        Most characters of a line.
    between : str
        Stands between two parts of one line; its non-blank end stays behind where a line ends.

    >>> render(flow(line("to: "), [line("alice"), line("bob"), line("carol")], 15, between=", "), 15)
    'to: alice, bob,\n    carol'
    """
    done: list[Line] = []
    current, empty = head, True
    for index, part in enumerate(parts):
        behind = len(between.rstrip()) if index + 1 < len(parts) else 0
        room = width - len(plain(current)) - len(between) - behind
        if not empty and len(plain(part)) > room:
            done.append((*current, Piece(between.rstrip())))
            current, empty = line(" " * len(plain(head))), True
        current = (*current, *part) if empty else (*current, Piece(between), *part)
        empty = False
    return [*done, current]
