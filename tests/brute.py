"""Brute force written straight from design §5–§7, for tiny sizes. It shares no code with the engine.

Everything in the declared space of a group is tried: order of ops, order trees, shared loops, tile
sizes, depth of every hold, private loops, streaming granules, array configurations. The only short
cuts: a leaf's options are listed once per context, options that are no better in any figure
than another one are forgotten (all figures add up or take a maximum, so they can never be needed),
and a leaf has no loop below its last hold (it would only cut finer; a property test shows for the
cost model that finer never costs less).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product
from math import ceil, prod
from typing import Any

import numpy as np

from mmee_solver.accelerator import Accelerator
from mmee_solver.roles import group_roles, row_steps
from mmee_solver.units import exact
from mmee_solver.workload import Graph, Op, vector_ops_per_element

Pieces = dict[str, list[int]]
# Figures of an option: peak bytes, then what adds up.
PEAK, READ, WRITE, BUF_READ, BUF_WRITE, CYCLES, VECTOR, FREE, MACS = range(9)
SIZE = 9


def split(pieces: list[int], tile: int) -> list[int]:
    found = []
    for extent in pieces:
        while extent > 0:
            found.append(min(tile, extent))
            extent -= tile
    return found


@dataclass
class Space:
    graph: Graph
    acc: Accelerator
    ops: tuple[Op, ...]
    tiles: str
    recompute: bool
    resident: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        names = [op.name for op in self.ops]
        self.roles = group_roles(self.graph, names)
        self.rows = row_steps(self.graph, names)
        self.cache: dict[Any, Any] = {}

    def sizes(self, dim: str, granule: bool = False) -> list[int]:
        n = self.graph.dims[dim]
        if self.tiles == "integer":
            return list(range(1, n + 1))
        found = {t for t in range(1, n + 1) if n % t == 0}
        if granule:
            for rows, cols in self.acc.array.shapes:
                for a, b, c in spread(self.acc.array.count):
                    found |= {s for s in (rows * a, cols * b, c) if s <= n}
        return sorted(found)


def spread(count: int) -> list[tuple[int, int, int]]:
    r = range(1, count + 1)
    return [(a, b, c) for a in r for b in r for c in r if a * b * c == count]


def tile_bytes(space: Space, tensor: str, pieces: Pieces) -> int:
    if tensor in space.resident:
        return 0
    spec = space.graph.tensors[tensor]
    streamed = tensor not in space.roles.internal or tensor in space.roles.leaving
    copies = 2 if streamed and space.acc.buffer.double_buffered else 1
    return copies * -(-spec.bits * prod(max(pieces[d]) for d in spec.dims) // 8)


def visits(space: Space, tensor: str, pieces: Pieces) -> int:
    own = space.graph.tensors[tensor].dims
    return prod(len(p) for d, p in pieces.items() if d not in own)


def rows_into(space: Space, tensor: str) -> list[int]:
    return [i for i, row in enumerate(space.rows) if space.graph.op(row.consumer).output == tensor]


def add_hold(space: Space, figures: list[int], tensor: str, pieces: Pieces, online: frozenset[int]) -> None:
    """Occupancy and traffic of one hold, statistics included."""
    g, roles = space.graph, space.roles
    v, bits = visits(space, tensor, pieces), g.bits(tensor)
    figures[PEAK] += tile_bytes(space, tensor, pieces)
    stats = [space.rows[i].rows for i in rows_into(space, tensor) if i in online]
    leaves = tensor not in roles.internal
    for rows in stats:
        twice = 2 if space.acc.buffer.double_buffered and leaves and v > 1 else 1
        whole = tensor in space.resident
        figures[PEAK] += twice * 8 * prod(g.dims[d] if whole else max(pieces[d]) for d in rows)
    if tensor in space.resident:
        return
    if tensor in roles.inputs:
        figures[READ] += -(-bits * v // 8)
    elif not leaves:
        if tensor in roles.leaving:
            figures[WRITE] += -(-bits // 8)
    else:
        extra = sum(64 * prod(g.dims[d] for d in rows) for rows in stats) * (v - 1)
        figures[READ] += -(-(bits * (v - 1) + extra) // 8)
        figures[WRITE] += -(-(bits * v + extra) // 8)


def add_prologue(space: Space, figures: list[int], op: Op, tensor: str, pieces: Pieces) -> None:
    for step in op.prologue:
        if step.tensor == tensor:
            work = visits(space, tensor, pieces) * space.graph.elements(tensor)
            figures[VECTOR] += step.vector_ops * work


def add_online(space: Space, figures: list[int], index: int, steps: int, rec: int) -> None:
    row = space.rows[index]
    op = space.graph.op(row.consumer)
    made = rec * space.graph.elements(op.output)
    if row.step.kind == "normalize":
        figures[VECTOR] += made
        return
    if space.acc.vector.rescale == "add":
        figures[FREE] += made * (steps - 1)
        return
    figures[VECTOR] += made * (steps - 1)
    bits = made * (steps - 1) * space.graph.tensors[op.output].bits
    figures[BUF_READ] += bits
    figures[BUF_WRITE] += bits


def op_options(space: Space, op: Op, pieces: Pieces, rec: int) -> list[list[int]]:
    """Figures of computing an op, for every array configuration that another one does not beat."""
    key = (op.name, rec, *(tuple(sorted(pieces[d])) for d in space.graph.op_dims(op)))
    if key not in space.cache:
        found = undominated(all_options(space, op, pieces, rec))
        space.cache[key] = [[int(value) for value in row] for row in found]
    return space.cache[key]


def all_options(space: Space, op: Op, pieces: Pieces, rec: int) -> list[list[int]]:
    g = space.graph
    dims = g.op_dims(op)
    reduction = [d for d in dims if d not in g.tensors[op.output].dims]
    base = [0] * SIZE
    made = rec * g.elements(op.output)
    base[VECTOR] = sum(s.vector_ops for s in op.epilogue) * made
    base[BUF_READ] = sum(g.tensors[t].bits for t in op.operands) * made
    if op.kind != "einsum" or not reduction:
        base[VECTOR] += vector_ops_per_element(op.kind, op.function) * made
        base[BUF_READ] += sum(g.tensors[t].bits for t in op.inputs) * made
        base[BUF_WRITE] += g.tensors[op.output].bits * made
        return [base]
    base[MACS] = rec * prod(g.dims[d] for d in dims)
    found = []
    for shape in space.acc.array.shapes:
        for a, b, c in spread(space.acc.array.count):
            for mapped in permutations(dims, min(len(dims), 3 if c > 1 else 2)):
                if (c > 1 and len(mapped) < 3) or (len(mapped) < 2 and b > 1):
                    continue
                s = dict(zip(mapped, (shape[0] * a, shape[1] * b, c), strict=False))
                for x in [d for d in dims if d not in mapped] or list(dims):
                    if keeps(g, op, x, reduction) in space.acc.array.stationarity:
                        found.append(on_array(space, op, pieces, rec, base, s, x, shape))
    return found


def keeps(g: Graph, op: Op, x: str, reduction: Sequence[str]) -> str:
    lacking = [i for i, t in enumerate(op.inputs) if x not in g.tensors[t].dims]
    if x in reduction or not lacking:
        return "output"
    return "weight" if lacking[0] else "input"


def on_array(
    space: Space,
    op: Op,
    pieces: Pieces,
    rec: int,
    base: list[int],
    s: dict[str, int],
    x: str,
    shape: tuple[int, int],
) -> list[int]:
    g = space.graph
    dims = g.op_dims(op)
    passes = {d: sum(-(-e // s.get(d, 1)) for e in pieces[d]) for d in dims}
    walked = {**passes, x: len(pieces[x])}
    one = list(base)
    one[CYCLES] += rec * prod(passes.values())
    if space.acc.array.pipeline == "systolic":
        inner = x not in g.tensors[op.output].dims
        each = shape[0] + shape[1] - 2 + (0 if inner else shape[0])
        one[CYCLES] += rec * prod(walked.values()) * each
    for t in op.inputs:
        times = prod(walked[d] for d in dims if d not in g.tensors[t].dims)
        one[BUF_READ] += rec * g.bits(t) * times
    times = prod(walked[d] for d in dims if d not in g.tensors[op.output].dims)
    one[BUF_WRITE] += rec * g.bits(op.output) * times
    one[BUF_READ] += rec * g.bits(op.output) * (times - 1)
    return one


def undominated(rows: list[list[int]]) -> np.ndarray:
    table = np.unique(np.array(rows, dtype=np.int64), axis=0)
    kept = table[:1]
    for row in table[1:]:
        if not (kept <= row).all(axis=1).any():
            kept = np.concatenate([kept, row[None]])
    return kept


def leaf_options(
    space: Space, leaf: int, above: dict[str, int], private: tuple[str, ...], before: frozenset[int]
) -> dict[frozenset[int], np.ndarray]:
    """Every private part of one op: figures by the set of row steps that run online."""
    key = (leaf, tuple(sorted(above.items())), private, before)
    if key in space.cache:
        return space.cache[key]
    op = space.ops[leaf]
    outer = shared_pieces(space, above)
    rec = prod(len(outer[d]) for d in above if d not in space.graph.op_dims(op))
    free = [d for d in space.graph.op_dims(op) if d not in above and space.graph.dims[d] > 1]
    found: dict[frozenset[int], list[list[int]]] = {}
    for count in range(len(free) + 1):
        for order in permutations(free, count):
            for tiles in product(*(space.sizes(d)[:-1] for d in order)):
                loops = list(zip(order, tiles, strict=True))
                for depths in product(range(count + 1), repeat=len(private)):
                    if max(depths, default=0) < count:
                        continue
                    for items in streamed(space, op, outer, loops, private, depths):
                        option = run_leaf(space, op, outer, items, before, rec)
                        if option is not None:
                            online, figures = option
                            found.setdefault(online, []).extend(figures)
    result = {online: undominated(rows) for online, rows in found.items()}
    space.cache[key] = result
    return result


Item = tuple[str, Any]


def streamed(
    space: Space,
    op: Op,
    outer: Pieces,
    loops: list[tuple[str, int]],
    private: tuple[str, ...],
    depths: tuple[int, ...],
) -> Iterator[list[Item]]:
    """Path items (hold or loop), with every way to stream the innermost private hold."""
    deepest = max(depths, default=-1)
    items: list[Item] = []
    tile = {d: max(p) for d, p in outer.items()}
    for depth in range(len(loops) + 1):
        items += [("hold", t) for t, k in zip(private, depths, strict=True) if k == depth < deepest]
        if depth == deepest:
            break
        if depth < len(loops):
            items.append(("loop", loops[depth]))
            tile[loops[depth][0]] = min(tile[loops[depth][0]], loops[depth][1])
    rest: list[Item] = [("loop", loop) for loop in loops[max(deepest, 0) :]]
    if deepest < 0:
        yield rest
        return
    last = [t for t, k in zip(private, depths, strict=True) if k == deepest]
    for t in last:
        own = space.graph.tensors[t].dims
        choices = [[None, *(g for g in space.sizes(d, granule=True) if g < tile[d])] for d in own]
        for grains in product(*choices):
            cuts: list[Item] = [("loop", (d, g)) for d, g in zip(own, grains, strict=True) if g is not None]
            yield [*items, *(("hold", o) for o in last if o != t), *cuts, ("hold", t), *rest]


def run_leaf(
    space: Space, op: Op, outer: Pieces, items: list[Item], before: frozenset[int], rec: int
) -> tuple[frozenset[int], list[list[int]]] | None:
    pieces = dict(outer)
    online = set(before)
    where: list[tuple[str, Pieces]] = []
    private: list[tuple[int, int]] = []
    for kind, what in items:
        if kind == "loop":
            pieces = {**pieces, what[0]: split(pieces[what[0]], what[1])}
            continue
        where.append((what, pieces))
        for i, row in enumerate(space.rows):
            if row.consumer == op.name and row.tensor == what and what in space.roles.inputs:
                steps = len(pieces[row.step.axis])
                if steps > 1:
                    if not row.deferrable:
                        return None
                    online.add(i)
                    private.append((i, steps))
    figures = [0] * SIZE
    for tensor, at in where:
        add_hold(space, figures, tensor, at, frozenset(online))
        add_prologue(space, figures, op, tensor, at)
    for i, steps in private:
        add_online(space, figures, i, steps, rec)
    options = op_options(space, op, pieces, rec)
    return frozenset(online), [[a + b for a, b in zip(figures, o, strict=True)] for o in options]


def shared_pieces(space: Space, above: dict[str, int]) -> Pieces:
    pieces = {d: [n] for d, n in space.graph.dims.items()}
    for dim, tile in above.items():
        pieces[dim] = split(pieces[dim], tile)
    return pieces


@dataclass(frozen=True)
class Node:
    """Loops (dim, tile) over children: leaf numbers or nodes. ``leaves`` are all leaves below, in order."""

    loops: tuple[tuple[str, int], ...]
    children: tuple[Node | int, ...]
    leaves: tuple[int, ...]


def divisions(leaves: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Ways to cut a run of leaves into runs."""
    if not leaves:
        yield ()
    for count in range(1, len(leaves) + 1):
        for rest in divisions(leaves[count:]):
            yield (leaves[:count], *rest)


