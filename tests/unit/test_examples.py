"""The examples run, on small sizes, and print what they promise."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.is_dir(), reason="examples come with a clone only")


def _run(
    name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    script = EXAMPLES / name
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")
    return capsys.readouterr().out


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'"(\d\d_\w+\.py)"', Path(__file__).read_text(encoding="utf-8")))
    assert tested == {script.name for script in EXAMPLES.glob("*.py")}


def test_attention(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = _run("01_attention.py", ["matmul-64", "accel1"], monkeypatch, capsys)
    assert out.startswith("matmul-64 on accel1 · least energy · proved optimal")
    assert out.endswith("\n24576 bytes moved in 410 cycles\n")


def test_buffer_sizes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = _run("02_buffer_sizes.py", ["recompute-pair", "600", "1MiB"], monkeypatch, capsys)
    small, large = out.splitlines()[-2:]
    assert small.startswith("     600 B    208.0 kB     1.11 MB    5.36×")
    assert large.startswith("     1 MiB    164.5 kB")


def test_own_graph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = _run("03_own_graph.py", ["8KiB"], monkeypatch, capsys)
    moved = [int(count) for count in re.findall(r"tile sizes: (\d+) bytes moved", out)]
    assert len(moved) == 2
    assert moved[1] <= moved[0]
    assert "two-layers on accel1 with 8KiB · least DRAM traffic · proved optimal" in out


def test_mla_decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = _run("04_mla_decode.py", ["tileflow-cloud", "energy", "64"], monkeypatch, capsys)
    cache, *figures = re.split(r" {2,}", out.splitlines()[-1].strip())
    assert cache == "64"
    assert [re.sub(r"[\d.]+", "", figure).strip() for figure in figures[:2]] == ["MB", "MB"]
    ratios = [float(figure.removesuffix("×")) for figure in figures[2::3]]
    # expansion for every head is work that the absorbed path does not have
    assert len(ratios) == 3
    assert all(ratio >= 1 for ratio in ratios)


def test_chains(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = _run("05_chains.py", ["2", "4"], monkeypatch, capsys)
    rows = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    assert rows[0] == [
        "products",
        "ops",
        "traffic",
        "compulsory",
        "groups",
        "resident",
        "solved in",
        "per op",
    ]
    # X_0 and the last X are 2048 · 128 elements each, a weight 128 · 128
    assert [row[:4] for row in rows[1:]] == [
        ["2", "2", "1.11 MB", "1.11 MB"],
        ["4", "4", "1.18 MB", "1.18 MB"],
    ]
