"""Folding: elementwise, softmax and normalize ops become part of a neighbour einsum (design §3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mmee_solver.workload import Graph, Op, Step

if TYPE_CHECKING:
    from collections.abc import Iterator


def fold(graph: Graph) -> Graph:
    """Fold every foldable op into a neighbour einsum; the others stay ops of their own.

    An op f: T → U becomes an *epilogue* of the einsum that makes T if U is T's only use and has the
    same dims (of several such T, the latest in topological order); else a *prologue* of every
    consumer of U, if all of them are einsums; else it stays. Folding twice changes nothing.

    Parameters
    ----------
    graph : Graph
        Any workload graph.

    Returns
    -------
    Graph
        The same computation with folded-away tensors gone.

    References
    ----------
    Design §3, "Folding".
    """
    work = _Work.of(graph)
    for op in graph.ops:
        if op.kind != "einsum":
            _fold_into_producer(work, op)
    for op in reversed(graph.ops):
        if op.kind != "einsum" and op.name in work.ops:
            _fold_into_consumers(work, op)
    used = {name for op in work.ops.values() for name in op.tensors}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    dims = {dim for tensor in tensors.values() for dim in tensor.dims}
    kept = {dim: size for dim, size in graph.dims.items() if dim in dims}
    return replace(graph, ops=tuple(work.ops.values()), tensors=tensors, dims=kept)


@dataclass(slots=True)
class _Work:
    """A graph while it is folded, kept up to date without building a graph for every step.

    ``ops`` by name; ``maker`` and ``readers`` of a tensor, by name of the op; ``rank`` of a tensor is
    the place of the op that first made it in the topological order.
    """

    graph: Graph
    ops: dict[str, Op]
    maker: dict[str, str]
    readers: dict[str, dict[str, None]]
    rank: dict[str, int]

    @classmethod
    def of(cls, graph: Graph) -> _Work:
        work = cls(graph, {}, {}, {}, {op.output: index for index, op in enumerate(graph.ops)})
        for op in graph.ops:
            work.put(op)
        return work

    def put(self, op: Op) -> None:
        """Add an op, in the place of the op of that name if there is one."""
        if op.name in self.ops:
            self._unlink(self.ops[op.name])
        self.ops[op.name] = op
        self.maker[op.output] = op.name
        for name in op.reads:
            self.readers.setdefault(name, {})[op.name] = None

    def drop(self, op: Op) -> None:
        """Take an op out."""
        self._unlink(op)
        del self.ops[op.name]

    def _unlink(self, op: Op) -> None:
        del self.maker[op.output]
        for name in op.reads:
            del self.readers[name][op.name]

    def full_inputs(self, op: Op) -> Iterator[str]:
        """Inputs of an op, read once, that have every dim of its output."""
        tensors = self.graph.tensors
        output = set(tensors[op.output].dims)
        for name in op.inputs:
            if op.inputs.count(name) == 1 and set(tensors[name].dims) == output:
                yield name


def _fold_into_producer(work: _Work, op: Op) -> None:
    """Make ``op`` an epilogue of the einsum that makes one of its inputs for it alone, if there is one."""
    carriers = [
        name
        for name in work.full_inputs(op)
        if name in work.maker
        and work.ops[work.maker[name]].kind == "einsum"
        and list(work.readers[name]) == [op.name]
        and name not in work.graph.outputs
    ]
    if not carriers:
        return
    carrier = max(carriers, key=lambda name: work.rank[name])
    maker = work.ops[work.maker[carrier]]
    step = Step(op.name, op.kind, op.function, op.axis, _others(op, carrier))
    work.drop(op)
    work.put(replace(maker, output=op.output, epilogue=(*maker.epilogue, step)))


def _fold_into_consumers(work: _Work, op: Op) -> None:
    """Make ``op`` a prologue of every consumer of its output, if all of them can take it."""
    consumers = [work.ops[name] for name in work.readers.get(op.output, ())]
    instead = next(work.full_inputs(op), None)
    if instead is None or not consumers or op.output in work.graph.outputs:
        return
    step = Step(op.name, op.kind, op.function, op.axis, _others(op, instead), instead)
    if not all(_takes_prologue(consumer, op.output, step) for consumer in consumers):
        return
    work.drop(op)
    for consumer in consumers:
        work.put(_with_prologue(consumer, op.output, step))


def _others(op: Op, carrier: str) -> tuple[str, ...]:
    return tuple(name for name in op.inputs if name != carrier)


def _takes_prologue(consumer: Op, read: str, step: Step) -> bool:
    """Whether ``step`` can run on the one input ``read`` without another reader of its tile in the op.

    A prologue works on the tile in place, so nothing else in the op may need the tile as it was.
    """
    steps = consumer.prologue + consumer.epilogue
    in_place = {other.tensor for other in consumer.prologue}
    return (
        consumer.kind == "einsum"
        and consumer.inputs.count(read) == 1
        and all(read not in other.inputs for other in steps)
        and step.tensor not in consumer.reads
        and in_place.isdisjoint(step.inputs)
    )


def _with_prologue(consumer: Op, read: str, step: Step) -> Op:
    inputs = tuple(step.tensor if name == read else name for name in consumer.inputs)
    moved = tuple(
        replace(old, tensor=step.tensor) if old.tensor == read else old for old in consumer.prologue
    )
    return replace(consumer, inputs=inputs, prologue=(step, *moved))
