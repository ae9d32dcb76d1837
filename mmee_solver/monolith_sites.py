"""Holds of a group as CP-SAT variables: at which loop, for which ops, alive where (design §7.3, §7.4).

The hold that serves a tensor to an op stands below a set of the op's loops. Ops whose holds are the
same hold have the same set. Facts that only cost something (alive, leads) are implied one way: the
solver may set them without need, but never gains by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, permutations

from mmee_solver.monolith_paths import GroupFacts, Paths, Prefix, add_nesting
from mmee_solver.monolith_terms import Quantity, Switch, Terms, flag, negated, number, switch
from mmee_solver.roles import RowStep
from mmee_solver.units import ceil_div


@dataclass(frozen=True, slots=True)
class Sites:
    """Where tensors are held.

    By tensor and index of an op that uses it: ``above`` the loops above its hold, ``leads`` whether
    the op stands for all that share the hold, ``stream`` whether its tile is cut to granules. By
    tensor and two ops: ``same`` whether they share a hold, ``alive`` whether the hold of the first is
    alive while the second runs. ``granule[i, d]`` is the finest tile of op i, ``online_steps`` gives,
    per row step, the steps of its axis above its hold.
    """

    above: Mapping[tuple[str, int], Prefix]
    leads: Mapping[tuple[str, int], Switch]
    stream: Mapping[tuple[str, int], Switch]
    same: Mapping[tuple[str, int, int], Switch]
    alive: Mapping[tuple[str, int, int], Switch]
    granule: Mapping[tuple[int, str], Quantity]
    held_tile: Mapping[tuple[str, int, str], Quantity]
    held_steps: Mapping[tuple[str, int, str], Quantity]
    online_steps: Mapping[RowStep, Quantity]


def add_sites(terms: Terms, facts: GroupFacts, paths: Paths) -> Sites:
    """Variables of the holds of a group, with the rules of §5 and §7."""
    above, same = _add_holds(terms, facts, paths)
    alive = _add_lifetimes(terms, facts, paths, above, same)
    leads = _add_leaders(terms, facts, same)
    prefixes: dict[int, list[Prefix]] = {i: [] for i in range(len(facts.ops))}
    for (_, i), prefix in above.items():
        prefixes[i].append(prefix)
    add_nesting(terms, facts, paths, prefixes)
    stream, granule = _add_streaming(terms, facts, paths, above, same)
    held_tile: dict[tuple[str, int, str], Quantity] = {}
    held_steps: dict[tuple[str, int, str], Quantity] = {}
    for (tensor, i), prefix in above.items():
        for dim in facts.dims:
            held_steps[tensor, i, dim] = _held_steps(terms, paths, i, dim, prefix)
            if dim in facts.graph.tensors[tensor].dims:
                cut = (flag(stream[tensor, i]), granule[i, dim])
                held_tile[tensor, i, dim] = _held_tile(terms, facts, paths, i, dim, prefix, cut)
    online = _add_rows(terms, facts, paths, above, stream, granule)
    return Sites(above, leads, stream, same, alive, granule, held_tile, held_steps, online)


def _add_holds(
    terms: Terms, facts: GroupFacts, paths: Paths
) -> tuple[dict[tuple[str, int], Prefix], dict[tuple[str, int, int], Switch]]:
    """Loops above every hold, and who shares one."""
    above: dict[tuple[str, int], Prefix] = {}
    same: dict[tuple[str, int, int], Switch] = {}
    for tensor in dict.fromkeys(name for op in facts.ops for name in op.tensors):
        users = facts.users(tensor)
        internal = tensor in facts.roles.internal
        lowest = _lowest(terms, facts, paths, users) if internal else {}
        for i in users:
            above[tensor, i] = lowest if internal else _add_prefix(terms, facts, paths, tensor, i)
        for i, j in combinations(users, 2):
            literal: Switch = True if internal else terms.literal(f"same {tensor} {i} {j}")
            same[tensor, i, j] = same[tensor, j, i] = literal
            if not internal:
                _add_same(terms, facts, paths, tensor, (i, j), above, literal)
        for i, j, k in permutations(users, 3):
            terms.clause(negated(same[tensor, i, j]), negated(same[tensor, j, k]), same[tensor, i, k])
    return above, same


def _lowest(terms: Terms, facts: GroupFacts, paths: Paths, users: tuple[int, ...]) -> Prefix:
    """Loops above the lowest node over some ops: those that all of them share."""
    if len(users) == 2:
        return {dim: paths.share[users[0], users[1], dim] for dim in facts.dims}
    found: dict[str, Switch] = {}
    for dim in facts.dims:
        parts = [paths.share[users[0], j, dim] for j in users[1:]]
        if any(part is False for part in parts):
            found[dim] = False
            continue
        literal = terms.literal(f"lowest {dim}")
        for part in parts:
            terms.clause(~literal, part)
        terms.clause(literal, *(negated(part) for part in parts))
        found[dim] = literal
    return found


def _add_prefix(terms: Terms, facts: GroupFacts, paths: Paths, tensor: str, i: int) -> Prefix:
    prefix: dict[str, Switch] = {}
    for dim in facts.dims:
        prefix[dim] = False
        if paths.loop[i, dim] is not False:
            prefix[dim] = terms.literal(f"above {tensor} {i} {dim}")
            terms.clause(negated(prefix[dim]), paths.loop[i, dim])
    return prefix


def _add_same(
    terms: Terms,
    facts: GroupFacts,
    paths: Paths,
    tensor: str,
    pair: tuple[int, int],
    above: Mapping[tuple[str, int], Prefix],
    same: Switch,
) -> None:
    """One hold for two ops stands above what they do not share; one above a shared loop serves both."""
    i, j = pair
    for dim in facts.dims:
        shared, first, second = paths.share[i, j, dim], above[tensor, i][dim], above[tensor, j][dim]
        terms.clause(negated(same), negated(first), second)
        terms.clause(negated(same), negated(second), first)
        terms.clause(negated(same), negated(first), shared)
        terms.clause(negated(shared), first, same)
        terms.clause(negated(shared), second, same)


def _add_lifetimes(
    terms: Terms,
    facts: GroupFacts,
    paths: Paths,
    above: Mapping[tuple[str, int], Prefix],
    same: Mapping[tuple[str, int, int], Switch],
) -> dict[tuple[str, int, int], Switch]:
    """Which holds are alive while another op runs.

    A hold is alive while every op runs that is below a loop which stands below the hold, and from
    the first op that it serves to the last. The same hold is alive for all that it serves.
    """
    alive: dict[tuple[str, int, int], Switch] = {}
    for tensor, i in above:
        users = facts.users(tensor)
        for j in range(len(facts.ops)):
            if j == i:
                continue
            literal: Switch = terms.literal(f"alive {tensor} {i} {j}")
            alive[tensor, i, j] = literal
            for dim in facts.dims:
                terms.clause(literal, negated(paths.share[i, j, dim]), above[tensor, i][dim])
            if j in users:
                terms.clause(literal, negated(same[tensor, i, j]))
            for k in users:
                if k not in (i, j):
                    served = negated(same[tensor, i, k])
                    terms.clause(literal, served, negated(paths.before[i, j]), negated(paths.before[j, k]))
                    terms.clause(literal, served, negated(paths.before[k, j]), negated(paths.before[j, i]))
    for (tensor, i, j), literal in alive.items():
        for k in facts.users(tensor):
            if k not in (i, j):
                terms.clause(literal, negated(same[tensor, i, k]), negated(alive[tensor, k, j]))
    for tensor in dict.fromkeys(tensor for tensor, _ in above):
        for i, j, k in permutations(facts.users(tensor), 3):
            _add_last_use(terms, facts, paths, (tensor, i, j, k), above, same, alive)
    return alive


def _add_last_use(
    terms: Terms,
    facts: GroupFacts,
    paths: Paths,
    key: tuple[str, int, int, int],
    above: Mapping[tuple[str, int], Prefix],
    same: Mapping[tuple[str, int, int], Switch],
    alive: Mapping[tuple[str, int, int], Switch],
) -> None:
    """A hold of a list lasts to the last use in the list; a loop of one step can end it before.

    Ops i and j share a hold in the list where they part, and op k of the same list reads the tensor from
    a hold of its own. Then k does not run between them; if it runs after both, they stand in a loop of
    one step, below which the hold is, and whatever else one of them shares with k is alive for both.
    """
    tensor, i, j, k = key
    if same[tensor, i, k] is True:
        return
    excuses: list[Switch] = []
    for dim in facts.dims:
        deeper, outside = terms.literal("deeper"), terms.literal("outside")
        terms.clause(~deeper, paths.share[i, j, dim])
        terms.clause(~deeper, negated(above[tensor, i][dim]))
        terms.clause(~outside, above[tensor, i][dim])
        terms.clause(~outside, negated(paths.share[i, k, dim]))
        excuses += [deeper, outside]
    apart = [negated(same[tensor, i, j]), same[tensor, i, k], negated(paths.before[i, k]), *excuses]
    terms.clause(*apart, negated(paths.before[k, j]))
    ends = terms.literal(f"ends {tensor} {i} {j}")
    terms.clause(*apart, negated(paths.before[j, k]), ends)
    for other in dict.fromkeys(name for name, _ in above):
        if other != tensor:
            for one, two in ((i, j), (j, i)):
                if (other, one, k) in same:
                    terms.clause(~ends, negated(same[other, one, k]), alive[other, one, two])


def _add_leaders(
    terms: Terms, facts: GroupFacts, same: Mapping[tuple[str, int, int], Switch]
) -> dict[tuple[str, int], Switch]:
    """The first op of those that share a hold stands for it."""
    leads: dict[tuple[str, int], Switch] = {}
    for tensor in dict.fromkeys(name for op in facts.ops for name in op.tensors):
        users = facts.users(tensor)
        for position, i in enumerate(users):
            earlier = [same[tensor, j, i] for j in users[:position]]
            if not earlier or any(one is True for one in earlier):
                leads[tensor, i] = not earlier
                continue
            leads[tensor, i] = terms.literal(f"leads {tensor} {i}")
            terms.clause(leads[tensor, i], *earlier)
    return leads


def _add_streaming(
    terms: Terms,
    facts: GroupFacts,
    paths: Paths,
    above: Mapping[tuple[str, int], Prefix],
    same: Mapping[tuple[str, int, int], Switch],
) -> tuple[dict[tuple[str, int], Switch], dict[tuple[int, str], Quantity]]:
    """Granules: further loops directly above the innermost hold of an op, over dims of its tensor."""
    stream: dict[tuple[str, int], Switch] = {}
    granule: dict[tuple[int, str], Quantity] = {}
    for i, op in enumerate(facts.ops):
        for tensor in op.tensors:
            stream[tensor, i] = False
            if tensor in facts.roles.internal or not set(facts.dims) & set(facts.graph.tensors[tensor].dims):
                continue
            stream[tensor, i] = literal = terms.literal(f"stream {tensor} {i}")
            for j in facts.users(tensor):
                if j != i:
                    terms.clause(~literal, negated(same[tensor, i, j]))
            for dim in facts.dims:  # it stands below every other loop
                terms.clause(~literal, negated(paths.loop[i, dim]), above[tensor, i][dim])
        streams = [stream[tensor, i] for tensor in op.tensors]
        terms.model.add_at_most_one(one for one in streams if one is not False)
        for dim in facts.dims:
            tile = paths.tile[i, dim]
            ways = [stream[t, i] for t in op.tensors if dim in facts.graph.tensors[t].dims]
            if not any(way is not False for way in ways):
                granule[i, dim] = tile
                continue
            granule[i, dim] = terms.choose(f"granule {i} {dim}", (*facts.granules(dim), *tile.values))
            (cut,) = terms.table(
                [f"cut {i} {dim}"],
                [tile, granule[i, dim]],
                lambda t, g: (int(g < t),) if g <= t else None,
            )
            terms.clause(negated(switch(cut)), *ways)
    return stream, granule


def _held_steps(terms: Terms, paths: Paths, i: int, dim: str, prefix: Prefix) -> Quantity:
    """Steps of a dim's loop, if it stands above the hold; else 1."""
    if prefix[dim] is False:
        return number(1)
    return terms.derived(
        "held steps", [flag(prefix[dim]), paths.steps[i, dim]], lambda above, n: n if above else 1
    )


