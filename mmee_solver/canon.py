"""The canonical form of a group: what its search depends on, with names replaced by numbers (design §8).

Groups of equal form, layers repeated or renamed, have the same dataflows and the same figures, so one
of them is solved and the others take its result under their own names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from mmee_solver.cost import Metrics
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Item, Loop, Nest
from mmee_solver.roles import group_roles
from mmee_solver.workload import Graph, Op, Step

Form = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a group in canonical order: its ops, its tensors, their dims."""

    ops: tuple[str, ...]
    tensors: tuple[str, ...]
    dims: tuple[str, ...]


def canonical(graph: Graph, ops: Sequence[str], resident: Collection[str] = ()) -> tuple[Form, Names]:
    """The canonical form of a group, and the names that stand behind its numbers.

    Two groups with equal forms differ in nothing that their legality or cost depends on. Tensors and
    dims are numbered as the ops first use them.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    ops : sequence of str
        The group, in topological order.
    resident : collection of str
        Tensors that stay whole in the buffer.

    >>> from mmee_solver.workload import Tensor
    >>> tensors = {name: Tensor(name, (one, two), "fp16") for name, one, two in
    ...     (("X", "m", "k"), ("A", "k", "f"), ("H", "m", "f"), ("B", "f", "n"), ("Y", "m", "n"))}
    >>> pair = Op("a", "einsum", ("X", "A"), "H"), Op("b", "einsum", ("H", "B"), "Y")
    >>> graph = Graph("pair", {"m": 4, "k": 8, "f": 8, "n": 8}, tensors, pair, ("H", "Y"))
    >>> canonical(graph, ["a"])[0] == canonical(graph, ["b"])[0]
    True
    """
    group = [graph.op(name) for name in ops]
    leaving = set(group_roles(graph, ops).leaving)
    tensors = tuple(dict.fromkeys(name for op in group for name in (*op.inputs, *op.operands, op.output)))
    dims = tuple(dict.fromkeys(dim for name in tensors for dim in graph.tensors[name].dims))
    tensor_number = {name: index for index, name in enumerate(tensors)}
    dim_number = {dim: index for index, dim in enumerate(dims)}

    def step(one: Step) -> Form:
        axis = dim_number[one.axis] if one.axis else -1
        inputs = tuple(tensor_number[name] for name in one.inputs)
        return one.kind, one.function, axis, inputs, tensor_number.get(one.tensor, -1)

    def entry(op: Op) -> Form:
        inputs = tuple(tensor_number[name] for name in op.inputs)
        axis = dim_number[op.axis] if op.axis else -1
        steps = tuple(map(step, op.prologue)), tuple(map(step, op.epilogue))
        return op.kind, op.function, axis, inputs, tensor_number[op.output], *steps

    shapes = tuple(
        (
            tuple(dim_number[dim] for dim in graph.tensors[name].dims),
            graph.tensors[name].bits,
            name in leaving,
            name in resident,
        )
        for name in tensors
    )
    sizes = tuple(graph.dims[dim] for dim in dims)
    return (sizes, shapes, tuple(map(entry, group))), Names(tuple(ops), tensors, dims)


def renamed(group: Group, metrics: Metrics, old: Names, new: Names) -> tuple[Group, Metrics]:
    """A group's dataflow and its cost under the names of another group of equal form."""
    if old == new:
        return group, metrics
    ops = dict(zip(old.ops, new.ops, strict=True))
    tensors = dict(zip(old.tensors, new.tensors, strict=True))
    dims = dict(zip(old.dims, new.dims, strict=True))

    def nest(items: Nest) -> Nest:
        return tuple(map(item, items))

    def item(one: Item) -> Item:
        if isinstance(one, Hold):
            return Hold(tensors[one.tensor])
        if isinstance(one, Loop):
            return Loop(dims[one.dim], one.tile, nest(one.body))
        return Compute(ops[one.op])

    def array(config: ArrayConfig) -> ArrayConfig:
        rows, cols, batch = (
            None if pair is None else (dims[pair[0]], pair[1])
            for pair in (config.rows, config.cols, config.batch)
        )
        return ArrayConfig(rows, cols, batch, dims[config.inner], config.shape)

    moved = Group(
        tuple(ops[name] for name in group.ops),
        nest(group.nest),
        {ops[name]: array(config) for name, config in group.array.items()},
    )
    traffic = {tensors[name]: moves for name, moves in metrics.traffic.items()}
    return moved, replace(metrics, traffic=traffic)
