"""Solve attention from Python and print the page that mmee-solve prints.

    python examples/01_attention.py [GRAPH [ACCELERATOR]]

GRAPH and ACCELERATOR are files or names from mmee-solve --list.
"""

import sys

from mmee_solver import load_accelerator, load_graph, solve
from mmee_solver.report import page


def main(graph_name: str = "gpt3-6.7b-attention", accelerator_name: str = "accel1") -> None:
    graph, accelerator = load_graph(graph_name), load_accelerator(accelerator_name)
    mapping = solve(graph, accelerator, objective="energy")
    print(page(mapping, graph.name, accelerator.name))

    # every figure of the page is there as an exact number, too
    metrics = mapping.metrics
    print(f"\n{metrics.dram_bytes} bytes moved in {metrics.latency_cycles} cycles")


if __name__ == "__main__":
    main(*sys.argv[1:])
