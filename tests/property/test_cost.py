"""The monotonicity that the search relies on, against plain counting."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmee_solver.bounds import _nested_passes, _nested_pieces
from mmee_solver.tilings import (
    divisors,
    nested_count,
    passes_bound,
    step_classes,
    steps_of,
    undominated_tiles,
)
from mmee_solver.trace import count_pieces, cut
from mmee_solver.units import ceil_div


def passes(size: int, extent: int, *tiles: int) -> int:
    """Passes of a dim cut by tiles one after the other, counted piece by piece."""
    pieces = ((size, 1),)
    for tile in tiles:
        pieces = cut(pieces, tile)
    return sum(count * ceil_div(length, extent) for length, count in pieces)


def one(value: float) -> np.ndarray:
    return np.array([float(value)])


SIZES = st.integers(1, 60)


@given(SIZES, st.integers(1, 60), st.integers(1, 20))
def test_passes_of_one_tile_are_exact(size: int, tile: int, extent: int) -> None:
    tile = min(tile, size)
    found = passes_bound(one(size), one(tile), one(tile), one(extent))
    assert found[0] == passes(size, extent, tile)
    assert steps_of(one(size), one(tile))[0] == count_pieces(cut(((size, 1),), tile))


@given(SIZES, st.integers(1, 60), st.integers(0, 20), st.integers(1, 20))
def test_passes_of_a_range_are_bounded(size: int, low: int, width: int, extent: int) -> None:
    low = min(low, size)
    high = min(size, low + width)
    bound = passes_bound(one(size), one(low), one(high), one(extent))[0]
    assert bound <= min(passes(size, extent, tile) for tile in range(low, high + 1))


@given(SIZES, st.integers(1, 60), st.integers(1, 60), st.integers(1, 20))
def test_nested_counts_are_exact(size: int, tile: int, granule: int, extent: int) -> None:
    tile = min(tile, size)
    granule = min(granule, tile)
    found = nested_count(one(size), one(tile), one(granule), one(extent))
    assert found[0] == passes(size, extent, tile, granule)


@given(
    SIZES, st.integers(1, 60), st.integers(0, 9), st.integers(1, 60), st.integers(0, 9), st.integers(1, 20)
)
def test_nested_ranges_are_bounded(size: int, t: int, dt: int, g: int, dg: int, extent: int) -> None:
    t = min(t, size)
    outer = range(t, min(size, t + dt) + 1)
    g = min(g, t)
    inner = range(g, g + dg + 1)
    pairs = [(a, b) for a in outer for b in inner if b <= a]
    ends = (one(outer[0]), one(outer[-1]))
    bound = _nested_passes(one(size), ends, (one(inner[0]), one(inner[-1])), one(extent))[0]
    assert bound <= min(passes(size, extent, a, b) for a, b in pairs)
    top = min(inner[-1], outer[-1])
    pieces = _nested_pieces(one(size), ends, one(top))[0]
    assert pieces <= min(passes(size, size, a, b) for a, b in pairs)


@given(SIZES, st.integers(1, 60), st.integers(1, 60), st.integers(1, 20))
def test_cutting_finer_never_saves(size: int, tile: int, granule: int, extent: int) -> None:
    tile = min(tile, size)
    once = cut(((size, 1),), tile)
    assert count_pieces(cut(once, granule)) >= count_pieces(once)
    assert passes(size, extent, tile, granule) >= passes(size, extent, tile)
    assert passes(size, extent, tile) >= passes(size, extent)


@given(SIZES)
def test_step_classes_are_the_least_tiles(size: int) -> None:
    steps = {tile: ceil_div(size, tile) for tile in range(1, size + 1)}
    least = {count: min(t for t in steps if steps[t] == count) for count in steps.values()}
    assert step_classes(size) == tuple(sorted(least.values()))
    assert divisors(size) == tuple(t for t in steps if size % t == 0)


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


@pytest.mark.parametrize("seed", range(20))
def test_large_sizes_are_exact_in_floating_point(seed: int) -> None:
    rng = Random(seed)
    size = rng.randint(1 << 20, 1 << 24)
    tile = rng.randint(1, size)
    granule, extent = rng.randint(1, tile), rng.randint(1, 512)
    assert passes_bound(one(size), one(tile), one(tile), one(extent))[0] == passes(size, extent, tile)
    found = nested_count(one(size), one(tile), one(granule), one(extent))[0]
    assert found == passes(size, extent, tile, granule)
