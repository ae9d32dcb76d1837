"""What ``import mmee_solver`` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import mmee_solver


def _python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")


def test_every_exported_name_is_there() -> None:
    for name in mmee_solver.__all__:
        assert getattr(mmee_solver, name) is not None
        assert name in dir(mmee_solver)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'mmee_solver' has no attribute 'slove'"):
        mmee_solver.slove  # noqa: B018


def test_version_is_that_of_the_package() -> None:
    assert mmee_solver.__version__ == metadata.version("mmee-solver")


def test_import_loads_nothing_heavy() -> None:
    _python(
        "import sys, mmee_solver\n"
        "heavy = {'ortools', 'numpy', 'networkx', 'yaml', 'msgspec', 'rich', 'click'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )


def test_reading_a_graph_loads_no_solver() -> None:
    _python(
        "import sys\n"
        "from mmee_solver import load_accelerator, load_graph\n"
        "load_graph('matmul-64'), load_accelerator('accel1')\n"
        "assert not {'ortools', 'numpy'} & set(sys.modules)\n"
    )


@pytest.mark.parametrize(
    "order",
    [
        "import mmee_solver.solve\nfrom mmee_solver import solve",
        "from mmee_solver import solve\nimport mmee_solver.solve",
        "from mmee_solver.solve import Progress\nimport mmee_solver\nsolve = mmee_solver.solve",
        "from mmee_solver import *",
    ],
)
def test_solve_is_the_function_whatever_was_imported_first(order: str) -> None:
    _python(f"{order}\nimport mmee_solver\nassert callable(solve) and mmee_solver.solve is solve\n")
