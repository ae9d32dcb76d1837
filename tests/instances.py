"""Random tiny graphs and accelerators for tests against brute force."""

from __future__ import annotations

from random import Random

from mmee_solver.accelerator import Accelerator, Array, Buffer, Dram, Vector
from mmee_solver.workload import Graph, Op, Step, Tensor

KINDS = (
    "matmul",
    "batched",
    "three-input",
    "vector",
    "elementwise",
    "ffn",
    "attention",
    "online-attention",
    "multi-query",
    "siblings",
    "siblings-batched",
    "residual",
    "gate",
    "norm-matmul",
    "norm-ffn",
    "kept-intermediate",
    "hadamard",
    "softmax-input",
)
# Kinds beside the plain ones: several users of a norm, statistics under further loops, ops that cannot fold.
FURTHER_KINDS = (
    "norm-gate",
    "norm-siblings",
    "norm-residual",
    "norm-two-reductions",
    "softmax-hadamard",
    "prologue-operand",
    "softmax-gate",
    "elementwise-last",
    "softmax-op",
)


def _tensors(rng: Random, spec: dict[str, str], dtype: str) -> dict[str, Tensor]:
    return {name: Tensor(name, tuple(dims), dtype) for name, dims in spec.items()}


def graph(rng: Random, kind: str, largest: int = 4, looped: int = 3) -> Graph:
    """A graph of one or two ops of a kind, sizes 1..largest, at most ``looped`` of them above 1."""
    soft = Step("softmax", "softmax", axis="l")
    norm = Step("norm", "normalize", rng.choice(["rmsnorm", "layernorm"]), "k", tensor="X")
    outputs: tuple[str, ...] = ()
    if kind in ("matmul", "norm-matmul"):
        spec = {"X": "mk", "A": "kn", "Y": "mn"}
        pro = (norm,) if kind == "norm-matmul" else ()
        ops = [Op("a", "einsum", ("X", "A"), "Y", prologue=pro)]
    elif kind == "batched":
        spec = {"X": "hmk", "A": "hkn", "Y": "hmn"}
        ops = [Op("a", "einsum", ("X", "A"), "Y")]
    elif kind == "three-input":
        spec = {"X": "mk", "A": "kn", "B": "mn", "Y": "n"}
        ops = [Op("a", "einsum", ("X", "A", "B"), "Y")]
    elif kind == "vector":
        spec = {"X": "mk", "A": "k", "Y": "m"}
        ops = [Op("a", "einsum", ("X", "A"), "Y")]
    elif kind == "elementwise":
        spec = {"X": "mk", "A": "k", "Y": "mk"}
        ops = [Op("a", "elementwise", ("X", "A"), "Y", function="add")]
    elif kind == "softmax-input":
        spec = {"P": "il", "V": "lj", "O": "ij"}
        step = Step("softmax", "softmax", axis="l", tensor="P")
        ops = [Op("a", "einsum", ("P", "V"), "O", prologue=(step,))]
    elif kind in ("ffn", "residual", "norm-ffn", "kept-intermediate"):
        spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "Y": "mn"}
        pro = (norm,) if kind == "norm-ffn" else ()
        epi = (Step("act", "elementwise", "gelu"),) if kind == "residual" else ()
        last: tuple[Step, ...] = ()
        if kind == "residual":
            spec["R"] = "mn"
            last = (Step("add", "elementwise", "add", inputs=("R",)),)
        if kind == "kept-intermediate":
            outputs = ("H", "Y")
        ops = [
            Op("a", "einsum", ("X", "A"), "H", prologue=pro, epilogue=epi),
            Op("b", "einsum", ("H", "B"), "Y", epilogue=last),
        ]
    elif kind in ("attention", "online-attention", "multi-query"):
        h = "h" if rng.random() < 0.5 or kind == "multi-query" else ""
        kv = "" if kind == "multi-query" else h
        spec = {"Q": h + "ik", "K": kv + "lk", "P": h + "il", "V": kv + "lj", "O": h + "ij"}
        epi = () if kind == "attention" else (soft,)
        ops = [
            Op("a", "einsum", ("Q", "K"), "P", epilogue=epi),
            Op("b", "einsum", ("P", "V"), "O"),
        ]
    elif kind in ("siblings", "siblings-batched"):
        h = "h" if kind == "siblings-batched" else ""
        spec = {"X": "le", "A": h + "ek", "K": h + "lk", "B": "ej", "V": "lj"}
        ops = [Op("a", "einsum", ("X", "A"), "K"), Op("b", "einsum", ("X", "B"), "V")]
    elif kind == "gate":
        spec = {"X": "mk", "A": "kf", "G": "mf", "B": "kf", "U": "mf"}
        gate = (Step("mul", "elementwise", "mul", inputs=("G",)),)
        silu = (Step("silu", "elementwise", "silu"),)
        ops = [
            Op("a", "einsum", ("X", "A"), "G", epilogue=silu),
            Op("b", "einsum", ("X", "B"), "U", epilogue=gate),
        ]
    elif kind == "hadamard":
        spec = {"X": "mk", "A": "kf", "H": "mf", "B": "mf", "Y": "mf"}
        ops = [Op("a", "einsum", ("X", "A"), "H"), Op("b", "einsum", ("H", "B"), "Y")]
    elif kind in FURTHER_KINDS:
        spec, ops = _further(rng, kind)
    else:
        raise ValueError(kind)
    dtype = rng.choice(["fp16", "fp16", "int8", "fp32"])
    if kind in FURTHER_KINDS:
        dtype = rng.choice(["fp16", "int8", "int4"])
    names = sorted({dim for dims in spec.values() for dim in dims})
    sizes = {dim: rng.choice([1, *range(2, largest + 1), *range(2, largest + 1)]) for dim in names}
    while sum(size > 1 for size in sizes.values()) > looped or _product(sizes) > 60:
        sizes[rng.choice(names)] = rng.choice([1, 2])
    return Graph(kind, sizes, _tensors(rng, spec, dtype), tuple(ops), outputs)


