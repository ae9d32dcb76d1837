"""Exact search of one group: from its ops to the best dataflow, or the proof that none is wanted."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from mmee_solver.accelerator import Accelerator
from mmee_solver.bounds import Bounder, Boxes
from mmee_solver.cost import Metrics
from mmee_solver.emit import emit
from mmee_solver.encode import Encoding, encode
from mmee_solver.errors import InfeasibleError
from mmee_solver.nest import Group
from mmee_solver.objective import Key, Objective
from mmee_solver.search import Counts, Search
from mmee_solver.structures import GroupSpace, structures
from mmee_solver.tilings import tilings
from mmee_solver.trace import trace
from mmee_solver.trees import order_trees
from mmee_solver.workload import Graph

__all__ = ["Counts", "GroupResult", "Objective", "SearchOptions", "search_group"]


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The best dataflow of a group, its cost, and how the search went; None: nothing beats the cutoff."""

    group: Group | None
    metrics: Metrics | None
    counts: Counts = field(compare=False)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Restrictions of the space: tile sizes ``integer`` or ``divisors``, recomputation or not."""

    tiles: str = "integer"
    recompute: bool = True


def search_group(
    graph: Graph,
    accelerator: Accelerator,
    ops: tuple[str, ...],
    objective: Objective,
    options: SearchOptions | None = None,
    cutoff: Key | None = None,
) -> GroupResult:
    """Find the best dataflow of one group of one or two ops, proved by exhaustion.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    accelerator : Accelerator
        Its buffer bounds the occupancy.
    ops : tuple of str
        The group, in topological order.
    objective : Objective
        What to minimise.
    options : SearchOptions
        Restrictions of the space.
    cutoff : Key, optional
        Only a key below this one is of interest.

    Returns
    -------
    GroupResult
        With group None if nothing beats the cutoff.

    Raises
    ------
    InfeasibleError
        If no tiling fits the buffer; says the least capacity that would do.
    """
    options = options or SearchOptions()
    space = GroupSpace.of(graph, ops)
    counts = Counts()
    trees = order_trees(graph, ops, options.recompute)
    recut = options.tiles == "divisors"
    found = list(structures(space, trees, recut))
    counts.trees, counts.structures = len(trees), len(found)
    encoding = encode(space, found, accelerator)
    _check_feasible(graph, encoding, accelerator, ops)
    search = Search(graph, accelerator, encoding, objective, counts, cutoff)
    if objective.name == "dram":
        search.least_traffic(tilings(encoding, options.tiles, traffic_only=True))
        if search.best_metrics is None:
            return GroupResult(None, None, counts)
    search.run(tilings(encoding, options.tiles, traffic_only=False))
    if search.best_group is None:
        return GroupResult(None, None, counts)
    return GroupResult(search.best_group, search.best_metrics, counts)


def _check_feasible(graph: Graph, encoding: Encoding, accelerator: Accelerator, ops: tuple[str, ...]) -> None:
    """Raise unless some structure fits with all tiles at their least: occupancy grows with every tile."""
    ones = np.zeros(encoding.size.shape, dtype=np.int64)
    lists = tilings(encoding, "divisors", traffic_only=True)
    bounder = Bounder(encoding, lists, accelerator, accelerator.buffer.capacity_bytes)
    low, _ = bounder.values(Boxes(np.arange(len(ones)), ones, ones))
    peaks = bounder.peaks(np.arange(len(ones)), low, whole_bytes=True)
    least = int(peaks.min())
    if least <= accelerator.buffer.capacity_bytes:
        return
    structure = encoding.structures[int(peaks.argmin())]
    configs = {
        name: table.configs[0]
        for name, table in zip(structure.ops, encoding.tables, strict=True)
        if table is not None
    }
    tiles = [int(value) for value in low[int(peaks.argmin()), : len(structure.axes)]]
    sites = trace(graph, emit(graph, structure, tiles, configs).nest).holds
    elements = {
        site.tensor: prod(site.tile(dim) for dim in graph.tensors[site.tensor].dims) for site in sites
    }
    detail = f"1 element each of {_listed(list(elements))}"
    if any(count > 1 for count in elements.values()):
        parts = [f"{n} {'element' if n == 1 else 'elements'} of {t}" for t, n in elements.items()]
        detail = _listed(parts)
    raise InfeasibleError(" + ".join(ops), least, accelerator.buffer.capacity_bytes, detail)


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
