"""Reading and writing: round trips, and every error as a user sees it."""

from __future__ import annotations

import copy
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmee_solver import files
from mmee_solver.accelerator import Accelerator
from mmee_solver.decode import decode
from mmee_solver.errors import InputError
from mmee_solver.fold import fold
from mmee_solver.io import (
    accelerator_from_json,
    accelerator_names,
    accelerator_to_json,
    dump_json,
    graph_from_json,
    graph_names,
    graph_to_json,
    load_accelerator,
    load_graph,
    parse_json,
    parse_yaml,
    schema,
    write_text_atomic,
)
from mmee_solver.schema import GraphFile, MappingFile
from mmee_solver.workload import Graph, Step

GRAPH: dict[str, Any] = {
    "format": "mmee-graph/1",
    "name": "attention",
    "dims": {"i": 4, "l": 5, "k": 3, "j": 2},
    "tensors": {
        "Q": {"dims": ["i", "k"], "dtype": "fp8"},
        "K": {"dims": ["l", "k"]},
        "S": {"dims": ["i", "l"]},
        "P": {"dims": ["i", "l"]},
        "V": {"dims": ["l", "j"]},
        "O": {"dims": ["i", "j"]},
    },
    "ops": [
        {"name": "qk", "kind": "einsum", "inputs": ["Q", "K"], "output": "S"},
        {"name": "softmax", "kind": "softmax", "axis": "l", "inputs": ["S"], "output": "P"},
        {"name": "pv", "kind": "einsum", "inputs": ["P", "V"], "output": "O"},
    ],
}
ACCELERATOR: dict[str, Any] = {
    "format": "mmee-accel/1",
    "name": "a",
    "clock_hz": 1e9,
    "dram": {"bandwidth_bytes_per_s": 60e9, "read_pj_per_byte": 64, "write_pj_per_byte": 64},
    "buffer": {"capacity_bytes": 1048576, "read_pj_per_byte": 2.0, "write_pj_per_byte": 2.3},
    "array": {"count": 4, "shapes": [[32, 32]], "mac_pj": 0.3, "register_pj_per_mac": 0.5},
    "vector": {"lanes": 128, "pj_per_op": 0.4},
}
YAML = """\
format: mmee-accel/1
name: a
clock_hz: 1e9            # PyYAML takes 1e9 for a string
dram:   {bandwidth_bytes_per_s: 60.0e9, read_pj_per_byte: 64, write_pj_per_byte: 64}
buffer: {capacity_bytes: 1_048_576, bandwidth_bytes_per_cycle: null, read_pj_per_byte: 2.0,
         write_pj_per_byte: 2.3}
array:  {count: 4, shapes: [[32, 32]], mac_pj: .3, register_pj_per_mac: 5.0e-1}
vector:
  lanes: 0x80
  pj_per_op: 0.4
"""
DELETE = object()


