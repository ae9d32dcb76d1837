"""The plan of a whole graph: partition, order, residency, priced as far as the optimum needs (design §7.6).

What a group costs depends on what stays in the buffer: tensors of its own (no traffic) and others beside
it (less room). There are too many such variants to search them all. A bound comes for nothing: what a
resident tensor saves a group is at most one transfer of it. For, given a dataflow with the tensor resident,
moving the tensor once and holding it over the whole group takes the same room. So the master chooses with
bounds, the variants that it chose are searched, what they cost more is told to it
(:class:`~mmee_solver.master.Level`), and it chooses again, until it chooses what is priced exactly. Costs
only grow with what stays: a variant's price bounds all that keep more.

Double buffering breaks the argument, since it counts streamed tiles twice: there, costs are bounded by
those with as much more room as the tensors take, and a price says nothing of variants that keep more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import ceil

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import Metrics
from mmee_solver.master import Cost, Level, Ops, Partition, Residency, choose_partition
from mmee_solver.nest import Group, Resident
from mmee_solver.objective import Objective
from mmee_solver.units import bits_to_bytes, exact
from mmee_solver.workload import Graph


@dataclass(frozen=True, slots=True)
class Variant:
    """A group with the tensors that stay in the buffer with it (touched by it) and beside it."""

    group: Ops
    resident: frozenset[str]
    beside: frozenset[str]


@dataclass(frozen=True, slots=True)
class Priced:
    """The best dataflow of a variant with its exact cost; None if it is not wanted."""

    group: Group
    metrics: Metrics


# (variant, a bound of its cost, the cost of its ops in smaller groups if that matters) -> its price
Price = Callable[[Variant, Cost, Cost | None], Priced | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A priced partition, its residents, and how many variants were priced."""

    partition: Partition
    parts: tuple[Priced, ...]
    resident: tuple[Resident, ...]
    variants: int
    rounds: int


def candidates(graph: Graph, accelerator: Accelerator) -> tuple[str, ...]:
    """Intermediates that fit the buffer whole: made, read, no output of the graph."""
    capacity = accelerator.buffer.capacity_bytes
    return tuple(
        op.output
        for op in graph.ops
        if graph.consumers(op.output)
        and op.output not in graph.outputs
        and bits_to_bytes(graph.bits(op.output)) <= capacity
    )


def transfer(graph: Graph, accelerator: Accelerator, objective: Objective, tensor: str) -> tuple[Cost, Cost]:
    """What moving a tensor once, from DRAM and to it, adds to the additive keys at most.

    Latency is the greatest of what each resource takes, so it grows by no more than the slowest transfer.
    """
    size = bits_to_bytes(graph.bits(tensor))
    dram, buffer = accelerator.dram, accelerator.buffer
    slowest = max(accelerator.dram_cycles_per_byte, accelerator.buffer_cycles_per_byte)
    cycles = Fraction(ceil(size * slowest))
    found = []
    for one, other in (
        (dram.read_pj_per_byte, buffer.write_pj_per_byte),
        (dram.write_pj_per_byte, buffer.read_pj_per_byte),
    ):
        energy = size * (exact(one) + exact(other))
        key = objective.order(Fraction(size), energy, cycles, Fraction(0))
        found.append(objective.without_peak(key))
    return found[0], found[1]


def best_plan(
    graph: Graph,
    accelerator: Accelerator,
    objective: Objective,
    costs: Mapping[Ops, Cost],
    second: Collection[Ops],
    price: Price,
    fewest_groups: bool = False,
    resident: Sequence[str] = (),
) -> Plan | None:
    """The cheapest plan, every group of it priced exactly; None if no plan fits.

    Parameters
    ----------
    graph, accelerator, objective
        What is asked.
    costs : mapping of group to tuple of Fraction
        Least additive keys of every candidate group with nothing resident. With double buffering and
        residents, with as much more room as all residents take.
    second : collection of groups
        Those of which the cost is only a bound, that of their ops in smaller groups.
    price : callable
        Searches a variant.
    fewest_groups : bool
        Whether the number of groups comes first.
    resident : sequence of str
        Tensors that may stay.
    """
    learner = _Learner(
        graph, accelerator, objective, costs, frozenset(second), price, resident, not fewest_groups
    )
    rounds = 0
    while True:
        rounds += 1
        residency = Residency(learner.savings, tuple(learner.levels.values()), learner.second)
        partition = choose_partition(graph, costs, fewest_groups, residency)
        if partition is None:
            return None
        variants = [variant_of(graph, partition, index) for index in range(len(partition.groups))]
        new = [variant for variant in variants if variant not in learner.known]
        for variant in new:
            learner.learn(variant)
        if not new:
            parts = [learner.known[variant] for variant in variants]
            if None in parts:
                raise AssertionError("the master chose a group that is not wanted")
            chosen = tuple(part for part in parts if part is not None)
            return Plan(partition, chosen, spans(graph, partition), len(learner.known), rounds)


