"""The certificate: what was searched, how it was decided, and from which inputs (design §9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmee_solver.enumerate import Counts
from mmee_solver.mapping import Options

SPACE = (
    "partition into convex groups of at most {} connected by shared tensors; per group every "
    "order tree, hold depth, tile size, streaming granule and array configuration of design §7; {}"
)
STAYS = "an intermediate may stay whole in the buffer from the group that makes it to its last reader"
LEAVES = "no tensor stays resident between groups"


def certificate(
    options: Options,
    largest: int,
    residency: bool,
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
    largest : int
        Ops in a group at most.
    residency : bool
        Whether some tensor may stay in the buffer between groups.
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
        "space": SPACE.format("one op" if largest == 1 else f"{largest} ops", STAYS if residency else LEAVES),
        "options": options.as_dict(),
        **total.as_dict(),
        "groups": {" + ".join(group): counts.as_dict() for group, counts in groups.items()},
        "dropped_groups": [" + ".join(group) for group in dropped],
        "master": dict(master),
        "lower_bound": lower_bound,
    }
