"""The workload zoo: what it lists, files equal builders, parts of layers counted by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from math import prod
from typing import TYPE_CHECKING, Any

import pytest

import mmee_graphs
from mmee_graphs.files import to_json, write_zoo
from mmee_solver.fold import fold
from mmee_solver.io import graph_from_json

if TYPE_CHECKING:
    from pathlib import Path

    from mmee_solver.workload import Graph

NAMES = mmee_graphs.names()
GATED = ("palm-62b", "llama3-8b")
GPT = "q k v qk pv out up down"
SWIGLU = "q k v qk pv out gate up down"
MLA = "dq uq qr dkv kr"
EXPANDED = "uk uv scores_rope scores pv out"
ABSORBED = "uk scores_rope scores pv uv out"
# Entries that are more than a part of a layer, and the einsums that folding must leave of each.
WHOLE = {
    "gpt3-6.7b-block": GPT,
    "gpt3-6.7b-decode-block": GPT,
    "gpt3-6.7b-layer-ffm": "v k q qk pv out up down",
    "gpt3-6.7b-decode-2-layers": " ".join(f"{op}_{n}" for n in (1, 2) for op in GPT.split()),
    "gpt3-6.7b-decode-4-layers": " ".join(f"{op}_{n}" for n in (1, 2, 3, 4) for op in GPT.split()),
    "gpt3-6.7b-chunk-2-layers": " ".join(f"{op}_{n}" for n in (1, 2) for op in GPT.split()),
    "gpt3-6.7b-ffn-low-rank": "up_a up_b down_a down_b",
    "gpt3-6.7b-decode-ffn-low-rank-w4a16": "up_a up_b down_a down_b",
    "gpt3-13b-block": GPT,
    "gpt3-13b-decode-block": GPT,
    "bert-b-block": GPT,
    "bert-l-block": GPT,
    "vit-b16-197-block": GPT,
    "palm-62b-block": SWIGLU,
    "palm-62b-decode-block": SWIGLU,
    "llama3-8b-block": SWIGLU,
    "llama3-8b-decode-block": SWIGLU,
    "llama3-8b-block-w4a16": SWIGLU,
    "llama3-8b-decode-block-w4a16": SWIGLU,
    "mixtral-8x7b-block": SWIGLU,
    "mixtral-8x7b-decode-block": SWIGLU,
    "mixtral-8x7b-experts": "gate up down",
    "deepseek-v3-mla-prefill": f"{MLA} {EXPANDED}",
    "deepseek-v3-mla-decode-absorbed": f"{MLA} {ABSORBED}",
    "deepseek-v3-mla-decode-expanded": f"{MLA} {EXPANDED}",
    "deepseek-v3-block": f"{MLA} {EXPANDED} gate up down",
    "deepseek-v3-decode-block": f"{MLA} {ABSORBED} gate up down",
    "lightning-attention-chunk": "qk intra inter update",
    "linear-attention": "state sum denominator numerator",
}
PARTS = [name for name in NAMES if name not in WHOLE]


def _macs(graph: Graph) -> int:
    return sum(prod(graph.dims[dim] for dim in graph.op_dims(op)) for op in graph.ops if op.kind == "einsum")


def _einsums(name: str) -> int:
    """Einsums that a part of a layer must have, told from its name alone."""
    if name.startswith("matmul-"):
        return 1
    return 3 if name.endswith("-ffn") and name.startswith(GATED) else 2


def test_the_zoo_lists_what_was_asked_for() -> None:
    layers = ["gpt3-6.7b", "gpt3-13b", "palm-62b", "llama3-8b", "bert-s", "bert-b", "bert-l"]
    layers += [f"vit-{size}{patch}" for size in "blh" for patch in ("14", "16", "16-197")]
    expected = {f"{layer}-{block}" for layer in layers for block in ("attention", "ffn")}
    expected |= {"gpt3-6.7b-decode-attention", "gpt3-6.7b-decode-ffn", "palm-62b-decode-attention"}
    expected |= {"llama3-8b-decode-attention", "llama3-8b-decode-ffn", "cross-attention"}
    expected |= {"attention-head", "attention-head-softmax", "recompute-pair"}
    expected |= {"matmul-64", "matmul-1024", "matmul-16384-1024-1024", "matmul-61-67-71"}
    expected |= set(WHOLE)
    assert set(NAMES) == expected
    assert len(NAMES) == len(expected)


@pytest.mark.parametrize("name", NAMES)
def test_file_equals_builder(name: str) -> None:
    document = mmee_graphs.build(name)
    text = mmee_graphs.path(name).read_text("utf-8")
    assert json.loads(text) == document
    assert text == to_json(document), "run python -m mmee_graphs"


def test_no_file_without_an_entry() -> None:
    found = {item.name for item in files("mmee_graphs").iterdir() if item.name.endswith(".json")}
    assert found == {f"{name}.json" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_entry_is_a_legal_graph_with_a_source(name: str) -> None:
    graph = graph_from_json(mmee_graphs.build(name))
    assert graph.name == name
    assert len(graph.source) > 10
    assert "\n" not in mmee_graphs.describe(name)


@pytest.mark.parametrize("name", PARTS)
def test_folding_leaves_only_einsums(name: str) -> None:
    folded = fold(graph_from_json(mmee_graphs.build(name)))
    assert [op.kind for op in folded.ops] == ["einsum"] * _einsums(name)
    assert not any(op.prologue for op in folded.ops)


@pytest.mark.parametrize("name", WHOLE)
def test_folding_leaves_the_einsums_of_whole_blocks(name: str) -> None:
    folded = fold(graph_from_json(mmee_graphs.build(name)))
    assert [op.name for op in folded.ops] == WHOLE[name].split()
    assert {op.kind for op in folded.ops} == {"einsum"}


@pytest.mark.parametrize("name", NAMES)
def test_description_names_every_size(name: str) -> None:
    dims = mmee_graphs.build(name)["dims"]
    heads = {dims["g"], dims["g"] * dims["r"]} if "g" in dims else set()
    sizes = heads | {size for dim, size in dims.items() if dim not in ("g", "r")}
    words = mmee_graphs.describe(name).replace(",", "").split()
    assert {str(size) for size in sizes} <= set(words)


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        # Q·Kᵀ and P·V: 2 x heads x queries x keys x head dim
        ("gpt3-6.7b-attention", 2 * 32 * 2048 * 2048 * 128),
        ("gpt3-13b-attention", 2 * 40 * 2048 * 2048 * 128),
        ("palm-62b-attention", 2 * 32 * 2048 * 2048 * 256),
        ("llama3-8b-attention", 2 * 32 * 2048 * 2048 * 128),
        ("vit-h14-attention", 2 * 16 * 256 * 256 * 80),
        ("vit-b16-197-attention", 2 * 12 * 197 * 197 * 64),
        ("cross-attention", 2 * 12 * 448 * 1500 * 64),
        ("palm-62b-decode-attention", 2 * 32 * 1 * 2048 * 256),
        ("attention-head", 2 * 2048 * 2048 * 128),
        # TileFlow's ideal 262144 cycles on its edge machine of 32 x 32 PEs
        ("bert-s-attention", 262144 * 32 * 32),
        # up and down; gate, up and down
        ("gpt3-6.7b-ffn", 2 * 2048 * 4096 * 16384),
        ("bert-l-ffn", 2 * 512 * 1024 * 4096),
        ("llama3-8b-ffn", 3 * 2048 * 4096 * 14336),
        ("palm-62b-ffn", 3 * 2048 * 8192 * 32768),
        ("gpt3-6.7b-decode-ffn", 2 * 1 * 4096 * 16384),
        ("matmul-61-67-71", 290_177),
        ("recompute-pair", 64 * 1 * 256 + 64 * 256 * 256),
    ],
)
def test_macs_counted_by_hand(name: str, macs: int) -> None:
    assert _macs(graph_from_json(mmee_graphs.build(name))) == macs


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        # Q and O of all heads, K and V of the KV heads
        ("gpt3-6.7b-attention", 4 * 32 * 2048 * 128),
        ("palm-62b-attention", (2 * 32 + 2 * 1) * 2048 * 256),
        ("llama3-8b-attention", (2 * 32 + 2 * 8) * 2048 * 128),
        ("llama3-8b-decode-attention", 2 * 32 * 128 + 2 * 8 * 2048 * 128),
        # X and Y, and two or three weights
        ("gpt3-6.7b-ffn", 2 * 2048 * 4096 + 2 * 4096 * 16384),
        ("llama3-8b-decode-ffn", 2 * 1 * 4096 + 3 * 4096 * 14336),
    ],
)
def test_compulsory_traffic_counted_by_hand(name: str, elements: int) -> None:
    bytes_per_element = 2
    graph = graph_from_json(mmee_graphs.build(name))
    assert graph.compulsory_bytes() == bytes_per_element * elements


def test_heads_choose_the_dims() -> None:
    def dims(heads: int, kv_heads: int | None = None) -> tuple[list[str], list[str]]:
        tensors = mmee_graphs.attention(heads, 4, 6, 2, kv_heads=kv_heads)["tensors"]
        return tensors["Q"]["dims"], tensors["K"]["dims"]

    assert dims(1) == (["i", "k"], ["l", "k"])
    assert dims(8) == (["h", "i", "k"], ["h", "l", "k"])
    assert dims(8, 8) == dims(8)
    assert dims(8, 1) == (["h", "i", "k"], ["l", "k"])
    assert dims(8, 2) == (["g", "r", "i", "k"], ["g", "l", "k"])


@pytest.mark.parametrize("kv_heads", [0, 3, 16])
def test_kv_heads_must_divide_heads(kv_heads: int) -> None:
    with pytest.raises(ValueError, match=f"{kv_heads} KV heads for 8 heads; expected a divisor"):
        mmee_graphs.attention(8, 4, 4, 2, kv_heads=kv_heads)


def test_gate_folds_into_the_up_projection() -> None:
    folded = fold(graph_from_json(mmee_graphs.build("llama3-8b-ffn")))
    gate, up, down = folded.ops
    assert [(step.kind, step.function) for step in gate.epilogue] == [("elementwise", "silu")]
    assert [(step.function, step.inputs) for step in up.epilogue] == [("mul", (gate.output,))]
    assert down.inputs == (up.output, "Wd")


def test_softmax_runs_over_the_keys() -> None:
    folded = fold(graph_from_json(mmee_graphs.build("attention-head-softmax")))
    assert folded.ops[0].epilogue[0].axis == "l"
    assert folded.ops[1].inputs == ("P", "V")
    plain = mmee_graphs.build("attention-head")
    assert [op["kind"] for op in plain["ops"]] == ["einsum", "einsum"]
    assert list(plain["dims"]) == ["i", "l", "k", "j"]


def test_builds_do_not_share_state() -> None:
    mmee_graphs.build("matmul-64")["tensors"]["A"]["dims"].append("x")
    assert mmee_graphs.build("matmul-64")["tensors"]["A"]["dims"] == ["m", "k"]


@pytest.mark.parametrize("ask", [mmee_graphs.build, mmee_graphs.describe, mmee_graphs.path])
def test_unknown_name(ask: Any) -> None:
    with pytest.raises(LookupError, match=r'no graph named "bert-b-atention".*"bert-b-attention"'):
        ask("bert-b-atention")


def test_writing_leaves_the_graphs_and_nothing_else(tmp_path: Path) -> None:
    stale = tmp_path / "matmul-64.json"
    stale.write_text("{", encoding="ascii")
    written = write_zoo(tmp_path)
    assert [file.name for file in written] == [f"{name}.json" for name in NAMES]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    assert stale.read_text("ascii") == to_json(mmee_graphs.build("matmul-64"))


def test_module_writes_where_it_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mmee_graphs"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(NAMES)} graphs written to {tmp_path}\n"
    nowhere = tmp_path / "nowhere"
    refused = subprocess.run([*command, str(nowhere)], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "is no folder" in refused.stderr


def test_import_is_cheap() -> None:
    heavy = "{'numpy', 'networkx', 'yaml', 'ortools'} & set(sys.modules)"
    program = f"import sys, mmee_graphs; print(sorted({heavy}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
