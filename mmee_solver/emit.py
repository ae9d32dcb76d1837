"""From a structure and tile sizes back to a nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Item, Loop, Nest
from mmee_solver.structures import SHARED, Entry, HoldAt, Structure
from mmee_solver.trace import Pieces, count_pieces, cut
from mmee_solver.workload import Graph


def emit(graph: Graph, structure: Structure, tiles: Sequence[int], array: Mapping[str, ArrayConfig]) -> Group:
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
        for leaf, (name, entries) in enumerate(zip(structure.ops, structure.leaves, strict=True)):
            items = _wrap(structure, entries, tiles, pieces, _computing(name))
            later = {t for op in structure.ops[leaf + 1 :] for t in graph.op(op).tensors}
            if any(isinstance(item, Hold) and item.tensor in later for item in items):
                items = (_one_step(graph, structure, name, pieces, items),)
            holds += items
        return tuple(holds)

    nest = _wrap(structure, structure.shared, tiles, pieces, body)
    return Group(structure.ops, tuple(nest), dict(array))


def _one_step(graph: Graph, structure: Structure, name: str, pieces: dict[str, Pieces], items: Nest) -> Loop:
    """A loop of one step, so that a private hold ends with its op though a later op reads the tensor."""
    op = graph.op(name)
    shared = {axis.dim for axis in structure.axes if axis.kind == SHARED}
    axes = {step.axis for step in (*op.prologue, *op.epilogue)}
    dims = sorted(graph.op_dims(op), key=lambda dim: (dim in axes, dim in shared))
    return Loop(dims[0], pieces[dims[0]][0][0], items)


def _computing(op: str) -> Callable[[dict[str, Pieces]], Nest]:
    return lambda _: (Compute(op),)


def _wrap(
    structure: Structure,
    entries: Sequence[Entry],
    tiles: Sequence[int],
    pieces: dict[str, Pieces],
    inside: Callable[[dict[str, Pieces]], Nest],
) -> Nest:
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
