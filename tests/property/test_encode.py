"""The matrix encoding equals the scalar cost model, element for element; boxes bound what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

import instances
import nests
import numpy as np
import pytest
import threes

from mmee_solver.accelerator import Accelerator
from mmee_solver.bounds import DRAM, ENERGY, Bounder, Boxes, Rates
from mmee_solver.cost import evaluate_group
from mmee_solver.emit import Chosen, emit
from mmee_solver.encode import READ, WRITE, Encoding
from mmee_solver.layouts import Layout
from mmee_solver.nest import Group, Hold
from mmee_solver.program import Program, group_program
from mmee_solver.skeletons import GRANULE, PRIVATE, SHARED, Axis
from mmee_solver.tilings import Tilings, tilings
from mmee_solver.workload import Graph

KINDS = (*instances.KINDS, *instances.FURTHER_KINDS, *threes.KINDS)


def draw(rng: Random, kind: str) -> Graph:
    """A graph of one to three ops with at most four loops; odd bits are rounded up: only bounds hold."""
    if kind in threes.KINDS:
        graph = threes.graph(rng, kind, looped=3)
        return replace(graph, dims={d: n if n == 1 else rng.randint(2, 9) for d, n in graph.dims.items()})
    while True:
        graph = instances.graph(rng, kind, largest=9, looped=4)
        if not any(tensor.bits % 8 for tensor in graph.tensors.values()):
            return graph


def has_rows(graph: Graph) -> bool:
    """Whether statistics may run online: of folded steps, or of a softmax that is an op of its own."""
    folded = any(step.row_wise for op in graph.ops for step in (*op.prologue, *op.epilogue))
    return folded or any(op.axis for op in graph.ops)


@dataclass
class Case:
    """A random group with its bounders; part 0 is the skeleton, part i + 1 the layouts of leaf i."""

    graph: Graph
    accelerator: Accelerator
    program: Program
    bounders: list[Bounder]

    @classmethod
    def of(cls, rng: Random, kind: str) -> Case:
        graph = draw(rng, kind)
        accelerator = instances.accelerator(rng, graph)
        program = group_program(graph, accelerator, [op.name for op in graph.ops], True, False)
        encodings = [program.top, *(leaf.encoding for leaf in program.leaves)]
        return cls(graph, accelerator, program, [Bounder(e, tilings(e, "integer", False)) for e in encodings])

    def boxes(self, number: int, layouts: list[int], positions: list[np.ndarray]) -> list[Boxes]:
        """Boxes of a skeleton and one layout per leaf, positions (n, A) each: n single tilings."""
        parts = []
        for bounder, structure, index in zip(self.bounders, [number, *layouts], positions, strict=True):
            wide = np.zeros((len(index), bounder.encoding.size.shape[1]), dtype=np.int64)
            wide[:, : index.shape[1]] = index
            parts.append(Boxes(np.full(len(index), structure), wide, wide))
        return parts

    def random(self, rng: Random) -> tuple[int, list[int]]:
        number = rng.randrange(len(self.program.skeletons))
        return number, [int(rng.choice(list(leaf.layouts[number]))) for leaf in self.program.leaves]

    def positions(self, rng: Random, number: int, layouts: list[int]) -> list[np.ndarray]:
        """One random tiling: shared tiles below N, granules at most what they cut, paths as the skeleton."""
        skeleton = self.program.skeletons[number]
        shared = _draw(rng, skeleton.axes, self.bounders[0].encoding, self.bounders[0].tilings, number, {})
        found = [shared]
        for leaf, layout in enumerate(layouts):
            bounder = self.bounders[leaf + 1]
            fixed = {i: int(shared[0, step.axis]) for i, step in enumerate(skeleton.paths[leaf])}
            axes = bounder.encoding.structures[layout].axes
            found.append(_draw(rng, axes, bounder.encoding, bounder.tilings, layout, fixed))
        return found

    def samples(self, rng: Random, count: int) -> Iterator[tuple[int, Bounder, Boxes, Boxes]]:
        """Of one random structure, part by part: bounder, box of all tilings, some random tilings."""
        number, layouts = self.random(rng)
        draws = [self.positions(rng, number, layouts) for _ in range(count)]
        each = self.boxes(number, layouts, [np.concatenate(p) for p in zip(*draws, strict=True)])
        for part, (bounder, boxes) in enumerate(zip(self.bounders, each, strict=True)):
            yield part, bounder, bounder.all_boxes().take(boxes.structure[:1]), boxes


def _draw(
    rng: Random,
    axes: tuple[Axis, ...],
    encoding: Encoding,
    sizes: Tilings,
    structure: int,
    fixed: dict[int, int],
) -> np.ndarray:
    position = np.zeros((1, len(axes)), dtype=np.int64)
    for index, axis in enumerate(axes):
        most = int(sizes.length[sizes.number[structure, index]]) - 1 - (axis.kind == SHARED)
        if axis.kind == GRANULE and axis.outer >= 0:
            most = int(position[0, axis.outer])  # both lists hold all sizes
        position[0, index] = fixed.get(index, rng.randint(0, most))
    return position


def group_of(case: Case, number: int, layouts: list[int], boxes: list[Boxes], picks: list[int]) -> Group:
    skeleton = case.program.skeletons[number]
    tiles = [[int(v) for v in b.lowest(part)[0]] for b, part in zip(case.bounders, boxes, strict=True)]
    chosen, configs = [], {}
    for leaf, layout in enumerate(layouts):
        encoding = case.bounders[leaf + 1].encoding
        placed = encoding.structures[layout]
        assert isinstance(placed, Layout)
        chosen.append(Chosen(placed, tiles[leaf + 1][: len(placed.axes)]))
        if encoding.table is not None:
            configs[skeleton.ops[leaf]] = encoding.table.configs[picks[leaf]]
    return emit(case.graph, skeleton, tiles[0][: len(skeleton.axes)], chosen, configs)


def single_steps_run_online(case: Case, number: int, layouts: list[int], positions: list[np.ndarray]) -> bool:
    """A row axis looped in one step is offline in the nest but counted online in the matrix."""
    axes = {step.axis for op in case.graph.ops for step in (*op.prologue, *op.epilogue) if step.row_wise}
    axes |= {op.axis for op in case.graph.ops if op.axis}
    for bounder, structure, index in zip(case.bounders, [number, *layouts], positions, strict=True):
        placed = bounder.encoding.structures[structure]
        wide = np.full(index.shape[1], structure)
        lists = bounder.tilings.number[wide, np.arange(index.shape[1])]
        values = bounder.tilings.value(lists, index[0])
        if any(
            a.dim in axes and v == case.graph.dims[a.dim] for a, v in zip(placed.axes, values, strict=True)
        ):
            return True
    return False


@pytest.mark.parametrize("seed", range(350))
def test_figures_of_single_tilings_equal_the_scalar_model(seed: int) -> None:
    rng = Random(seed)
    case = Case.of(rng, KINDS[seed % len(KINDS)])
    for _ in range(12):
        number, layouts = case.random(rng)
        positions = case.positions(rng, number, layouts)
        if single_steps_run_online(case, number, layouts, positions):
            continue
        boxes = case.boxes(number, layouts, positions)
        columns, bytes_, picks = np.zeros(5), np.zeros(len(layouts)), []
        for part, (bounder, box) in enumerate(zip(case.bounders, boxes, strict=True)):
            view = bounder.view(box)
            linear, recompute = bounder.linear(view)
            columns = columns + linear[0]
            bytes_ = bytes_ + bounder.occupancy(box)[0]
            if part:
                each = bounder.op(view, recompute)[0]
                picks.append(rng.randrange(len(each)))
                columns = columns + each[picks[-1]]
        figures = Rates.of(case.accelerator).figures(columns, bytes_.max())
        group = group_of(case, number, layouts, boxes, picks)
        metrics = evaluate_group(case.graph, case.accelerator, group)
        assert figures.dram == metrics.dram_bytes
        assert Fraction(float(figures.energy)) / case.program.top.weights.scale == metrics.energy.total
        assert figures.latency == metrics.latency_cycles
        if case.accelerator.buffer.double_buffered and has_rows(case.graph):
            assert figures.peak <= metrics.peak_buffer_bytes  # statistics may count twice
        else:
            assert figures.peak == metrics.peak_buffer_bytes


@pytest.mark.parametrize("seed", range(140))
def test_a_box_bounds_every_tiling_in_it(seed: int) -> None:
    rng = Random(1000 + seed)
    case = Case.of(rng, KINDS[seed % len(KINDS)])
    for _ in range(6):
        for part, bounder, _, each in case.samples(rng, 6):
            box = Boxes(each.structure[:1], each.low.min(axis=0)[None], each.low.max(axis=0)[None])
            least, all_of = figures(bounder, box, part), figures(bounder, each, part)
            assert (least[0] <= all_of[0].min(axis=0)).all()
            assert (least[1] <= all_of[1].min(axis=0)).all()


def figures(bounder: Bounder, boxes: Boxes, part: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns, for a leaf of every configuration, and bytes."""
    view = bounder.view(boxes)
    linear, recompute = bounder.linear(view)
    columns = linear[:, None, :] + bounder.op(view, recompute) if part else linear[:, None, :]
    return columns, bounder.occupancy(boxes)


