"""What a nest does: where each hold and compute stands, and what is alive there (design §5).

A dim's range is cut by each loop over it. With sizes that do not divide, the pieces differ, so a
range is kept as *pieces*: ``((extent, count), ...)``, e.g. 12 cut by 5 is ``((5, 2), (2, 1))``.
Pieces of different dims are independent, so every count is a product over dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmee_solver.errors import MappingError
from mmee_solver.nest import Compute, Hold, Loop, Nest, computes
from mmee_solver.workload import Graph

Pieces = tuple[tuple[int, int], ...]


def cut(pieces: Pieces, tile: int) -> Pieces:
    """Cut every piece by a loop of step ``tile``.

    >>> cut(((12, 1),), 5)
    ((5, 2), (2, 1))
    >>> cut(cut(((12, 1),), 5), 2)
    ((2, 5), (1, 2))
    """
    counts: dict[int, int] = {}
    for extent, count in pieces:
        whole, rest = divmod(extent, tile)
        if whole:
            counts[tile] = counts.get(tile, 0) + whole * count
        if rest:
            counts[rest] = counts.get(rest, 0) + count
    return tuple(sorted(counts.items(), reverse=True))


def count_pieces(pieces: Pieces) -> int:
    """Number of pieces: the steps of the loops that made them."""
    return sum(count for _, count in pieces)


@dataclass(frozen=True, slots=True)
class HoldSite:
    """One hold: its tensor, the pieces of every dim above it, and the ops that use it."""

    tensor: str
    pieces: Mapping[str, Pieces]
    ops: frozenset[str]

    def steps(self, dim: str) -> int:
        """Steps of the loops over ``dim`` above the hold."""
        return count_pieces(self.pieces[dim])

    def tile(self, dim: str) -> int:
        """Full tile size of ``dim`` at the hold."""
        return self.pieces[dim][0][0]


@dataclass(frozen=True, slots=True)
class ComputeSite:
    """One compute: its op, the pieces of every dim above it, and the hold (index) of each tensor."""

    op: str
    pieces: Mapping[str, Pieces]
    holds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Trace:
    """All sites of a nest; ``moments`` lists, in order, the holds (indices) that are alive together."""

    holds: tuple[HoldSite, ...]
    computes: tuple[ComputeSite, ...]
    moments: tuple[tuple[int, ...], ...]

    def hold_of(self, op: str, tensor: str) -> HoldSite:
        """The hold that serves ``tensor`` to ``op``."""
        for site in self.computes:
            if site.op == op:
                return self.holds[site.holds[tensor]]
        raise KeyError(op)

    def compute_of(self, op: str) -> ComputeSite:
        """Where ``op`` is computed."""
        for site in self.computes:
            if site.op == op:
                return site
        raise KeyError(op)


def trace(graph: Graph, nest: Nest) -> Trace:
    """Walk a nest and list its sites.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    nest : tuple of Item
        The dataflow of one group.

    Raises
    ------
    MappingError
        If an item names what the graph lacks, an op is computed twice, a tensor is held twice on one
        path or not at all where it is needed, or a hold serves nobody.
    """
    walker = _Walker(graph)
    pieces: dict[str, Pieces] = {dim: ((size, 1),) for dim, size in graph.dims.items()}
    walker.walk(nest, pieces, {})
    holds = tuple(HoldSite(tensor, above, frozenset(used)) for tensor, above, used in walker.holds)
    for site in holds:
        if not site.ops:
            raise MappingError(f'the hold of "{site.tensor}" serves no op')
    return Trace(holds, tuple(walker.computes), tuple(walker.moments))


class _Walker:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops = {op.name: op for op in graph.ops}
        self.holds: list[tuple[str, Mapping[str, Pieces], set[str]]] = []
        self.computes: list[ComputeSite] = []
        self.moments: list[tuple[int, ...]] = []

    def walk(self, nest: Nest, pieces: dict[str, Pieces], held: dict[str, int]) -> None:
        ends = self._last_uses(nest)
        held = dict(held)
        own: set[str] = set()
        for index, item in enumerate(nest):
            for name in [name for name in own if ends[name] < index]:
                own.discard(name)
                del held[name]
            if isinstance(item, Hold):
                if item.tensor in held:
                    raise MappingError(f'"{item.tensor}" is held twice on one path')
                if ends.get(item.tensor, -1) < index:
                    raise MappingError(f'the hold of "{item.tensor}" serves no op')
                held[item.tensor] = len(self.holds)
                own.add(item.tensor)
                self.holds.append((item.tensor, pieces, set()))
                self.moments.append(tuple(held.values()))
            elif isinstance(item, Loop):
                if item.dim not in pieces:
                    raise MappingError(f'a loop steps "{item.dim}", which is no dim of the graph')
                inner = {**pieces, item.dim: cut(pieces[item.dim], item.tile)}
                self.walk(item.body, inner, held)
            else:
                self._compute(item, pieces, held)

    def _last_uses(self, nest: Nest) -> dict[str, int]:
        ends: dict[str, int] = {}
        for index, item in enumerate(nest):
            for name in computes((item,)):
                if name not in self.ops:
                    raise MappingError(f'compute names "{name}", which is no op of the graph')
                for tensor in self.ops[name].tensors:
                    ends[tensor] = index
        for item in nest:
            if isinstance(item, Hold) and item.tensor not in self.graph.tensors:
                raise MappingError(f'hold names "{item.tensor}", which is no tensor of the graph')
        return ends

    def _compute(self, item: Compute, pieces: dict[str, Pieces], held: dict[str, int]) -> None:
        if any(site.op == item.op for site in self.computes):
            raise MappingError(f'"{item.op}" is computed in two places')
        served: dict[str, int] = {}
        for tensor in self.ops[item.op].tensors:
            if tensor not in held:
                raise MappingError(f'"{item.op}" needs "{tensor}", which is not held there')
            served[tensor] = held[tensor]
            self.holds[held[tensor]][2].add(item.op)
        self.computes.append(ComputeSite(item.op, pieces, served))
        self.moments.append(tuple(held.values()))
