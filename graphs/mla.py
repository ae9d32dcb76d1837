"""Builders of multi-head latent attention (MLA), as in DeepSeek-V2 and V3: prefill, and two ways to decode.

Keys and values of a token are compressed to one latent vector C, which is what the cache holds,
beside one key Kr with RoPE; all heads share both. A score is the sum of two products,

    S[h,i,l] = Σ_k Qn[h,i,k]·Kn[h,l,k] + Σ_t Qr[h,i,t]·Kr[l,t],

over nope and rope parts. The format has no concatenation, so the two are einsums of their own, and
an elementwise add sums them; it folds into the product that is made last. Thus work and traffic are
exact, and C, which in the absorbed form makes scores and values, is one tensor, counted once where
both products run in one group. What concatenation would save, and is counted here, are one vector op
and one buffer access per score.

Dims: e the model width, a the query latent, c the latent of keys and values, h heads, i queries, l
keys, k the nope and t the rope part of a head's query and key, j a head's value. What is left out is
as in `block`.
"""

from __future__ import annotations

from mmee_graphs.document import (
    JsonGraph,
    document,
    einsum,
    elementwise,
    joined,
    normalize,
    renamed,
    softmax_over,
)
from mmee_graphs.models import LatentLayer
from mmee_graphs.parts import feed_forward, norm, projection, residual, rope

PATHS = ("absorbed", "expanded")


