"""The entries of the zoo that are parts of a layer, or belong to no model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mmee_graphs.builders import (
    JsonGraph,
    attention,
    cross_attention,
    decode_attention,
    ffn,
    matmul,
    matmul_pair,
)
from mmee_graphs.models import DECODED, Layer

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Entry:
    """One graph of the zoo: a line for people, its source, and a builder that lacks both names."""

    about: str
    source: str
    make: Callable[..., JsonGraph]


def part_entries(key: str, layer: Layer) -> dict[str, Entry]:
    """Attention and feed-forward block of a layer, in decoding too where that is listed."""
    entries = {f"{key}-attention": _attention_entry(layer), f"{key}-ffn": _ffn_entry(layer)}
    if "attention" in DECODED.get(key, ()):
        entries[f"{key}-decode-attention"] = _decode_attention_entry(layer)
    if "ffn" in DECODED.get(key, ()):
        entries[f"{key}-decode-ffn"] = _decode_ffn_entry(layer)
    return entries


def heads(layer: Layer) -> str:
    """Say how many heads a layer has.

    >>> from mmee_graphs.models import LAYERS
    >>> heads(LAYERS["palm-62b"])
    '32 heads of 256 on 1 KV head'
    """
    own = f"{layer.heads} heads of {layer.head_dim}"
    if layer.kv_heads is None:
        return own
    return f"{own} on {layer.kv_heads} KV head{'s' * (layer.kv_heads > 1)}"


def activation(layer: Layer) -> str:
    """Say what stands between the projections of a layer's feed-forward block.

    >>> from mmee_graphs.models import LAYERS
    >>> activation(LAYERS["llama3-8b"])
    'silu gate'
    """
    return f"{layer.function} gate" if layer.gated else layer.function


def _attention_entry(layer: Layer) -> Entry:
    make = partial(
        attention,
        layer.heads,
        layer.tokens,
        layer.tokens,
        layer.head_dim,
        kv_heads=layer.kv_heads,
    )
    about = f"{layer.title} attention: {heads(layer)}, {layer.tokens} tokens, softmax"
    return Entry(about, layer.source, make)


def _decode_attention_entry(layer: Layer) -> Entry:
    make = partial(decode_attention, layer.heads, layer.tokens, layer.head_dim, kv_heads=layer.kv_heads)
    lengths = f"1 query, {layer.tokens} cached keys"
    about = f"{layer.title} decode attention: {heads(layer)}, {lengths}, softmax"
    return Entry(about, f"{layer.source}; decoding: 1 token, cache of {layer.tokens}", make)


def _ffn_entry(layer: Layer) -> Entry:
    return Entry(*_ffn_block(layer, layer.tokens, "FFN"))


def _decode_ffn_entry(layer: Layer) -> Entry:
    about, source, make = _ffn_block(layer, 1, "decode FFN")
    return Entry(about, f"{source}; decoding: 1 token", make)


def _ffn_block(layer: Layer, tokens: int, block: str) -> tuple[str, str, Callable[..., JsonGraph]]:
    make = partial(ffn, tokens, layer.width, layer.hidden, function=layer.function, gated=layer.gated)
    widths = f"{layer.width} → {layer.hidden} → {layer.width}"
    count = f"{tokens} token{'s' * (tokens > 1)}"
    return f"{layer.title} {block}: {count}, {widths}, {activation(layer)}", layer.source, make


def single_entries() -> dict[str, Entry]:
    """Graphs that belong to no model of the table."""
    head = "the shape of one head of GPT-3 6.7B (arXiv 2005.14165)"
    entries = {
        "cross-attention": Entry(
            "Whisper small cross attention: 12 heads of 64, 448 decoder queries, 1500 encoder keys, softmax",
            "Whisper (arXiv 2212.04356), small: width 768, 12 heads; 30 s of audio are 1500 "
            "encoder positions, text context 448 (openai/whisper)",
            partial(cross_attention, 12, 448, 1500, 64),
        ),
        "attention-head": Entry(
            "one attention head of 128, 2048 tokens, without softmax",
            f"{head}, softmax left out as in two chained products",
            partial(attention, 1, 2048, 2048, 128, softmax=False),
        ),
        "attention-head-softmax": Entry(
            "one attention head of 128, 2048 tokens, softmax",
            head,
            partial(attention, 1, 2048, 2048, 128),
        ),
    }
    products = (
        (64, 64, 64, "GEMM searched exhaustively with Timeloop and with FFM (accelforge)"),
        (1024, 1024, 1024, "synthetic: a square product"),
        (
            16384,
            1024,
            1024,
            "GEMM searched exhaustively with Timeloop for its curve of traffic against buffer, "
            "in the manner of Orojenesis (ISCA 2024)",
        ),
        (61, 67, 71, "synthetic: prime sizes, which no tile size but 1 divides"),
    )
    for m, k, n, source in products:
        sizes = str(m) if m == k == n else f"{m}-{k}-{n}"
        about = f"matrix product {m} x {k} by {k} x {n}"
        entries[f"matmul-{sizes}"] = Entry(about, source, partial(matmul, m, k, n))
    entries["recompute-pair"] = Entry(
        "two matrix products, 64 x 1 → 64 x 256 → 64 x 256, where recomputing the middle pays",
        "synthetic: the first product sums over a dim of 1, so making H again moves less than "
        "keeping it or bringing it back",
        partial(matmul_pair, 64, 1, 256, 256),
    )
    return entries
