"""The validator: is a mapping legal, does it fit, are its figures right? It knows nothing of the solver."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import Metrics, add_metrics, evaluate_group, online_steps, recomputation
from mmee_solver.errors import MappingError
from mmee_solver.nest import ArrayConfig, Compute, Group, Loop, Nest, Resident, computes
from mmee_solver.roles import Roles, group_roles, row_steps
from mmee_solver.trace import Pieces, Trace, count_pieces, cut, trace
from mmee_solver.workload import Graph, Op


def validate_group(
    graph: Graph,
    accelerator: Accelerator,
    group: Group,
    resident: Collection[str] = (),
    beside: Collection[str] = (),
) -> Metrics:
    """Check one group against every rule of §5 and the capacity; return its exact cost.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    accelerator : Accelerator
        Its buffer must hold the peak.
    group : Group
        Ops in order, nest and array configurations.
    resident, beside : collection of str
        Tensors kept whole in the buffer during the group: touched by it, and not.

    Raises
    ------
    MappingError
        Names the rule that is broken.
    """
    known = {op.name for op in graph.ops}
    if not group.ops or len(set(group.ops)) != len(group.ops) or not set(group.ops) <= known:
        raise MappingError(f"the ops {list(group.ops)} are not distinct ops of the graph")
    if tuple(computes(group.nest)) != group.ops:
        raise MappingError(f"the nest computes {list(computes(group.nest))}, not {list(group.ops)}")
    sites, roles = trace(graph, group.nest), group_roles(graph, group.ops)
    _check_order(graph, group)
    _check_loops(graph, group.nest)
    _check_finished(graph, group)
    _check_rows(graph, group, roles, sites)
    _check_recomputation(graph, group, roles, sites)
    _check_internal(graph, group, roles, sites)
    for row in online_steps(graph, group.ops, sites):
        if not row.deferrable:
            raise MappingError(
                f'"{row.tensor}" must span "{row.step.axis}": "{row.consumer}" cannot run online'
            )
    _check_arrays(graph, accelerator, group)
    metrics = evaluate_group(graph, accelerator, group, resident, beside)
    capacity = accelerator.buffer.capacity_bytes
    if metrics.peak_buffer_bytes > capacity:
        raise MappingError(
            f"the peak of {metrics.peak_buffer_bytes} bytes exceeds the buffer of {capacity} bytes"
        )
    return metrics


def validate_groups(
    graph: Graph,
    accelerator: Accelerator,
    groups: Sequence[Group],
    resident: Sequence[Resident] = (),
) -> tuple[Metrics, ...]:
    """Check a whole mapping: every op once, groups in topological order, each group legal.

    Raises
    ------
    MappingError
        Names the group and the rule that is broken.
    """
    placed: dict[str, int] = {}
    for index, group in enumerate(groups):
        for name in group.ops:
            if name in placed:
                raise MappingError(f'"{name}" is in two groups')
            placed[name] = index
    missing = [op.name for op in graph.ops if op.name not in placed]
    if missing:
        raise MappingError(f'"{missing[0]}" is in no group')
    for op in graph.ops:
        for tensor in op.reads:
            maker = graph.producer(tensor)
            if maker is not None and placed[maker] > placed[op.name]:
                raise MappingError(f'"{op.name}" runs before "{maker}", whose output it reads')
    _check_resident(graph, placed, resident, len(groups))
    done = []
    for index, group in enumerate(groups):
        alive = {entry.tensor for entry in resident if entry.first <= index <= entry.last}
        touched = {name for op in group.ops for name in graph.op(op).tensors}
        try:
            done.append(validate_group(graph, accelerator, group, alive & touched, alive - touched))
        except MappingError as error:
            raise MappingError(f"group {index + 1}: {error}") from None
    return tuple(done)


def validate_metrics(stated: Sequence[Metrics], recomputed: Sequence[Metrics], total: Metrics) -> None:
    """Compare stated figures with recomputed ones, and the total with their sum.

    Raises
    ------
    MappingError
        Names the figure that differs.
    """
    pairs = [*zip(stated, recomputed, strict=True), (total, add_metrics(recomputed))]
    for index, (said, found) in enumerate(pairs):
        where = f"group {index + 1}" if index < len(stated) else "the graph"
        for entry in fields(Metrics):
            if getattr(said, entry.name) != getattr(found, entry.name):
                raise MappingError(
                    f"{where}: {entry.name} is {getattr(said, entry.name)}, "
                    f"recomputed {getattr(found, entry.name)}"
                )


def _check_resident(graph: Graph, placed: dict[str, int], resident: Sequence[Resident], groups: int) -> None:
    for entry in resident:
        maker = graph.producer(entry.tensor) if entry.tensor in graph.tensors else None
        if maker is None or entry.tensor in graph.outputs:
            raise MappingError(f'"{entry.tensor}" is no intermediate and cannot stay resident')
        readers = [placed[name] for name in graph.consumers(entry.tensor)]
        if entry.first != placed[maker] or entry.last != max(readers) or entry.last >= groups:
            raise MappingError(
                f'resident "{entry.tensor}" must last from the group that makes it to its last reader'
            )


def _check_order(graph: Graph, group: Group) -> None:
    rank = {name: index for index, name in enumerate(group.ops)}
    for name in group.ops:
        for tensor in graph.op(name).reads:
            maker = graph.producer(tensor)
            if maker in rank and rank[maker] >= rank[name]:
                raise MappingError(f'"{name}" stands before "{maker}", whose output it reads')


def _check_loops(graph: Graph, nest: Nest) -> None:
    for item in nest:
        if isinstance(item, Loop):
            if not 1 <= item.tile <= graph.dims[item.dim]:
                raise MappingError(
                    f"a loop over {item.dim} has tile {item.tile}; expected 1 to {graph.dims[item.dim]}"
                )
            _check_loops(graph, item.body)


def _paths(nest: Nest, above: tuple[int, ...] = ()) -> dict[str, tuple[tuple[int, ...], ...]]:
    """For each op, the positions (paths of item indices) of the loops above it."""
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    for index, item in enumerate(nest):
        here = (*above, index)
        if isinstance(item, Compute):
            found[item.op] = ()
        elif isinstance(item, Loop):
            for name, loops in _paths(item.body, here).items():
                found[name] = (here, *loops)
    return found


def _loop_at(nest: Nest, path: tuple[int, ...]) -> Loop:
    item = nest[path[0]]
    for index in path[1:]:
        assert isinstance(item, Loop)
        item = item.body[index]
    assert isinstance(item, Loop)
    return item


def _check_finished(graph: Graph, group: Group) -> None:
    """No loop over a reduction dim of p stands above both p and a consumer of p's output."""
    paths = _paths(group.nest)
    for name in group.ops:
        maker = graph.op(name)
        reduction = set(graph.reduction_dims(maker))
        for other in group.ops:
            if maker.output not in graph.op(other).reads:
                continue
            for path in set(paths[name]) & set(paths[other]):
                dim = _loop_at(group.nest, path).dim
                if dim in reduction:
                    raise MappingError(f'the loop over {dim} lets "{other}" see "{maker.output}" unfinished')


