"""What one pass of a search works on, and the counts of what became of its space."""

from __future__ import annotations

from dataclasses import dataclass

from mmee_solver.bounds import Bounder, Boxes
from mmee_solver.errors import GaveUpError
from mmee_solver.incumbent import Incumbent
from mmee_solver.program import Program
from mmee_solver.tables import Floats
from mmee_solver.tilings import tilings

JOINT = 1 << 18  # joint choices of rows compared at once in a search with a limit


@dataclass(slots=True)
class Counts:
    """What became of the search space, for the certificate.

    ``trees`` and ``structures`` are the placements searched, ``tilings`` their tile sizes in all (classes
    of equal tiles count once), ``candidates`` the same with every choice of array configurations.
    ``bounded`` boxes of tilings were bounded, ``evaluated`` single candidates costed exactly;
    ``pruned_capacity`` boxes cannot fit (or cost too much at their largest tiles), ``pruned_bound``
    cannot beat the best.
    """

    trees: int = 0
    structures: int = 0
    tilings: int = 0
    candidates: int = 0
    bounded: int = 0
    evaluated: int = 0
    pruned_capacity: int = 0
    pruned_bound: int = 0

    def add(self, other: Counts) -> None:
        """Add another search's counts."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def as_dict(self) -> dict[str, int]:
        """Counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class Arena:
    """A program with its bounds under one set of tile sizes, and the best solution so far."""

    program: Program
    top: Bounder
    leaves: tuple[Bounder, ...]
    best: Incumbent
    counts: Counts
    effort: int | None = None  # boxes to bound at most

    def spend(self, choices: int) -> None:
        """Count joint choices that are about to be compared; a search with a limit takes no large lot.

        Raises
        ------
        GaveUpError
            If there are too many.
        """
        if self.effort is not None and choices > JOINT:
            raise GaveUpError(f"{choices} joint choices")

    def shared(self, tops: Boxes) -> Floats:
        """Least columns of what the leaves of some tops share, (T, width)."""
        return self.top.linear(self.top.view(tops))[0]

    @classmethod
    def of(
        cls, program: Program, best: Incumbent, counts: Counts, mode: str, effort: int | None = None
    ) -> Arena:
        """The arena for tile sizes ``integer`` or ``divisors``."""
        encodings = [program.top, *(leaf.encoding for leaf in program.leaves)]
        mixes = best.mixes()
        top, *leaves = [Bounder(enc, tilings(enc, mode, best.traffic_only), mixes) for enc in encodings]
        return cls(program, top, tuple(leaves), best, counts, effort)
