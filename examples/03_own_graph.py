"""A graph written by hand: two layers with prime sizes, on a buffer of a few KiB.

    python examples/03_own_graph.py [SIZE]

Prime sizes have no divisors to tile by; any integer tile size is considered, so that costs little.
"""

import sys

from mmee_solver import load_accelerator, solve
from mmee_solver.io import graph_from_json
from mmee_solver.report import page
from mmee_solver.units import parse_size

GRAPH = {
    "format": "mmee-graph/1",
    "name": "two-layers",
    "dims": {"m": 53, "k": 31, "f": 67, "n": 29},
    "tensors": {
        "X": {"dims": ["m", "k"]},
        "A": {"dims": ["k", "f"]},
        "S": {"dims": ["m", "f"]},
        "H": {"dims": ["m", "f"]},
        "B": {"dims": ["f", "n"]},
        "Y": {"dims": ["m", "n"]},
    },
    "ops": [
        {"name": "first", "kind": "einsum", "inputs": ["X", "A"], "output": "S"},
        {"name": "gelu", "kind": "elementwise", "function": "gelu", "inputs": ["S"], "output": "H"},
        {"name": "second", "kind": "einsum", "inputs": ["H", "B"], "output": "Y"},
    ],
}


def main(size: str = "3KiB") -> None:
    graph = graph_from_json(GRAPH)
    accelerator = load_accelerator("accel1").with_buffer(parse_size(size))
    for tiles in ("divisors", "integer"):
        mapping = solve(graph, accelerator, objective="dram", tiles=tiles)
        print(f"{tiles:>8} tile sizes: {mapping.metrics.dram_bytes} bytes moved")
    print()
    print(page(mapping, graph.name, f"{accelerator.name} with {size}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
