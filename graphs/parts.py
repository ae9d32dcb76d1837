"""What whole blocks are put together from: norms, projections, residual sums, the feed-forward half."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmee_graphs.builders import ffn
from mmee_graphs.document import JsonGraph, document, einsum, elementwise, normalize, renamed
from mmee_graphs.experts import expert_ffn
from mmee_graphs.models import Layer


def projection(
    op: str,
    inputs: tuple[str, str],
    output: str,
    shapes: tuple[Sequence[str], Sequence[str], Sequence[str]],
    dims: Mapping[str, int],
    *,
    then: JsonGraph | None = None,
) -> JsonGraph:
    """Build a product of activations and a weight, with one step on its result if there is one.

    Parameters
    ----------
    op : str
        Name of the product.
    inputs : tuple of str
        The activations and the weight.
    output : str
        What the projection gives, after the step.
    shapes : tuple of sequences of str
        Dims of the activations, the weight and the output.
    dims : mapping of str to int
        Sizes, of at least these dims.
    then : dict, optional
        An op without inputs and output, which works on the product; its result is ``output``.

    Returns
    -------
    dict
        A document in format "mmee-graph/1".

    >>> part = projection("q", ("X", "Wq"), "Q", ("ie", "ek", "ik"), {"i": 2, "e": 4, "k": 8}, then=rope("q"))
    >>> [op["output"] for op in part["ops"]]
    ['Q0', 'Q']
    """
    raw = output if then is None else f"{output}0"
    tensors = dict(zip((*inputs, raw, output), (*shapes, shapes[2]), strict=True))
    ops = [einsum(op, list(inputs), raw)]
    if then is not None:
        ops.append({**then, "inputs": [raw], "output": output})
    used = {dim: size for dim, size in dims.items() if any(dim in shape for shape in shapes)}
    return document(used, tensors, ops)


def rope(op: str) -> JsonGraph:
    """The step that rotates what a projection gives by positions; its sines and cosines are not counted."""
    return elementwise("rope", [], "", name=f"rope_{op}")


def norm(layer: Layer, tensor: str, output: str, dims: Mapping[str, int], name: str) -> JsonGraph:
    """Build a norm over the model width e; its scale is taken to be part of the weights behind it.

    ``dims`` gives the tensor's other dims, in order, with their sizes.
    """
    shape = [*dims, "e"]
    step = normalize(layer.norm, "e", tensor, output, name)
    return document({**dims, "e": layer.width}, {tensor: shape, output: shape}, [step])


def residual(layer: Layer, tokens: int, made: str, beside: str, output: str, name: str) -> JsonGraph:
    """Build the sum of what a half of the block made and what runs beside it."""
    tensors = dict.fromkeys((made, beside, output), ("i", "e"))
    step = elementwise("add", [made, beside], output, name=name)
    return document({"i": tokens, "e": layer.width}, tensors, [step])


def feed_forward(layer: Layer, tokens: int) -> list[JsonGraph]:
    """Build the second half of a block, from R[i,e], the sum behind attention, to Y[i,e].

    Parameters
    ----------
    layer : Layer
        Its form says where the norms stand. Where a token goes through several experts, the one
        token of decoding is meant, or tokens that all go to the same experts: see `expert_ffn`.
    tokens : int
        Size of i.

    Returns
    -------
    list of dict
        Parts, in topological order.
    """
    read = "N" if layer.form == "parallel" else "M"
    names = {"X": read, "A": "Wu", "B": "Wd", "Y": "F"}
    if layer.active > 1:
        inner = expert_ffn(
            layer.active, tokens, layer.width, layer.hidden, shared=True, function=layer.function
        )
    else:
        inner = ffn(tokens, layer.width, layer.hidden, function=layer.function, gated=layer.gated)
    inner = renamed(inner, dims={"m": "i", "k": "e", "n": "e"}, tensors=names)
    if layer.form == "parallel":
        return [inner, residual(layer, tokens, "F", "R", "Y", "residual_ffn")]
    if layer.form == "post":
        return [
            norm(layer, "R", "M", {"i": tokens}, "norm_attention"),
            inner,
            residual(layer, tokens, "F", "M", "T", "residual_ffn"),
            norm(layer, "T", "Y", {"i": tokens}, "norm_ffn"),
        ]
    return [
        norm(layer, "R", "M", {"i": tokens}, "norm_ffn"),
        inner,
        residual(layer, tokens, "F", "R", "Y", "residual_ffn"),
    ]


def gathered_experts(layer: Layer, tokens_per_expert: int) -> list[JsonGraph]:
    """Build the experts of a block in prefill, from the gathered tokens Xg[x,m,e] to Y[x,m,e].

    The norm stands behind the gathering instead of before it, which gives the same numbers.
    """
    inner = expert_ffn(layer.experts, tokens_per_expert, layer.width, layer.hidden, function=layer.function)
    inner = renamed(inner, dims={"k": "e", "n": "e"}, tensors={"X": "M"})
    tokens = {"x": layer.experts, "m": tokens_per_expert}
    return [norm(layer, "Xg", "M", tokens, "norm_ffn"), inner]
