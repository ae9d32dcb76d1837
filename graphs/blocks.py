"""Builders of whole transformer blocks: attention and feed-forward, with norms and residual sums."""

from __future__ import annotations

from mmee_graphs.builders import attention, head_dims, matmul_pair
from mmee_graphs.document import JsonGraph, elementwise, joined, renamed
from mmee_graphs.models import Layer
from mmee_graphs.parts import feed_forward, gathered_experts, norm, projection, residual, rope


def block(
    layer: Layer,
    tokens: int,
    *,
    keep_cache: bool = False,
    tokens_per_expert: int | None = None,
    name: str = "block",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build one transformer block over a whole sequence: an encoder's, or prefill.

    The format has no renaming of dims, and attention needs the tokens as queries (i) and as keys (l)
    at once. So the block's input stands twice: X[i,e] makes the queries and is added to the result of
    attention, Xkv[l,e] makes keys and values. Both are the same numbers, so the input is counted
    twice in the compulsory traffic, and dataflows that read it once for both are not in the space.

    Other dims: e the model width, k and j the head dim of Q·Kᵀ and of V, f hidden; heads as in
    `attention`. Biases, the scales of norms, the 1/√k before the softmax and the causal mask are
    left out: scores are computed whole.

    A block with experts has two parts that share no tensor, because the router stands between them
    (see `expert_ffn`): attention up to R[i,e], an output, and the experts on gathered tokens, from
    Xg[x,m,e] to Y[x,m,e]; adding Y to R is the router's.

    Parameters
    ----------
    layer : Layer
        Sizes, activation, norms.
    tokens : int
        Tokens of the sequence.
    keep_cache : bool
        Whether K and V are outputs too: prefill fills the KV cache.
    tokens_per_expert : int, optional
        Tokens that the router sends to each expert, where there are several; an equal share, rounded
        up, if left out.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> from mmee_graphs.models import LAYERS
    >>> graph = block(LAYERS["bert-b"], 512)
    >>> graph["dims"]
    {'i': 512, 'e': 768, 'h': 12, 'k': 64, 'l': 512, 'j': 64, 'f': 3072}
    >>> [op["name"] for op in graph["ops"] if op["kind"] != "einsum"]
    ['softmax', 'residual', 'norm_attention', 'gelu', 'residual_ffn', 'norm_ffn']
    """
    parts = _queries(layer, tokens)
    keys_from = "Xkv"
    if layer.form != "post":
        keys_from = "Nkv"
        parts.append(norm(layer, "Xkv", "Nkv", {"l": tokens}, "norm_kv"))
    parts += _keys_and_values(layer, keys_from, "l", tokens, ("K", "V"))
    parts += _attend(layer, tokens, tokens)
    outputs = ["K", "V"] if keep_cache else []
    if layer.active > 1:
        share = -(-tokens * layer.active // layer.experts)
        parts += gathered_experts(layer, tokens_per_expert or share)
        outputs.append("R")
    else:
        parts += feed_forward(layer, tokens)
    return joined(parts, outputs=[*outputs, "Y"], name=name, source=source, dtype=dtype)


def cached_block(
    layer: Layer,
    cache: int,
    *,
    tokens: int = 1,
    name: str = "cached-block",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build one transformer block on new tokens against a KV cache: decoding, or a chunk of prefill.

    X[i,e] are the new tokens, K[h,l,k] and V[h,l,j] the cache, graph inputs. The keys and values of
    the new tokens, Knew and Vnew, are outputs; putting them into the cache is outside the graph, and
    ``cache`` counts them: attention reads them from there. So they are written and read once, as by
    a serving system that fills its cache first. What orders the two is not in the graph.

    Dims and what is left out are as in `block`, but with experts nothing is gathered: the new tokens
    all go to the same active experts, which holds for the one token of decoding.

    Parameters
    ----------
    layer : Layer
        Sizes, activation, norms.
    cache : int
        Tokens in the cache, the new ones counted.
    tokens : int
        New tokens.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    Raises
    ------
    ValueError
        If the cache is too short for the new tokens.

    >>> from mmee_graphs.models import LAYERS
    >>> graph = cached_block(LAYERS["llama3-8b"], 2048)
    >>> graph["outputs"], graph["tensors"]["K"]["dims"], graph["dims"]["i"]
    (['Knew', 'Vnew', 'Y'], ['g', 'l', 'k'], 1)
    """
    if cache < tokens:
        raise ValueError(f"a cache of {cache} tokens; expected at least the {tokens} new ones")
    parts = _queries(layer, tokens)
    source_of_keys = "X" if layer.form == "post" else "N"
    parts += _keys_and_values(layer, source_of_keys, "i", tokens, ("Knew", "Vnew"))
    parts += _attend(layer, tokens, cache)
    parts += feed_forward(layer, tokens)
    outputs = ["Knew", "Vnew", "Y"]
    return joined(parts, outputs=outputs, name=name, source=source, dtype=dtype)


def ffm_layer(
    layer: Layer, tokens: int, *, name: str = "ffm-layer", source: str = "", dtype: str = "fp16"
) -> JsonGraph:
    """Build a layer as the examples of accelforge (FFM) have it: products, and softmax as one exp.

    V, K and Q projections, Q·Kᵀ, exp on the scores, the product with V, the output projection and two
    feed-forward products; no norms, residual sums or activation. Nothing forces dims to be the same,
    so each width has its own: e of the input, d behind attention, n of the result. The input stands
    twice, as in `block`; accelforge has one and indexes it in two ways.

    Parameters
    ----------
    layer : Layer
        Sizes; one without experts and gate, and with a KV head per head.
    tokens : int
        Tokens of the sequence.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> from mmee_graphs.models import LAYERS
    >>> [op["name"] for op in ffm_layer(LAYERS["gpt3-6.7b"], 2048)["ops"]]
    ['v', 'k', 'q', 'qk', 'softmax', 'pv', 'out', 'up', 'down']
    """
    key, value = _keys_and_values(layer, "Xkv", "l", tokens, ("K", "V"))
    core = attention(layer.heads, tokens, tokens, layer.head_dim)
    scores, _, values = core["ops"]
    exp = elementwise("exp", ["S"], "P", name="softmax")
    up_and_down = matmul_pair(tokens, layer.width, layer.hidden, layer.width)
    parts = [
        value,
        key,
        _query(layer, "X", tokens),
        {**core, "ops": [scores, exp, values]},
        renamed(_output(layer, tokens), dims={"e": "d"}),
        renamed(up_and_down, dims={"m": "i", "k": "d"}, tensors={"X": "A", "A": "Wu", "B": "Wd"}),
    ]
    return joined(parts, outputs=["Y"], name=name, source=source, dtype=dtype)


def _queries(layer: Layer, tokens: int) -> list[JsonGraph]:
    """X, normed to N unless norms come last, and Q."""
    if layer.form == "post":
        return [_query(layer, "X", tokens)]
    return [norm(layer, "X", "N", {"i": tokens}, "norm"), _query(layer, "N", tokens)]


def _query(layer: Layer, tensor: str, tokens: int) -> JsonGraph:
    sizes, heads, _ = _heads(layer)
    dims = {"i": tokens, "e": layer.width, **sizes, "k": layer.head_dim}
    shapes = (["i", "e"], ["e", *heads, "k"], [*heads, "i", "k"])
    return projection("q", (tensor, "Wq"), "Q", shapes, dims, then=rope("q") if layer.rope else None)


def _keys_and_values(
    layer: Layer, tensor: str, token: str, tokens: int, outputs: tuple[str, str]
) -> list[JsonGraph]:
    """Keys and values of the tokens along the dim ``token``."""
    sizes, _, heads = _heads(layer)
    dims = {token: tokens, "e": layer.width, **sizes, "k": layer.head_dim, "j": layer.head_dim}
    key, value = outputs
    return [
        projection(
            "k",
            (tensor, "Wk"),
            key,
            ([token, "e"], ["e", *heads, "k"], [*heads, token, "k"]),
            dims,
            then=rope("k") if layer.rope else None,
        ),
        projection(
            "v", (tensor, "Wv"), value, ([token, "e"], ["e", *heads, "j"], [*heads, token, "j"]), dims
        ),
    ]


def _attend(layer: Layer, tokens: int, keys: int) -> list[JsonGraph]:
    """Attention, its output projection and the sum with the block's input, R."""
    core = attention(layer.heads, tokens, keys, layer.head_dim, kv_heads=layer.kv_heads)
    return [core, _output(layer, tokens), residual(layer, tokens, "A", "X", "R", "residual")]


def _output(layer: Layer, tokens: int) -> JsonGraph:
    sizes, heads, _ = _heads(layer)
    dims = {**sizes, "i": tokens, "j": layer.head_dim, "e": layer.width}
    return projection("out", ("O", "Wo"), "A", ([*heads, "i", "j"], [*heads, "j", "e"], ["i", "e"]), dims)


def _heads(layer: Layer) -> tuple[dict[str, int], list[str], list[str]]:
    dims: tuple[dict[str, int], list[str], list[str]] = head_dims(layer.heads, layer.kv_heads or layer.heads)
    return dims