def mla_prefill(
    layer: LatentLayer,
    tokens: int,
    *,
    whole: bool = False,
    keep_cache: bool = True,
    name: str = "mla-prefill",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build latent attention over a whole sequence, keys and values expanded for every head.

    From the norm before attention to the residual sum behind it. The input stands twice, X[i,e] and
    Xkv[l,e], as in `block`.

    Parameters
    ----------
    layer : LatentLayer
        Sizes.
    tokens : int
        Tokens of the sequence.
    whole : bool
        Whether a dense feed-forward half follows.
    keep_cache : bool
        Whether C and Kr, what goes into the cache, are outputs too.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> from mmee_graphs.models import DEEPSEEK_V3
    >>> [op["name"] for op in mla_prefill(DEEPSEEK_V3, 4096)["ops"] if op["kind"] == "einsum"]
    ['dq', 'uq', 'qr', 'dkv', 'kr', 'uk', 'uv', 'scores_rope', 'scores', 'pv', 'out']
    """
    dims = {**_dims(layer), "i": tokens, "l": tokens}
    parts = [
        *_queries(layer, dims),
        norm(layer, "Xkv", "Nkv", {"l": tokens}, "norm_kv"),
        *_latents(layer, dims, "l", "Nkv", ("C", "Kr")),
        *_expanded(dims),
        *_behind(layer, dims, whole),
    ]
    outputs = ["C", "Kr"] if keep_cache else []
    return joined(parts, outputs=[*outputs, "Y"], name=name, source=source, dtype=dtype)


def mla_decode(
    layer: LatentLayer,
    cache: int,
    *,
    path: str = "absorbed",
    tokens: int = 1,
    whole: bool = False,
    name: str = "mla-decode",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build latent attention of new tokens against a cache of latents.

    Both paths give the same numbers:

    - *absorbed*: the expansion of the keys is applied to the queries instead, Qc = Qn·Wuk, so
      attention runs in the latent space, on one shared key and value, C; Wuv expands its result.
    - *expanded*: K and V are rebuilt from C for every head, as in prefill.

    C and Kr are graph inputs, ``cache`` tokens of them; Cnew and Krnew, the new tokens' own, are
    outputs, and counted in ``cache``, as in `cached_block`.

    Parameters
    ----------
    layer : LatentLayer
        Sizes.
    cache : int
        Tokens in the cache, the new ones counted.
    path : str
        "absorbed" or "expanded".
    tokens : int
        New tokens.
    whole : bool
        Whether a dense feed-forward half follows.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    Raises
    ------
    ValueError
        If there is no such path, or the cache is too short for the new tokens.

    >>> from mmee_graphs.models import DEEPSEEK_V3
    >>> graph = mla_decode(DEEPSEEK_V3, 4096)
    >>> [op["inputs"] for op in graph["ops"] if op["name"] in ("scores", "pv")]
    [['Qc', 'C'], ['P', 'C']]
    """
    if path not in PATHS:
        raise ValueError(f'no path "{path}"; expected one of {", ".join(PATHS)}')
    if cache < tokens:
        raise ValueError(f"a cache of {cache} tokens; expected at least the {tokens} new ones")
    dims = {**_dims(layer), "i": tokens, "l": cache}
    parts = [
        *_queries(layer, dims),
        *_latents(layer, dims, "i", "N", ("Cnew", "Krnew")),
        *(_absorbed(dims) if path == "absorbed" else _expanded(dims)),
        *_behind(layer, dims, whole),
    ]
    outputs = ["Cnew", "Krnew", "Y"]
    return joined(parts, outputs=outputs, name=name, source=source, dtype=dtype)


def _dims(layer: LatentLayer) -> dict[str, int]:
    return {
        "e": layer.width,
        "a": layer.query_latent,
        "c": layer.latent,
        "h": layer.heads,
        "k": layer.nope_dim,
        "t": layer.rope_dim,
        "j": layer.value_dim,
    }


def _queries(layer: LatentLayer, dims: dict[str, int]) -> list[JsonGraph]:
    """X, normed, to the query latent, normed, and from there to both parts of the queries."""
    latent_norm = normalize(layer.norm, "a", "", "", "norm_q")
    return [
        norm(layer, "X", "N", {"i": dims["i"]}, "norm"),
        projection("dq", ("N", "Wdq"), "Cq", ("ie", "ea", "ia"), dims, then=latent_norm),
        projection("uq", ("Cq", "Wuq"), "Qn", ("ia", "ahk", "hik"), dims),
        projection("qr", ("Cq", "Wqr"), "Qr", ("ia", "aht", "hit"), dims, then=rope("q")),
    ]


def _latents(
    layer: LatentLayer, dims: dict[str, int], token: str, tensor: str, outputs: tuple[str, str]
) -> list[JsonGraph]:
    """What the cache holds of the tokens along the dim ``token``: the latent, and the key with RoPE."""
    latent, key = outputs
    latent_norm = normalize(layer.norm, "c", "", "", "norm_latent")
    return [
        projection("dkv", (tensor, "Wdkv"), latent, (f"{token}e", "ec", f"{token}c"), dims, then=latent_norm),
        projection("kr", (tensor, "Wkr"), key, (f"{token}e", "et", f"{token}t"), dims, then=rope("k")),
    ]


def _expanded(dims: dict[str, int]) -> list[JsonGraph]:
    """Keys and values of every head, and attention over them."""
    return [
        projection("uk", ("C", "Wuk"), "K", ("lc", "chk", "hlk"), dims),
        projection("uv", ("C", "Wuv"), "V", ("lc", "chj", "hlj"), dims),
        _core(dims, ("Qn", "hik"), ("K", "hlk"), ("V", "hlj"), ("O", "hij")),
    ]


def _absorbed(dims: dict[str, int]) -> list[JsonGraph]:
    """Queries in the latent space, attention there, and the expansion of its result."""
    return [
        projection("uk", ("Qn", "Wuk"), "Qc", ("hik", "chk", "hic"), dims),
        _core(dims, ("Qc", "hic"), ("C", "lc"), ("C", "lc"), ("Oc", "hic")),
        projection("uv", ("Oc", "Wuv"), "O", ("hic", "chj", "hij"), dims),
    ]


def _core(
    dims: dict[str, int],
    query: tuple[str, str],
    key: tuple[str, str],
    value: tuple[str, str],
    output: tuple[str, str],
) -> JsonGraph:
    """Scores in two parts, their sum, the softmax and the product with the values; each name with its dims.

    The rope part comes first, so that sum and softmax fold into the product whose key may also be the
    value.
    """
    ends = dict([query, key, value, output, ("Qr", "hit"), ("Kr", "lt")])
    tensors = ends | dict.fromkeys(("Sr", "Sn", "S", "P"), "hil")
    ops = [
        einsum("scores_rope", ["Qr", "Kr"], "Sr"),
        einsum("scores", [query[0], key[0]], "Sn"),
        elementwise("add", ["Sn", "Sr"], "S"),
        softmax_over("l", "S", "P"),
        einsum("pv", ["P", value[0]], output[0]),
    ]
    used = {dim: size for dim, size in dims.items() if any(dim in shape for shape in tensors.values())}
    return document(used, tensors, ops)


def _behind(layer: LatentLayer, dims: dict[str, int], whole: bool) -> list[JsonGraph]:
    """The output projection, the residual sum and, for a whole block, the feed-forward half."""
    parts = [
        projection("out", ("O", "Wo"), "A", ("hij", "hje", "ie"), dims),
        residual(layer, dims["i"], "A", "X", "R", "residual"),
    ]
    if whole:
        return [*parts, *feed_forward(layer, dims["i"])]
    return [renamed(part, tensors={"R": "Y"}) for part in parts]
