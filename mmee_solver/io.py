"""Reading and writing graphs and accelerators: JSON, YAML, presets and the workload zoo.

Whatever a file holds, reading it ends in a value or in an :class:`InputError` that names the file, the
place, what stands there and what was expected.
"""

from __future__ import annotations

import dataclasses
import os
import re
from importlib import resources
from math import inf, nan
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.decode import check_name, check_names, check_source, decode
from mmee_solver.errors import InputError, did_you_mean
from mmee_solver.files import (
    MAX_FILE_BYTES,
    check_plain,
    decode_text,
    dump_json,
    parse_json,
    printable,
    read_bytes,
    show,
    write_text_atomic,
)
from mmee_solver.schema import (
    ACCELERATOR_FORMAT,
    GRAPH_FORMAT,
    MAX_NAME_LENGTH,
    AcceleratorFile,
    GraphFile,
    OpEntry,
    schema,
)
from mmee_solver.workload import Graph, Op, Step, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

__all__ = [
    "accelerator_from_json",
    "accelerator_names",
    "accelerator_to_json",
    "decode",
    "dump_json",
    "graph_from_json",
    "graph_names",
    "graph_to_json",
    "load_accelerator",
    "load_graph",
    "parse_json",
    "parse_yaml",
    "schema",
    "write_text_atomic",
]

MAX_YAML_BYTES = 256 << 10
MAX_YAML_DEPTH = 50

# package, folder in it, suffix
_PRESETS = ("mmee_solver", "accelerators", ".yaml")
_ZOO = ("mmee_graphs", "", ".json")

# scalars of YAML 1.2, with _ between digits; PyYAML's own rules take 1e9 for a string and 1:30 for 90
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*|0x[0-9a-fA-F]+)")
_FLOAT = re.compile(r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False} | {
    ".inf": inf,
    "-.inf": -inf,
    ".nan": nan,
}


def graph_from_json(data: object, file: str = "") -> Graph:
    """A workload graph from plain data (design §3).

    Parameters
    ----------
    data : object
        What :func:`parse_json` gives.
    file : str
        Name for errors.

    Raises
    ------
    InputError
        Names the place, what stands there and what was expected.

    >>> graph_from_json({"format": "mmee-graph/1", "name": "g", "dims": {"i": 4}, "tensors":
    ...     {"A": {"dims": ["i"]}, "B": {"dims": ["i"]}}, "ops": [{"name": "f", "kind": "elementwise",
    ...     "function": "exp", "inputs": ["A"], "output": "B"}]}).compulsory_bytes()
    16
    """
    document = decode(data, GraphFile, file)
    try:
        check_names(document)
        tensors = {
            name: Tensor(name, entry.dims, document.dtype if entry.dtype is msgspec.UNSET else entry.dtype)
            for name, entry in document.tensors.items()
        }
        ops = tuple(_op(entry) for entry in document.ops)
        return Graph(
            document.name, document.dims, tensors, ops, document.outputs, document.source, document.dtype
        )
    except InputError as error:
        raise error.in_file(file) from None


def _op(entry: OpEntry) -> Op:
    epilogue, prologue = (
        tuple(Step(s.name, s.kind, s.function, s.axis, s.inputs, s.tensor) for s in steps)
        for steps in (entry.epilogue, entry.prologue)
    )
    return Op(
        entry.name, entry.kind, entry.inputs, entry.output, entry.function, entry.axis, epilogue, prologue
    )


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """A graph, folded or not, as plain data that :func:`graph_from_json` reads back as it is.

    Parameters
    ----------
    graph : Graph
        Any graph.

    Returns
    -------
    dict
        Keys in the order of design §3; what is empty or the default of its place is left out.
    """
    tensors = {
        name: {"dims": list(tensor.dims)} | ({"dtype": tensor.dtype} if tensor.dtype != graph.dtype else {})
        for name, tensor in graph.tensors.items()
    }
    return {
        "format": GRAPH_FORMAT,
        "name": graph.name,
        **({"source": graph.source} if graph.source else {}),
        "dtype": graph.dtype,
        "dims": dict(graph.dims),
        "tensors": tensors,
        "ops": [_op_to_json(op) for op in graph.ops],
        "outputs": list(graph.outputs),
    }


