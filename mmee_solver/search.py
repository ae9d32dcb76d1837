"""The search loop of one group: bound, contract, split, until every tiling is decided (design §8).

The enumeration is exhaustive. A box leaves it only by a proof: it cannot fit, its bound is not below
the best value, or it is a single tiling that was evaluated. The most promising boxes are split first.
:class:`~mmee_solver.arena.Counts` says how many left by which rule.
"""

from __future__ import annotations

from math import prod

import numpy as np

from mmee_solver.arena import Arena, Counts
from mmee_solver.errors import GaveUpError
from mmee_solver.incumbent import Incumbent
from mmee_solver.nest import Group
from mmee_solver.probe import probe
from mmee_solver.program import Program
from mmee_solver.settle import joinable, settle
from mmee_solver.skeletons import falls_apart
from mmee_solver.split import ROWS, divide
from mmee_solver.tables import Draft, State
from mmee_solver.tighten import bound, drop_configurations, fit

FEW_TOPS = 16  # tops for which joint choices of rows are compared whole
EVERY = 6  # rounds between two such comparisons


def search(
    program: Program,
    best: Incumbent,
    counts: Counts,
    mode: str,
    beats_split: bool = False,
    effort: int | None = None,
    least: Group | None = None,
    lazily: bool = False,
) -> bool:
    """Decide every tiling of a program: the best one, if it beats the incumbent, replaces it.

    The dram objective takes two passes. The first looks at traffic alone; the second for the least
    energy among the tilings that move no more. Gives whether the second is left to do.

    Parameters
    ----------
    program : Program
        The group.
    best : Incumbent
        Holds the objective and the cutoff; takes the result.
    counts : Counts
        Is added to.
    mode : str
        Tile sizes ``integer`` or ``divisors``.
    beats_split : bool
        Whether the cutoff is the cost of the ops in smaller groups, so that what falls apart into such
        groups is of no interest (traffic and energy are no less, see ``falls_apart``).
    effort : int, optional
        Boxes to bound at most.
    least : Group, optional
        A dataflow of least traffic, from an earlier search: the first pass is not needed.
    lazily : bool
        Whether to leave out the second pass if less is moved than the cutoff.

    Raises
    ------
    GaveUpError
        If more boxes would have to be bounded.
    """
    skipped = beats_split and best.objective.name in ("dram", "energy")
    if best.objective.name == "dram":
        cutoff = best.key
        best.start_traffic()
        if least is None:
            _run(Arena.of(program, best, counts, mode, effort), skipped)
        else:
            best.offer(least)
        if lazily and best.metrics is not None:
            return True
        best.end_traffic(cutoff, exact=not program.odd_bits)
        if best.metrics is None:
            return False  # nothing moves as little as the cutoff
    arena = Arena.of(program, best, counts, mode, effort)
    _count(arena)
    _run(arena, skipped)
    return False


def _run(arena: Arena, skipped: bool) -> None:
    best = arena.best
    draft = _everything(arena)
    if skipped:
        draft.select(np.array([not falls_apart(arena.program.space, one) for one in arena.program.skeletons]))
    if not len(draft.tops):
        return
    state, rounds = _evaluate(arena, draft), 0
    while len(state) and not best.done:
        if arena.effort is not None and arena.counts.bounded > arena.effort:
            raise GaveUpError(f"more than {arena.effort} boxes")
        if not best.traffic_only and rounds % 6 == 1:
            drop_configurations(arena, state)
        if rounds & (rounds - 1) == 0 or rounds % 8 == 0:
            probe(arena, state)
        rounds += 1
        order = np.lexsort(state.keys[::-1])
        sizes = sum(np.diff(table.starts(len(state))) for table in state.tables)
        count = max(1, int(np.searchsorted(np.cumsum(np.asarray(sizes)[order]), ROWS)))
        chosen, rest = np.sort(order[:count]), np.sort(order[count:])
        parents = state.take(chosen)
        if not best.traffic_only and len(parents) <= FEW_TOPS and rounds % EVERY == 0:
            parents = joinable(arena, parents)
            arena.counts.pruned_bound += len(chosen) - len(parents)
        children = _evaluate(arena, divide(arena, parents)) if len(parents) else parents
        state = State.joined([state.take(rest), children])
        keep = np.flatnonzero(~best.hopeless(state.keys))
        if len(keep) < len(state):
            arena.counts.pruned_bound += len(state) - len(keep)
            state = state.take(keep)


def _everything(arena: Arena) -> Draft:
    """One top per skeleton with all rows of all leaves: every tiling of every structure."""
    tops = arena.top.all_boxes()
    boxes, top = [], []
    for leaf, bounder in zip(arena.program.leaves, arena.leaves, strict=True):
        top.append(np.repeat(np.arange(len(tops)), [len(found) for found in leaf.layouts]))
        boxes.append(bounder.all_boxes().take(np.concatenate(leaf.layouts)))
    return Draft.of(tops, np.full(len(tops), arena.best.capacity), boxes, top, arena.top.width)


def _count(arena: Arena) -> None:
    """Size of the space: tilings of all structures, and with every choice of configurations."""
    top = arena.top
    lengths = top.tilings.length[top.tilings.number] - top.encoding.shared
    whole = [prod(int(n) for n in row) for row in lengths]
    configs = 1
    for leaf, bounder in zip(arena.program.leaves, arena.leaves, strict=True):
        lengths = bounder.tilings.length[bounder.tilings.number]
        own = [prod(int(n) for n in row) for row in np.where(leaf.encoding.shared, 1, lengths)]
        whole = [n * sum(own[i] for i in found) for n, found in zip(whole, leaf.layouts, strict=True)]
        configs *= len(leaf.encoding.table.configs) if leaf.encoding.table else 1
    arena.counts.tilings += sum(whole)
    arena.counts.candidates += sum(whole) * configs


def _evaluate(arena: Arena, draft: Draft) -> State:
    """Contract and bound tops and rows; settle tops that are single throughout; give the rest."""
    counts = arena.counts
    before = draft.size
    fit(arena, draft)
    fitting = draft.size
    state = bound(arena, draft)
    counts.bounded += before
    counts.pruned_capacity += before - fitting
    counts.pruned_bound += fitting - len(state) - sum(len(table) for table in state.tables)
    single = state.tops.single()
    for table in state.tables:
        single[table.top[~table.boxes.single()]] = False
    if single.any():
        settle(arena, state.take(np.flatnonzero(single)))
        state = state.take(np.flatnonzero(~single & ~arena.best.hopeless(state.keys)))
    return state
