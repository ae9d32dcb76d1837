"""Skeletons: an order tree with the holds that several leaves share, tile sizes still open (design §7).

A tensor that one leaf alone uses is placed with that leaf (:mod:`mmee_solver.layouts`), so that the
leaves of a skeleton are independent but for the buffer. Here stand the tensors made inside the group,
at the lowest node over their producer and consumers, and tensors from outside that several leaves
share at a node. Of the latter only undominated places are listed, by two rules that move one hold
within its node and let no occupancy and no cost grow, whatever the sizes:

1. A hold directly below a loop over a dim that its tensor lacks moves above that loop: fewer visits,
   same tile, and it is alive during all of the node anyway. (In the list inside, a hold lasts from the
   first to the last child that uses its tensor: there, the rule needs these to be all children.)
2. A hold directly above a loop over a dim that its tensor has moves below that loop: smaller tiles,
   same visits. A prologue's axis is excepted: there, the move costs online statistics.

Of these, :func:`shares_loops` says which share no loop in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mmee_solver.nest import Hold
from mmee_solver.space import GroupSpace
from mmee_solver.trees import Node, OrderTree, leaves_of

SHARED, PRIVATE, GRANULE = "shared", "private", "granule"


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop with an open tile size; ``outer`` is the axis (index) whose tile it cuts, -1: the dim."""

    dim: str
    kind: str
    outer: int = -1


@dataclass(frozen=True, slots=True)
class LoopAt:
    """A loop in a placement: the index of its axis."""

    axis: int


Entry = Hold | LoopAt


