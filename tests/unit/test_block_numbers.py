"""Blocks compute what they are called: numbers of small ones against numpy, and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mmee_graphs
from mmee_solver.fold import fold
from mmee_solver.io import graph_from_json
from mmee_solver.numerics import plain

Array = NDArray[np.float64]
TOKENS = 5


def _run(document: dict[str, Any], given: dict[str, Array]) -> dict[str, Array]:
    return plain(fold(graph_from_json(document)), given)


def _inputs(document: dict[str, Any]) -> dict[str, Array]:
    """Random arrays for a graph's inputs, equal for tensors of one name and shape in any graph."""
    graph = graph_from_json(document)
    arrays = {}
    for tensor in graph.inputs():
        random = np.random.default_rng(list(tensor.encode()))
        arrays[tensor] = random.normal(size=tuple(graph.dims[dim] for dim in graph.tensors[tensor].dims))
    if "Xkv" in arrays:
        arrays["Xkv"] = arrays["X"]
    return arrays


def _layer(form: str = "pre", kv_heads: int | None = None, **more: Any) -> mmee_graphs.Layer:
    sizes: dict[str, Any] = {"tokens": TOKENS, "width": 8, "heads": 4, "hidden": 12, "source": "made up"}
    return mmee_graphs.Layer("small", **sizes, kv_heads=kv_heads, form=form, **more)


def _latent_layer() -> mmee_graphs.LatentLayer:
    return mmee_graphs.LatentLayer(
        "small",
        TOKENS,
        width=8,
        heads=3,
        hidden=12,
        source="made up",
        function="silu",
        gated=True,
        norm="rmsnorm",
        query_latent=6,
        latent=5,
        nope_dim=4,
        rope_dim=2,
        value_dim=7,
    )


def _layernorm(x: Array) -> Array:
    x = x - x.mean(-1, keepdims=True)
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))


def _softmax(x: Array) -> Array:
    powers = np.exp(x)
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@pytest.mark.parametrize("form", ["pre", "post", "parallel"])
def test_block_against_numpy(form: str) -> None:
    document = mmee_graphs.block(_layer(form, function="relu"), TOKENS)
    given = _inputs(document)

    def attend(x: Array) -> Array:
        q, k, v = (np.einsum("ie,ehk->hik", x, given[weight]) for weight in ("Wq", "Wk", "Wv"))
        heads = _softmax(q @ k.swapaxes(1, 2)) @ v
        return np.asarray(np.einsum("hij,hje->ie", heads, given["Wo"]))

    def feed(x: Array) -> Array:
        return np.asarray(np.maximum(x @ given["Wu"], 0) @ given["Wd"])

    x = given["X"]
    if form == "pre":
        middle = x + attend(_layernorm(x))
        expected = middle + feed(_layernorm(middle))
    elif form == "post":
        middle = _layernorm(x + attend(x))
        expected = _layernorm(middle + feed(middle))
    else:
        expected = x + attend(_layernorm(x)) + feed(_layernorm(x))
    np.testing.assert_allclose(_run(document, given)["Y"], expected)


@pytest.mark.parametrize("form", ["pre", "post", "parallel"])
@pytest.mark.parametrize("kv_heads", [None, 1, 2])
@pytest.mark.parametrize("gated", [False, True])
def test_a_full_cache_gives_what_prefill_gives(form: str, kv_heads: int | None, gated: bool) -> None:
    layer = _layer(form, kv_heads, gated=gated, rope=True)
    whole = mmee_graphs.block(layer, TOKENS, keep_cache=True)
    given = _inputs(whole)
    made = _run(whole, given)
    del given["Xkv"]
    given |= {"K": made["K"], "V": made["V"]}
    found = _run(mmee_graphs.cached_block(layer, TOKENS, tokens=TOKENS), given)
    for new, old in (("Y", "Y"), ("Knew", "K"), ("Vnew", "V")):
        np.testing.assert_allclose(found[new], made[old])


