"""The supplied reference counts: evaluator and executor against 120 nests, cost model against 90 costs."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.cost import Energy, evaluate_group
from mmee_solver.execute import run_group
from mmee_solver.io import accelerator_from_json, graph_from_json
from mmee_solver.nest import Group, array_from_json, nest_from_json
from mmee_solver.numerics import plain
from mmee_solver.units import exact
from mmee_solver.workload import Graph

REFERENCE = Path(__file__).parents[1] / "reference"


def cases(name: str) -> list[Any]:
    found = json.loads((REFERENCE / name).read_text(encoding="utf-8"))
    return [pytest.param(case, id=f"{number}-{case['name']}") for number, case in enumerate(found)]


NESTS, COSTS = cases("nests.json"), cases("costs.json")
# No figure of the nests depends on the accelerator, except that tiles are not double-buffered.
ANY = Accelerator(
    "any",
    clock_hz=1e9,
    dram=Dram(60e9, 64, 64),
    buffer=Buffer(1 << 20, 2, 2.3),
    array=Array(1, ((4, 4),), 0.3, 0.5),
    vector=Vector(128, 0.4),
)
COUNTS = ("dram_read_bytes", "dram_write_bytes", "peak_buffer_bytes")
ENERGY = tuple(entry.name for entry in fields(Energy))


def parts(case: dict[str, Any]) -> tuple[Graph, Group]:
    array = {op: array_from_json(config) for op, config in case.get("array", {}).items()}
    return graph_from_json(case["graph"]), Group(tuple(case["ops"]), nest_from_json(case["nest"]), array)


def test_there_are_as_many_cases_as_the_design_says() -> None:
    assert (len(NESTS), len(COSTS)) == (120, 90)


@pytest.mark.parametrize("case", NESTS)
def test_evaluator_gives_the_counts_of_a_nest(case: dict[str, Any]) -> None:
    graph, group = parts(case)
    metrics = evaluate_group(graph, ANY, group)
    assert {name: getattr(metrics, name) for name in case["expect"]} == case["expect"]
    assert set(case["expect"]) == {*COUNTS, "macs"}


def executes(case: dict[str, Any]) -> None:
    graph, group = parts(case)
    rng = np.random.default_rng(0)
    shapes = {name: [graph.dims[dim] for dim in graph.tensors[name].dims] for name in graph.inputs()}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    run = run_group(graph, group, arrays)
    assert {name: getattr(run, name) for name in COUNTS} == {name: case["expect"][name] for name in COUNTS}
    expected = plain(graph, arrays)
    assert set(run.arrays) == set(graph.outputs)
    for name, values in run.arrays.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", NESTS)
def test_executor_gives_the_counts_and_the_numbers_of_a_nest(case: dict[str, Any]) -> None:
    executes(case)


@pytest.mark.slow  # some compute tens of thousands of tiles
@pytest.mark.parametrize("case", COSTS)
def test_executor_gives_the_counts_and_the_numbers_of_a_costed_nest(case: dict[str, Any]) -> None:
    executes(case)


@pytest.mark.parametrize("case", COSTS)
def test_cost_model_gives_every_figure(case: dict[str, Any]) -> None:
    graph, group = parts(case)
    metrics = evaluate_group(graph, accelerator_from_json(case["accelerator"]), group)
    expected = dict(case["expect"])
    energy = expected.pop("energy_pj")
    assert {name: getattr(metrics, name) for name in expected} == expected
    assert set(energy) == {*ENERGY, "total"}
    for name, value in energy.items():
        # the reference has decimals that passed through binary floating point
        assert getattr(metrics.energy, name) == pytest.approx(exact(value), rel=1e-12)
