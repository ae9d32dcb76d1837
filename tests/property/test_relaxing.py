"""Relaxing a constraint never worsens the optimum; renaming or reordering changes nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import instances
import pytest

from mmee_solver import solve
from mmee_solver.errors import InfeasibleError
from mmee_solver.mapping import Mapping
from mmee_solver.validate import validate_groups
from mmee_solver.workload import Graph, Op, Step, Tensor

OBJECTIVES = ("dram", "energy", "latency", "edp")
SEEDS = range(24)


def case(seed: int) -> tuple[Random, Graph, object, str]:
    rng = Random(seed)
    graph = instances.graph(rng, instances.KINDS[seed % len(instances.KINDS)], largest=17, looped=4)
    return rng, graph, instances.accelerator(rng, graph), OBJECTIVES[seed % 4]


def attempt(*args: object, **options: object) -> Mapping | None:
    try:
        mapping = solve(*args, **options)  # type: ignore[arg-type]
    except InfeasibleError:
        return None
    checked = validate_groups(mapping.graph, mapping.accelerator, mapping.groups, mapping.resident)
    assert checked == mapping.group_metrics
    assert mapping.bound == mapping.value
    return mapping


@pytest.mark.parametrize("seed", SEEDS)
def test_a_larger_space_or_buffer_is_never_worse(seed: int) -> None:
    _, graph, accelerator, objective = case(seed)
    wide = attempt(graph, accelerator, objective)
    if wide is None:
        return
    for options in (
        {"tiles": "divisors"},
        {"recompute": False},
        {"fusion": "none"},
        {"fusion": "all"},
        {"residency": False},
    ):
        narrow = attempt(graph, accelerator, objective, **options)
        assert narrow is None or narrow.value >= wide.value, options
    capacity = accelerator.buffer.capacity_bytes  # type: ignore[attr-defined]
    for size in (capacity - 1, capacity * 3 // 4, capacity // 2):
        small = attempt(graph, accelerator.with_buffer(max(1, size)), objective)  # type: ignore[attr-defined]
        assert small is None or small.value >= wide.value


@pytest.mark.parametrize("seed", SEEDS)
def test_renaming_dims_and_reordering_changes_no_value(seed: int) -> None:
    rng, graph, accelerator, objective = case(seed)
    first = attempt(graph, accelerator, objective)
    if first is None:
        return
    second = attempt(renamed(rng, graph), accelerator, objective)
    assert second is not None
    assert second.value == first.value
    assert second.metrics.energy.total == first.metrics.energy.total


def renamed(rng: Random, graph: Graph) -> Graph:
    fresh = list(graph.dims)
    rng.shuffle(fresh)
    name = {old: f"z{new}" for old, new in zip(graph.dims, fresh, strict=True)}

    def step(s: Step) -> Step:
        return replace(s, axis=name.get(s.axis, ""))

    def op(o: Op) -> Op:
        return replace(
            o,
            axis=name.get(o.axis, ""),
            prologue=tuple(map(step, o.prologue)),
            epilogue=tuple(map(step, o.epilogue)),
        )

    dims = [(name[d], n) for d, n in graph.dims.items()]
    rng.shuffle(dims)
    tensors = {
        t.name: Tensor(t.name, tuple(name[d] for d in t.dims), t.dtype) for t in graph.tensors.values()
    }
    return Graph(graph.name, dict(dims), tensors, tuple(map(op, graph.ops)), graph.outputs)


@pytest.mark.parametrize("seed", range(8))
def test_equal_inputs_give_equal_mappings(seed: int) -> None:
    _, graph, accelerator, objective = case(seed)
    first, second = (attempt(graph, accelerator, objective) for _ in range(2))
    assert first == second