@pytest.mark.parametrize("seed", range(140))
def test_shrinking_keeps_what_fits(seed: int) -> None:
    rng = Random(2000 + seed)
    case = Case.of(rng, KINDS[seed % len(KINDS)])
    for _, bounder, whole, each in case.samples(rng, 20):
        used = bounder.occupancy(each)
        capacity = used[rng.randrange(len(used))]
        shrunk = bounder.shrink(whole, capacity[None, :])
        fits = (used <= capacity).all(axis=1)
        assert fits.any()
        assert (shrunk.low <= each.low[fits]).all()
        assert (shrunk.high >= each.low[fits]).all()
        # and takes all that does not fit: with the others at their least, an axis ends where room does
        assert shrunk.low.tolist() == whole.low.tolist()
        for axis, last in enumerate(most_that_fit(bounder, whole, capacity)):
            assert shrunk.high[0, axis] == last
        # less than the least tiles leaves nothing
        least = bounder.occupancy(whole)
        if least.max() > 0:
            assert (bounder.shrink(whole, least - 1).high < 0).all()


def along(whole: Boxes, others: np.ndarray, axis: int) -> Boxes:
    """Every position of one axis of a box, the other axes at some positions, (1, A)."""
    count = int(whole.high[0, axis]) + 1
    positions = np.repeat(others, count, axis=0)
    positions[:, axis] = np.arange(count)
    return Boxes(np.repeat(whole.structure, count), positions, positions)


