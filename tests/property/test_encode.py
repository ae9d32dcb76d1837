"""The matrix encoding equals the scalar cost model, element for element."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import instances
import numpy as np
import pytest

from mmee_solver.bounds import Bounder, Boxes, Figures
from mmee_solver.cost import evaluate_group
from mmee_solver.emit import emit
from mmee_solver.encode import Encoding, encode
from mmee_solver.structures import GRANULE, SHARED, GroupSpace, Structure, structures
from mmee_solver.tilings import Tilings, tilings
from mmee_solver.trees import order_trees
from mmee_solver.workload import Graph


def random_positions(rng: Random, encoding: Encoding, sizes: Tilings, number: int) -> np.ndarray:
    """A position per axis in its list of sizes: shared tiles below N, granules at most what they cut."""
    position = np.zeros(encoding.size.shape[1], dtype=np.int64)
    for index, axis in enumerate(encoding.structures[number].axes):
        most = int(sizes.length[sizes.number[number, index]]) - 1 - (axis.kind == SHARED)
        if axis.kind == GRANULE and axis.outer >= 0:
            most = int(position[axis.outer])  # both lists hold all sizes
        position[index] = rng.randint(0, most)
    return position


def single_steps_run_online(structure: Structure, graph: Graph, tiles: list[int]) -> bool:
    """A row axis looped in one step is offline in the nest but counted online in the matrix."""
    axes = {step.axis for op in graph.ops for step in (*op.prologue, *op.epilogue) if step.row_wise}
    return any(
        axis.dim in axes and tile == graph.dims[axis.dim]
        for axis, tile in zip(structure.axes, tiles, strict=True)
    )


@pytest.mark.parametrize("seed", range(180))
def test_figures_of_single_tilings_equal_the_scalar_model(seed: int) -> None:
    rng = Random(seed)
    graph = instances.graph(rng, instances.KINDS[seed % len(instances.KINDS)], largest=9, looped=4)
    accelerator = instances.accelerator(rng, graph)
    space = GroupSpace.of(graph, [op.name for op in graph.ops])
    found = list(structures(space, order_trees(graph, [op.name for op in graph.ops])))
    encoding = encode(space, found, accelerator)
    sizes = tilings(encoding, "integer", traffic_only=False)
    bounder = Bounder(encoding, sizes, accelerator, 1 << 40)
    has_rows = any(s.row_wise for op in graph.ops for s in (*op.prologue, *op.epilogue))
    for number in rng.sample(range(len(found)), min(12, len(found))):
        structure = found[number]
        position = random_positions(rng, encoding, sizes, number)[None]
        values = sizes.value(sizes.number[[number]], position)[0]
        tiles = [int(value) for value in values[: len(structure.axes)]]
        if single_steps_run_online(structure, graph, tiles):
            continue
        view = bounder.view(Boxes(np.array([number]), position, position))
        linear = bounder.linear(view)
        ops = bounder.ops(view, linear)
        picks = [rng.randrange(op.energy.shape[1]) for op in ops]
        choice = [
            (op.energy[0][[pick]], op.cycles[0][[pick]], op.bits[0][[pick]])
            for op, pick in zip(ops, picks, strict=True)
        ]
        figures = bounder.combine(linear, choice)
        configs = {
            name: table.configs[pick]
            for name, table, pick in zip(structure.ops, encoding.tables, picks, strict=True)
            if table is not None
        }
        metrics = evaluate_group(graph, accelerator, emit(graph, structure, tiles, configs))
        scale = encoding.weights.scale
        assert figures.dram[0] == metrics.dram_bytes
        if accelerator.buffer.double_buffered and has_rows:
            assert figures.peak[0] <= metrics.peak_buffer_bytes  # statistics may count twice
        else:
            assert figures.peak[0] == metrics.peak_buffer_bytes
        assert Fraction(figures.energy[0]) / scale == metrics.energy.total
        assert figures.latency[0] == metrics.latency_cycles


@pytest.mark.parametrize("seed", range(90))
def test_a_box_bounds_every_tiling_in_it(seed: int) -> None:
    rng = Random(1000 + seed)
    graph = instances.graph(rng, instances.KINDS[seed % len(instances.KINDS)], largest=9, looped=4)
    accelerator = instances.accelerator(rng, graph)
    space = GroupSpace.of(graph, [op.name for op in graph.ops])
    found = list(structures(space, order_trees(graph, [op.name for op in graph.ops])))
    encoding = encode(space, found, accelerator)
    sizes = tilings(encoding, "integer", traffic_only=False)
    bounder = Bounder(encoding, sizes, accelerator, 1 << 40)
    for number in rng.sample(range(len(found)), min(8, len(found))):
        inside = [random_positions(rng, encoding, sizes, number) for _ in range(6)]
        positions = np.array(inside)
        low, high = positions.min(axis=0)[None], positions.max(axis=0)[None]
        box = _figures(bounder, Boxes(np.array([number]), low, high))
        many = np.full(len(inside), number)
        each = _figures(bounder, Boxes(many, positions, positions))
        for name in ("dram", "energy", "latency", "peak"):
            assert getattr(box, name)[0] <= getattr(each, name).min(), name


def _figures(bounder: Bounder, boxes: Boxes) -> Figures:
    view = bounder.view(boxes)
    linear = bounder.linear(view)
    return bounder.full(linear, bounder.ops(view, linear))
