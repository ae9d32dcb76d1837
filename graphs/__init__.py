"""The workload zoo: graphs of published models and small problems, and the builders behind them."""

from __future__ import annotations

from mmee_graphs.builders import (
    JsonGraph,
    attention,
    cross_attention,
    decode_attention,
    ffn,
    matmul,
    matmul_pair,
)
from mmee_graphs.zoo import build, describe, names, path

__all__ = [
    "JsonGraph",
    "attention",
    "build",
    "cross_attention",
    "decode_attention",
    "describe",
    "ffn",
    "matmul",
    "matmul_pair",
    "names",
    "path",
]