@dataclass(frozen=True, slots=True)
class Place:
    """A node: its loops and the holds between them, holds in the list inside, children, leaves below.

    ``body`` pairs each tensor held in the list with the number of the first child that the hold serves.
    """

    entries: tuple[Entry, ...]
    body: tuple[tuple[str, int], ...]
    children: tuple[Place | int, ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A hold: its tensor, the axis of each dim looped above it, the leaves it is alive in and serves."""

    tensor: str
    level: Mapping[str, int]
    alive: tuple[int, ...]
    serves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One shared loop on the way to a leaf: axis of the skeleton, dim, leaves below the loop's node."""

    axis: int
    dim: str
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Skeleton:
    """A placement of everything that leaves share."""

    ops: tuple[str, ...]
    axes: tuple[Axis, ...]
    root: Place
    sites: tuple[Site, ...]
    paths: tuple[tuple[Step, ...], ...]


def shares_loops(space: GroupSpace, place: Place) -> bool:
    """Whether every node with loops has in its list what joins all of its children; if not, it is dominated.

    Children that the holds in a node's list do not join do not share its last loop: each can have that
    loop by itself (none at all over a dim that it lacks), moves and computes no more, and has no other's
    tiles beside it. A hold directly above the loop then stands in the list.
    """
    if place.entries and len(_classes(space, place)) > 1:
        return False
    return all(shares_loops(space, child) for child in place.children if isinstance(child, Place))


def falls_apart(space: GroupSpace, skeleton: Skeleton) -> bool:
    """Whether the root has no loops and holds nothing that joins all of its children.

    Such a group does what two groups do one after the other, each of them with the whole buffer. So they
    move no more and take no more energy. Only the group's latency can be less, for transfers of one part
    overlap with the work of the other.
    """
    return not skeleton.root.entries and len(_classes(space, skeleton.root)) > 1


def skeletons(space: GroupSpace, trees: Iterable[OrderTree]) -> Iterator[Skeleton]:
    """Every undominated skeleton of some order trees.

    Parameters
    ----------
    space : GroupSpace
        Its ops in the order of the trees.
    trees : iterable of OrderTree
        Trees over the same order of ops.
    """
    for tree in trees:
        axes: list[Axis] = []
        numbered = _number(tree.root, axes)
        shared = [(name, users) for name, users in space.externals if len(users) > 1]
        options = [list(_covers(space, name, users, numbered)) for name, users in shared]
        for choice in product(*options):
            # a resident tensor is held over all of the group
            held: _Held = {(numbered.number, 0): [(name, 0) for name in space.kept]}
            for (name, _), places in zip(shared, choice, strict=True):
                for number, position, start in places:
                    held.setdefault((number, position), []).append((name, start))
            found = _assemble(space, tree, numbered, tuple(axes), held)
            if _needs_its_nodes(space, found.root):
                yield found


def _needs_its_nodes(space: GroupSpace, place: Place) -> bool:
    """Whether every inner node without loops ends a hold whose tensor is used behind it.

    If not, its children may as well stand in the list around it, where every hold lasts no longer.
    """
    for number, child in enumerate(place.children):
        if isinstance(child, int):
            continue
        behind = {leaf for other in place.children[number + 1 :] for leaf in leaves_of(other)}
        used = frozenset(name for name, users in space.users.items() if behind.intersection(users))
        if not child.entries and not any(name in used for name, _ in child.body):
            return False
        if not _needs_its_nodes(space, child):
            return False
    return True


# (node, position) -> tensors held there, each with the number of the first child that the hold serves
_Held = dict[tuple[int, int], list[tuple[str, int]]]


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A node with the axes of its loops; ``number`` tells nodes apart."""

    number: int
    axes: tuple[int, ...]
    loops: tuple[str, ...]
    children: tuple[_Numbered | int, ...]
    leaves: tuple[int, ...]


def _classes(space: GroupSpace, place: Place) -> list[set[int]]:
    """Leaves of a node's children, put together where children use one tensor of the node's list."""
    parts = [set(leaves_of(child)) for child in place.children]
    for name, start in place.body:
        if name in space.kept:
            continue
        served = {leaf for child in place.children[start:] for leaf in leaves_of(child)}
        users = served.intersection(space.users[name])
        touched = [part for part in parts if part & users]
        parts = [part for part in parts if not part & users] + [set[int]().union(*touched)]
    return parts


def _number(root: Node, axes: list[Axis]) -> _Numbered:
    count = 0

    def walk(node: Node) -> _Numbered:
        nonlocal count
        number, count = count, count + 1
        own = tuple(range(len(axes), len(axes) + len(node.loops)))
        axes.extend(Axis(dim, SHARED) for dim in node.loops)
        children = tuple(c if isinstance(c, int) else walk(c) for c in node.children)
        return _Numbered(number, own, node.loops, children, node.leaves)

    return walk(root)


def _covers(
    space: GroupSpace, name: str, users: Sequence[int], node: _Numbered, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Ways to hold a tensor for several leaves at once: (node, position, first child served) each.

    Position p is directly above the node's loop p; the number of loops is the list inside. A hold above a
    loop serves all children. One in the list may leave out the first that use the tensor, which then hold
    it themselves, and lasts to the last.
    """
    inside = [leaf for leaf in node.leaves if leaf in users]
    if len(inside) < 2:
        yield ()
        return
    own, rows = space.dims(name), space.axes_of_rows(name)
    for position in range(len(node.loops)):
        outer = (*above, *node.loops[:position])
        if any(space.must_span(name, leaf) & set(outer) for leaf in inside):
            continue
        if position and node.loops[position - 1] not in own:
            continue  # rule 1
        if node.loops[position] in own and node.loops[position] not in rows:
            continue  # rule 2
        yield ((node.number, position, 0),)
    outer = (*above, *node.loops)
    parts = [
        list(_covers(space, name, users, child, outer)) if isinstance(child, _Numbered) else [()]
        for child in node.children
    ]
    touched = [i for i, child in enumerate(node.children) if set(leaves_of(child)) & set(inside)]
    for start in touched[:-1]:  # several children: else the place above the loops of the one is the same
        served = [leaf for child in node.children[start:] for leaf in leaves_of(child) if leaf in inside]
        if any(space.must_span(name, leaf) & set(outer) for leaf in served):
            continue
        everywhere = _lifetime(node, served) == node.leaves
        if node.loops and node.loops[-1] not in own and everywhere:
            continue  # rule 1
        for choice in product(*parts[:start]):
            yield (*(place for part in choice for place in part), (node.number, len(node.loops), start))
    for choice in product(*parts):
        yield tuple(place for part in choice for place in part)


def _assemble(
    space: GroupSpace,
    tree: OrderTree,
    root: _Numbered,
    axes: tuple[Axis, ...],
    held: _Held,
) -> Skeleton:
    sites: list[Site] = []
    paths: dict[int, tuple[Step, ...]] = {}

    def users_in(name: str, node: _Numbered) -> tuple[int, ...]:
        return tuple(leaf for leaf in node.leaves if leaf in space.users[name])

    def walk(node: _Numbered, level: dict[str, int], path: tuple[Step, ...]) -> Place:
        entries: list[Entry] = []
        level = dict(level)
        for position, (axis, dim) in enumerate(zip(node.axes, node.loops, strict=True)):
            for name, _ in held.get((node.number, position), ()):
                entries.append(Hold(name))
                sites.append(Site(name, dict(level), node.leaves, users_in(name, node)))
            entries.append(LoopAt(axis))
            level[dim] = axis
            path = (*path, Step(axis, dim, node.leaves))
        body = list(held.get((node.number, len(node.loops)), ()))
        body += [(name, 0) for name in space.roles.internal if _lowest(space.users[name], node)]
        for name, start in body:
            behind = {leaf for child in node.children[start:] for leaf in leaves_of(child)}
            served = tuple(leaf for leaf in users_in(name, node) if leaf in behind)
            sites.append(Site(name, dict(level), _lifetime(node, served), served))
        children: list[Place | int] = []
        for child in node.children:
            if isinstance(child, int):
                paths[child] = path
                children.append(child)
            else:
                children.append(walk(child, level, path))
        return Place(tuple(entries), tuple(body), tuple(children), node.leaves)

    place = walk(root, {}, ())
    ordered = tuple(paths[leaf] for leaf in range(len(space.ops)))
    return Skeleton(tree.ops, axes, place, tuple(sites), ordered)


def _lowest(users: Sequence[int], node: _Numbered) -> bool:
    """Whether a node is the lowest one over all of some leaves."""
    return set(users) <= set(node.leaves) and not any(
        set(users) <= set(leaves_of(child)) for child in node.children
    )


def _lifetime(node: _Numbered, served: Sequence[int]) -> tuple[int, ...]:
    """Leaves of the children from the first to the last that uses a tensor held in the list."""
    touched = [i for i, child in enumerate(node.children) if set(leaves_of(child)) & set(served)]
    alive = node.children[touched[0] : touched[-1] + 1]
    return tuple(leaf for child in alive for leaf in leaves_of(child))
