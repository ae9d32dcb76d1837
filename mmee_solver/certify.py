"""The certificate: what was searched, how it was decided, and from which inputs (design §9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmee_solver.candidates import EVERY, ONCE, Candidates
from mmee_solver.enumerate import Counts
from mmee_solver.mapping import Options

PARTITION = "partition into convex groups of at most {} connected by shared tensors"
PLACES = "hold depth, tile size, streaming granule and array configuration of design §7"
EVERY_TREE = "per group of up to {} every order tree, "
ONCE_TREES = "of up to {} every order tree that computes each op once"
FLAT_TREES = "of more the ops in the order of the graph in one list below shared loops"
STAYS = "an intermediate may stay whole in the buffer from the group that makes it to its last reader"
LEAVES = "no tensor stays resident between groups"


@dataclass(frozen=True, slots=True)
class Space:
    """What was searched: the candidate groups and their order trees.

    ``residency``: whether a tensor may stay in the buffer between groups; ``left_out``: groups whose search
    was given up.
    """

    candidates: Candidates
    residency: bool
    left_out: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        """The space in words."""
        found, largest = self.candidates, self.candidates.largest
        every = found.upto(EVERY)
        parts = [PARTITION.format(_ops(largest)), EVERY_TREE.format(_ops(every)) + PLACES]
        if (once := found.upto(EVERY, ONCE)) > every:
            parts.append(ONCE_TREES.format(_ops(once)))
        if largest > once:
            parts.append(FLAT_TREES + (", without those in left_out_groups" if self.left_out else ""))
        return "; ".join([*parts, STAYS if self.residency else LEAVES])


def _ops(count: int) -> str:
    return "one op" if count == 1 else f"{count} ops"


def certificate(
    options: Options,
    space: Space,
    groups: Mapping[tuple[str, ...], Counts],
    dropped: Sequence[tuple[str, ...]],
    master: Mapping[str, Any],
    lower_bound: int | float,
) -> dict[str, Any]:
    """The certificate of a mapping.

    Parameters
    ----------
    options : Options
        What was asked for.
    space : Space
        What was searched.
    groups : mapping of group to Counts
        How the search of each candidate group went.
    dropped : sequence of groups
        Candidates whose bound cannot beat running their ops alone.
    master : mapping
        CP-SAT's status, and how it came to price what it chose.
    lower_bound : int or float
        The proven bound, in the objective's unit.
    """
    total = Counts()
    for counts in groups.values():
        total.add(counts)
    return {
        "space": str(space),
        "options": options.as_dict(),
        **total.as_dict(),
        "groups": {" + ".join(group): counts.as_dict() for group, counts in groups.items()},
        "dropped_groups": [" + ".join(group) for group in dropped],
        "left_out_groups": [" + ".join(group) for group in space.left_out],
        "master": dict(master),
        "lower_bound": lower_bound,
    }
