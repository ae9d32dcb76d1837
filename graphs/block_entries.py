"""The entries of the zoo that are whole blocks, several of them, or attention of other kinds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmee_graphs.blocks import block, cached_block, ffm_layer
from mmee_graphs.chain import layers
from mmee_graphs.compressed import low_rank_ffn, with_weights
from mmee_graphs.entries import Entry, activation, heads
from mmee_graphs.experts import expert_ffn
from mmee_graphs.linear import lightning_chunk, linear_attention
from mmee_graphs.mla import mla_decode, mla_prefill
from mmee_graphs.models import DECODED, DEEPSEEK_V3, MIXTRAL_8X7B, WHOLE, Layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmee_graphs.document import JsonGraph

_AWQ = "int4 weights, fp16 activations (W4A16), as in AWQ (arXiv 2306.00978), scales left out"
_RANK = 1024
_LOW_RANK = (
    f"each weight a product of rank {_RANK} (chosen; keeps 31 % of the weights), as after a truncated SVD "
    "in SVD-LLM (arXiv 2403.07378)"
)


def block_entries(key: str, layer: Layer) -> dict[str, Entry]:
    """Whole blocks of a layer of the table, and their variants."""
    entries: dict[str, Entry] = {}
    decoded = "block" in DECODED.get(key, ())
    if key in WHOLE:
        entries[f"{key}-block"] = _block_entry(layer, WHOLE[key], decoded)
    if decoded:
        entries[f"{key}-decode-block"] = _decode_block_entry(layer, WHOLE[key])
    if key == "gpt3-6.7b":
        entries |= _gpt3_entries(key, layer)
    if key == "llama3-8b":
        entries |= {f"{name}-w4a16": _w4a16(entry) for name, entry in entries.items()}
    return entries


def model_entries() -> dict[str, Entry]:
    """Models with experts, latent or linear attention."""
    return {**_mixtral_entries(MIXTRAL_8X7B), **_deepseek_entries(), **_linear_entries()}


def _shape(layer: Layer) -> str:
    """Width, heads and feed-forward block, for people."""
    return f"width {layer.width}, {heads(layer)}, FFN {layer.hidden}, {activation(layer)}"


def _block_entry(layer: Layer, structure: str, decoder: bool) -> Entry:
    what = "block in prefill" if decoder else "block"
    about = f"{layer.title} {what}: {layer.tokens} tokens, {_shape(layer)}"
    source = f"{layer.source}; {structure}"
    return Entry(about, source, partial(block, layer, layer.tokens, keep_cache=decoder))


def _decode_block_entry(layer: Layer, structure: str) -> Entry:
    about = f"{layer.title} block in decoding: 1 token, {layer.tokens} cached, {_shape(layer)}"
    source = f"{layer.source}; {structure}; decoding: 1 token, cache of {layer.tokens}"
    return Entry(about, source, partial(cached_block, layer, layer.tokens))


def _gpt3_entries(key: str, layer: Layer) -> dict[str, Entry]:
    widths = f"{layer.width} → {layer.hidden} → {layer.width}, rank {_RANK}, {layer.function}"
    low_rank = Entry(
        f"{layer.title} FFN, weights of low rank: {layer.tokens} tokens, {widths}",
        f"{layer.source}; {_LOW_RANK}",
        partial(low_rank_ffn, layer.tokens, layer.width, layer.hidden, _RANK),
    )
    low_rank_decode = Entry(
        f"{layer.title} decode FFN, weights of low rank: 1 token, {widths}",
        f"{layer.source}; {_LOW_RANK}; decoding: 1 token",
        partial(low_rank_ffn, 1, layer.width, layer.hidden, _RANK),
    )
    ffm = Entry(
        f"{layer.title} layer as FFM models it: {layer.tokens} tokens, width {layer.width}, {heads(layer)}, "
        f"FFN {layer.hidden}, exp as softmax, no norms or residual sums",
        "accelforge (FFM) examples/workloads/gpt3_6.7B.yaml: d 4096, 32 heads of 128, FFN 16384; 2048 "
        "tokens, batch 1, the context of GPT-3 (arXiv 2005.14165)",
        partial(ffm_layer, layer, layer.tokens),
    )
    return {
        f"{key}-layer-ffm": ffm,
        f"{key}-decode-2-layers": _layers_entry(layer, 2),
        f"{key}-decode-4-layers": _layers_entry(layer, 4),
        f"{key}-chunk-2-layers": _layers_entry(layer, 2, 512),
        f"{key}-ffn-low-rank": low_rank,
        f"{key}-decode-ffn-low-rank-w4a16": _w4a16(low_rank_decode),
    }


def _layers_entry(layer: Layer, count: int, tokens: int = 1) -> Entry:
    new = f"{tokens} token{'s' * (tokens > 1)}"
    what = "in decoding" if tokens == 1 else "on a chunk of a prefill"
    chunk = "" if tokens == 1 else "; chunked prefill as in Sarathi-Serve (arXiv 2403.02310)"
    return Entry(
        f"{count} {layer.title} blocks {what}: {new}, {layer.tokens} cached, {_shape(layer)}",
        f"{layer.source}; {WHOLE['gpt3-6.7b']}; {new}, cache of {layer.tokens}{chunk}",
        partial(_chained, layer, count, tokens),
    )


def _chained(layer: Layer, count: int, tokens: int, *, name: str, source: str) -> JsonGraph:
    return layers(cached_block(layer, layer.tokens, tokens=tokens), count, name=name, source=source)


def _w4a16(entry: Entry) -> Entry:
    return Entry(f"{entry.about}, int4 weights", f"{entry.source}; {_AWQ}", partial(_narrowed, entry.make))


def _narrowed(make: Callable[..., JsonGraph], *, name: str, source: str) -> JsonGraph:
    return with_weights(make(name=name, source=source), "int4")


def _mixtral_entries(layer: Layer) -> dict[str, Entry]:
    share = layer.tokens * layer.active // layer.experts
    attending = f"width {layer.width}, {heads(layer)}"
    balanced = f"{layer.source}; balanced routing: {share} tokens for each expert"
    gathered = f"{layer.experts} experts on {share} tokens each, hidden {layer.hidden}, {activation(layer)}"
    decoding = f"{layer.active} active experts, hidden {layer.hidden}, {activation(layer)}"
    return {
        "mixtral-8x7b-block": Entry(
            f"{layer.title} block in prefill: {layer.tokens} tokens, {attending}, {gathered}",
            balanced,
            partial(block, layer, layer.tokens, keep_cache=True),
        ),
        "mixtral-8x7b-decode-block": Entry(
            f"{layer.title} block in decoding: 1 token, {layer.tokens} cached, {attending}, {decoding}",
            f"{layer.source}; decoding: 1 token, cache of {layer.tokens}",
            partial(cached_block, layer, layer.tokens),
        ),
        "mixtral-8x7b-experts": Entry(
            f"{layer.title} experts in prefill: width {layer.width}, {gathered}",
            balanced,
            partial(expert_ffn, layer.experts, share, layer.width, layer.hidden, function=layer.function),
        ),
    }


def _deepseek_entries() -> dict[str, Entry]:
    layer = DEEPSEEK_V3
    sizes = (
        f"width {layer.width}, {layer.heads} heads of {layer.nope_dim} + {layer.rope_dim}, values of "
        f"{layer.value_dim}, latent {layer.latent}, query latent {layer.query_latent}"
    )
    ffn = f"FFN {layer.hidden}, {activation(layer)}"
    prefill, decode = f"{layer.tokens} tokens", f"1 token, {layer.tokens} cached"
    decoding = f"{layer.source}; decoding: 1 token, cache of {layer.tokens}"
    absorbed = f"{decoding}; key and value expansions absorbed, as in DeepSeek-V2 (arXiv 2405.04434)"
    expanded = f"{decoding}; keys and values expanded for every head"
    title = layer.title
    return {
        "deepseek-v3-mla-prefill": Entry(
            f"{title} latent attention in prefill: {prefill}, {sizes}",
            layer.source,
            partial(mla_prefill, layer, layer.tokens),
        ),
        "deepseek-v3-mla-decode-absorbed": Entry(
            f"{title} latent attention in decoding, absorbed: {decode}, {sizes}",
            absorbed,
            partial(mla_decode, layer, layer.tokens, path="absorbed"),
        ),
        "deepseek-v3-mla-decode-expanded": Entry(
            f"{title} latent attention in decoding, expanded: {decode}, {sizes}",
            expanded,
            partial(mla_decode, layer, layer.tokens, path="expanded"),
        ),
        "deepseek-v3-block": Entry(
            f"{title} dense block in prefill: {prefill}, {sizes}, {ffn}",
            layer.source,
            partial(mla_prefill, layer, layer.tokens, whole=True),
        ),
        "deepseek-v3-decode-block": Entry(
            f"{title} dense block in decoding, absorbed: {decode}, {sizes}, {ffn}",
            absorbed,
            partial(mla_decode, layer, layer.tokens, path="absorbed", whole=True),
        ),
    }


def _linear_entries() -> dict[str, Entry]:
    return {
        "lightning-attention-chunk": Entry(
            "Lightning attention, one chunk of MiniMax-01: 256 tokens, 64 heads of 128, state update",
            "MiniMax-01 (arXiv 2501.08313): 64 heads of 128; blocks of 256 tokens as in its published code; "
            "Lightning Attention-2 (arXiv 2401.04658), algorithm 1",
            partial(lightning_chunk, 64, 256, 128),
        ),
        "linear-attention": Entry(
            "linear attention with a relu kernel: 4096 tokens, 12 heads of 64",
            "Katharopoulos et al. (arXiv 2006.16236), equation 5; kernel relu as in EfficientViT "
            "(arXiv 2205.14756); heads of BERT-B (arXiv 1810.04805), 4096 tokens chosen",
            partial(linear_attention, 12, 4096, 64),
        ),
    }
