"""What a nest does, by hand: pieces, sites, lifetimes, and nests that cannot be walked."""

from __future__ import annotations

import pytest
from nests import build, einsum

from mmee_solver.errors import MappingError
from mmee_solver.nest import Compute, Hold, Loop, Nest
from mmee_solver.trace import Trace, count_pieces, cut, trace
from mmee_solver.workload import Graph


def chain() -> Graph:
    """Two matmuls, H = X·A and Y = H·B."""
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
    return build(spec, {"m": 10, "k": 6, "f": 7, "n": 5}, einsum("a", "X A", "H"), einsum("b", "H B", "Y"))


def alive(found: Trace) -> list[str]:
    return ["".join(found.holds[index].tensor for index in moment) for moment in found.moments]


FUSED = (
    Loop(
        "m",
        4,
        (
            Hold("H"),
            Loop("f", 3, (Hold("X"), Hold("A"), Compute("a"))),
            Hold("Y"),
            Loop("f", 7, (Hold("B"), Loop("m", 3, (Compute("b"),)))),
        ),
    ),
)


@pytest.mark.parametrize(
    ("tiles", "pieces"),
    [
        ([], ((12, 1),)),
        ([12], ((12, 1),)),
        ([13], ((12, 1),)),
        ([4], ((4, 3),)),
        ([5], ((5, 2), (2, 1))),
        ([5, 3], ((3, 2), (2, 3))),  # 3+2, 3+2, 2
        ([5, 2], ((2, 5), (1, 2))),  # 2+2+1, 2+2+1, 2
        ([7, 4], ((4, 2), (3, 1), (1, 1))),  # 4+3, 4+1
        ([1], ((1, 12),)),
    ],
)
def test_cutting_12(tiles: list[int], pieces: tuple[tuple[int, int], ...]) -> None:
    found = ((12, 1),)
    for tile in tiles:
        found = cut(found, tile)
    assert found == pieces
    assert sum(extent * count for extent, count in found) == 12
    assert count_pieces(found) == sum(count for _, count in pieces)


def test_sites_of_a_fused_pair() -> None:
    found = trace(chain(), FUSED)
    held = found.hold_of("a", "X")
    # m = 10 by 4: 4 + 4 + 2; f = 7 by 3: 3 + 3 + 1
    assert (held.steps("m"), held.tile("m")) == (3, 4)
    assert (held.steps("f"), held.tile("f")) == (3, 3)
    assert (held.steps("k"), held.tile("k")) == (1, 6)
    assert found.hold_of("a", "H") is found.hold_of("b", "H")
    assert found.hold_of("a", "H").ops == {"a", "b"}
    site = found.compute_of("b")
    # 4 by 3 is 3 + 1, twice, and 2
    assert site.pieces["m"] == ((3, 2), (2, 1), (1, 2))
    assert site.pieces["f"] == ((7, 1),)


def test_a_tile_lives_from_its_hold_to_its_last_use_in_the_list() -> None:
    # H, X and A; then, with X and A gone with their loop, Y and B
    assert alive(trace(chain(), FUSED)) == ["H", "HX", "HXA", "HXA", "HY", "HYB", "HYB"]


def test_a_tile_is_gone_before_the_next_item_of_its_list() -> None:
    nest = (Hold("X"), Hold("A"), Hold("H"), Compute("a"), Hold("B"), Hold("Y"), Compute("b"))
    assert alive(trace(chain(), nest)) == ["X", "XA", "XAH", "XAH", "HB", "HBY", "HBY"]


def test_a_tensor_may_be_held_again_after_its_loop() -> None:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "kf", "G": "mf"}
    graph = build(spec, {"m": 4, "k": 2, "f": 3}, einsum("a", "X A", "H"), einsum("b", "X B", "G"))
    nest = (
        Loop("m", 2, (Hold("X"), Hold("A"), Hold("H"), Compute("a"))),
        Loop("f", 1, (Hold("X"), Hold("B"), Hold("G"), Compute("b"))),
    )
    found = trace(graph, nest)
    assert [site.tensor for site in found.holds].count("X") == 2
    assert found.hold_of("a", "X").ops == {"a"}
    assert found.hold_of("b", "X").steps("f") == 3


def test_what_is_not_there() -> None:
    found = trace(chain(), FUSED)
    with pytest.raises(KeyError):
        found.hold_of("c", "X")
    with pytest.raises(KeyError):
        found.compute_of("c")


ALL_A = (Hold("X"), Hold("A"), Hold("H"), Compute("a"))


@pytest.mark.parametrize(
    ("nest", "message"),
    [
        ((Hold("X"), Hold("A"), Compute("a")), '"a" needs "H", which is not held there'),
        # held in another list: it ends with its loop
        (
            (Loop("m", 2, ALL_A), Hold("B"), Hold("Y"), Compute("b")),
            '"b" needs "H", which is not held there',
        ),
        ((Hold("X"), Loop("m", 2, ALL_A)), '"X" is held twice on one path'),
        ((Hold("X"), *ALL_A), '"X" is held twice on one path'),
        ((*ALL_A, Hold("B")), 'the hold of "B" serves no op'),
        ((*ALL_A, Hold("X")), 'the hold of "X" serves no op'),
        ((Hold("H"), Loop("m", 2, ALL_A)), '"H" is held twice on one path'),
        ((Hold("Q"), *ALL_A), 'hold names "Q", which is no tensor of the graph'),
        ((*ALL_A, Compute("c")), 'compute names "c", which is no op of the graph'),
        ((Loop("z", 2, ALL_A),), 'a loop steps "z", which is no dim of the graph'),
        ((*ALL_A, Compute("a")), '"a" is computed in two places'),
    ],
)
def test_nests_that_cannot_be_walked(nest: Nest, message: str) -> None:
    with pytest.raises(MappingError) as caught:
        trace(chain(), nest)
    assert str(caught.value) == message
