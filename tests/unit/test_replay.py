"""Mappings of the zoo replay through evaluator and validator to the same figures."""

from __future__ import annotations

import pytest

from mmee_graphs import names
from mmee_solver import load_accelerator, load_graph, solve
from mmee_solver.cost import add_metrics
from mmee_solver.io import accelerator_names
from mmee_solver.mapping import Mapping
from mmee_solver.validate import validate_groups

OBJECTIVES = ("dram", "energy", "latency", "edp")
QUICK = (
    ("gpt3-6.7b-attention", "accel1", "dram"),
    ("gpt3-6.7b-decode-attention", "accel2", "edp"),
    ("bert-s-attention", "tileflow-edge", "latency"),
    ("bert-b-ffn", "eyeriss-normalised", "dram"),
    ("vit-b16-197-ffn", "tpuv4i-like", "energy"),
    ("llama3-8b-decode-ffn", "ascend-910-like", "dram"),
    ("palm-62b-decode-attention", "tileflow-cloud", "energy"),
)
# Whole blocks, whose prefill takes minutes and more: these stand for them.
BLOCKS = (
    "bert-b-block",
    "vit-b16-197-block",
    "palm-62b-decode-block",
    "llama3-8b-decode-block-w4a16",
    "mixtral-8x7b-decode-block",
    "deepseek-v3-mla-decode-absorbed",
    "deepseek-v3-mla-decode-expanded",
    "gpt3-6.7b-decode-2-layers",
    "linear-attention",
)
MOST_OPS = 5


def replay(mapping: Mapping) -> None:
    found = validate_groups(mapping.graph, mapping.accelerator, mapping.groups, mapping.resident)
    assert found == mapping.group_metrics
    assert add_metrics(found) == mapping.metrics
    assert mapping.metrics.peak_buffer_bytes <= mapping.accelerator.buffer.capacity_bytes
    assert mapping.value == mapping.bound


@pytest.mark.parametrize(("graph", "accelerator", "objective"), QUICK)
def test_quick_replay(graph: str, accelerator: str, objective: str) -> None:
    preset = load_accelerator(accelerator)
    mapping = solve(load_graph(graph), preset, objective)
    replay(mapping)
    half = preset.with_buffer(preset.buffer.capacity_bytes // 2)
    assert solve(load_graph(graph), half, objective).value >= mapping.value


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("accelerator", accelerator_names())
@pytest.mark.parametrize("graph", [name for name in names() if len(load_graph(name).ops) <= MOST_OPS])
def test_every_replay(graph: str, accelerator: str, objective: str) -> None:
    preset = load_accelerator(accelerator)
    mapping = solve(load_graph(graph), preset, objective)
    replay(mapping)
    half = preset.with_buffer(preset.buffer.capacity_bytes // 2)
    assert solve(load_graph(graph), half, objective).value >= mapping.value


@pytest.mark.slow
@pytest.mark.parametrize("graph", BLOCKS)
def test_blocks_replay(graph: str) -> None:
    replay(solve(load_graph(graph), load_accelerator("accel2"), "dram"))