def trees(space: Space, leaves: tuple[int, ...], above: frozenset[str], root: bool) -> Iterator[Node]:
    """Every node over a run of leaves with tile sizes, legal or not."""
    if len(leaves) == 1:
        yield Node((), leaves, leaves)
        return
    g = space.graph
    dims = [d for d in dict.fromkeys(d for i in leaves for d in g.op_dims(space.ops[i])) if g.dims[d] > 1]
    dims = [d for d in dims if d not in above and legal(space, leaves, d)]
    for count in range(0 if root or ends(space, leaves) else 1, len(dims) + 1):
        for order in permutations(dims, count):
            for division in divisions(leaves):
                if len(division) < 2:
                    continue
                options = [
                    list(part) if len(part) == 1 else list(trees(space, part, above | set(order), False))
                    for part in division
                ]
                for children in product(*options):
                    for tiles in product(*(space.sizes(d)[:-1] for d in order)):
                        yield Node(tuple(zip(order, tiles, strict=True)), children, leaves)


def ends(space: Space, leaves: tuple[int, ...]) -> bool:
    """Whether a hold in a list of its own (a loop of one step) may end before its tensor's last reader."""
    users = [{i for i, op in enumerate(space.ops) if t in op.tensors} for t in space.graph.tensors]
    return any(len(mine & set(leaves)) > 1 and mine - set(leaves) for mine in users)


