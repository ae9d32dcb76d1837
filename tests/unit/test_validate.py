"""Every rule of the validator: a legal case, and one that breaks just that rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mmee_solver import load_accelerator
from mmee_solver.cost import add_metrics
from mmee_solver.errors import MappingError
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Loop, Nest, Resident
from mmee_solver.validate import stationary, validate_group, validate_groups, validate_metrics
from mmee_solver.workload import Graph, Op, Step, Tensor

ACCEL1 = load_accelerator("accel1")


def graph(softmax: bool = False, outputs: tuple[str, ...] = ()) -> Graph:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
    tensors = {name: Tensor(name, tuple(dims), "fp16") for name, dims in spec.items()}
    soft = (Step("softmax", "softmax", axis="f"),) if softmax else ()
    ops = (
        Op("a", "einsum", ("X", "A"), "H", epilogue=soft),
        Op("b", "einsum", ("H", "B"), "Y"),
    )
    return Graph("pair", {"m": 4, "k": 3, "f": 6, "n": 5}, tensors, ops, outputs)


def config(rows: str, cols: str, inner: str) -> ArrayConfig:
    return ArrayConfig((rows, 64), (cols, 64), None, inner, (32, 32))


ARRAY = {"a": config("m", "f", "k"), "b": config("m", "n", "f")}


def holds(names: str) -> Nest:
    return tuple(Hold(name) for name in names)


FUSED: Nest = (
    Hold("A"),
    Hold("B"),
    Loop("m", 2, (*holds("HX"), Compute("a"), Hold("Y"), Compute("b"))),
)


def refuse(nest: Nest, message: str, on: Graph | None = None, **change: object) -> None:
    group = replace(Group(("a", "b"), nest, ARRAY), **change)  # type: ignore[arg-type]
    with pytest.raises(MappingError, match=message):
        validate_group(on or graph(), ACCEL1, group)


def test_a_legal_group_gives_its_metrics() -> None:
    metrics = validate_group(graph(), ACCEL1, Group(("a", "b"), FUSED, ARRAY))
    # X, A, B read once and Y written once: 12 + 18 + 30 + 20 elements of 2 bytes.
    assert metrics.dram_bytes == 2 * (12 + 18 + 30 + 20)
    # A 36 + B 60 + H 2x6x2 = 24, and the larger of X 2x3x2 = 12 and Y 2x5x2 = 20.
    assert metrics.peak_buffer_bytes == 36 + 60 + 24 + 20


def test_ops_must_be_distinct_and_known() -> None:
    refuse(FUSED, "not distinct ops", ops=("a", "a"))
    refuse(FUSED, "not distinct ops", ops=("a", "c"))


def test_the_nest_computes_the_ops_in_order() -> None:
    refuse(FUSED, "the nest computes", ops=("b", "a"))


def test_what_is_needed_is_held() -> None:
    refuse((*holds("ABHX"), Compute("a"), Compute("b")), 'needs "Y", which is not held')


def test_nothing_is_held_twice_or_in_vain() -> None:
    refuse((*holds("ABHXYX"), Compute("a"), Compute("b")), "held twice")
    refuse((*holds("ABHXY"), Compute("a"), Compute("b"), Hold("X")), "serves no op")


def test_loops_step_dims_of_the_graph_by_tiles_that_exist() -> None:
    refuse((Loop("m", 5, (*holds("ABHXY"), Compute("a"), Compute("b"))),), "tile 5; expected 1 to 4")
    refuse((Loop("z", 1, (*holds("ABHXY"), Compute("a"), Compute("b"))),), "no dim of the graph")


def test_a_consumer_sees_no_unfinished_value() -> None:
    refuse((Loop("k", 1, (*holds("ABHXY"), Compute("a"), Compute("b"))),), "unfinished")


def test_recomputation_is_legal_inside_only() -> None:
    nest: Nest = (Loop("n", 1, (*holds("ABHXY"), Compute("a"), Compute("b"))),)
    assert validate_group(graph(), ACCEL1, Group(("a", "b"), nest, ARRAY)).macs == 5 * 72 + 120
    refuse(nest, "recomputed, but its output leaves", graph(outputs=("H", "Y")))


def test_an_internal_tensor_has_one_hold() -> None:
    nest: Nest = (
        Loop("m", 2, (*holds("AHX"), Compute("a"))),
        Loop("m", 2, (*holds("BHY"), Compute("b"))),
    )
    refuse(nest, "one hold")


def test_softmax_over_a_stepped_axis_needs_a_consumer_that_sums() -> None:
    nest: Nest = (*holds("XY"), Loop("f", 2, (*holds("ABH"), Compute("a"), Compute("b"))))
    assert validate_group(graph(softmax=True), ACCEL1, Group(("a", "b"), nest, ARRAY))
    ops = graph(softmax=True).ops
    spec = graph().tensors | {"B": Tensor("B", ("m", "f"), "fp16"), "Y": Tensor("Y", ("m", "f"), "fp16")}
    hadamard = replace(graph(), tensors=spec, ops=ops, dims={"m": 4, "k": 3, "f": 6})
    refuse(nest, "must span", hadamard, array={"a": ARRAY["a"]})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ({"a": ARRAY["a"]}, '"b" needs an array'),
        ({**ARRAY, "c": ARRAY["a"]}, "not in the group"),
        ({**ARRAY, "a": config("m", "n", "k")}, "expected distinct dims"),
        ({**ARRAY, "a": config("m", "m", "k")}, "expected distinct dims"),
        ({**ARRAY, "a": config("m", "f", "f")}, "has the inner dim"),
        ({**ARRAY, "a": replace(ARRAY["a"], shape=(16, 64))}, "cannot take"),
        ({**ARRAY, "a": replace(ARRAY["a"], rows=("m", 32))}, "does not spread 4"),
        ({**ARRAY, "a": replace(ARRAY["a"], rows=("m", 48), cols=("f", 64))}, "does not spread 4"),
        ({**ARRAY, "a": replace(ARRAY["a"], cols=None)}, "without a dim"),
    ],
)
def test_array_configurations(array: dict[str, ArrayConfig], message: str) -> None:
    refuse(FUSED, message, array=array)


def test_stationarity_is_checked_and_named() -> None:
    op = graph().op("a")
    assert [stationary(graph(), op, dim) for dim in ("k", "m", "f")] == ["output", "weight", "input"]
    weight = replace(ACCEL1, array=replace(ACCEL1.array, stationarity=("weight",)))
    with pytest.raises(MappingError, match="output stationary"):
        validate_group(graph(), weight, Group(("a", "b"), FUSED, ARRAY))


def test_one_shape_unless_reconfigurable() -> None:
    both = replace(ACCEL1, array=replace(ACCEL1.array, shapes=((32, 32), (16, 64))))
    array = {**ARRAY, "b": ArrayConfig(("m", 32), ("n", 128), None, "f", (16, 64))}
    assert validate_group(graph(), both, Group(("a", "b"), FUSED, array))


def test_the_peak_must_fit() -> None:
    group = Group(("a", "b"), FUSED, ARRAY)
    assert validate_group(graph(), ACCEL1.with_buffer(140), group)
    with pytest.raises(MappingError, match="140 bytes exceeds the buffer of 139"):
        validate_group(graph(), ACCEL1.with_buffer(139), group)


FIRST = Group(("a",), (*holds("XAH"), Compute("a")), {"a": ARRAY["a"]})
SECOND = Group(("b",), (*holds("HBY"), Compute("b")), {"b": ARRAY["b"]})


def test_groups_cover_the_graph_in_order() -> None:
    assert len(validate_groups(graph(), ACCEL1, (FIRST, SECOND))) == 2
    with pytest.raises(MappingError, match="is in no group"):
        validate_groups(graph(), ACCEL1, (FIRST,))
    with pytest.raises(MappingError, match="in two groups"):
        validate_groups(graph(), ACCEL1, (FIRST, SECOND, FIRST))
    with pytest.raises(MappingError, match="runs before"):
        validate_groups(graph(), ACCEL1, (SECOND, FIRST))
    with pytest.raises(MappingError, match="group 2: the peak"):
        validate_groups(graph(), ACCEL1.with_buffer(130), (FIRST, SECOND))


def test_a_resident_tensor_costs_room_and_no_traffic() -> None:
    kept = (Resident("H", 0, 1),)
    first, second = validate_groups(graph(), ACCEL1, (FIRST, SECOND), kept)
    assert first.dram_bytes == 2 * (12 + 18)
    assert second.dram_bytes == 2 * (30 + 20)
    assert first.peak_buffer_bytes == 2 * (24 + 12 + 18)
    with pytest.raises(MappingError, match="must last"):
        validate_groups(graph(), ACCEL1, (FIRST, SECOND), (Resident("H", 0, 0),))
    with pytest.raises(MappingError, match="no intermediate"):
        validate_groups(graph(), ACCEL1, (FIRST, SECOND), (Resident("Y", 0, 1),))


def test_stated_figures_are_compared() -> None:
    found = validate_groups(graph(), ACCEL1, (FIRST, SECOND))
    total = add_metrics(found)
    validate_metrics(found, found, total)
    wrong = (replace(found[0], macs=found[0].macs + 1), found[1])
    with pytest.raises(MappingError, match="group 1: macs is 73, recomputed 72"):
        validate_metrics(wrong, found, total)
    with pytest.raises(MappingError, match="the graph: dram_read_bytes"):
        validate_metrics(found, found, replace(total, dram_read_bytes=1))
