"""The nest: a group's dataflow as loops, holds and computes, and its JSON form (design §5).

Grammar::

    nest  = item*
    item  = Hold(tensor)            keep the current tile on chip, to its last use in this list
          | Loop(dim, tile, nest)   step the dim through its current range
          | Compute(op)             run the op on the current tile of every dim
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmee_solver.errors import InputError


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the current tile of ``tensor`` on chip, from here to its last use in this list."""

    tensor: str


@dataclass(frozen=True, slots=True)
class Compute:
    """Run ``op`` on the current tile of every dim."""

    op: str


@dataclass(frozen=True, slots=True)
class Loop:
    """Step ``dim`` through its current range in steps of ``tile``; the last may be short."""

    dim: str
    tile: int
    body: tuple[Item, ...]


Item = Hold | Loop | Compute
Nest = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class ArrayConfig:
    """How an op runs on the arrays: (dim, spatial extent) pairs, the inner temporal dim, the shape."""

    rows: tuple[str, int] | None
    cols: tuple[str, int] | None
    batch: tuple[str, int] | None
    inner: str
    shape: tuple[int, int]

    def extent(self, dim: str) -> int:
        """Spatial extent of ``dim``; 1 if it is not spatial."""
        for pair in (self.rows, self.cols, self.batch):
            if pair is not None and pair[0] == dim:
                return pair[1]
        return 1


@dataclass(frozen=True, slots=True)
class Group:
    """A fusion group with its dataflow: ops in order, nest, and an array configuration per op."""

    ops: tuple[str, ...]
    nest: Nest
    array: Mapping[str, ArrayConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resident:
    """A tensor kept whole in the buffer from the start of group ``first`` to the end of group ``last``."""

    tensor: str
    first: int
    last: int


def computes(nest: Nest) -> Iterator[str]:
    """Names of the ops computed in a nest, in order.

    >>> list(computes((Loop("i", 2, (Compute("a"),)), Compute("b"))))
    ['a', 'b']
    """
    for item in nest:
        if isinstance(item, Compute):
            yield item.op
        elif isinstance(item, Loop):
            yield from computes(item.body)


def nest_to_json(nest: Nest) -> list[dict[str, Any]]:
    """The nest as plain JSON data."""
    data: list[dict[str, Any]] = []
    for item in nest:
        if isinstance(item, Hold):
            data.append({"hold": item.tensor})
        elif isinstance(item, Compute):
            data.append({"compute": item.op})
        else:
            data.append({"loop": item.dim, "tile": item.tile, "body": nest_to_json(item.body)})
    return data


def nest_from_json(data: Any, place: str = "nest", depth: int = 0) -> Nest:
    """A nest from plain JSON data.

    Raises
    ------
    InputError
        If an item is none of the three kinds, or nested deeper than 200 loops.
    """
    if not isinstance(data, list):
        raise InputError(f"{type(data).__name__}; expected a list of items", place)
    if depth > 200:
        raise InputError("loops are nested deeper than 200", place)
    return tuple(_item(entry, f"{place}[{index}]", depth) for index, entry in enumerate(data))


def _item(entry: Any, place: str, depth: int) -> Item:
    if isinstance(entry, dict):
        keys = set(entry)
        if keys == {"hold"} and isinstance(entry["hold"], str):
            return Hold(entry["hold"])
        if keys == {"compute"} and isinstance(entry["compute"], str):
            return Compute(entry["compute"])
        if keys == {"loop", "tile", "body"} and isinstance(entry["loop"], str):
            tile = entry["tile"]
            if type(tile) is int and tile >= 1:
                body = nest_from_json(entry["body"], f"{place}.body", depth + 1)
                return Loop(entry["loop"], tile, body)
            raise InputError(f"{tile!r}; expected a whole number of at least 1", f"{place}.tile")
    raise InputError('expected {"hold": T}, {"loop": d, "tile": t, "body": []} or {"compute": op}', place)


def array_to_json(config: ArrayConfig) -> dict[str, Any]:
    """An array configuration as plain JSON data."""
    return {
        "rows": None if config.rows is None else list(config.rows),
        "cols": None if config.cols is None else list(config.cols),
        "batch": None if config.batch is None else list(config.batch),
        "inner": config.inner,
        "shape": list(config.shape),
    }


def array_from_json(data: Any, place: str = "array") -> ArrayConfig:
    """An array configuration from plain JSON data.

    Raises
    ------
    InputError
        If a part is missing or of the wrong type.
    """
    if not isinstance(data, dict) or set(data) != {"rows", "cols", "batch", "inner", "shape"}:
        raise InputError("expected an object with rows, cols, batch, inner and shape", place)
    if not isinstance(data["inner"], str):
        raise InputError(f"{data['inner']!r}; expected a dim", f"{place}.inner")
    shape = data["shape"]
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(s) is int and s >= 1 for s in shape)):
        raise InputError(f"{shape!r}; expected [rows, cols]", f"{place}.shape")
    pairs = {key: _pair(data[key], f"{place}.{key}") for key in ("rows", "cols", "batch")}
    return ArrayConfig(pairs["rows"], pairs["cols"], pairs["batch"], data["inner"], (shape[0], shape[1]))


def _pair(value: Any, place: str) -> tuple[str, int] | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2:
        dim, extent = value
        if isinstance(dim, str) and type(extent) is int and extent >= 1:
            return dim, extent
    raise InputError(f"{value!r}; expected [dim, extent] or null", place)
