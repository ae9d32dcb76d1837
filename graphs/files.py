"""JSON text of a graph, and the zoo written to files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from mmee_graphs.zoo import build, names

if TYPE_CHECKING:
    from pathlib import Path

    from mmee_graphs.document import JsonGraph


def to_json(graph: JsonGraph) -> str:
    """Write a graph as JSON text: a line for each tensor and each op, and a newline at the end.

    Parameters
    ----------
    graph : dict
        A document in format "mmee-graph/1".

    Returns
    -------
    str
        ASCII text that ``json.loads`` turns back into the same document.

    >>> print(to_json({"name": "x", "dims": {"m": 2}, "ops": [{"name": "mm"}]}), end="")
    {
      "name": "x",
      "dims": {"m": 2},
      "ops": [
        {"name": "mm"}
      ]
    }
    """
    fields = [f"  {json.dumps(key)}: {_field(value)}" for key, value in graph.items()]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _field(value: Any) -> str:
    """One value: on a line of its own parts if these are objects, else on one line."""
    if isinstance(value, dict) and any(isinstance(part, dict) for part in value.values()):
        lines = [f"    {json.dumps(key)}: {json.dumps(part)}" for key, part in value.items()]
        return "{\n" + ",\n".join(lines) + "\n  }"
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return "[\n" + ",\n".join(f"    {json.dumps(part)}" for part in value) + "\n  ]"
    return json.dumps(value)


def write_zoo(folder: Path) -> tuple[Path, ...]:
    """Write every graph of the zoo into a folder, each file whole or not at all.

    Parameters
    ----------
    folder : Path
        An existing folder; files of the same names are replaced.

    Returns
    -------
    tuple of Path
        The files written, in the order of `names`.

    Raises
    ------
    OSError
        If the folder cannot be written to.
    """
    return tuple(_write(folder / f"{name}.json", to_json(build(name))) for name in names())


def _write(target: Path, text: str) -> Path:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="ascii", newline="\n")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