def _check_rows(graph: Graph, group: Group, roles: Roles, sites: Trace) -> None:
    """No loop over a row's axis stands, below the hold, above both the maker of the row and its reader.

    Above the hold such a loop makes the statistics run online; below it the reader would see rows
    whose statistics are unfinished.
    """
    paths = _paths(group.nest)
    for row in row_steps(graph, group.ops):
        maker = graph.producer(row.tensor)
        if row.tensor not in roles.internal or maker is None:
            continue
        pieces: Pieces = ((graph.dims[row.step.axis], 1),)
        for path in paths[maker]:
            loop = _loop_at(group.nest, path)
            if path in paths[row.consumer] and loop.dim == row.step.axis:
                pieces = cut(pieces, loop.tile)
        if count_pieces(pieces) > sites.hold_of(row.consumer, row.tensor).steps(row.step.axis):
            raise MappingError(
                f'a loop over {row.step.axis} lets "{row.consumer}" see rows of "{row.tensor}" unfinished'
            )


def _check_recomputation(graph: Graph, group: Group, roles: Roles, sites: Trace) -> None:
    for name in group.ops:
        op = graph.op(name)
        if op.output in roles.leaving and recomputation(graph, op, sites.compute_of(name)) > 1:
            raise MappingError(f'"{name}" is recomputed, but its output leaves the group')