def most_that_fit(bounder: Bounder, whole: Boxes, capacity: np.ndarray) -> list[int]:
    """Per axis, the last position that fits with all others at their least; a granule ends with its tile."""
    found: list[int] = []
    for axis in range(whole.low.shape[1]):
        used = bounder.occupancy(along(whole, whole.low, axis))
        fitting = int(np.flatnonzero((used <= capacity).all(axis=1)).max())
        outer = int(bounder.encoding.outer[whole.structure[0], axis])
        found.append(min(fitting, found[outer]) if outer >= 0 else fitting)
    return found


def test_shrinking_removes_large_tiles() -> None:
    # int8: with X 24 × 16, A 16 × 20 and Y 24 × 20 at single elements, 3 bytes are in use
    spec, sizes = {"X": "mk", "A": "kn", "Y": "mn"}, {"m": 24, "k": 16, "n": 20}
    graph = nests.build(spec, sizes, nests.einsum("a", "X A", "Y"), dtype="int8")
    accelerator = instances.accelerator(Random(0), graph)
    accelerator = replace(accelerator, buffer=replace(accelerator.buffer, double_buffered=False))
    encoding = group_program(graph, accelerator, ["a"], True, False).leaves[0].encoding
    bounder = Bounder(encoding, tilings(encoding, "integer", traffic_only=False))
    for number, layout in enumerate(encoding.structures):
        assert isinstance(layout, Layout)
        names = [entry.tensor for entry in layout.entries if isinstance(entry, Hold)]
        if names != ["Y", "X", "A"]:
            continue
        # Y below m and n, X below k, A below a granule of n, in 13 bytes: m is in Y and X, 2m + 1;
        # n is in Y alone, n + 2; k in X and A, 2k + 1; the granule in A, g + 2
        shrunk = bounder.shrink(bounder.all_boxes().take(np.array([number])), np.full((1, 1), 13.0))
        values = bounder.values(shrunk)[1][0]
        found = {(axis.dim, axis.kind): values[i] for i, axis in enumerate(layout.axes)}
        assert found == {("m", PRIVATE): 6, ("n", PRIVATE): 11, ("k", PRIVATE): 6, ("n", GRANULE): 11}
        # a granule of at least 5 needs a tile of at least 5 to cut
        box = bounder.all_boxes().take(np.array([number]))
        granule = next(i for i, axis in enumerate(layout.axes) if axis.kind == GRANULE)
        box.low[0, granule] = 4
        raised = bounder.lowest(bounder.shrink(box, np.full((1, 1), 1e6)))[0]
        assert raised[layout.axes[granule].outer] == 5
        return
    raise AssertionError("no layout in the order Y, X, A")


