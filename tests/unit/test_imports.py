"""Modules import only from those above them, and each outside package has its place."""

from __future__ import annotations

import ast
from importlib import resources
from pathlib import Path

import pytest

# each may import from those before it; a module that is not here fails
ORDER = (
    "errors",
    "units",
    "workload",
    "accelerator",
    "fold",
    "nest",
    "roles",
    "trace",
    "cost",
    "canon",
    "numerics",
    "execute",
    "validate",
    "trees",
    "candidates",
    "space",
    "skeletons",
    "layouts",
    "arrays",
    "encode",
    "encode_layouts",
    "tilings",
    "bounds",
    "emit",
    "objective",
    "program",
    "tables",
    "incumbent",
    "arena",
    "tighten",
    "split",
    "settle",
    "probe",
    "search",
    "enumerate",
    "mapping",
    "master",
    "plan",
    "pricing",
    "certify",
    "solve",
    "monolith_terms",
    "monolith_paths",
    "monolith_sites",
    "monolith_arrays",
    "monolith_costs",
    "monolith_nest",
    "monolith",
    "files",
    "schema",
    "decode",
    "io",
    "lines",
    "nestview",
    "report",
)
MONOLITH = {name for name in ORDER if name.startswith("monolith")}
# the monolithic model is a second road to the optimum: it shares definitions with the engine, no enumeration
SHARED = {"errors", "units", "workload", "accelerator", "fold", "nest", "roles", "trace", "cost", "validate"}
HOMES = {"ortools": {"trees", "master", "certify"} | MONOLITH, "yaml": {"io"}}
NOWHERE = {"click", "rich", "mmee_cli", "mmee_graphs"}
FOLDER = Path(str(resources.files("mmee_solver")))
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def imports(module: str) -> set[str]:
    """Every module that an import statement names, wherever it stands in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}.py has a relative import in line {node.lineno}"
            assert node.module is not None
            # "from mmee_solver import cost" names a module, too
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if node.module == "mmee_solver" else {node.module}
    return found


def test_every_module_has_its_place() -> None:
    assert [name for name in MODULES if name not in ORDER] == []
    assert len(set(ORDER)) == len(ORDER)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_those_above(module: str) -> None:
    above = {f"mmee_solver.{name}" for name in ORDER[: ORDER.index(module)]}
    own = {name for name in imports(module) if name.split(".")[0] == "mmee_solver"}
    assert own <= above


@pytest.mark.parametrize("module", sorted(MONOLITH))
def test_the_monolithic_model_shares_no_enumeration_with_the_engine(module: str) -> None:
    own = {name.removeprefix("mmee_solver.") for name in imports(module) if name.startswith("mmee_solver.")}
    assert own <= SHARED | MONOLITH


@pytest.mark.parametrize("module", [*MODULES, "__init__"])
def test_outside_packages_stay_in_their_modules(module: str) -> None:
    packages = {name.split(".")[0] for name in imports(module)}
    assert packages.isdisjoint(NOWHERE)
    for package, homes in HOMES.items():
        assert package not in packages or module in homes


def test_the_package_itself_imports_nothing_at_run_time() -> None:
    tree = ast.parse((FOLDER / "__init__.py").read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    named = {node.module for node in top if isinstance(node, ast.ImportFrom)}
    named |= {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    assert named == {"__future__", "sys", "importlib", "types", "typing"}


def test_the_reader_of_imports_sees_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import a.b\nfrom c.d import e\nfrom mmee_solver import cost\ndef f():\n    import g\n"
    (tmp_path / "sample.py").write_text(text, encoding="utf-8")
    monkeypatch.setitem(globals(), "FOLDER", tmp_path)
    assert imports("sample") == {"a.b", "c.d", "mmee_solver.cost", "g"}
