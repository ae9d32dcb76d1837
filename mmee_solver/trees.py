"""Order trees and legal groups, listed by CP-SAT (design §7.1, §8).

An order tree has the ops as leaves; an inner node has an ordered list of shared loops over its
children. Private loops are no part of the tree: they are placed by :mod:`mmee_solver.layouts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, islice, pairwise
from typing import Protocol

from ortools.sat.python import cp_model

from mmee_solver.roles import Roles, RowStep, group_roles, row_steps
from mmee_solver.workload import Graph, Op


class Inner(Protocol):
    """Anything that stands over leaves."""

    @property
    def leaves(self) -> tuple[int, ...]:
        """The leaves below, in order."""
        ...


def leaves_of(child: int | Inner) -> tuple[int, ...]:
    """The leaves of a child: itself, or those below it."""
    return (child,) if isinstance(child, int) else child.leaves


@dataclass(frozen=True, slots=True)
class Node:
    """Shared loops, outermost first, over children in order: leaves (positions of ops) or nodes."""

    loops: tuple[str, ...]
    children: tuple[Node | int, ...]

    @property
    def leaves(self) -> tuple[int, ...]:
        """The leaves below, in order."""
        return tuple(leaf for child in self.children for leaf in leaves_of(child))


@dataclass(frozen=True, slots=True)
class OrderTree:
    """The ops and the root over them: leaf i is op i.

    The order of the leaves below the root is the order of computation. The root may lack loops; another
    node only if a tensor from outside, used in it and behind it, may end with it (then it is written as
    one loop of a single step).
    """

    ops: tuple[str, ...]
    root: Node


def legal_groups(graph: Graph, largest: int = 2) -> tuple[tuple[str, ...], ...]:
    """Groups of at most ``largest`` ops that may be fused: convex and connected by shared tensors.

    Groups are grown op by op: a connected group of n ops always has a connected part of n - 1.
    Convex groups are those among them that no path leaves and enters again.

    Parameters
    ----------
    graph : Graph
        The folded graph, ops in topological order.
    largest : int
        Most ops in a group; 1 is no fusion.

    Returns
    -------
    tuple of tuple of str
        Names in topological order; smaller groups first.
    """
    found: list[tuple[str, ...]] = []
    for size, groups in enumerate(groups_by_size(graph), start=1):
        found += groups
        if size >= largest:
            break
    return tuple(found)


def groups_by_size(graph: Graph) -> Iterator[list[tuple[str, ...]]]:
    """The groups of one op, then those of two, and so on, as long as there are any; see `legal_groups`."""
    below = _descendants(graph)
    rank = {op.name: index for index, op in enumerate(graph.ops)}
    near: dict[str, set[str]] = {op.name: set() for op in graph.ops}
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for tensor in op.tensors:
            readers.setdefault(tensor, []).append(op.name)
    for names in readers.values():
        for name in names:
            near[name] |= set(names) - {name}
    layer = [frozenset({op.name}) for op in graph.ops]
    while layer:
        convex = [group for group in layer if _convex(group, below)]
        yield sorted((tuple(sorted(group, key=rank.__getitem__)) for group in convex), key=_ranks(rank))
        grown = {group | {name} for group in layer for member in group for name in near[member] - group}
        layer = sorted(grown, key=lambda group: sorted(rank[name] for name in group))


def connected(graph: Graph, ops: Sequence[str]) -> bool:
    """Whether shared tensors connect some ops."""
    left = [set(graph.op(name).tensors) for name in ops]
    reached = left.pop(0)
    while near := [tensors for tensors in left if tensors & reached]:
        left = [tensors for tensors in left if not tensors & reached]
        reached = reached.union(*near)
    return not left


def _ranks(rank: Mapping[str, int]) -> Callable[[tuple[str, ...]], list[int]]:
    return lambda group: [rank[name] for name in group]


def _convex(group: frozenset[str], below: Mapping[str, set[str]]) -> bool:
    """Whether no path between two ops of a group leads through another op."""
    between = set().union(*(below[name] for name in group)) - group
    return not any(below[name] & group for name in between)


def _descendants(graph: Graph) -> dict[str, set[str]]:
    """Ops reachable from each op, without itself."""
    below: dict[str, set[str]] = {op.name: set() for op in graph.ops}
    for op in reversed(graph.ops):
        for name in graph.consumers(op.output):
            below[op.name] |= {name} | below[name]
    return below


def order_trees(
    graph: Graph, ops: Sequence[str], recompute: bool = True, flat: bool = False, most: int | None = None
) -> tuple[OrderTree, ...]:
    """Every legal order tree of a group, in a canonical order.

    A dim of size 1 is never looped. Among the loops of one node, a dim that every tensor of the group
    has (batch, heads) comes first: that changes no traffic and only shrinks tiles. Two children that do
    not depend on each other stand in the order of the ops: nothing is alive in one order only. Loops
    are shared only by children that share a tensor: else each child can have them by itself (without
    those over dims that it lacks), moves and computes no more, and has no other's tiles beside it.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    ops : sequence of str
        Op names in topological order.
    recompute : bool
        Whether loops that recompute an op are in the space.
    flat : bool
        Only trees whose root has all ops as children, in the given order.
    most : int, optional
        Give up after so many.
    """
    lister = _Lister(graph, [graph.op(name) for name in ops], recompute)
    leaves = tuple(range(len(ops)))
    roots = lister.flat(leaves) if flat else lister.nodes(leaves, frozenset(), root=True)
    listed = sorted(islice(roots, most), key=_sort_key)
    return tuple(OrderTree(tuple(ops), root) for root in listed)


def _sort_key(node: Node) -> tuple[object, ...]:
    children = tuple((0, (c,)) if isinstance(c, int) else (1, _sort_key(c)) for c in node.children)
    return len(node.loops), node.loops, children


class _Lister:
    """Lists the nodes of one group, numbering its ops in the given order."""

    def __init__(self, graph: Graph, ops: Sequence[Op], recompute: bool) -> None:
        names = [op.name for op in ops]
        self.graph, self.ops, self.recompute = graph, ops, recompute
        self.roles: Roles = group_roles(graph, names)
        self.rows: tuple[RowStep, ...] = row_steps(graph, names)
        self.dims = [frozenset(graph.op_dims(op)) for op in ops]
        self.feeds = {
            (a, b)
            for a, first in enumerate(ops)
            for b, second in enumerate(ops)
            if first.output in second.reads
        }
        self.users = {
            name: {leaf for leaf, op in enumerate(ops) if name in op.tensors}
            for name in dict.fromkeys(name for op in ops for name in op.tensors)
        }
        self.rank = {dim: number for number, dim in enumerate(graph.dims)}
        everywhere = [set(graph.tensors[t].dims) for op in ops for t in op.tensors]
        self.batch = frozenset(set.intersection(*everywhere)) if everywhere else frozenset()

    def nodes(self, leaves: tuple[int, ...], above: frozenset[str], root: bool = False) -> Iterator[Node]:
        """Every node over some leaves, below loops over some dims."""
        if len(leaves) == 1:
            yield Node((), leaves)
            return
        allowed = [dim for dim in self._shareable(leaves) if dim not in above]
        batch = [dim for dim in allowed if dim in self.batch]
        rest = [dim for dim in allowed if dim not in self.batch]
        blocks = list(self._divisions(leaves))
        joined = [division for division in blocks if self._joined(division)]
        parted = self._parted(leaves)
        for loops in _sequences(tuple(batch), tuple(rest)):
            if not loops and not root and not self._ends(leaves):
                continue
            if not self._in_order(loops, parted):
                continue
            inside = above | set(loops)
            for division in joined if loops else blocks:
                if self._in_vain(division, loops, parted):
                    continue
                for children in self._children(division, inside):
                    yield Node(loops, children)

    def flat(self, leaves: tuple[int, ...]) -> Iterator[Node]:
        """Every root with leaves as its only children."""
        allowed = self._shareable(leaves)
        batch = tuple(dim for dim in allowed if dim in self.batch)
        rest = tuple(dim for dim in allowed if dim not in self.batch)
        joined = self._joined(tuple((leaf,) for leaf in leaves))
        single, parted = tuple((leaf,) for leaf in leaves), self._parted(leaves)
        for loops in _sequences(batch, rest):
            if not loops or (
                joined and self._in_order(loops, parted) and not self._in_vain(single, loops, parted)
            ):
                yield Node(loops, leaves)

    def _parted(self, leaves: tuple[int, ...]) -> frozenset[tuple[str, str]]:
        """Pairs of dims (a, b) such that a hold may pay between a loop over a and, next to it, one over b.

        It pays if its tensor has a and lacks b (rules 1 and 2 of skeletons), or meets rows along b. What
        is made and used in the group is held in lists.
        """
        used = {name for leaf in leaves for name in self.ops[leaf].tensors} - set(self.roles.internal)
        axes = {(row.tensor, row.step.axis) for row in self.rows}
        dims = dict.fromkeys(dim for leaf in leaves for dim in self.dims[leaf])
        return frozenset(
            (a, b)
            for name in used
            for a in self.graph.tensors[name].dims
            for b in dims
            if b not in self.graph.tensors[name].dims or (name, b) in axes
        )

    def _in_order(self, loops: tuple[str, ...], parted: frozenset[tuple[str, str]]) -> bool:
        """Whether no two loops next to each other are better, or equally well, the other way round.

        Loops that no hold parts commute: the order in which a hold may part them has it all. Of two
        orders without, the one by the graph's dims is kept. Each exchange puts one pair right and
        changes no other, so the exchanges end. Batch dims have their place anyway.
        """
        for a, b in pairwise(loops):
            if a in self.batch or (a, b) in parted:
                continue
            if (b, a) in parted or self.rank[a] > self.rank[b]:
                return False
        return True

    def _in_vain(
        self,
        division: tuple[tuple[int, ...], ...],
        loops: tuple[str, ...],
        parted: frozenset[tuple[str, str]],
    ) -> bool:
        """Whether the first, or the last, children of a node are recomputed without gain."""
        # a loop may stand innermost if no inner one is parted from it
        return any(
            self._recomputes_in_vain(division, dim)
            for place, dim in enumerate(loops)
            if all((dim, inner) not in parted for inner in loops[place + 1 :])
        )

    def _recomputes_in_vain(self, division: tuple[tuple[int, ...], ...], dim: str) -> bool:
        """Whether the first children of a node all lack the dim of its innermost loop, and gain nothing.

        That loop then may as well stand above the other children alone, in a node of their own (or in
        their own loops, if it is one child): the first are computed less often, their tensors and
        those that they share with the others are visited less often, no tile is larger. What they share
        is alive until all others are done, as it was if the last child uses it. The same holds for the
        last children, if the first child uses all that is shared.
        """
        lack = [all(dim not in self.dims[leaf] for leaf in block) for block in division]
        count = len(division)
        for cut in range(1, count):
            first, rest = division[:cut], division[cut:]
            if all(lack[:cut]) and (len(rest) == 1 or self._all_reach(first, rest, rest[-1])):
                return True
            if all(lack[cut:]) and (len(first) == 1 or self._all_reach(first, rest, first[0])):
                return True
        return False

    def _all_reach(
        self, first: tuple[tuple[int, ...], ...], rest: tuple[tuple[int, ...], ...], child: tuple[int, ...]
    ) -> bool:
        """Whether a child uses every tensor that children before and behind a cut share."""
        before, behind = ({leaf for block in part for leaf in block} for part in (first, rest))
        return all(users & set(child) for users in self.users.values() if users & before and users & behind)

    def _ends(self, leaves: tuple[int, ...]) -> bool:
        """Whether a tensor from outside is used by several of some leaves, and by others."""
        mine = set(leaves)
        return any(
            len(users & mine) > 1 and users - mine
            for name, users in self.users.items()
            if name not in self.roles.internal
        )

    def _children(
        self, division: tuple[tuple[int, ...], ...], above: frozenset[str]
    ) -> Iterator[tuple[Node | int, ...]]:
        if not division:
            yield ()
            return
        first, rest = division[0], division[1:]
        options: list[Node | int] = (
            [first[0]] if len(first) == 1 else list[Node | int](self.nodes(first, above))
        )
        for option in options:
            for others in self._children(rest, above):
                yield (option, *others)

    def _divisions(self, leaves: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
        """Ordered partitions into at least two blocks, no block before one that it needs."""
        for division in self._orders(frozenset(leaves)):
            if len(division) < 2:
                continue
            if len(division) == 2 and division[0] > division[1] and not self._depends(*division):
                continue
            yield division

    def _orders(self, left: frozenset[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if not left:
            yield ()
            return
        members = sorted(left)
        for count in range(1, len(members) + 1):
            for block in combinations(members, count):
                rest = left - set(block)
                if any((maker, user) in self.feeds for maker in rest for user in block):
                    continue
                for others in self._orders(rest):
                    yield (block, *others)

    def _joined(self, division: tuple[tuple[int, ...], ...]) -> bool:
        """Whether tensors that children may share at their node join all of them."""
        parts = [set(block) for block in division]
        for name, users in self.users.items():
            mine = {leaf for block in division for leaf in block} & users
            if name in self.roles.internal and mine != users:
                continue  # held further out
            touched = [part for part in parts if part & mine]
            parts = [part for part in parts if not part & mine] + [set[int]().union(*touched)] * bool(touched)
        return len(parts) == 1

    def _depends(self, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
        return any((maker, user) in self.feeds for maker in first for user in second)

    def _shareable(self, leaves: tuple[int, ...]) -> list[str]:
        """Dims that a loop above some ops may step (legality of §5)."""
        graph, group = self.graph, [self.ops[leaf] for leaf in leaves]
        dims = dict.fromkeys(dim for op in group for dim in graph.op_dims(op) if graph.dims[dim] > 1)
        for leaf, op in zip(leaves, group, strict=True):
            if op.output in self.roles.leaving or not self.recompute:
                for dim in [dim for dim in dims if dim not in self.dims[leaf]]:
                    dims.pop(dim)
            if any((leaf, other) in self.feeds for other in leaves):
                for dim in graph.reduction_dims(op):
                    dims.pop(dim, None)
        names = {op.name for op in group}
        makers = {op.output for op in group}
        for row in self.rows:
            if row.consumer in names and row.tensor in makers:
                readers = {op.name for op in self.ops if row.tensor in op.reads}
                # with a reader outside, the tensor's hold is above this loop: rows would be unfinished
                if not row.deferrable or not readers <= names:
                    dims.pop(row.step.axis, None)
        return list(dims)


def _sequences(batch: tuple[str, ...], rest: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Ordered selections of dims, batch dims before the others and in their given order."""
    dims = [*batch, *rest]
    return [tuple(dims[place] for place in chosen) for chosen in _selections(len(batch), len(rest))]


