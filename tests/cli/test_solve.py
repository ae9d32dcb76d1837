"""``mmee-solve`` as a user meets it: every option, every exit code, every kind of message."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

import mmee_graphs
import mmee_solver
from mmee_cli import progress
from mmee_cli.solve import main
from mmee_solver.errors import InfeasibleError
from mmee_solver.io import accelerator_names, schema

GRAPH: dict[str, Any] = {
    "format": "mmee-graph/1",
    "name": "small",
    "dims": {"i": 12, "l": 10, "k": 4, "j": 4},
    "tensors": {
        "Q": {"dims": ["i", "k"]},
        "K": {"dims": ["l", "k"]},
        "S": {"dims": ["i", "l"]},
        "P": {"dims": ["i", "l"]},
        "V": {"dims": ["l", "j"]},
        "O": {"dims": ["i", "j"]},
    },
    "ops": [
        {"name": "qk", "kind": "einsum", "inputs": ["Q", "K"], "output": "S"},
        {"name": "softmax", "kind": "softmax", "axis": "l", "inputs": ["S"], "output": "P"},
        {"name": "pv", "kind": "einsum", "inputs": ["P", "V"], "output": "O"},
    ],
}
ACCELERATOR = """\
format: mmee-accel/1
name: little
clock_hz: 1e9
dram: {bandwidth_bytes_per_s: 1e9, read_pj_per_byte: 64, write_pj_per_byte: 64}
buffer: {capacity_bytes: 256, read_pj_per_byte: 2, write_pj_per_byte: 2}
array: {count: 1, shapes: [[4, 4]], mac_pj: 0.3, register_pj_per_mac: 0.5}
vector: {lanes: 4, pj_per_op: 0.4}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, with a graph and an accelerator, to run in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH))
    (tmp_path / "accel.yaml").write_text(ACCELERATOR)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def solve(*options: str) -> dict[str, Any]:
    """The mapping of the small graph, as JSON."""
    result = run("graph.json", "accel.yaml", "--json", *options)
    assert (result.exit_code, result.stderr) == (0, "")
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def loops(nest: list[dict[str, Any]]) -> list[tuple[str, int]]:
    found = []
    for item in nest:
        if "loop" in item:
            found += [(item["loop"], item["tile"]), *loops(item["body"])]
    return found


