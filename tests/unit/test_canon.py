"""Groups of equal form: found, solved once, and renamed."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import instances
import nests
import pytest
import threes
from instances import chain
from nests import build, einsum

from mmee_solver.canon import canonical, renamed
from mmee_solver.cost import evaluate_group
from mmee_solver.enumerate import Objective, search_group
from mmee_solver.io import load_accelerator
from mmee_solver.plan import best_split
from mmee_solver.solve import solve
from mmee_solver.validate import validate_group
from mmee_solver.workload import Graph, Op, Step, Tensor


def under_other_names(graph: Graph) -> Graph:
    """The same graph with every name changed, and its tensors and dims in another order."""

    def tensor(name: str) -> str:
        return f"tensor_{name}" if name else ""

    def dim(name: str) -> str:
        return f"dim_{name}" if name else ""

    def step(one: Step) -> Step:
        inputs = tuple(map(tensor, one.inputs))
        return replace(
            one, name=f"step_{one.name}", axis=dim(one.axis), inputs=inputs, tensor=tensor(one.tensor)
        )

    ops = tuple(
        Op(
            f"op_{op.name}",
            op.kind,
            tuple(map(tensor, op.inputs)),
            tensor(op.output),
            op.function,
            dim(op.axis),
            tuple(map(step, op.epilogue)),
            tuple(map(step, op.prologue)),
        )
        for op in graph.ops
    )
    tensors = {
        tensor(one.name): Tensor(tensor(one.name), tuple(map(dim, one.dims)), one.dtype)
        for one in reversed(graph.tensors.values())
    }
    dims = {dim(name): size for name, size in reversed(graph.dims.items())}
    return Graph(graph.name, dims, tensors, ops, tuple(map(tensor, graph.outputs)))


def forms(graph: Graph, *groups: tuple[str, ...]) -> list[object]:
    return [canonical(graph, group)[0] for group in groups]


def test_equal_products_have_one_form() -> None:
    first, second, third = forms(chain(3), ("mm0",), ("mm1",), ("mm2",))
    assert first == second == third
    first, second = forms(chain(3), ("mm0", "mm1"), ("mm1", "mm2"))
    assert first == second


def test_a_size_a_type_a_step_or_an_outside_reader_makes_another_form() -> None:
    first, second = forms(chain(3, k2=8), ("mm0",), ("mm1",))
    assert first != second
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
    sizes = {"m": 8, "k": 4, "f": 4, "n": 4}
    plain = nests.build(spec, sizes, nests.einsum("a", "X A", "H"), nests.einsum("b", "H B", "Y"))
    gelu = nests.einsum("a", "X A", "H", nests.pointwise("gelu"))
    with_gelu = nests.build(spec, sizes, gelu, nests.einsum("b", "H B", "Y"))
    assert canonical(plain, ("a", "b"))[0] != canonical(with_gelu, ("a", "b"))[0]
    assert canonical(plain, ("a",))[0] != canonical(with_gelu, ("a",))[0]
    assert canonical(plain, ("b",))[0] == canonical(with_gelu, ("b",))[0]
    kept = Graph(plain.name, plain.dims, plain.tensors, plain.ops, ("H", "Y"))
    assert canonical(plain, ("a", "b"))[0] != canonical(kept, ("a", "b"))[0]
    int8 = nests.build(
        spec, sizes, nests.einsum("a", "X A", "H"), nests.einsum("b", "H B", "Y"), dtype="int8"
    )
    assert canonical(plain, ("a",))[0] != canonical(int8, ("a",))[0]


@pytest.mark.parametrize("seed", range(40))
def test_a_renamed_group_is_legal_and_costs_the_same(seed: int) -> None:
    rng = Random(seed)
    kinds = (*instances.KINDS, *threes.KINDS)
    kind = kinds[seed % len(kinds)]
    graph = (threes if kind in threes.KINDS else instances).graph(rng, kind)
    accelerator = instances.accelerator(rng, graph).with_buffer(1 << 20)
    ops = tuple(op.name for op in graph.ops)
    other = under_other_names(graph)
    form, names = canonical(graph, ops)
    same, new = canonical(other, tuple(op.name for op in other.ops))
    assert form == same
    found = search_group(graph, accelerator, ops, Objective("energy"))
    assert found.group is not None
    assert found.metrics is not None
    group, metrics = renamed(found.group, found.metrics, names, new)
    assert validate_group(other, accelerator, group) == metrics
    assert evaluate_group(graph, accelerator, found.group) == found.metrics


def test_layers_in_a_row_are_searched_once() -> None:
    accelerator = load_accelerator("accel1").with_buffer(4096)
    short, long = (solve(chain(n), accelerator, "dram", recompute=False, residency=False) for n in (3, 9))
    pairs = [[g for g in m.certificate["groups"] if g.count("+") < 2] for m in (short, long)]
    assert len(pairs[0]) == len(pairs[1])
    assert long.metrics.macs == 3 * short.metrics.macs


def test_a_split_needs_every_op() -> None:
    graph, one = chain(2), Fraction(1)
    whole = tuple(op.name for op in graph.ops)
    first, second = ((name,) for name in whole)
    assert best_split(graph, whole, {first: (one,)}) is None
    costs = {first: (one,), second: (one,), whole: (one,)}
    assert best_split(graph, whole, costs) == ((2 * one,), (first, second))


def test_the_parts_of_a_split_do_not_wait_for_each_other_in_a_circle() -> None:
    # c reads what a makes, d what b makes: a with d and b with c would each need the other first
    spec = {"X": "mk", "A": "kf", "B": "kf", "P": "mf", "Q": "mf", "C": "fn", "D": "fn", "Y": "mn", "Z": "mn"}
    ops = [einsum("a", "X A", "P"), einsum("b", "X B", "Q"), einsum("c", "P C", "Y"), einsum("d", "Q D", "Z")]
    graph = build(spec, dict.fromkeys("mkfn", 2), *ops)
    five, one = (Fraction(5),), (Fraction(1),)
    costs = {("a",): five, ("b",): five, ("c",): five, ("d",): five, ("a", "d"): one, ("b", "c"): one}
    found = best_split(graph, ("a", "b", "c", "d"), costs)
    assert found is not None
    assert found[0] == (Fraction(11),)