def _further(rng: Random, kind: str) -> tuple[dict[str, str], list[Op]]:
    """Tensors (dims of one letter each) and folded ops of a further kind."""
    soft = Step("softmax", "softmax", axis="l")
    norm = Step("norm", "normalize", rng.choice(["rmsnorm", "layernorm"]), "k", tensor="X")
    if kind == "norm-gate":
        gate = (Step("mul", "elementwise", "mul", inputs=("H",)),)
        first = Op("a", "einsum", ("X", "A"), "H", prologue=(norm,))
        ops = [first, Op("b", "einsum", ("X", "B"), "Y", prologue=(norm,), epilogue=gate)]
        return {"X": "mk", "A": "kf", "B": "kf", "H": "mf", "Y": "mf"}, ops
    if kind == "norm-siblings":
        second = (norm,) if rng.random() < 0.5 else ()
        first = Op("a", "einsum", ("X", "A"), "K", prologue=(norm,))
        ops = [first, Op("b", "einsum", ("X", "B"), "V", prologue=second)]
        return {"X": "lk", "A": "ke", "K": "le", "B": "kj", "V": "lj"}, ops
    if kind == "norm-residual":
        add = (Step("add", "elementwise", "add", inputs=("X",)),)
        ops = [
            Op("a", "einsum", ("X", "A"), "H", prologue=(norm,)),
            Op("b", "einsum", ("H", "B"), "Y", epilogue=add),
        ]
        return {"X": "mk", "A": "kf", "H": "mf", "B": "fk", "Y": "mk"}, ops
    if kind == "norm-two-reductions":
        step = norm if rng.random() < 0.5 else Step("softmax", "softmax", axis="k", tensor="X")
        return {"X": "mk", "A": "kqn", "Y": "mn"}, [Op("a", "einsum", ("X", "A"), "Y", prologue=(step,))]
    if kind == "softmax-hadamard":
        ops = [Op("a", "einsum", ("Q", "K"), "P", epilogue=(soft,)), Op("b", "einsum", ("P", "B"), "Y")]
        return {"Q": "ik", "K": "lk", "P": "il", "B": "il", "Y": "i"}, ops
    if kind == "prologue-operand":
        mul = Step("mul", "elementwise", "mul", inputs=("G",), tensor="X")
        ops = [Op("a", "einsum", ("A", "B"), "G"), Op("b", "einsum", ("X", "C"), "Y", prologue=(mul,))]
        return {"A": "mp", "B": "pk", "G": "mk", "X": "mk", "C": "kn", "Y": "mn"}, ops
    if kind == "softmax-gate":
        gate = (Step("mul", "elementwise", "mul", inputs=("P",)),)
        ops = [
            Op("a", "einsum", ("Q", "K"), "P", epilogue=(soft,)),
            Op("b", "einsum", ("X", "W"), "Y", epilogue=gate),
        ]
        return {"Q": "ik", "K": "lk", "P": "il", "X": "im", "W": "ml", "Y": "il"}, ops
    if kind == "elementwise-last":
        ops = [Op("a", "einsum", ("X", "A"), "H"), Op("b", "elementwise", ("H", "B"), "Y", function="add")]
        return {"X": "mk", "A": "kf", "H": "mf", "B": "f", "Y": "mf"}, ops
    ops = [Op("a", "softmax", ("S",), "P", axis="l"), Op("b", "einsum", ("P", "V"), "O")]
    return {"S": "il", "P": "il", "V": "lj", "O": "ij"}, ops


def _product(sizes: dict[str, int]) -> int:
    total = 1
    for size in sizes.values():
        total *= size
    return total


def accelerator(rng: Random, graph: Graph) -> Accelerator:
    """A small accelerator whose buffer holds between a few elements and everything."""
    everything = sum(graph.bits(name) for name in graph.tensors) // 8
    capacity = rng.randint(8, max(9, everything + 8))
    count = rng.choice([1, 1, 2, 4])
    shapes = rng.choice([((2, 2),), ((1, 2),), ((2, 3),), ((1, 4), (2, 2))])
    return Accelerator(
        "tiny",
        1e9,
        Dram(rng.choice([0.5e9, 2e9, 1e12]), rng.choice([64, 7.03]), rng.choice([64, 50.5])),
        Buffer(
            capacity,
            rng.choice([2.0, 0.25, 40]),
            rng.choice([2.3, 0.1]),
            rng.choice([None, None, 4, 1.5]),
            rng.random() < 0.2,
        ),
        Array(count, shapes, 0.3, 0.5, pipeline=rng.choice(["ideal", "ideal", "systolic"])),
        Vector(rng.choice([1, 2, 128]), 0.4, rng.choice(["mul", "add"])),
    )


def chain(length: int, rows: int = 64, width: int = 16, **sizes: int) -> Graph:
    """Equal products mm0, mm1, … in a row; ``sizes`` gives single dims (k0, k1, …) another width."""
    dims = {"m": rows} | {f"k{i}": sizes.get(f"k{i}", width) for i in range(length + 1)}
    spec = {f"X{i}": ("m", f"k{i}") for i in range(length + 1)}
    spec |= {f"W{i}": (f"k{i}", f"k{i + 1}") for i in range(length)}
    ops = tuple(Op(f"mm{i}", "einsum", (f"X{i}", f"W{i}"), f"X{i + 1}") for i in range(length))
    return Graph("chain", dims, {name: Tensor(name, shape, "fp16") for name, shape in spec.items()}, ops)
