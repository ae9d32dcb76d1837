"""Skeletons: shared loops with the holds that several leaves share, by hand."""

from __future__ import annotations

from nests import SOFTMAX, build, einsum

from mmee_solver.skeletons import Skeleton, falls_apart, shares_loops, skeletons
from mmee_solver.space import GroupSpace
from mmee_solver.trees import Node, OrderTree, order_trees
from mmee_solver.workload import Graph, Step


def siblings() -> Graph:
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj"}
    return build(spec, dict.fromkeys("lekj", 3), einsum("a", "X A", "K"), einsum("b", "X B", "V"))


def chain() -> Graph:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "G": "mn", "C": "np", "Y": "mp"}
    ops = (einsum("a", "X A", "H"), einsum("b", "H B", "G"), einsum("c", "G C", "Y"))
    return build(spec, dict.fromkeys("mkfnp", 3), *ops)


def of(graph: Graph, root: Node) -> list[Skeleton]:
    names = tuple(op.name for op in graph.ops)
    return list(skeletons(GroupSpace.of(graph, names), [OrderTree(names, root)]))


def holds(skeleton: Skeleton) -> dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Tensor → dims looped above, leaves that it is alive in, leaves that it serves."""
    return {s.tensor: ("".join(s.level), s.alive, s.serves) for s in skeleton.sites}


def test_an_internal_tensor_is_held_at_the_lowest_node_over_its_ops() -> None:
    inner = Node(("f",), (0, 1))
    (found,) = of(chain(), Node(("m",), (inner, 2)))
    # H between a and b only; G, made below f, is used outside of that loop
    assert holds(found) == {"H": ("mf", (0, 1), (0, 1)), "G": ("m", (0, 1, 2), (1, 2))}


def test_a_hold_of_a_list_lasts_from_its_first_to_its_last_child() -> None:
    (found,) = of(chain(), Node(("m",), (0, 1, 2)))
    assert holds(found) == {"H": ("m", (0, 1), (0, 1)), "G": ("m", (1, 2), (1, 2))}


def test_a_shared_input_is_held_once_or_by_each_op() -> None:
    found = of(siblings(), Node(("l",), (0, 1)))
    # X (l, e): above l its tile would only be larger
    assert [holds(s) for s in found] == [{"X": ("l", (0, 1), (0, 1))}, {}]


def test_a_shared_input_goes_above_loops_that_it_lacks() -> None:
    spec = {"X": "e", "A": "elk", "K": "lk", "B": "elj", "V": "lj"}
    graph = build(spec, dict.fromkeys("lekj", 3), einsum("a", "X A", "K"), einsum("b", "X B", "V"))
    found = [holds(s) for s in of(graph, Node(("l",), (0, 1)))]
    # directly below l it would be read more often, for the same room
    assert found == [{"X": ("", (0, 1), (0, 1))}, {}]
    # between e, which it has, and l, which it lacks; not above e, nor below l
    found = [holds(s) for s in of(graph, Node(("e", "l"), (0, 1)))]
    assert found == [{"X": ("e", (0, 1), (0, 1))}, {}]


def normalized(*further: Step) -> Graph:
    """Siblings that normalize their input along e, then take further steps."""
    norm = Step("norm", "normalize", "rmsnorm", "e", tensor="X")
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj", "c": "e"}
    ops = (einsum("a", "X A", "K", norm, *further), einsum("b", "X B", "V", norm, *further))
    return build(spec, dict.fromkeys("lekj", 3), *ops)


def test_a_shared_input_may_stay_whole_along_the_axis_of_its_rows() -> None:
    # below e, statistics run online; above e, X is larger, but its rows are whole
    found = [holds(s).get("X") for s in of(normalized(), Node(("e",), (0, 1)))]
    assert found == [("", (0, 1), (0, 1)), ("e", (0, 1), (0, 1)), None]
    # l is no axis: above l is out as ever; between l and e, or below both
    found = [holds(s).get("X") for s in of(normalized(), Node(("l", "e"), (0, 1)))]
    assert found == [("l", (0, 1), (0, 1)), ("le", (0, 1), (0, 1)), None]


def test_a_shared_input_whose_rows_must_be_whole_is_not_held_below_their_axis() -> None:
    # a bias after the statistics: they cannot wait for the end
    bias = Step("bias", "elementwise", "add", inputs=("c",), tensor="X")
    found = {holds(s).get("X") for s in of(normalized(bias), Node(("l", "e"), (0, 1)))}
    assert found == {("l", (0, 1), (0, 1)), None}


def test_a_hold_above_the_loop_of_an_inner_node_is_alive_in_that_node_alone() -> None:
    spec = {"X": "e", "A": "elk", "K": "lk", "B": "elj", "V": "lj", "C": "lk", "D": "kl", "W": "l"}
    ops = (einsum("a", "X A", "K"), einsum("b", "X B", "V"), einsum("c", "C D", "W"))
    graph = build(spec, dict.fromkeys("lekj", 3), *ops)
    # X lacks l: not in the list below it; c, outside of the node, does not meet X
    found = {holds(s).get("X") for s in of(graph, Node((), (Node(("l",), (0, 1)), 2)))}
    assert found == {("", (0, 1), (0, 1)), None}


def test_a_hold_for_some_children_may_be_read_again_to_leave_room_for_others() -> None:
    # X is read by a and b, not by c: below m it is not there while c runs
    spec = {"X": "k", "A": "mkf", "H": "mf", "B": "mkf", "G": "mf", "C": "fn", "Y": "mn"}
    ops = (einsum("a", "X A", "H"), einsum("b", "X B H", "G"), einsum("c", "G C", "Y"))
    graph = build(spec, dict.fromkeys("mkfn", 2), *ops)
    found = [holds(s).get("X") for s in of(graph, Node(("m",), (0, 1, 2)))]
    assert found == [("", (0, 1, 2), (0, 1)), ("m", (0, 1), (0, 1)), None]


def test_a_tensor_of_two_leaves_of_an_inner_node_may_be_held_there() -> None:
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj", "C": "ei", "Q": "li"}
    ops = (einsum("a", "X A", "K"), einsum("b", "X B", "V"), einsum("c", "X C", "Q"))
    graph = build(spec, dict.fromkeys("lekji", 3), *ops)
    found = [holds(s).get("X") for s in of(graph, Node((), (Node(("l",), (0, 1)), 2)))]
    # in the whole list for all; below l for a and b, c on its own; each on its own
    assert found == [("", (0, 1, 2), (0, 1, 2)), ("l", (0, 1), (0, 1)), None]


def test_paths_say_which_leaves_are_below_each_loop() -> None:
    (found,) = of(chain(), Node(("m",), (Node(("f",), (0, 1)), 2)))
    assert [[(step.dim, step.leaves) for step in path] for path in found.paths] == [
        [("m", (0, 1, 2)), ("f", (0, 1))],
        [("m", (0, 1, 2)), ("f", (0, 1))],
        [("m", (0, 1, 2))],
    ]


def test_every_internal_tensor_of_every_tree_has_one_hold() -> None:
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij", "W": "jn", "Z": "in"}
    sizes = {"i": 3, "k": 2, "l": 4, "j": 2, "n": 2}
    ops = (einsum("a", "Q K", "P", SOFTMAX), einsum("b", "P V", "O"), einsum("c", "O W", "Z"))
    graph = build(spec, sizes, *ops)
    names = ("a", "b", "c")
    for skeleton in skeletons(GroupSpace.of(graph, names), order_trees(graph, names)):
        assert sorted(site.tensor for site in skeleton.sites) == ["O", "P"]


def kept(graph: Graph, root: Node) -> list[dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]]]:
    """Holds of the skeletons of a tree that share no loop in vain."""
    space = GroupSpace.of(graph, [op.name for op in graph.ops])
    return [holds(one) for one in of(graph, root) if shares_loops(space, one.root)]


def test_loops_are_shared_by_what_shares_a_tensor_below_them() -> None:
    # without X in the list, each of the two can have l by itself
    assert kept(siblings(), Node(("l",), (0, 1))) == [{"X": ("l", (0, 1), (0, 1))}]
    # X above l is X in the list, with l inside of each
    spec = {"X": "e", "A": "elk", "K": "lk", "B": "elj", "V": "lj"}
    graph = build(spec, dict.fromkeys("lekj", 3), einsum("a", "X A", "K"), einsum("b", "X B", "V"))
    assert kept(graph, Node(("l",), (0, 1))) == []
    # a node without loops shares none
    assert kept(siblings(), Node((), (0, 1))) == [{"X": ("", (0, 1), (0, 1))}, {}]
    # what is made inside joins as well, here all but the third op
    assert len(kept(chain(), Node(("m",), (0, 1, 2)))) == 1


def test_a_root_without_loops_falls_apart_where_nothing_is_held_for_both() -> None:
    space = GroupSpace.of(siblings(), "ab")
    assert [falls_apart(space, one) for one in of(siblings(), Node((), (0, 1)))] == [False, True]
    assert [falls_apart(space, one) for one in of(siblings(), Node(("l",), (0, 1)))] == [False, False]
