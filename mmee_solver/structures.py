"""Structures: an order tree with every loop and hold placed, tile sizes still open (design §7.1–7.4).

Only undominated placements are listed. Each rule below moves one hold or loop of a placement and
shows that no occupancy and no cost grows, whatever the sizes; the brute force of the tests searches
without them.

1. *Holds go up.* A hold directly below a loop over a dim that its tensor lacks moves above that
   loop: fewer visits, same tile, and it was alive during the whole loop body anyway.
2. *Loops go up.* A loop below a hold (and above the next one) over a dim that all tensors held
   just above it have moves above them: smaller tiles, same visits. A prologue's axis is excepted:
   looping it above the hold costs online statistics.
3. *Loops in one gap commute*: no hold between them tells their order.
4. *Loops are whole at worst.* A loop with tile N has one step, so a private dim is looped wherever
   rules 1 and 2 leave a place for it; leaving it out is the tile N of that place.
5. *Streaming* cuts only the innermost private hold: its own dims, once more, directly above it. A
   dim whose loop is followed only by tensors that have it needs no second cut, as long as the loop
   may take every size of the cut (``recut`` says that it may not: with divisors, a granule can be an
   array extent that divides nothing).

Between whole private placements, :func:`_drop_dominated` compares symbol by symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise, permutations, product

from mmee_solver.roles import Roles, RowStep, group_roles, row_steps
from mmee_solver.trees import OrderTree
from mmee_solver.workload import Graph, Op, vector_ops_per_element

SHARED, PRIVATE, GRANULE = "shared", "private", "granule"


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop with an open tile size; ``outer`` is the axis (index) whose tile it cuts, -1: the dim."""

    dim: str
    kind: str
    outer: int = -1


@dataclass(frozen=True, slots=True)
class HoldAt:
    """A hold in a layout."""

    tensor: str


@dataclass(frozen=True, slots=True)
class LoopAt:
    """A loop in a layout: the index of its axis."""

    axis: int


Entry = HoldAt | LoopAt


@dataclass(frozen=True)
class Structure:
    """A placement: shared entries, then holds around all leaves, then the entries of each leaf."""

    ops: tuple[str, ...]
    axes: tuple[Axis, ...]
    shared: tuple[Entry, ...]
    body: tuple[str, ...]
    leaves: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True)
