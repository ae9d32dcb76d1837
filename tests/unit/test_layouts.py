"""Layouts of one op: private holds and loops, own holds above shared loops, by hand."""

from __future__ import annotations

import pytest
from nests import SOFTMAX, build, einsum

from mmee_solver.layouts import Given, Layout, LayoutLister, Path, leaf_path
from mmee_solver.nest import Hold
from mmee_solver.skeletons import Skeleton, skeletons
from mmee_solver.space import GroupSpace
from mmee_solver.trees import Node, OrderTree, order_trees
from mmee_solver.workload import Graph, Step

MARK = {"shared": "!", "private": "", "granule": "'"}


def drawn(layout: Layout) -> str:
    """Entries, outermost first: loops over a shared dim are marked !, granules '."""
    parts = []
    for entry in layout.entries:
        if isinstance(entry, Hold):
            parts.append(entry.tensor)
        else:
            axis = layout.axes[entry.axis]
            parts.append(axis.dim + MARK[axis.kind])
    return " ".join(parts)


def below(graph: Graph, shared: str, leaf: int, recut: bool = False) -> list[str]:
    """Layouts of a leaf below the skeleton that has some shared loops and shares no external hold."""
    names = [op.name for op in graph.ops]
    space = GroupSpace.of(graph, names)
    found = [s for s in skeletons(space, order_trees(graph, names)) if loops(s) == shared]
    skeleton = min(found, key=lambda s: len(s.sites))
    return [drawn(layout) for layout in LayoutLister(space, recut).layouts(leaf_path(space, skeleton, leaf))]


def loops(skeleton: Skeleton) -> str:
    return "".join(axis.dim for axis in skeleton.axes)


def matmul(*steps: Step) -> Graph:
    spec = {"X": "mk", "A": "kn", "Y": "mn"}
    return build(spec, {"m": 6, "k": 8, "n": 5}, einsum("a", "X A", "Y", *steps))


def ffn() -> Graph:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
    sizes = {"m": 4, "k": 3, "f": 4, "n": 5}
    return build(spec, sizes, einsum("a", "X A", "H"), einsum("b", "H B", "Y"))


def test_one_matmul_has_six_layouts() -> None:
    # any order of the three holds; each loop stands where its repeating costs least, the last hold streams
    assert set(below(matmul(), "", 0)) == {
        "k m X n A m' Y",
        "k m X n Y k' A",
        "k n A m X n' Y",
        "k n A m Y k' X",
        "m n Y k X n' A",
        "m n Y k A m' X",
    }


def test_with_divisors_a_looped_dim_may_be_cut_again() -> None:
    # a granule may be an array's extent, which a loop may not
    assert set(below(matmul(), "", 0, recut=True)) == {
        "k m X n A m' n' Y",
        "k m X n Y k' n' A",
        "k n A m X m' n' Y",
        "k n A m Y k' m' X",
        "m n Y k X k' n' A",
        "m n Y k A k' m' X",
    }


def test_an_op_below_no_shared_loop_holds_everything_privately() -> None:
    assert set(below(ffn(), "", 0)) == {"k m X f' A", "f k A m' X"}
    assert set(below(ffn(), "", 1)) == {"f n B m' Y", "m n Y f' B"}


def test_a_tensor_may_stay_across_a_shared_loop_over_a_dim_that_it_lacks() -> None:
    # X lacks f, A has it; B has f, Y lacks it
    assert set(below(ffn(), "f", 0)) == {"X f! f' k' A", "f! k m X f' A", "f! k A m' X"}
    assert set(below(ffn(), "f", 1)) == {"Y f! f' n' B", "f! n B m' Y", "f! m n Y f' B"}


def test_between_shared_loops_a_hold_has_the_one_above_and_lacks_the_one_below() -> None:
    # f above m: A (k, f) between them; X (m, k) above f; never X between or A above f
    found = below(ffn(), "fm", 0)
    assert {"X f! A m!", "X f! m! f' k' A", "f! A m! k' m' X"} < set(found)
    assert not [text for text in found if "f! X m!" in text or text.startswith("A f!")]


def test_with_all_own_tensors_above_the_shared_loops_nothing_is_left_to_loop() -> None:
    assert "Y f! B m!" in below(ffn(), "fm", 1)


# --- places on the path ------------------------------------------------------------------------------


def path(graph: Graph, root: Node, leaf: int) -> Path:
    """The path of a leaf of the one skeleton of a tree that holds least."""
    names = tuple(op.name for op in graph.ops)
    space = GroupSpace.of(graph, names)
    skeleton = min(skeletons(space, [OrderTree(names, root)]), key=lambda s: len(s.sites))
    return leaf_path(space, skeleton, leaf)


def chain() -> Graph:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "G": "mn", "C": "np", "Y": "mp"}
    ops = (einsum("a", "X A", "H"), einsum("b", "H B", "G"), einsum("c", "G C", "Y"))
    return build(spec, dict.fromkeys("mkfnp", 3), *ops)


def test_a_path_has_its_loops_and_where_own_tensors_may_stand() -> None:
    both = (0, 1)
    # X (m, k) lacks f and n: above f, and not between; A (k, f) has f and lacks n: between
    assert path(ffn(), Node(("f", "n"), both), 0) == Path(
        0, (("f", both), ("n", both)), (("X", (0,)), ("A", (1,))), ()
    )
    # B has both; Y (m, n) lacks f, and has n
    assert path(ffn(), Node(("f", "n"), both), 1).own == (("B", ()), ("Y", (0,)))


