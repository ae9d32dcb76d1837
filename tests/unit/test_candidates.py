"""Which groups are searched, and with which order trees; the certificate says so."""

from __future__ import annotations

import pytest
from instances import chain

from mmee_solver.candidates import EVERY, FLAT, FORMS, ONCE, TREES, Candidates, candidates
from mmee_solver.canon import Form, canonical
from mmee_solver.certify import Space
from mmee_solver.trees import order_trees
from mmee_solver.workload import Graph


def found(graph: Graph, recompute: bool = True, largest: int | None = None) -> Candidates:
    """The candidates of a graph."""

    def form(group: tuple[str, ...]) -> Form:
        return canonical(graph, group, frozenset())[0]

    return candidates(graph, form, recompute, largest)


def names(first: int, last: int) -> tuple[str, ...]:
    """Ops of a chain."""
    return tuple(f"mm{i}" for i in range(first, last))


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_every_run_of_a_short_chain_is_a_group(length: int) -> None:
    runs = {names(i, j) for i in range(length) for j in range(i + 1, length + 1)}
    assert set(found(chain(length)).groups) == runs


def test_groups_come_smaller_ones_first() -> None:
    sizes = [len(group) for group in found(chain(6)).groups]
    assert sizes == sorted(sizes)


def test_small_groups_take_every_tree_and_larger_ones_fewer() -> None:
    """Thousands of trees are within the budget only without recomputation, or not at all."""
    graph = chain(12)
    some = found(graph)
    kinds = [some.kind(size) for size in range(1, 13)]
    assert kinds == sorted(kinds, key=[EVERY, ONCE, FLAT].index)
    assert kinds[:2] == [EVERY, EVERY]
    assert set(kinds) == {EVERY, ONCE, FLAT}
    for kind, recompute, flat in ((EVERY, True, False), (ONCE, False, False), (FLAT, True, True)):
        group = names(0, kinds.index(kind) + 1)
        assert some.trees(group) == order_trees(graph, group, recompute, flat)
    different = [trees for group, trees in some.listed.items() if len(group) > 2]
    assert 0 < sum(map(len, different)) <= TREES


def test_without_recomputation_none_is_taken() -> None:
    some = found(chain(12), recompute=False)
    kinds = [some.kind(size) for size in range(1, 13)]
    assert ONCE not in kinds
    group = names(0, kinds.index(FLAT))
    assert some.trees(group) == order_trees(some.graph, group, recompute=False)


def test_equal_groups_are_listed_once() -> None:
    some = found(chain(8))
    assert [group for group in some.listed if len(group) == 2] == [("mm0", "mm1")]


def test_the_whole_graph_is_a_group_even_where_sizes_before_it_are_not() -> None:
    """Every width is another one, so that no two groups are equal: too many forms of flat groups."""
    widths = {f"k{i}": 16 + i for i in range(33)}
    some = found(chain(32, **widths))
    assert some.groups[-1] == names(0, 32)
    assert some.largest == 32
    flat = {group for group in some.groups[:-1] if some.kind(len(group)) == FLAT}
    assert len(flat) <= FORMS
    assert max(len(group) for group in some.groups[:-1]) < 31


def test_a_size_at_most_is_kept_to() -> None:
    assert found(chain(5), largest=1).groups == tuple((f"mm{i}",) for i in range(5))


@pytest.mark.parametrize(("length", "said"), [(1, "one op"), (3, "3 ops"), (12, "12 ops")])
def test_the_certificate_says_what_was_searched(length: int, said: str) -> None:
    some = found(chain(length))
    space = str(Space(some, residency=True, left_out=()))
    assert f"groups of at most {said}" in space
    for kind, words in ((ONCE, "that computes each op once"), (FLAT, "in one list below shared loops")):
        assert (words in space) == (some.upto(kind) > 0)
    assert ("left_out_groups" in str(Space(some, False, (names(0, length),)))) == (some.upto(FLAT) > 0)
