"""Builders of workload graphs: pure functions that return documents in format "mmee-graph/1"."""

from __future__ import annotations

from mmee_graphs.document import JsonGraph, after, document, einsum, elementwise, softmax_over


def matmul(
    m: int, k: int, n: int, *, name: str = "matmul", source: str = "", dtype: str = "fp16"
) -> JsonGraph:
    """Build one matrix product, A[m,k] · B[k,n] → C[m,n].

    Parameters
    ----------
    m, k, n : int
        Sizes in elements: rows of A, the summed dim, columns of B.
    name : str
        Name of the graph.
    source : str
        Where the sizes come from.
    dtype : str
        Element type of every tensor.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> matmul(64, 32, 16)["ops"]
    [{'name': 'mm', 'kind': 'einsum', 'inputs': ['A', 'B'], 'output': 'C'}]
    """
    tensors = {"A": ["m", "k"], "B": ["k", "n"], "C": ["m", "n"]}
    ops = [einsum("mm", ["A", "B"], "C")]
    return document({"m": m, "k": k, "n": n}, tensors, ops, name=name, source=source, dtype=dtype)


def matmul_pair(
    m: int,
    k: int,
    f: int,
    n: int,
    *,
    name: str = "matmul-pair",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build two products in a row, X[m,k] · A[k,f] → H[m,f] and H · B[f,n] → Y[m,n].

    Parameters
    ----------
    m, k, f, n : int
        Sizes in elements: rows, the first and the second summed dim, columns of the result.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> sorted(matmul_pair(64, 1, 256, 256)["tensors"])
    ['A', 'B', 'H', 'X', 'Y']
    """
    tensors = {
        "X": ["m", "k"],
        "A": ["k", "f"],
        "H": ["m", "f"],
        "B": ["f", "n"],
        "Y": ["m", "n"],
    }
    ops = [einsum("up", ["X", "A"], "H"), einsum("down", ["H", "B"], "Y")]
    return document({"m": m, "k": k, "f": f, "n": n}, tensors, ops, name=name, source=source, dtype=dtype)


def attention(
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    softmax: bool = True,
    name: str = "attention",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build the attention of one layer, softmax(Q · Kᵀ) · V, per head.

    Dims: i queries, l keys, k and j the head dim of Q·Kᵀ and of V, and for the heads

    - as many KV heads as heads: h on every tensor; a single head has no h at all;
    - one KV head (multi-query): h on Q, S, P and O, none on K and V;
    - else (grouped queries): g, the KV head, on every tensor and r, the query heads that share it,
      on Q, S, P and O.

    Parameters
    ----------
    heads : int
        Query heads.
    queries, keys : int
        Query and key tokens.
    head_dim : int
        Elements of one head's query, key and value vectors.
    kv_heads : int, optional
        Key and value heads; as many as ``heads`` if left out.
    softmax : bool
        Whether a softmax over the keys stands between the two products.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    Raises
    ------
    ValueError
        If ``kv_heads`` does not divide ``heads``.

    >>> attention(32, 16, 64, 128, kv_heads=8)["dims"]
    {'g': 8, 'r': 4, 'i': 16, 'l': 64, 'k': 128, 'j': 128}
    """
    sizes, query_dims, key_dims = head_dims(heads, heads if kv_heads is None else kv_heads)
    dims = {**sizes, "i": queries, "l": keys, "k": head_dim, "j": head_dim}
    tensors = {
        "Q": [*query_dims, "i", "k"],
        "K": [*key_dims, "l", "k"],
        "S": [*query_dims, "i", "l"],
        "V": [*key_dims, "l", "j"],
        "O": [*query_dims, "i", "j"],
    }
    ops = [einsum("qk", ["Q", "K"], "S")]
    weights = "S"
    if softmax:
        weights = "P"
        tensors = after(tensors, "S", {"P": list(tensors["S"])})
        ops.append(softmax_over("l", "S", "P"))
    ops.append(einsum("pv", [weights, "V"], "O"))
    return document(dims, tensors, ops, name=name, source=source, dtype=dtype)


def decode_attention(
    heads: int,
    cache: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    name: str = "decode-attention",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build the attention of one generated token against a KV cache.

    Parameters
    ----------
    heads : int
        Query heads.
    cache : int
        Tokens in the KV cache.
    head_dim, kv_heads, name, source, dtype
        As in `attention`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> decode_attention(32, 2048, 128)["dims"]
    {'h': 32, 'i': 1, 'l': 2048, 'k': 128, 'j': 128}
    """
    return attention(heads, 1, cache, head_dim, kv_heads=kv_heads, name=name, source=source, dtype=dtype)


def cross_attention(
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    name: str = "cross-attention",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build the attention of a decoder's queries over an encoder's keys, of another length.

    Parameters
    ----------
    heads, queries, keys, head_dim, kv_heads, name, source, dtype
        As in `attention`; queries are decoder tokens, keys encoder positions.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> cross_attention(12, 448, 1500, 64)["dims"]
    {'h': 12, 'i': 448, 'l': 1500, 'k': 64, 'j': 64}
    """
    return attention(heads, queries, keys, head_dim, kv_heads=kv_heads, name=name, source=source, dtype=dtype)


def ffn(
    m: int,
    d: int,
    f: int,
    *,
    function: str = "gelu",
    gated: bool = False,
    name: str = "ffn",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build a feed-forward block, d → f → d.

    Plain: X·A → H, Z = function(H), Z·B → Y. Gated (SwiGLU with ``function="silu"``): X·Wg → G,
    Z = function(G), X·Wu → U, H = Z ∘ U, H·Wd → Y. Dims: m tokens, k and n of size d, f hidden.

    Parameters
    ----------
    m : int
        Tokens.
    d : int
        Model width in elements.
    f : int
        Hidden width in elements.
    function : str
        The elementwise activation, e.g. gelu, relu, silu.
    gated : bool
        Whether the activation gates a second projection.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> [op["name"] for op in ffn(1, 8, 16, function="silu", gated=True)["ops"]]
    ['gate', 'silu', 'up', 'mul', 'down']
    """
    dims = {"m": m, "k": d, "f": f, "n": d}
    if not gated:
        pair = matmul_pair(m, d, f, d)
        shapes = {tensor: entry["dims"] for tensor, entry in pair["tensors"].items()}
        tensors = after(shapes, "H", {"Z": ["m", "f"]})
        up, down = pair["ops"]
        ops = [up, elementwise(function, ["H"], "Z"), {**down, "inputs": ["Z", "B"]}]
        return document(dims, tensors, ops, name=name, source=source, dtype=dtype)
    tensors = {
        "X": ["m", "k"],
        "Wg": ["k", "f"],
        "G": ["m", "f"],
        "Z": ["m", "f"],
        "Wu": ["k", "f"],
        "U": ["m", "f"],
        "H": ["m", "f"],
        "Wd": ["f", "n"],
        "Y": ["m", "n"],
    }
    ops = [
        einsum("gate", ["X", "Wg"], "G"),
        elementwise(function, ["G"], "Z"),
        einsum("up", ["X", "Wu"], "U"),
        elementwise("mul", ["Z", "U"], "H"),
        einsum("down", ["H", "Wd"], "Y"),
    ]
    return document(dims, tensors, ops, name=name, source=source, dtype=dtype)


def head_dims(heads: int, kv_heads: int) -> tuple[dict[str, int], list[str], list[str]]:
    """Return sizes of the head dims, and which of them queries and keys carry."""
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{kv_heads} KV heads for {heads} heads; expected a divisor of {heads}")
    if heads == 1:
        return {}, [], []
    if kv_heads == heads:
        return {"h": heads}, ["h"], ["h"]
    if kv_heads == 1:
        return {"h": heads}, ["h"], []
    return {"g": kv_heads, "r": heads // kv_heads}, ["g", "r"], ["g"]
