"""The monolithic model: each family of constraints alone, feasible and infeasible; results of all kinds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import pytest
from nests import SOFTMAX, build, einsum, pointwise
from ortools.sat.python import cp_model

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.arrays import configurations
from mmee_solver.errors import InputError
from mmee_solver.monolith import MonolithOptions, solve_groups, solve_monolith
from mmee_solver.monolith_arrays import distinct_configurations, every_configuration, fine_passes
from mmee_solver.monolith_paths import GroupFacts, Paths, add_nesting, add_paths
from mmee_solver.monolith_sites import Sites, add_sites, fine_steps
from mmee_solver.monolith_terms import Quantity, Terms, number
from mmee_solver.nest import Compute, Hold, Loop
from mmee_solver.trace import count_pieces, cut
from mmee_solver.workload import Graph


def accelerator(capacity: int = 64, doubled: bool = False) -> Accelerator:
    buffer = Buffer(capacity, 2.0, 2.3, None, doubled)
    array, dram = Array(1, ((2, 2),), 0.3, 0.5), Dram(2e9, 64, 64)
    return Accelerator("tiny", 1e9, dram, buffer, array, Vector(2, 0.4))


def matmul(size: int = 3) -> Graph:
    return build({"X": "mk", "A": "kn", "Y": "mn"}, dict.fromkeys("mkn", size), einsum("a", "X A", "Y"))


def attention(*steps: str) -> Graph:
    return build(
        {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij"},
        dict.fromkeys("iklj", 2),
        einsum("a", "Q K", "P", *([SOFTMAX] if steps else [])),
        einsum("b", "P V", "O"),
    )


def siblings() -> Graph:
    spec = {"X": "me", "A": "ea", "B": "eb", "C": "ec", "Q": "ma", "K": "mb", "V": "mc"}
    ops = [einsum("a", "X A", "Q"), einsum("b", "X B", "K"), einsum("c", "X C", "V")]
    return build(spec, dict.fromkeys("meabc", 2), *ops)


def parts(graph: Graph, recompute: bool = True) -> tuple[Terms, GroupFacts, Paths, Sites]:
    """The loops and holds of all ops in one group, without any cost."""
    terms = Terms(cp_model.CpModel(), 100_000)
    facts = GroupFacts.of(graph, accelerator(), tuple(op.name for op in graph.ops), "integer", recompute)
    paths = add_paths(terms, facts)
    return terms, facts, paths, add_sites(terms, facts, paths)


def feasible(terms: Terms) -> bool:
    code = cp_model.CpSolver().solve(terms.model)
    assert code in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return code == cp_model.OPTIMAL


def fix(terms: Terms, literal: object, value: bool) -> None:
    if isinstance(literal, bool):
        assert literal == value, "a constant says otherwise"
        return
    terms.model.add(literal == int(value))  # type: ignore[operator, arg-type]


def least(terms: Terms, quantity: Quantity) -> int:
    solver = cp_model.CpSolver()
    terms.model.minimize(quantity.term)
    assert solver.solve(terms.model) == cp_model.OPTIMAL
    return round(solver.objective_value)


def test_a_product_is_built_once_and_takes_only_what_its_factors_give() -> None:
    terms = Terms(cp_model.CpModel(), 1000)
    a, b = terms.choose("a", (2, 3)), terms.choose("b", (1, 5))
    found = terms.product([a, b])
    assert found.values == (2, 3, 10, 15)
    assert terms.product([b, number(1), a]) is found
    assert terms.product([b, number(0), a]) == number(0)
    assert terms.product([number(2), number(3)]) == number(6)
    terms.model.add(b.term >= 2)
    assert least(terms, terms.product([a, b, number(2)])) == 20


def test_large_products_are_multiplied_and_larger_ones_refused() -> None:
    terms = Terms(cp_model.CpModel(), 10_000)
    a, b = terms.choose("a", range(90, 180)), terms.choose("b", range(90, 180))
    rows = terms.rows
    assert least(terms, terms.product([a, b])) == 8100
    assert terms.rows == rows
    with pytest.raises(InputError, match="values"):
        terms.product([terms.choose("c", range(1, 400)), terms.choose("d", range(1, 400))])
    with pytest.raises(InputError, match="table rows"):
        terms.derived("e", [a, b, terms.choose("f", (1, 2))], lambda a, b, f: a + b + f)


def test_a_table_forbids_what_its_rule_gives_no_value_for() -> None:
    terms = Terms(cp_model.CpModel(), 1000)
    a = terms.choose("a", (1, 2))
    assert least(terms, terms.derived("b", [a], lambda v: None if v == 1 else 10 * v)) == 20
    terms.derived("c", [a], lambda v: None if v == 2 else v)
    assert not feasible(terms)


@pytest.mark.parametrize(("size", "tile"), [*product((1, 5, 6, 7), (1, 2, 3, 4))])
def test_steps_and_passes_are_those_of_the_trace(size: int, tile: int) -> None:
    if tile > size:
        return
    for granule, extent in product(range(1, tile + 1), (1, 2, 3, 8)):
        pieces = cut(cut(((size, 1),), tile), granule)
        assert fine_steps(size, tile, granule) == count_pieces(pieces)
        expected = sum(count * -(-piece // extent) for piece, count in pieces)
        assert fine_passes(size, tile, granule, extent) == expected


def test_a_shared_loop_has_one_tile_size() -> None:
    terms, _, paths, _ = parts(attention())
    fix(terms, paths.share[0, 1, "i"], True)
    terms.model.add(paths.tile[0, "i"].term == 1)
    assert feasible(terms)
    terms.model.add(paths.tile[1, "i"].term == 2)
    assert not feasible(terms)


def test_no_loop_is_shared_over_what_the_reader_waits_for() -> None:
    _, _, paths, _ = parts(attention())
    assert paths.share[0, 1, "k"] is False
    assert paths.share[0, 1, "l"] is not False


def test_recomputation_is_a_loop_shared_with_an_op_that_has_the_dim() -> None:
    terms, _, paths, _ = parts(attention())
    fix(terms, paths.loop[0, "j"], True)
    assert feasible(terms)
    fix(terms, paths.share[0, 1, "j"], False)
    assert not feasible(terms)
    _, _, without, _ = parts(attention(), recompute=False)
    assert without.loop[0, "j"] is False
    # what leaves the group is never recomputed
    assert paths.loop[1, "k"] is False


def test_ops_run_after_those_they_read() -> None:
    _, _, paths, _ = parts(attention())
    assert paths.before[0, 1] is True
    assert paths.before[1, 0] is False


def test_no_op_runs_between_two_that_share_a_loop_without_it() -> None:
    terms, _, paths, _ = parts(siblings())
    fix(terms, paths.share[0, 1, "m"], True)
    fix(terms, paths.share[0, 2, "m"], False)
    assert feasible(terms)
    fix(terms, paths.before[0, 2], True)
    assert feasible(terms)
    fix(terms, paths.before[2, 1], True)
    assert not feasible(terms)


def test_sharing_is_transitive() -> None:
    terms, _, paths, _ = parts(siblings())
    fix(terms, paths.share[0, 1, "e"], True)
    fix(terms, paths.share[1, 2, "e"], True)
    assert feasible(terms)
    fix(terms, paths.share[0, 2, "e"], False)
    assert not feasible(terms)


def test_sets_of_loops_above_two_holds_are_nested() -> None:
    terms, _, _, sites = parts(matmul())
    fix(terms, sites.above["X", 0]["m"], True)
    fix(terms, sites.above["X", 0]["n"], False)
    assert feasible(terms)
    fix(terms, sites.above["A", 0]["n"], True)
    fix(terms, sites.above["A", 0]["m"], False)
    assert not feasible(terms)


def test_sets_of_two_ops_are_nested_on_what_they_share() -> None:
    terms = Terms(cp_model.CpModel(), 100_000)
    graph = attention()
    facts = GroupFacts.of(graph, accelerator(), ("a", "b"), "integer", True)
    paths = add_paths(terms, facts)
    one = {dim: terms.literal(dim) for dim in facts.dims}
    two = {dim: terms.literal(dim) for dim in facts.dims}
    add_nesting(terms, facts, paths, {0: [one], 1: [two]})
    for name, other in (("i", "l"), ("l", "i")):
        fix(terms, one[name], name == "i")
        fix(terms, two[name], name == "l")
        fix(terms, paths.share[0, 1, other], True)
    assert not feasible(terms)


def test_a_hold_above_a_shared_loop_serves_both_ops() -> None:
    terms, facts, paths, sites = parts(siblings())
    fix(terms, paths.share[0, 1, "m"], True)
    for dim in facts.dims:
        fix(terms, sites.above["X", 0][dim], False)
    assert feasible(terms)
    fix(terms, sites.same["X", 0, 1], False)
    assert not feasible(terms)


def test_a_hold_above_a_shared_loop_is_alive_in_both_ops() -> None:
    terms, _, paths, sites = parts(attention())
    fix(terms, paths.share[0, 1, "i"], True)
    fix(terms, sites.alive["K", 0, 1], False)
    assert feasible(terms)
    fix(terms, sites.above["K", 0]["i"], False)
    assert not feasible(terms)


def test_a_shared_hold_is_alive_between_its_users() -> None:
    terms, facts, paths, sites = parts(siblings())
    for (i, j), dim in product(((0, 1), (1, 2), (0, 2)), facts.dims):
        fix(terms, paths.share[i, j, dim], False)
    fix(terms, sites.same["X", 0, 2], True)
    fix(terms, sites.same["X", 0, 1], False)
    assert feasible(terms)
    for i, j in pairwise((0, 1, 2)):
        fix(terms, paths.before[i, j], True)
    assert not feasible(terms)


def test_only_the_innermost_hold_of_an_op_is_streamed() -> None:
    terms, facts, paths, sites = parts(matmul())
    fix(terms, sites.stream["X", 0], True)
    fix(terms, paths.loop[0, "n"], True)
    assert feasible(terms)
    fix(terms, sites.above["X", 0]["n"], False)
    assert not feasible(terms)
    assert sites.granule[0, "m"].values == facts.granules("m") == (1, 2, 3)


def test_a_granule_cuts_dims_of_the_streamed_tensor_alone() -> None:
    terms, _, paths, sites = parts(matmul())
    fix(terms, sites.stream["X", 0], True)
    terms.model.add(sites.granule[0, "m"].term == 1)
    terms.model.add(paths.tile[0, "m"].term == 2)
    assert feasible(terms)
    terms.model.add(sites.granule[0, "n"].term < paths.tile[0, "n"].term)
    assert not feasible(terms)


def test_granules_may_be_extents_where_loops_are_divisors() -> None:
    graph = matmul(9)
    array = Array(4, ((2, 5),), 0.3, 0.5)
    facts = GroupFacts.of(graph, replace(accelerator(), array=array), ("a",), "divisors", True)
    assert facts.sizes("m") == (1, 3, 9)
    assert facts.granules("m") == (1, 2, 3, 4, 5, 8, 9)


def test_an_axis_above_the_hold_runs_online_and_never_below_it() -> None:
    terms, _, paths, sites = parts(attention("softmax"))
    ((_, steps),) = sites.online_steps.items()
    fix(terms, paths.loop[0, "l"], True)
    fix(terms, paths.share[0, 1, "l"], True)
    assert least(terms, steps) == 2
    # the hold of P stands below all that both share: there is no solution with the loop below it
    fix(terms, sites.above["P", 1]["l"], False)
    assert not feasible(terms)


def test_rows_that_cannot_run_online_are_whole() -> None:
    graph = build(
        {"S": "il", "K": "lk", "P": "ik", "V": "il", "O": "ik"},
        dict.fromkeys("ilk", 2),
        einsum("a", "S K", "P", pointwise("relu")),
        einsum("b", "P V", "O", replace(SOFTMAX, axis="k", tensor="P")),
    )
    terms, _, paths, _ = parts(graph)
    assert feasible(terms)
    fix(terms, paths.share[0, 1, "k"], True)
    assert not feasible(terms)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("pipeline", ["ideal", "systolic"])
def test_array_configurations_hold_those_of_the_engine(count: int, pipeline: str) -> None:
    array = Array(count, ((2, 3), (1, 4)), 0.3, 0.5, pipeline=pipeline)
    machine = replace(accelerator(), array=array)
    for graph in (matmul(5), build({"X": "k", "Y": ""}, {"k": 5}, einsum("a", "X", "Y"))):
        op = graph.ops[0]
        every = list(every_configuration(graph, machine, op))
        assert set(configurations(graph, machine, op)) <= set(every)
        if every:
            assert set(distinct_configurations(graph, machine, op).values()) <= set(every)


def test_an_op_without_a_configuration_is_refused() -> None:
    machine = replace(accelerator(), array=Array(1, ((2, 2),), 0.3, 0.5, stationarity=("weight",)))
    graph = build({"X": "k", "A": "k", "Y": ""}, {"k": 4}, einsum("a", "X A", "Y"))
    with pytest.raises(InputError, match="stationary"):
        solve_monolith(graph, machine)


def test_just_enough_memory_is_feasible_and_a_byte_less_is_not() -> None:
    found = solve_monolith(matmul(), accelerator(6), "dram")
    assert found.status == "optimal"
    assert found.value == found.bound == 126
    assert found.metrics is not None
    assert found.metrics.peak_buffer_bytes <= 6
    none = solve_monolith(matmul(), accelerator(5), "dram")
    assert (none.status, none.value, none.bound, none.groups) == ("infeasible", None, None, ())
    all_in_one = solve_monolith(matmul(), accelerator(5), "dram", fusion="all")
    assert all_in_one.status == "infeasible"


@pytest.mark.parametrize("fusion", ["auto", "all"])
def test_a_solve_that_is_out_of_time_is_an_ordinary_result(fusion: str) -> None:
    found = solve_monolith(attention("softmax"), accelerator(), "energy", fusion=fusion, seconds=0.0)
    assert found.status == "unknown"
    assert found.value is None
    assert found.groups == ()


def test_equal_inputs_give_equal_results() -> None:
    first, second = (solve_monolith(attention("softmax"), accelerator(20), "edp") for _ in range(2))
    assert first == second


def test_the_partition_is_a_choice() -> None:
    together = solve_monolith(attention(), accelerator(), "dram")
    assert [group.ops for group in together.groups] == [("a", "b")]
    apart = solve_monolith(attention(), accelerator(), "dram", fusion="none")
    assert [group.ops for group in apart.groups] == [("a",), ("b",)]
    assert together.value == 4 * 4 * 2
    assert apart.value == 6 * 4 * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "dran"}, 'objective "dran".*did you mean "dram"'),
        ({"tiles": "powers"}, 'tiles "powers"; expected one of integer, divisors'),
        ({"fusion": "some"}, 'fusion "some"'),
        ({"largest": 4}, "groups of 4 ops; expected 1 to 3"),
        ({"largest": 0}, "groups of 0 ops"),
    ],
)
def test_unknown_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        solve_monolith(matmul(), accelerator(), **options)  # type: ignore[arg-type]


def test_what_is_too_large_is_refused_with_its_size() -> None:
    with pytest.raises(InputError, match="1000000 tilings in all"):
        solve_monolith(matmul(100), accelerator())
    names = "abcdefg"
    tensors = dict.fromkeys(["in", *(f"out{name}" for name in names)], "m")
    ops = [einsum(name, "in", f"out{name}") for name in names]
    with pytest.raises(InputError, match="7 ops"):
        solve_monolith(build(tensors, {"m": 2}, *ops), accelerator())


def test_energy_delay_products_beyond_62_bits_are_refused() -> None:
    machine = replace(accelerator(1 << 20), dram=Dram(1, 1e9, 1e9))
    with pytest.raises(InputError, match="62 bits"):
        solve_monolith(matmul(8), machine, "edp")


def three_readers(sizes: dict[str, int], chain: bool, dtype: str) -> Graph:
    """Three ops read X; the last one what the first made, or each what the one before it made."""
    spec = {"X": "me", "A": "ef", "B": "ef" if chain else "ea", "C": "ef", "G": "mf", "Y": "mf"}
    spec["H"] = "mf" if chain else "ma"
    middle = einsum("b", "X B", "H", *([pointwise("mul", "G")] if chain else []))
    last = einsum("c", "X C", "Y", pointwise("mul", "H" if chain else "G"))
    return build(spec, sizes, einsum("a", "X A", "G"), middle, last, dtype=dtype)


def test_a_hold_of_a_list_may_serve_only_its_last_readers() -> None:
    graph = three_readers({"a": 2, "e": 3, "f": 1, "m": 2}, chain=False, dtype="fp16")
    machine = Accelerator(
        "tiny",
        1e9,
        Dram(2e9, 7.03, 64),
        Buffer(26, 40, 0.1),
        Array(4, ((2, 3),), 0.3, 0.5),
        Vector(1, 0.4, "add"),
    )
    found = solve_groups(graph, machine, [("a", "b", "c")], MonolithOptions("energy"))
    # the engine's space without such holds has 114157/25
    assert found.value == Fraction(112316, 25)
    nest = found.groups[0].nest
    assert found.groups[0].ops == ("b", "a", "c")
    places = [place for place, item in enumerate(nest) if item == Hold("X")]
    assert len(places) == 1
    assert all(isinstance(item, Hold | Loop) for item in nest[: places[0]])


def test_a_hold_of_a_list_may_end_before_the_last_reader_in_a_loop_of_one_step() -> None:
    graph = three_readers({"e": 2, "f": 3, "m": 1}, chain=True, dtype="int8")
    machine = Accelerator(
        "tiny",
        1e9,
        Dram(1e12, 64, 64),
        Buffer(8, 40, 0.1, 4, double_buffered=True),
        Array(1, ((2, 3),), 0.3, 0.5, pipeline="systolic"),
        Vector(1, 0.4),
    )
    found = solve_groups(graph, machine, [("a", "b", "c")], MonolithOptions("energy"))
    assert found.value == Fraction(21468, 5)
    (loop,) = found.groups[0].nest
    assert isinstance(loop, Loop)
    step = loop.body[1]
    assert isinstance(step, Loop)
    assert step.tile == graph.dims[step.dim]
    assert [item for item in step.body if isinstance(item, Hold)] == [Hold("X"), Hold("G")]
    assert Compute("c") not in step.body
