"""Random tiny graphs of three ops for tests against brute force."""

from __future__ import annotations

from random import Random

from nests import SOFTMAX, einsum, pointwise

from mmee_solver.workload import Graph, Step, Tensor

KINDS = (
    "chain",
    "gate-up-down",
    "attention-projection",
    "query-attention",
    "key-attention",
    "two-readers",
    "norm-fork",
    "three-siblings",
)


def graph(rng: Random, kind: str, looped: int = 2) -> Graph:
    """A graph of three ops, ``looped`` dims of size 2 or 3 and all others of size 1."""
    outputs: tuple[str, ...] = ()
    soft = [SOFTMAX] if rng.random() < 0.6 else []
    if kind == "chain":
        spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "G": "mn", "C": "np", "Y": "mp"}
        ops = [einsum("a", "X A", "H"), einsum("b", "H B", "G"), einsum("c", "G C", "Y")]
    elif kind == "gate-up-down":
        spec = {"X": "mk", "A": "kf", "B": "kf", "G": "mf", "H": "mf", "C": "fn", "Y": "mn"}
        gate = einsum("a", "X A", "G", pointwise("silu"))
        ops = [gate, einsum("b", "X B", "H", pointwise("mul", "G")), einsum("c", "H C", "Y")]
    elif kind == "attention-projection":
        spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij", "W": "jn", "Z": "in"}
        ops = [einsum("a", "Q K", "P", *soft), einsum("b", "P V", "O"), einsum("c", "O W", "Z")]
    elif kind in ("query-attention", "key-attention"):
        query = kind == "query-attention"
        spec = {
            "X": "ie" if query else "le",
            "W": "ek",
            "Q": "ik",
            "K": "lk",
            "P": "il",
            "V": "lj",
            "O": "ij",
        }
        first = einsum("a", "X W", "Q" if query else "K")
        ops = [first, einsum("b", "Q K", "P", *soft), einsum("c", "P V", "O")]
    elif kind == "two-readers":
        spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn", "C": "fp", "Z": "mp"}
        ops = [einsum("a", "X A", "H"), einsum("b", "H B", "Y"), einsum("c", "H C", "Z")]
        outputs = ("H", "Y", "Z") if rng.random() < 0.3 else ()
    elif kind == "norm-fork":
        norm = Step("norm", "normalize", rng.choice(["rmsnorm", "layernorm"]), "k", tensor="X")
        spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn", "C": "kp", "Z": "mp"}
        ops = [einsum("a", "X A", "H", norm), einsum("b", "H B", "Y"), einsum("c", "X C", "Z", norm)]
    elif kind == "three-siblings":
        spec = {"X": "me", "A": "ea", "B": "eb", "C": "ec", "Q": "ma", "K": "mb", "V": "mc"}
        ops = [einsum("a", "X A", "Q"), einsum("b", "X B", "K"), einsum("c", "X C", "V")]
    else:
        raise ValueError(kind)
    names = sorted({dim for dims in spec.values() for dim in dims})
    sizes = dict.fromkeys(names, 1)
    for dim in rng.sample(names, looped):
        sizes[dim] = rng.choice([2, 2, 3])
    tensors = {name: Tensor(name, tuple(dims), rng.choice(["fp16", "int8"])) for name, dims in spec.items()}
    return Graph(kind, sizes, tensors, tuple(ops), outputs)
