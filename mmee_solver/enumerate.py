"""Exact search of one group: from its ops to the best dataflow, or the proof that none is wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, prod

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.arena import Counts
from mmee_solver.bounds import CYCLES, ENERGY, Bounder, Rates
from mmee_solver.cost import Metrics
from mmee_solver.encode import Encoding
from mmee_solver.errors import InfeasibleError
from mmee_solver.incumbent import Incumbent
from mmee_solver.nest import Group
from mmee_solver.objective import Key, Objective
from mmee_solver.program import Pick, Program, group_program
from mmee_solver.search import search
from mmee_solver.tilings import front, tilings
from mmee_solver.trace import trace
from mmee_solver.workload import Graph

Floats = NDArray[np.float64]

__all__ = ["Counts", "GroupResult", "Objective", "SearchOptions", "search_group", "search_program"]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The best dataflow of a group, its cost, and how the search went; None: nothing beats the cutoff.

    With a ``bound``, it is only a dataflow of least traffic: the bound is one of the least additive keys.
    """

    group: Group | None
    metrics: Metrics | None
    counts: Counts = field(compare=False)
    bound: tuple[Fraction, ...] | None = None


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Restrictions of the space: tile sizes ``integer`` or ``divisors``, recomputation or not."""

    tiles: str = "integer"
    recompute: bool = True


def search_group(
    graph: Graph,
    accelerator: Accelerator,
    ops: tuple[str, ...],
    objective: Objective,
    options: SearchOptions | None = None,
    cutoff: Key | None = None,
) -> GroupResult:
    """Find the best dataflow of one group of ops, proved by exhaustion.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    accelerator : Accelerator
        Its buffer bounds the occupancy.
    ops : tuple of str
        The group, in topological order.
    objective : Objective
        What to minimise.
    options : SearchOptions
        Restrictions of the space.
    cutoff : Key, optional
        Only a key below this one is of interest.

    Returns
    -------
    GroupResult
        With group None if nothing beats the cutoff.

    Raises
    ------
    InfeasibleError
        If no tiling fits the buffer; says the least capacity that would do.
    """
    options = options or SearchOptions()
    program = group_program(graph, accelerator, ops, options.recompute, options.tiles == "divisors")
    return search_program(program, accelerator, objective, options.tiles, cutoff)


def search_program(
    program: Program,
    accelerator: Accelerator,
    objective: Objective,
    tiles: str,
    cutoff: Key | None = None,
    beats_split: bool = False,
    floor: tuple[Fraction, ...] | None = None,
    effort: int | None = None,
    least: Group | None = None,
    lazily: bool = False,
) -> GroupResult:
    """The same for a group that is listed and encoded already.

    Tensors that stay resident belong to the program; their bytes count in its peak. ``beats_split`` says
    that the cutoff is the cost of its ops in smaller groups; ``floor`` is a known bound of what adds up
    over groups, at which the search may stop; ``effort`` the most boxes that it may bound (GaveUpError
    beyond). For the dram objective, ``lazily`` stops at the least traffic if that is below the cutoff, and
    ``least`` is a dataflow of least traffic that such a search has found.
    """
    counts = Counts(trees=program.trees, structures=program.structures)
    _check_feasible(program, accelerator)
    best = Incumbent(program.space, accelerator, program.top.weights, objective, cutoff, floor)
    stopped = search(program, best, counts, tiles, beats_split, effort, least, lazily)
    if stopped and best.metrics is not None:
        return GroupResult(best.group, best.metrics, counts, _bound(program, accelerator, best.metrics))
    if best.group is None and cutoff is None:
        raise _nothing_fits(program, accelerator, tiles)
    if best.group is None:
        return GroupResult(None, None, counts)
    return GroupResult(best.group, best.metrics, counts)


def _bound(program: Program, accelerator: Accelerator, metrics: Metrics) -> tuple[Fraction, ...]:
    """A bound of the additive keys under the dram objective, given the least traffic.

    Every op is computed once at least, with the array configuration that is best for it; whatever moves
    costs at least the cheaper direction.
    """
    weights = program.top.weights
    energy, cycles, vectors = 0.0, 0.0, sum(program.space.vector_work)
    for leaf in program.leaves:
        bounder = Bounder(leaf.encoding, tilings(leaf.encoding, "divisors", traffic_only=True))
        energy += bounder.least[ENERGY]
        cycles += bounder.least[CYCLES]
        if leaf.encoding.table is not None:
            energy += leaf.encoding.table.macs * weights.mac
    energy += vectors * weights.vector_op
    # odd bits are rounded up to bytes
    moved = max(0, 8 * (metrics.dram_bytes - 2 * len(program.space.users)))
    energy += moved * min(weights.read_bit, weights.write_bit)
    rates = Rates.of(accelerator)
    slowest = max(cycles, vectors / rates.lanes, moved / 8 * rates.dram_cycles)
    fall = 1 - 1e-9  # sums of float64
    return (
        Fraction(metrics.dram_bytes),
        Fraction(energy * fall) / weights.scale,
        Fraction(floor(slowest * fall)),
    )


def _check_feasible(program: Program, accelerator: Accelerator) -> None:
    """Raise unless some structure fits with all tiles at their least: occupancy grows with every tile."""
    top = _least_bytes(program.top)
    rows = [_least_bytes(leaf.encoding) for leaf in program.leaves]
    best: tuple[int, int, list[int]] | None = None
    for number in reversed(range(len(program.skeletons))):  # those with many loops come last and need least
        # the least over rows of each moment is a bound; the sum of one choice of rows is reached
        options = [rows[i][leaf.layouts[number]] for i, leaf in enumerate(program.leaves)]
        peak, picks = _least_peak(top[number] + program.space.kept_bytes, options)
        if best is None or peak <= best[0]:
            chosen = [int(leaf.layouts[number][p]) for leaf, p in zip(program.leaves, picks, strict=True)]
            best = (peak, number, chosen)
        if best[0] <= accelerator.buffer.capacity_bytes:
            return
    assert best is not None
    raise _infeasible(program, accelerator, *best)


def _nothing_fits(program: Program, accelerator: Accelerator, tiles: str) -> InfeasibleError:
    """The error of a group that needs more than its bound says: statistics that double buffering doubles.

    The least capacity that would do is found by bisection, for what fits a buffer fits a larger one.
    """
    low, high = accelerator.buffer.capacity_bytes, 2 * accelerator.buffer.capacity_bytes
    traffic = Objective("dram")

    def fits(capacity: int) -> bool:
        best = Incumbent(program.space, accelerator.with_buffer(capacity), program.top.weights, traffic, None)
        search(program, best, Counts(), tiles)
        return best.group is not None

    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    detail = "statistics of a revisited output count twice when double-buffered"
    names = " + ".join(op.name for op in program.space.ops)
    return InfeasibleError(names, high, accelerator.buffer.capacity_bytes, detail)


def _least_bytes(encoding: Encoding) -> Floats:
    """Bytes of every structure during each leaf with all tiles at 1, (S, L)."""
    bounder = Bounder(encoding, tilings(encoding, "divisors", traffic_only=True))
    return bounder.occupancy(bounder.all_boxes(), whole_bytes=True)


def _least_peak(top: Floats, options: list[Floats]) -> tuple[int, list[int]]:
    """The least peak over one row per leaf, and the rows: leaf by leaf, undominated sums only."""
    sums, picks = top[None, :], np.zeros((1, 0), dtype=np.int64)
    for rows in options:
        _, first = np.unique(rows, axis=0, return_index=True)
        both = (sums[:, None, :] + rows[first][None, :, :]).reshape(-1, sums.shape[1])
        left, right = np.divmod(np.arange(len(both)), len(first))
        chosen = np.concatenate([picks[left], first[right][:, None]], axis=1)
        order = np.lexsort((*both.T, both.max(axis=1)))
        kept = order[front(both[order])]
        sums, picks = both[kept], chosen[kept]
    best = int(sums.max(axis=1).argmin())
    return int(sums[best].max()), [int(pick) for pick in picks[best]]


def _infeasible(
    program: Program, accelerator: Accelerator, least: int, number: int, rows: list[int]
) -> InfeasibleError:
    graph = program.space.graph
    ones = [1] * max(leaf.encoding.size.shape[1] for leaf in program.leaves)
    group = program.group(number, [1] * program.top.size.shape[1], [Pick(row, ones) for row in rows])
    elements = {
        site.tensor: prod(site.tile(dim) for dim in graph.tensors[site.tensor].dims)
        for site in trace(graph, group.nest).holds
    }
    detail = f"1 element each of {_listed(list(elements))}"
    if any(count > 1 for count in elements.values()):
        parts = [f"{n} {'element' if n == 1 else 'elements'} of {t}" for t, n in elements.items()]
        detail = _listed(parts)
    return InfeasibleError(
        " + ".join(op.name for op in program.space.ops), least, accelerator.buffer.capacity_bytes, detail
    )


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