def legal(space: Space, leaves: tuple[int, ...], dim: str) -> bool:
    """§5: no reduction dim above an op and a reader of its output; no recomputation of what leaves."""
    g, ops = space.graph, [space.ops[i] for i in leaves]
    for op in ops:
        read = any(op.output in other.reads for other in ops)
        if read and dim in g.reduction_dims(op):
            return False
        if dim not in g.op_dims(op) and (op.output in space.roles.leaving or not space.recompute):
            return False
    for row in space.rows:
        inside = [op.name for op in ops]
        if row.step.axis != dim or row.tensor not in [op.output for op in ops] or row.consumer not in inside:
            continue
        readers = [op.name for op in space.ops if row.tensor in op.reads]
        # the hold is below this loop only if every reader is; else rows would be read unfinished
        if not row.deferrable or not set(readers) <= set(inside):
            return False
    return True


@dataclass(frozen=True)
class Held:
    """A shared hold: tensor, pieces of every dim, leaves that it is alive in and serves."""

    tensor: str
    above: tuple[tuple[str, int], ...]
    alive: tuple[int, ...]
    serves: tuple[int, ...]


def below(child: Node | int) -> tuple[int, ...]:
    return (child,) if isinstance(child, int) else child.leaves


def alive_in(node: Node, users: Sequence[int]) -> tuple[int, ...]:
    """From the first child that uses a tensor of the list to the last."""
    touched = [i for i, child in enumerate(node.children) if set(below(child)) & set(users)]
    return tuple(leaf for child in node.children[touched[0] : touched[-1] + 1] for leaf in below(child))


