"""Random legal nests of random folded graphs, built from the rules of design §5 and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from random import Random

import instances
import numpy as np

from mmee_solver.accelerator import STATIONARITY, Accelerator
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Item, Loop, Nest
from mmee_solver.units import DTYPE_BITS
from mmee_solver.workload import Graph, Op, Step, Tensor

Pieces = dict[str, tuple[int, ...]]


def graph(rng: Random, kind: str, computes: int = 400) -> Graph:
    """A folded graph of a kind: sizes from 1 to 7 that divide by little, a dtype of its own per tensor."""
    if kind in MAKERS:
        spec, ops, outputs = MAKERS[kind](rng)
        made = build(spec, {dim: 1 for dims in spec.values() for dim in dims}, *ops, outputs=outputs)
    else:
        made = instances.graph(rng, kind)
    sizes = {dim: rng.choice([1, 2, 3, 4, 5, 5, 6, 7, 7]) for dim in made.dims}
    while prod(sizes.values()) > computes:
        sizes[rng.choice([dim for dim, size in sizes.items() if size > 1])] -= 1
    mixed = rng.random() < 0.5
    one = rng.choice(sorted(DTYPE_BITS))
    tensors = {
        name: replace(tensor, dtype=rng.choice(sorted(DTYPE_BITS)) if mixed else one)
        for name, tensor in made.tensors.items()
    }
    return replace(made, dims=sizes, tensors=tensors)


def build(
    spec: dict[str, str], sizes: dict[str, int], *ops: Op, outputs: tuple[str, ...] = (), dtype: str = "fp16"
) -> Graph:
    """A graph whose tensors have dims of one letter each."""
    tensors = {name: Tensor(name, tuple(dims), dtype) for name, dims in spec.items()}
    return Graph("g", sizes, tensors, ops, outputs)


Spec = tuple[dict[str, str], list[Op], tuple[str, ...]]
SOFTMAX = Step("softmax", "softmax", axis="l")


def einsum(name: str, inputs: str, output: str, *steps: Step) -> Op:
    """An einsum; steps with a tensor are prologues."""
    before = tuple(step for step in steps if step.tensor)
    after = tuple(step for step in steps if not step.tensor)
    return Op(name, "einsum", tuple(inputs.split()), output, epilogue=after, prologue=before)


def pointwise(function: str, *inputs: str, tensor: str = "") -> Step:
    return Step(function, "elementwise", function, inputs=inputs, tensor=tensor)


def normalize(rng: Random, axis: str, tensor: str = "") -> Step:
    return Step("norm", "normalize", rng.choice(["rmsnorm", "layernorm"]), axis, tensor=tensor)


def _projection_attention(rng: Random) -> Spec:
    h = rng.choice(["", "h"])
    spec = {
        "X": "ie",
        "W": h + "ek",
        "Q": h + "ik",
        "K": h + "lk",
        "P": h + "il",
        "V": h + "lj",
        "O": h + "ij",
    }
    norm = [normalize(rng, "e", "X")] if rng.random() < 0.5 else []
    soft = [SOFTMAX] if rng.random() < 0.7 else []
    ops = [einsum("q", "X W", "Q", *norm), einsum("qk", "Q K", "P", *soft), einsum("pv", "P V", "O")]
    return spec, ops, ()


def _gate_up_down(rng: Random) -> Spec:
    spec = {"X": "me", "G": "ef", "U": "ef", "H": "mf", "Z": "mf", "D": "fn", "Y": "mn"}
    norm = [normalize(rng, "e", "X")] if rng.random() < 0.5 else []
    ops = [
        einsum("gate", "X G", "H", *norm, pointwise("silu")),
        einsum("up", "X U", "Z", *norm, pointwise("mul", "H")),
        einsum("down", "Z D", "Y"),
    ]
    return spec, ops, ()


def _residual_ffn(rng: Random) -> Spec:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fk", "c": "k", "Y": "mk"}
    norm = [normalize(rng, "k", "X")] if rng.random() < 0.7 else []
    ops = [
        einsum("up", "X A", "H", *norm, pointwise("gelu")),
        einsum("down", "H B", "Y", pointwise("add", "X", "c")),
    ]
    return spec, ops, ()


def _two_readers(rng: Random) -> Spec:
    """Two ops read one softmax; its tensor may be wanted outside, too."""
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij", "W": "ln", "R": "in"}
    ops = [einsum("qk", "Q K", "P", SOFTMAX), einsum("pv", "P V", "O"), einsum("pw", "P W", "R")]
    return spec, ops, ("P", "O", "R") if rng.random() < 0.3 else ()


def _chain(rng: Random) -> Spec:
    spec = {"X": "mk", "A": "ka", "S": "ma", "B": "ab", "T": "mb", "C": "bc", "U": "mc", "D": "cn", "Y": "mn"}
    ops = [
        einsum("a", "X A", "S", pointwise("relu")),
        einsum("b", "S B", "T"),
        einsum("c", "T C", "U", *([normalize(rng, "b", "T")] if rng.random() < 0.5 else [])),
        einsum("d", "U D", "Y"),
    ]
    return spec, ops, ()


def _diamond(rng: Random) -> Spec:
    spec = {"X": "mk", "A": "kf", "H": "mf", "B": "fn", "S": "mn", "C": "fn", "T": "mn", "E": "np", "Y": "mp"}
    ops = [
        einsum("a", "X A", "H"),
        einsum("b", "H B", "S"),
        einsum("c", "H C", "T", pointwise("add", "S")),
        einsum("d", "T E", "Y"),
    ]
    return spec, ops, ("H", "Y") if rng.random() < 0.3 else ()


def _two_reductions(rng: Random) -> Spec:
    """The consumer of a softmax also sums over a dim that the softmax lacks."""
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lmj", "O": "ij"}
    step = SOFTMAX if rng.random() < 0.5 else normalize(rng, "l")
    return spec, [einsum("qk", "Q K", "P", step), einsum("pv", "P V", "O")], ()


def _softmax_then_bias(rng: Random) -> Spec:
    """A bias after the softmax: statistics cannot wait for the end, the rows must be whole."""
    spec = {"Q": "ik", "K": "lk", "b": "l", "P": "il", "V": "lj", "O": "ij"}
    ops = [einsum("qk", "Q K", "P", SOFTMAX, pointwise("add", "b")), einsum("pv", "P V", "O")]
    return spec, ops, ()


def _softmax_gate(rng: Random) -> Spec:
    """A softmax that is an operand of another op's epilogue."""
    spec = {"Q": "ik", "K": "lk", "P": "il", "X": "im", "W": "ml", "Y": "il", "V": "lj", "O": "ij"}
    ops = [
        einsum("qk", "Q K", "P", SOFTMAX),
        einsum("gate", "X W", "Y", pointwise("mul", "P")),
        einsum("pv", "P V", "O"),
    ]
    return spec, ops, ()


