"""What placing the loops and holds of a group needs to know of it, looked up once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mmee_solver.roles import Roles, RowStep, group_roles, row_steps
from mmee_solver.units import bits_to_bytes
from mmee_solver.workload import Graph, Op, vector_ops_per_element


@dataclass(frozen=True)
class GroupSpace:
    """A group: its ops in computation order, what its tensors are to it, its row-wise steps."""

    graph: Graph
    ops: tuple[Op, ...]
    roles: Roles
    rows: tuple[RowStep, ...]
    resident: frozenset[str] = frozenset()

    @classmethod
    def of(cls, graph: Graph, names: Sequence[str], resident: Collection[str] = ()) -> GroupSpace:
        """The space of a group, ops in the given order; ``resident`` tensors stay whole in the buffer."""
        ops = tuple(graph.op(name) for name in names)
        touched = frozenset(name for op in ops for name in op.tensors)
        return cls(
            graph, ops, group_roles(graph, names), row_steps(graph, names), touched.intersection(resident)
        )

    def dims(self, tensor: str) -> frozenset[str]:
        """Dims of a tensor that a loop can cut (size above 1)."""
        return self._dims[tensor]

    @cached_property
    def _dims(self) -> Mapping[str, frozenset[str]]:
        sizes = self.graph.dims
        names = {name for op in self.ops for name in op.tensors}
        return {name: frozenset(d for d in self.graph.tensors[name].dims if sizes[d] > 1) for name in names}

    @cached_property
    def users(self) -> Mapping[str, tuple[int, ...]]:
        """The leaves that use each tensor."""
        touched = [op.tensors for op in self.ops]
        names = dict.fromkeys(name for tensors in touched for name in tensors)
        return {n: tuple(i for i, tensors in enumerate(touched) if n in tensors) for n in names}

    @cached_property
    def dims_of_ops(self) -> tuple[tuple[str, ...], ...]:
        """Every dim of each op."""
        return tuple(self.graph.op_dims(op) for op in self.ops)

    @cached_property
    def vector_work(self) -> tuple[float, ...]:
        """Vector operations of each op each time it is computed, without prologues."""
        found = []
        for op in self.ops:
            each = sum(step.vector_ops for step in op.epilogue)
            if op.kind != "einsum" or not self.graph.reduction_dims(op):
                each += vector_ops_per_element(op.kind, op.function)
            found.append(float(each * self.graph.elements(op.output)))
        return tuple(found)

    def op_dims(self, leaf: int) -> tuple[str, ...]:
        """Dims of an op that a loop can cut."""
        return tuple(d for d in self.dims_of_ops[leaf] if self.graph.dims[d] > 1)

    def axes_of_rows(self, tensor: str, leaf: int | None = None) -> frozenset[str]:
        """Axes of row-wise steps that ops (or the op of one leaf) meet on a tensor from outside."""
        wanted = None if leaf is None else self.ops[leaf].name
        return frozenset(
            row.step.axis
            for row in self.rows
            if row.tensor == tensor
            and tensor in self.roles.inputs
            and (wanted is None or row.consumer == wanted)
        )

    def must_span(self, tensor: str, leaf: int) -> frozenset[str]:
        """Axes that the tensor's hold must span for one op."""
        return frozenset(
            row.step.axis
            for row in self.rows
            if row.tensor == tensor and row.consumer == self.ops[leaf].name and not row.deferrable
        )

    @cached_property
    def externals(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Tensors that cross the group's border and move, each with the leaves that use it."""
        left_out = {*self.roles.internal, *self.resident}
        return tuple((name, leaves) for name, leaves in self.users.items() if name not in left_out)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Resident tensors that the group reads or makes for others: held over all of it.

        A resident tensor has no traffic and takes no further room, so nothing is lost: the statistics of
        rows never wait for it, a prologue works on it once, and statistics beside it are kept whole.
        """
        return tuple(name for name in self.users if name in self.resident - set(self.roles.internal))

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes of all resident tensors that the group touches."""
        return sum(bits_to_bytes(self.graph.bits(name)) for name in self.resident)
