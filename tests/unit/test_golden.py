"""Whole mappings, as they were when last reviewed: values, nests, arrays and figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmee_solver import load_accelerator, load_graph, mapping_to_json, solve
from mmee_solver.io import accelerator_to_json, dump_json, graph_to_json

CASES = [
    ("attention-head-softmax", "accel1", 262144, "dram", "integer"),
    ("recompute-pair", "accel1", 600, "dram", "integer"),
    ("matmul-61-67-71", "eyeriss-normalised", 2000, "energy", "integer"),
    ("bert-s-attention", "tileflow-edge", 262144, "latency", "divisors"),
    ("llama3-8b-decode-ffn", "accel2", 4194304, "edp", "divisors"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_mapping_is_the_golden_one(
    case: tuple[str, str, int, str, str], golden: Callable[[str, str], None]
) -> None:
    name, preset, capacity_bytes, objective, tiles = case
    accelerator = load_accelerator(preset).with_buffer(capacity_bytes)
    mapping = solve(load_graph(name), accelerator, objective, tiles)
    data = mapping_to_json(mapping, graph_to_json(mapping.graph), accelerator_to_json(accelerator))
    del data["certificate"]  # its counts change whenever the search gets better
    golden(f"mappings/{'-'.join(map(str, case))}.json", dump_json(data))