def _prologue_operand(rng: Random) -> Spec:
    """A prologue whose second operand is made inside the group."""
    spec = {"X": "mk", "A": "mp", "B": "pk", "G": "mk", "C": "kn", "Y": "mn", "D": "kq", "Z": "mq"}
    ops = [
        einsum("g", "A B", "G"),
        einsum("y", "X C", "Y", pointwise("mul", "G", tensor="X")),
        einsum("z", "G D", "Z"),
    ]
    return spec, ops, ()


def _scaled_online(rng: Random) -> Spec:
    """Scaling after row statistics commutes with the sum: it may run online."""
    spec = {"X": "mk", "g": "k", "s": "k", "A": "kn", "Y": "mn"}
    rows = [normalize(rng, "k", "X"), Step("softmax", "softmax", axis="k", tensor="X")]
    before = [pointwise("add", "s", tensor="X")] if rng.random() < 0.5 else []
    ops = [einsum("a", "X A", "Y", *before, rng.choice(rows), pointwise("mul", "g", tensor="X"))]
    return spec, ops, ()


def _two_statistics(rng: Random) -> Spec:
    """Two row-wise steps over two axes of one tensor: neither can run online."""
    spec = {"Q": "ik", "K": "lk", "P": "il", "V": "lj", "O": "ij"}
    ops = [einsum("qk", "Q K", "P", SOFTMAX, normalize(rng, "i")), einsum("pv", "P V", "O")]
    return spec, ops, ()