def edited(data: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """A deep copy with one entry replaced or deleted."""
    result = copy.deepcopy(data)
    target: Any = result
    for step in path[:-1]:
        target = target[step]
    if value is DELETE:
        del target[path[-1]]
    elif isinstance(target, list) and path[-1] == len(target):
        target.append(value)
    else:
        target[path[-1]] = value
    return result


def graph_error(*path: Any, value: Any) -> str:
    with pytest.raises(InputError) as caught:
        graph_from_json(edited(GRAPH, *path, value=value), "g.json")
    return str(caught.value)


def accelerator_error(*path: Any, value: Any) -> str:
    with pytest.raises(InputError) as caught:
        accelerator_from_json(edited(ACCELERATOR, *path, value=value), "a.yaml")
    return str(caught.value)


# --- graphs ------------------------------------------------------------------------------------------


def test_a_graph_with_its_defaults() -> None:
    graph = graph_from_json(GRAPH)
    assert (graph.name, graph.source, graph.dtype, graph.outputs) == ("attention", "", "fp16", ("O",))
    assert graph.dims == GRAPH["dims"]
    assert graph.tensors["Q"].dtype == "fp8"
    assert graph.tensors["K"].dtype == "fp16"
    assert [op.name for op in graph.ops] == ["qk", "softmax", "pv"]
    assert graph.op("softmax").axis == "l"


def test_a_graph_dtype_holds_for_tensors_that_name_none() -> None:
    graph = graph_from_json(GRAPH | {"dtype": "int8", "source": "here", "outputs": ["P", "O"]})
    assert graph.tensors["Q"].dtype == "fp8"
    assert graph.tensors["K"].dtype == "int8"
    assert (graph.dtype, graph.source, graph.outputs) == ("int8", "here", ("P", "O"))


def test_graph_json_form() -> None:
    graph = graph_from_json(GRAPH)
    assert graph_to_json(graph) == GRAPH | {"dtype": "fp16", "outputs": ["O"]}
    assert list(graph_to_json(graph)) == ["format", "name", "dtype", "dims", "tensors", "ops", "outputs"]
    assert list(graph_to_json(graph)["ops"][1]) == ["name", "kind", "axis", "inputs", "output"]


def test_a_tensor_names_its_dtype_only_where_it_differs() -> None:
    data = edited(GRAPH, "tensors", "K", value={"dims": ["l", "k"], "dtype": "fp16"})
    assert graph_to_json(graph_from_json(data))["tensors"]["K"] == {"dims": ["l", "k"]}
    other = graph_to_json(graph_from_json(data | {"dtype": "fp8"}))["tensors"]
    assert other["K"] == {"dims": ["l", "k"], "dtype": "fp16"}
    assert other["Q"] == {"dims": ["i", "k"]}


def test_folded_graph_json_form() -> None:
    data = edited(GRAPH, "ops", 0, "inputs", value=["Q", "N"])
    data["tensors"] |= {"N": {"dims": ["l", "k"]}, "b": {"dims": ["k"]}}
    data["ops"].insert(
        0, {"name": "scale", "kind": "elementwise", "function": "mul", "inputs": ["K", "b"], "output": "N"}
    )
    folded = fold(graph_from_json(data))
    written = graph_to_json(folded)
    assert written["ops"][0] == {
        "name": "qk",
        "kind": "einsum",
        "inputs": ["Q", "K"],
        "output": "P",
        "prologue": [
            {"name": "scale", "kind": "elementwise", "function": "mul", "inputs": ["b"], "tensor": "K"}
        ],
        "epilogue": [{"name": "softmax", "kind": "softmax", "axis": "l"}],
    }
    again = graph_from_json(parse_json(dump_json(written)))
    assert again == folded
    assert again.ops[0].prologue == (Step("scale", "elementwise", "mul", "", ("b",), "K"),)


def test_a_scalar_tensor_keeps_its_empty_dims() -> None:
    data = edited(GRAPH, "tensors", "T", value={"dims": []})
    data["ops"].append({"name": "sum", "kind": "einsum", "inputs": ["O"], "output": "T"})
    graph = graph_from_json(data)
    assert graph_from_json(graph_to_json(graph)) == graph


EXPECTED_OPS = "name, kind, inputs, output, function, axis, epilogue, prologue"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), DELETE, 'missing key "format"; expected "format": "mmee-graph/1"'),
        (("format",), "mmee-graph/2", 'format: "mmee-graph/2"; expected "mmee-graph/1"'),
        (("format",), 1, 'format: 1; expected "mmee-graph/1"'),
        (("format",), ["mmee-graph/1"], 'format: a list of 1; expected "mmee-graph/1"'),
        (
            ("format",),
            "mmee-accel/1",
            'format: "mmee-accel/1"; expected "mmee-graph/1" (the graph comes first, then the accelerator)',
        ),
        (("name",), DELETE, 'missing key "name" (a name: printable, not empty)'),
        (("name",), 7, "name: 7; expected a string, in quotes"),
        (("name",), "", "name: an empty name; expected at least one character"),
        (("name",), " \t", "name: an empty name; expected at least one character"),
        (("name",), "a\nb", 'name: "a\\nb" holds a character that cannot be printed; expected none'),
        (("name",), "x" * 201, "name: a name of 201 characters; at most 200 may be"),
        (("source",), None, "source: null; expected a string"),
        (("source",), "a\x1b", 'source: holds the character "\\x1b", which cannot be printed'),
        (("dtype",), "fp61", "dtype: unknown dtype"),
        (("dtype",), "", "dtype: an empty dtype; expected at least one character"),
        (("tensors", "K", "dtype"), "\u2028", "tensors.K.dtype: an empty dtype"),
        (("tensors", "K", "dtype"), "fp\u200b8", 'tensors.K.dtype: "fp\\u200b8" holds a character'),
        (("dims",), DELETE, 'missing key "dims" (size of every dim, in elements)'),
        (("dims",), [4, 5], "dims: a list of 2; expected an object"),
        (("dims", "l"), "5", 'dims.l: "5"; expected a whole number, e.g. 5'),
        (("dims", "l"), 5.0, "dims.l: 5.0; expected a whole number, e.g. 5"),
        (("dims", "l"), 5.5, "dims.l: 5.5; expected a whole number"),
        (("dims", "l"), True, "dims.l: true; expected a whole number"),
        (("dims", "l"), None, "dims.l: null; expected a whole number"),
        (("dims", "l"), [], "dims.l: an empty list; expected a whole number"),
        (("dims", "l"), {}, "dims.l: an object; expected a whole number"),
        (("dims", "l"), 0, "dims.l: size 0; expected a whole number of at least 1"),
        (("dims", "l"), 10**99, f"dims.l: size {10**99} is too large; at most 16777216 is supported"),
        (("dims", "l"), 10**100, "dims.l: a number of more than 100 digits; expected fewer"),
        (("dims", "l"), float("nan"), "dims.l: nan; expected a finite number"),
        (("dims", ""), 3, "dims.: an empty name; expected at least one character"),
        (("dims", "a\x1b[1m"), 3, 'dims.a\\x1b[1m: "a\\x1b[1m" holds a character that cannot be printed'),
        (("dims", "l"), DELETE, 'tensors.K.dims[0]: dim "l" has no size in "dims"'),
        (("tensors",), 3, "tensors: 3; expected an object"),
        (("tensors", "K"), ["l", "k"], "tensors.K: a list of 2; expected an object"),
        (("tensors", "K", "dims"), DELETE, 'tensors.K: missing key "dims" (its dims, outermost first)'),
        (("tensors", "K", "dims"), "lk", 'tensors.K.dims: "lk"; expected a list'),
        (("tensors", "K", "dims", 1), 3, "tensors.K.dims[1]: 3; expected a string, in quotes"),
        (
            ("tensors", "K", "dims", 1),
            "kk",
            'tensors.K.dims[1]: dim "kk" has no size in "dims" — did you mean "k"?',
        ),
        (
            ("tensors", "K", "dims", 1),
            "\u202e",
            'tensors.K.dims[1]: "\\u202e" holds a character that cannot be',
        ),
        (("tensors", "K", "dtype"), None, "tensors.K.dtype: null; expected a string"),
        (
            ("tensors", "K", "dtype"),
            "fp17",
            'tensors.K.dtype: unknown dtype "fp17"; expected one of fp32, fp16',
        ),
        (
            ("tensors", "K", "dtyp"),
            "fp16",
            'tensors.K: unknown key "dtyp" — did you mean "dtype"?',
        ),
        (("tensors", "K", "zzz"), 1, 'tensors.K: unknown key "zzz"; expected one of dims, dtype'),
        (("tensors", "x" * 300), {"dims": []}, f"tensors.{'x' * 60}…: a name of 300 characters; at most 200"),
        (("ops",), {}, "ops: an object; expected a list"),
        (("ops",), [], "ops: the graph has no op; expected at least one"),
        (("ops", 2), "pv", 'ops[2]: "pv"; expected an object'),
        (("ops", 2, "output"), DELETE, 'ops[2]: missing key "output" (the tensor made)'),
        (("ops", 2, "inputs"), "P", 'ops[2].inputs: "P"; expected a list'),
        (("ops", 2, "inputs", 0), None, "ops[2].inputs[0]: null; expected a string"),
        (("ops", 2, "inputs", 0), "Sx", 'ops[2].inputs[0]: no tensor named "Sx" — did you mean "S"?'),
        (
            ("ops", 2, "inputs", 0),
            "P\x00",
            'ops[2].inputs[0]: "P\\x00" holds a character that cannot be printed',
        ),
        (("ops", 2, "name"), "qk", 'ops[2].name: the name "qk" is taken by an op before it'),
        (("ops", 2, "kind"), "", "ops[2].kind: an empty kind; expected at least one character"),
        (
            ("ops", 2, "kind"),
            "enisum",
            'ops[2].kind: unknown kind "enisum"; expected one of einsum, elementwise',
        ),
        (("ops", 1, "axis"), "i\x7f", 'ops[1].axis: "i\\x7f" holds a character that cannot be printed'),
        (("ops", 1, "axis"), DELETE, 'ops[1].axis: no "axis"; expected a dim of "P": i, l'),
        (("ops", 0, "input"), ["Q"], 'ops[0]: unknown key "input" — did you mean "inputs"?'),
        (("ops", 0, "tensor"), "Q", f'ops[0]: unknown key "tensor"; expected one of {EXPECTED_OPS}'),
        (("ops", 0, "epilogue"), [{"kind": "softmax"}], 'ops[0].epilogue[0]: missing key "name"'),
        (
            ("ops", 0, "epilogue"),
            [{"name": "s", "kind": "softmax", "axis": "l"}, {"name": 1, "kind": "x"}],
            "ops[0].epilogue[1].name: 1; expected a string, in quotes",
        ),
        (
            ("ops", 0, "prologue"),
            [{"name": "s", "kind": "elementwise", "function": "exp", "tensor": "V"}],
            'ops[0].prologue[0].tensor: "V" is no input of "qk"',
        ),
        (
            ("ops", 0, "prologue"),
            [{"name": "s", "kind": "elementwise", "function": "e\n", "tensor": "Q"}],
            'ops[0].prologue[0].function: "e\\n" holds a character',
        ),
        (("outputs",), "O", 'outputs: "O"; expected a list'),
        (("outputs",), ["O", "X"], 'outputs[1]: no tensor named "X"'),
        (("outputs",), ["O", ""], "outputs[1]: an empty name; expected at least one character"),
        (("output",), ["O"], 'unknown key "output" — did you mean "outputs"?'),
        (("dim\x07s",), {}, 'unknown key "dim\\x07s" — did you mean "dims"?'),
        (("a` - at `$.ops",), {}, 'unknown key "a` - at `$.ops"; expected one of format, name, dims'),
        (("x" * 500,), {}, f'unknown key "{"x" * 60}…"; expected one of format, name, dims'),
        (("\ud800",), {}, '"\\ud800" holds half a character (a lone surrogate)'),
        (("source",), "\udfff", 'source: "\\udfff" holds half a character (a lone surrogate)'),
        ((3,), {}, "the key 3 is no string"),
        (("source",), {1, 2}, "source: a set; expected plain data"),
    ],
)
def test_wrong_graphs(path: tuple[Any, ...], value: Any, message: str) -> None:
    found = graph_error(*path, value=value)
    assert found.startswith(f"g.json: {message}")
    assert found.isprintable()


