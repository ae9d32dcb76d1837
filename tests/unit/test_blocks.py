"""Whole blocks of the zoo: where norms and sums stand, work and weights by hand."""

from __future__ import annotations

from math import prod

import pytest

import mmee_graphs
from mmee_solver.fold import fold
from mmee_solver.io import graph_from_json
from mmee_solver.workload import Graph, Op


def _graph(name: str) -> Graph:
    return graph_from_json(mmee_graphs.build(name))


def _folded(name: str) -> dict[str, Op]:
    return {op.name: op for op in fold(_graph(name)).ops}


def _macs(name: str) -> int:
    graph = _graph(name)
    return sum(prod(graph.dims[dim] for dim in graph.op_dims(op)) for op in graph.ops if op.kind == "einsum")


def _weight_elements(name: str) -> int:
    graph = _graph(name)
    return sum(graph.elements(tensor) for tensor in graph.inputs() if tensor.startswith("W"))


def _epilogue(op: Op) -> list[tuple[str, tuple[str, ...]]]:
    return [(step.function or step.kind, step.inputs) for step in op.epilogue]


def _prologue(op: Op) -> list[tuple[str, str]]:
    return [(step.function or step.kind, step.tensor) for step in op.prologue]


@pytest.mark.parametrize("name", ["gpt3-6.7b-block", "vit-b16-197-block", "llama3-8b-block"])
def test_pre_norm(name: str) -> None:
    norm = "rmsnorm" if name.startswith("llama") else "layernorm"
    ops = _folded(name)
    assert _prologue(ops["q"]) == [(norm, "X")]
    assert _prologue(ops["k"]) == _prologue(ops["v"]) == [(norm, "Xkv")]
    assert _epilogue(ops["out"]) == [("add", ("X",))]
    assert _prologue(ops["up"]) == [(norm, "R")]
    assert _epilogue(ops["down"]) == [("add", ("R",))]


@pytest.mark.parametrize("name", ["bert-b-block", "bert-l-block"])
def test_post_norm(name: str) -> None:
    ops = _folded(name)
    assert not any(op.prologue for op in ops.values())
    assert _epilogue(ops["out"]) == [("add", ("X",)), ("layernorm", ())]
    assert _epilogue(ops["down"]) == [("add", ("M",)), ("layernorm", ())]
    assert ops["up"].inputs == ("M", "Wu")


@pytest.mark.parametrize(("name", "keys"), [("palm-62b-block", "Xkv"), ("palm-62b-decode-block", "X")])
def test_parallel_block(name: str, keys: str) -> None:
    ops = _folded(name)
    assert all(_prologue(ops[op]) == [("layernorm", "X")] for op in ("q", "gate", "up"))
    assert all(_prologue(ops[op]) == [("layernorm", keys)] for op in ("k", "v"))
    assert _epilogue(ops["out"]) == [("add", ("X",))]
    assert _epilogue(ops["down"]) == [("add", ("R",))]
    assert _graph(name).tensors["Wk"].dims == ("e", "k"), "multi-query: one KV head"


def test_rope_works_on_queries_and_keys_only() -> None:
    for name in ("llama3-8b-block", "llama3-8b-decode-block", "palm-62b-block", "mixtral-8x7b-block"):
        ops = _folded(name)
        roped = {op.name for op in ops.values() if ("rope", ()) in _epilogue(op)}
        assert roped == {"q", "k"}
    assert {op.name for op in _folded("deepseek-v3-block").values() if ("rope", ()) in _epilogue(op)} == {
        "qr",
        "kr",
    }
    assert all(step.function != "rope" for op in _folded("gpt3-6.7b-block").values() for step in op.epilogue)


