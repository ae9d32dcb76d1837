"""The accelerator presets: every key there, every figure with its source, figures equal their sources."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest
import yaml

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector

PRESETS = (
    "accel1",
    "accel2",
    "ascend-910-like",
    "eyeriss-normalised",
    "tileflow-cloud",
    "tileflow-edge",
    "tpuv4i-like",
)
SECTIONS = {
    "dram": {"bandwidth_bytes_per_s", "read_pj_per_byte", "write_pj_per_byte"},
    "buffer": {
        "capacity_bytes",
        "bandwidth_bytes_per_cycle",
        "read_pj_per_byte",
        "write_pj_per_byte",
        "double_buffered",
    },
    "array": {"count", "shapes", "stationarity", "pipeline", "mac_pj", "register_pj_per_mac"},
    "vector": {"lanes", "pj_per_op", "rescale"},
}


def _preset_text(name: str) -> str:
    return (files("mmee_solver") / "accelerators" / f"{name}.yaml").read_text("utf-8")


def _preset(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(_preset_text(name))
    return document


def test_the_presets_are_those_asked_for() -> None:
    folder = files("mmee_solver") / "accelerators"
    found = sorted(item.name for item in folder.iterdir() if item.name.endswith(".yaml"))
    assert found == [f"{name}.yaml" for name in PRESETS]


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_every_key_and_legal_values(name: str) -> None:
    preset = _preset(name)
    assert set(preset) == {"format", "name", "source", "clock_hz", *SECTIONS}
    assert (preset["format"], preset["name"]) == ("mmee-accel/1", name)
    assert {section: set(preset[section]) for section in SECTIONS} == SECTIONS
    array = dict(preset["array"])
    shapes = tuple((rows, cols) for rows, cols in array.pop("shapes"))
    stationarity = tuple(array.pop("stationarity"))
    Accelerator(
        name=name,
        clock_hz=preset["clock_hz"],
        dram=Dram(**preset["dram"]),
        buffer=Buffer(**preset["buffer"]),
        array=Array(**array, shapes=shapes, stationarity=stationarity),
        vector=Vector(**preset["vector"]),
        source=preset["source"],
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_figure_of_a_preset_has_its_source_beside_it(name: str) -> None:
    text = _preset_text(name)
    for line in text.splitlines():
        key, _, value = line.strip().partition(":")
        if key == "clock_hz" or any(key in keys for keys in SECTIONS.values()):
            assert " # " in value, line
    tokens = (yaml.tokens.AnchorToken, yaml.tokens.AliasToken)
    assert not any(isinstance(token, tokens) for token in yaml.scan(text))


@pytest.mark.parametrize(
    ("name", "section", "key", "figure"),
    [
        # MMEE paper, second-hand: 1 MB / 4 MB, 60 / 128 GB/s; LPDDR4 8 pJ/bit
        ("accel1", "buffer", "capacity_bytes", 1024**2),
        ("accel1", "dram", "bandwidth_bytes_per_s", 60 * 10**9),
        ("accel1", "dram", "read_pj_per_byte", 8 * 8),
        ("accel1", "array", "shapes", [[32, 32]]),
        ("accel2", "buffer", "capacity_bytes", 4 * 1024**2),
        ("accel2", "dram", "bandwidth_bytes_per_s", 128 * 10**9),
        ("accel2", "array", "count", 4),
        # TileFlow case 13: 4 words of 2 bytes per cycle; 4 x 64 KB, 16 x 2 MB, 64 words/cycle each
        ("tileflow-edge", "dram", "bandwidth_bytes_per_s", 4 * 2 * 10**9),
        ("tileflow-edge", "buffer", "capacity_bytes", 4 * 64 * 1024),
        ("tileflow-edge", "buffer", "bandwidth_bytes_per_cycle", 4 * 64 * 2),
        ("tileflow-cloud", "dram", "bandwidth_bytes_per_s", 4 * 2 * 10**9),
        ("tileflow-cloud", "buffer", "capacity_bytes", 16 * 2 * 1024**2),
        ("tileflow-cloud", "buffer", "bandwidth_bytes_per_cycle", 16 * 64 * 2),
        ("tileflow-cloud", "buffer", "read_pj_per_byte", 0.203 * 8),
        ("tileflow-cloud", "buffer", "write_pj_per_byte", 0.185 * 8),
        # accelforge tpu_v4i.yaml: pJ/bit x 8
        ("tpuv4i-like", "dram", "read_pj_per_byte", 7.03 * 8),
        ("tpuv4i-like", "dram", "bandwidth_bytes_per_s", 614 * 10**9),
        ("tpuv4i-like", "buffer", "capacity_bytes", 128 * 1024**2),
        ("tpuv4i-like", "buffer", "read_pj_per_byte", 1.88 * 8),
        ("tpuv4i-like", "buffer", "write_pj_per_byte", 2.36 * 8),
        ("tpuv4i-like", "array", "mac_pj", 0.084),
        ("tpuv4i-like", "array", "shapes", [[128, 128]]),
        # pat.cpp: per 16 bit, so half of it per byte
        ("eyeriss-normalised", "dram", "read_pj_per_byte", 200 / 2),
        ("eyeriss-normalised", "buffer", "read_pj_per_byte", 6 / 2),
        ("eyeriss-normalised", "buffer", "capacity_bytes", 100 * 1024),
        ("eyeriss-normalised", "array", "mac_pj", 1),
        # public articles; zigzag ascend_like.yaml; HBM2 3.9 pJ/bit
        ("ascend-910-like", "dram", "bandwidth_bytes_per_s", 1200 * 10**9),
        ("ascend-910-like", "dram", "write_pj_per_byte", 3.9 * 8),
        ("ascend-910-like", "buffer", "capacity_bytes", 32 * 1024**2),
        ("ascend-910-like", "buffer", "read_pj_per_byte", 0.114 * 8),
        ("ascend-910-like", "buffer", "write_pj_per_byte", 0.202 * 8),
    ],
)
def test_figures_equal_their_sources(name: str, section: str, key: str, figure: Any) -> None:
    value = _preset(name)[section][key]
    assert value == (pytest.approx(figure, rel=1e-12) if isinstance(figure, float) else figure)


@pytest.mark.parametrize(
    ("name", "macs_per_cycle"),
    [
        ("accel1", 4 * 32 * 32),
        ("tileflow-edge", 32 * 32),
        ("tileflow-cloud", 64 * 64),
        ("tpuv4i-like", 4 * 128 * 128),
        ("eyeriss-normalised", 168),
        ("ascend-910-like", 32 * 16**3),
    ],
)
def test_pes_in_all(name: str, macs_per_cycle: int) -> None:
    array = _preset(name)["array"]
    ((rows, cols),) = array["shapes"]
    assert array["count"] * rows * cols == macs_per_cycle
