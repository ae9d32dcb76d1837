"""Order trees and legal groups of small graphs, counted by hand."""

from __future__ import annotations

import pytest

from mmee_solver.trees import legal_groups, order_trees
from mmee_solver.workload import Graph, Op, Step, Tensor


def graph(spec: dict[str, str], ops: list[Op], outputs: tuple[str, ...] = (), **sizes: int) -> Graph:
    dims = {dim: sizes.get(dim, 4) for dims in spec.values() for dim in dims}
    tensors = {name: Tensor(name, tuple(dims), "fp16") for name, dims in spec.items()}
    return Graph("g", dims, tensors, tuple(ops), outputs)


FFN = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
PAIR = [Op("a", "einsum", ("X", "A"), "H"), Op("b", "einsum", ("H", "B"), "Y")]


def test_one_op_is_a_leaf() -> None:
    (tree,) = order_trees(graph(FFN, PAIR), ("a",))
    assert (tree.ops, tree.shared) == (("a",), ())


def test_producer_and_consumer() -> None:
    # m, f and n can be shared, the producer's reduction k cannot: 1 + 3 + 3·2 + 3·2·1 = 16 orders.
    trees = order_trees(graph(FFN, PAIR), ("a", "b"))
    assert len(trees) == len(set(trees)) == 16
    assert not any("k" in tree.shared for tree in trees)


def test_without_recomputation_the_consumers_own_dims_are_private() -> None:
    # m and f are left: 1 + 2 + 2 = 5 orders.
    trees = order_trees(graph(FFN, PAIR), ("a", "b"), recompute=False)
    assert len(trees) == 5
    assert not any("n" in tree.shared for tree in trees)


def test_an_intermediate_that_leaves_is_not_recomputed() -> None:
    trees = order_trees(graph(FFN, PAIR, ("H", "Y")), ("a", "b"))
    assert len(trees) == 5


def test_a_dim_of_size_one_is_never_looped() -> None:
    assert len(order_trees(graph(FFN, PAIR, m=1), ("a", "b"))) == 1 + 2 + 2


def test_siblings_share_what_both_have() -> None:
    # X[l, e] is read by both; k and j belong to one op each, whose outputs leave: 1 + 2 + 2 orders.
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj"}
    ops = [Op("a", "einsum", ("X", "A"), "K"), Op("b", "einsum", ("X", "B"), "V")]
    assert len(order_trees(graph(spec, ops), ("a", "b"))) == 5


def test_batch_dims_stand_outermost() -> None:
    spec = {name: "h" + dims for name, dims in FFN.items()}
    trees = order_trees(graph(spec, PAIR), ("a", "b"))
    # Every order of m, f and n, with and without h in front.
    assert len(trees) == 2 * 16
    assert all("h" not in tree.shared[1:] for tree in trees)


def test_a_softmax_that_cannot_run_online_keeps_its_axis_whole() -> None:
    soft = (Step("softmax", "softmax", axis="f"),)
    spec = FFN | {"B": "mf", "Y": "mf"}
    ops = [Op("a", "einsum", ("X", "A"), "H", epilogue=soft), Op("b", "einsum", ("H", "B"), "Y")]
    trees = order_trees(graph(spec, ops), ("a", "b"))
    assert {tree.shared for tree in trees} == {(), ("m",)}
    online = [Op("a", "einsum", ("X", "A"), "H", epilogue=soft), PAIR[1]]
    assert len(order_trees(graph(FFN, online), ("a", "b"))) == 16


def test_larger_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="a group of 3 ops"):
        order_trees(graph(FFN, PAIR), ("a", "b", "c"))


def test_groups_are_connected_and_convex() -> None:
    spec = {"X": "ij", "A": "jk", "P": "ik", "B": "kl", "Q": "il", "C": "kl", "Y": "il", "W": "mn", "V": "mn"}
    ops = [
        Op("p", "einsum", ("X", "A"), "P"),
        Op("q", "einsum", ("P", "B"), "Q"),
        Op("y", "einsum", ("P", "C", "Q"), "Y"),
        Op("alone", "elementwise", ("W",), "V", function="relu"),
    ]
    groups = legal_groups(graph(spec, ops))
    assert groups[:4] == (("p",), ("q",), ("y",), ("alone",))
    # p + y share P, but q lies between them.
    assert groups[4:] == (("p", "q"), ("q", "y"))
    assert legal_groups(graph(spec, ops), largest=1) == groups[:4]