def test_what_prefill_and_decoding_leave() -> None:
    assert _graph("bert-b-block").outputs == ("Y",)
    assert _graph("vit-b16-197-block").outputs == ("Y",)
    assert _graph("gpt3-6.7b-layer-ffm").outputs == ("Y",)
    for model in ("gpt3-6.7b", "gpt3-13b", "palm-62b", "llama3-8b"):
        assert _graph(f"{model}-block").outputs == ("K", "V", "Y")
        decode = _graph(f"{model}-decode-block")
        assert decode.outputs == ("Knew", "Vnew", "Y")
        assert {"K", "V"} <= set(decode.inputs())
        assert "Xkv" not in decode.tensors
    assert _graph("deepseek-v3-mla-prefill").outputs == ("C", "Kr", "Y")
    assert _graph("deepseek-v3-decode-block").outputs == ("Cnew", "Krnew", "Y")
    assert _graph("mixtral-8x7b-block").outputs == ("K", "V", "R", "Y")


def test_ffm_layer_has_no_norm_sum_or_activation() -> None:
    graph = _graph("gpt3-6.7b-layer-ffm")
    assert [(op.name, op.function) for op in graph.ops if op.kind != "einsum"] == [("softmax", "exp")]
    assert graph.dims["e"] == graph.dims["d"] == graph.dims["n"] == 4096


