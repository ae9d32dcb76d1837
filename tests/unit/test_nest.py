"""The nest and its JSON form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmee_solver.errors import InputError
from mmee_solver.nest import (
    ArrayConfig,
    Compute,
    Hold,
    Item,
    Loop,
    array_from_json,
    array_to_json,
    computes,
    nest_from_json,
    nest_to_json,
)

NEST = (
    Loop(
        "i",
        2,
        (Hold("Q"), Hold("S"), Loop("l", 1, (Hold("K"), Compute("qk"))), Compute("pv")),
    ),
)
JSON = [
    {
        "loop": "i",
        "tile": 2,
        "body": [
            {"hold": "Q"},
            {"hold": "S"},
            {"loop": "l", "tile": 1, "body": [{"hold": "K"}, {"compute": "qk"}]},
            {"compute": "pv"},
        ],
    }
]
CONFIG = ArrayConfig(("i", 64), ("l", 32), None, "k", (32, 32))
CONFIG_JSON = {"rows": ["i", 64], "cols": ["l", 32], "batch": None, "inner": "k", "shape": [32, 32]}


def items(depth: int = 3) -> st.SearchStrategy[Item]:
    leaf = st.builds(Hold, st.text(max_size=3)) | st.builds(Compute, st.text(max_size=3))
    return st.recursive(
        leaf,
        lambda inner: st.builds(
            Loop, st.text(max_size=3), st.integers(1, 1 << 24), st.lists(inner).map(tuple)
        ),
        max_leaves=depth,
    )


def test_json_form() -> None:
    assert nest_to_json(NEST) == JSON
    assert nest_from_json(JSON) == NEST


def test_empty() -> None:
    assert nest_to_json(()) == []
    assert nest_from_json([]) == ()


@given(st.lists(items(12), max_size=4).map(tuple))
def test_every_nest_comes_back(nest: tuple[Item, ...]) -> None:
    assert nest_from_json(nest_to_json(nest)) == nest


def test_computes_in_order() -> None:
    assert list(computes(NEST)) == ["qk", "pv"]


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        ({}, "nest", "dict; expected a list of items"),
        (None, "nest", "NoneType; expected a list of items"),
        ([{"loop": "i", "tile": 0, "body": []}], "nest[0].tile", "0; expected a whole number of at least 1"),
        (
            [{"loop": "i", "tile": True, "body": []}],
            "nest[0].tile",
            "True; expected a whole number of at least 1",
        ),
        (
            [{"loop": "i", "tile": 1.0, "body": []}],
            "nest[0].tile",
            "1.0; expected a whole number of at least 1",
        ),
        ([{"loop": "i", "tile": 1, "body": None}], "nest[0].body", "NoneType; expected a list of items"),
    ],
)
def test_wrong_nests(data: Any, place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        nest_from_json(data)
    assert (caught.value.place, caught.value.message) == (place, message)


@pytest.mark.parametrize(
    "item",
    [
        3,
        "hold",
        [],
        {},
        {"hold": 3},
        {"hold": "Q", "compute": "qk"},
        {"compute": None},
        {"loop": "i", "tile": 2},
        {"loop": 1, "tile": 2, "body": []},
        {"loop": "i", "tile": 2, "body": [], "extra": 1},
    ],
)
def test_what_is_no_item(item: Any) -> None:
    with pytest.raises(InputError) as caught:
        nest_from_json([{"hold": "Q"}, {"loop": "i", "tile": 1, "body": [item]}])
    assert caught.value.place == "nest[1].body[0]"
    assert caught.value.message.startswith('expected {"hold": T}, {"loop": d, "tile": t, "body": []}')


def test_too_deep() -> None:
    def nested(depth: int) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = []
        for _ in range(depth):
            data = [{"loop": "i", "tile": 1, "body": data}]
        return data

    assert len(nest_from_json(nested(200))) == 1
    with pytest.raises(InputError, match="nested deeper than 200"):
        nest_from_json(nested(201))
    with pytest.raises(InputError, match="nested deeper than 200"):
        nest_from_json(nested(100_000))


def test_array_configuration_json_form() -> None:
    assert array_to_json(CONFIG) == CONFIG_JSON
    assert array_from_json(CONFIG_JSON) == CONFIG


def test_spatial_extents() -> None:
    assert [CONFIG.extent(dim) for dim in ("i", "l", "k")] == [64, 32, 1]
    batched = ArrayConfig(None, ("l", 8), ("h", 4), "k", (8, 8))
    assert [batched.extent(dim) for dim in ("h", "l", "i")] == [4, 8, 1]


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"inner": 3}, "array.inner", "3; expected a dim"),
        ({"shape": [32]}, "array.shape", "[32]; expected [rows, cols]"),
        ({"shape": [32, True]}, "array.shape", "[32, True]; expected [rows, cols]"),
        ({"shape": [32, 0]}, "array.shape", "[32, 0]; expected [rows, cols]"),
        ({"shape": None}, "array.shape", "None; expected [rows, cols]"),
        ({"rows": ["i", 0]}, "array.rows", "['i', 0]; expected [dim, extent] or null"),
        ({"cols": ["l"]}, "array.cols", "['l']; expected [dim, extent] or null"),
        ({"batch": [1, "h"]}, "array.batch", "[1, 'h']; expected [dim, extent] or null"),
        ({"extra": 1}, "array", "expected an object with rows, cols, batch, inner and shape"),
    ],
)
def test_wrong_array_configurations(changes: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        array_from_json(CONFIG_JSON | changes)
    assert (caught.value.place, caught.value.message) == (place, message)


def test_an_array_configuration_lacks_nothing() -> None:
    with pytest.raises(InputError, match="expected an object"):
        array_from_json({key: value for key, value in CONFIG_JSON.items() if key != "batch"})
    with pytest.raises(InputError, match="expected an object"):
        array_from_json(["rows"])