def _held_tile(
    terms: Terms,
    facts: GroupFacts,
    paths: Paths,
    i: int,
    dim: str,
    prefix: Prefix,
    cut: tuple[Quantity, Quantity],
) -> Quantity:
    """Full tile of a dim at a hold: its granule, the tile of the loop above, or all of it."""
    size = facts.graph.dims[dim]
    streamed, granule = cut
    if streamed.constant:
        if prefix[dim] is False:
            return number(size)
        return terms.derived(
            "held tile", [flag(prefix[dim]), paths.tile[i, dim]], lambda above, t: t if above else size
        )
    inputs = [streamed, flag(prefix[dim]), paths.tile[i, dim], granule]
    return terms.derived(
        "held tile",
        inputs,
        lambda cut, above, t, g: None if g > t else g if cut else t if above else size,
    )


def fine_steps(size: int, tile: int, granule: int) -> int:
    """Tiles of a dim cut by a loop and then by a granule.

    >>> fine_steps(7, 4, 3), fine_steps(7, 4, 4)
    (3, 2)
    """
    whole, rest = divmod(size, tile)
    return whole * ceil_div(tile, granule) + ceil_div(rest, granule)


def _add_rows(
    terms: Terms,
    facts: GroupFacts,
    paths: Paths,
    above: Mapping[tuple[str, int], Prefix],
    stream: Mapping[tuple[str, int], Switch],
    granule: Mapping[tuple[int, str], Quantity],
) -> dict[RowStep, Quantity]:
    """Steps of each row's axis above its hold; a step that cannot run online has its rows whole."""
    found: dict[RowStep, Quantity] = {}
    names = [op.name for op in facts.ops]
    for row in facts.rows:
        axis, i = row.step.axis, names.index(row.consumer)
        if axis not in facts.dims:
            found[row] = number(1)
            continue
        prefix = above[row.tensor, i]
        maker = facts.graph.producer(row.tensor)
        if row.tensor in facts.roles.internal and maker is not None:
            terms.clause(negated(paths.share[names.index(maker), i, axis]), prefix[axis])
        size = facts.graph.dims[axis]
        found[row] = terms.derived(
            f"online {row.tensor} {i}",
            [flag(stream[row.tensor, i]), flag(prefix[axis]), paths.tile[i, axis], granule[i, axis]],
            lambda cut, looped, t, g, size=size, whole=not row.deferrable: _online_steps(
                size, whole, cut, looped, t, g
            ),
        )
    return found


def _online_steps(size: int, whole: bool, cut: int, looped: int, tile: int, granule: int) -> int | None:
    steps = fine_steps(size, tile, granule) if cut else ceil_div(size, tile) if looped else 1
    return None if whole and steps > 1 else steps