@pytest.mark.parametrize("data", [None, [], "x", 3, True])
def test_a_graph_is_an_object(data: Any) -> None:
    with pytest.raises(InputError, match=r'^g\.json: .*; expected an object with "format": "mmee-graph/1"$'):
        graph_from_json(data, "g.json")


def test_data_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["source"] = endless
    with pytest.raises(InputError, match="nested deeper than 500"):
        graph_from_json(GRAPH | endless)


def test_the_entry_that_is_wrong_is_named_not_the_first() -> None:
    many = {f"T{index}": {"dims": ["i"]} for index in range(1000)} | {"bad": {"dims": ["i", 3]}}
    assert (
        graph_error("tensors", value=many) == "g.json: tensors.bad.dims[1]: 3; expected a string, in quotes"
    )


# --- accelerators ------------------------------------------------------------------------------------


def test_yaml_as_in_the_design() -> None:
    accelerator = accelerator_from_json(parse_yaml(YAML))
    assert accelerator == accelerator_from_json(ACCELERATOR)
    assert accelerator.clock_hz == 1e9
    assert accelerator.buffer.capacity_bytes == 1048576
    assert accelerator.buffer.bandwidth_bytes_per_cycle is None
    assert accelerator.array.shapes == ((32, 32),)
    assert accelerator.array.mac_pj == 0.3
    assert accelerator.vector.lanes == 128