def test_experts() -> None:
    prefill, decode = _graph("mixtral-8x7b-block"), _graph("mixtral-8x7b-decode-block")
    assert (prefill.dims["x"], prefill.dims["m"]) == (8, 2048 * 2 // 8)
    assert prefill.tensors["Y"].dims == ("x", "m", "e")
    assert decode.dims["x"] == 2
    assert decode.reduction_dims(decode.op("down")) == ("x", "f")
    assert _epilogue(_folded("mixtral-8x7b-decode-block")["up"]) == [("mul", ("Z",)), ("mul", ("C",))]
    layer = mmee_graphs.MIXTRAL_8X7B
    assert mmee_graphs.block(layer, 3)["dims"]["m"] == 1
    assert mmee_graphs.block(layer, 2048, tokens_per_expert=700)["dims"]["m"] == 700


def test_absorbed_attention_reads_one_latent_for_keys_and_values() -> None:
    ops = _folded("deepseek-v3-mla-decode-absorbed")
    assert ops["scores"].inputs == ("Qc", "C")
    assert ops["pv"].inputs == ("P", "C")
    assert _epilogue(ops["scores"]) == [("add", ("Sr",)), ("softmax", ())]
    # 512 + 64 elements of each token's cache, once
    graph = _graph("deepseek-v3-mla-decode-absorbed")
    cache = [tensor for tensor in graph.inputs() if "l" in graph.tensors[tensor].dims]
    assert sum(graph.elements(tensor) for tensor in cache) == 4096 * 576


@pytest.mark.parametrize("path", ["absorbed", "expanded"])
@pytest.mark.parametrize("cache", [1, 1000, 131072])
def test_latent_attention_at_any_cache_length(path: str, cache: int) -> None:
    graph = mmee_graphs.mla_decode(mmee_graphs.DEEPSEEK_V3, cache, path=path)
    assert graph_from_json(graph).dims["l"] == cache


def test_wrong_arguments() -> None:
    layer = mmee_graphs.DEEPSEEK_V3
    with pytest.raises(ValueError, match='no path "absorb"; expected one of absorbed, expanded'):
        mmee_graphs.mla_decode(layer, 4096, path="absorb")
    with pytest.raises(ValueError, match="a cache of 2 tokens; expected at least the 3 new ones"):
        mmee_graphs.mla_decode(layer, 2, tokens=3)
    with pytest.raises(ValueError, match="a cache of 0 tokens; expected at least the 1 new ones"):
        mmee_graphs.cached_block(mmee_graphs.LAYERS["gpt3-6.7b"], 0)


# Projections of DeepSeek-V3's latent attention for one token: queries down and up, latent and key down.
MLA_DOWN = 7168 * 1536 + 1536 * 128 * (128 + 64) + 7168 * (512 + 64)
MLA_OUT = 128 * 128 * 7168


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        # tokens x (four projections and two products of the FFN), and Q·Kᵀ and P·V
        ("gpt3-6.7b-block", 2048 * 12 * 4096**2 + 2 * 32 * 2048**2 * 128),
        ("gpt3-6.7b-layer-ffm", 2048 * 12 * 4096**2 + 2 * 32 * 2048**2 * 128),
        ("gpt3-6.7b-decode-block", 12 * 4096**2 + 2 * 32 * 2048 * 128),
        ("gpt3-6.7b-decode-2-layers", 2 * (12 * 4096**2 + 2 * 32 * 2048 * 128)),
        ("gpt3-6.7b-decode-4-layers", 4 * (12 * 4096**2 + 2 * 32 * 2048 * 128)),
        ("gpt3-6.7b-chunk-2-layers", 2 * 512 * (12 * 4096**2 + 2 * 32 * 2048 * 128)),
        ("gpt3-13b-block", 2048 * 12 * 5120**2 + 2 * 40 * 2048**2 * 128),
        ("gpt3-13b-decode-block", 12 * 5120**2 + 2 * 40 * 2048 * 128),
        ("bert-b-block", 512 * 12 * 768**2 + 2 * 12 * 512**2 * 64),
        ("bert-l-block", 512 * 12 * 1024**2 + 2 * 16 * 512**2 * 64),
        ("vit-b16-197-block", 197 * 12 * 768**2 + 2 * 12 * 197**2 * 64),
        # Q and output over all heads, K and V over the KV heads, three products of the FFN
        (
            "palm-62b-block",
            2048 * (2 * 8192**2 + 2 * 8192 * 256 + 3 * 8192 * 32768) + 2 * 32 * 2048**2 * 256,
        ),
        ("palm-62b-decode-block", 2 * 8192**2 + 2 * 8192 * 256 + 3 * 8192 * 32768 + 2 * 32 * 2048 * 256),
        (
            "llama3-8b-block",
            2048 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 32 * 2048**2 * 128,
        ),
        ("llama3-8b-decode-block", 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 32 * 2048 * 128),
        # the same attention, and two experts for every token
        (
            "mixtral-8x7b-block",
            2048 * (2 * 4096**2 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336) + 2 * 32 * 2048**2 * 128,
        ),
        (
            "mixtral-8x7b-decode-block",
            2 * 4096**2 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336 + 2 * 32 * 2048 * 128,
        ),
        ("mixtral-8x7b-experts", 2048 * 2 * 3 * 4096 * 14336),
        # expanded: 128 + 128 per head and cached token, then 192-wide scores, 128-wide values
        (
            "deepseek-v3-mla-prefill",
            4096 * (MLA_DOWN + MLA_OUT + 512 * 128 * (128 + 128)) + 128 * 4096**2 * (192 + 128),
        ),
        (
            "deepseek-v3-mla-decode-expanded",
            MLA_DOWN + MLA_OUT + 4096 * 512 * 128 * (128 + 128) + 128 * 4096 * (192 + 128),
        ),
        # absorbed: one token's expansions, then 576-wide scores, 512-wide values
        (
            "deepseek-v3-mla-decode-absorbed",
            MLA_DOWN + MLA_OUT + 512 * 128 * (128 + 128) + 128 * 4096 * (576 + 512),
        ),
        (
            "deepseek-v3-block",
            4096 * (MLA_DOWN + MLA_OUT + 512 * 128 * (128 + 128) + 3 * 7168 * 18432)
            + 128 * 4096**2 * (192 + 128),
        ),
        (
            "deepseek-v3-decode-block",
            MLA_DOWN + MLA_OUT + 512 * 128 * (128 + 128) + 128 * 4096 * (576 + 512) + 3 * 7168 * 18432,
        ),
        # inside the chunk, and with the state
        ("lightning-attention-chunk", 64 * (2 * 256**2 * 128 + 2 * 256 * 128**2)),
        # state and result, sum and denominator
        ("linear-attention", 12 * 4096 * (2 * 64**2 + 2 * 64)),
        ("gpt3-6.7b-ffn-low-rank", 2048 * 2 * 1024 * (4096 + 16384)),
        ("gpt3-6.7b-decode-ffn-low-rank-w4a16", 2 * 1024 * (4096 + 16384)),
    ],
)
def test_macs_counted_by_hand(name: str, macs: int) -> None:
    assert _macs(name) == macs


