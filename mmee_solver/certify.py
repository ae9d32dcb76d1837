"""The certificate: what was searched, how it was decided, and from which inputs (design §9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmee_solver.enumerate import Counts
from mmee_solver.mapping import Options

DEEP = (
    "partition into convex groups of at most {} connected by shared tensors; per group every order tree, "
    "hold depth, tile size, streaming granule and array configuration of design §7"
)
FLAT = "groups of up to {} ops, in the order of the graph, with one list of ops below shared loops"
STAYS = "an intermediate may stay whole in the buffer from the group that makes it to its last reader"
LEAVES = "no tensor stays resident between groups"


@dataclass(frozen=True, slots=True)
class Space:
    """What was searched: ops in a group at most, with every order tree and with flat ones.

    ``residency``: whether a tensor may stay in the buffer between groups; ``left_out``: groups whose search
    was given up.
    """

    deep: int
    largest: int
    residency: bool
    left_out: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        """The space in words."""
        parts = [DEEP.format("one op" if self.deep == 1 else f"{self.deep} ops")]
        if self.largest > self.deep:
            flat = FLAT.format(self.largest)
            parts.append(f"{flat}, without those in left_out_groups" if self.left_out else flat)
        return "; ".join([*parts, STAYS if self.residency else LEAVES])


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
