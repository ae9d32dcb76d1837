"""Documents of the zoo's builders: renamed, joined, chained, and their weights in another dtype."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mmee_graphs
from mmee_graphs.document import document, einsum, elementwise, joined, normalize, renamed

FIRST = document({"m": 2, "n": 3}, {"A": ["m"], "B": ["m", "n"]}, [einsum("first", ["A", "B"], "C")])


def _step(tensor: str, output: str, size: int = 2, dtype: str = "") -> dict[str, Any]:
    graph = document(
        {"m": size}, {tensor: ["m"], output: ["m"]}, [elementwise("exp", [tensor], output, name=output)]
    )
    if dtype:
        graph["tensors"][tensor]["dtype"] = dtype
    return graph


def test_outputs_default_to_what_the_last_op_makes() -> None:
    assert FIRST["outputs"] == ["C"]
    assert document({}, {}, FIRST["ops"], outputs=["A", "C"])["outputs"] == ["A", "C"]


def test_joining_keeps_order_and_dtypes() -> None:
    graph = joined([_step("A", "B", dtype="int4"), _step("B", "C")], outputs=["C"], name="two")
    assert graph["name"] == "two"
    assert list(graph["tensors"]) == ["A", "B", "C"]
    assert graph["tensors"]["A"] == {"dims": ["m"], "dtype": "int4"}
    assert [op["name"] for op in graph["ops"]] == ["B", "C"]


def test_joining_refuses_what_differs() -> None:
    with pytest.raises(ValueError, match='dim "m" is 2 in one part and 4 in another'):
        joined([_step("A", "B"), _step("B", "C", size=4)], outputs=["C"])
    with pytest.raises(ValueError, match=r'tensor "B" is .*int8.* in another'):
        joined([_step("A", "B"), _step("B", "C", dtype="int8")], outputs=["C"])


def test_renaming_reaches_every_place() -> None:
    graph = document(
        {"m": 2, "n": 3},
        {"A": ["m", "n"], "B": ["m", "n"]},
        [normalize("rmsnorm", "n", "A", "B", "norm")],
    )
    before = json.dumps(graph)
    found = renamed(graph, dims={"n": "e"}, tensors={"A": "X", "B": "Y"}, ops={"norm": "last"})
    assert found["dims"] == {"m": 2, "e": 3}
    assert found["tensors"] == {"X": {"dims": ["m", "e"]}, "Y": {"dims": ["m", "e"]}}
    assert found["outputs"] == ["Y"]
    (op,) = found["ops"]
    assert (op["name"], op["axis"], op["inputs"], op["output"]) == ("last", "e", ["X"], "Y")
    assert json.dumps(graph) == before


def test_renaming_merges_equal_dims_only() -> None:
    square = mmee_graphs.matmul(4, 8, 8)
    assert renamed(square, dims={"k": "e", "n": "e"})["dims"] == {"m": 4, "e": 8}
    with pytest.raises(ValueError, match='dim "e" is 4 in one part and 8 in another'):
        renamed(square, dims={"m": "e", "k": "e"})
    with pytest.raises(ValueError, match="two tensors get one name"):
        renamed(square, tensors={"A": "B"})


def test_weights_have_no_tokens() -> None:
    assert mmee_graphs.weights(mmee_graphs.ffn(4, 8, 16)) == ("A", "B")
    assert mmee_graphs.weights(mmee_graphs.attention(2, 4, 4, 8)) == ()
    block = mmee_graphs.cached_block(mmee_graphs.LAYERS["llama3-8b"], 64)
    assert mmee_graphs.weights(block) == ("Wq", "Wk", "Wv", "Wo", "Wg", "Wu", "Wd")


def test_only_weights_get_narrower() -> None:
    block = mmee_graphs.cached_block(mmee_graphs.LAYERS["gpt3-6.7b"], 64)
    narrow = mmee_graphs.with_weights(block, "int4")
    changed = {tensor for tensor, entry in narrow["tensors"].items() if entry.get("dtype") == "int4"}
    assert changed == {"Wq", "Wk", "Wv", "Wo", "Wu", "Wd"}
    assert {**narrow, "tensors": block["tensors"]} == block


def _small_layer() -> mmee_graphs.Layer:
    return mmee_graphs.Layer("small", 4, width=8, heads=2, hidden=16, source="made up")


@pytest.mark.parametrize("count", [1, 2, 96, 200])
def test_layers_in_a_row(count: int) -> None:
    block = mmee_graphs.cached_block(_small_layer(), 6, name="small")
    graph = mmee_graphs.layers(block, count)
    assert len(graph["ops"]) == count * len(block["ops"])
    assert len({op["name"] for op in graph["ops"]}) == len(graph["ops"])
    assert graph["dims"] == block["dims"]
    assert graph["outputs"][-1] == f"X_{count}"
    assert len(graph["outputs"]) == 2 * count + 1
    assert len(mmee_graphs.weights(graph)) == count * len(mmee_graphs.weights(block))
    made = {op["output"]: op["name"] for op in graph["ops"]}
    read = {tensor for op in graph["ops"] for tensor in op["inputs"]}
    inner = [f"X_{number}" for number in range(1, count)]
    assert all(tensor in made and tensor in read for tensor in inner)
    assert "X_0" not in made


def test_layers_that_cannot_be_chained() -> None:
    layer = _small_layer()
    with pytest.raises(ValueError, match="0 layers; expected at least 1"):
        mmee_graphs.layers(mmee_graphs.cached_block(layer, 6), 0)
    for block in (mmee_graphs.block(layer, 4), mmee_graphs.ffn(4, 8, 16), mmee_graphs.matmul(4, 8, 8)):
        with pytest.raises(ValueError, match="this block cannot be chained"):
            mmee_graphs.layers(block, 2)
