"""What a group of a monolithic model costs: traffic, occupancy, cycles, accesses, energy (design §5, §6).

Every figure is bounded from below by what it must be and lowered by the objective, so roundings and
maxima need no further variables than the figure itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm, prod

from mmee_solver.accelerator import Accelerator
from mmee_solver.monolith_arrays import Mapped, add_mapping
from mmee_solver.monolith_paths import GroupFacts, Paths
from mmee_solver.monolith_sites import Sites
from mmee_solver.monolith_terms import Quantity, Sum, Switch, Terms, linear, most, negated, number
from mmee_solver.roles import STATISTICS_BITS, RowStep
from mmee_solver.units import bits_to_bytes, ceil_div, exact
from mmee_solver.workload import Op, vector_ops_per_element


@dataclass(slots=True)
class Figures:
    """Sums of a group: bytes from and to DRAM, bits accessed in the buffer, cycles, MACs, vector ops."""

    read_bytes: Sum = field(default_factory=list)
    write_bytes: Sum = field(default_factory=list)
    buffer_read_bits: Sum = field(default_factory=list)
    buffer_write_bits: Sum = field(default_factory=list)
    cycles: Sum = field(default_factory=list)
    macs: Sum = field(default_factory=list)
    vector: Sum = field(default_factory=list)
    free_vector: Sum = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Costs:
    """Objectives of a group: bytes, energy in units of 1/``energy_scale`` pJ, latency in cycles."""

    dram: Sum
    energy: Sum
    latency: Quantity
    mapped: tuple[Mapped, ...]

    def value(self, objective: str) -> Sum:
        """The sum that an additive objective minimises."""
        return {"dram": self.dram, "energy": self.energy, "latency": [(1, self.latency)]}[objective]


def energy_scale(accelerator: Accelerator) -> int:
    """Units of energy in a pJ: the least common denominator of all constants."""
    return lcm(*(constant.denominator for constant in _constants(accelerator)))


def _constants(accelerator: Accelerator) -> tuple[Fraction, ...]:
    """Energies of a byte read and written in DRAM and in the buffer, a MAC with registers, a vector op."""
    dram, buffer, array = accelerator.dram, accelerator.buffer, accelerator.array
    return (
        exact(dram.read_pj_per_byte),
        exact(dram.write_pj_per_byte),
        exact(buffer.read_pj_per_byte),
        exact(buffer.write_pj_per_byte),
        exact(array.mac_pj) + exact(array.register_pj_per_mac),
        exact(accelerator.vector.pj_per_op),
    )


def add_costs(terms: Terms, facts: GroupFacts, paths: Paths, sites: Sites, take: Switch) -> Costs:
    """The figures of a group; its occupancy fits if the group is taken.

    Raises
    ------
    InputError
        If an op has no array configuration, or the model grows beyond its limit.
    """
    figures = Figures()
    visits = {
        key: terms.product(
            sites.held_steps[*key, dim] for dim in facts.dims if dim not in facts.graph.tensors[key[0]].dims
        )
        for key in sites.above
    }
    online = {
        row: terms.derived("online", [steps], lambda n: int(n > 1))
        for row, steps in sites.online_steps.items()
    }
    _add_traffic(terms, facts, sites, visits, online, figures)
    _add_occupancy(terms, facts, sites, visits, online, take)
    mapped = []
    for i, op in enumerate(facts.ops):
        lacking = [dim for dim in facts.dims if dim not in facts.graph.op_dims(op)]
        rec = terms.product(paths.steps[i, dim] for dim in lacking)
        mapped.append(add_mapping(terms, facts, paths, sites, i))
        _add_work(terms, facts, op, rec, mapped[-1], figures)
        _add_vector_work(facts, op, i, rec, visits, figures)
        for row in facts.rows:
            if row.consumer == op.name:
                _add_online_work(terms, facts, op, row, rec, sites.online_steps[row], figures)
    return _costs(terms, facts.accelerator, figures, tuple(mapped))


def _at_least(terms: Terms, name: str, bound: Sum, divisor: int = 1) -> Quantity:
    """The least whole number that is no less than a sum over a divisor, if it is minimised."""
    if all(q.constant for _, q in bound):
        return number(ceil_div(most(bound), divisor))
    top = max(0, ceil_div(most(bound), divisor))
    found = terms.model.new_int_var(0, top, name)
    terms.model.add(divisor * found >= linear(bound))
    return Quantity(found, (0, top))


def _when(terms: Terms, name: str, literal: Switch, bound: Sum) -> Quantity:
    """At least a sum if a literal holds; else 0."""
    if literal is False:
        return number(0)
    if literal is True:
        return _at_least(terms, name, bound)
    found = terms.model.new_int_var(0, max(0, most(bound)), name)
    terms.model.add(found >= linear(bound)).only_enforce_if(literal)
    return Quantity(found, (0, max(0, most(bound))))


def _add_traffic(
    terms: Terms,
    facts: GroupFacts,
    sites: Sites,
    visits: dict[tuple[str, int], Quantity],
    online: dict[RowStep, Quantity],
    figures: Figures,
) -> None:
    """Bytes of every tensor, rounded up once (§5)."""
    graph, roles = facts.graph, facts.roles
    for tensor in dict.fromkeys(name for name, _ in sites.above):
        bits, users = graph.bits(tensor), facts.users(tensor)
        if tensor in roles.inputs:
            holds = [
                (bits, _when(terms, "visits", sites.leads[tensor, i], [(1, visits[tensor, i])]))
                for i in users
            ]
            figures.read_bytes += _bytes(terms, holds)
        elif tensor in roles.internal:
            figures.write_bytes += [(bits_to_bytes(bits), number(int(tensor in roles.leaving)))]
        else:
            v, maker = visits[tensor, users[0]], facts.ops[users[0]].name
            again: Sum = []
            for row in facts.rows:
                if row.consumer == maker:
                    statistics = STATISTICS_BITS * prod(graph.dims[dim] for dim in row.rows)
                    more = terms.derived("again", [online[row], v], lambda on, v: on * (v - 1))
                    again.append((statistics, more))
            figures.read_bytes += _bytes(terms, [(bits, v), (-bits, number(1)), *again])
            figures.write_bytes += _bytes(terms, [(bits, v), *again])


def _bytes(terms: Terms, bits: Sum) -> Sum:
    """A number of bits in whole bytes, rounded up."""
    if all(factor % 8 == 0 for factor, _ in bits):
        return [(factor // 8, q) for factor, q in bits]
    return [(1, _at_least(terms, "bytes", bits, 8))]


def _add_occupancy(
    terms: Terms,
    facts: GroupFacts,
    sites: Sites,
    visits: dict[tuple[str, int], Quantity],
    online: dict[RowStep, Quantity],
    take: Switch,
) -> None:
    """What is alive while an op runs fits the buffer (§5)."""
    tiles = {key: _tile_bytes(terms, facts, sites, key, visits[key], online) for key in sites.above}
    for j in range(len(facts.ops)):
        total: Sum = []
        for (tensor, i), tile in tiles.items():
            leads = sites.leads[tensor, i]
            if i == j:
                total.append((1, _when(terms, "own", leads, tile)))
            elif leads is not False:
                alive = terms.literal("beside")
                terms.clause(alive, negated(leads), negated(sites.alive[tensor, i, j]))
                total.append((1, _when(terms, "beside", alive, tile)))
        capacity = facts.accelerator.buffer.capacity_bytes
        terms.model.add(linear(total) <= capacity).only_enforce_if(take)


def _tile_bytes(
    terms: Terms,
    facts: GroupFacts,
    sites: Sites,
    key: tuple[str, int],
    visits: Quantity,
    online: dict[RowStep, Quantity],
) -> Sum:
    """Bytes of the tile of a hold, with the statistics that run online into it."""
    graph, roles, (name, i) = facts.graph, facts.roles, key
    tensor, op = graph.tensors[name], facts.ops[i]
    streamed = name not in roles.internal or name in roles.leaving
    doubled = facts.accelerator.buffer.double_buffered and streamed
    copies = 2 if doubled else 1
    volume = terms.product(sites.held_tile[name, i, dim] for dim in tensor.dims if dim in facts.dims)
    size = terms.derived("tile bytes", [volume], lambda n: copies * bits_to_bytes(n * tensor.bits))
    found = [(1, size)]
    for row in facts.rows:
        if row.consumer != op.name or op.output != name or not row.deferrable:
            continue
        rows = terms.product(sites.held_tile[name, i, dim] for dim in row.rows if dim in facts.dims)
        statistics = terms.derived(
            "statistics",
            [online[row], visits, rows],
            lambda on, v, n: on * (2 if doubled and v > 1 else 1) * bits_to_bytes(STATISTICS_BITS * n),
        )
        found.append((1, statistics))
    return found


def _add_work(
    terms: Terms, facts: GroupFacts, op: Op, rec: Quantity, mapped: Mapped, figures: Figures
) -> None:
    """Cycles, MACs and buffer accesses of an op (§6)."""
    graph = facts.graph
    dims = graph.op_dims(op)
    if mapped.configs:
        figures.macs.append((prod(graph.dims[dim] for dim in dims), rec))
        figures.cycles.append((1, terms.product([rec, *mapped.passes.values()])))
        figures.cycles.append((1, terms.product([mapped.fill, rec, *mapped.walked.values()])))
    for name in op.inputs:
        times = terms.product([rec, *(mapped.walked[d] for d in dims if d not in graph.tensors[name].dims)])
        figures.buffer_read_bits.append((graph.bits(name), times))
    out = graph.bits(op.output)
    own = graph.tensors[op.output].dims
    stored = terms.product([rec, *(mapped.walked[dim] for dim in dims if dim not in own)])
    figures.buffer_write_bits.append((out, stored))
    figures.buffer_read_bits += [(out, stored), (-out, rec)]
    for name in op.operands:
        figures.buffer_read_bits.append((graph.tensors[name].bits * graph.elements(op.output), rec))


def _add_vector_work(
    facts: GroupFacts,
    op: Op,
    i: int,
    rec: Quantity,
    visits: dict[tuple[str, int], Quantity],
    figures: Figures,
) -> None:
    """Vector ops of epilogues, prologues and ops without a reduction (§6)."""
    graph = facts.graph
    each = sum(step.vector_ops for step in op.epilogue)
    if op.kind != "einsum" or not graph.reduction_dims(op):
        each += vector_ops_per_element(op.kind, op.function)
    figures.vector.append((each * graph.elements(op.output), rec))
    for step in op.prologue:
        figures.vector.append((step.vector_ops * graph.elements(step.tensor), visits[step.tensor, i]))


def _add_online_work(
    terms: Terms,
    facts: GroupFacts,
    op: Op,
    row: RowStep,
    rec: Quantity,
    steps: Quantity,
    figures: Figures,
) -> None:
    """What statistics that run online add (§6)."""
    made = facts.graph.elements(op.output)
    if row.step.kind == "normalize":
        scaled = terms.derived("scaled once", [steps, rec], lambda n, times: times if n > 1 else 0)
        figures.vector.append((made, scaled))
        return
    rescaled = terms.derived("rescaled", [steps, rec], lambda n, times: times * (n - 1))
    if facts.accelerator.vector.rescale == "add":
        figures.free_vector.append((made, rescaled))
        return
    figures.vector.append((made, rescaled))
    bits = made * facts.graph.tensors[op.output].bits
    figures.buffer_read_bits.append((bits, rescaled))
    figures.buffer_write_bits.append((bits, rescaled))


def _costs(terms: Terms, accelerator: Accelerator, figures: Figures, mapped: tuple[Mapped, ...]) -> Costs:
    """Objectives from the figures of a group (§6)."""
    reads = [*_bytes(terms, figures.buffer_read_bits), *figures.write_bytes]
    writes = [*_bytes(terms, figures.buffer_write_bits), *figures.read_bytes]
    scale = energy_scale(accelerator)
    read, write, buffer_read, buffer_write, mac, vector = (
        int(constant * scale) for constant in _constants(accelerator)
    )
    energy = [
        *_times(read, figures.read_bytes),
        *_times(write, figures.write_bytes),
        *_times(buffer_read, reads),
        *_times(buffer_write, writes),
        *_times(mac, figures.macs),
        *_times(vector, [*figures.vector, *figures.free_vector]),
    ]
    moved = [*figures.read_bytes, *figures.write_bytes]
    busy = [
        (figures.cycles, Fraction(1)),
        (figures.vector, 1 / exact(accelerator.vector.lanes)),
        (moved, accelerator.dram_cycles_per_byte),
        ([*reads, *writes], accelerator.buffer_cycles_per_byte),
    ]
    top = max(ceil_div(most(work) * each.numerator, each.denominator) for work, each in busy)
    latency = terms.model.new_int_var(0, max(0, top), "latency")
    for work, each in busy:
        terms.model.add(each.denominator * latency >= linear(_times(each.numerator, work)))
    return Costs(moved, energy, Quantity(latency, (0, max(0, top))), mapped)


def _times(factor: int, terms: Sum) -> Sum:
    return [(factor * coefficient, q) for coefficient, q in terms]