def _op_to_json(op: Op) -> dict[str, Any]:
    data = {
        "name": op.name,
        "kind": op.kind,
        "function": op.function,
        "axis": op.axis,
        "inputs": list(op.inputs),
        "output": op.output,
        "prologue": [_step_to_json(step) for step in op.prologue],
        "epilogue": [_step_to_json(step) for step in op.epilogue],
    }
    return {key: value for key, value in data.items() if value}


def _step_to_json(step: Step) -> dict[str, Any]:
    data = {
        "name": step.name,
        "kind": step.kind,
        "function": step.function,
        "axis": step.axis,
        "inputs": list(step.inputs),
        "tensor": step.tensor,
    }
    return {key: value for key, value in data.items() if value}


def accelerator_from_json(data: object, file: str = "") -> Accelerator:
    """An accelerator from plain data (design §4).

    Parameters
    ----------
    data : object
        What :func:`parse_yaml` or :func:`parse_json` gives.
    file : str
        Name for errors.

    Raises
    ------
    InputError
        Names the place, what stands there and what was expected.
    """
    document = decode(data, AcceleratorFile, file)
    try:
        check_name(document.name, "name")
        check_source(document.source)
        check_name(document.array.pipeline, "array.pipeline", "choice")
        check_name(document.vector.rescale, "vector.rescale", "choice")
        for index, name in enumerate(document.array.stationarity):
            check_name(name, f"array.stationarity[{index}]", "choice")
        return Accelerator(
            name=document.name,
            clock_hz=document.clock_hz,
            dram=Dram(**msgspec.structs.asdict(document.dram)),
            buffer=Buffer(**msgspec.structs.asdict(document.buffer)),
            array=Array(**msgspec.structs.asdict(document.array)),
            vector=Vector(**msgspec.structs.asdict(document.vector)),
            source=document.source,
        )
    except InputError as error:
        raise error.in_file(file) from None


def accelerator_to_json(accelerator: Accelerator) -> dict[str, Any]:
    """An accelerator as plain data that :func:`accelerator_from_json` reads back as it is.

    Parameters
    ----------
    accelerator : Accelerator
        Any accelerator.

    Returns
    -------
    dict
        Every figure, defaults too.
    """
    data = dataclasses.asdict(accelerator)
    data["array"] |= {
        "shapes": [list(shape) for shape in accelerator.array.shapes],
        "stationarity": list(accelerator.array.stationarity),
    }
    return {"format": ACCELERATOR_FORMAT, **data}


def accelerator_names() -> tuple[str, ...]:
    """Names of the accelerators that come with the library, sorted."""
    return tuple(sorted(_shipped(*_PRESETS)))


def graph_names() -> tuple[str, ...]:
    """Names of the graphs of the workload zoo, sorted; none if the zoo is not installed."""
    return tuple(sorted(_shipped(*_ZOO)))


def _shipped(package: str, folder: str, suffix: str) -> dict[str, Traversable]:
    """Files that an installed package ships, by the name without the suffix."""
    try:
        root = resources.files(package)
    except ModuleNotFoundError:
        return {}
    entries = list((root / folder if folder else root).iterdir())
    return {entry.name.removesuffix(suffix): entry for entry in entries if entry.name.endswith(suffix)}


def load_graph(path_or_name: str | os.PathLike[str]) -> Graph:
    """A workload graph from a JSON file, or from the zoo.

    Parameters
    ----------
    path_or_name : str or path
        A file; where there is none of that name, a graph of the zoo (the package ``mmee_graphs``).

    Raises
    ------
    InputError
        If there is neither, or the file is no graph.
    """
    raw, file = _read(path_or_name, _ZOO, "graph", MAX_FILE_BYTES)
    return graph_from_json(parse_json(raw, file), file)


def load_accelerator(path_or_name: str | os.PathLike[str]) -> Accelerator:
    """An accelerator from a YAML (or JSON) file, or one that comes with the library.

    Parameters
    ----------
    path_or_name : str or path
        A file; where there is none of that name, a name out of :func:`accelerator_names`.

    Raises
    ------
    InputError
        If there is neither, or the file is no accelerator.

    >>> load_accelerator("accel1").buffer.capacity_bytes
    1048576
    """
    raw, file = _read(path_or_name, _PRESETS, "accelerator", MAX_YAML_BYTES)
    parse = parse_json if file.endswith(".json") else parse_yaml
    return accelerator_from_json(parse(raw, file), file)