def test_page() -> None:
    result = run("graph.json", "accel.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"small on little · least energy · proved optimal · \d+(\.\d+)? s", lines[0])
    assert max(map(len, lines)) <= 80
    assert "qk+softmax → pv" in result.stdout
    assert "\x1b" not in result.stdout


def test_names_of_zoo_and_presets() -> None:
    result = run("matmul-64", "accel1")
    assert result.exit_code == 0
    assert result.stdout.startswith("matmul-64 on accel1 · ")


def test_json_is_what_the_schema_says() -> None:
    data = solve()
    jsonschema.validate(data, schema("mapping"))
    assert (data["status"], data["objective"], data["gap"]) == ("optimal", "energy", 0.0)
    assert data["value"] == data["bound"] == data["metrics"]["energy_pj"]["total"]


def test_equal_inputs_give_equal_bytes() -> None:
    first, second = (run("graph.json", "accel.yaml", "--json").stdout_bytes for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("objective", "figure"),
    [("dram", "dram_bytes"), ("latency", "latency_cycles"), ("energy", None), ("edp", None)],
)
def test_objective(objective: str, figure: str | None) -> None:
    data = solve("--objective", objective)
    metrics = data["metrics"]
    expected = {
        "energy": metrics["energy_pj"]["total"],
        "edp": metrics["energy_pj"]["total"] * metrics["latency_cycles"],
    }
    assert data["value"] == pytest.approx(metrics[figure] if figure else expected[objective])


def test_tiles_that_divide() -> None:
    sizes = GRAPH["dims"]
    data = solve("--tiles", "divisors")
    assert all(sizes[dim] % tile == 0 for group in data["groups"] for dim, tile in loops(group["nest"]))
    assert data["value"] >= solve("--tiles", "integer")["value"]


def test_buffer_overrides_the_capacity() -> None:
    data = solve("--buffer", "0.125KiB")
    assert data["accelerator"]["buffer"]["capacity_bytes"] == 128
    assert data["metrics"]["peak_buffer_bytes"] <= 128
    result = run("graph.json", "accel.yaml", "--buffer", "128")
    assert result.stdout.startswith("small on little with 128 B · ")


def test_fusion() -> None:
    groups = {kind: len(solve("--fusion", kind)["groups"]) for kind in ("none", "auto", "all")}
    assert groups["none"] == 2
    assert groups["all"] == 1
    value = {kind: solve("--fusion", kind)["value"] for kind in ("none", "auto", "all")}
    assert value["auto"] <= min(value["none"], value["all"])


def test_no_recompute() -> None:
    options = ("recompute-pair", "accel1", "--buffer", "600", "--objective", "dram", "--json")
    free, strict = (json.loads(run(*options, *more).stdout) for more in ((), ("--no-recompute",)))
    assert (free["options"]["recompute"], strict["options"]["recompute"]) == (True, False)
    assert free["value"] < strict["value"]


def test_output_writes_the_file_and_prints_the_page(folder: Path) -> None:
    result = run("graph.json", "accel.yaml", "-o", "mapping.json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("\n\nmapping.json written\n")
    assert result.stdout.startswith("small on little")
    jsonschema.validate(json.loads((folder / "mapping.json").read_text("utf-8")), schema("mapping"))
    assert sorted(entry.name for entry in folder.iterdir()) == ["accel.yaml", "graph.json", "mapping.json"]


def test_output_dash_streams_to_stdout(folder: Path) -> None:
    result = run("graph.json", "accel.yaml", "-o", "-")
    assert json.loads(result.stdout)["format"] == "mmee-mapping/1"
    assert not (folder / "-").exists()


def test_json_and_output_together(folder: Path) -> None:
    result = run("graph.json", "accel.yaml", "--json", "-o", "mapping.json")
    assert result.stdout_bytes == (folder / "mapping.json").read_bytes()


def test_quiet(folder: Path) -> None:
    result = run("graph.json", "accel.yaml", "-q", "-o", "mapping.json")
    assert (result.exit_code, result.output) == (0, "")
    assert (folder / "mapping.json").exists()


@pytest.mark.parametrize("which", ["graph", "accel", "mapping"])
def test_schema(which: str) -> None:
    result = run("--schema", which)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document == json.loads(json.dumps(schema(which)))
    jsonschema.Draft202012Validator.check_schema(document)


def test_list_names_everything() -> None:
    result = run("--list")
    assert result.exit_code == 0
    found = {line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ")}
    assert found == {*mmee_graphs.names(), *accelerator_names()}


def test_version() -> None:
    assert run("--version").stdout == f"mmee-solve {mmee_solver.__version__}\n"


def test_help_mentions_every_option_and_exit_code() -> None:
    text = run("--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    for word in ("--objective", "--tiles", "--buffer", "--fusion", "--no-recompute", "--output", "--json"):
        assert word in text
    for word in ("--list", "--schema", "--quiet", "--version", "Examples:", "2  bad input", "3  infeasible"):
        assert word in text


def _with(change: Callable[[dict[str, Any]], None]) -> str:
    document = copy.deepcopy(GRAPH)
    change(document)
    return json.dumps(document)


BAD_GRAPHS = {
    "an unknown tensor": (
        _with(lambda g: g["ops"][1].update(inputs=["s"])),
        'graph.json: ops[1].inputs[0]: no tensor named "s"',
    ),
    "an unknown tensor, nearly right": (
        _with(lambda g: g["tensors"].update(Sum={"dims": ["i", "l"]}) or g["ops"][1].update(inputs=["Sun"])),
        'graph.json: ops[1].inputs[0]: no tensor named "Sun" — did you mean "Sum"?',
    ),
    "a cycle": (
        _with(lambda g: g["ops"][0].update(inputs=["Q", "P"])),
        "graph.json: ops: a cycle runs through qk, softmax, pv; expected a DAG",
    ),
    "a size of 0": (_with(lambda g: g["dims"].update(k=0)), "graph.json: dims.k: size 0; "),
    "a size of 10^12": (_with(lambda g: g["dims"].update(k=10**12)), f"graph.json: dims.k: size {10**12} "),
    "no ops": (_with(lambda g: g.update(ops=[])), "graph.json: ops: "),
    "an empty document": ("{}", 'graph.json: missing key "format"; expected '),
    "an empty file": ("", "graph.json: line 1, column 1: no valid JSON: "),
    "broken JSON": ('{"format": ', "graph.json: line 1, column 12: no valid JSON: "),
    "another format": (_with(lambda g: g.update(format="x")), 'graph.json: format: "x"; expected '),
}


@pytest.mark.parametrize("what", BAD_GRAPHS)
def test_bad_graph(what: str, folder: Path) -> None:
    text, message = BAD_GRAPHS[what]
    (folder / "graph.json").write_text(text)
    result = run("graph.json", "accel.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            "capacity_bytes",
            "capcity_bytes",
            'accel.yaml: buffer: unknown key "capcity_bytes" — did you mean "capacity_bytes"?\n',
        ),
        ("lanes: 4", "lanes: four", "accel.yaml: vector.lanes: "),
        ("{lanes", "[lanes", "accel.yaml: line 7, column "),
        ("clock_hz: 1e9", "clock_hz: -1", "accel.yaml: clock_hz: "),
    ],
)
def test_bad_accelerator(before: str, after: str, message: str, folder: Path) -> None:
    (folder / "accel.yaml").write_text(ACCELERATOR.replace(before, after))
    result = run("graph.json", "accel.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.json", "accel1"), "nowhere.json: no such file, and no graph of that name"),
        (("matmul-64", "acel1"), 'did you mean "accel1"?'),
        (("accel1", "matmul-64"), "the graph comes first, then the accelerator"),
        ((".", "accel1"), ".: cannot be read: Is a directory"),
        (("matmul-64",), "Missing argument 'ACCEL'"),
        (("matmul-64", "accel1", "--objective", "speed"), "'speed' is not one of"),
        (("matmul-64", "accel1", "--buffer", "12 parsecs"), 'unknown unit "parsecs"'),
        (("matmul-64", "accel1", "--buffer", "-1"), '"-1" is no size'),
        (("matmul-64", "accel1", "--buffer", "0"), '"0" is no whole, positive number'),
        (("matmul-64", "accel1", "--buffer", "999999999GiB"), "--buffer: 1073741822926258176; "),
        (("matmul-64", "accel1", "-o", "."), ".: cannot be written: it is a folder"),
        (("matmul-64", "accel1", "-o", "no/m.json"), "no/m.json: cannot be written: there is no such folder"),
        (("matmul-64", "accel1", "--schema", "page"), "'page' is not one of"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_failed_write_does_not_lose_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "mapping.json")

    monkeypatch.setattr("os.replace", refuse)
    result = run("graph.json", "accel.yaml", "-o", "mapping.json")
    assert result.exit_code == 2
    assert result.stderr == "mapping.json: cannot be written: Permission denied\n"
    assert result.stdout.startswith("small on little")
    assert "written" not in result.stdout.splitlines()[-1]


def test_buffer_too_small_for_any_tile(folder: Path) -> None:
    (folder / "accel.yaml").write_text(ACCELERATOR.replace("256", "4"))
    result = run("graph.json", "accel.yaml")
    assert (result.exit_code, result.stdout) == (3, "")
    pattern = (
        r"accel\.yaml: buffer\.capacity_bytes 4 is too small: (qk|pv) needs at least 6 bytes( \(.*\))?\n"
    )
    assert re.fullmatch(pattern, result.stderr)
    result = run("graph.json", "accel.yaml", "--buffer", "5")
    assert result.exit_code == 3
    assert result.stderr.startswith("--buffer 5 is too small: ")
    assert run("graph.json", "accel.yaml", "--buffer", "6").exit_code == 0


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 4, "interrupted\n"),
        (MemoryError(), 4, "out of memory; try --tiles divisors, or a smaller graph\n"),
        (
            InfeasibleError("pv", 6, 4, "1 element each of P, V and O"),
            3,
            "accel.yaml: buffer.capacity_bytes 4",
        ),
        (OSError(5, "Input/output error", "disk"), 2, "disk: Input/output error\n"),
    ],
)
def test_what_ends_a_solve(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(mmee_solver, "solve", fail)
    result = run("graph.json", "accel.yaml", "-o", "mapping.json")
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith(message)
    assert not Path("mapping.json").exists()


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(mmee_solver, "solve", fail)
    with pytest.raises(AssertionError, match="a bug"):
        run("graph.json", "accel.yaml")


def _python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, encoding="utf-8", **options)


