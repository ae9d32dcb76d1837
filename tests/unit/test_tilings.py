"""Candidate tile sizes and exact counts, against brute force and by hand."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from random import Random

import instances
import numpy as np
import pytest
from nests import build, cut, einsum

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.encode import Encoding
from mmee_solver.program import group_program
from mmee_solver.skeletons import GRANULE, SHARED
from mmee_solver.tilings import (
    Tilings,
    divisors,
    nested_count,
    passes_bound,
    step_classes,
    steps_of,
    tilings,
    undominated_tiles,
)

ACCELERATOR = Accelerator(
    "small", 1e9, Dram(8e9, 1, 1), Buffer(1 << 20, 1, 1), Array(2, ((2, 4),), 1, 1), Vector(1, 1)
)


def f(value: float) -> np.ndarray:
    return np.array([float(value)])


def passes(pieces: tuple[int, ...], extent: int) -> int:
    return sum(ceil(piece / extent) for piece in pieces)


# --- lists of sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [*range(1, 200), 4096, 16384, 61 * 67])
def test_divisors(size: int) -> None:
    assert divisors(size) == tuple(t for t in range(1, size + 1) if size % t == 0)


@pytest.mark.parametrize("size", [*range(1, 200), 1024, 2048, 4999])
def test_step_classes_are_the_smallest_of_equal_steps(size: int) -> None:
    smallest: dict[int, int] = {}
    for tile in range(size, 0, -1):
        smallest[ceil(size / tile)] = tile
    assert step_classes(size) == tuple(sorted(smallest.values()))


def test_classes_of_large_sizes_are_few() -> None:
    # at most 2·√N: 2 · 4096
    assert len(step_classes(1 << 24)) <= 2 * 4096


def test_undominated_tiles_by_hand() -> None:
    # N = 10, extent 4: tiles 1 … 10 take 10 5 4 3 4 3 3 3 4 3 passes and 10 5 4 3 2 2 2 2 2 1 steps;
    # 5 has fewer steps than 4, 6 fewer passes than 5; 7, 8 and 9 are no better than 6
    assert undominated_tiles(10, (1, 4)) == (1, 2, 3, 4, 5, 6, 10)
    # extents of 1 and of more than N count nothing but steps
    assert undominated_tiles(10, (1, 16)) == step_classes(10)


@pytest.mark.parametrize("size", [1, 2, 7, 12, 37, 64, 97])
@pytest.mark.parametrize("extents", [(1,), (1, 2, 3), (1, 4, 8, 32), (1, 5, 64)])
def test_every_tile_is_beaten_by_a_smaller_one_or_kept(size: int, extents: tuple[int, ...]) -> None:
    def figures(tile: int) -> list[int]:
        pieces = cut([size], tile)
        return [tile, len(pieces), *(passes(pieces, extent) for extent in extents)]

    def beats(one: int, other: int) -> bool:
        return all(a <= b for a, b in zip(figures(one), figures(other), strict=True))

    kept = undominated_tiles(size, extents)
    assert all(any(beats(one, tile) for one in kept) for tile in range(1, size + 1))
    assert not any(beats(one, other) for one in kept for other in kept if one != other)


# --- counts ------------------------------------------------------------------------------------------


def test_steps_and_passes_by_hand() -> None:
    # 100 by 30: 30 + 30 + 30 + 10; on 16 PEs 2 + 2 + 2 + 1
    assert steps_of(f(100), f(30)) == 4
    assert passes_bound(f(100), f(30), f(30), f(16)) == 7
    # 100 by 30, each part by 7: 7·4 + 2, three times, and 7 + 3: 5 · 3 + 2 pieces
    assert nested_count(f(100), f(30), f(7), f(7)) == 17
    # on 4 PEs: 7 takes 2, 2 takes 1, 3 takes 1: 3 · (4 · 2 + 1) + 2 + 1
    assert nested_count(f(100), f(30), f(7), f(4)) == 30


def test_least_passes_of_a_range_by_hand() -> None:
    # 10 … 16 share ⌈t/16⌉ = 1: 16 pads nothing, 100 takes ⌈100/16⌉
    assert passes_bound(f(100), f(10), f(16), f(16)) == 7
    # 10 … 14: 14 pads 2 in each of 7 full tiles: ⌈(100 + 14)/16⌉; in truth 14 takes 7 + 1
    assert passes_bound(f(100), f(10), f(14), f(16)) == 8
    # 14 … 20: a multiple of 16 is among them
    assert passes_bound(f(100), f(14), f(20), f(16)) == 7


# --- lists of an encoding ----------------------------------------------------------------------------


def encoding(sizes: dict[str, int], accelerator: Accelerator = ACCELERATOR) -> Encoding:
    graph = build({"X": "mk", "A": "kn", "Y": "mn"}, sizes, einsum("a", "X A", "Y"))
    return group_program(graph, accelerator, ["a"], recompute=True, recut=True).leaves[0].encoding


def listed(sizes: Tilings, number: int) -> list[int]:
    length = int(sizes.length[number])
    return [int(v) for v in sizes.value(np.full(length, number), np.arange(length))]


def lists_by_axis(found: Encoding, sizes: Tilings) -> dict[tuple[int, str], list[int]]:
    """Size of the dim and kind of the axis → candidate sizes."""
    lists = {}
    for s, structure in enumerate(found.structures):
        for a, axis in enumerate(structure.axes):
            cuts = axis.outer >= 0 or any(other.outer == a for other in structure.axes)
            kind = ("cut " if cuts else "") + ("granule" if axis.kind == GRANULE else "tile")
            lists[int(found.size[s, a]), kind] = listed(sizes, int(sizes.number[s, a]))
    return lists


def test_divisor_lists() -> None:
    found = encoding({"m": 12, "k": 7, "n": 6})
    lists = lists_by_axis(found, tilings(found, "divisors", traffic_only=False))
    # two arrays of 2 × 4: extents 1, 2, 4, and 4 and 8 side by side
    assert found.extents == (1, 2, 4, 8)
    assert lists[12, "tile"] == [1, 2, 3, 4, 6, 12]
    assert lists[7, "tile"] == [1, 7]
    # a granule may be an array's extent, too
    granules = {size: values for (size, kind), values in lists.items() if kind.endswith("granule")}
    assert granules[7] == [1, 2, 4, 7]
    assert granules[12] == [1, 2, 3, 4, 6, 8, 12]


def test_integer_lists() -> None:
    found = encoding({"m": 12, "k": 7, "n": 6})
    lists = lists_by_axis(found, tilings(found, "integer", traffic_only=False))
    for (size, kind), values in lists.items():
        # a dim that is cut twice takes any size, another one those that no smaller one beats
        if kind.startswith("cut"):
            assert values == list(range(1, size + 1))
        else:
            assert values == list(undominated_tiles(size, (1, 2, 4, 8)))


def test_lists_for_traffic_alone() -> None:
    found = encoding({"m": 12, "k": 7, "n": 6})
    lists = lists_by_axis(found, tilings(found, "integer", traffic_only=True))
    for (size, kind), values in lists.items():
        assert values == ([1] if kind.endswith("granule") else list(step_classes(size)))


@pytest.mark.parametrize("mode", ["integer", "divisors"])
@pytest.mark.parametrize("traffic_only", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_shared_dim_has_one_list_in_all_encodings(mode: str, traffic_only: bool, seed: int) -> None:
    rng = Random(seed)
    graph = instances.graph(rng, instances.KINDS[seed], largest=30, looped=4)
    names = [op.name for op in graph.ops]
    program = group_program(graph, ACCELERATOR, names, recompute=True, recut=mode == "divisors")
    lists: dict[str, set[tuple[int, ...]]] = {}
    for found in (program.top, *(leaf.encoding for leaf in program.leaves)):
        sizes = tilings(found, mode, traffic_only)
        for s, structure in enumerate(found.structures):
            for a, axis in enumerate(structure.axes):
                if axis.kind == SHARED:
                    lists.setdefault(axis.dim, set()).add(tuple(listed(sizes, int(sizes.number[s, a]))))
    assert all(len(found) == 1 for found in lists.values())


@pytest.mark.parametrize("mode", ["integer", "divisors"])
@pytest.mark.parametrize("traffic_only", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_floor_and_ceil_find_neighbours(mode: str, traffic_only: bool, seed: int) -> None:
    rng = Random(seed)
    graph = instances.graph(rng, rng.choice(["matmul", "vector", "batched"]), largest=9)
    graph = replace(graph, dims={dim: rng.randint(1, 40) for dim in graph.dims})
    found = group_program(graph, ACCELERATOR, ["a"], recompute=True, recut=False).leaves[0].encoding
    sizes = tilings(found, mode, traffic_only)
    for number in range(len(sizes.length)):
        known = listed(sizes, number)
        assert known == sorted(set(known))
        for value in [*known, *(v + 0.5 for v in known), 0.5, 41.0, 1e9, np.inf]:
            floor = sizes.floor(np.array([number]), f(value))[0]
            assert floor == sum(v <= value for v in known) - 1
            ceiling = sizes.ceil(np.array([number]), f(value))[0]
            if value <= known[-1]:
                assert ceiling == sum(v < value for v in known)
            else:
                assert ceiling >= len(known)
