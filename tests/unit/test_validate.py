"""Every rule of a mapping, with one that keeps it and one that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nests import SOFTMAX, build, einsum, pointwise

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.cost import add_metrics, evaluate_group
from mmee_solver.errors import MappingError
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Item, Loop, Nest, Resident
from mmee_solver.validate import stationary, validate_group, validate_groups, validate_metrics
from mmee_solver.workload import Graph, Op, Step

ACCELERATOR = Accelerator(
    "small",
    clock_hz=1e9,
    dram=Dram(8e9, 10, 20),
    buffer=Buffer(1 << 20, 1, 2),
    array=Array(4, ((2, 2),), 0.5, 0.25),
    vector=Vector(8, 0.1),
)


def with_array(**changes: object) -> Accelerator:
    return replace(ACCELERATOR, array=replace(ACCELERATOR.array, **changes))  # type: ignore[arg-type]


def ffn(*steps: Step, outputs: tuple[str, ...] = ()) -> Graph:
    """H[m,f] = X[m,k] · A[k,f], Y[m,n] = H · B[f,n]."""
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
    sizes = {"m": 4, "k": 3, "f": 4, "n": 5}
    return build(spec, sizes, einsum("a", "X A", "H", *steps), einsum("b", "H B", "Y"), outputs=outputs)


CONFIGS = {
    "a": ArrayConfig(("m", 4), ("f", 4), None, "k", (2, 2)),
    "b": ArrayConfig(("m", 4), ("n", 4), None, "f", (2, 2)),
}


def group(*nest: Item, ops: str = "a b", **array: ArrayConfig) -> Group:
    names = tuple(ops.split())
    return Group(names, nest, {name: config for name, config in (CONFIGS | array).items() if name in names})


def refused(graph: Graph, mapped: Group, accelerator: Accelerator = ACCELERATOR) -> str:
    with pytest.raises(MappingError) as caught:
        validate_group(graph, accelerator, mapped)
    return str(caught.value)


FIRST: Nest = (Hold("X"), Hold("A"), Compute("a"))
SECOND: Nest = (Hold("B"), Hold("Y"), Compute("b"))
FUSED: Nest = (Hold("H"), *FIRST, *SECOND)


def test_a_legal_group_gives_its_exact_cost() -> None:
    mapped = group(Loop("m", 3, FUSED))
    assert validate_group(ffn(), ACCELERATOR, mapped) == evaluate_group(ffn(), ACCELERATOR, mapped)


# --- ops and nest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ops", ["", "a a", "a c"])
def test_ops_are_distinct_ops_of_the_graph(ops: str) -> None:
    assert "are not distinct ops of the graph" in refused(ffn(), group(*FUSED, ops=ops))


def test_the_nest_computes_the_ops_in_their_order() -> None:
    assert refused(ffn(), group(*FUSED, ops="b a")) == "the nest computes ['a', 'b'], not ['b', 'a']"
    assert refused(ffn(), group(Hold("H"), *FIRST)) == "the nest computes ['a'], not ['a', 'b']"


def test_producers_stand_before_consumers() -> None:
    nest = (Hold("H"), *SECOND, *FIRST)
    assert refused(ffn(), group(*nest, ops="b a")) == '"b" stands before "a", whose output it reads'


def test_what_cannot_be_walked_is_refused() -> None:
    assert refused(ffn(), group(*FIRST, *SECOND)) == '"a" needs "H", which is not held there'


@pytest.mark.parametrize("tile", [1, 3, 4])
def test_tiles_within_the_dim(tile: int) -> None:
    validate_group(ffn(), ACCELERATOR, group(Loop("m", tile, FUSED)))


@pytest.mark.parametrize("tile", [0, 5])
def test_tiles_beyond_the_dim(tile: int) -> None:
    nest = Loop("m", tile, FUSED) if tile else Loop("m", 4, (Loop("m", 5, FUSED),))
    assert "a loop over m has tile 5; expected 1 to 4" in refused(ffn(), group(nest))


# --- finished values ---------------------------------------------------------------------------------


def test_a_reduction_may_be_looped_above_its_op_alone() -> None:
    validate_group(ffn(), ACCELERATOR, group(Hold("H"), Loop("k", 2, FIRST), *SECOND))
    # and above a consumer that sums over it itself
    validate_group(ffn(), ACCELERATOR, group(Loop("f", 2, FUSED)))


def test_a_reduction_may_not_be_looped_above_op_and_consumer() -> None:
    message = 'the loop over k lets "b" see "H" unfinished'
    assert refused(ffn(), group(Loop("k", 2, FUSED))) == message
    assert refused(ffn(), group(Hold("H"), Loop("k", 2, (*FIRST, *SECOND)))) == message


def attention(*steps: Step) -> Graph:
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij", "b": "l"}
    sizes = {"i": 4, "l": 6, "k": 3, "j": 5}
    if not any(step.inputs for step in steps):
        del spec["b"]
    return build(spec, sizes, einsum("a", "Q K", "P", *steps), einsum("b", "P V", "O"))


ROWS = {
    "a": ArrayConfig(("i", 4), ("l", 4), None, "k", (2, 2)),
    "b": ArrayConfig(("i", 4), ("j", 4), None, "l", (2, 2)),
}
INSIDE: Nest = (Hold("Q"), Hold("K"), Compute("a"), Hold("V"), Hold("O"), Compute("b"))
BIASED = (SOFTMAX, pointwise("add", "b"))


def test_statistics_may_run_online() -> None:
    validate_group(attention(SOFTMAX), ACCELERATOR, group(Loop("l", 4, (Hold("P"), *INSIDE)), **ROWS))


def test_rows_must_be_whole_if_their_statistics_cannot_wait() -> None:
    nest = (Hold("P"), Hold("b"), *INSIDE)
    validate_group(attention(*BIASED), ACCELERATOR, group(*nest, **ROWS))
    # one step is no cut
    validate_group(attention(*BIASED), ACCELERATOR, group(Loop("l", 6, nest), **ROWS))
    message = '"P" must span "l": "b" cannot run online'
    assert refused(attention(*BIASED), group(Loop("l", 4, nest), **ROWS)) == message


@pytest.mark.parametrize("steps", [(SOFTMAX,), BIASED])
def test_rows_must_be_finished_before_they_are_read(steps: tuple[Step, ...]) -> None:
    holds = (Hold("b"),) if len(steps) > 1 else ()
    alone = (*holds, Hold("P"), Hold("Q"), Loop("l", 4, (Hold("K"), Compute("a"))), *INSIDE[3:])
    validate_group(attention(*steps), ACCELERATOR, group(*alone, **ROWS))
    both = (*holds, Hold("P"), Loop("l", 4, INSIDE))
    message = 'a loop over l lets "b" see rows of "P" unfinished'
    assert refused(attention(*steps), group(*both, **ROWS)) == message


def test_rows_of_a_part_must_be_finished_too() -> None:
    nest = (Loop("l", 4, (Hold("P"), Loop("l", 2, INSIDE))),)
    message = 'a loop over l lets "b" see rows of "P" unfinished'
    assert refused(attention(SOFTMAX), group(*nest, **ROWS)) == message


def test_an_input_is_whole_whatever_is_looped_below_its_hold() -> None:
    graph = build(
        {"P": "il", "V": "lj", "O": "ij"},
        {"i": 4, "l": 6, "j": 5},
        einsum(
            "b", "P V", "O", replace(SOFTMAX, tensor="P"), Step("relu", "elementwise", "relu", tensor="P")
        ),
    )
    below = (Hold("P"), Loop("l", 4, (Hold("V"), Hold("O"), Compute("b"))))
    validate_group(graph, ACCELERATOR, group(*below, ops="b", **ROWS))
    above = (Loop("l", 4, (Hold("P"), Hold("V"), Hold("O"), Compute("b"))),)
    assert refused(graph, group(*above, ops="b", **ROWS)) == '"P" must span "l": "b" cannot run online'


# --- recomputation and internal tensors --------------------------------------------------------------


def test_an_op_inside_may_be_recomputed() -> None:
    validate_group(ffn(), ACCELERATOR, group(Loop("n", 2, FUSED)))


def test_an_op_whose_output_leaves_may_not_be_recomputed() -> None:
    message = '"a" is recomputed, but its output leaves the group'
    assert refused(ffn(outputs=("H", "Y")), group(Loop("n", 2, FUSED))) == message
    # one step recomputes nothing
    validate_group(ffn(outputs=("H", "Y")), ACCELERATOR, group(Loop("n", 5, FUSED)))
    nest = (Loop("k", 2, (Hold("H"), Hold("B"), Hold("Y"), Compute("b"))),)
    assert refused(ffn(), group(*nest, ops="b")) == '"b" is recomputed, but its output leaves the group'


def test_an_internal_tensor_is_in_one_hold() -> None:
    validate_group(ffn(), ACCELERATOR, group(*FUSED))
    apart = (Loop("m", 2, (Hold("H"), *FIRST)), Loop("m", 2, (Hold("H"), *SECOND)))
    assert refused(ffn(), group(*apart)) == 'internal "H" must be in one hold over all of its ops'


# --- array configurations ----------------------------------------------------------------------------


def test_every_reduction_needs_an_array_and_nothing_else_has_one() -> None:
    missing = Group(("a", "b"), FUSED, {"a": CONFIGS["a"]})
    assert refused(ffn(), missing) == '"b" needs an array configuration'
    foreign = Group(("a",), (Hold("H"), *FIRST), CONFIGS)
    message = "an array configuration names an op that is not in the group"
    assert refused(ffn(), foreign) == message
    graph = build({"X": "mk", "Y": "mk"}, {"m": 4, "k": 3}, Op("a", "elementwise", ("X",), "Y", "relu"))
    nest = (Hold("X"), Hold("Y"), Compute("a"))
    validate_group(graph, ACCELERATOR, Group(("a",), nest))
    assert refused(graph, group(*nest, ops="a")) == '"a" takes no array configuration'


def config(
    rows: object, cols: object, batch: object, inner: str, shape: tuple[int, int] = (2, 2)
) -> ArrayConfig:
    return ArrayConfig(rows, cols, batch, inner, shape)  # type: ignore[arg-type]


def batched() -> Graph:
    """Y[h,m,n] = X[h,m,k] · A[h,k,n]."""
    spec = {"X": "hmk", "A": "hkn", "Y": "hmn"}
    return build(spec, {"h": 3, "m": 4, "k": 6, "n": 5}, einsum("a", "X A", "Y"))


ALONE: Nest = (Hold("X"), Hold("A"), Hold("Y"), Compute("a"))


@pytest.mark.parametrize(
    "legal",
    [
        config(("m", 4), ("n", 4), None, "k"),
        config(("m", 8), ("n", 2), None, "h"),
        config(("k", 2), ("h", 8), None, "m"),
        config(("m", 2), ("n", 4), ("h", 2), "k"),
        config(("m", 2), ("n", 2), ("k", 4), "h"),
        config(("m", 4), ("n", 4), ("k", 1), "k"),  # a batch of one array maps nothing
    ],
)
def test_arrays_are_spread_over_distinct_dims(legal: ArrayConfig) -> None:
    validate_group(batched(), ACCELERATOR, group(*ALONE, ops="a", a=legal))


@pytest.mark.parametrize(
    ("illegal", "message"),
    [
        (config(("m", 4), ("m", 4), None, "k"), "maps ['m', 'm']; expected distinct dims"),
        (config(("m", 4), ("z", 4), None, "k"), "maps ['m', 'z']; expected distinct dims"),
        (config(None, ("n", 4), None, "k"), "leaves rows or cols without a dim"),
        (config(("m", 8), None, None, "k"), "leaves rows or cols without a dim"),
        (config(("m", 4), ("n", 2), None, "k"), "does not spread 4 arrays of (2, 2)"),
        (config(("m", 4), ("n", 8), None, "k"), "does not spread 4 arrays of (2, 2)"),
        (config(("m", 3), ("n", 4), None, "k"), "does not spread 4 arrays of (2, 2)"),
        (config(("m", 4), ("n", 4), ("h", 2), "k"), "does not spread 4 arrays of (2, 2)"),
        (config(("m", 4), ("n", 4), None, "z"), 'has the inner dim "z"; expected one of'),
        (config(("m", 4), ("n", 4), None, "m"), "has the inner dim \"m\"; expected one of ['h', 'k']"),
        (config(("m", 4), ("n", 4), ("k", 1), "m"), "has the inner dim \"m\"; expected one of ['h', 'k']"),
        (config(("m", 4), ("n", 4), None, "k", (1, 4)), "has shape (1, 4), which the arrays cannot take"),
    ],
)
def test_arrays_that_are_not_spread_as_they_can_be(illegal: ArrayConfig, message: str) -> None:
    found = refused(batched(), group(*ALONE, ops="a", a=illegal))
    assert found.startswith('the array configuration of "a" ')
    assert message in found


def test_a_matmul_without_free_dim_runs_any_dim_innermost() -> None:
    graph = build({"X": "mk", "A": "k", "Y": "m"}, {"m": 4, "k": 6}, einsum("a", "X A", "Y"))
    for inner in "mk":
        legal = config(("m", 4), ("k", 4), None, inner)
        validate_group(graph, ACCELERATOR, group(*ALONE, ops="a", a=legal))


def test_a_sum_over_one_dim_fills_rows_alone() -> None:
    graph = build({"X": "k", "A": "k", "Y": ""}, {"k": 6}, einsum("a", "X A", "Y"))
    validate_group(graph, ACCELERATOR, group(*ALONE, ops="a", a=config(("k", 8), None, None, "k")))
    found = refused(graph, group(*ALONE, ops="a", a=config(("k", 4), None, None, "k")))
    assert found == 'the array configuration of "a" does not spread 4 arrays of (2, 2)'


def test_what_stays_must_be_among_the_stationarities() -> None:
    output = group(*ALONE, ops="a", a=config(("m", 4), ("n", 4), None, "k"))
    weight = group(*ALONE, ops="a", a=config(("k", 4), ("n", 4), None, "m"))
    only = with_array(stationarity=("output",))
    validate_group(batched(), only, output)
    assert refused(batched(), weight, only) == 'the array configuration of "a" is weight stationary'


@pytest.mark.parametrize(
    ("inner", "kept"), [("k", "output"), ("m", "weight"), ("n", "input"), ("h", "output")]
)
def test_what_stays_while_a_dim_runs(inner: str, kept: str) -> None:
    # k is summed; A lacks m; X lacks n; nothing lacks h
    assert stationary(batched(), batched().op("a"), inner) == kept


def test_ops_share_one_shape_unless_the_arrays_can_change() -> None:
    both = with_array(shapes=((2, 2), (1, 4)))
    mixed = group(*FUSED, b=config(("m", 2), ("n", 8), None, "f", (1, 4)))
    validate_group(ffn(), both, mixed)
    found = refused(ffn(), mixed)
    assert found == 'the array configuration of "b" has shape (1, 4), which the arrays cannot take'


# --- capacity ----------------------------------------------------------------------------------------


def test_the_peak_must_fit_exactly() -> None:
    # H 16 with X 12 and A 12 elements; then H 16, B 20 and Y 20, of 2 bytes
    validate_group(ffn(), ACCELERATOR.with_buffer(112), group(*FUSED))
    message = "the peak of 112 bytes exceeds the buffer of 111 bytes"
    assert refused(ffn(), group(*FUSED), ACCELERATOR.with_buffer(111)) == message


def test_what_is_resident_takes_its_room() -> None:
    mapped = group(Loop("m", 1, (Hold("H"), *SECOND)), ops="b")
    # H 4, B 20, Y 5 elements; resident: H 16
    validate_group(ffn(), ACCELERATOR.with_buffer(58), mapped)
    validate_group(ffn(), ACCELERATOR.with_buffer(82), mapped, resident=["H"])
    for beside in ((), ("X",)):
        with pytest.raises(MappingError, match="exceeds the buffer of 81 bytes"):
            validate_group(ffn(), ACCELERATOR.with_buffer(81), mapped, resident=["H"], beside=beside)


# --- several groups ----------------------------------------------------------------------------------

ONE, TWO = group(Hold("H"), *FIRST, ops="a"), group(Hold("H"), *SECOND, ops="b")


def refused_all(graph: Graph, groups: list[Group], resident: list[Resident], capacity: int = 1 << 20) -> str:
    with pytest.raises(MappingError) as caught:
        validate_groups(graph, ACCELERATOR.with_buffer(capacity), groups, resident)
    return str(caught.value)


def test_a_legal_mapping_gives_the_cost_of_every_group() -> None:
    found = validate_groups(ffn(), ACCELERATOR, [ONE, TWO])
    assert found == tuple(evaluate_group(ffn(), ACCELERATOR, part) for part in (ONE, TWO))


def test_every_op_is_in_one_group() -> None:
    assert refused_all(ffn(), [ONE, group(*FUSED)], []) == '"a" is in two groups'
    assert refused_all(ffn(), [ONE], []) == '"b" is in no group'


def test_groups_run_in_topological_order() -> None:
    assert refused_all(ffn(), [TWO, ONE], []) == '"b" runs before "a", whose output it reads'


def test_errors_name_the_group() -> None:
    # the first needs 80 bytes, the second 112
    message = "group 2: the peak of 112 bytes exceeds the buffer of 111 bytes"
    assert refused_all(ffn(), [ONE, TWO], [], capacity=111) == message


def test_a_resident_tensor_costs_no_traffic() -> None:
    first, second = validate_groups(ffn(), ACCELERATOR, [ONE, TWO], [Resident("H", 0, 1)])
    assert first.traffic == {"X": (24, 0), "A": (24, 0)}
    assert second.traffic == {"B": (40, 0), "Y": (0, 40)}


@pytest.mark.parametrize("tensor", ["X", "Y", "Q"])
def test_only_intermediates_stay_resident(tensor: str) -> None:
    message = f'"{tensor}" is no intermediate and cannot stay resident'
    assert refused_all(ffn(), [ONE, TWO], [Resident(tensor, 0, 1)]) == message


@pytest.mark.parametrize(("first", "last"), [(0, 0), (1, 1), (0, 2)])
def test_a_resident_tensor_lasts_from_its_maker_to_its_last_reader(first: int, last: int) -> None:
    message = 'resident "H" must last from the group that makes it to its last reader'
    assert refused_all(ffn(), [ONE, TWO], [Resident("H", first, last)]) == message


def three_groups() -> tuple[Graph, list[Group]]:
    """a makes H, b is a stranger between, c reads H."""
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "kn", "Z": "mn", "C": "fn", "Y": "mn"}
    ops = (einsum("a", "X A", "H"), einsum("b", "X B", "Z"), einsum("c", "H C", "Y"))
    graph = build(spec, {"m": 4, "k": 3, "f": 4, "n": 5}, *ops)
    nest = (Hold("X"), Hold("B"), Hold("Z"), Compute("b"))
    between = group(*nest, ops="b", b=config(("m", 4), ("n", 4), None, "k"))
    last = Group(("c",), (Hold("H"), Hold("C"), Hold("Y"), Compute("c")), {"c": CONFIGS["b"]})
    return graph, [ONE, between, last]


def test_a_resident_tensor_takes_room_beside_the_groups_that_it_outlives() -> None:
    graph, groups = three_groups()
    found = validate_groups(graph, ACCELERATOR, groups, [Resident("H", 0, 2)])
    # H 16 elements beside X 12, B 15 and Z 20
    assert found[1].peak_buffer_bytes == 2 * (16 + 12 + 15 + 20)
    assert found[1].traffic == {"X": (24, 0), "B": (30, 0), "Z": (0, 40)}


def test_a_resident_tensor_does_not_outlast_its_last_reader() -> None:
    graph, (one, between, last) = three_groups()
    validate_groups(graph, ACCELERATOR, [one, last, between], [Resident("H", 0, 1)])
    message = 'resident "H" must last from the group that makes it to its last reader'
    assert refused_all(graph, [one, last, between], [Resident("H", 0, 2)]) == message


def test_stated_figures_are_recomputed() -> None:
    found = validate_groups(ffn(), ACCELERATOR, [ONE, TWO])
    total = add_metrics(found)
    validate_metrics(found, found, total)
    wrong = replace(found[1], macs=found[1].macs + 1)
    with pytest.raises(MappingError, match="group 2: macs is 81, recomputed 80"):
        validate_metrics((found[0], wrong), found, total)
    with pytest.raises(MappingError, match="the graph: dram_read_bytes is 0, recomputed 120"):
        validate_metrics(found, found, replace(total, dram_read_bytes=0))
