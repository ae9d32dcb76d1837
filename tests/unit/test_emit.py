"""From structures with tile sizes to nests."""

from __future__ import annotations

from random import Random

import instances
import pytest
from nests import arrays, build, einsum

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.cost import evaluate_group
from mmee_solver.emit import Chosen, emit
from mmee_solver.execute import run_group
from mmee_solver.layouts import Layout, Path
from mmee_solver.nest import Compute, Group, Hold, Loop, Nest, computes
from mmee_solver.program import group_program
from mmee_solver.skeletons import (
    GRANULE,
    PRIVATE,
    SHARED,
    Axis,
    Entry,
    LoopAt,
    Place,
    Skeleton,
)
from mmee_solver.skeletons import (
    Step as PathStep,
)
from mmee_solver.trace import trace
from mmee_solver.workload import Graph, Step

ACCELERATOR = Accelerator(
    "any", 1e9, Dram(8e9, 1, 1), Buffer(1 << 30, 1, 1), Array(1, ((2, 2),), 1, 1), Vector(1, 1)
)


def matmul() -> Graph:
    spec = {"X": "mk", "A": "kn", "Y": "mn"}
    return build(spec, {"m": 6, "k": 8, "n": 5}, einsum("a", "X A", "Y"))


def flat(*ops: str, shared: tuple[str, ...] = (), body: tuple[str, ...] = ()) -> Skeleton:
    """All ops in one list, below some shared loops."""
    leaves = tuple(range(len(ops)))
    axes = tuple(Axis(dim, SHARED) for dim in shared)
    path = tuple(PathStep(axis, dim, leaves) for axis, dim in enumerate(shared))
    entries = tuple(LoopAt(axis) for axis in range(len(shared)))
    return Skeleton(
        ops, axes, Place(entries, tuple((name, 0) for name in body), leaves, leaves), (), (path,) * len(ops)
    )


def layout(skeleton: Skeleton, leaf: int, private: tuple[Axis, ...], *entries: Entry) -> Layout:
    """Entries below the path; axes of the path come first."""
    steps = skeleton.paths[leaf]
    path = Path(leaf, tuple((step.dim, step.leaves) for step in steps), (), ())
    axes = (*(Axis(step.dim, SHARED) for step in steps), *private)
    return Layout(path, axes, (*(LoopAt(i) for i in range(len(steps))), *entries))


# hold Y; for k: hold X; for n: for k (a granule): hold A
ALONE = flat("a")
PLACED = layout(
    ALONE,
    0,
    (Axis("k", PRIVATE), Axis("n", PRIVATE), Axis("k", GRANULE, outer=0)),
    Hold("Y"),
    LoopAt(0),
    Hold("X"),
    LoopAt(1),
    LoopAt(2),
    Hold("A"),
)


def nest_of(tiles: list[int]) -> Nest:
    return emit(matmul(), ALONE, [], [Chosen(PLACED, tiles)], {}).nest


def test_loops_and_holds_stand_where_the_layout_says() -> None:
    inner = Loop("n", 2, (Loop("k", 2, (Hold("A"), Compute("a"))),))
    assert nest_of([4, 2, 2]) == (Hold("Y"), Loop("k", 4, (Hold("X"), inner)))


@pytest.mark.parametrize(
    ("tiles", "nest"),
    [
        # k and n whole; holds that follow each other stand in the order of the graph
        ([8, 5, 8], (Hold("X"), Hold("A"), Hold("Y"), Compute("a"))),
        # a granule as large as the tile that it cuts
        ([4, 5, 4], (Hold("Y"), Loop("k", 4, (Hold("X"), Hold("A"), Compute("a"))))),
        ([4, 5, 6], (Hold("Y"), Loop("k", 4, (Hold("X"), Hold("A"), Compute("a"))))),
        # k whole above X, and cut above A
        ([8, 5, 3], (Hold("X"), Hold("Y"), Loop("k", 3, (Hold("A"), Compute("a"))))),
    ],
)
def test_loops_of_one_step_are_left_out(tiles: list[int], nest: Nest) -> None:
    assert nest_of(tiles) == nest


def siblings(*steps: Step) -> Graph:
    spec = {"X": "lc", "A": "ck", "K": "lk", "B": "cj", "V": "lj"}
    sizes = {"l": 6, "c": 4, "k": 3, "j": 5}
    return build(spec, sizes, einsum("a", "X A", "K", *steps), einsum("b", "X B", "V"))


def twice(graph: Graph, tiles: list[int], shared: tuple[str, ...] = (), first: int = 1) -> Group:
    """Siblings that hold their input privately, before or after a private loop of the first."""
    skeleton = flat("a", "b", shared=shared)
    count = len(shared)
    entries: list[Entry] = [Hold("A"), Hold("K"), Hold("X")]
    entries.insert(first, LoopAt(count))
    one = layout(skeleton, 0, (Axis("k", PRIVATE),), *entries)
    other = layout(skeleton, 1, (Axis("j", PRIVATE),), Hold("X"), LoopAt(count), Hold("B"), Hold("V"))
    above = tiles[:count]
    chosen = [Chosen(one, [*above, tiles[count]]), Chosen(other, [*above, tiles[count + 1]])]
    return emit(graph, skeleton, above, chosen, {})