@pytest.mark.parametrize(
    ("name", "layers", "others", "published"),
    [
        # layers x the block's weights, and embeddings; GPT-3 paper, table D.1
        ("gpt3-6.7b-block", 32, (50257 + 2048) * 4096, 6.660e9),
        ("gpt3-6.7b-layer-ffm", 32, (50257 + 2048) * 4096, 6.660e9),
        ("gpt3-6.7b-decode-block", 32, (50257 + 2048) * 4096, 6.660e9),
        ("gpt3-6.7b-decode-4-layers", 32 / 4, (50257 + 2048) * 4096, 6.660e9),
        ("gpt3-13b-block", 40, (50257 + 2048) * 5120, 12.850e9),
        # PaLM, table 1; input and output embeddings are shared
        ("palm-62b-block", 64, 256000 * 8192, 62.50e9),
        ("palm-62b-decode-block", 64, 256000 * 8192, 62.50e9),
        # model card: 8.03 billion
        ("llama3-8b-block", 32, 2 * 128256 * 4096, 8.03e9),
        ("llama3-8b-decode-block-w4a16", 32, 2 * 128256 * 4096, 8.03e9),
        # Mixtral: 46.7 billion, of which a token uses 12.9
        ("mixtral-8x7b-block", 32, 2 * 32000 * 4096, 46.7e9),
        ("mixtral-8x7b-decode-block", 32, 2 * 32000 * 4096, 12.9e9),
        # biases and norms are left out here, 1 % of so small a model
        ("bert-b-block", 12, (30522 + 512 + 2) * 768, 110e6),
        ("bert-l-block", 24, (30522 + 512 + 2) * 1024, 340e6),
        ("vit-b16-197-block", 12, (16 * 16 * 3 + 197 + 1000) * 768, 86e6),
        # DeepSeek-V3: 671 billion; three dense layers, then 256 + 1 experts of 2048 and a router
        (
            "deepseek-v3-mla-prefill",
            61,
            3 * 3 * 7168 * 18432 + 58 * (257 * 3 * 2048 + 256) * 7168 + 2 * 129280 * 7168,
            671e9,
        ),
        (
            "deepseek-v3-decode-block",
            61,
            58 * (257 * 3 * 2048 + 256 - 3 * 18432) * 7168 + 2 * 129280 * 7168,
            671e9,
        ),
    ],
)
def test_weights_add_up_to_the_published_model(
    name: str, layers: float, others: int, published: float
) -> None:
    tolerance = 0.02 if published < 1e9 else 0.002
    assert layers * _weight_elements(name) + others == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        # weights once; X, Xkv, K, V and Y of 2048 x 4096 elements of 2 bytes
        ("gpt3-6.7b-block", 2 * (12 * 4096**2 + 5 * 2048 * 4096)),
        # X and Y, the cache of 2 x 2048 tokens and the new token's K and V
        ("gpt3-6.7b-decode-block", 2 * (12 * 4096**2 + 2 * 4096 + 2 * 2048 * 4096 + 2 * 4096)),
        ("gpt3-6.7b-layer-ffm", 2 * (12 * 4096**2 + 3 * 2048 * 4096)),
        # int4 weights: half a byte each
        (
            "llama3-8b-decode-block-w4a16",
            (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) // 2
            + 2 * (2 * 4096 + 2 * 2048 * 1024 + 2 * 1024),
        ),
        ("gpt3-6.7b-decode-ffn-low-rank-w4a16", 2 * 1024 * (4096 + 16384) // 2 + 2 * 2 * 4096),
        # Q, K, V and O in fp16, the state read and written in fp32, decays of a head
        ("lightning-attention-chunk", 64 * (4 * 256 * 128 * 2 + 2 * 128**2 * 4 + (2 * 256 + 1) * 2)),
    ],
)
def test_compulsory_traffic_counted_by_hand(name: str, size_bytes: int) -> None:
    assert _graph(name).compulsory_bytes() == size_bytes
