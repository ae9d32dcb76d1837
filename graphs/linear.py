"""Builders of linear attention: cost grows with the tokens, not with their square, through a state K·V."""

from __future__ import annotations

from mmee_graphs.document import JsonGraph, document, einsum, elementwise


def lightning_chunk(
    heads: int,
    chunk: int,
    head_dim: int,
    *,
    name: str = "lightning-chunk",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build one chunk of Lightning attention: inside the chunk, from the state, and the state's update.

    With a decay λ per head, positions i and l in the chunk and B tokens in all of it,

    - inside: P = Q·Kᵀ ∘ M, then P·V, with M[i,l] = λ^(i−l);
    - from the state: λ^i (Q·State);
    - update: State' = λ^B (State + Σ_l λ^(−l) K·V).

    M is not read as a tensor: it is the product of two vectors, Dq[h,i] = λ^i and Dk[h,l] = λ^(−l),
    operands of the elementwise op on the scores, and the same two serve the other lines; Db[h] = λ^B.
    That M is zero for i < l is left out, as masks are everywhere here. The states are fp32, as
    kernels keep them. Dims: h heads, i and l tokens of the chunk, k and j head dim of Q, K and of V.

    Parameters
    ----------
    heads : int
        Heads; none shares keys or values with another.
    chunk : int
        Tokens of the chunk.
    head_dim : int
        Elements of one head's query, key and value vectors.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    References
    ----------
    Lightning Attention-2, arXiv 2401.04658, algorithm 1.

    >>> graph = lightning_chunk(64, 256, 128)
    >>> [op["name"] for op in graph["ops"]]
    ['qk', 'decay', 'intra', 'inter', 'decay_q', 'sum', 'decay_k', 'update', 'carry', 'decay_state']
    >>> graph["outputs"], graph["tensors"]["State"]
    (['O', 'NewState'], {'dims': ['h', 'k', 'j'], 'dtype': 'fp32'})
    """
    dims = {"h": heads, "i": chunk, "l": chunk, "k": head_dim, "j": head_dim}
    tensors = {
        "Q": "hik",
        "K": "hlk",
        "S": "hil",
        "Dq": "hi",
        "Dk": "hl",
        "P": "hil",
        "V": "hlj",
        "Oi": "hij",
        "State": "hkj",
        "Os": "hij",
        "Od": "hij",
        "O": "hij",
        "Kd": "hlk",
        "KV": "hkj",
        "Sum": "hkj",
        "Db": "h",
        "NewState": "hkj",
    }
    ops = [
        einsum("qk", ["Q", "K"], "S"),
        elementwise("mul", ["S", "Dq", "Dk"], "P", name="decay"),
        einsum("intra", ["P", "V"], "Oi"),
        einsum("inter", ["Q", "State"], "Os"),
        elementwise("mul", ["Os", "Dq"], "Od", name="decay_q"),
        elementwise("add", ["Oi", "Od"], "O", name="sum"),
        elementwise("mul", ["K", "Dk"], "Kd", name="decay_k"),
        einsum("update", ["Kd", "V"], "KV"),
        elementwise("add", ["KV", "State"], "Sum", name="carry"),
        elementwise("mul", ["Sum", "Db"], "NewState", name="decay_state"),
    ]
    outputs = ["O", "NewState"]
    graph = document(dims, tensors, ops, name=name, source=source, dtype=dtype, outputs=outputs)
    for state in ("State", "KV", "Sum", "NewState"):
        graph["tensors"][state]["dtype"] = "fp32"
    return graph


def linear_attention(
    heads: int,
    tokens: int,
    head_dim: int,
    *,
    function: str = "relu",
    name: str = "linear-attention",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build kernelised linear attention over a whole sequence, every token seeing all others.

    With φ the elementwise ``function``: the state φ(K)ᵀ·V and the sum of φ(K) over the tokens, then
    φ(Q)·State, divided by φ(Q)·Sum, which stands for the softmax's denominator. Dims: h heads, i
    queries, l keys, k and j head dim of Q, K and of V.

    Parameters
    ----------
    heads, tokens, head_dim : int
        Sizes.
    function : str
        φ, e.g. relu, exp, elu.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    References
    ----------
    Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equation 5.

    >>> graph = linear_attention(12, 4096, 64)
    >>> [op["name"] for op in graph["ops"]]
    ['phi_k', 'state', 'sum', 'phi_q', 'denominator', 'numerator', 'divide']
    """
    dims = {"h": heads, "i": tokens, "l": tokens, "k": head_dim, "j": head_dim}
    tensors = {
        "K": "hlk",
        "Kf": "hlk",
        "V": "hlj",
        "State": "hkj",
        "Sum": "hk",
        "Q": "hik",
        "Qf": "hik",
        "Den": "hi",
        "Num": "hij",
        "O": "hij",
    }
    ops = [
        elementwise(function, ["K"], "Kf", name="phi_k"),
        einsum("state", ["Kf", "V"], "State"),
        einsum("sum", ["Kf"], "Sum"),
        elementwise(function, ["Q"], "Qf", name="phi_q"),
        einsum("denominator", ["Qf", "Sum"], "Den"),
        einsum("numerator", ["Qf", "State"], "Num"),
        elementwise("div", ["Num", "Den"], "O", name="divide"),
    ]
    return document(dims, tensors, ops, name=name, source=source, dtype=dtype)
