"""Documents in format "mmee-graph/1" and what makes them: ops, and documents renamed and joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

JsonGraph = dict[str, Any]

FORMAT = "mmee-graph/1"


def einsum(name: str, inputs: list[str], output: str) -> JsonGraph:
    """An op that multiplies its inputs and sums over the dims that the output lacks."""
    return {"name": name, "kind": "einsum", "inputs": inputs, "output": output}


def elementwise(function: str, inputs: list[str], output: str, name: str = "") -> JsonGraph:
    """An op that works on every element, named like its function if no name is given."""
    return {
        "name": name or function,
        "kind": "elementwise",
        "function": function,
        "inputs": inputs,
        "output": output,
    }


def normalize(function: str, axis: str, tensor: str, output: str, name: str) -> JsonGraph:
    """A layernorm or rmsnorm (``function``) over one dim."""
    return {
        "name": name,
        "kind": "normalize",
        "function": function,
        "axis": axis,
        "inputs": [tensor],
        "output": output,
    }


def softmax_over(axis: str, tensor: str, output: str) -> JsonGraph:
    """A softmax over one dim."""
    return {"name": "softmax", "kind": "softmax", "axis": axis, "inputs": [tensor], "output": output}


def after(tensors: dict[str, list[str]], name: str, more: dict[str, list[str]]) -> dict[str, list[str]]:
    """Put tensors in behind the one called ``name``: files list them in order of use."""
    result: dict[str, list[str]] = {}
    for tensor, dims in tensors.items():
        result[tensor] = dims
        if tensor == name:
            result |= more
    return result


def document(
    dims: Mapping[str, int],
    tensors: Mapping[str, Sequence[str]],
    ops: Sequence[JsonGraph],
    *,
    name: str = "",
    source: str = "",
    dtype: str = "fp16",
    outputs: Sequence[str] = (),
) -> JsonGraph:
    """Put a document together.

    Parameters
    ----------
    dims : mapping of str to int
        Sizes in elements.
    tensors : mapping of str to sequence of str
        Dims of each tensor.
    ops : sequence of dict
        In topological order.
    name, source, dtype : str
        Name of the graph, where its sizes come from, element type of every tensor.
    outputs : sequence of str
        Tensors that the graph leaves; what the last op makes if left out.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> document({"m": 2}, {"A": ["m"], "B": ["m"]}, [elementwise("exp", ["A"], "B")])["outputs"]
    ['B']
    """
    return {
        "format": FORMAT,
        "name": name,
        "source": source,
        "dtype": dtype,
        "dims": dict(dims),
        "tensors": {tensor: {"dims": list(shape)} for tensor, shape in tensors.items()},
        "ops": list(ops),
        "outputs": list(outputs) or [ops[-1]["output"]],
    }


def joined(
    parts: Sequence[JsonGraph],
    *,
    outputs: Sequence[str],
    name: str = "",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Join documents into one graph: tensors and dims of one name are the same in all of them.

    Parameters
    ----------
    parts : sequence of dict
        Documents in topological order.
    outputs : sequence of str
        Tensors that the joined graph leaves.
    name, source, dtype : str
        As in `document`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    Raises
    ------
    ValueError
        If two parts give one dim two sizes, or one tensor two shapes.

    >>> first = document({"m": 2}, {"A": ["m"], "B": ["m"]}, [elementwise("exp", ["A"], "B")])
    >>> second = document({"m": 2}, {"B": ["m"], "C": ["m"]}, [elementwise("tanh", ["B"], "C")])
    >>> list(joined([first, second], outputs=["C"])["tensors"])
    ['A', 'B', 'C']
    """
    dims: dict[str, int] = {}
    tensors: dict[str, JsonGraph] = {}
    for part in parts:
        _merge(dims, part["dims"], "dim")
        _merge(tensors, part["tensors"], "tensor")
    ops = [op for part in parts for op in part["ops"]]
    graph = document(dims, {}, ops, name=name, source=source, dtype=dtype, outputs=outputs)
    return {**graph, "tensors": tensors}


def _merge(known: dict[str, Any], more: Mapping[str, Any], what: str) -> None:
    for key, value in more.items():
        if known.setdefault(key, value) != value:
            raise ValueError(f'{what} "{key}" is {known[key]} in one part and {value} in another')


def renamed(
    graph: JsonGraph,
    *,
    dims: Mapping[str, str] | None = None,
    tensors: Mapping[str, str] | None = None,
    ops: Mapping[str, str] | None = None,
) -> JsonGraph:
    """Give dims, tensors and ops of a graph other names; what is not named keeps its own.

    Parameters
    ----------
    graph : dict
        A document in format "mmee-graph/1".
    dims, tensors, ops : mapping of str to str, optional
        New names by old ones. Two dims of equal size may become one.

    Returns
    -------
    dict
        A new document.

    Raises
    ------
    ValueError
        If two tensors would have one name, or two dims of one name two sizes.

    >>> graph = document({"m": 2}, {"A": ["m"], "B": ["m"]}, [elementwise("exp", ["A"], "B")])
    >>> renamed(graph, dims={"m": "i"}, tensors={"B": "Y"})["ops"][0]["output"]
    'Y'
    """
    dims, tensors, ops = dims or {}, tensors or {}, ops or {}
    sizes: dict[str, int] = {}
    for dim, size in graph["dims"].items():
        _merge(sizes, {dims.get(dim, dim): size}, "dim")
    shapes = {
        tensors.get(tensor, tensor): {**entry, "dims": [dims.get(dim, dim) for dim in entry["dims"]]}
        for tensor, entry in graph["tensors"].items()
    }
    if len(shapes) < len(graph["tensors"]):
        raise ValueError(f"two tensors get one name: {dict(tensors)}")
    steps = []
    for op in graph["ops"]:
        step = {**op, "name": ops.get(op["name"], op["name"])}
        if "axis" in op:
            step["axis"] = dims.get(op["axis"], op["axis"])
        step["inputs"] = [tensors.get(tensor, tensor) for tensor in op["inputs"]]
        step["output"] = tensors.get(op["output"], op["output"])
        steps.append(step)
    outputs = [tensors.get(tensor, tensor) for tensor in graph["outputs"]]
    return {**graph, "dims": sizes, "tensors": shapes, "ops": steps, "outputs": outputs}