class GroupSpace:
    """What placement needs to know of a group, looked up once."""

    graph: Graph
    ops: tuple[Op, ...]
    roles: Roles
    rows: tuple[RowStep, ...]

    @classmethod
    def of(cls, graph: Graph, names: Sequence[str]) -> GroupSpace:
        """The space of a group, ops in the given order."""
        ops = tuple(graph.op(name) for name in names)
        return cls(graph, ops, group_roles(graph, names), row_steps(graph, names))

    def dims(self, tensor: str) -> frozenset[str]:
        """Dims of a tensor that a loop can cut (size above 1)."""
        return self._dims[tensor]

    @cached_property
    def _dims(self) -> Mapping[str, frozenset[str]]:
        sizes = self.graph.dims
        names = {name for op in self.ops for name in op.tensors}
        return {name: frozenset(d for d in self.graph.tensors[name].dims if sizes[d] > 1) for name in names}

    @cached_property
    def users(self) -> Mapping[str, tuple[int, ...]]:
        """The leaves that use each tensor."""
        touched = [op.tensors for op in self.ops]
        names = dict.fromkeys(name for tensors in touched for name in tensors)
        return {n: tuple(i for i, tensors in enumerate(touched) if n in tensors) for n in names}

    @cached_property
    def dims_of_ops(self) -> tuple[tuple[str, ...], ...]:
        """Every dim of each op."""
        return tuple(self.graph.op_dims(op) for op in self.ops)

    @cached_property
    def vector_work(self) -> tuple[float, ...]:
        """Vector operations of each op each time it is computed, without prologues."""
        found = []
        for op in self.ops:
            each = sum(step.vector_ops for step in op.epilogue)
            if op.kind != "einsum" or not self.graph.reduction_dims(op):
                each += vector_ops_per_element(op.kind, op.function)
            found.append(float(each * self.graph.elements(op.output)))
        return tuple(found)

    def op_dims(self, leaf: int) -> tuple[str, ...]:
        """Dims of an op that a loop can cut."""
        return tuple(d for d in self.dims_of_ops[leaf] if self.graph.dims[d] > 1)

    def axes_of_rows(self, tensor: str, leaf: int | None = None) -> frozenset[str]:
        """Axes of row-wise steps that ops (or the op of one leaf) meet on a tensor from outside."""
        wanted = None if leaf is None else self.ops[leaf].name
        return frozenset(
            row.step.axis
            for row in self.rows
            if row.tensor == tensor
            and tensor in self.roles.inputs
            and (wanted is None or row.consumer == wanted)
        )

    def must_span(self, tensor: str, leaf: int) -> frozenset[str]:
        """Axes that the tensor's hold must span for one op."""
        return frozenset(
            row.step.axis
            for row in self.rows
            if row.tensor == tensor and row.consumer == self.ops[leaf].name and not row.deferrable
        )

    @cached_property
    def externals(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Tensors that cross the group's border, each with the leaves that use it."""
        internal = self.roles.internal
        return tuple((name, leaves) for name, leaves in self.users.items() if name not in internal)


def structures(space: GroupSpace, trees: Iterable[OrderTree], recut: bool = False) -> Iterator[Structure]:
    """Every undominated placement of some order trees.

    Parameters
    ----------
    space : GroupSpace
        Its ops in the order of the trees.
    trees : iterable of OrderTree
        The shared loops.
    recut : bool
        Whether a granule may take sizes that a loop may not (rule 5).
    """
    # An op's private placements depend on which of its own dims are shared, not on their order.
    cache: dict[tuple[int, frozenset[str], tuple[str, ...]], list[_Leaf]] = {}
    for tree in trees:
        own = [frozenset(tree.shared) & set(dims) for dims in space.dims_of_ops]
        for entries, body, private in _shared_layouts(space, tree):
            options = []
            for leaf, tensors in enumerate(private):
                key = (leaf, own[leaf], tensors)
                if key not in cache:
                    cache[key] = leaf_layouts(space, leaf, tree.shared, tensors, recut)
                options.append(cache[key])
            for choice in product(*options):
                yield _assemble(space, tree, entries, body, choice)


def _assemble(
    space: GroupSpace,
    tree: OrderTree,
    entries: tuple[str | int, ...],
    body: tuple[str, ...],
    leaves: Sequence[_Leaf],
) -> Structure:
    axes = [Axis(dim, SHARED) for dim in tree.shared]
    shared = tuple(HoldAt(e) if isinstance(e, str) else LoopAt(e) for e in entries)
    placed = []
    for leaf in leaves:
        numbers: dict[tuple[str, str], int] = {}
        line: list[Entry] = []
        for entry in leaf.entries:
            if isinstance(entry, str):
                line.append(HoldAt(entry))
                continue
            dim, kind = entry
            outer = -1
            if kind == GRANULE:
                outer = numbers.get((dim, PRIVATE), -1)
                if dim in tree.shared:
                    outer = tree.shared.index(dim)
            numbers[entry] = len(axes)
            axes.append(Axis(dim, kind, outer))
            line.append(LoopAt(numbers[entry]))
        placed.append(tuple(line))
    inside = (*body, *(name for name in space.roles.internal))
    return Structure(tree.ops, tuple(axes), shared, inside, tuple(placed))


def _shared_layouts(
    space: GroupSpace, tree: OrderTree
) -> Iterator[tuple[tuple[str | int, ...], tuple[str, ...], tuple[tuple[str, ...], ...]]]:
    """Placements of shared holds: entries (tensor names, loop indices), body holds, private tensors."""
    loops = tree.shared
    free = {name: space.dims(name) - space.axes_of_rows(name) for name, _ in space.externals}
    for count in range(len(loops) + 1):
        for depths in combinations(range(len(loops)), count):
            gaps = _gaps(loops, depths)
            if gaps is None:
                continue
            yield from _with_holds(space, loops, depths, gaps, free)


def _gaps(loops: Sequence[str], depths: Sequence[int]) -> list[tuple[str, ...]] | None:
    """Loops between the hold depths, outermost first; None unless each gap is in sorted order (rule 3)."""
    ends = [0, *depths, len(loops)]
    gaps = [tuple(loops[a:b]) for a, b in pairwise(ends)]
    return gaps if all(list(gap) == sorted(gap) for gap in gaps) else None


def _with_holds(
    space: GroupSpace,
    loops: Sequence[str],
    depths: Sequence[int],
    gaps: Sequence[tuple[str, ...]],
    free: Mapping[str, frozenset[str]],
) -> Iterator[tuple[tuple[str | int, ...], tuple[str, ...], tuple[tuple[str, ...], ...]]]:
    options = []
    for name, users in space.externals:
        places = [
            index
            for index in range(len(depths))
            if set(gaps[index]) <= space.dims(name)  # rule 1
            and not _breaks_span(space, name, users, loops[: depths[index]])
        ]
        choices: list[int | str] = ["private", *places]
        several = len(users) > 1
        if several and set(gaps[-1]) <= space.dims(name):
            choices.append("body")
        if _breaks_span(space, name, users, loops):
            choices = [*places]
        options.append(choices)
    for index in range(len(depths)):
        able = [n for (n, _), choices in zip(space.externals, options, strict=True) if index in choices]
        if not able or any(all(dim in free[n] for n in able) for dim in gaps[index + 1]):
            return  # no choice fills this depth, or rule 2 drops every one that does
    for choice in product(*options):
        held = {
            index: [n for (n, _), c in zip(space.externals, choice, strict=True) if c == index]
            for index in range(len(depths))
        }
        if any(not names for names in held.values()):
            continue
        if any(all(dim in free[name] for name in held[index]) for index in held for dim in gaps[index + 1]):
            continue  # rule 2
        entries: list[str | int] = []
        for depth in range(len(loops) + 1):
            if depth in depths:
                entries += held[list(depths).index(depth)]
            if depth < len(loops):
                entries.append(depth)
        named = list(zip(space.externals, choice, strict=True))
        body = tuple(name for (name, _), c in named if c == "body")
        private = tuple(
            tuple(name for (name, users), c in named if c == "private" and leaf in users)
            for leaf in range(len(space.ops))
        )
        yield tuple(entries), body, private


def _breaks_span(space: GroupSpace, name: str, users: Sequence[int], above: Sequence[str]) -> bool:
    return any(space.must_span(name, leaf) & set(above) for leaf in users)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Private entries of one op, outermost first: tensor names and (dim, kind) loops."""

    entries: tuple[str | tuple[str, str], ...]


def leaf_layouts(
    space: GroupSpace,
    leaf: int,
    shared: Sequence[str],
    tensors: Sequence[str],
    recut: bool = False,
) -> list[_Leaf]:
    """Undominated orders of an op's private holds and loops.

    Parameters
    ----------
    space : GroupSpace
        The group.
    leaf : int
        Index of the op.
    shared : sequence of str
        Dims looped above.
    tensors : sequence of str
        Tensors that are held privately.
    recut : bool
        Whether a granule may take sizes that a loop may not (rule 5).
    """
    free = [dim for dim in space.op_dims(leaf) if dim not in shared]
    found: dict[_Leaf, None] = {}
    for order in permutations(tensors):
        levels = [_levels(space, leaf, order, dim) for dim in free]
        for choice in product(*levels):
            places = dict(zip(free, choice, strict=True))
            for granules in _granules(space, leaf, order, shared, places, recut):
                layout = _leaf_entries(order, places, granules)
                if not _misses_span(space, leaf, layout):
                    found.setdefault(layout)
    return _drop_dominated(space, leaf, shared, tensors, list(found))


def _levels(space: GroupSpace, leaf: int, order: Sequence[str], dim: str) -> list[int]:
    """Positions for a private loop: above the hold of that index; len(order): not looped (rules 2, 4)."""
    last = len(order) - 1
    found = []
    for index in range(last):
        if dim not in space.dims(order[index]):
            continue
        before = order[index - 1] if index else None
        repeated = before is not None and dim in space.dims(before)
        if before is not None and repeated and dim not in space.axes_of_rows(before, leaf):
            continue
        found.append(index)
    axis = any(dim in space.axes_of_rows(name, leaf) for name in order)
    return found if found and not axis else [*found, len(order)]


def _granules(
    space: GroupSpace,
    leaf: int,
    order: Sequence[str],
    shared: Sequence[str],
    places: Mapping[str, int],
    recut: bool,
) -> Iterator[tuple[str, ...]]:
    """Dims that streaming cuts, directly above the innermost private hold (rule 5)."""
    if not order:
        yield ()
        return
    last = order[-1]
    always: list[str] = []
    maybe: list[str] = []
    for dim in sorted(space.dims(last)):
        start = places.get(dim, len(order))
        looped = dim not in shared and start < len(order)
        if looped and not recut and all(dim in space.dims(name) for name in order[start:]):
            continue
        (maybe if dim in space.axes_of_rows(last, leaf) else always).append(dim)
    for count in range(len(maybe) + 1):
        for chosen in combinations(maybe, count):
            yield (*always, *chosen)


def _leaf_entries(order: Sequence[str], places: Mapping[str, int], granules: Sequence[str]) -> _Leaf:
    entries: list[str | tuple[str, str]] = []
    for index, name in enumerate(order):
        entries += [(dim, PRIVATE) for dim in sorted(places) if places[dim] == index]
        if index == len(order) - 1:
            entries += [(dim, GRANULE) for dim in granules]
        entries.append(name)
    return _Leaf(tuple(entries))


def _misses_span(space: GroupSpace, leaf: int, layout: _Leaf) -> bool:
    """Whether a loop cuts an axis above the hold of a tensor that must span it."""
    cut: set[str] = set()
    for entry in layout.entries:
        if isinstance(entry, str):
            if space.must_span(entry, leaf) & cut:
                return True
        else:
            cut.add(entry[0])
    return False


_FINE, _TILE, _WHOLE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Shape:
    """A leaf layout as symbols per dim: granule 0 ≤ tile 1 ≤ whole 2."""

    tile: Mapping[tuple[str, str], int]
    above: Mapping[str, frozenset[str]]
    online: frozenset[tuple[str, str]]
    finest: Mapping[str, int]
    loops: frozenset[tuple[str, str]]


def _shape(space: GroupSpace, leaf: int, layout: _Leaf) -> _Shape:
    level: dict[str, int] = {}
    tile: dict[tuple[str, str], int] = {}
    above: dict[str, frozenset[str]] = {}
    online: set[tuple[str, str]] = set()
    for entry in layout.entries:
        if isinstance(entry, str):
            for dim in space.dims(entry):
                tile[entry, dim] = level.get(dim, _WHOLE)
            above[entry] = frozenset(dim for dim in level if dim not in space.dims(entry))
            online |= {(entry, dim) for dim in space.axes_of_rows(entry, leaf) & set(level)}
        else:
            level[entry[0]] = _TILE if entry[1] == PRIVATE else _FINE
    loops = frozenset(entry for entry in layout.entries if not isinstance(entry, str))
    return _Shape(tile, above, frozenset(online), level, loops)


def _drop_dominated(
    space: GroupSpace,
    leaf: int,
    shared: Sequence[str],
    tensors: Sequence[str],
    layouts: list[_Leaf],
) -> list[_Leaf]:
    """Drop layouts that another one beats for all sizes.

    ``a`` beats ``b`` if, with every tile of ``a`` set to the tile of the same loop in ``b`` (whole if
    ``b`` lacks it), each tensor's tile is at most as large, each tensor is visited over a subset of
    the loops, no dim is cut finer and no further statistics run online (a loop over a row axis counts
    as online even if a whole tile makes it a single step). Equal ones keep the first.
    """
    shapes = [_shape(space, leaf, layout) for layout in layouts]
    kept: list[int] = []
    for index, shape in enumerate(shapes):
        rivals = [*kept, *range(index + 1, len(shapes))]
        beaten = False
        for other in rivals:
            if _beats(shapes[other], shape) and (other < index or not _beats(shape, shapes[other])):
                beaten = True
                break
        if not beaten:
            kept.append(index)
    return [layouts[index] for index in kept]


def _beats(a: _Shape, b: _Shape) -> bool:
    def mapped(dim: str, symbol: int) -> int:
        if symbol == _WHOLE:
            return _WHOLE
        if symbol == _TILE:
            return _TILE if (dim, PRIVATE) in b.loops else _WHOLE
        if (dim, GRANULE) in b.loops:
            return _FINE
        return mapped(dim, _TILE) if (dim, PRIVATE) in a.loops else _WHOLE

    if not a.online <= b.online:
        return False
    for (tensor, dim), symbol in a.tile.items():
        if mapped(dim, symbol) > b.tile[tensor, dim]:
            return False
    for tensor, dims in a.above.items():
        cut = {dim for dim in dims if mapped(dim, a.finest[dim]) != _WHOLE}
        if not cut <= b.above[tensor]:
            return False
    return all(mapped(dim, symbol) >= b.finest.get(dim, _WHOLE) for dim, symbol in a.finest.items())
