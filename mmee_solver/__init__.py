"""Provably optimal dataflows of operator graphs on accelerators.

>>> from mmee_solver import load_accelerator, load_graph, solve
>>> mapping = solve(load_graph("matmul-64"), load_accelerator("accel1"), objective="dram")
>>> mapping.status, mapping.metrics.dram_bytes
('optimal', 24576)

What is exported here is loaded on first use: CP-SAT and numpy take most of a second to import, and
reading a graph, or asking for help, needs neither.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmee_solver.accelerator import Accelerator
    from mmee_solver.errors import InfeasibleError, InputError, MmeeError
    from mmee_solver.io import load_accelerator, load_graph
    from mmee_solver.mapping import Mapping, mapping_to_json
    from mmee_solver.solve import solve
    from mmee_solver.workload import Graph

__version__ = "0.1.0"

__all__ = [
    "Accelerator",
    "Graph",
    "InfeasibleError",
    "InputError",
    "Mapping",
    "MmeeError",
    "__version__",
    "load_accelerator",
    "load_graph",
    "mapping_to_json",
    "solve",
]

# where each name is defined
_HOME = {
    "Accelerator": "accelerator",
    "Graph": "workload",
    "InfeasibleError": "errors",
    "InputError": "errors",
    "Mapping": "mapping",
    "MmeeError": "errors",
    "load_accelerator": "io",
    "load_graph": "io",
    "mapping_to_json": "mapping",
    "solve": "solve",
}


def __getattr__(name: str) -> object:
    """An exported name, from its module."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The exported names and what is loaded already."""
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The package, in which the module ``solve``, once imported, does not hide the function ``solve``."""

    def __setattr__(self, name: str, value: object) -> None:
        hides = name == "solve" and isinstance(value, ModuleType)
        super().__setattr__(name, value.__dict__[name] if hides else value)


sys.modules[__name__].__class__ = _Package
