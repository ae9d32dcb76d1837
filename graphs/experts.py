"""Builder of mixture-of-experts blocks; the router that picks the experts stays outside the graph."""

from __future__ import annotations

from mmee_graphs.builders import ffn
from mmee_graphs.document import JsonGraph, after, document, elementwise


def expert_ffn(
    experts: int,
    tokens: int,
    d: int,
    f: int,
    *,
    shared: bool = False,
    function: str = "silu",
    name: str = "experts",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build gated feed-forward blocks side by side, d → f → d, one per expert.

    Dims are those of `ffn` (m tokens, k and n of size d, f hidden) and x, the expert, on every weight
    and every hidden tensor. The router is outside, so its choice is taken as made:

    - each expert has its own tokens (``shared=False``; prefill): the tokens gathered for expert x
      are X[x,m,k], its results Y[x,m,n]. Weighting them and adding them up where they came from is
      the router's work, outside too.
    - all experts have the same tokens (``shared=True``; decoding, where the one token goes to all its
      active experts): X[m,k]; C[x,m], the router's weights, scale the hidden vectors, and the down
      projection sums over x as well, so Y[m,n] is the weighted sum of what the experts give.

    Parameters
    ----------
    experts : int
        Active experts.
    tokens : int
        Tokens that each expert works on.
    d, f, function : int, int, str
        As in `ffn`.
    shared : bool
        Whether all experts work on the same tokens.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> expert_ffn(8, 512, 4096, 14336)["tensors"]["X"]["dims"]
    ['x', 'm', 'k']
    >>> [op["inputs"] for op in expert_ffn(2, 1, 4096, 14336, shared=True)["ops"][-2:]]
    [['H', 'C'], ['Hc', 'Wd']]
    """
    one = ffn(tokens, d, f, function=function, gated=True)
    shapes = {tensor: entry["dims"] for tensor, entry in one["tensors"].items()}
    outside = ("X", "Y") if shared else ()
    tensors = {tensor: dims if tensor in outside else ["x", *dims] for tensor, dims in shapes.items()}
    *ops, down = one["ops"]
    if shared:
        tensors = after(tensors, "H", {"C": ["x", "m"], "Hc": ["x", "m", "f"]})
        ops.append(elementwise("mul", ["H", "C"], "Hc", name="weigh"))
        down = {**down, "inputs": ["Hc", "Wd"]}
    dims = {"x": experts, **one["dims"]}
    return document(dims, tensors, [*ops, down], name=name, source=source, dtype=dtype)
