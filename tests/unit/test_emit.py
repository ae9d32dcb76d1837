"""From structures to nests."""

from __future__ import annotations

from mmee_solver import load_accelerator
from mmee_solver.cost import evaluate_group
from mmee_solver.emit import emit
from mmee_solver.nest import Compute, Group, Hold, Loop
from mmee_solver.structures import Axis, HoldAt, LoopAt, Structure
from mmee_solver.workload import Graph, Op, Tensor


def siblings() -> Graph:
    spec = {"X": "le", "A": "ek", "K": "lk", "B": "ej", "V": "lj"}
    tensors = {name: Tensor(name, tuple(dims), "fp16") for name, dims in spec.items()}
    ops = (Op("a", "einsum", ("X", "A"), "K"), Op("b", "einsum", ("X", "B"), "V"))
    return Graph("siblings", {"l": 4, "e": 3, "k": 2, "j": 5}, tensors, ops)


def leaf(*names: str) -> tuple[HoldAt, ...]:
    return tuple(HoldAt(name) for name in names)


def test_private_holds_of_a_shared_input_end_with_their_op() -> None:
    structure = Structure(("a", "b"), (), (), (), (leaf("X", "A", "K"), leaf("X", "B", "V")))
    group = emit(siblings(), structure, [], {})
    assert group.nest == (
        Loop("l", 4, (Hold("X"), Hold("A"), Hold("K"), Compute("a"))),
        Hold("X"),
        Hold("B"),
        Hold("V"),
        Compute("b"),
    )
    metrics = evaluate_group(siblings(), load_accelerator("accel1"), group)
    assert metrics.traffic["X"] == (2 * 24, 0)  # read once for each op
    assert metrics.peak_buffer_bytes == 24 + 30 + 40  # X, B and V; A and K are gone


def test_a_body_hold_serves_both() -> None:
    structure = Structure(("a", "b"), (), (), ("X",), (leaf("A", "K"), leaf("B", "V")))
    group = emit(siblings(), structure, [], {})
    assert isinstance(group, Group)
    metrics = evaluate_group(siblings(), load_accelerator("accel1"), group)
    assert metrics.traffic["X"] == (24, 0)


def test_loops_of_one_step_are_left_out() -> None:
    axes = (Axis("l", "shared"), Axis("e", "private"), Axis("j", "private"))
    inner = ((LoopAt(1), *leaf("X", "A", "K")), (LoopAt(2), *leaf("X", "B", "V")))
    structure = Structure(("a", "b"), axes, (LoopAt(0),), (), inner)
    group = emit(siblings(), structure, [2, 3, 1], {})
    (outer,) = group.nest
    assert isinstance(outer, Loop)
    assert (outer.dim, outer.tile) == ("l", 2)
    first, second = outer.body
    # e with tile 3 is one step and gone; a loop of one step keeps the private X apart.
    assert isinstance(first, Loop)
    assert first.tile == {"l": 2, "e": 3, "k": 2}[first.dim]
    assert isinstance(second, Loop)
    assert (second.dim, second.tile) == ("j", 1)