def covers(
    node: Node | int, tensor: str, users: Sequence[int], above: tuple[tuple[str, int], ...]
) -> Iterator[tuple[Held, ...]]:
    """Ways to hold an external tensor at nodes; users that no hold serves hold it privately."""
    if isinstance(node, int):
        yield ()
        return
    mine = tuple(i for i in node.leaves if i in users)
    if not mine:
        yield ()
        return
    for position in range(len(node.loops)):
        yield (Held(tensor, above + node.loops[:position], node.leaves, mine),)
    inner = above + node.loops
    each = [list(covers(child, tensor, mine, inner)) for child in node.children]
    for start in range(len(node.children)):
        served = tuple(i for child in node.children[start:] for i in below(child) if i in mine)
        if len(served) > 1:
            # children before the hold have their own
            for parts in product(*each[:start]):
                held = tuple(one for part in parts for one in part)
                yield (*held, Held(tensor, inner, alive_in(node, served), served))
    for parts in product(*each):
        yield tuple(held for part in parts for held in part)


def lowest(node: Node, users: Sequence[int], above: tuple[tuple[str, int], ...] = ()) -> Iterator[Held]:
    """The hold of an internal tensor: the list of the lowest node over all of its users."""
    for child in node.children:
        if not isinstance(child, int) and set(users) <= set(child.leaves):
            yield from lowest(child, users, above + node.loops)
            return
    yield Held("", above + node.loops, alive_in(node, users), tuple(users))