def test_latent_attention_gives_the_same_by_every_path() -> None:
    layer = _latent_layer()
    whole = mmee_graphs.mla_prefill(layer, TOKENS, whole=True)
    given = _inputs(whole)
    made = _run(whole, given)
    del given["Xkv"]
    given |= {"C": made["C"], "Kr": made["Kr"]}
    for path in ("absorbed", "expanded"):
        decode = mmee_graphs.mla_decode(layer, TOKENS, path=path, tokens=TOKENS, whole=True)
        found = _run(decode, given)
        for new, old in (("Y", "Y"), ("Cnew", "C"), ("Krnew", "Kr")):
            np.testing.assert_allclose(found[new], made[old])


def test_latent_scores_are_those_of_joined_vectors() -> None:
    layer = _latent_layer()
    document = mmee_graphs.mla_prefill(layer, TOKENS)
    made = plain(graph_from_json(document), _inputs(document))
    keys = np.concatenate([made["K"], np.broadcast_to(made["Kr"], (3, TOKENS, 2))], axis=2)
    queries = np.concatenate([made["Qn"], made["Qr"]], axis=2)
    np.testing.assert_allclose(made["S"], queries @ keys.swapaxes(1, 2))


def test_experts_add_up() -> None:
    layer = _layer(function="silu", gated=True, experts=4, active=2)
    document = mmee_graphs.cached_block(layer, TOKENS)
    given = _inputs(document)
    found = _run(document, given)
    one = _layernorm(found["R"])
    expected = found["R"].copy()
    for x in range(2):
        gate = one @ given["Wg"][x]
        hidden = gate / (1 + np.exp(-gate)) * (one @ given["Wu"][x])
        expected += given["C"][x, 0] * (hidden @ given["Wd"][x])
    np.testing.assert_allclose(found["Y"], expected)


def test_two_layers_are_one_after_the_other() -> None:
    block = mmee_graphs.cached_block(_layer(), TOKENS)
    pair = mmee_graphs.layers(block, 2)
    given = _inputs(pair)
    x = given["X_0"]
    for number in (1, 2):
        own = {tensor: given.get(f"{tensor}_{number}", x) for tensor in _inputs(block)}
        x = _run(block, {**own, "X": x})["Y"]
    np.testing.assert_allclose(_run(pair, given)["X_2"], x)


def test_lightning_chunks_carry_the_decay_on() -> None:
    heads, chunk, head_dim, count = 2, 4, 3, 3
    document = mmee_graphs.lightning_chunk(heads, chunk, head_dim)
    decay = np.array([0.9, 0.7])
    random = np.random.default_rng(7)
    q, k, v = (random.normal(size=(heads, count * chunk, head_dim)) for _ in range(3))
    places = np.arange(1, chunk + 1)
    given = {
        "Dq": decay[:, None] ** places,
        "Dk": decay[:, None] ** -places,
        "Db": decay**chunk,
        "State": np.zeros((heads, head_dim, head_dim)),
    }
    for number in range(count):
        now = slice(number * chunk, (number + 1) * chunk)
        found = _run(document, {**given, "Q": q[:, now], "K": k[:, now], "V": v[:, now]})
        given["State"] = found["NewState"]
        # Masks are left out, so a token sees all of its chunk, and all before.
        i, keys = np.arange(count * chunk)[now], np.arange(now.stop)
        scores = q[:, now] @ k[:, : now.stop].swapaxes(1, 2)
        scores *= decay[:, None, None] ** (i[:, None] - keys)
        np.testing.assert_allclose(found["O"], scores @ v[:, : now.stop])


def test_linear_attention_sums_before_it_multiplies() -> None:
    document = mmee_graphs.linear_attention(2, TOKENS, 3)
    given = _inputs(document)
    made = plain(graph_from_json(document), given)
    q, k = (np.maximum(given[tensor], 0) for tensor in ("Q", "K"))
    scores = q @ k.swapaxes(1, 2)
    np.testing.assert_allclose(made["Num"], scores @ given["V"])
    np.testing.assert_allclose(made["Den"], scores.sum(-1))


def test_low_rank_weights_are_products() -> None:
    document = mmee_graphs.low_rank_ffn(TOKENS, 8, 12, 3, function="relu")
    given = _inputs(document)
    up, down = given["Au"] @ given["Bu"], given["Ad"] @ given["Bd"]
    np.testing.assert_allclose(_run(document, given)["Y"], np.maximum(given["X"] @ up, 0) @ down)