@pytest.mark.parametrize("seed", range(140))
def test_raising_keeps_what_costs_at_most_the_limit(seed: int) -> None:
    rng = Random(3000 + seed)
    case = Case.of(rng, KINDS[seed % len(KINDS)])
    for _, bounder, whole, each in case.samples(rng, 20):
        traffic = np.zeros(5)
        traffic[[READ, WRITE]] = 1
        for weights, column in ((traffic, DRAM), (bounder.form_weights, ENERGY)):
            costs = bounder.forms(bounder.view(each)) @ weights
            limit = costs[rng.randrange(len(costs))]
            raised = bounder.raise_low(whole, weights, np.array([limit]))
            cheap = costs <= limit
            assert (raised.low <= each.low[cheap]).all(), column
            assert (raised.high >= each.low[cheap]).all()
            if not has_rows(case.graph):  # what rescaling subtracts loosens it
                assert raised.low[0].tolist() == least_that_costs(bounder, whole, weights, limit)
            least = bounder.forms(bounder.view(whole)) @ weights
            if least[0] > 1:
                none = bounder.raise_low(whole, weights, least * (1 - 1e-6) - 1)
                assert (none.low > none.high).any()


def least_that_costs(bounder: Bounder, whole: Boxes, weights: np.ndarray, limit: float) -> list[int]:
    """Per axis, the first position within the limit with all others at their largest; 0 for granules."""
    found: list[int] = []
    for axis in range(whole.low.shape[1]):
        each = along(whole, whole.high, axis)
        cheap = np.flatnonzero(bounder.forms(bounder.view(each)) @ weights <= limit)
        found.append(0 if bounder.encoding.granule[whole.structure[0], axis] else int(cheap.min()))
    return found


def test_raising_removes_small_tiles() -> None:
    # X 24 × 16, A 16 × 20: with the least traffic, every loop that repeats a tensor has one step
    graph = nests.build(
        {"X": "mk", "A": "kn", "Y": "mn"}, {"m": 24, "k": 16, "n": 20}, nests.einsum("a", "X A", "Y")
    )
    accelerator = instances.accelerator(Random(0), graph)
    bounder = Bounder(
        (encoding := group_program(graph, accelerator, ["a"], True, False).leaves[0].encoding),
        tilings(encoding, "integer", traffic_only=True),
    )
    traffic = np.zeros(5)
    traffic[[READ, WRITE]] = 1
    boxes = bounder.all_boxes()
    least = bounder.forms(bounder.view(boxes)) @ traffic
    assert (least == 16 * (24 * 16 + 16 * 20 + 24 * 20)).all()
    raised = bounder.raise_low(boxes, traffic, least)
    for number, layout in enumerate(encoding.structures):
        repeating = np.flatnonzero(encoding.step_query[number].any(axis=0))
        values = bounder.lowest(raised)[number]
        assert all(values[axis] == graph.dims[layout.axes[axis].dim] for axis in repeating)