def test_integers_will_do_where_numbers_are_expected() -> None:
    data = edited(ACCELERATOR, "clock_hz", value=10**9)
    assert accelerator_from_json(data) == accelerator_from_json(ACCELERATOR)


def test_accelerator_json_form() -> None:
    accelerator = accelerator_from_json(ACCELERATOR)
    written = accelerator_to_json(accelerator)
    assert next(iter(written)) == "format"
    assert written["array"]["shapes"] == [[32, 32]]
    assert written["array"]["stationarity"] == ["output", "weight", "input"]
    assert written["buffer"]["bandwidth_bytes_per_cycle"] is None
    assert accelerator_from_json(parse_json(dump_json(written))) == accelerator
    assert accelerator_from_json(parse_yaml(dump_json(written))) == accelerator


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), DELETE, 'missing key "format"; expected "format": "mmee-accel/1"'),
        (
            ("format",),
            "mmee-graph/1",
            'format: "mmee-graph/1"; expected "mmee-accel/1" (the graph comes first, then the accelerator)',
        ),
        (("name",), 910, "name: 910; expected a string, in quotes"),
        (("name",), "a\u2028b", 'name: "a\\u2028b" holds a character that cannot be printed'),
        (("source",), "\x9b", 'source: holds the character "\\x9b", which cannot be printed'),
        (("dram",), DELETE, 'missing key "dram"'),
        (("dram",), None, "dram: null; expected an object"),
        (("clock_hz",), "1 GHz", 'clock_hz: "1 GHz"; expected a number'),
        (("clock_hz",), True, "clock_hz: true; expected a number"),
        (("clock_hz",), 0, "clock_hz: 0.0; expected a positive, finite number"),
        (("clock_hz",), float("inf"), "clock_hz: inf; expected a finite number"),
        (
            ("buffer", "capcity_bytes"),
            1,
            'buffer: unknown key "capcity_bytes" — did you mean "capacity_bytes"?',
        ),
        (("buffer", "capacity_bytes"), DELETE, 'buffer: missing key "capacity_bytes" (capacity, in bytes)'),
        (
            ("buffer", "capacity_bytes"),
            1048576.0,
            "buffer.capacity_bytes: 1048576.0; expected a whole number, e.g. 1048576",
        ),
        (
            ("buffer", "capacity_bytes"),
            "1MiB",
            'buffer.capacity_bytes: "1MiB"; expected a whole number, e.g. 1048576',
        ),
        (("buffer", "capacity_bytes"), "big", 'buffer.capacity_bytes: "big"; expected a whole number'),
        (("buffer", "capacity_bytes"), 0, "buffer.capacity_bytes: 0; expected a positive, finite number"),
        (
            ("buffer", "bandwidth_bytes_per_cycle"),
            "none",
            'buffer.bandwidth_bytes_per_cycle: "none"; expected a number or null',
        ),
        (("buffer", "double_buffered"), 1, "buffer.double_buffered: 1; expected true or false"),
        (("array", "count"), 4.0, "array.count: 4.0; expected a whole number, e.g. 4"),
        (("array", "shapes"), [32, 32], "array.shapes[0]: 32; expected a list"),
        (("array", "shapes"), [[32, 32], [64]], "array.shapes[1]: a list of 1; expected a list of 2"),
        (("array", "shapes"), [[32, "x"]], 'array.shapes[0][1]: "x"; expected a whole number'),
        (("array", "shapes"), [], "array.shapes: no shape; expected at least one [rows, cols]"),
        (("array", "stationarity"), "output", 'array.stationarity: "output"; expected a list'),
        (
            ("array", "stationarity"),
            ["out"],
            'array.stationarity[0]: "out"; expected one of output, weight, input',
        ),
        (("array", "pipeline"), "x\x1b", 'array.pipeline: "x\\x1b" holds a character that cannot be printed'),
        (("array", "pipeline"), "sys", 'array.pipeline: "sys"; expected one of ideal, systolic'),
        (("vector", "rescale"), "sub", 'vector.rescale: "sub"; expected one of mul, add'),
        (("vector", "lanes"), -1, "vector.lanes: -1; expected a positive, finite number"),
    ],
)
def test_wrong_accelerators(path: tuple[Any, ...], value: Any, message: str) -> None:
    found = accelerator_error(*path, value=value)
    assert found.startswith(f"a.yaml: {message}")
    assert found.isprintable()


