"""How much DRAM traffic attention needs at least, against the size of the on-chip buffer.

    python examples/02_buffer_sizes.py [GRAPH [SIZE ...]]

Fused and unfused optimum for each buffer size; sizes such as 64KiB or 1MiB.
"""

import sys

from mmee_solver import load_accelerator, load_graph, solve
from mmee_solver.units import iec_bytes, parse_size, si_bytes

SIZES = ("16KiB", "64KiB", "256KiB", "1MiB", "4MiB")


def main(graph_name: str = "attention-head", *sizes: str) -> None:
    graph, accelerator = load_graph(graph_name), load_accelerator("accel1")
    print(
        f"{graph.name}: least DRAM traffic; no mapping moves less than {si_bytes(graph.compulsory_bytes())}\n"
    )
    print(f"{'buffer':>10}{'fused':>12}{'unfused':>12}{'ratio':>9}")
    for size in sizes or SIZES:
        capacity_bytes = parse_size(size)
        mapping = solve(graph, accelerator.with_buffer(capacity_bytes), objective="dram")
        assert mapping.unfused is not None
        fused, unfused = mapping.metrics.dram_bytes, mapping.unfused.dram_bytes
        row = (iec_bytes(capacity_bytes), si_bytes(fused), si_bytes(unfused), f"{unfused / fused:.2f}×")
        print("{:>10}{:>12}{:>12}{:>9}".format(*row))


if __name__ == "__main__":
    main(*sys.argv[1:])
