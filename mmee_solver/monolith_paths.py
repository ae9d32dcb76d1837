"""Loops of a group as CP-SAT variables: order of ops, which loops they share, tile sizes (design §7.1, §7.2).

No order tree is listed. Two ops share a loop or not, dim by dim; sharing is transitive, ops that share
more stand next to each other, and every set of loops that something on a path stands below is a prefix of
it. Any two such sets of one path are nested, and then the path has an order of its loops; loops that
nothing tells apart commute. The sets of two ops that share loops are compared on these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, permutations

from mmee_solver.accelerator import Accelerator
from mmee_solver.monolith_terms import Literal, Quantity, Switch, Terms, negated, number, switch
from mmee_solver.roles import Roles, RowStep, group_roles, row_steps
from mmee_solver.units import ceil_div
from mmee_solver.workload import Graph, Op

Prefix = Mapping[str, Switch]  # per dim: whether its loop is in the set


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One candidate group: its ops in topological order, its roles, the dims that a loop can step."""

    graph: Graph
    accelerator: Accelerator
    ops: tuple[Op, ...]
    roles: Roles
    rows: tuple[RowStep, ...]
    dims: tuple[str, ...]
    tiles: str
    recompute: bool

    @classmethod
    def of(
        cls, graph: Graph, accelerator: Accelerator, names: tuple[str, ...], tiles: str, recompute: bool
    ) -> GroupFacts:
        """The facts of a group of a folded graph."""
        ops = tuple(graph.op(name) for name in names)
        used = dict.fromkeys(dim for op in ops for dim in graph.op_dims(op))
        dims = tuple(dim for dim in used if graph.dims[dim] > 1)
        roles, rows = group_roles(graph, names), row_steps(graph, names)
        return cls(graph, accelerator, ops, roles, rows, dims, tiles, recompute)

    def users(self, tensor: str) -> tuple[int, ...]:
        """Indices of the ops that touch a tensor."""
        return tuple(i for i, op in enumerate(self.ops) if tensor in op.tensors)

    def sizes(self, dim: str) -> tuple[int, ...]:
        """Tile sizes of a loop; the last, N, is no loop at all."""
        size = self.graph.dims[dim]
        return tuple(t for t in range(1, size + 1) if self.tiles == "integer" or size % t == 0)

    def granules(self, dim: str) -> tuple[int, ...]:
        """Sizes that streaming may cut a tile to: those of a loop, and the extents of the arrays."""
        size, array = self.graph.dims[dim], self.accelerator.array
        found = set(self.sizes(dim))
        for count in divisors(array.count):
            found |= {count, *(count * side for shape in array.shapes for side in shape)}
        return tuple(sorted(value for value in found if value <= size))


def divisors(value: int) -> tuple[int, ...]:
    """The divisors of a number, ascending.

    >>> divisors(6)
    (1, 2, 3, 6)
    """
    return tuple(part for part in range(1, value + 1) if value % part == 0)


@dataclass(frozen=True, slots=True)
class Paths:
    """The loops above each op.

    Dicts are by indices of ops and dims: ``tile[i, d]`` (N for no loop), ``steps[i, d]`` = ⌈N/tile⌉,
    ``loop[i, d]`` whether there is one, ``share[i, j, d]`` whether it is the same loop, ``before[i, j]``
    whether op i runs before op j.
    """

    tile: Mapping[tuple[int, str], Quantity]
    steps: Mapping[tuple[int, str], Quantity]
    loop: Mapping[tuple[int, str], Switch]
    share: Mapping[tuple[int, int, str], Switch]
    before: Mapping[tuple[int, int], Literal]


def add_paths(terms: Terms, facts: GroupFacts) -> Paths:
    """Variables of the loops of a group, with what §5 asks of them."""
    tile: dict[tuple[int, str], Quantity] = {}
    steps: dict[tuple[int, str], Quantity] = {}
    loop: dict[tuple[int, str], Switch] = {}
    for i, op in enumerate(facts.ops):
        for dim in facts.dims:
            _add_loop(terms, facts, i, dim, _may_loop(facts, op, dim), tile, steps, loop)
    share = _add_sharing(terms, facts, tile, loop)
    before = _add_order(terms, facts)
    paths = Paths(tile, steps, loop, share, before)
    _add_private_loops(terms, facts, paths)
    _add_neighbours(terms, facts, paths)
    return paths


def _may_loop(facts: GroupFacts, op: Op, dim: str) -> bool:
    """Whether a loop may stand above an op: over a dim that it lacks it recomputes the op."""
    return dim in facts.graph.op_dims(op) or (facts.recompute and op.output not in facts.roles.leaving)


def _add_loop(
    terms: Terms,
    facts: GroupFacts,
    i: int,
    dim: str,
    allowed: bool,
    tile: dict[tuple[int, str], Quantity],
    steps: dict[tuple[int, str], Quantity],
    loop: dict[tuple[int, str], Switch],
) -> None:
    size = facts.graph.dims[dim]
    if not allowed:
        tile[i, dim], steps[i, dim], loop[i, dim] = number(size), number(1), False
        return
    tile[i, dim] = terms.choose(f"tile {i} {dim}", facts.sizes(dim))
    steps[i, dim], looped = terms.table(
        [f"steps {i} {dim}", f"loop {i} {dim}"],
        [tile[i, dim]],
        lambda t: (ceil_div(size, t), int(t < size)),
    )
    loop[i, dim] = switch(looped)


