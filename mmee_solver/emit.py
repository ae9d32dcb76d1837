"""From a structure and tile sizes back to a nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Item, Loop, Nest
from mmee_solver.structures import Entry, HoldAt, Structure
from mmee_solver.trace import Pieces, count_pieces, cut
from mmee_solver.workload import Graph


def emit(
    graph: Graph, structure: Structure, tiles: Sequence[int], array: Mapping[str, ArrayConfig]
) -> Group:
    """The nest of a structure with a tile size per axis; loops of a single step are left out.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    structure : Structure
        Where every loop and hold stands.
    tiles : sequence of int
        Tile size of each axis of the structure.
    array : mapping of str to ArrayConfig
        Configuration of every op that uses the arrays.
    """
    pieces: dict[str, Pieces] = {dim: ((size, 1),) for dim, size in graph.dims.items()}

    def body(pieces: dict[str, Pieces]) -> Nest:
        holds: list[Item] = [Hold(name) for name in structure.body]
        for name, entries in zip(structure.ops, structure.leaves, strict=True):
            holds += _wrap(structure, entries, tiles, pieces, lambda _, op=name: (Compute(op),))
        return tuple(holds)

    nest = _wrap(structure, structure.shared, tiles, pieces, body)
    return Group(structure.ops, tuple(nest), dict(array))


def _wrap(structure, entries, tiles, pieces, inside):  # type: ignore[no-untyped-def]
    for index, entry in enumerate(entries):
        rest = entries[index + 1 :]
        if isinstance(entry, HoldAt):
            return (Hold(entry.tensor), *_wrap(structure, rest, tiles, pieces, inside))
        dim, tile = structure.axes[entry.axis].dim, tiles[entry.axis]
        inner = {**pieces, dim: cut(pieces[dim], tile)}
        if count_pieces(inner[dim]) == count_pieces(pieces[dim]):
            continue
        return (Loop(dim, tile, tuple(_wrap(structure, rest, tiles, inner, inside))),)
    return inside(pieces)