# --- JSON text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: no valid JSON: expecting value"),
        ('{"a": 1,\n "b" 2}', "line 2, column 6: no valid JSON: expecting ':' delimiter"),
        ('{"a": 1} x', "line 1, column 10: no valid JSON: extra data"),
        ("{'a': 1}", "line 1, column 2: no valid JSON: expecting property name enclosed in double quotes"),
        ('{"a": 1, "a": 1}', 'the key "a" stands twice; expected it once'),
        (
            '{"ops": [{}, {"x": {"b": 1, "c": 2, "b": 3}}]}',
            'ops[1].x: the key "b" stands twice; expected it once',
        ),
        ('{"a": [NaN]}', "a[0]: nan; expected a finite number"),
        ('{"a": -Infinity}', "a: -inf; expected a finite number"),
        ('{"a": 1e999}', "a: inf; expected a finite number"),
        ('{"a": ' + "9" * 101 + "}", "a: a number of more than 100 digits; expected fewer"),
        ('{"a": ' + "9" * 5000 + "}", "a number has more than 4300 digits"),
        ('{"a": "\\ud800"}', 'a: "\\ud800" holds half a character (a lone surrogate)'),
        ('{"\\ud800": 1}', '"\\ud800" holds half a character (a lone surrogate)'),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 600 + "]" * 600, "[0]"),
        (b"\xff{}", "byte 0xff at offset 0 is no UTF-8; expected a text file in UTF-8"),
        (b'{"a": "\xc3("}', "byte 0xc3 at offset 7 is no UTF-8; expected a text file in UTF-8"),
    ],
)
def test_what_is_no_json(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "g.json")
    assert str(caught.value).startswith(f"g.json: {message}")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_a_byte_order_mark_is_no_error() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_big_integers_are_exact() -> None:
    assert parse_json(str(10**99)) == 10**99


def test_pairs_of_surrogates_are_characters() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "😀"


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=60)
    | st.text(alphabet='{}[]":,0123456789.eE+-\\u truefalsn', max_size=60).map(str.encode)
)
def test_no_bytes_are_a_traceback(raw: bytes) -> None:
    for parse in (parse_json, parse_yaml):
        with suppress(InputError):
            parse(raw, "f")


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["i", "Q", "qk", "einsum", "softmax"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from([*GRAPH, *GRAPH["ops"][1], "dtype"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)


def check_message(error: InputError, file: str) -> None:
    """What every message keeps to, whatever stood in the file."""
    assert str(error).startswith(f"{file}: ")
    assert str(error).isprintable()
    assert len(str(error)) < 1000


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every entry of a document."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in entries for place in places(value, (*path, key)))]


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(places(GRAPH)[1:]), VALUES)
def test_any_value_anywhere_in_a_graph_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    try:
        graph = graph_from_json(edited(GRAPH, *path, value=value), "g.json")
    except InputError as error:
        check_message(error, "g.json")
    else:
        assert graph_from_json(parse_json(dump_json(graph_to_json(graph)))) == graph


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(places(ACCELERATOR)[1:]), VALUES)
def test_any_value_anywhere_in_an_accelerator_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    try:
        accelerator = accelerator_from_json(edited(ACCELERATOR, *path, value=value), "a.yaml")
    except InputError as error:
        check_message(error, "a.yaml")
    else:
        assert accelerator_from_json(parse_yaml(dump_json(accelerator_to_json(accelerator)))) == accelerator


