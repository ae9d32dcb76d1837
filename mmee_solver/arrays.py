"""Array configurations of an op: which dims are spatial, over how many PEs, and what runs innermost (§6)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from math import prod

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.errors import InputError
from mmee_solver.nest import ArrayConfig
from mmee_solver.validate import stationary
from mmee_solver.workload import Graph, Op

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def uses_array(graph: Graph, op: Op) -> bool:
    """Whether the op runs on the PE arrays: an einsum with a reduction."""
    return op.kind == "einsum" and bool(graph.reduction_dims(op))


def spreads(count: int) -> tuple[tuple[int, int, int], ...]:
    """Every factorisation of ``count`` arrays over (rows, cols, batch).

    >>> len(spreads(4)), spreads(1)
    (6, ((1, 1, 1),))
    """
    found = []
    for rows in range(1, count + 1):
        if count % rows:
            continue
        rest = count // rows
        found += [(rows, cols, rest // cols) for cols in range(1, rest + 1) if rest % cols == 0]
    return tuple(found)


def extents(accelerator: Accelerator) -> tuple[int, ...]:
    """Every spatial extent that a dim can get, ascending, 1 included."""
    found = {1}
    for rows, cols in accelerator.array.shapes:
        for a, b, c in spreads(accelerator.array.count):
            found |= {rows * a, cols * b, c}
    return tuple(sorted(found))


def configurations(graph: Graph, accelerator: Accelerator, op: Op) -> tuple[ArrayConfig, ...]:
    """Every undominated array configuration of an op.

    Two configurations with the same inner dim are compared by their extents, clipped to the dims'
    sizes: more passes along no dim means no more cycles, fills or buffer accesses, whatever the tile
    sizes (⌈e/s⌉ falls with s, and s ≥ N acts as s = N). Only rows, cols, inner and shape decide the
    fill of a systolic array; they are compared within one shape.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    accelerator : Accelerator
        Shapes, count and stationarity.
    op : Op
        An einsum with a reduction.
    """
    dims = graph.op_dims(op)
    inner_of = {x: stationary(graph, op, x) for x in dims}
    best: dict[tuple[tuple[int, int], str], dict[tuple[int, ...], ArrayConfig]] = {}
    for shape in accelerator.array.shapes:
        for a, b, c in spreads(accelerator.array.count):
            for mapped in _mappings(dims, batched=c > 1, cols=b == 1 and len(dims) == 1):
                config = _config(mapped, (shape[0] * a, shape[1] * b, c), shape)
                used = [dim for dim in mapped if dim is not None]
                for x in [dim for dim in dims if dim not in used] or list(dims):
                    if inner_of[x] in accelerator.array.stationarity:
                        chosen = ArrayConfig(config.rows, config.cols, config.batch, x, shape)
                        clipped = tuple(min(chosen.extent(dim), graph.dims[dim]) for dim in dims)
                        best.setdefault((shape, x), {}).setdefault(clipped, chosen)
    found: list[ArrayConfig] = []
    for table in best.values():
        found += [
            config
            for clipped, config in table.items()
            if not any(
                other != clipped and all(o >= c for o, c in zip(other, clipped, strict=True))
                for other in table
            )
        ]
    return tuple(found)


def _mappings(dims: tuple[str, ...], batched: bool, cols: bool) -> list[tuple[str, str | None, str | None]]:
    if len(dims) == 1:
        return [(dims[0], None, None)] if cols and not batched else []
    if not batched:
        return [(r, c, None) for r, c in permutations(dims, 2)]
    return [(r, c, b) for r, c, b in permutations(dims, 3)]


def _config(
    mapped: tuple[str, str | None, str | None], sizes: tuple[int, int, int], shape: tuple[int, int]
) -> ArrayConfig:
    rows, cols, batch = mapped
    return ArrayConfig(
        (rows, sizes[0]) if rows is not None else None,
        (cols, sizes[1]) if cols is not None else None,
        (batch, sizes[2]) if batch is not None else None,
        "",
        shape,
    )


@dataclass(frozen=True, slots=True)
class OpTable:
    """Array configurations of one op as a query matrix over its (dim, quantity) log features.

    Feature ``j * width`` is the steps of the op's dim j; feature ``j * width + 1 + e`` its passes for
    the extent number e. ``terms`` picks monomials: one row per buffered tensor, then the cycles, then
    the passes that a systolic array fills; ``(n_terms, n_configurations)``.
    """

    dims: tuple[str, ...]
    configs: tuple[ArrayConfig, ...]
    query: Floats  # (n_features, n_monomials)
    terms: Ints  # (n_terms, n_configurations)
    read_bits: Floats  # (n_tensors,) bits read per unit of each buffered tensor's monomial
    write_bits: Floats
    constant_read_bits: float
    fill: Floats  # (n_configurations,) cycles of fill and drain per pass
    macs: float


def op_table(graph: Graph, accelerator: Accelerator, op: Op) -> OpTable | None:
    """The configurations of an op in matrix form; None if it uses no array."""
    if not uses_array(graph, op):
        return None
    configs = configurations(graph, accelerator, op)
    if not configs:
        allowed = ", ".join(accelerator.array.stationarity)
        raise InputError(f'"{op.name}" cannot run {allowed} stationary on any dim', "array.stationarity")
    sizes, dims = extents(accelerator), graph.op_dims(op)
    width = 1 + len(sizes)
    tensors = [*op.inputs, op.output]
    columns: dict[frozenset[int], int] = {}
    terms = np.zeros((len(tensors) + 2, len(configs)), dtype=np.int64)
    fill = np.zeros(len(configs))
    reduction = graph.reduction_dims(op)
    for number, config in enumerate(configs):
        passes = {d: dims.index(d) * width + 1 + sizes.index(config.extent(d)) for d in dims}
        walked = {**passes, config.inner: dims.index(config.inner) * width}
        picks = [frozenset(walked[d] for d in dims if d not in graph.tensors[name].dims) for name in tensors]
        picks += [frozenset(passes.values()), frozenset(walked.values())]
        for row, pick in enumerate(picks):
            terms[row, number] = columns.setdefault(pick, len(columns))
        if accelerator.array.pipeline == "systolic":
            rows, cols = config.shape
            fill[number] = rows + cols - 2 if config.inner in reduction else 2 * rows + cols - 2
    query = np.zeros((len(dims) * width, len(columns)))
    for pick, column in columns.items():
        query[list(pick), column] = 1
    bits = np.array([float(graph.bits(name)) for name in tensors])
    write = np.zeros(len(tensors))
    write[-1] = bits[-1]
    return OpTable(
        dims=dims,
        configs=configs,
        query=query,
        terms=terms,
        read_bits=bits,
        write_bits=write,
        constant_read_bits=-float(graph.bits(op.output)),
        fill=fill,
        macs=float(prod(graph.dims[d] for d in dims)),
    )
