"""Order trees and legal groups: numbers of them by hand, and every rule that takes some away."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
from nests import SOFTMAX, build, einsum, pointwise

from mmee_solver.trees import Node, OrderTree, legal_groups, order_trees
from mmee_solver.workload import Graph, Op, Step


def shared(graph: Graph, *, recompute: bool = True, ops: str = "a b") -> list[str]:
    """Shared loops of every tree, outermost first, in the order that they are listed."""
    names = tuple(ops.split())
    trees = order_trees(graph, names, recompute)
    assert all(tree.ops == names for tree in trees)
    assert all(tree.root.children == (0, 1) for tree in trees)
    return ["".join(tree.root.loops) for tree in trees]


def selections(dims: str, ahead: str = "") -> set[str]:
    """Every ordered selection of some dims, with or without each of those that go ahead, in their order."""
    found = {"".join(order) for count in range(len(dims) + 1) for order in permutations(dims, count)}
    for dim in reversed(ahead):
        found |= {dim + rest for rest in found}
    return found


def useful(found: set[str], recomputing: str) -> set[str]:
    """Those whose innermost loop is not over a dim that the first op lacks and the other has."""
    return {loops for loops in found if not loops.endswith(recomputing)}


def ffn(outputs: tuple[str, ...] = (), **sizes: int) -> Graph:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
    every = {"m": 4, "k": 3, "f": 4, "n": 5} | sizes
    return build(spec, every, einsum("a", "X A", "H"), einsum("b", "H B", "Y"), outputs=outputs)


def attention(*steps: Step, h: str = "h") -> Graph:
    spec = {"Q": h + "ik", "K": h + "lk", "P": h + "il", "V": h + "lj", "O": h + "ij"}
    spec |= {name: "l" for step in steps for name in step.inputs}
    sizes = {dim: size for dim, size in {"h": 2, "i": 4, "l": 6, "k": 2, "j": 3}.items() if dim in h + "iklj"}
    return build(spec, sizes, einsum("a", "Q K", "P", *steps), einsum("b", "P V", "O"))


def siblings() -> Graph:
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj"}
    return build(spec, dict.fromkeys("lekj", 3), einsum("a", "X A", "K"), einsum("b", "X B", "V"))


# --- order trees -------------------------------------------------------------------------------------


def test_one_op_is_a_leaf() -> None:
    assert order_trees(ffn(), ("a",)) == (OrderTree(("a",), Node((), (0,))),)


def test_trees_of_two_matmuls() -> None:
    # k is summed by a, whose output b reads; m, f and n are free: 1 + 3 + 6 + 6, without the five that
    # end with n, which a lacks: b alone may as well loop it
    found = shared(ffn())
    assert set(found) == useful(selections("mfn"), "n")
    assert len(found) == 11
    # the canonical order: fewer loops first, then by name
    assert found == sorted(found, key=lambda loops: (len(loops), loops))


def test_without_recomputation_only_dims_of_both_are_shared() -> None:
    # a lacks n: 1 + 2 + 2
    assert set(shared(ffn(), recompute=False)) == selections("mf")


def test_an_op_whose_output_leaves_is_not_recomputed() -> None:
    assert set(shared(ffn(outputs=("H", "Y")))) == selections("mf")


def test_dims_of_one_element_are_not_looped() -> None:
    assert set(shared(ffn(f=1))) == useful(selections("mn"), "n") == {"", "m", "nm"}
    assert shared(ffn(m=1, f=1, n=1)) == [""]


def test_a_dim_of_every_tensor_is_looped_outermost() -> None:
    # i, l, and j with recomputation, not innermost; h before all of them, or not at all: 2 · (16 - 5)
    found = shared(attention())
    assert set(found) == useful(selections("ilj", ahead="h"), "j")
    assert len(found) == 22
    assert len(shared(attention(), recompute=False)) == 2 * 5
    assert len(shared(attention(h=""))) == 11


def test_dims_of_every_tensor_have_one_order() -> None:
    found = shared(attention(h="hg"[:1]))
    assert all(loops.find("h") <= 0 for loops in found)
    spec = {"X": "ghm", "A": "ghm", "Y": "ghm", "B": "ghm", "Z": "ghm"}
    graph = build(spec, dict.fromkeys("ghm", 2), einsum("a", "X A", "Y"), einsum("b", "Y B", "Z"))
    # each of three, or not; never in two orders
    assert len(shared(graph)) == 8


def test_siblings_share_what_both_have() -> None:
    # both outputs leave: k and j would recompute; e is summed by both, but neither reads the other
    assert set(shared(siblings())) == selections("le")


def test_an_online_softmax_leaves_its_axis_free() -> None:
    assert set(shared(attention(SOFTMAX, h=""))) == useful(selections("ilj"), "j")


@pytest.mark.parametrize(
    "steps",
    [
        (SOFTMAX, pointwise("add", "g")),
        (SOFTMAX, pointwise("relu")),
        (Step("n", "normalize", "rmsnorm", "l"), SOFTMAX),
    ],
)
def test_an_axis_whose_rows_must_be_whole_is_not_shared(steps: tuple[Step, ...]) -> None:
    assert set(shared(attention(*steps, h=""))) == {"", "i", "ji"}


def test_the_axis_of_an_input_may_be_shared() -> None:
    # the rows of X, normalized before both ops, are met by holds; trees do not tell
    norm = Step("norm", "normalize", "rmsnorm", "e", tensor="X")
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj"}
    ops = (einsum("a", "X A", "K", norm), einsum("b", "X B", "V", norm))
    assert set(shared(build(spec, dict.fromkeys("lekj", 3), *ops))) == selections("le")


# --- trees of three ops ------------------------------------------------------------------------------


def chain(outputs: tuple[str, ...] = (), **sizes: int) -> Graph:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "G": "mn", "C": "np", "Y": "mp"}
    every = {"m": 4, "k": 3, "f": 4, "n": 5, "p": 2} | sizes
    ops = (einsum("a", "X A", "H"), einsum("b", "H B", "G"), einsum("c", "G C", "Y"))
    return build(spec, every, *ops, outputs=outputs)


def projections() -> Graph:
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj", "C": "ei", "Q": "li"}
    ops = (einsum("a", "X A", "K"), einsum("b", "X B", "V"), einsum("c", "X C", "Q"))
    return build(spec, dict.fromkeys("lekji", 3), *ops)


def drawn(node: Node, names: Sequence[str]) -> str:
    """A tree as text: m(a b) is a loop over m around a and b."""
    parts = [names[c] if isinstance(c, int) else drawn(c, names) for c in node.children]
    return "".join(node.loops) + "(" + " ".join(parts) + ")"


def drawings(graph: Graph, *, recompute: bool = True) -> list[str]:
    trees = order_trees(graph, [op.name for op in graph.ops], recompute)
    return [drawn(tree.root, tree.ops) for tree in trees]


def test_without_anything_to_loop_only_the_root_remains() -> None:
    # an inner node has a loop; all sizes are 1
    assert drawings(chain(m=1, k=1, f=1, n=1, p=1)) == ["(a b c)"]


def test_trees_of_a_chain_that_shares_one_dim() -> None:
    # m alone can be looped, by the root, by a node over two ops, or not at all
    found = drawings(chain(k=1, f=1, n=1, p=1))
    assert sorted(found) == sorted(["(a b c)", "m(a b c)", "(m(a b) c)", "(a m(b c))"])


def test_trees_of_a_chain_without_recomputation() -> None:
    # above all: m and nothing else, for n is summed by c, but a lacks it; above a and b: m and f, for
    # b sums f and c is outside; above b and c: m and n. Below a root that loops m: f or n only
    two = 2 + 2  # ordered selections of two dims with at least one loop
    below_root = 1 + 2 * two
    below_m = 1 + 2 * 1
    assert len(drawings(chain(), recompute=False)) == below_root + below_m


def test_trees_of_a_chain_with_recomputation() -> None:
    # above all: m, n and p, which c has and nobody reads c; above a and b: m, f and n; above b and c: m, n
    # and p. A loop over p innermost is for c alone, one over n innermost not for a and a node over b and c.
    # Over a and b, which move X, A and B, loops over n and f commute if the n is outside: no hold parts
    # them, and the other order has n innermost if f is not outside of m. Over b and c, m next to p is
    # worth nothing that p next to m is not
    over_ab = ["f", "m", "fm", "mf", "nm", "fnm", "nmf"]
    over_bc = ["m", "n", "mn", "nm", "pm", "pn", "npm", "pmn", "pnm"]
    inside = {  # what loops at the root leave to a and b, and to b and c
        "": (over_ab, over_bc),
        "m": (["f"], ["n", "pn"]),
        "n": (["f", "m", "fm", "mf"], []),
        "mn": (["f"], []),
        "nm": (["f"], []),
        "pm": (["f"], ["n"]),
        "pn": (["f", "m", "fm", "mf"], []),
        "mpn": (["f"], []),
        "npm": (["f"], []),
        "pmn": (["f"], []),
        "pnm": (["f"], []),
    }
    expected = {
        root + tree
        for root, (first, last) in inside.items()
        for tree in ("(a b c)", *(f"({one}(a b) c)" for one in first), *(f"(a {one}(b c))" for one in last))
    }
    found = drawings(chain())
    assert set(found) == expected
    assert len(found) == 46


def test_loops_that_no_hold_parts_have_one_order() -> None:
    # g and h are in every tensor but S, which is made and used within: they commute
    spec = {"X": "mgh", "S": "mg", "Y": "mgh"}
    graph = build(spec, dict.fromkeys("mgh", 2), einsum("a", "X", "S"), einsum("b", "S X", "Y"))
    found = shared(graph)
    assert "mg" in found
    assert "gm" not in found


def test_siblings_stand_in_every_order() -> None:
    graph = projections()
    roots = [tree.root for tree in order_trees(graph, ("a", "b", "c"))]
    flat = {
        root.children for root in roots if not root.loops and all(isinstance(c, int) for c in root.children)
    }
    assert flat == set(permutations(range(3)))
    # of two children that do not depend on each other, one order is enough
    pairs = {root.children for root in roots if len(root.children) == 2 and not root.loops}
    assert all(_first(children[0]) < _first(children[1]) for children in pairs)


def _first(child: Node | int) -> int:
    return child if isinstance(child, int) else min(child.leaves)


def fork() -> Graph:
    """Two readers of one softmax."""
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij", "W": "ln", "Z": "in"}
    sizes = {"i": 3, "k": 2, "l": 4, "j": 2, "n": 2}
    ops = (einsum("a", "Q K", "P", SOFTMAX), einsum("b", "P V", "O"), einsum("c", "P W", "Z"))
    return build(spec, sizes, *ops)


def projected() -> Graph:
    """Attention and what follows it."""
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij", "W": "jn", "Z": "in"}
    sizes = {"i": 3, "k": 2, "l": 4, "j": 2, "n": 2}
    ops = (einsum("a", "Q K", "P", SOFTMAX), einsum("b", "P V", "O"), einsum("c", "O W", "Z"))
    return build(spec, sizes, *ops)


@pytest.mark.parametrize("graph", [chain(), chain(outputs=("H", "Y")), projections(), fork(), projected()])
@pytest.mark.parametrize("recompute", [True, False])
def test_every_tree_is_legal_and_listed_once(graph: Graph, recompute: bool) -> None:
    names = [op.name for op in graph.ops]
    trees = order_trees(graph, names, recompute)
    assert len(set(trees)) == len(trees)
    for tree in trees:
        assert sorted(tree.root.leaves) == [0, 1, 2]
        order = [tree.ops[leaf] for leaf in tree.root.leaves]
        assert all(
            order.index(maker) < order.index(op.name)
            for op in graph.ops
            for tensor in op.reads
            if (maker := graph.producer(tensor)) is not None
        )
        check(graph, tree.root, tree.ops, frozenset(), recompute, root=True)


def ends(graph: Graph, node: Node, names: Sequence[str]) -> bool:
    """Whether a graph input is read by several ops of a node, and by others."""
    inside = {names[leaf] for leaf in node.leaves}
    readers = [set(graph.consumers(tensor)) for tensor in graph.inputs()]
    return any(len(found & inside) > 1 and found - inside for found in readers)


def check(
    graph: Graph, node: Node, names: Sequence[str], above: frozenset[str], recompute: bool, root: bool = False
) -> None:
    assert len(node.children) >= 2
    assert root or node.loops or ends(graph, node, names)
    assert not above & set(node.loops)
    assert len(set(node.loops)) == len(node.loops)
    ops = [graph.op(names[leaf]) for leaf in node.leaves]
    for dim in node.loops:
        assert graph.dims[dim] > 1
        assert any(dim in graph.op_dims(op) for op in ops)
        for op in ops:
            read = any(op.output in other.reads for other in ops)
            assert not (read and dim in graph.reduction_dims(op))
            outside = not graph.consumers(op.output) or op.output in graph.outputs
            assert dim in graph.op_dims(op) or (recompute and not outside)
            if read and any(step.axis == dim for step in op.epilogue):
                # rows of an unfinished softmax: only for readers that sum over them, all of them here
                readers = [graph.op(name) for name in graph.consumers(op.output)]
                assert all(reader in ops and dim in graph.reduction_dims(reader) for reader in readers)
    for child in node.children:
        if not isinstance(child, int):
            check(graph, child, names, above | set(node.loops), recompute)


def test_an_axis_is_not_looped_where_a_reader_outside_would_see_parts_of_rows() -> None:
    # b and c read the softmax of a; a node over a and b alone must not step its axis l
    found = drawings(fork(), recompute=False)
    assert "l(a b c)" in found
    assert not [tree for tree in found if "l(a b)" in tree or "l(a c)" in tree]


# --- legal groups ------------------------------------------------------------------------------------


def groups(graph: Graph, largest: int = 2) -> list[str]:
    return ["".join(group) for group in legal_groups(graph, largest)]


def relay(*edges: str, extra: dict[str, str] | None = None) -> Graph:
    """Ops named by letters; "abX" lets b read what a makes, and so on; all read a tensor of their own."""
    names = sorted({name for edge in edges for name in edge})
    reads = {name: [f"in{name}", *(f"out{one}" for one, other in edges if other == name)] for name in names}
    for name, tensor in (extra or {}).items():
        reads[name].append(tensor)
    tensors = {tensor for found in reads.values() for tensor in found} | {f"out{name}" for name in names}
    ops = [Op(name, "einsum", tuple(found), f"out{name}") for name, found in reads.items()]
    return build(dict.fromkeys(sorted(tensors), "m"), {"m": 2}, *ops)


def test_single_ops_come_first() -> None:
    assert groups(ffn()) == ["a", "b", "ab"]
    assert groups(ffn(), largest=1) == ["a", "b"]


def test_siblings_are_connected_through_what_they_read() -> None:
    assert groups(siblings()) == ["a", "b", "ab"]


def test_larger_groups_are_convex_and_connected_as_well() -> None:
    assert groups(relay("ab", "bc", "cd"), 4) == [*"abcd", "ab", "bc", "cd", "abc", "bcd", "abcd"]
    # b and c lie on two ways from a to d: with one of them in, the other is in as well
    diamond = groups(relay("ab", "ac", "bd", "cd"), 4)
    assert diamond[9:] == ["abc", "bcd", "abcd"]
    # a and c read T, and b runs between: it joins them
    graph = relay("ab", "bc", extra={"a": "T", "c": "T"})
    assert groups(graph, 3) == ["a", "b", "c", "ab", "bc", "abc"]


def test_groups_of_three_are_those_of_brute_force() -> None:
    graph = relay("ab", "bd", "ac", "ce", "de", "df", extra={"e": "T", "f": "T"})
    found = legal_groups(graph, 6)
    users = {op.name: set(op.tensors) for op in graph.ops}
    feeds = {(a.name, b.name) for a in graph.ops for b in graph.ops if a.output in b.reads}
    below = set(feeds)
    for _ in graph.ops:
        below |= {(a, d) for a, b in below for c, d in feeds if b == c}

    def legal(group: tuple[str, ...]) -> bool:
        reached, rest = {group[0]}, set(group[1:])
        while more := {one for one in rest if any(users[one] & users[other] for other in reached)}:
            reached, rest = reached | more, rest - more
        outside = {op.name for op in graph.ops} - set(group)
        return not rest and not any(
            (a, x) in below and (x, b) in below for x in outside for a in group for b in group
        )

    names = [op.name for op in graph.ops]
    expected = [g for n in range(1, 7) for g in combinations(names, n) if legal(g)]
    assert set(found) == set(expected)
    assert len(found) == len(expected)


def test_strangers_are_not_fused() -> None:
    assert groups(relay("ab", "cd")) == ["a", "b", "c", "d", "ab", "cd"]


def test_a_group_is_convex() -> None:
    # a feeds b and c, b feeds c: with c in and b out, b would have to run in the middle
    assert groups(relay("ab", "bc", "ac")) == ["a", "b", "c", "ab", "bc"]
    # the way round may be longer
    assert groups(relay("ab", "bc", "cd", "ad")) == ["a", "b", "c", "d", "ab", "bc", "cd"]


def test_siblings_with_something_between_are_not_convex() -> None:
    # a and c read T, and b runs between
    graph = relay("ab", "bc", extra={"a": "T", "c": "T"})
    assert groups(graph) == ["a", "b", "c", "ab", "bc"]


def test_both_sides_of_a_diamond_may_be_fused() -> None:
    # b and c share what a makes
    assert groups(relay("ab", "ac", "bd", "cd")) == ["a", "b", "c", "d", "ab", "ac", "bc", "bd", "cd"]
