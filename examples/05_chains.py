"""How the solver scales with the length of a graph: products in a row, then layers in a row.

    python examples/05_chains.py [COUNT ...]

Least DRAM traffic on accel1 with a buffer of 2 MiB: for chains of COUNT products of 2048×128 activations
and 128×128 weights, and, where no COUNT is given, for decode blocks of GPT-3 6.7B.
"""

import sys

from mmee_graphs import LAYERS, JsonGraph, cached_block, layers, matmul
from mmee_graphs.document import joined, renamed
from mmee_solver import load_accelerator, solve
from mmee_solver.io import graph_from_json
from mmee_solver.units import parse_size, si_bytes

COUNTS = ("2", "4", "8", "16", "32")
BLOCKS = (1, 2)
ROW = "{:>9}{:>5}{:>11}{:>12}{:>8}{:>10}{:>11}{:>10}"
HEADS = ("ops", "traffic", "compulsory", "groups", "resident", "solved in", "per op")


def chain(count: int) -> JsonGraph:
    """X_0[m,d_0] · W_1[d_0,d_1] → X_1[m,d_1], and so on."""
    product = matmul(2048, 128, 128)
    parts = [
        renamed(
            product,
            dims={"k": f"d_{number - 1}", "n": f"d_{number}"},
            tensors={"A": f"X_{number - 1}", "B": f"W_{number}", "C": f"X_{number}"},
            ops={"mm": f"mm_{number}"},
        )
        for number in range(1, count + 1)
    ]
    return joined(parts, outputs=[f"X_{count}"], name=f"chain-{count}")


def row(count: int, document: JsonGraph) -> str:
    graph = graph_from_json(document)
    mapping = solve(graph, load_accelerator("accel1").with_buffer(parse_size("2MiB")), objective="dram")
    ops = len(mapping.graph.ops)
    traffic = si_bytes(mapping.metrics.dram_bytes), si_bytes(graph.compulsory_bytes())
    found = len(mapping.groups), len(mapping.resident)
    times = f"{mapping.seconds:.2f} s", f"{mapping.seconds / ops:.2f} s"
    return ROW.format(count, ops, *traffic, *found, *times)


def main(*counts: str) -> None:
    print(ROW.format("products", *HEADS))
    for count in map(int, counts or COUNTS):
        print(row(count, chain(count)), flush=True)
    if not counts:
        block = cached_block(LAYERS["gpt3-6.7b"], LAYERS["gpt3-6.7b"].tokens)
        print("\n" + ROW.format("blocks", *HEADS))
        for count in BLOCKS:
            print(row(count, layers(block, count)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