def test_a_hold_may_stay_inside_a_node_whose_outer_loop_its_tensor_lacks() -> None:
    tree = Node(("n",), (Node(("m",), (0, 1)), 2))
    # A (k, f) lacks n and m: above m it leaves the buffer to c, above n it is read once
    assert path(chain(), tree, 0) == Path(
        0, (("n", (0, 1, 2)), ("m", (0, 1))), (("X", (0,)), ("A", (0, 1))), ()
    )
    assert path(chain(), tree, 1).own == (("B", (1,)),)
    assert path(chain(), tree, 2) == Path(2, (("n", (0, 1, 2)),), (("C", ()), ("Y", (0,))), ())


def strangers(*steps: Step) -> Graph:
    """Two ops that share loops and no tensor; the first has its X prepared along e."""
    spec = {"X": "le", "A": "ek", "K": "lk", "Z": "le", "B": "ek", "V": "lk", "c": "e"}
    return build(spec, dict.fromkeys("lek", 3), einsum("a", "X A", "K", *steps), einsum("b", "Z B", "V"))


NORM = Step("norm", "normalize", "rmsnorm", "e", tensor="X")
# after the statistics: they cannot wait for the end
BIAS = Step("bias", "elementwise", "add", inputs=("c",), tensor="X")


@pytest.mark.parametrize(
    ("steps", "places"),
    [
        # X (l, e) has e and lacks k: between them
        ((), (1,)),
        # above e its rows are whole: no statistics online
        ((NORM,), (0, 1)),
        ((NORM, BIAS), (0,)),
    ],
)
def test_a_path_hold_above_or_below_the_axis_of_its_rows(
    steps: tuple[Step, ...], places: tuple[int, ...]
) -> None:
    found = path(strangers(*steps), Node(("e", "k"), (0, 1)), 0)
    assert dict(found.own)["X"] == places


def test_a_tensor_that_must_span_a_shared_axis_is_held_above_its_loop() -> None:
    graph = strangers(NORM, BIAS)
    space = GroupSpace.of(graph, ("a", "b"))
    found = [drawn(x) for x in LayoutLister(space, False).layouts(path(graph, Node(("e", "k"), (0, 1)), 0))]
    assert found
    assert all(text.split().index("X") < text.split().index("e!") for text in found)


def test_a_path_knows_the_shared_holds_whose_rows_run_into_its_op() -> None:
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij"}
    graph = build(spec, dict.fromkeys("iklj", 3), einsum("a", "Q K", "P", SOFTMAX), einsum("b", "P V", "O"))
    # the softmax of P runs online into b; to a, P is only where its output is
    assert path(graph, Node(("i", "l"), (0, 1)), 0).given == ()
    assert path(graph, Node(("i", "l"), (0, 1)), 1).given == (Given("P", 2, (0, 1)),)


def test_a_path_knows_the_shared_hold_that_its_prologue_works_on() -> None:
    relu = Step("relu", "elementwise", "relu", tensor="X")
    spec = {"X": "e", "A": "elk", "K": "lk", "B": "elj", "V": "lj"}
    graph = build(spec, dict.fromkeys("lekj", 3), einsum("a", "X A", "K", relu), einsum("b", "X B", "V"))
    space = GroupSpace.of(graph, ("a", "b"))
    held, alone = skeletons(space, [OrderTree(("a", "b"), Node(("e", "l"), (0, 1)))])
    # between e and l, alive in both
    assert leaf_path(space, held, 0).given == (Given("X", 1, (0, 1)),)
    assert leaf_path(space, held, 1).given == ()
    assert leaf_path(space, alone, 0).given == ()
    # what the skeleton holds is no tensor of the op's own
    assert [name for name, _ in leaf_path(space, held, 0).own] == ["A", "K"]
    assert [name for name, _ in leaf_path(space, alone, 0).own] == ["X", "A", "K"]


# --- rows --------------------------------------------------------------------------------------------


def test_the_rows_of_a_prologue_may_be_looped_above_or_below_their_hold() -> None:
    # above, statistics run online; below, X is held whole along k
    norm = Step("norm", "normalize", "rmsnorm", "k", tensor="X")
    found = below(matmul(norm), "", 0)
    assert "m n Y k X n' A" in found
    assert any(text.index("X") < text.index("k'") for text in found if "k'" in text)


def test_a_tensor_that_must_span_its_rows_is_never_below_a_loop_over_them() -> None:
    # a bias after the statistics: they cannot wait for the end
    norm = Step("norm", "normalize", "rmsnorm", "k", tensor="X")
    bias = Step("bias", "elementwise", "add", inputs=("b",), tensor="X")
    spec = {"X": "mk", "A": "kn", "Y": "mn", "b": "k"}
    graph = build(spec, {"m": 6, "k": 8, "n": 5}, einsum("a", "X A", "Y", norm, bias))
    for text in below(graph, "", 0):
        entries = text.split()
        assert "k" not in [entry.rstrip("'") for entry in entries[: entries.index("X")]]


@pytest.mark.parametrize("leaf", [0, 1])
def test_a_tensor_of_two_ops_is_private_at_a_node_over_both(leaf: int) -> None:
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj"}
    graph = build(spec, dict.fromkeys("lekj", 3), einsum("a", "X A", "K"), einsum("b", "X B", "V"))
    for shared in ("l", "e", "le"):
        for text in below(graph, shared, leaf):
            assert text.index("X") > max(text.index(f"{dim}!") for dim in shared)
