"""What the search takes for granted about costs: what grows, what falls, and that its bounds hold.

The rules of :mod:`mmee_solver.skeletons` and :mod:`mmee_solver.layouts`, the boxes of
:mod:`mmee_solver.bounds` and the lists of :mod:`mmee_solver.tilings` are exact only because of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import ceil
from random import Random

import nests
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmee_solver.accelerator import Accelerator
from mmee_solver.bounds import _nested_passes, _nested_pieces
from mmee_solver.cost import Metrics, evaluate_group
from mmee_solver.nest import Compute, Group, Hold, Item, Loop, Nest, computes
from mmee_solver.tilings import nested_count, passes_bound, step_classes, steps_of
from mmee_solver.trace import count_pieces, cut
from mmee_solver.workload import Graph


def draw(kind: str, seed: int, *, once: bool = False) -> tuple[Random, Graph, Accelerator, Group]:
    rng = Random(f"{kind} {seed}")
    graph = nests.graph(rng, kind)
    accelerator = nests.accelerator(rng, graph)
    if rng.random() < 0.5:
        array = replace(accelerator.array, pipeline="systolic")
        accelerator = replace(accelerator, array=array)
    return rng, graph, accelerator, nests.group(rng, graph, accelerator, once=once)


def variants(nest: Nest, change: Callable[[Nest, int], Iterator[Nest]]) -> Iterator[Nest]:
    """Every nest that differs in one item; ``change`` gives the new lists for a list and a position."""
    for index, item in enumerate(nest):
        yield from change(nest, index)
        if isinstance(item, Loop):
            for body in variants(item.body, change):
                yield (*nest[:index], replace(item, body=body), *nest[index + 1 :])


def cost(graph: Graph, accelerator: Accelerator, group: Group, nest: Nest) -> Metrics:
    return evaluate_group(graph, accelerator, replace(group, nest=nest))


def some(rng: Random, found: Iterator[Nest], most: int = 6) -> list[Nest]:
    listed = list(found)
    return rng.sample(listed, min(most, len(listed)))


def changes(
    kind: str, change: Callable[[Graph, Nest, int], Iterator[Nest]], *, once: bool = False
) -> Iterator[tuple[Graph, Metrics, Metrics]]:
    """Random groups of a kind, with their cost before and after some single changes of the nest."""
    for seed in range(8):
        rng, graph, accelerator, group = draw(kind, seed, once=once)
        before = cost(graph, accelerator, group, group.nest)
        for nest in some(rng, variants(group.nest, partial(change, graph))):
            yield graph, before, cost(graph, accelerator, group, nest)


EVERY = pytest.mark.parametrize("kind", nests.KINDS)


# --- nests -------------------------------------------------------------------------------------------


@EVERY
def test_cutting_below_all_holds_never_lowers_a_cost(kind: str) -> None:
    for _, before, after in changes(kind, finer):
        # nothing that a hold decides has changed
        assert after.traffic == before.traffic
        assert after.peak_buffer_bytes == before.peak_buffer_bytes
        assert (after.macs, after.vector_ops) == (before.macs, before.vector_ops)
        # and the arrays, with their fills, and the buffer work no less
        assert after.array_cycles >= before.array_cycles
        assert after.buffer_read_bytes >= before.buffer_read_bytes
        assert after.buffer_write_bytes >= before.buffer_write_bytes
        assert after.energy.total >= before.energy.total
        assert after.latency_cycles >= before.latency_cycles


def finer(graph: Graph, nest: Nest, index: int) -> Iterator[Nest]:
    """Put a loop directly around a compute."""
    item = nest[index]
    if isinstance(item, Compute):
        for dim in graph.op_dims(graph.op(item.op)):
            for tile in range(1, graph.dims[dim] + 1):
                yield (*nest[:index], Loop(dim, tile, (item,)), *nest[index + 1 :])


@EVERY
def test_a_larger_tile_never_raises_traffic_nor_vector_work(kind: str) -> None:
    for graph, before, after in changes(kind, larger, once=True):
        for tensor, (read, written) in before.traffic.items():
            assert after.traffic[tensor][0] <= read
            assert after.traffic[tensor][1] <= written
        assert after.vector_ops <= before.vector_ops
        assert after.macs <= before.macs
        if not any(step.axis for op in graph.ops for step in (*op.prologue, *op.epilogue)):
            # without online statistics, which are gone with the last cut of their axis
            assert after.peak_buffer_bytes >= before.peak_buffer_bytes


def larger(graph: Graph, nest: Nest, index: int) -> Iterator[Nest]:
    """Take larger steps in a loop."""
    item = nest[index]
    if isinstance(item, Loop):
        for tile in range(item.tile + 1, graph.dims[item.dim] + 1):
            yield (*nest[:index], replace(item, tile=tile), *nest[index + 1 :])


@EVERY
def test_a_hold_further_in_never_lowers_traffic(kind: str) -> None:
    for _, before, after in changes(kind, deeper):
        for tensor, (read, written) in before.traffic.items():
            assert after.traffic[tensor][0] >= read
            assert after.traffic[tensor][1] >= written


def deeper(graph: Graph, nest: Nest, index: int) -> Iterator[Nest]:
    """Move a hold into the one loop of its list that uses it."""
    hold = nest[index]
    if isinstance(hold, Hold):
        users = [i for i in range(index + 1, len(nest)) if uses(graph, nest[i], hold.tensor)]
        if len(users) == 1 and isinstance(nest[users[0]], Loop):
            loop = nest[users[0]]
            assert isinstance(loop, Loop)
            inner = replace(loop, body=(hold, *loop.body))
            yield (*nest[:index], *nest[index + 1 : users[0]], inner, *nest[users[0] + 1 :])


def uses(graph: Graph, item: Item, tensor: str) -> bool:
    return any(tensor in graph.op(name).tensors for name in computes((item,)))


@EVERY
def test_a_hold_directly_below_a_loop_that_its_tensor_lacks_may_go_up(kind: str) -> None:
    """Rule 1 of layouts: no figure grows, as the tensor was alive during the whole body anyway."""
    for _, before, after in changes(kind, higher):
        assert after.dram_read_bytes <= before.dram_read_bytes
        assert after.dram_write_bytes <= before.dram_write_bytes
        assert after.peak_buffer_bytes <= before.peak_buffer_bytes
        assert after.vector_ops <= before.vector_ops
        assert after.array_cycles == before.array_cycles
        assert after.energy.total <= before.energy.total
        assert after.latency_cycles <= before.latency_cycles


def higher(graph: Graph, nest: Nest, index: int) -> Iterator[Nest]:
    """Move a hold that lives as long as its loop's body above the loop, if its tensor lacks the dim."""
    loop = nest[index]
    if not isinstance(loop, Loop) or not isinstance(loop.body[0], Hold):
        return
    hold, others = loop.body[0], (*nest[:index], *nest[index + 1 :])
    alone = not any(uses(graph, item, hold.tensor) for item in others)
    throughout = uses(graph, loop.body[-1], hold.tensor)
    if alone and throughout and loop.dim not in graph.tensors[hold.tensor].dims:
        yield (*nest[:index], hold, replace(loop, body=loop.body[1:]), *nest[index + 1 :])