def leaf_paths(node: Node, above: tuple[tuple[str, int], ...] = ()) -> Iterator[tuple[int, dict[str, int]]]:
    for child in node.children:
        if isinstance(child, int):
            yield child, dict(above + node.loops)
        else:
            yield from leaf_paths(child, above + node.loops)


def solve(
    graph: Graph,
    acc: Accelerator,
    ops: Sequence[str],
    objective: str,
    tiles: str = "integer",
    recompute: bool = True,
    resident: frozenset[str] = frozenset(),
) -> tuple[Fraction, ...] | None:
    """Least key (value, then energy, latency, peak) of a group; None if nothing fits.

    ``resident`` tensors stay whole in the buffer; the peak has their bytes.
    """
    best: tuple[Fraction, ...] | None = None
    members = tuple(graph.op(name) for name in ops)
    for order in permutations(members):
        if any(later.output in op.reads for i, op in enumerate(order) for later in order[i + 1 :]):
            continue
        space = Space(graph, acc, order, tiles, recompute, resident)
        for tree in trees(space, tuple(range(len(order))), frozenset(), True):
            for key in solve_tree(space, tree, objective):
                if best is None or key < best:
                    best = key
    return best


def solve_tree(space: Space, tree: Node, objective: str) -> Iterator[tuple[Fraction, ...]]:
    names = list(dict.fromkeys(t for op in space.ops for t in op.tensors))
    users = {t: [i for i, op in enumerate(space.ops) if t in op.tensors] for t in names}
    paths = dict(leaf_paths(tree))
    inside = []
    for t in space.roles.internal:
        (found,) = lowest(tree, users[t])
        inside.append(Held(t, found.above, found.alive, found.serves))
    choices = [list(covers(tree, t, users[t], ())) for t in names if t not in space.roles.internal]
    for choice in product(*choices):
        held = inside + [one for part in choice for one in part]
        yield from solve_placed(space, paths, held, objective)


