"""The workload zoo: graphs of published models and small problems, and the builders behind them."""

from __future__ import annotations

from mmee_graphs.blocks import block, cached_block, ffm_layer
from mmee_graphs.builders import (
    attention,
    cross_attention,
    decode_attention,
    ffn,
    matmul,
    matmul_pair,
)
from mmee_graphs.chain import layers
from mmee_graphs.compressed import low_rank_ffn, weights, with_weights
from mmee_graphs.document import JsonGraph
from mmee_graphs.experts import expert_ffn
from mmee_graphs.linear import lightning_chunk, linear_attention
from mmee_graphs.mla import mla_decode, mla_prefill
from mmee_graphs.models import DEEPSEEK_V3, LAYERS, MIXTRAL_8X7B, LatentLayer, Layer
from mmee_graphs.zoo import build, describe, names, path

__all__ = [
    "DEEPSEEK_V3",
    "LAYERS",
    "MIXTRAL_8X7B",
    "JsonGraph",
    "LatentLayer",
    "Layer",
    "attention",
    "block",
    "build",
    "cached_block",
    "cross_attention",
    "decode_attention",
    "describe",
    "expert_ffn",
    "ffm_layer",
    "ffn",
    "layers",
    "lightning_chunk",
    "linear_attention",
    "low_rank_ffn",
    "matmul",
    "matmul_pair",
    "mla_decode",
    "mla_prefill",
    "names",
    "path",
    "weights",
    "with_weights",
]
