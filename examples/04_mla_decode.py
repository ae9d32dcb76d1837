"""Latent attention (MLA) of DeepSeek-V3 in decoding: expand keys and values, or absorb the expansion?

    python examples/04_mla_decode.py [ACCELERATOR [OBJECTIVE [KV ...]]]

One token against caches of KV tokens. Expanded, keys and values are rebuilt from the cached latents
for every head; absorbed, queries go to the latent space instead, and attention runs there. The ratio
is expanded / absorbed.
"""

import sys

from mmee_graphs import DEEPSEEK_V3, mla_decode
from mmee_solver import load_accelerator, solve
from mmee_solver.io import graph_from_json
from mmee_solver.units import si_bytes, si_energy, si_time

LENGTHS = ("512", "2048", "8192", "32768")
ROW = "{:>7}" + "{:>12}{:>10}{:>8}" * 3


def main(accelerator_name: str = "ascend-910-like", objective: str = "energy", *lengths: str) -> None:
    accelerator = load_accelerator(accelerator_name)

    def figures(cache: int, path: str) -> tuple[float, float, float]:
        """DRAM traffic in bytes, energy in pJ, latency in s."""
        graph = graph_from_json(mla_decode(DEEPSEEK_V3, cache, path=path))
        metrics = solve(graph, accelerator, objective).metrics
        seconds = metrics.latency_cycles / accelerator.clock_hz
        return metrics.dram_bytes, float(metrics.energy.total), seconds

    print(f"{DEEPSEEK_V3.title} latent attention in decoding on {accelerator.name}, least {objective}\n")
    print(ROW.format("", "DRAM", "", "", "energy", "", "", "latency", "", "").rstrip())
    print(ROW.format("KV", *("absorbed", "expanded", "ratio") * 3))
    for length in lengths or LENGTHS:
        absorbed, expanded = (figures(int(length), path) for path in ("absorbed", "expanded"))
        cells = [length]
        for write, first, second in zip((si_bytes, si_energy, si_time), absorbed, expanded, strict=True):
            cells += [write(first), write(second), f"{second / first:.2f}×"]
        print(ROW.format(*cells))


if __name__ == "__main__":
    main(*sys.argv[1:])