def solve_placed(
    space: Space, paths: dict[int, dict[str, int]], held: list[Held], objective: str
) -> Iterator[tuple[Fraction, ...]]:
    figures = [0] * SIZE
    pieces = [shared_pieces(space, dict(one.above)) for one in held]
    options = []
    for leaf, op in enumerate(space.ops):
        mine = {one.tensor: at for one, at in zip(held, pieces, strict=True) if leaf in one.serves}
        online = {}
        for i, row in enumerate(space.rows):
            if row.consumer == op.name and row.tensor in mine:
                steps = len(mine[row.tensor][row.step.axis])
                if steps > 1 and not row.deferrable:
                    return
                if steps > 1:
                    online[i] = steps
        for t in dict.fromkeys(op.inputs):
            if t in mine:
                add_prologue(space, figures, op, t, mine[t])
        outer = shared_pieces(space, paths[leaf])
        rec = prod(len(outer[d]) for d in paths[leaf] if d not in space.graph.op_dims(op))
        for i, steps in online.items():
            add_online(space, figures, i, steps, rec)
        private = tuple(dict.fromkeys(t for t in op.tensors if t not in mine))
        options.append(leaf_options(space, leaf, paths[leaf], private, frozenset(online)))
    if not all(options):
        return
    kept = sum(-(-space.graph.bits(t) // 8) for t in space.resident)
    for sets in product(*options):
        total, peaks = list(figures), [kept] * len(space.ops)
        everything = frozenset().union(*sets)
        for one, at in zip(held, pieces, strict=True):
            total[PEAK] = 0
            add_hold(space, total, one.tensor, at, everything)
            for leaf in one.alive:
                peaks[leaf] += total[PEAK]
        total[PEAK] = 0
        tables = [options[leaf][chosen] for leaf, chosen in enumerate(sets)]
        yield from best_keys(space, total, peaks, tables, objective)


def best_keys(
    space: Space, total: list[int], peaks: list[int], tables: list[np.ndarray], objective: str
) -> Iterator[tuple[Fraction, ...]]:
    capacity = space.acc.buffer.capacity_bytes
    shifted = []
    for peak, table in zip(peaks, tables, strict=True):
        moved = table.copy()
        moved[:, PEAK] += peak
        shifted.append(moved[moved[:, PEAK] <= capacity])
    if any(len(t) == 0 for t in shifted):
        return
    joined = shifted[0]
    for other in shifted[1:]:
        both = joined[:, None, :] + other[None, :, :]
        both[:, :, PEAK] = np.maximum(joined[:, None, PEAK], other[None, :, PEAK])
        joined = both.reshape(-1, SIZE)
    joined = joined + np.array(total)
    best: tuple[Fraction, ...] | None = None
    for row in np.unique(joined, axis=0):
        key = exact_key(space.acc, [int(value) for value in row], objective)
        if best is None or key < best:
            best = key
    if best is not None:
        yield best


def exact_key(acc: Accelerator, f: list[int], objective: str) -> tuple[Fraction, ...]:
    reads = -(-f[BUF_READ] // 8) + f[WRITE]
    writes = -(-f[BUF_WRITE] // 8) + f[READ]
    energy = (
        f[READ] * exact(acc.dram.read_pj_per_byte)
        + f[WRITE] * exact(acc.dram.write_pj_per_byte)
        + reads * exact(acc.buffer.read_pj_per_byte)
        + writes * exact(acc.buffer.write_pj_per_byte)
        + f[MACS] * (exact(acc.array.mac_pj) + exact(acc.array.register_pj_per_mac))
        + (f[VECTOR] + f[FREE]) * exact(acc.vector.pj_per_op)
    )
    moved = f[READ] + f[WRITE]
    latency = Fraction(
        max(
            f[CYCLES],
            ceil(Fraction(f[VECTOR]) / exact(acc.vector.lanes)),
            ceil(moved * exact(acc.clock_hz) / exact(acc.dram.bandwidth_bytes_per_s)),
            0
            if acc.buffer.bandwidth_bytes_per_cycle is None
            else ceil((reads + writes) / exact(acc.buffer.bandwidth_bytes_per_cycle)),
        )
    )
    peak = Fraction(f[PEAK])
    if objective.startswith("weighted "):  # "weighted 7": energy + 7 · latency
        value = energy + int(objective.split()[1]) * latency
        return value, energy, latency, peak
    return {
        "dram": (Fraction(moved), energy, latency, peak),
        "energy": (energy, latency, peak, Fraction(0)),
        "latency": (latency, energy, peak, Fraction(0)),
        "edp": (energy * latency, energy, latency, peak),
    }[objective]
