"""Array configurations of an op as a choice of CP-SAT, listed straight from design §6."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations, product

from mmee_solver.accelerator import Accelerator
from mmee_solver.errors import InputError
from mmee_solver.monolith_paths import GroupFacts, Paths, divisors
from mmee_solver.monolith_sites import Sites, fine_steps
from mmee_solver.monolith_terms import Quantity, Terms, number
from mmee_solver.nest import ArrayConfig
from mmee_solver.units import ceil_div
from mmee_solver.validate import stationary
from mmee_solver.workload import Graph, Op


def every_configuration(graph: Graph, accelerator: Accelerator, op: Op) -> Iterator[ArrayConfig]:
    """Each shape, each spread of the arrays, each mapping to dims, each inner dim left free.

    A batch of one array maps no dim. An op of one dim maps it to rows alone.
    """
    dims, count = graph.op_dims(op), accelerator.array.count
    for shape in accelerator.array.shapes:
        for down, across in product(divisors(count), repeat=2):
            if count % (down * across):
                continue
            batch = count // (down * across)
            places = 3 if batch > 1 else 2
            if len(dims) == 1 and batch * across == 1:
                places = 1
            sides = (shape[0] * down, shape[1] * across, batch)
            for mapped in permutations(dims, places):
                pairs = [*zip(mapped, sides, strict=False), None, None][:3]
                for inner in [dim for dim in dims if dim not in mapped] or dims:
                    if stationary(graph, op, inner) in accelerator.array.stationarity:
                        yield ArrayConfig(pairs[0], pairs[1], pairs[2], inner, shape)


def fill_cycles(graph: Graph, accelerator: Accelerator, op: Op, config: ArrayConfig) -> int:
    """Cycles of fill and drain per pass: none unless systolic (§6)."""
    if accelerator.array.pipeline != "systolic":
        return 0
    rows, cols = config.shape
    return rows + cols - 2 if config.inner in graph.reduction_dims(op) else 2 * rows + cols - 2


def distinct_configurations(
    graph: Graph, accelerator: Accelerator, op: Op
) -> dict[tuple[tuple[int, ...], str, int], ArrayConfig]:
    """Configurations that can differ in cost: by extents clipped to the dims' sizes, inner dim, fill.

    ⌈e/s⌉ is 1 for every extent s ≥ e, so an extent beyond the size of its dim acts as the size.

    Raises
    ------
    InputError
        If the op has none.
    """
    dims = graph.op_dims(op)
    found: dict[tuple[tuple[int, ...], str, int], ArrayConfig] = {}
    for config in every_configuration(graph, accelerator, op):
        clipped = tuple(min(config.extent(dim), graph.dims[dim]) for dim in dims)
        found.setdefault((clipped, config.inner, fill_cycles(graph, accelerator, op, config)), config)
    if not found:
        allowed = ", ".join(accelerator.array.stationarity)
        raise InputError(f'"{op.name}" cannot run {allowed} stationary on any dim', "array.stationarity")
    return found


@dataclass(frozen=True, slots=True)
class Mapped:
    """How an op runs: ``choice`` indexes ``configs``, ``fill`` are cycles per pass.

    ``passes`` are those of each dim; ``walked`` has the steps of the inner dim instead of its passes.
    An op that uses no array has no configuration and passes each dim N times.
    """

    configs: tuple[ArrayConfig, ...]
    choice: Quantity
    passes: Mapping[str, Quantity]
    walked: Mapping[str, Quantity]
    fill: Quantity


def add_mapping(terms: Terms, facts: GroupFacts, paths: Paths, sites: Sites, i: int) -> Mapped:
    """The array configuration of an op, and the passes that follow from it and the finest tiles.

    Raises
    ------
    InputError
        If the op has no configuration, or the model grows beyond its limit.
    """
    graph, op = facts.graph, facts.ops[i]
    dims = graph.op_dims(op)
    if op.kind != "einsum" or not graph.reduction_dims(op):
        whole = {dim: number(graph.dims[dim]) for dim in dims}
        return Mapped((), number(0), whole, whole, number(0))
    found = distinct_configurations(graph, facts.accelerator, op)
    keys = list(found)
    choice = terms.choose(f"array {i}", range(len(keys)))
    fill = terms.derived(f"fill {i}", [choice], lambda c: keys[c][2])
    passes: dict[str, Quantity] = {}
    walked: dict[str, Quantity] = {}
    for position, dim in enumerate(dims):
        # an even number 2s: s PEs along the dim; an odd one, 2s + 1: it runs innermost, too
        way = terms.derived(
            f"way {i} {dim}",
            [choice],
            lambda c, position=position, dim=dim: 2 * keys[c][0][position] + (keys[c][1] == dim),
        )
        size = graph.dims[dim]
        if size == 1:
            passes[dim] = walked[dim] = number(1)
            continue
        passes[dim], walked[dim] = terms.table(
            [f"passes {i} {dim}", f"walked {i} {dim}"],
            [way, paths.tile[i, dim], sites.granule[i, dim]],
            lambda way, tile, granule, size=size: _passes(size, way, tile, granule),
        )
    return Mapped(tuple(found.values()), choice, passes, walked, fill)


def _passes(size: int, way: int, tile: int, granule: int) -> tuple[int, int] | None:
    if granule > tile:
        return None
    extent, inner = divmod(way, 2)
    steps = fine_steps(size, tile, granule)
    passes = fine_passes(size, tile, granule, extent)
    return passes, steps if inner else passes


def fine_passes(size: int, tile: int, granule: int, extent: int) -> int:
    """Passes of a dim cut by a loop and then by a granule, ``extent`` at a time.

    >>> fine_passes(7, 4, 3, 2)
    5
    """
    whole, rest = divmod(size, tile)
    passes = 0
    for piece, count in ((tile, whole), (rest, 1)):
        full, short = divmod(piece, granule)
        passes += count * (full * ceil_div(granule, extent) + ceil_div(short, extent))
    return passes
