"""The nest that a solution of a monolithic model stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmee_solver.monolith_arrays import Mapped
from mmee_solver.monolith_paths import GroupFacts, Paths
from mmee_solver.monolith_sites import Sites
from mmee_solver.monolith_terms import Literal, Quantity
from mmee_solver.nest import Compute, Group, Hold, Item, Loop, Nest, computes

Loops = frozenset[str]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A solution of one group in plain values, by indices of ops.

    ``order`` lists the ops; ``tile[i, d]`` and ``granule[i, d]`` in elements; ``share[i, j]`` the dims
    whose loops two ops share; ``above[T, i]`` the loops above the hold of a tensor; ``serves[T, i]`` the
    ops of that hold; ``stream`` the pairs of tensor and op whose tile is cut to granules.
    """

    order: tuple[int, ...]
    tile: Mapping[tuple[int, str], int]
    granule: Mapping[tuple[int, str], int]
    loops: Mapping[int, Loops]
    share: Mapping[tuple[int, int], Loops]
    above: Mapping[tuple[str, int], Loops]
    serves: Mapping[tuple[str, int], frozenset[int]]
    stream: frozenset[tuple[str, int]]


def chosen_group(
    facts: GroupFacts,
    paths: Paths,
    sites: Sites,
    mapped: Sequence[Mapped],
    holds: Callable[[Literal], bool],
    value: Callable[[Quantity], int],
) -> Group:
    """The group with its nest and array configurations.

    Parameters
    ----------
    facts, paths, sites, mapped
        The group and its variables.
    holds, value : callable
        What the solution says of a literal and of a quantity.
    """
    count = len(facts.ops)
    ranks = {i: sum(holds(paths.before[j, i]) for j in range(count) if j != i) for i in range(count)}
    chosen = Chosen(
        order=tuple(sorted(range(count), key=ranks.__getitem__)),
        tile={key: value(quantity) for key, quantity in paths.tile.items()},
        granule={key: value(quantity) for key, quantity in sites.granule.items()},
        loops={i: frozenset(d for d in facts.dims if holds(paths.loop[i, d])) for i in range(count)},
        share={
            (i, j): frozenset(d for d in facts.dims if holds(paths.share[i, j, d]))
            for i in range(count)
            for j in range(count)
            if i != j
        },
        above={
            key: frozenset(d for d in facts.dims if holds(prefix[d])) for key, prefix in sites.above.items()
        },
        serves={
            (tensor, i): frozenset(
                j for j in facts.users(tensor) if j == i or holds(sites.same[tensor, i, j])
            )
            for tensor, i in sites.above
        },
        stream=frozenset(key for key, literal in sites.stream.items() if holds(literal)),
    )
    nest = _Builder(facts, chosen).items(chosen.order, frozenset())
    names = tuple(facts.ops[i].name for i in chosen.order)
    array = {
        facts.ops[i].name: mapped[i].configs[value(mapped[i].choice)]
        for i in chosen.order
        if mapped[i].configs
    }
    return Group(names, nest, array)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Builds the nest from the outside in: holds that stand below just the loops placed so far come next."""

    facts: GroupFacts
    chosen: Chosen

    def items(self, ops: Sequence[int], placed: Loops) -> Nest:
        """What ops that share the loops placed so far do below these."""
        common = self._common(ops)
        if common == placed and len(ops) > 1:
            return self._list(ops, placed)
        if common == placed:
            return self._compute(ops[0], placed)
        dim = self._next(ops, common - placed)
        inner = self.items(ops, placed | {dim})
        return (*self._holds(ops, placed), Loop(dim, self.chosen.tile[ops[0], dim], inner))

    def _common(self, ops: Sequence[int]) -> Loops:
        found = self.chosen.loops[ops[0]]
        for i in ops[1:]:
            found &= self.chosen.share[ops[0], i]
        return found

    def _next(self, ops: Sequence[int], left: Loops) -> str:
        """The outermost of the loops left: no set of loops that something stands below has another first."""
        everything = range(len(self.facts.ops))
        sets = [
            loops & (self.chosen.loops[ops[0]] if i == ops[0] else self.chosen.share[ops[0], i])
            for i in everything
            for loops in (
                *(above for (_, user), above in self.chosen.above.items() if user == i),
                *(self.chosen.share[i, j] for j in everything if j != i),
            )
        ]
        return min(sorted(left), key=lambda dim: -sum(dim in loops for loops in sets))

    def _holds(self, ops: Sequence[int], placed: Loops, streamed: str = "") -> Nest:
        """Holds for some of the ops directly below the placed loops, each once, without those of a list."""
        found: dict[str, None] = {}
        for (tensor, i), above in self.chosen.above.items():
            if i in ops and above == placed and tensor != streamed and not self._spread(tensor, i, placed):
                found.setdefault(tensor)
        return tuple(Hold(tensor) for tensor in found)

    def _compute(self, i: int, placed: Loops) -> Nest:
        """The innermost holds of an op, the granules of a streamed one, and the op."""
        nest: Nest = (Compute(self.facts.ops[i].name),)
        streamed = next((tensor for tensor, j in self.chosen.stream if j == i), "")
        if streamed:
            nest = (Hold(streamed), *nest)
            for dim in reversed(self.facts.graph.tensors[streamed].dims):
                if dim in self.facts.dims and self.chosen.granule[i, dim] < self.chosen.tile[i, dim]:
                    nest = (Loop(dim, self.chosen.granule[i, dim], nest),)
        return (*self._holds((i,), placed, streamed), *nest)

    def _spread(self, tensor: str, i: int, placed: Loops) -> bool:
        """Whether a hold below the placed loops serves several children of a list."""
        return len(self._children(self.chosen.serves[tensor, i], placed)) > 1

    def _children(self, ops: Sequence[int] | frozenset[int], placed: Loops) -> list[tuple[int, ...]]:
        """Runs of ops, in order, that share further loops."""
        found: list[tuple[int, ...]] = []
        for i in (i for i in self.chosen.order if i in ops):
            if found and self.chosen.share[found[-1][-1], i] > placed:
                found[-1] = (*found[-1], i)
            else:
                found.append((i,))
        return found

    def _list(self, ops: Sequence[int], placed: Loops) -> Nest:
        """Children in order; a hold that several of them share comes before the first of these."""
        children = self._children(ops, placed)
        ended = self._ended(ops, placed)
        if ended:
            children = [ended, *(child for child in children if not set(child) <= set(ended))]
            children.sort(key=lambda child: self.chosen.order.index(child[0]))
        items: list[Item] = []
        for child in children:
            for (tensor, i), served in self.chosen.serves.items():
                here = self.chosen.above[tensor, i] == placed and served <= set(ops)
                first = i == min(served, key=self.chosen.order.index)
                if here and first and i in child and not served <= set(child):
                    items.append(Hold(tensor))
            part = self._list(child, placed) if child == ended else self.items(child, placed)
            items += self._apart(part, [op for op in ops if op not in child])
        return tuple(items)

    def _ended(self, ops: Sequence[int], placed: Loops) -> tuple[int, ...]:
        """Ops from the first to the last that a hold of the list serves, if a later one reads its tensor."""
        for (tensor, i), served in self.chosen.serves.items():
            if (
                self.chosen.above[tensor, i] == placed
                and served < set(ops)
                and self._spread(tensor, i, placed)
            ):
                places = sorted(self.chosen.order.index(op) for op in served)
                later = self.chosen.order[places[-1] + 1 :]
                if any(op in ops and tensor in self.facts.ops[op].tensors for op in later):
                    return self.chosen.order[places[0] : places[-1] + 1]
        return ()

    def _apart(self, part: Nest, others: Sequence[int]) -> Nest:
        """A child whose holds end with it, though other ops of the list use the tensor: a loop of one step.

        Its dim is reduced by no op inside if there are several, so that nothing is seen unfinished.
        """
        used = {tensor for i in others for tensor in self.facts.ops[i].tensors}
        if not any(isinstance(item, Hold) and item.tensor in used for item in part):
            return part
        graph = self.facts.graph
        inside = [graph.op(name) for name in computes(part)]
        reduced = {dim for op in inside for dim in graph.reduction_dims(op)} if len(inside) > 1 else set()
        dim = min(graph.op_dims(inside[0]), key=lambda dim: dim in reduced)
        return (Loop(dim, graph.dims[dim], part),)