def test_as_a_module() -> None:
    done = _python("-m", "mmee_cli", "graph.json", "accel.yaml", "-o", "mapping.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nmapping.json written\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_ctrl_c_is_still_heard_after_cp_sat_ran() -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "from mmee_solver import load_accelerator, load_graph, solve\n"
        "solve(load_graph('matmul-64'), load_accelerator('accel1'))\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(10)\n"
        "except KeyboardInterrupt:\n"
        "    print('heard')\n"
    )
    done = _python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n", "")


def test_help_loads_no_solver() -> None:
    code = (
        "import sys\n"
        "from mmee_cli.solve import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'ortools', 'numpy', 'networkx', 'yaml', 'msgspec', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = _python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_load_no_solver() -> None:
    code = (
        "import sys\n"
        "from mmee_cli.solve import main\n"
        "try:\n"
        "    main(['graph.json', 'nowhere.yaml'])\n"
        "except SystemExit as error:\n"
        "    assert error.code == 2, error.code\n"
        "assert not {'ortools', 'numpy'} & set(sys.modules)\n"
    )
    assert _python("-c", code).returncode == 0


def test_a_reader_that_has_seen_enough() -> None:
    command = [sys.executable, "-m", "mmee_cli", "graph.json", "accel.yaml", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_no_traceback() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "mmee_cli", "graph.json", "accel.yaml"],
            stdout=full,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
    assert (done.returncode, done.stderr) == (2, "standard output: No space left on device\n")


def test_a_terminal_that_knows_ascii_only() -> None:
    done = _python(
        "-m", "mmee_cli", "graph.json", "accel.yaml", env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("small on little ? least energy ? proved optimal")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("no_colour", [False, True])
def test_colour_on_a_terminal_only(no_colour: bool) -> None:
    import pty

    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    if no_colour:
        environment["NO_COLOR"] = "1"
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "mmee_cli", "graph.json", "accel.yaml"]
    done = subprocess.run(command, stdout=inner, stderr=subprocess.PIPE, env=environment)
    os.close(inner)
    shown = os.read(outer, 1 << 16).decode()
    os.close(outer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert ("\x1b[1;32mproved optimal\x1b[0m" in shown) is not no_colour
    assert ("\x1b" in shown) is not no_colour


def test_spinner_shows_only_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with progress.Spinner() as spinner:
        spinner("qk", 0, 1)
    assert spinner.text == "solving qk"
    assert not spinner.shown
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    with progress.Spinner() as spinner:
        spinner("qk", 0, 1)
        end = time.monotonic() + 10
        while not spinner.shown and time.monotonic() < end:
            time.sleep(0.01)
        assert spinner.shown
        spinner("qk + pv", 2, 3)
        assert spinner.text == "solving qk + pv, 2 done"
        spinner("qk + pv", 2, 9)
        assert spinner.text == "solving qk + pv, 2 of 9 done"
    assert not spinner.shown
