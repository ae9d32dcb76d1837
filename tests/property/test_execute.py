"""Running a random legal nest moves and holds what the cost model says, and gives numpy's numbers."""

from __future__ import annotations

from random import Random

import nests
import numpy as np
import pytest

from mmee_solver.cost import evaluate_group
from mmee_solver.execute import run_group
from mmee_solver.numerics import plain
from mmee_solver.validate import validate_group


def agree(kind: str, seed: int) -> None:
    rng = Random(f"{kind} {seed}")
    graph = nests.graph(rng, kind)
    accelerator = nests.accelerator(rng, graph)
    group = nests.group(rng, graph, accelerator)
    metrics = evaluate_group(graph, accelerator, group)
    assert validate_group(graph, accelerator, group) == metrics
    arrays = nests.arrays(graph, seed)
    run = run_group(graph, group, arrays, accelerator.buffer.double_buffered)
    assert run.traffic == metrics.traffic
    assert run.peak_buffer_bytes == metrics.peak_buffer_bytes
    expected = plain(graph, arrays)
    assert set(run.arrays) >= set(graph.outputs)
    for name, values in run.arrays.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", nests.KINDS)
def test_executor_evaluator_and_numpy_agree(kind: str, seed: int) -> None:
    agree(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", nests.KINDS)
def test_executor_evaluator_and_numpy_agree_at_length(kind: str) -> None:
    for seed in range(1000, 1300):
        agree(kind, seed)