# --- YAML text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 1e9),
        ("1.0e9", 1e9),
        ("60.0e+9", 60e9),
        ("-1.5E-3", -0.0015),
        (".5", 0.5),
        ("5.", 5.0),
        ("12", 12),
        ("+12", 12),
        ("1_048_576", 1048576),
        ("0x100000", 1048576),
        ("-0", 0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1e9'", "1e9"),
        ('"true"', "true"),
        ("yes", "yes"),
        ("on", "on"),
        ("010", "010"),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("1__0", "1__0"),
        ("1e", "1e"),
        ("[[32, 32]]", [[32, 32]]),
        ("{n: 1, y: 2}", {"n": 1, "y": 2}),
        ("{1: a}", {"1": "a"}),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_yaml_values(text: str, value: Any) -> None:
    found = parse_yaml(f"key: {text}\n")
    assert found == {"key": value}
    assert type(found["key"]) is type(value)


def test_yaml_reads_json() -> None:
    assert parse_yaml(json.dumps(ACCELERATOR)) == ACCELERATOR
    assert parse_yaml(json.dumps(GRAPH, indent=2)) == GRAPH


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_empty_yaml_is_null(text: str) -> None:
    assert parse_yaml(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "line 1, column 5: no valid YAML: mapping values are not allowed here"),
        ("a: [1, 2\nb: 3\n", "line 2, column 2: no valid YAML: expected ',' or ']', but got ':'"),
        ("a:\n\t- 1\n", "line 2, column 1: no valid YAML: found character '\\t' that cannot start any token"),
        ("a: 1\nb: 2\na: 3\n", 'line 3, column 1: the key "a" stands twice; expected it once'),
        (
            "x:\n  a: &anchor 1\n",
            "line 2, column 6: anchors and aliases are not supported; write the value out",
        ),
        ("x: *alias\n", "line 1, column 4: anchors and aliases are not supported; write the value out"),
        ("&a k: 1\n", "line 1, column 1: anchors and aliases are not supported; write the value out"),
        (
            "x: !!python/object/apply:os.system [ls]\n",
            'line 1, column 4: the tag "tag:yaml.org,2002:python/object/apply:os.system" is not supported',
        ),
        ("x: !!int '3'\n", 'line 1, column 4: the tag "tag:yaml.org,2002:int" is not supported'),
        ("? [1, 2]\n: x\n", "line 1, column 3: a list or an object as a key; expected a name"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: a second document starts; expected one"),
        ("[" * 60, "line 1, column 52: nested deeper than 50"),
        ("{a: " * 60, "line 1, column 205: nested deeper than 50"),
        ("a: \x07\n", 'line 1: no valid YAML: "\\x07" is not allowed'),
        ('a: "\\U99999999"\n', "no valid YAML: "),
        ("a: .inf\n", "a: inf; expected a finite number"),
        ("a: 1e999\n", "a: inf; expected a finite number"),
        ("a: " + "9" * 5000, "no valid YAML: Exceeds the limit"),
        (b"a: \xff\n", "byte 0xff at offset 3 is no UTF-8"),
        ("a: !" + "x" * 9999 + "!y 1", "line 1, column 4: no valid YAML: found undefined tag handle '!xxx"),
        ("a: 'x", "line 1, column 6: no valid YAML: found unexpected end of stream"),
    ],
)
def test_what_is_no_yaml(text: str | bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "a.yaml")
    assert str(caught.value).startswith(f"a.yaml: {message}")
    check_message(caught.value, "a.yaml")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="{}[]:,-?&*!|>%@`'\"#\\ \n\tab01.eU~<=", max_size=40))
def test_no_text_is_a_yaml_traceback(text: str) -> None:
    with suppress(InputError):
        parse_yaml(text)


# --- files, presets and the zoo ----------------------------------------------------------------------


def test_a_graph_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(GRAPH), encoding="utf-8")
    assert load_graph(path) == load_graph(str(path)) == graph_from_json(GRAPH)


def test_an_accelerator_from_yaml_or_json(tmp_path: Path) -> None:
    expected = accelerator_from_json(ACCELERATOR)
    (tmp_path / "a.yaml").write_text(YAML, encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(ACCELERATOR, indent="\t"), encoding="utf-8")
    assert load_accelerator(tmp_path / "a.yaml") == expected
    assert load_accelerator(tmp_path / "a.json") == expected