@EVERY
def test_a_loop_directly_below_a_hold_that_has_its_dim_may_go_up(kind: str) -> None:
    """Rule 2 of layouts: the tile shrinks and nothing else changes, unless the dim is a row's axis."""
    for _, before, after in changes(kind, outwards):
        assert after.peak_buffer_bytes <= before.peak_buffer_bytes
        assert replace(after, peak_buffer_bytes=0) == replace(before, peak_buffer_bytes=0)


def outwards(graph: Graph, nest: Nest, index: int) -> Iterator[Nest]:
    """Move a loop above the hold before it, if only the loop uses the tensor."""
    hold, rest = nest[index], nest[index + 1 :]
    if not isinstance(hold, Hold) or not rest or not isinstance(rest[0], Loop):
        return
    loop = rest[0]
    steps = [step for op in graph.ops for step in (*op.prologue, *op.epilogue)]
    free = loop.dim in graph.tensors[hold.tensor].dims and loop.dim not in {step.axis for step in steps}
    if free and not any(uses(graph, item, hold.tensor) for item in rest[1:]):
        yield (*nest[:index], replace(loop, body=(hold, *loop.body)), *rest[1:])


# --- counts of one dim -------------------------------------------------------------------------------


def f(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def passes(size: int, tiles: tuple[int, ...], extent: int) -> int:
    pieces = [size]
    for tile in tiles:
        pieces = list(nests.cut(pieces, tile))
    return sum(ceil(piece / extent) for piece in pieces)


sizes = st.integers(1, 60)
extents = st.integers(1, 24)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int]:
    size = draw(sizes)
    low = draw(st.integers(1, size))
    return size, low, draw(st.integers(low, size))


@settings(deadline=None)
@given(sizes, st.integers(1, 60))
def test_cut_is_what_a_loop_does(size: int, tile: int) -> None:
    pieces = nests.cut([size], tile)
    found = cut(((size, 1),), tile)
    assert found == tuple((e, pieces.count(e)) for e in sorted(set(pieces), reverse=True))
    assert count_pieces(found) == steps_of(f(size), f(tile)) == ceil(size / tile)