def _check_internal(graph: Graph, group: Group, roles: Roles, sites: Trace) -> None:
    for tensor in roles.internal:
        users = [name for name in group.ops if tensor in graph.op(name).tensors]
        if len({sites.compute_of(name).holds[tensor] for name in users}) != 1:
            raise MappingError(f'internal "{tensor}" must be in one hold over all of its ops')


def _check_arrays(graph: Graph, accelerator: Accelerator, group: Group) -> None:
    for name in group.ops:
        op = graph.op(name)
        config = group.array.get(name)
        needed = op.kind == "einsum" and bool(graph.reduction_dims(op))
        if needed != (config is not None):
            raise MappingError(f'"{name}" {"needs an" if needed else "takes no"} array configuration')
        if config is not None:
            _check_config(graph, accelerator, op, config)
    if set(group.array) - set(group.ops):
        raise MappingError("an array configuration names an op that is not in the group")


def _check_config(graph: Graph, accelerator: Accelerator, op: Op, config: ArrayConfig) -> None:
    where = f'the array configuration of "{op.name}"'
    dims = graph.op_dims(op)
    pairs = [pair for pair in (config.rows, config.cols, config.batch) if pair is not None]
    used = [dim for dim, _ in pairs]
    if not set(used) <= set(dims) or len(set(used)) != len(used):
        raise MappingError(f"{where} maps {used}; expected distinct dims of {list(dims)}")
    if config.shape not in accelerator.array.shapes:
        raise MappingError(f"{where} has shape {config.shape}, which the arrays cannot take")
    if config.rows is None or (config.cols is None and len(dims) > 1):
        raise MappingError(f"{where} leaves rows or cols without a dim")
    spread = config.rows[1] / config.shape[0]
    spread *= config.cols[1] / config.shape[1] if config.cols else 1
    spread *= config.batch[1] if config.batch else 1
    whole = config.rows[1] % config.shape[0] == 0
    whole &= config.cols is None or config.cols[1] % config.shape[1] == 0
    if not whole or spread != accelerator.array.count:
        raise MappingError(f"{where} does not spread {accelerator.array.count} arrays of {config.shape}")
    # a batch of one array maps nothing: it must not free a spatial dim for the inner one
    free = [dim for dim in dims if dim not in used or config.batch == (dim, 1)]
    if config.inner not in (free or dims):
        raise MappingError(f'{where} has the inner dim "{config.inner}"; expected one of {free or dims}')
    if stationary(graph, op, config.inner) not in accelerator.array.stationarity:
        raise MappingError(f"{where} is {stationary(graph, op, config.inner)} stationary")


def stationary(graph: Graph, op: Op, inner: str) -> str:
    """What stays in the arrays while ``inner`` runs: output, input (the first) or weight (another).

    An inner dim that no tensor lacks keeps nothing; it counts as output stationary.
    """
    if inner in graph.reduction_dims(op):
        return "output"
    lacking = [i for i, name in enumerate(op.inputs) if inner not in graph.tensors[name].dims]
    if not lacking:
        return "output"
    return "input" if lacking[0] == 0 else "weight"