def _read(
    path_or_name: str | os.PathLike[str], shipped: tuple[str, str, str], what: str, limit: int
) -> tuple[bytes, str]:
    """Bytes of the file or the shipped document, and its name for errors."""
    name = os.fspath(path_or_name)
    file = printable(name, 4096)
    known = _shipped(*shipped)
    if name in known and not os.path.isfile(name):
        return known[name].read_bytes(), file
    raw = read_bytes(name, limit)
    if raw is not None:
        return raw, file
    other, its_kind = (_PRESETS, "an accelerator") if shipped is _ZOO else (_ZOO, "a graph")
    if name in _shipped(*other):
        hint = f"; it names {its_kind} (the graph comes first, then the accelerator)"
    else:
        hint = did_you_mean(name[:MAX_NAME_LENGTH], known)
    message = f"no such file, and no {what} of that name (mmee-solve --list shows them){hint}"
    raise InputError(message, "", file)


def parse_yaml(text: str | bytes, file: str = "") -> Any:
    """Plain data from YAML: objects, lists and scalars as in JSON, and nothing else.

    Numbers are read as YAML 1.2 does, so ``1e9`` and ``60.0e9`` are numbers; dates, octals and times
    stay strings. Anchors, aliases and tags are refused: no document of ours needs them.

    Parameters
    ----------
    text : str or bytes
        YAML; bytes are UTF-8.
    file : str
        Name for errors.

    Raises
    ------
    InputError
        Says line and column, what stands there and what was expected.

    >>> parse_yaml("{clock_hz: 1e9, shapes: [[32, 32]], bandwidth: null}")
    {'clock_hz': 1000000000.0, 'shapes': [[32, 32]], 'bandwidth': None}
    """
    if isinstance(text, bytes):
        text = decode_text(text, file)
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        data = _document(events)
        check_plain(data)
    except InputError as error:
        raise error.in_file(file) from None
    except yaml.MarkedYAMLError as error:
        what = error.problem or error.context or "cannot be read"
        place = _place(error.problem_mark or error.context_mark)
        raise InputError(f"no valid YAML: {printable(what, 200)}", place, file) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"no valid YAML: {show(chr(error.character))} is not allowed"
        raise InputError(message, f"line {line}", file) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # e.g. an escape beyond Unicode
        raise InputError(f"no valid YAML: {printable(str(error))}", "", file) from None
    return data


def _place(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"


def _document(events: Iterator[Any]) -> Any:
    """The one document of a stream of YAML events."""
    data = None
    started = False
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if started:
                raise InputError("a second document starts; expected one", _place(event.start_mark))
            started = True
        elif isinstance(event, yaml.NodeEvent):
            data = _node(event, events, 0)
    return data


def _node(event: Any, events: Iterator[Any], depth: int) -> Any:
    """The value that starts with an event; takes its other events off the stream."""
    _refuse(event, depth)
    if isinstance(event, yaml.SequenceStartEvent):
        return [_node(item, events, depth + 1) for item in _until(yaml.SequenceEndEvent, events)]
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(events, depth)
    return _scalar(event.value, plain=event.implicit[0])


def _refuse(event: Any, depth: int) -> None:
    place = _place(event.start_mark)
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        raise InputError("anchors and aliases are not supported; write the value out", place)
    if event.tag is not None:
        raise InputError(f"the tag {show(event.tag)} is not supported; write the plain value", place)
    if depth > MAX_YAML_DEPTH:
        raise InputError(f"nested deeper than {MAX_YAML_DEPTH}", place)


def _until(end: type[Any], events: Iterator[Any]) -> Iterator[Any]:
    for event in events:
        if isinstance(event, end):
            return
        yield event


def _mapping(events: Iterator[Any], depth: int) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key in _until(yaml.MappingEndEvent, events):
        _refuse(key, depth)
        place = _place(key.start_mark)
        if not isinstance(key, yaml.ScalarEvent):
            raise InputError("a list or an object as a key; expected a name", place)
        if key.value in data:
            raise InputError(f"the key {show(key.value)} stands twice; expected it once", place)
        data[key.value] = _node(next(events), events, depth + 1)
    return data


def _scalar(text: str, *, plain: bool) -> str | float | bool | None:
    """The value of a scalar; plain ones, without quotes, may be numbers and words."""
    if not plain:
        return text
    if _INTEGER.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _WORDS.get(text, text)