MAKERS: dict[str, Callable[[Random], Spec]] = {
    "projection-attention": _projection_attention,
    "gate-up-down": _gate_up_down,
    "residual-ffn": _residual_ffn,
    "two-readers": _two_readers,
    "chain": _chain,
    "diamond": _diamond,
    "two-reductions": _two_reductions,
    "softmax-then-bias": _softmax_then_bias,
    "softmax-gate": _softmax_gate,
    "prologue-operand": _prologue_operand,
    "scaled-online": _scaled_online,
    "two-statistics": _two_statistics,
}
KINDS = (*instances.KINDS, *MAKERS)


# --- nests -------------------------------------------------------------------------------------------


def cut(pieces: Sequence[int], tile: int) -> tuple[int, ...]:
    """Every piece cut by a loop, piece by piece."""
    return tuple(min(tile, piece - start) for piece in pieces for start in range(0, piece, tile))


def group(
    rng: Random, graph: Graph, accelerator: Accelerator, *, legal: bool = True, once: bool = False
) -> Group:
    """A random dataflow of all ops of a graph.

    If ``legal`` is not asked for, it may break any rule; ``once``: no path cuts a dim twice.
    """
    names = order(rng, graph)
    configs = {name: array(rng, graph, accelerator, graph.op(name)) for name in names}
    pieces: Pieces = {dim: (size,) for dim, size in graph.dims.items()}
    maker = _Maker(rng, graph, names, rng.randint(1, 9), rng.choice([0.3, 0.6, 0.8]), legal, once)
    found = {name: config for name, config in configs.items() if config}
    return Group(names, maker.items(names, pieces, set()), found)


def order(rng: Random, graph: Graph) -> tuple[str, ...]:
    """A random topological order of the ops."""
    names: list[str] = []
    while len(names) < len(graph.ops):
        ready = [
            op.name
            for op in graph.ops
            if op.name not in names and all(graph.producer(tensor) in (None, *names) for tensor in op.reads)
        ]
        names.append(rng.choice(ready))
    return tuple(names)


