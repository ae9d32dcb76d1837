"""A block, N times in a row."""

from __future__ import annotations

from mmee_graphs.document import JsonGraph, joined, renamed


def layers(block: JsonGraph, count: int, *, name: str = "", source: str = "", dtype: str = "") -> JsonGraph:
    """Chain copies of a block, the output Y of one being the input X of the next.

    Each copy has its own weights, caches and names, with the number of its layer behind ("q_1"); dims
    are shared. Between the layers stand X_0, the input, to X_N, the output.

    X and Y must have the same dims, and X must be all that a block needs of the layer before. This is
    so for `cached_block`, where keys and values come from a cache: decoding, or a chunk of prefill.
    It is not for `block`: there the input stands twice, over the dims of queries and of keys, while
    the layer before gives its output once, and the format cannot rename a dim.

    Parameters
    ----------
    block : dict
        A document in format "mmee-graph/1" with an input X and an output Y.
    count : int
        Layers, at least 1.
    name, source, dtype : str
        As in `matmul`; the block's own if left out.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    Raises
    ------
    ValueError
        If ``count`` is below 1, or the block is one that cannot be chained.

    >>> from mmee_graphs.blocks import cached_block
    >>> from mmee_graphs.models import LAYERS
    >>> graph = layers(cached_block(LAYERS["gpt3-6.7b"], 2048), 96)
    >>> len(graph["ops"]), graph["outputs"][-3:]
    (1344, ['Knew_96', 'Vnew_96', 'X_96'])
    """
    if count < 1:
        raise ValueError(f"{count} layers; expected at least 1")
    tensors = block["tensors"]
    if "Xkv" in tensors or tensors.get("X") is None or tensors["X"] != tensors.get("Y"):
        raise ValueError(
            "this block cannot be chained; expected one that has its tokens from X alone, "
            "with the dims of its output Y"
        )
    copies = [_copy(block, number) for number in range(1, count + 1)]
    last = f"X_{count}"
    outputs = [tensor for copy in copies for tensor in copy["outputs"] if not tensor.startswith("X_")]
    return joined(
        copies,
        outputs=[*outputs, last],
        name=name or block["name"],
        source=source or block["source"],
        dtype=dtype or block["dtype"],
    )


def _copy(block: JsonGraph, number: int) -> JsonGraph:
    tensors = {tensor: f"{tensor}_{number}" for tensor in block["tensors"]}
    tensors |= {"X": f"X_{number - 1}", "Y": f"X_{number}"}
    return renamed(block, tensors=tensors, ops={op["name"]: f"{op['name']}_{number}" for op in block["ops"]})
