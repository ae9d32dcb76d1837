"""From structures with tile sizes to nests."""

from __future__ import annotations

from random import Random

import instances
import pytest
from nests import arrays, build, einsum

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.cost import evaluate_group
from mmee_solver.emit import emit
from mmee_solver.execute import run_group
from mmee_solver.nest import Compute, Group, Hold, Loop, Nest, computes
from mmee_solver.structures import (
    GRANULE,
    PRIVATE,
    SHARED,
    Axis,
    GroupSpace,
    HoldAt,
    LoopAt,
    Structure,
    structures,
)
from mmee_solver.trace import trace
from mmee_solver.trees import order_trees
from mmee_solver.workload import Graph, Step

ACCELERATOR = Accelerator(
    "any", 1e9, Dram(8e9, 1, 1), Buffer(1 << 30, 1, 1), Array(1, ((2, 2),), 1, 1), Vector(1, 1)
)


def matmul() -> Graph:
    spec = {"X": "mk", "A": "kn", "Y": "mn"}
    return build(spec, {"m": 6, "k": 8, "n": 5}, einsum("a", "X A", "Y"))


def line(*entries: HoldAt | LoopAt) -> tuple[HoldAt | LoopAt, ...]:
    return entries


# hold Y; for k: hold X; for n: for k (a granule): hold A
PLACED = Structure(
    ops=("a",),
    axes=(Axis("k", PRIVATE), Axis("n", PRIVATE), Axis("k", GRANULE, outer=0)),
    shared=(),
    body=(),
    leaves=(line(HoldAt("Y"), LoopAt(0), HoldAt("X"), LoopAt(1), LoopAt(2), HoldAt("A")),),
)


def test_loops_and_holds_stand_where_the_structure_says() -> None:
    inner = Loop("n", 2, (Loop("k", 2, (Hold("A"), Compute("a"))),))
    assert emit(matmul(), PLACED, [4, 2, 2], {}).nest == (Hold("Y"), Loop("k", 4, (Hold("X"), inner)))


@pytest.mark.parametrize(
    ("tiles", "nest"),
    [
        # k and n whole
        ([8, 5, 8], (Hold("Y"), Hold("X"), Hold("A"), Compute("a"))),
        # a granule as large as the tile that it cuts
        ([4, 5, 4], (Hold("Y"), Loop("k", 4, (Hold("X"), Hold("A"), Compute("a"))))),
        ([4, 5, 6], (Hold("Y"), Loop("k", 4, (Hold("X"), Hold("A"), Compute("a"))))),
        # k whole above X, and cut above A
        ([8, 5, 3], (Hold("Y"), Hold("X"), Loop("k", 3, (Hold("A"), Compute("a"))))),
    ],
)
def test_loops_of_one_step_are_left_out(tiles: list[int], nest: Nest) -> None:
    assert emit(matmul(), PLACED, tiles, {}).nest == nest


def siblings(*steps: Step) -> Graph:
    spec = {"X": "lc", "A": "ck", "K": "lk", "B": "cj", "V": "lj"}
    sizes = {"l": 6, "c": 4, "k": 3, "j": 5}
    return build(spec, sizes, einsum("a", "X A", "K", *steps), einsum("b", "X B", "V"))


def twice(shared: tuple[str, ...] = (), first: int = 1) -> Structure:
    """Siblings that hold their input privately, before or after a private loop of the first."""
    axes = (*(Axis(dim, SHARED) for dim in shared), Axis("k", PRIVATE), Axis("j", PRIVATE))
    a, b = len(shared), len(shared) + 1
    leaf = [HoldAt("A"), HoldAt("K"), HoldAt("X")]
    leaf.insert(first, LoopAt(a))  # type: ignore[arg-type]
    other = line(HoldAt("X"), LoopAt(b), HoldAt("B"), HoldAt("V"))
    return Structure(("a", "b"), axes, tuple(LoopAt(i) for i in range(a)), (), (tuple(leaf), other))


