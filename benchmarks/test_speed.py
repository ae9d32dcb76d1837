"""How long a solve takes: ``pytest benchmarks`` (pytest-benchmark prints the table)."""

from __future__ import annotations

import pytest

from mmee_solver import load_accelerator, load_graph, solve

KIB, MIB = 1024, 1024 * 1024
CASES = [
    ("matmul-64", 2048),
    ("matmul-61-67-71", 2000),
    ("matmul-16384-1024-1024", 2 * 1049601),
    ("attention-head", 64 * KIB),
    ("attention-head", 256 * KIB),
    ("attention-head", MIB),
    ("attention-head-softmax", 64 * KIB),
    ("attention-head-softmax", 256 * KIB),
    ("attention-head-softmax", MIB),
    ("gpt3-6.7b-ffn", 256 * KIB),
    ("gpt3-6.7b-ffn", MIB),
    ("gpt3-6.7b-ffn", 4 * MIB),
    ("recompute-pair", 600),
]


@pytest.mark.parametrize("tiles", ["integer", "divisors"])
@pytest.mark.parametrize(("name", "capacity_bytes"), CASES)
def test_dram(benchmark, name: str, capacity_bytes: int, tiles: str) -> None:  # type: ignore[no-untyped-def]
    """Solve time of one case, without reading files."""
    graph, accelerator = load_graph(name), load_accelerator("accel1").with_buffer(capacity_bytes)
    mapping = benchmark.pedantic(
        solve, (graph, accelerator, "dram", tiles), rounds=3, warmup_rounds=1, iterations=1
    )
    assert mapping.status == "optimal"
