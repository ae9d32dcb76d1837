"""From a skeleton, a layout per leaf and tile sizes back to a nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmee_solver.layouts import Layout
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Item, Loop, Nest, computes
from mmee_solver.skeletons import Entry, Place, Skeleton
from mmee_solver.trace import Pieces, count_pieces, cut
from mmee_solver.trees import leaves_of
from mmee_solver.workload import Graph


@dataclass(frozen=True, slots=True)
class Chosen:
    """A layout of one leaf with a tile size per axis."""

    layout: Layout
    tiles: Sequence[int]


def emit(
    graph: Graph,
    skeleton: Skeleton,
    tiles: Sequence[int],
    leaves: Sequence[Chosen],
    array: Mapping[str, ArrayConfig],
) -> Group:
    """The nest of a skeleton and its leaves; loops of a single step are left out.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    skeleton : Skeleton
        Where shared loops and holds stand.
    tiles : sequence of int
        Tile size of each axis of the skeleton.
    leaves : sequence of Chosen
        Where the own holds and private loops of each op stand; their path axes have the tiles of the
        skeleton.
    array : mapping of str to ArrayConfig
        Configuration of every op that uses the arrays.
    """
    pieces: dict[str, Pieces] = {dim: ((size, 1),) for dim, size in graph.dims.items()}
    nest = _Emitter(graph, skeleton, tiles, leaves).place(skeleton.root, pieces, frozenset())
    nest = _sorted_holds(nest, {name: index for index, name in enumerate(graph.tensors)})
    return Group(tuple(computes(nest)), nest, {name: array[name] for name in skeleton.ops if name in array})


def _sorted_holds(nest: Nest, rank: Mapping[str, int]) -> Nest:
    """The same nest with holds that follow each other in the order of the graph: they commute."""
    items: list[Item] = []
    for item in nest:
        place = len(items)
        if isinstance(item, Loop):
            items.append(Loop(item.dim, item.tile, _sorted_holds(item.body, rank)))
            continue
        if isinstance(item, Hold):
            while place and isinstance(above := items[place - 1], Hold):
                if rank[above.tensor] <= rank[item.tensor]:
                    break
                place -= 1
        items.insert(place, item)
    return tuple(items)


class _Emitter:
    def __init__(
        self, graph: Graph, skeleton: Skeleton, tiles: Sequence[int], leaves: Sequence[Chosen]
    ) -> None:
        self.graph, self.skeleton, self.tiles, self.leaves = graph, skeleton, tiles, leaves
        # held[axis]: own tensors of leaves held directly above a shared loop
        self.held: dict[int, list[str]] = {}
        for leaf, chosen in enumerate(leaves):
            steps = skeleton.paths[leaf]
            waiting: list[str] = []
            for entry in chosen.layout.entries:
                if isinstance(entry, Hold):
                    waiting.append(entry.tensor)
                elif entry.axis < len(steps):
                    self.held.setdefault(steps[entry.axis].axis, []).extend(waiting)
                    waiting = []

    def place(self, node: Place, pieces: dict[str, Pieces], above: frozenset[str]) -> Nest:
        """A node: its loops with the holds between them around its list."""
        entries: list[Entry] = []
        for entry in node.entries:
            if not isinstance(entry, Hold):
                entries += [Hold(name) for name in self.held.get(entry.axis, ())]
            entries.append(entry)
        inside = above | {self.skeleton.axes[e.axis].dim for e in node.entries if not isinstance(e, Hold)}
        return self._wrap(entries, self._shared, pieces, lambda inner: self._list(node, inner, inside))

    def _shared(self, axis: int) -> tuple[str, int]:
        return self.skeleton.axes[axis].dim, self.tiles[axis]

    def _list(self, node: Place, pieces: dict[str, Pieces], above: frozenset[str]) -> Nest:
        items: list[Item] = []
        waiting = list(node.body)
        for number, child in enumerate(node.children):
            # a hold of the list starts with the first child that it serves and that uses its tensor
            used = {tensor for name in self._names(child) for tensor in self.graph.op(name).tensors}
            begun = [(name, start) for name, start in waiting if name in used and start <= number]
            items += [Hold(name) for name, _ in begun]
            waiting = [one for one in waiting if one not in begun]
            part = self._leaf(child, pieces) if isinstance(child, int) else self.place(child, pieces, above)
            later = {
                tensor
                for other in node.children[number + 1 :]
                for name in self._names(other)
                for tensor in self.graph.op(name).tensors
            }
            if any(isinstance(item, Hold) and item.tensor in later for item in part):
                part = (self._one_step(part, pieces, above),)
            items += part
        return tuple(items)

    def _names(self, child: Place | int) -> list[str]:
        return [self.skeleton.ops[leaf] for leaf in leaves_of(child)]

    def _leaf(self, leaf: int, pieces: dict[str, Pieces]) -> Nest:
        chosen = self.leaves[leaf]
        layout, steps = chosen.layout, len(self.skeleton.paths[leaf])
        last = max(
            (i for i, e in enumerate(layout.entries) if not isinstance(e, Hold) and e.axis < steps),
            default=-1,
        )

        def axis(number: int) -> tuple[str, int]:
            return layout.axes[number].dim, chosen.tiles[number]

        name = self.skeleton.ops[leaf]
        return self._wrap(layout.entries[last + 1 :], axis, pieces, lambda _: (Compute(name),))

    def _one_step(self, part: Nest, pieces: dict[str, Pieces], above: frozenset[str]) -> Loop:
        """A loop of one step, so that holds end with their ops though a later op reads the tensor.

        Its dim is one that no op inside reduces, not looped above if there is such a one.
        """
        ops = [self.graph.op(name) for name in computes(part)]
        reduced = {dim for op in ops for dim in self.graph.reduction_dims(op)}
        axes = {step.axis for op in ops for step in (*op.prologue, *op.epilogue)}
        dims = dict.fromkeys(dim for op in ops for dim in self.graph.op_dims(op))
        ranked = sorted(
            dims, key=lambda dim: (len(ops) > 1 and dim in reduced, dim in axes, dim in above, dim in reduced)
        )
        return Loop(ranked[0], pieces[ranked[0]][0][0], part)

    def _wrap(
        self,
        entries: Sequence[Entry],
        axis: Callable[[int], tuple[str, int]],
        pieces: dict[str, Pieces],
        inside: Callable[[dict[str, Pieces]], Nest],
    ) -> Nest:
        for index, entry in enumerate(entries):
            rest = entries[index + 1 :]
            if isinstance(entry, Hold):
                return (entry, *self._wrap(rest, axis, pieces, inside))
            dim, tile = axis(entry.axis)
            inner = {**pieces, dim: cut(pieces[dim], tile)}
            if count_pieces(inner[dim]) == count_pieces(pieces[dim]):
                continue
            return (Loop(dim, tile, self._wrap(rest, axis, inner, inside)),)
        return inside(pieces)