def held(group: Group, graph: Graph) -> list[tuple[str, set[str]]]:
    return [(site.tensor, set(site.ops)) for site in trace(graph, group.nest).holds if site.tensor == "X"]


def test_a_private_hold_ends_with_its_op() -> None:
    # nothing is looped around a: without a loop of one step its X would live on until b
    graph, tiles = siblings(), [3, 5]
    group = emit(graph, twice(), tiles, {})
    first = (Hold("A"), Hold("K"), Hold("X"), Compute("a"))
    assert group.nest == (Loop("l", 6, first), Hold("X"), Hold("B"), Hold("V"), Compute("b"))
    assert held(group, graph) == [("X", {"a"}), ("X", {"b"})]
    # X, 24 elements of 2 bytes, is read twice
    found = evaluate_group(graph, ACCELERATOR, group)
    assert found.traffic["X"] == (96, 0)
    # at a: A 12, K 18, X 24; at b: X 24, B 20, V 30 elements; never both
    assert found.peak_buffer_bytes == 2 * (24 + 20 + 30)
    run = run_group(graph, group, arrays(graph))
    assert (run.traffic, run.peak_buffer_bytes) == (found.traffic, found.peak_buffer_bytes)


def test_a_private_hold_under_a_loop_needs_no_loop_of_one_step() -> None:
    graph = siblings()
    # k by 2 above X
    group = emit(graph, twice(first=0), [2, 5], {})
    first = Loop("k", 2, (Hold("A"), Hold("K"), Hold("X"), Compute("a")))
    assert group.nest == (first, Hold("X"), Hold("B"), Hold("V"), Compute("b"))
    # two steps of k for a, one for b
    assert evaluate_group(graph, ACCELERATOR, group).traffic["X"] == (2 * 48 + 48, 0)


def test_the_loop_of_one_step_cuts_nothing() -> None:
    graph = siblings()
    group = emit(graph, twice(shared=("c", "l")), [3, 4, 3, 5], {})
    (outer,) = group.nest
    assert isinstance(outer, Loop)
    (inner,) = outer.body
    assert isinstance(inner, Loop)
    first = inner.body[0]
    assert isinstance(first, Loop)
    # k is a's own: neither c nor l, which are cut above
    assert (first.dim, first.tile) == ("k", 3)
    assert trace(graph, group.nest).compute_of("a").pieces["c"] == ((3, 1), (1, 1))


def test_the_loop_of_one_step_keeps_off_the_axis_of_a_prologue() -> None:
    graph = siblings(Step("norm", "normalize", "rmsnorm", "l", tensor="X"))
    (first, *_) = emit(graph, twice(), [3, 5], {}).nest
    assert isinstance(first, Loop)
    assert (first.dim, first.tile) == ("c", 4)


# --- every structure ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(36))
def test_every_structure_gives_a_nest_with_its_holds(seed: int) -> None:
    rng = Random(seed)
    graph = instances.graph(rng, instances.KINDS[seed % len(instances.KINDS)], largest=7)
    names = tuple(op.name for op in graph.ops)
    space = GroupSpace.of(graph, names)
    placed = list(structures(space, order_trees(graph, names)))
    for structure in rng.sample(placed, min(12, len(placed))):
        tiles: list[int] = []
        for axis in structure.axes:
            most = graph.dims[axis.dim] - (axis.kind == SHARED)
            tiles.append(rng.randint(1, min(most, tiles[axis.outer]) if axis.outer >= 0 else most))
        group = emit(graph, structure, tiles, {})
        assert tuple(computes(group.nest)) == structure.ops == group.ops
        lists = [structure.shared, *structure.leaves]
        named = [e.tensor for entries in lists for e in entries if isinstance(e, HoldAt)]
        found = trace(graph, group.nest).holds
        assert sorted(site.tensor for site in found) == sorted([*named, *structure.body])
