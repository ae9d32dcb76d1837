"""The certificate: what was searched, how it was decided, and from which inputs (design §9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmee_solver.enumerate import Counts
from mmee_solver.mapping import Options

SPACE = (
    "partition into convex groups of at most {} connected by shared tensors; per group every "
    "order tree, hold depth, tile size, streaming granule and array configuration of design §7; no "
    "tensor stays resident between groups"
)


def certificate(
    options: Options,
    largest: int,
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
    groups : mapping of group to Counts
        How the search of each candidate group went.
    dropped : sequence of groups
        Candidates whose bound cannot beat running their ops alone.
    master : mapping
        CP-SAT's status and bound.
    lower_bound : int or float
        The proven bound, in the objective's unit.
    """
    total = Counts()
    for counts in groups.values():
        total.add(counts)
    return {
        "space": SPACE.format("one op" if largest == 1 else f"{largest} ops"),
        "options": options.as_dict(),
        **total.as_dict(),
        "groups": {" + ".join(group): counts.as_dict() for group, counts in groups.items()},
        "dropped_groups": [" + ".join(group) for group in dropped],
        "master": dict(master),
        "lower_bound": lower_bound,
    }
