"""The named entries of the workload zoo: what each is, how it is built and where its file lies."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.resources import files
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
from mmee_graphs.models import DECODED, LAYERS, Layer

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.resources.abc import Traversable


@dataclass(frozen=True, slots=True)
class Entry:
    """One graph of the zoo: a line for people, its source, and a builder that lacks both names."""

    about: str
    source: str
    make: Callable[..., JsonGraph]


def names() -> tuple[str, ...]:
    """List every name in the zoo, relatives side by side.

    >>> names()[:2]
    ('gpt3-6.7b-attention', 'gpt3-6.7b-ffn')
    """
    return tuple(_ENTRIES)


def describe(name: str) -> str:
    """Say in one line what a graph is.

    Raises
    ------
    LookupError
        If there is no such name.

    >>> describe("llama3-8b-decode-attention")
    'Llama 3 8B decode attention: 32 heads of 128 on 8 KV heads, 1 query, 2048 cached keys, softmax'
    """
    return _entry(name).about


def build(name: str) -> JsonGraph:
    """Build a graph anew, as a document in format "mmee-graph/1".

    Raises
    ------
    LookupError
        If there is no such name.

    >>> build("matmul-61-67-71")["dims"]
    {'m': 61, 'k': 67, 'n': 71}
    """
    entry = _entry(name)
    return entry.make(name=name, source=entry.source)


def path(name: str) -> Traversable:
    """Locate the JSON file of a graph, installed with this package.

    Raises
    ------
    LookupError
        If there is no such name.

    >>> path("bert-b-attention").name
    'bert-b-attention.json'
    """
    _entry(name)
    return files("mmee_graphs") / f"{name}.json"


def _entry(name: str) -> Entry:
    try:
        return _ENTRIES[name]
    except KeyError:
        close = get_close_matches(name, _ENTRIES, n=1)
        hint = f'; did you mean "{close[0]}"?' if close else ""
        raise LookupError(f'no graph named "{name}" in the zoo{hint}') from None


def _layer_entries() -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key, layer in LAYERS.items():
        entries[f"{key}-attention"] = _attention_entry(layer)
        entries[f"{key}-ffn"] = _ffn_entry(layer)
        for block in DECODED.get(key, ()):
            decode = _decode_attention_entry if block == "attention" else _decode_ffn_entry
            entries[f"{key}-decode-{block}"] = decode(layer)
    return entries


def _heads(layer: Layer) -> str:
    heads = f"{layer.heads} heads of {layer.head_dim}"
    if layer.kv_heads is None:
        return heads
    return f"{heads} on {layer.kv_heads} KV head{'s' * (layer.kv_heads > 1)}"


def _attention_entry(layer: Layer) -> Entry:
    make = partial(
        attention,
        layer.heads,
        layer.tokens,
        layer.tokens,
        layer.head_dim,
        kv_heads=layer.kv_heads,
    )
    about = f"{layer.title} attention: {_heads(layer)}, {layer.tokens} tokens, softmax"
    return Entry(about, layer.source, make)


def _decode_attention_entry(layer: Layer) -> Entry:
    make = partial(decode_attention, layer.heads, layer.tokens, layer.head_dim, kv_heads=layer.kv_heads)
    lengths = f"1 query, {layer.tokens} cached keys"
    about = f"{layer.title} decode attention: {_heads(layer)}, {lengths}, softmax"
    return Entry(about, f"{layer.source}; decoding: 1 token, cache of {layer.tokens}", make)


def _ffn_entry(layer: Layer) -> Entry:
    return Entry(*_ffn_block(layer, layer.tokens, "FFN"))


def _decode_ffn_entry(layer: Layer) -> Entry:
    about, source, make = _ffn_block(layer, 1, "decode FFN")
    return Entry(about, f"{source}; decoding: 1 token", make)


def _ffn_block(layer: Layer, tokens: int, block: str) -> tuple[str, str, Callable[..., JsonGraph]]:
    make = partial(ffn, tokens, layer.width, layer.hidden, function=layer.function, gated=layer.gated)
    widths = f"{layer.width} → {layer.hidden} → {layer.width}"
    gate = f"{layer.function} gate" if layer.gated else layer.function
    count = f"{tokens} token{'s' * (tokens > 1)}"
    return f"{layer.title} {block}: {count}, {widths}, {gate}", layer.source, make


def _single_entries() -> dict[str, Entry]:
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


_ENTRIES = {**_layer_entries(), **_single_entries()}