def test_errors_name_the_file_and_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bad = edited(GRAPH, "ops", 1, "inputs", 0, value="Sx")
    Path("graph.json").write_text(json.dumps(bad), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_graph("graph.json")
    assert str(caught.value) == 'graph.json: ops[1].inputs[0]: no tensor named "Sx" — did you mean "S"?'
    Path("accel.yaml").write_text(YAML.replace("lanes", "lane"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_accelerator("accel.yaml")
    assert str(caught.value) == 'accel.yaml: vector: unknown key "lane" — did you mean "lanes"?'


def test_every_preset_loads_and_comes_back() -> None:
    names = accelerator_names()
    assert "accel1" in names
    assert list(names) == sorted(names)
    for name in names:
        accelerator = load_accelerator(name)
        assert accelerator.name == name
        assert accelerator.source
        assert accelerator_from_json(accelerator_to_json(accelerator)) == accelerator


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in the place of the workload zoo."""
    package = tmp_path / "packages" / "mmee_graphs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("small-attention", "other"):
        (package / f"{name}.json").write_text(json.dumps(GRAPH | {"name": name}), encoding="utf-8")
    for module in [name for name in sys.modules if name.split(".")[0] == "mmee_graphs"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(package.parent)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return package


@pytest.mark.usefixtures("zoo")
def test_a_graph_from_the_zoo() -> None:
    assert graph_names() == ("other", "small-attention")
    assert load_graph("small-attention").name == "small-attention"


@pytest.mark.usefixtures("zoo")
def test_a_file_comes_before_a_name_and_a_name_before_a_folder() -> None:
    Path("other").mkdir()
    assert load_graph("other").name == "other"
    Path("small-attention").write_text(json.dumps(GRAPH), encoding="utf-8")
    assert load_graph("small-attention").name == "attention"


def test_an_error_in_the_zoo_names_the_graph(zoo: Path) -> None:
    (zoo / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r'^other: missing key "format"'):
        load_graph("other")


@pytest.mark.usefixtures("zoo")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "small-atention",
            "small-atention: no such file, and no graph of that name (mmee-solve --list shows them)"
            ' — did you mean "small-attention"?',
        ),
        ("zzz.json", "zzz.json: no such file, and no graph of that name (mmee-solve --list shows them)"),
        ("", "no such file, and no graph of that name (mmee-solve --list shows them)"),
        (
            "accel1",
            "accel1: no such file, and no graph of that name (mmee-solve --list shows them); "
            "it names an accelerator (the graph comes first, then the accelerator)",
        ),
        ("a\x1bb", "a\\x1bb: no such file, and no graph of that name (mmee-solve --list shows them)"),
        ("a\x00b", "a\\x00b: is no file name: embedded null byte"),
        ("x" * 5000, f"{'x' * 4096}…: cannot be read: File name too long"),
        (".", ".: cannot be read: Is a directory"),
    ],
)
def test_no_such_graph(name: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_graph(name)
    assert str(caught.value) == message


@pytest.mark.usefixtures("zoo")
def test_no_such_accelerator() -> None:
    with pytest.raises(InputError) as caught:
        load_accelerator("acel1")
    assert str(caught.value) == (
        "acel1: no such file, and no accelerator of that name (mmee-solve --list shows them)"
        ' — did you mean "accel1"?'
    )
    with pytest.raises(
        InputError, match=r"it names a graph \(the graph comes first, then the accelerator\)$"
    ):
        load_accelerator("other")


def test_without_the_zoo_there_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mmee_graphs", None)
    assert graph_names() == ()
    with pytest.raises(InputError, match="no graph of that name"):
        load_graph("small-attention")


def test_a_path_through_a_file_is_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    with pytest.raises(InputError, match="no such file"):
        load_graph(tmp_path / "f" / "g.json")


def test_files_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * ((256 << 10) + 1))
    with pytest.raises(InputError, match="is larger than 256 KiB, the most that is read"):
        load_accelerator(path)
    with (tmp_path / "big.json").open("wb") as stream:
        stream.truncate((64 << 20) + 1)
    with pytest.raises(InputError, match="is larger than 64 MiB, the most that is read"):
        load_graph(tmp_path / "big.json")


# --- writing -----------------------------------------------------------------------------------------


def test_json_text_is_for_people_and_exact() -> None:
    data = {
        "ops": [{"name": "qk", "inputs": ["Q", "K"]}, {"name": "x" * 90}],
        "value": 10**40,
        "none": None,
        "é": {},
    }
    text = dump_json(data)
    assert text == (
        '{\n "ops": [\n  {"name": "qk", "inputs": ["Q", "K"]},\n  {\n   "name": "'
        + "x" * 90
        + '"\n  }\n ],\n'
        f' "value": {10**40},\n "none": null,\n "é": {{}}\n}}\n'
    )
    assert json.loads(text) == data


@given(VALUES.filter(lambda value: "nan" not in repr(value) and "inf" not in repr(value)))
def test_json_text_is_json(data: Any) -> None:
    text = dump_json(data)
    assert text.endswith("\n")
    assert json.loads(text) == data
    assert dump_json(json.loads(text)) == text


def test_tuples_are_written_as_lists() -> None:
    assert dump_json((1, ("a", True))) == '[1, ["a", true]]\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_no_number_that_json_lacks_is_written(value: Any) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        dump_json(value)


@pytest.mark.parametrize("value", [{1: 2}, {1, 2}, b"x", object()])
def test_only_plain_data_is_written(value: Any) -> None:
    with pytest.raises(TypeError):
        dump_json(value)


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_text_atomic(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    path.chmod(0o640)
    write_text_atomic(str(path), "new")
    assert path.read_text(encoding="utf-8") == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_text_atomic(tmp_path / "out.json", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "out.json").stat().st_mode & 0o777 == 0o640


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    write_text_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text(encoding="utf-8") == "new"


def test_a_device_is_written_to_not_replaced() -> None:
    write_text_atomic(os.devnull, "x")
    assert not os.path.isfile(os.devnull)


def test_what_cannot_be_written_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"no/out\.json: cannot be written: No such file or directory$"):
        write_text_atomic(tmp_path / "no" / "out.json", "x")
    with pytest.raises(InputError, match=r"cannot be written: Is a directory$"):
        write_text_atomic(tmp_path, "x")
    with pytest.raises(InputError, match="cannot be written: 'utf-8' codec"):
        write_text_atomic(tmp_path / "out.json", "\ud800")
    with pytest.raises(InputError, match=r"cannot be written: .*null"):
        write_text_atomic("a\x00b", "x")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "out.json").write_text("old", encoding="utf-8")
    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(InputError, match=r"out\.json: cannot be written: No space left on device$"):
        write_text_atomic(tmp_path / "out.json", "new")
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text_atomic(tmp_path / "out.json", "new")
    assert os.listdir(tmp_path) == []


# --- schemas -----------------------------------------------------------------------------------------


def metrics() -> dict[str, Any]:
    names = "dram_read_bytes dram_write_bytes dram_bytes peak_buffer_bytes macs array_cycles latency_cycles"
    energy = dict.fromkeys(["dram", "buffer", "register", "mac", "vector", "total"], 1.5)
    return dict.fromkeys(names.split(), 7) | {
        "vector_cycles": 2,
        "latency_s": 1e-9,
        "energy_pj": energy,
        "edp_js": 0.0,
        "utilisation": 0.5,
    }


def mapping() -> dict[str, Any]:
    nest = [{"loop": "i", "tile": 2, "body": [{"hold": "Q"}, {"compute": "qk"}]}]
    config = {"rows": ["i", 4], "cols": None, "batch": None, "inner": "k", "shape": [4, 4]}
    return {
        "format": "mmee-mapping/1",
        "status": "optimal",
        "objective": "dram",
        "value": 7,
        "bound": 7,
        "gap": 0.0,
        "graph": graph_to_json(fold(graph_from_json(GRAPH))),
        "accelerator": accelerator_to_json(accelerator_from_json(ACCELERATOR)),
        "options": {"tiles": "integer"},
        "groups": [{"ops": ["qk", "pv"], "nest": nest, "array": {"qk": config}, "metrics": metrics()}],
        "resident": [{"tensor": "H", "from": 0, "to": 2}],
        "metrics": metrics(),
        "comparison": {"unfused": None, "compulsory_bytes": 7},
        "certificate": {"trees": 3},
    }


def validator(which: str) -> jsonschema.Draft202012Validator:
    document = schema(which)
    jsonschema.Draft202012Validator.check_schema(document)
    return jsonschema.Draft202012Validator(document)


def shipped_graphs() -> list[Graph]:
    return [load_graph(name) for name in graph_names()]


def shipped_accelerators() -> list[Accelerator]:
    return [load_accelerator(name) for name in accelerator_names()]


def test_schema_of_graphs() -> None:
    check = validator("graph")
    check.validate(GRAPH)
    for graph in shipped_graphs():
        check.validate(graph_to_json(graph))
        check.validate(graph_to_json(fold(graph)))


def test_schema_of_accelerators() -> None:
    check = validator("accel")
    check.validate(ACCELERATOR)
    for accelerator in shipped_accelerators():
        check.validate(accelerator_to_json(accelerator))


def test_schema_of_mappings() -> None:
    validator("mapping").validate(mapping())
    found = decode(mapping(), MappingFile)
    assert found.resident[0].first == 0
    assert found.groups[0].array["qk"].rows == ("i", 4)
    assert isinstance(found.graph, GraphFile)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("value",), "7"),
        (("groups", 0, "nest", 0, "tile"), 0),
        (("groups", 0, "nest", 0, "body", 0), {"hold": "Q", "x": 1}),
        (("groups", 0, "array", "qk", "shape"), [4]),
        (("metrics", "energy_pj", "dram"), None),
        (("graph", "ops", 0, "kind"), "sum"),
        (("extra",), 1),
    ],
)
def test_schema_of_mappings_refuses(path: tuple[Any, ...], value: Any) -> None:
    assert not validator("mapping").is_valid(edited(mapping(), *path, value=value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("groups", 0, "array", "qk", "shape"),
            [4],
            "m: groups[0].array.qk.shape: a list of 1; expected a list of 2",
        ),
        (("groups", 0, "metrics", "macs"), 1.5, "m: groups[0].metrics.macs: 1.5; expected a whole number"),
        (("resident", 0, "from"), "0", 'm: resident[0].from: "0"; expected a whole number'),
        (("graph", "tensors", "K", "dims"), 1, "m: graph.tensors.K.dims: 1; expected a list"),
        (("value",), None, "m: value: null; expected a whole number or a number"),
    ],
)
def test_wrong_mappings(path: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        decode(edited(mapping(), *path, value=value), MappingFile, "m")
    assert str(caught.value) == message


@pytest.mark.parametrize("which", ["graph", "accel", "mapping"])
def test_every_key_of_a_schema_is_described(which: str) -> None:
    for name, definition in schema(which)["$defs"].items():
        assert definition.get("description"), name
        for key, entry in definition.get("properties", {}).items():
            assert "description" in entry or "$ref" in json.dumps(entry), f"{name}.{key}"
            if key.endswith(("_bytes", "_pj", "_hz", "_s", "_per_byte")) and name != "MetricsEntry":
                assert any(unit in entry["description"] for unit in (" in ", " per ", "bytes")), (
                    f"{name}.{key}"
                )


def test_no_such_schema() -> None:
    with pytest.raises(InputError, match='no schema "graphs"; expected one of graph, accel, mapping'):
        schema("graphs")
