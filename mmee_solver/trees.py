"""Order trees and legal groups, listed by CP-SAT (design §7.1, §8).

For one op the tree is a leaf; for two ops it is a node with an ordered list of shared loops over two
leaves. Private loops are no part of the tree: they are placed by :mod:`mmee_solver.structures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from ortools.sat.python import cp_model

from mmee_solver.roles import group_roles, row_steps
from mmee_solver.workload import Graph, Op


@dataclass(frozen=True, slots=True)
class OrderTree:
    """The ops in computation order and the shared loops above them, outermost first."""

    ops: tuple[str, ...]
    shared: tuple[str, ...]


def legal_groups(graph: Graph, largest: int = 2) -> tuple[tuple[str, ...], ...]:
    """Groups of at most ``largest`` ops that may be fused: convex and connected by a shared tensor.

    Parameters
    ----------
    graph : Graph
        The folded graph, ops in topological order.
    largest : int
        1 (no fusion) or 2.

    Returns
    -------
    tuple of tuple of str
        Names in topological order; single ops first.
    """
    groups: list[tuple[str, ...]] = [(op.name,) for op in graph.ops]
    if largest == 1:
        return tuple(groups)
    below = _descendants(graph)
    for first, second in combinations(graph.ops, 2):
        shares = set(first.tensors) & set(second.tensors)
        between = any(
            other.name in below[first.name] and second.name in below[other.name] for other in graph.ops
        )
        if shares and not between:
            groups.append((first.name, second.name))
    return tuple(groups)


def _descendants(graph: Graph) -> dict[str, set[str]]:
    """Ops reachable from each op, without itself."""
    below: dict[str, set[str]] = {op.name: set() for op in graph.ops}
    for op in reversed(graph.ops):
        for name in graph.consumers(op.output):
            below[op.name] |= {name} | below[name]
    return below


def order_trees(graph: Graph, ops: Sequence[str], recompute: bool = True) -> tuple[OrderTree, ...]:
    """Every legal order tree of a group of one or two ops, in a canonical order.

    A dim of size 1 is never looped. A dim that every tensor of the group has (batch, heads) is
    looped outermost if it is shared: that changes no traffic and only shrinks tiles.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    ops : sequence of str
        One or two op names, in topological order.
    recompute : bool
        Whether loops that recompute an op are in the space.

    Raises
    ------
    ValueError
        For a group of more than two ops.
    """
    if len(ops) == 1:
        return (OrderTree(tuple(ops), ()),)
    if len(ops) != 2:
        raise ValueError(f"a group of {len(ops)} ops; expected one or two")
    group = [graph.op(name) for name in ops]
    allowed = _shareable(graph, group, recompute)
    batch = [d for d in allowed if all(d in graph.tensors[t].dims for op in group for t in op.tensors)]
    rest = [dim for dim in allowed if dim not in batch]
    found = [OrderTree(tuple(ops), shared) for shared in _sequences(batch, rest)]
    return tuple(sorted(found, key=lambda tree: (len(tree.shared), tree.shared)))


def _shareable(graph: Graph, group: Sequence[Op], recompute: bool) -> list[str]:
    """Dims that a loop above both ops may step (legality of §5)."""
    first, second = group
    roles = group_roles(graph, [op.name for op in group])
    feeds = first.output in second.reads
    dims = dict.fromkeys(dim for op in group for dim in graph.op_dims(op) if graph.dims[dim] > 1)
    for op in group:
        lacking = [dim for dim in dims if dim not in graph.op_dims(op)]
        if op.output in roles.leaving or not recompute:
            for dim in lacking:
                dims.pop(dim, None)
    if feeds:
        for dim in graph.reduction_dims(first):
            dims.pop(dim, None)
    for row in row_steps(graph, [op.name for op in group]):
        if row.tensor in roles.internal and not row.deferrable:
            dims.pop(row.step.axis, None)
    return list(dims)


def _sequences(batch: Sequence[str], rest: Sequence[str]) -> list[tuple[str, ...]]:
    """Ordered selections of dims, batch dims before the others and in their given order."""
    dims = [*batch, *rest]
    if not dims:
        return [()]
    model = cp_model.CpModel()
    # slot[d, k]: dim d is the k-th shared loop; used[d]: dim d is shared.
    slot = {(d, k): model.new_bool_var(f"slot_{d}_{k}") for d in dims for k in range(len(dims))}
    used = {d: model.new_bool_var(f"used_{d}") for d in dims}
    for d in dims:
        model.add(sum(slot[d, k] for k in range(len(dims))) == used[d])
    filled = [sum(slot[d, k] for d in dims) for k in range(len(dims))]
    for k in range(len(dims)):
        model.add(filled[k] <= 1)
        if k:
            model.add(filled[k] <= filled[k - 1])
    place = {d: sum(k * slot[d, k] for k in range(len(dims))) for d in dims}
    for index, d in enumerate(batch):
        for other in [*batch[index + 1 :], *rest]:
            model.add(place[d] < place[other]).only_enforce_if(used[d], used[other])
    collector = _Collector(slot, used)
    solver = cp_model.CpSolver()
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    solver.parameters.cp_model_presolve = False
    status = solver.solve(model, collector)
    if status != cp_model.OPTIMAL:
        raise AssertionError(f"CP-SAT did not list all order trees: {solver.status_name(status)}")
    return collector.found


class _Collector(cp_model.CpSolverSolutionCallback):
    def __init__(
        self,
        slot: dict[tuple[str, int], cp_model.IntVar],
        used: dict[str, cp_model.IntVar],
    ) -> None:
        super().__init__()
        self._slot, self._used = slot, used
        self.found: list[tuple[str, ...]] = []

    def on_solution_callback(self) -> None:
        placed = [(k, d) for (d, k), variable in self._slot.items() if self.value(variable)]
        self.found.append(tuple(d for _, d in sorted(placed)))