def _add_sharing(
    terms: Terms,
    facts: GroupFacts,
    tile: Mapping[tuple[int, str], Quantity],
    loop: Mapping[tuple[int, str], Switch],
) -> dict[tuple[int, int, str], Switch]:
    """Shared loops: of one tile size, transitive, and never over a reduction that its reader waits for."""
    share: dict[tuple[int, int, str], Switch] = {}
    count = len(facts.ops)
    for i, j in combinations(range(count), 2):
        for dim in facts.dims:
            both = loop[i, dim] is not False and loop[j, dim] is not False
            literal: Switch = False
            if both and not _unfinished(facts, i, j, dim):
                literal = terms.literal(f"share {i} {j} {dim}")
                terms.model.add_implication(literal, loop[i, dim])
                terms.model.add(tile[i, dim].term == tile[j, dim].term).only_enforce_if(literal)
            share[i, j, dim] = share[j, i, dim] = literal
    for i, j, k in permutations(range(count), 3):
        for dim in facts.dims:
            terms.clause(negated(share[i, j, dim]), negated(share[j, k, dim]), share[i, k, dim])
    return share


def _unfinished(facts: GroupFacts, i: int, j: int, dim: str) -> bool:
    """Whether a loop above two ops would let one see what the other has not finished (§5)."""
    first, second = facts.ops[i], facts.ops[j]
    return any(
        maker.output in reader.reads and dim in facts.graph.reduction_dims(maker)
        for maker, reader in ((first, second), (second, first))
    )


def _add_order(terms: Terms, facts: GroupFacts) -> dict[tuple[int, int], Literal]:
    before: dict[tuple[int, int], Literal] = {}
    count = len(facts.ops)
    for i, j in combinations(range(count), 2):
        fixed = facts.ops[i].output in facts.ops[j].reads
        before[i, j] = True if fixed else terms.literal(f"before {i} {j}")
        before[j, i] = negated(before[i, j])
    for i, j, k in permutations(range(count), 3):
        terms.clause(negated(before[i, j]), negated(before[j, k]), before[i, k])
    return before


def _add_private_loops(terms: Terms, facts: GroupFacts, paths: Paths) -> None:
    """A loop over a dim that an op lacks is shared with one that has it; alone it would be for nothing."""
    for i, op in enumerate(facts.ops):
        for dim in facts.dims:
            if dim in facts.graph.op_dims(op) or paths.loop[i, dim] is False:
                continue
            having = [j for j, other in enumerate(facts.ops) if dim in facts.graph.op_dims(other)]
            terms.clause(negated(paths.loop[i, dim]), *(paths.share[i, j, dim] for j in having))


def _add_neighbours(terms: Terms, facts: GroupFacts, paths: Paths) -> None:
    """No op runs between two that share a loop which it does not share."""
    for i, k, j in permutations(range(len(facts.ops)), 3):
        for dim in facts.dims:
            terms.clause(
                negated(paths.share[i, j, dim]),
                paths.share[i, k, dim],
                negated(paths.before[i, k]),
                negated(paths.before[k, j]),
            )


def add_nesting(terms: Terms, facts: GroupFacts, paths: Paths, prefixes: Mapping[int, list[Prefix]]) -> None:
    """Sets of loops of one path are nested, as those of two paths are on the loops they share.

    Parameters
    ----------
    terms : Terms
        The model.
    facts : GroupFacts
        The group.
    paths : Paths
        Its loops.
    prefixes : mapping of int to list of Prefix
        Per op the sets of loops above its holds; what it shares with other ops is added here.
    """
    count = len(facts.ops)
    everything = {
        i: [
            *prefixes[i],
            *({dim: paths.share[i, j, dim] for dim in facts.dims} for j in range(count) if j != i),
        ]
        for i in range(count)
    }
    for i in range(count):
        for left, right in combinations(everything[i], 2):
            _add_nested(terms, facts, left, right, dict.fromkeys(facts.dims, True))
    for i, j in combinations(range(count), 2):
        common = {dim: paths.share[i, j, dim] for dim in facts.dims}
        for left in everything[i]:
            for right in everything[j]:
                _add_nested(terms, facts, left, right, common)


def _add_nested(terms: Terms, facts: GroupFacts, left: Prefix, right: Prefix, common: Prefix) -> None:
    """One of two sets of loops contains the other, as far as the common loops go."""
    if left is right:
        return
    live = [dim for dim in facts.dims if common[dim] is not False]
    if all(left[dim] is False for dim in live) or all(right[dim] is False for dim in live):
        return
    inner = terms.literal("inner")
    for dim in live:
        terms.clause(~inner, negated(left[dim]), negated(common[dim]), right[dim])
        terms.clause(inner, negated(right[dim]), negated(common[dim]), left[dim])