@dataclass
class _Maker:
    rng: Random
    graph: Graph
    ops: tuple[str, ...]
    loops: int
    eager: float
    strict: bool
    once: bool
    users: dict[str, set[str]] = field(init=False)
    internal: set[str] = field(init=False)
    leaving: set[str] = field(init=False)

    def __post_init__(self) -> None:
        group = [self.graph.op(name) for name in self.ops]
        tensors = {tensor for op in group for tensor in op.tensors}
        self.users = {tensor: {op.name for op in group if tensor in op.tensors} for tensor in tensors}
        made = {op.output for op in group}
        read = {tensor for op in group for tensor in op.reads}
        outside = {t for op in self.graph.ops if op.name not in self.ops for t in op.reads}
        self.internal = made & read
        self.leaving = {t for t in made if t in outside or t in self.graph.outputs or t not in read}

    def items(self, ops: Sequence[str], pieces: Pieces, held: set[str]) -> Nest:
        """One list: what is held in it stays to its last use in it."""
        held, rest, found = set(held), list(ops), list[Item]()
        while rest:
            wanted = [t for t in self.holdable(rest) if t not in held]
            needed = [t for t in self.graph.op(rest[0]).tensors if t not in held]
            action = self.rng.random()
            if action < self.eager and self.loops > 0:
                loop = self.loop(rest, pieces, held)
                if loop is not None:
                    found.append(loop[0])
                    del rest[: loop[1]]
            elif action < 0.9 and wanted:
                tensor = self.rng.choice(wanted)
                held.add(tensor)
                found.append(Hold(tensor))
            elif not needed:
                found.append(Compute(rest.pop(0)))
        return tuple(found)

    def holdable(self, rest: Sequence[str]) -> list[str]:
        """Tensors that may be held here: an internal one serves all of its ops from one hold."""
        return [
            tensor
            for tensor in sorted(self.users)
            if self.users[tensor] & set(rest)
            and (not self.strict or tensor not in self.internal or self.users[tensor] <= set(rest))
        ]

    def loop(self, rest: Sequence[str], pieces: Pieces, held: set[str]) -> tuple[Loop, int] | None:
        """A loop over the next few ops, if it is legal."""
        count = self.rng.choice([len(rest), self.rng.randint(1, len(rest))])
        inside = rest[:count]
        known = inside if self.rng.random() < 0.8 else self.ops
        dims = sorted({dim for name in known for dim in self.graph.op_dims(self.graph.op(name))})
        dim = self.rng.choice(dims)
        tile = self.rng.randint(1, self.graph.dims[dim])
        if self.once and len(pieces[dim]) > 1:
            return None
        after = {**pieces, dim: cut(pieces[dim], tile)}
        if self.strict and not self.legal(inside, dim, len(after[dim]), len(pieces[dim]), held):
            return None
        self.loops -= 1
        body = self.items(inside, after, held)
        return Loop(dim, tile, body), count

    def legal(self, inside: Sequence[str], dim: str, steps: int, before: int, held: set[str]) -> bool:
        split = [t for t in self.internal if self.users[t] & set(inside) and not self.users[t] <= set(inside)]
        if any(tensor not in held for tensor in split):
            return False
        for name in inside:
            op = self.graph.op(name)
            reduced = dim in self.graph.reduction_dims(op)
            if reduced and any(op.output in self.graph.op(other).reads for other in inside):
                return False
            if steps > 1 and dim not in self.graph.op_dims(op) and op.output in self.leaving:
                return False
            rows = self.rows(op)
            if steps > 1 and any(t not in held and not online for t, axis, online in rows if axis == dim):
                return False
            seen = [t for t, axis, _ in rows if axis == dim and self.graph.producer(t) in inside]
            if steps > before and any(t in held for t in seen):
                return False  # the statistics of a part of a row are not finished
        return True

    def rows(self, op: Op) -> list[tuple[str, str, bool]]:
        """(tensor, axis, whether they can run online) of the row statistics that the op meets (§3)."""
        found = []
        for tensor in op.reads:
            maker = self.graph.producer(tensor)
            steps: tuple[Step, ...] = ()
            if tensor in self.internal and maker is not None:
                made = self.graph.op(maker)
                own = (Step(made.name, made.kind, made.function, made.axis),) if made.kind != "einsum" else ()
                steps = own + made.epilogue
            steps += tuple(step for step in op.prologue if step.tensor == tensor)
            rows = [index for index, step in enumerate(steps) if step.axis]
            for index in rows:
                others = set(self.graph.tensors[tensor].dims) - {steps[index].axis}
                output = set(self.graph.tensors[op.output].dims)
                online = (
                    op.kind == "einsum"
                    and tensor in op.inputs
                    and len(rows) == 1
                    and others <= output
                    and steps[index].axis not in output
                    and all(step.function in ("mul", "scale") for step in steps[index + 1 :])
                )
                found.append((tensor, steps[index].axis, online))
        return found


def array(rng: Random, graph: Graph, accelerator: Accelerator, op: Op) -> ArrayConfig | None:
    """A random array configuration; None for an op without reduction."""
    if op.kind != "einsum" or not graph.reduction_dims(op):
        return None
    dims = list(graph.op_dims(op))
    rng.shuffle(dims)
    shape = accelerator.array.shapes[0]
    if len(dims) == 1:
        return ArrayConfig((dims[0], shape[0] * accelerator.array.count), None, None, dims[0], shape)
    count, factors = accelerator.array.count, [1, 1, 1]
    while count > 1:
        prime = next(p for p in range(2, count + 1) if count % p == 0)
        factors[rng.randrange(3 if len(dims) > 2 else 2)] *= prime
        count //= prime
    rows, cols = (dims[0], shape[0] * factors[0]), (dims[1], shape[1] * factors[1])
    batch = (dims[2], factors[2]) if factors[2] > 1 else None
    free = dims[3 if batch else 2 :] or dims
    return ArrayConfig(rows, cols, batch, rng.choice(free), shape)


def accelerator(rng: Random, graph: Graph) -> Accelerator:
    """An accelerator with a buffer that holds anything, and every stationarity."""
    made = instances.accelerator(rng, graph)
    return replace(
        made,
        buffer=replace(made.buffer, capacity_bytes=1 << 30, double_buffered=rng.random() < 0.5),
        array=replace(made.array, stationarity=STATIONARITY),
    )


def arrays(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random values of every graph input."""
    rng = np.random.default_rng(seed)
    shapes = {name: [graph.dims[dim] for dim in graph.tensors[name].dims] for name in graph.inputs()}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}