def held(group: Group, graph: Graph) -> list[tuple[str, set[str]]]:
    return [(site.tensor, set(site.ops)) for site in trace(graph, group.nest).holds if site.tensor == "X"]


def test_a_private_hold_ends_with_its_op() -> None:
    # nothing is looped around a: without a loop of one step its X would live on until b
    graph = siblings()
    group = twice(graph, [3, 5])
    first = (Hold("X"), Hold("A"), Hold("K"), Compute("a"))
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
    group = twice(graph, [2, 5], first=0)
    first = Loop("k", 2, (Hold("X"), Hold("A"), Hold("K"), Compute("a")))
    assert group.nest == (first, Hold("X"), Hold("B"), Hold("V"), Compute("b"))
    # two steps of k for a, one for b
    assert evaluate_group(graph, ACCELERATOR, group).traffic["X"] == (2 * 48 + 48, 0)


def test_the_loop_of_one_step_cuts_nothing() -> None:
    graph = siblings()
    group = twice(graph, [3, 4, 3, 5], shared=("c", "l"))
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
    (first, *_) = twice(graph, [3, 5]).nest
    assert isinstance(first, Loop)
    # l is what X is normalized along and c is summed by a: k remains
    assert (first.dim, first.tile) == ("k", 3)


def test_a_hold_of_a_list_starts_with_the_first_op_that_uses_it() -> None:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "G": "mn", "C": "np", "Y": "mp"}
    ops = (einsum("a", "X A", "H"), einsum("b", "H B", "G"), einsum("c", "G C", "Y"))
    graph = build(spec, dict.fromkeys("mkfnp", 2), *ops)
    skeleton = flat("a", "b", "c", body=("H", "G"))
    own = (("X", "A"), ("B",), ("C", "Y"))
    chosen = [
        Chosen(layout(skeleton, leaf, (), *(Hold(name) for name in names)), [])
        for leaf, names in enumerate(own)
    ]
    nest = emit(graph, skeleton, [], chosen, {}).nest
    assert nest.index(Hold("H")) < nest.index(Compute("a")) < nest.index(Hold("G")) < nest.index(Compute("b"))


def test_a_path_hold_stands_above_its_shared_loop() -> None:
    graph = siblings()
    skeleton = flat("a", "b", shared=("l",), body=("X",))
    path = Path(0, (("l", (0, 1)),), (("A", (0,)), ("K", ())), ())
    one = Layout(path, (Axis("l", SHARED),), (Hold("A"), LoopAt(0), Hold("K")))
    other = layout(skeleton, 1, (), Hold("B"), Hold("V"))
    group = emit(graph, skeleton, [2], [Chosen(one, [2]), Chosen(other, [2])], {})
    inside = (Hold("X"), Hold("K"), Compute("a"), Hold("B"), Hold("V"), Compute("b"))
    assert group.nest == (Hold("A"), Loop("l", 2, inside))


# --- every structure ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(72))
def test_every_structure_gives_a_nest_with_its_holds(seed: int) -> None:
    rng = Random(seed)
    kinds = (*instances.KINDS, *instances.FURTHER_KINDS)
    graph = instances.graph(rng, kinds[seed % len(kinds)], largest=7)
    names = tuple(op.name for op in graph.ops)
    program = group_program(graph, ACCELERATOR, names, recompute=True, recut=False)
    for _ in range(12):
        number = rng.randrange(len(program.skeletons))
        skeleton = program.skeletons[number]
        tiles = [rng.randint(1, graph.dims[axis.dim] - 1) for axis in skeleton.axes]
        chosen = []
        for leaf, part in enumerate(program.leaves):
            placed = part.encoding.structures[rng.choice(list(part.layouts[number]))]
            assert isinstance(placed, Layout)
            own: list[int] = [tiles[step.axis] for step in skeleton.paths[leaf]]
            for axis in placed.axes[len(own) :]:
                most = own[axis.outer] if axis.outer >= 0 else graph.dims[axis.dim]
                own.append(rng.randint(1, most))
            chosen.append(Chosen(placed, own))
        group = emit(graph, skeleton, tiles, chosen, {})
        order = tuple(skeleton.ops[leaf] for leaf in skeleton.root.leaves)
        assert tuple(computes(group.nest)) == order == group.ops
        assert sorted(order) == sorted(names)
        named = [e.tensor for c in chosen for e in c.layout.entries if isinstance(e, Hold)]
        named += [site.tensor for site in skeleton.sites]
        assert sorted(site.tensor for site in trace(graph, group.nest).holds) == sorted(named)
