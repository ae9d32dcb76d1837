"""Running a random legal nest moves and holds what the cost model says, and gives numpy's numbers."""

from __future__ import annotations

from random import Random

import nests
import numpy as np
import pytest

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import evaluate_group
from mmee_solver.errors import MappingError
from mmee_solver.execute import run_group
from mmee_solver.nest import Group
from mmee_solver.numerics import plain
from mmee_solver.validate import validate_group
from mmee_solver.workload import Graph

FUSED = [kind for kind in nests.KINDS if len(nests.graph(Random(0), kind).ops) > 1]


def draw(kind: str, seed: int, *, legal: bool = True) -> tuple[Graph, Accelerator, Group]:
    rng = Random(f"{kind} {seed}")
    graph = nests.graph(rng, kind)
    accelerator = nests.accelerator(rng, graph)
    return graph, accelerator, nests.group(rng, graph, accelerator, legal=legal)


def agree(graph: Graph, accelerator: Accelerator, group: Group) -> None:
    metrics = evaluate_group(graph, accelerator, group)
    assert validate_group(graph, accelerator, group) == metrics
    arrays = nests.arrays(graph)
    run = run_group(graph, group, arrays, accelerator.buffer.double_buffered)
    assert run.traffic == metrics.traffic
    assert run.peak_buffer_bytes == metrics.peak_buffer_bytes
    expected = plain(graph, arrays)
    assert set(run.arrays) >= set(graph.outputs)
    for name, values in run.arrays.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-7, atol=1e-9, err_msg=name)


def is_legal(graph: Graph, accelerator: Accelerator, group: Group) -> bool:
    try:
        validate_group(graph, accelerator, group)
    except MappingError:
        return False
    return True


def accepted(kind: str, seeds: range) -> int:
    """How many of some lawless nests the validator takes; all of these must run as promised."""
    found = [case for seed in seeds if is_legal(*(case := draw(kind, seed, legal=False)))]
    for case in found:
        agree(*case)
    return len(found)


@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("kind", nests.KINDS)
def test_executor_evaluator_and_numpy_agree_on_legal_nests(kind: str, seed: int) -> None:
    agree(*draw(kind, seed))


@pytest.mark.slow
@pytest.mark.parametrize("kind", nests.KINDS)
def test_executor_evaluator_and_numpy_agree_on_legal_nests_at_length(kind: str) -> None:
    for seed in range(1000, 1300):
        agree(*draw(kind, seed))


@pytest.mark.parametrize("kind", FUSED)
def test_what_the_validator_takes_runs_as_promised(kind: str) -> None:
    assert 2 <= accepted(kind, range(40)) < 40


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUSED)
def test_what_the_validator_takes_runs_as_promised_at_length(kind: str) -> None:
    accepted(kind, range(1000, 2000))
