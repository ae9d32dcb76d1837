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
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import Metrics
from mmee_solver.master import Cost, Level, Ops, Partition, Residency, choose_partition
from mmee_solver.nest import Group, Resident
from mmee_solver.objective import Objective
from mmee_solver.units import bits_to_bytes, exact
from mmee_solver.workload import Graph

TIES = 3  # rounds after which a plan whose value is proved least is taken, though a tie may be left


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
    """A priced partition, its residents, and how many variants were priced in how many rounds.

    ``ties_open``: no plan has a lower value, but one of equal value might have lower later keys.
    """

    partition: Partition
    parts: tuple[Priced, ...]
    resident: tuple[Resident, ...]
    variants: int
    rounds: int
    ties_open: bool


def stayers(graph: Graph, accelerator: Accelerator) -> tuple[str, ...]:
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
    most: Fraction | None = None,
) -> Plan | None:
    """The cheapest plan, every group of it priced exactly; None if no plan fits, or is cheap enough.

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
    most : Fraction, optional
        Only plans whose first key is at most this are of interest.
    """
    learner = _Learner(
        graph, accelerator, objective, costs, frozenset(second), price, resident, not fewest_groups
    )
    best: tuple[Cost, Partition, list[Priced]] | None = None
    rounds = 0
    while True:
        rounds += 1
        residency = Residency(learner.savings, tuple(learner.levels.values()), learner.second)
        partition = choose_partition(graph, costs, fewest_groups, residency)
        if partition is None or (most is not None and partition.bound > most):
            return None
        variants = variants_of(graph, partition)
        new = [variant for variant in variants if variant not in learner.known]
        for variant in new:
            learner.learn(variant)
        parts = [part for variant in variants if (part := learner.known[variant]) is not None]
        if not new and len(parts) < len(variants):
            raise AssertionError("the master chose a group that is not wanted")
        if len(parts) == len(variants):
            each = [objective.additive(part.metrics) for part in parts]
            total = tuple(sum(column, Fraction(0)) for column in zip(*each, strict=True))
            if best is None or total < best[0]:
                best = total, partition, parts
        tied = best is not None and not fewest_groups and best[0][0] == partition.bound
        if best is not None and (not new or (tied and rounds >= TIES)):
            chosen = replace(best[1], bound=partition.bound, status=partition.status)
            resident_spans = spans(graph, chosen)
            return Plan(chosen, tuple(best[2]), resident_spans, len(learner.known), rounds, bool(new))


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
        """What a group's ops cost in smaller groups while the same tensors stay; None: does not fit.

        The split is the best by what bounds say; its parts are priced.
        """
        alive, bounds = variant.resident | variant.beside, {}
        within = set(variant.group)
        parts: dict[Ops, Variant] = {}
        for part, cost in self.costs.items():
            if len(part) < len(variant.group) and within.issuperset(part):
                touched = {name for op in part for name in self.graph.op(op).tensors}
                one = Variant(part, frozenset(alive & touched), frozenset(alive - touched))
                saved = _saved(self.graph, self.savings, one)
                plain = tuple(a - b for a, b in zip(cost, saved, strict=False))
                level = self.levels.get(one)
                if level is None or level.extra is not None:
                    bounds[part] = max([plain, *_raised(self.levels.values(), one, plain)])
                    parts[part] = one
        split = best_split(self.graph, variant.group, bounds)
        if split is None:
            return None
        total: Cost = (Fraction(0),) * len(split[0])
        for part in split[1]:
            found = self.known.get(parts[part])
            priced = self.learn(parts[part]) if found is None else self.objective.additive(found.metrics)
            if priced is None:
                return None
            total = tuple(a + b for a, b in zip(total, priced, strict=True))
        return total


def variants_of(graph: Graph, partition: Partition) -> list[Variant]:
    """What stays with and beside each group of a partition."""
    stays, found = spans(graph, partition), []
    for index, group in enumerate(partition.groups):
        touched = {name for op in group for name in graph.op(op).tensors}
        alive = {one.tensor for one in stays if one.first <= index <= one.last}
        found.append(Variant(group, frozenset(alive & touched), frozenset(alive - touched)))
    return found


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


def best_split(graph: Graph, group: Ops, costs: Mapping[Ops, Cost]) -> tuple[Cost, tuple[Ops, ...]] | None:
    """The least cost of a group's ops in smaller groups, and those; None if there is no such split.

    Groups run one after the other, so each must find made what it reads: a search over the sets of ops
    that are left.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    group : tuple of str
        Op names in topological order.
    costs : mapping of group to sequence of Fraction
        Additive keys of smaller groups, most important first.
    """
    within = set(group)
    needs = {
        name: {
            maker
            for t in graph.op(name).reads
            if (maker := graph.producer(t)) is not None and maker in within
        }
        for name in group
    }
    parts = [
        (part, cost, set(part), set[str]().union(*(needs[name] for name in part)) - set(part))
        for part, cost in costs.items()
        if len(part) < len(group) and within.issuperset(part)
    ]
    # the ops that are left -> least cost, and the first part of the split that has it
    least: dict[frozenset[str], tuple[Cost, Ops] | None] = {}
    waiting = [frozenset(group)]
    while waiting:
        left = waiting[-1]
        if left in least:
            waiting.pop()
            continue
        able = [
            (part, cost, left.difference(members))
            for part, cost, members, before in parts
            if members <= left and not before & left
        ]
        missing = [rest for _, _, rest in able if rest and rest not in least]
        if missing:
            waiting += missing
            continue
        found = []
        for part, cost, rest in able:
            behind = least[rest] if rest else (tuple(Fraction(0) for _ in cost), ())
            if behind is not None:
                found.append((tuple(a + b for a, b in zip(cost, behind[0], strict=True)), part))
        least[left] = min(found) if found else None
        waiting.pop()
    rest, chosen = frozenset(group), []
    whole = least[rest]
    if whole is None:
        return None
    while rest:
        step = least[rest]
        assert step is not None
        chosen.append(step[1])
        rest = rest.difference(step[1])
    return whole[0], tuple(chosen)