class _Learner:
    """What is known of variants: prices, and the levels that tell the master."""

    def __init__(
        self,
        graph: Graph,
        accelerator: Accelerator,
        objective: Objective,
        costs: Mapping[Ops, Cost],
        second: frozenset[Ops],
        price: Price,
        resident: Sequence[str],
        beats: bool,
    ) -> None:
        self.graph, self.objective, self.costs, self.price = graph, objective, costs, price
        self.second, self.beats = second, beats
        self.savings = {name: transfer(graph, accelerator, objective, name) for name in resident}
        self.exactly = accelerator.buffer.double_buffered
        self.levels: dict[Variant, Level] = {}
        self.known: dict[Variant, Priced | None] = {}

    def learn(self, variant: Variant) -> Cost | None:
        """Price a variant; give its cost, or that of its ops in smaller groups if it does not beat them."""
        group = variant.group
        saved = _saved(self.graph, self.savings, variant)
        plain = tuple(a - b for a, b in zip(self.costs[group], saved, strict=False))
        bound = max([plain, *_raised(self.levels.values(), variant, plain)])
        cutoff = self._split(variant) if self.beats and len(group) > 1 else None
        found = self.known[variant] = self.price(variant, bound, cutoff)
        cost = cutoff if found is None else self.objective.additive(found.metrics)
        if cost is not None and cost < bound:
            raise AssertionError(f"{' + '.join(group)} costs {cost}, less than its bound {bound}")
        if cost != bound:
            extra = None if cost is None else tuple(a - b for a, b in zip(cost, plain, strict=True))
            alive = variant.resident | variant.beside
            self.levels[variant] = Level(group, alive, extra, self.exactly)
        return cost

    def _split(self, variant: Variant) -> Cost | None:
        """The cost of a group's ops in smaller groups while the same tensors stay; None: does not fit."""
        alive, costs = variant.resident | variant.beside, {}
        for part in splits(variant.group):
            if part not in self.costs:
                continue
            touched = {name for op in part for name in self.graph.op(op).tensors}
            one = Variant(part, frozenset(alive & touched), frozenset(alive - touched))
            found = self.known.get(one)
            cost = self.learn(one) if found is None else self.objective.additive(found.metrics)
            if cost is not None:
                costs[part] = cost
        return best_split(variant.group, costs)


def variant_of(graph: Graph, partition: Partition, index: int) -> Variant:
    """What stays with and beside the group at a place of a partition."""
    group = partition.groups[index]
    touched = {name for op in group for name in graph.op(op).tensors}
    alive = {one.tensor for one in spans(graph, partition) if one.first <= index <= one.last}
    return Variant(group, frozenset(alive & touched), frozenset(alive - touched))


def spans(graph: Graph, partition: Partition) -> tuple[Resident, ...]:
    """From which group to which every resident tensor stays."""
    place = {op: index for index, group in enumerate(partition.groups) for op in group}
    found = []
    for name in partition.resident:
        maker = graph.producer(name)
        assert maker is not None
        found.append(Resident(name, place[maker], max(place[op] for op in graph.consumers(name))))
    return tuple(sorted(found, key=lambda one: (one.first, one.last, one.tensor)))


def _saved(graph: Graph, savings: Mapping[str, tuple[Cost, Cost]], variant: Variant) -> Cost:
    """One transfer of every resident tensor of a group."""
    parts = [
        savings[name][1 if graph.producer(name) in variant.group else 0] for name in sorted(variant.resident)
    ]
    width = len(next(iter(savings.values()))[0]) if savings else 3
    return tuple(sum((part[k] for part in parts), Fraction(0)) for k in range(width))


def _raised(levels: Collection[Level], variant: Variant, bound: Cost) -> list[Cost]:
    """What levels that hold for a variant say that it costs at least."""
    alive = variant.resident | variant.beside
    return [
        tuple(b + e for b, e in zip(bound, level.extra, strict=True))
        for level in levels
        if level.group == variant.group and level.extra and level.alive <= alive and not level.exactly
    ]


def splits(group: Ops) -> tuple[Ops, ...]:
    """Parts that a group's ops can be put into: every selection but all, in order."""
    return tuple(part for count in range(1, len(group)) for part in combinations(group, count))


def best_split(group: Ops, costs: Mapping[Ops, Cost]) -> Cost | None:
    """The least cost of a group's ops in smaller groups whose cost is known; None if some op has none.

    Parts of a convex group of at most three ops never wait for each other in a circle.

    Parameters
    ----------
    group : tuple of str
        Op names in topological order.
    costs : mapping of group to sequence of Fraction
        Additive keys, most important first.

    >>> one = Fraction(1)
    >>> costs = {("a",): (5 * one,), ("b",): (5 * one,), ("c",): (4 * one,), ("a", "b"): (7 * one,)}
    >>> best_split(("a", "b", "c"), costs)
    (Fraction(11, 1),)
    """
    least: dict[Ops, Cost | None] = {(): (Fraction(0),) * 3}

    def rest(ops: Ops) -> Cost | None:
        if ops not in least:
            found = []
            for count in range(len(ops)):
                for others in combinations(ops[1:], count):
                    part = (ops[0], *others)
                    if part == group or part not in costs:
                        continue
                    behind = rest(tuple(op for op in ops if op not in part))
                    if behind is not None:
                        found.append(tuple(a + b for a, b in zip(costs[part], behind, strict=False)))
            least[ops] = min(found) if found else None
        return least[ops]

    return rest(group)
