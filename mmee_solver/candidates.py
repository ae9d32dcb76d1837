"""Which groups of a graph are searched, and with which order trees (design §7, §8).

Groups of one and two ops, and larger ones as long as their order trees are not too many, take every
order tree. Beyond, they take those that compute every op once, and beyond those *flat* ones: the ops in
the order of the graph in one list below shared loops. What was taken stands in the certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mmee_solver.canon import Form
from mmee_solver.trees import OrderTree, connected, groups_by_size, order_trees
from mmee_solver.workload import Graph

Ops = tuple[str, ...]
TREES = 6_000  # order trees of all different groups that are searched at most, other than flat ones
ALWAYS = 2  # ops of a group up to which every order tree is searched in any case
FORMS = 14  # different groups of one size with flat trees that are searched at most, and of all such sizes
GROUPS = 800  # and groups in all
WHOLE = 40  # ops of a graph up to which it is itself a group

EVERY, ONCE, FLAT = "every", "once", "flat"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Groups, smaller ones first, and which order trees groups of each size take: EVERY, ONCE or FLAT.

    Sizes without an entry take flat ones. ``listed`` has trees that are listed already.
    """

    graph: Graph
    recompute: bool
    groups: tuple[Ops, ...]
    kinds: dict[int, str] = field(default_factory=dict)
    listed: dict[Ops, tuple[OrderTree, ...]] = field(default_factory=dict)

    def kind(self, size: int) -> str:
        """The order trees of groups of a size."""
        return self.kinds.get(size, FLAT)

    def trees(self, group: Ops) -> tuple[OrderTree, ...]:
        """The order trees of a group."""
        if group in self.listed:
            return self.listed[group]
        kind = self.kind(len(group))
        return order_trees(self.graph, group, self.recompute and kind != ONCE, kind == FLAT)

    @property
    def largest(self) -> int:
        """Ops of the largest group."""
        return max(map(len, self.groups))

    def upto(self, *kinds: str) -> int:
        """Ops of the largest groups that take some kinds of trees."""
        return max((len(group) for group in self.groups if self.kind(len(group)) in kinds), default=0)


def candidates(
    graph: Graph, form: Callable[[Ops], Form], recompute: bool = True, largest: int | None = None
) -> Candidates:
    """The groups of a graph that are searched.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    form : callable
        The canonical form of a group: of equal ones, one is searched.
    recompute : bool
        Whether recomputation is in the space.
    largest : int, optional
        Ops in a group at most.
    """
    found: list[Ops] = []
    kinds: dict[int, str] = {}
    listed: dict[Ops, tuple[OrderTree, ...]] = {}
    able = [EVERY, ONCE] if recompute else [EVERY]
    flat: set[Form] = set()
    for size, groups in enumerate(groups_by_size(graph), start=1):
        if largest is not None and size > largest:
            return Candidates(graph, recompute, tuple(found), kinds, listed)
        different = {form(group): group for group in reversed(groups)}
        while able:
            most = None if size <= ALWAYS else TREES - sum(map(len, listed.values()))
            trees = _list(graph, list(different.values()), recompute and able[0] == EVERY, most)
            if trees is not None:
                kinds[size] = able[0]
                listed |= trees
                break
            able.pop(0)
        if not able:
            flat |= set(different)
            if len(flat) > FORMS or len(found) + len(groups) > GROUPS:
                break
        found += groups
    whole = tuple(op.name for op in graph.ops)
    if whole not in found and len(whole) <= WHOLE and connected(graph, whole):
        found.append(whole)
    return Candidates(graph, recompute, tuple(found), kinds, listed)


def _list(
    graph: Graph, groups: Sequence[Ops], recompute: bool, most: int | None
) -> dict[Ops, tuple[OrderTree, ...]] | None:
    """Order trees of some groups; None if there are more than ``most`` in all."""
    found: dict[Ops, tuple[OrderTree, ...]] = {}
    left = most
    for group in groups:
        if left is not None and left < 0:
            return None
        found[group] = order_trees(graph, group, recompute, most=None if left is None else left + 1)
        left = None if left is None else left - len(found[group])
    return None if left is not None and left < 0 else found
