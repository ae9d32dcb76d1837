"""Modules import only from those above them; heavy libraries stay where they belong (style of the house)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import mmee_solver

FOLDER = Path(mmee_solver.__file__).parent
ORDER = (
    "errors", "units", "workload", "accelerator", "fold", "nest", "roles", "trace", "cost", "numerics",
    "execute", "validate", "trees", "structures", "arrays", "encode", "tilings", "bounds", "objective",
    "emit", "probe", "search", "enumerate", "mapping", "master", "certify", "solve", "files", "schema",
    "decode", "io", "lines", "nestview", "report",
)  # fmt: skip
ONLY_IN = {
    "ortools": {"trees", "master", "certify"},
    "yaml": {"io"},
    "msgspec": {"schema", "decode", "io"},
    "click": set(),
    "rich": set(),
    "mmee_cli": set(),
    "mmee_graphs": set(),
}


def imported(module: str) -> set[str]:
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_every_module_has_its_place() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_imports_point_upwards(module: str) -> None:
    above = set(ORDER[: ORDER.index(module)])
    own = {name.split(".")[1] for name in imported(module) if name.startswith("mmee_solver.")}
    assert own <= above


@pytest.mark.parametrize("module", ORDER)
def test_heavy_libraries_stay_where_they_belong(module: str) -> None:
    roots = {name.split(".")[0] for name in imported(module)}
    for library, allowed in ONLY_IN.items():
        assert library not in roots or module in allowed, library
