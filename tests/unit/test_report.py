"""The page: golden ones from the solver, and made-up mappings for what small solves do not show."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import mmee_graphs
from mmee_solver import Accelerator, Graph, Mapping, load_accelerator, load_graph, solve
from mmee_solver.cost import add_metrics
from mmee_solver.fold import fold
from mmee_solver.io import graph_from_json
from mmee_solver.lines import Piece, bar, flow, line, plain, render, shorten
from mmee_solver.mapping import Options
from mmee_solver.nest import Group, Resident, array_from_json, nest_from_json
from mmee_solver.report import describe_accelerator, listing, page
from mmee_solver.validate import validate_groups

# graph of the zoo (or one of GRAPHS), accelerator, buffer in bytes (None: as it is), objective
CASES: dict[str, tuple[str, str, int | None, str]] = {
    "product": ("matmul-64", "accel1", None, "edp"),
    "primes": ("matmul-61-67-71", "accel1", 4096, "energy"),
    "recomputed": ("recompute-pair", "accel1", 600, "dram"),
    "grouped-queries": ("grouped-queries", "accel1", 1024, "dram"),
    "online": ("small-attention", "tileflow-edge", 1024, "latency"),
    "gated": ("gated", "accel1", 4096, "energy"),
    "tiny-buffer": ("small-attention", "accel1", 12, "energy"),
}
GRAPHS: dict[str, dict[str, Any]] = {
    "grouped-queries": mmee_graphs.attention(4, 32, 32, 8, kv_heads=2, name="grouped-queries"),
    "small-attention": mmee_graphs.attention(2, 64, 64, 16, name="small-attention"),
    "gated": mmee_graphs.ffn(16, 16, 32, gated=True, function="silu", name="gated"),
}


def _load(name: str) -> Graph:
    return graph_from_json(GRAPHS[name]) if name in GRAPHS else load_graph(name)


def _solved(name: str) -> Mapping:
    graph, machine, capacity_bytes, objective = CASES[name]
    accelerator = load_accelerator(machine)
    if capacity_bytes is not None:
        accelerator = accelerator.with_buffer(capacity_bytes)
    mapping = solve(_load(graph), accelerator, objective=objective)
    # neither the time nor how much had to be searched belongs to the answer
    return replace(mapping, seconds=0.0, certificate={})


@pytest.mark.parametrize("name", CASES)
def test_page_is_the_golden_one(name: str, golden: Callable[[str, str], None]) -> None:
    text = page(_solved(name), CASES[name][0], CASES[name][1])
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    golden(f"pages/{name}.txt", text + "\n")


def _mapping(
    document: dict[str, Any],
    groups: list[tuple[list[str], list[Any], dict[str, Any]]],
    resident: tuple[Resident, ...] = (),
    accelerator: Accelerator | None = None,
    **changes: Any,
) -> Mapping:
    """A legal mapping put together by hand; the arrays are given as [rows, cols, inner]."""
    machine = accelerator or load_accelerator("accel1")
    graph = fold(graph_from_json(document))
    made = tuple(
        Group(
            tuple(ops),
            nest_from_json(nest),
            {
                op: array_from_json(
                    {"rows": [rows, 64], "cols": [cols, 64], "batch": None, "inner": inner, "shape": [32, 32]}
                )
                for op, (rows, cols, inner) in arrays.items()
            },
        )
        for ops, nest, arrays in groups
    )
    parts = validate_groups(graph, machine, made, resident)
    mapping = Mapping(
        "optimal", Options("energy"), graph, machine, made, parts, add_metrics(parts), Fraction(0), resident
    )
    return replace(mapping, **changes)


def _document(dims: dict[str, int], tensors: dict[str, str], ops: list[dict[str, Any]]) -> dict[str, Any]:
    entries = {name: {"dims": text.split()} for name, text in tensors.items()}
    return {"format": "mmee-graph/1", "name": "g", "dims": dims, "tensors": entries, "ops": ops}


def _einsum(name: str, inputs: str, output: str) -> dict[str, Any]:
    return {"name": name, "kind": "einsum", "inputs": inputs.split(), "output": output}


SIBLINGS = _document(
    {"m": 64, "k": 128, "f": 256},
    {"X": "m k", "Wg": "k f", "G": "m f", "Wu": "k f", "U": "m f"},
    [_einsum("gate", "X Wg", "G"), _einsum("up", "X Wu", "U")],
)
CHAIN = _document(
    {"m": 64, "k": 128, "f": 256, "n": 32},
    {"X": "m k", "A": "k f", "H": "m f", "B": "f n", "Y": "m n"},
    [_einsum("first", "X A", "H"), _einsum("second", "H B", "Y")],
)
FIRST = [{"hold": "X"}, {"hold": "A"}, {"hold": "H"}, {"compute": "first"}]
SECOND = [{"hold": "H"}, {"hold": "B"}, {"hold": "Y"}, {"compute": "second"}]


def test_siblings_stand_beside_each_other() -> None:
    nest = [
        {"hold": "X"},
        {
            "loop": "f",
            "tile": 100,
            "body": [
                {"hold": "Wg"},
                {"hold": "G"},
                {"compute": "gate"},
                {"hold": "Wu"},
                {"hold": "U"},
                {"compute": "up"},
            ],
        },
    ]
    mapping = _mapping(SIBLINGS, [(["gate", "up"], nest, {"gate": ("m", "f", "k"), "up": ("k", "f", "m")})])
    text = page(mapping, "g", "accel1")
    assert "group 1 of 1   gate ∥ up\n" in text
    assert "  for f in 256 by 100" in text
    assert "the last tile is 56" in text
    assert "    hold Wg[·,f]     25 KiB   read once\n" in text
    assert "gate  array 64×64 on (m, f), k inside, G stays (80 % used)\n" in text
    assert "up    array 64×64 on (k, f), m inside, Wu stays (80 % used)\n" in text


def test_chain_names_producer_and_consumer() -> None:
    nest = [{"hold": "X"}, {"hold": "A"}, {"hold": "H"}, {"compute": "first"}, *SECOND[1:]]
    arrays = {"first": ("m", "f", "k"), "second": ("m", "n", "f")}
    text = page(_mapping(CHAIN, [(["first", "second"], nest, arrays)]), "g", "accel1")
    assert "group 1 of 1   first → second\n" in text
    assert "hold H[·,·]   32 KiB   never leaves the chip\n" in text
    assert "  H         32.77 kB           –           –   stays on chip\n" in text


def test_groups_show_their_own_figures() -> None:
    groups = [
        (["first"], FIRST, {"first": ("m", "f", "k")}),
        (["second"], SECOND, {"second": ("m", "n", "f")}),
    ]
    mapping = _mapping(CHAIN, groups)
    text = page(replace(mapping, unfused=mapping.metrics), "g", "accel1")
    assert "group 1 of 2   first\n" in text
    figures = r"\n  \d+\.\d+ µJ · 1\.91 µs, bound by DRAM · 114\.7 kB moved · 112 KiB held\n"
    assert re.search(figures, text)
    assert "the same: fusing gains nothing here" in text
    assert "  H         32.77 kB    32.77 kB    32.77 kB   2.00×\n" in text


def test_resident_tensors_are_named() -> None:
    groups = [
        (["first"], FIRST, {"first": ("m", "f", "k")}),
        (["second"], SECOND, {"second": ("m", "n", "f")}),
    ]
    text = page(_mapping(CHAIN, groups, (Resident("H", 0, 1),)), "g", "accel1")
    assert "\n  resident   32 KiB     H stays there from group 1 to 2\n" in text
    assert text.count("resident: moves nothing") == 2
    assert "  H         32.77 kB           –           –   stays on chip\n" in text


def test_output_visited_again() -> None:
    nest: list[Any] = [
        {
            "loop": "k",
            "tile": 32,
            "body": [
                {"hold": "X"},
                {
                    "loop": "f",
                    "tile": 64,
                    "body": [{"hold": "A"}, {"hold": "H"}, {"compute": "first"}],
                },
            ],
        }
    ]
    groups = [
        (["first"], nest, {"first": ("m", "f", "k")}),
        (["second"], SECOND, {"second": ("m", "n", "f")}),
    ]
    text = page(_mapping(CHAIN, groups), "g", "accel1")
    assert "written 4 times, read 3 times" in text


def test_double_buffered_tiles_count_twice() -> None:
    machine = load_accelerator("accel1")
    machine = replace(machine, buffer=replace(machine.buffer, double_buffered=True))
    nest = [{"hold": "X"}, {"hold": "A"}, {"hold": "H"}, {"compute": "first"}, *SECOND[1:]]
    arrays = {"first": ("m", "f", "k"), "second": ("m", "n", "f")}
    text = page(_mapping(CHAIN, [(["first", "second"], nest, arrays)], accelerator=machine), "g", "accel1")
    assert "hold A[·,·]   2 × 64 KiB   read once\n" in text
    assert "hold H[·,·]       32 KiB   never leaves the chip\n" in text


def test_normalize_of_an_input_runs_online() -> None:
    document = _document(
        {"m": 64, "k": 128, "f": 256},
        {"X": "m k", "N": "m k", "A": "k f", "H": "m f"},
        [
            {
                "name": "norm",
                "kind": "normalize",
                "function": "rmsnorm",
                "axis": "k",
                "inputs": ["X"],
                "output": "N",
            },
            _einsum("project", "N A", "H"),
        ],
    )
    body = [{"hold": "X"}, {"hold": "A"}, {"compute": "project"}]
    nest = [{"hold": "H"}, {"loop": "k", "tile": 64, "body": body}]
    text = page(_mapping(document, [(["project"], nest, {"project": ("m", "f", "k")})]), "g", "accel1")
    assert "group 1 of 1   norm+project\n" in text
    assert "    rmsnorm over k of X as it is read\n" in text
    assert "      online normalize: statistics of m beside H, scaled at the end\n" in text


def test_ops_without_a_sum_run_on_the_vector_unit() -> None:
    document = _document(
        {"i": 8, "j": 4},
        {"A": "i j", "B": "i j", "C": "i j", "D": "i j"},
        [
            _einsum("product", "A B", "C"),
            {
                "name": "shift",
                "kind": "elementwise",
                "function": "add",
                "inputs": ["A", "B"],
                "output": "D",
            },
        ],
    )
    first = [{"hold": "A"}, {"hold": "B"}, {"hold": "C"}, {"compute": "product"}]
    second = [{"hold": "D"}, {"compute": "shift"}]
    text = page(_mapping(document, [(["product", "shift"], [*first, *second], {})]), "g", "accel1")
    assert "product  product on the vector unit\n" in text
    assert "shift    add on the vector unit\n" in text
    assert "utilised" not in text


def test_proof_says_how_much_was_searched() -> None:
    nest = [{"hold": "X"}, {"hold": "A"}, {"hold": "H"}, {"compute": "first"}, *SECOND[1:]]
    arrays = {"first": ("m", "f", "k"), "second": ("m", "n", "f")}
    counts = {"trees": 1, "structures": 336, "candidates": 12345, "evaluated": 3, "space": "all"}
    text = page(_mapping(CHAIN, [(["first", "second"], nest, arrays)], certificate=counts), "g", "accel1")
    assert text.endswith(
        "\noptions  any tile size · fusion where it pays · recomputation allowed"
        "\nproof    1 order tree · 336 structures · 12 345 candidates · 3 evaluated exactly"
    )


def test_verdict_of_a_search_that_was_stopped() -> None:
    nest = [{"hold": "X"}, {"hold": "A"}, {"hold": "H"}, {"compute": "first"}, *SECOND[1:]]
    arrays = {"first": ("m", "f", "k"), "second": ("m", "n", "f")}
    mapping = _mapping(CHAIN, [(["first", "second"], nest, arrays)], status="feasible", seconds=12.3)
    bound = mapping.value * Fraction(9, 10)
    text = page(replace(mapping, bound=bound), "g", "accel1")
    assert text.startswith("g on accel1 · least energy · best found, at most 10 % off · 12 s\n")


def test_latency_bound_by_different_resources() -> None:
    machine = load_accelerator("accel1")
    groups = [
        (["first"], FIRST, {"first": ("m", "f", "k")}),
        (["second"], SECOND, {"second": ("m", "n", "f")}),
    ]
    mapping = _mapping(CHAIN, groups, accelerator=machine)
    part = mapping.group_metrics[1]
    slow = replace(part, cycles={**part.cycles, "array": 5000}, latency_cycles=5000)
    parts = (mapping.group_metrics[0], slow)
    text = page(replace(mapping, group_metrics=parts, metrics=add_metrics(parts)), "g", "accel1")
    assert "bound by array (72 % of it) and DRAM (28 % of it)," in text


def test_long_names_do_not_widen_the_page() -> None:
    long = {name: f"{name}_{'long' * 40}" for name in ("X", "A", "H", "B", "Y", "m", "k", "f", "n")}
    document = _document(
        {long[d]: size for d, size in (("m", 64), ("k", 128), ("f", 256), ("n", 32))},
        {
            long["X"]: f"{long['m']} {long['k']}",
            long["A"]: f"{long['k']} {long['f']}",
            long["H"]: f"{long['m']} {long['f']}",
        },
        [_einsum("first" * 30, f"{long['X']} {long['A']}", long["H"])],
    )
    document["dims"].pop(long["n"])
    body: list[Any] = [{"hold": long["H"]}]
    body.append({"loop": long["k"], "tile": 7, "body": [{"hold": long["X"]}, {"hold": long["A"]}]})
    body[1]["body"].append({"compute": "first" * 30})
    nest = [{"loop": long["m"], "tile": 3, "body": [{"loop": long["f"], "tile": 5, "body": body}]}]
    arrays = {"first" * 30: (long["m"], long["f"], long["k"])}
    text = page(_mapping(document, [(["first" * 30], nest, arrays)]), "g" * 200, "a" * 200)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [24, 40, 60, 120])
def test_other_widths(width: int) -> None:
    nest = [{"hold": "X"}, {"hold": "A"}, {"hold": "H"}, {"compute": "first"}, *SECOND[1:]]
    arrays = {"first": ("m", "f", "k"), "second": ("m", "n", "f")}
    mapping = _mapping(CHAIN, [(["first", "second"], nest, arrays)], seconds=1.0)
    text = page(replace(mapping, unfused=mapping.metrics), "gpt3-6.7b-attention", "accel1", width=width)
    assert max(map(len, text.splitlines())) <= width


def test_every_name_of_the_zoo_fits_the_first_lines() -> None:
    nest = [{"hold": "X"}, {"hold": "A"}, {"hold": "H"}, {"compute": "first"}, *SECOND[1:]]
    arrays = {"first": ("m", "f", "k"), "second": ("m", "n", "f")}
    mapping = _mapping(CHAIN, [(["first", "second"], nest, arrays)], seconds=12.0)
    for name in mmee_graphs.names():
        for objective in ("dram", "energy", "latency", "edp"):
            shown = replace(mapping, options=Options(objective))
            first, second, *_ = page(shown, name, "eyeriss-normalised").splitlines()
            assert first.startswith(f"{name} on eyeriss-normalised")
            assert max(len(first), len(second)) <= 80
            assert "…" not in first + second


def test_colour_changes_no_character() -> None:
    mapping = _solved("product")
    bare, coloured = page(mapping, "g", "a"), page(mapping, "g", "a", colour=True)
    assert "\x1b[" not in bare
    assert "\x1b[1;32mproved optimal\x1b[0m" in coloured
    for code in ("0", "1", "2", "36", "1;32"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert coloured == bare


def test_listing_wraps_only_when_asked() -> None:
    graphs = [(name, mmee_graphs.describe(name)) for name in mmee_graphs.names()]
    machines = [("accel1", describe_accelerator(load_accelerator("accel1")))]
    whole, wrapped = listing(graphs, machines), listing(graphs, machines, width=80)
    assert len(whole.splitlines()) == len(graphs) + len(machines) + 3
    assert max(map(len, wrapped.splitlines())) <= 80
    assert wrapped.split() == whole.split()
    assert "  accel1  4 arrays of 32×32, buffer 1 MiB, DRAM 60 GB/s, 1 GHz" in whole


def test_description_of_reconfigurable_arrays() -> None:
    machine = load_accelerator("accel1")
    sides = tuple((1 << n, 1 << (10 - n)) for n in range(5))
    machine = replace(machine, array=replace(machine.array, count=1, shapes=sides))
    assert describe_accelerator(machine).startswith("one array of 1×1024 or 2×512 or 4×256 or …, ")


@pytest.mark.parametrize("limit", range(1, 8))
def test_shorten_keeps_both_ends(limit: int) -> None:
    short = shorten("abcdefgh", limit)
    assert len(short) == limit
    assert "…" in short
    assert shorten("abc", 3) == "abc"


def test_bars_are_proportional() -> None:
    assert [len(bar(share)) for share in (0, 0.01, 0.04, 0.5, 1)] == [0, 0, 1, 12, 25]


def test_lines_are_cut_before_colours_are_added() -> None:
    text = line("ab", Piece("cdef", "bold"), "  ")
    assert plain(text) == "abcdef  "
    assert render([text], 6) == "abcdef"
    assert render([text], 4) == "abc…"
    assert render([text], 4, colour=True) == "ab\x1b[1mc\x1b[0m…"


def test_flow_breaks_between_parts_only() -> None:
    parts = [line(word) for word in ("one", "two", "three")]
    assert render(flow(line("> "), parts, 12, between=", "), 12) == "> one, two,\n  three"
    assert render(flow(line("> "), parts, 99, between=", "), 99) == "> one, two, three"
    assert render(flow(line("> "), [], 9), 9) == ">"