@cache
def _selections(batch: int, rest: int) -> tuple[tuple[int, ...], ...]:
    """Ordered selections of 0..batch+rest-1, the first ``batch`` ones before the others and sorted."""
    dims = range(batch + rest)
    if not dims:
        return ((),)
    model = cp_model.CpModel()
    # slot[d, k]: dim d is the k-th shared loop; used[d]: dim d is shared.
    slot = {(d, k): model.new_bool_var(f"slot_{d}_{k}") for d in dims for k in dims}
    used = {d: model.new_bool_var(f"used_{d}") for d in dims}
    for d in dims:
        model.add(sum(slot[d, k] for k in dims) == used[d])
    filled = [sum(slot[d, k] for d in dims) for k in dims]
    for k in dims:
        model.add(filled[k] <= 1)
        if k:
            model.add(filled[k] <= filled[k - 1])
    place = {d: sum(k * slot[d, k] for k in dims) for d in dims}
    for d in range(batch):
        for other in range(d + 1, len(dims)):
            model.add(place[d] < place[other]).only_enforce_if(used[d], used[other])
    collector = _Collector(slot)
    solver = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.cp_model_presolve = False
    status = solver.solve(model, collector)
    if status != cp_model.OPTIMAL:
        raise AssertionError(f"CP-SAT did not list all loop orders: {solver.status_name(status)}")
    return tuple(sorted(collector.found, key=lambda chosen: (len(chosen), chosen)))


class _Collector(cp_model.CpSolverSolutionCallback):
    def __init__(self, slot: dict[tuple[int, int], cp_model.IntVar]) -> None:
        super().__init__()
        self._slot = slot
        self.found: list[tuple[int, ...]] = []

    def on_solution_callback(self) -> None:
        placed = [(k, d) for (d, k), variable in self._slot.items() if self.value(variable)]
        self.found.append(tuple(d for _, d in sorted(placed)))
