"""What a tensor is to a fusion group, and which tensors carry row statistics (design §3, §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmee_solver.workload import VECTOR_OPS, Graph, Op, Step

STATISTICS_BITS = 64


@dataclass(frozen=True, slots=True)
class Roles:
    """The tensors of a group by role.

    ``inputs`` come from outside; ``internal`` are made and used inside; ``leaving`` are made inside
    and needed outside (later groups, graph outputs); a tensor can be internal and leaving.
    """

    inputs: tuple[str, ...]
    internal: tuple[str, ...]
    leaving: tuple[str, ...]


def group_roles(graph: Graph, ops: Sequence[str]) -> Roles:
    """The role of every tensor that the ops of a group touch.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    ops : sequence of str
        Names of the group's ops.
    """
    members = set(ops)
    group = [op for op in graph.ops if op.name in members]
    made = [op.output for op in group]
    read = dict.fromkeys(name for op in group for name in op.reads)
    outside = {name for op in graph.ops if op.name not in members for name in op.reads}
    return Roles(
        inputs=tuple(name for name in read if name not in made),
        internal=tuple(name for name in made if name in read),
        leaving=tuple(name for name in made if name in outside or name in graph.outputs or name not in read),
    )


@dataclass(frozen=True, slots=True)
class RowStep:
    """A softmax or normalize that ``consumer`` meets on its input ``tensor``.

    ``deferrable`` says whether it can run *online*: the consumer sums over the axis, its output has
    every other dim of the tensor, and what follows the statistics is only scaling.
    """

    consumer: str
    tensor: str
    step: Step
    rows: tuple[str, ...]
    deferrable: bool


def carried_steps(op: Op) -> tuple[Step, ...]:
    """Steps that the op's output carries: its epilogue, after the op itself if that is row-wise."""
    own = (Step(op.name, op.kind, op.function, op.axis),) if op.kind in VECTOR_OPS else ()
    return own + op.epilogue


def row_steps(graph: Graph, ops: Sequence[str]) -> tuple[RowStep, ...]:
    """Row-wise steps whose tensor is internal to the group or an input with a prologue.

    A step whose tensor leaves its group has its statistics travel beside it and is not listed.
    """
    internal = set(group_roles(graph, ops).internal)
    makers = {op.output: op for op in graph.ops if op.name in set(ops)}
    found = []
    for name in ops:
        op = graph.op(name)
        for tensor in dict.fromkeys(op.inputs):
            chain = carried_steps(makers[tensor]) if tensor in internal else ()
            chain += tuple(step for step in op.prologue if step.tensor == tensor)
            found += _row_steps(graph, op, tensor, chain)
        for tensor in op.operands:
            chain = carried_steps(makers[tensor]) if tensor in internal else ()
            found += [RowStep(name, tensor, step, (), deferrable=False) for step in chain if step.row_wise]
    return tuple(found)


def _row_steps(graph: Graph, op: Op, tensor: str, chain: tuple[Step, ...]) -> list[RowStep]:
    found = []
    output = graph.tensors[op.output].dims
    row_wise = sum(step.row_wise for step in chain)
    for index, step in enumerate(chain):
        if not step.row_wise:
            continue
        dims = graph.tensors[tensor].dims
        rows = tuple(dim for dim in dims if dim != step.axis)
        scaling = all(
            later.kind == "elementwise" and later.function in ("mul", "scale") for later in chain[index + 1 :]
        )
        summed = op.kind == "einsum" and step.axis not in output
        deferrable = summed and scaling and row_wise == 1 and set(rows) <= set(output)
        found.append(RowStep(op.name, tensor, step, rows, deferrable))
    return found