@settings(deadline=None)
@given(sizes, st.integers(1, 60), st.integers(1, 60), extents)
def test_nested_count_is_what_two_loops_do(size: int, tile: int, granule: int, extent: int) -> None:
    pieces = cut(cut(((size, 1),), tile), granule)
    small = min(granule, tile, size)
    outer = min(tile, size)
    found = nested_count(f(size), f(outer), f(small), f(extent))
    assert found == sum(count * ceil(length / extent) for length, count in pieces)
    assert nested_count(f(size), f(outer), f(small), f(small)) == count_pieces(pieces)


@settings(deadline=None)
@given(sizes, st.integers(1, 60), st.integers(1, 60), extents)
def test_a_second_cut_saves_neither_steps_nor_passes(size: int, tile: int, granule: int, extent: int) -> None:
    assert passes(size, (tile, granule), extent) >= passes(size, (tile,), extent)
    assert passes(size, (tile, granule), size) >= passes(size, (tile,), size)
    assert passes(size, (tile, granule), size) >= passes(size, (granule,), size)


@settings(deadline=None)
@given(ranges(), extents)
@example((10, 6, 8), 4)
def test_passes_bound_is_no_more_than_any_tile_of_the_range(
    limits: tuple[int, int, int], extent: int
) -> None:
    size, low, high = limits
    bound = passes_bound(f(size), f(low), f(high), f(extent))[0]
    assert bound <= min(passes(size, (tile,), extent) for tile in range(low, high + 1))
    for tile in (low, high):
        single = passes_bound(f(size), f(tile), f(tile), f(extent))[0]
        assert single == passes(size, (tile,), extent)


@st.composite
def nested(draw: st.DrawFn) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """A size, a range of outer tiles, and a range of granules that do not exceed every outer tile."""
    size, low, high = draw(ranges())
    least = draw(st.integers(1, high))
    return size, (low, high), (least, draw(st.integers(least, size)))


def pairs(outer: tuple[int, int], inner: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Outer tiles with the granules that cut them."""
    for tile in range(outer[0], outer[1] + 1):
        for granule in range(inner[0], min(inner[1], tile) + 1):
            yield tile, granule


@settings(max_examples=300, deadline=None)
@given(nested(), extents)
def test_nested_passes_bound_every_pair_of_the_ranges(
    limits: tuple[int, tuple[int, int], tuple[int, int]], extent: int
) -> None:
    size, outer, inner = limits
    bound = _nested_passes(f(size), (f(outer[0]), f(outer[1])), (f(inner[0]), f(inner[1])), f(extent))[0]
    assert bound <= min(passes(size, pair, extent) for pair in pairs(outer, inner))
    tile, granule = next(pairs(outer, inner))
    single = _nested_passes(f(size), (f(tile), f(tile)), (f(granule), f(granule)), f(extent))[0]
    assert single == passes(size, (tile, granule), extent)


@settings(max_examples=300, deadline=None)
@given(nested())
def test_nested_pieces_bound_every_pair_of_the_ranges(
    limits: tuple[int, tuple[int, int], tuple[int, int]],
) -> None:
    size, outer, inner = limits
    bound = _nested_pieces(f(size), (f(outer[0]), f(outer[1])), f(inner[1]))[0]
    assert bound <= min(passes(size, pair, size) for pair in pairs(outer, inner))


@settings(deadline=None)
@given(st.integers(1, 3000))
def test_step_classes_are_the_smallest_tiles_of_equal_steps(size: int) -> None:
    found = step_classes(size)
    assert list(found) == sorted({-(-size // -(-size // tile)) for tile in range(1, size + 1)})


@pytest.mark.slow
def test_bounds_hold_for_all_small_sizes() -> None:
    for size in range(1, 15):
        for low in range(1, size + 1):
            for high in range(low, size + 1):
                for least in range(1, high + 1):
                    for most in range(least, size + 1):
                        for extent in (1, 2, 3, 5, 8):
                            check(size, (low, high), (least, most), extent)


def check(size: int, outer: tuple[int, int], inner: tuple[int, int], extent: int) -> None:
    every = list(pairs(outer, inner))
    ends = (f(outer[0]), f(outer[1]))
    bound = _nested_passes(f(size), ends, (f(inner[0]), f(inner[1])), f(extent))[0]
    assert bound <= min(passes(size, pair, extent) for pair in every)
    bound = _nested_pieces(f(size), ends, f(inner[1]))[0]
    assert bound <= min(passes(size, pair, size) for pair in every)
