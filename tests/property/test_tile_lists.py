"""The lists of tile sizes that the search draws from leave no better size out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmee_solver.tilings import undominated_tiles
from mmee_solver.trace import cut
from mmee_solver.units import ceil_div

SIZES = st.integers(1, 60)


def passes(size: int, extent: int, tile: int) -> int:
    return sum(count * ceil_div(length, extent) for length, count in cut(((size, 1),), tile))


@given(SIZES, st.sets(st.integers(1, 16), max_size=4))
def test_undominated_tiles_leave_no_better_one_out(size: int, extents: set[int]) -> None:
    extents = {1, *extents}
    kept = undominated_tiles(size, tuple(sorted(extents)))

    def figures(tile: int) -> list[int]:
        return [ceil_div(size, tile), *(passes(size, s, tile) for s in sorted(extents))]

    for tile in range(1, size + 1):
        assert any(
            t <= tile and all(a <= b for a, b in zip(figures(t), figures(tile), strict=True)) for t in kept
        )
    for index, tile in enumerate(kept):
        for smaller in kept[:index]:
            assert any(a > b for a, b in zip(figures(smaller), figures(tile), strict=True))
