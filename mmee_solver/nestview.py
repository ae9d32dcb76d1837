"""A group's nest as lines that a kernel engineer could type in: loops, holds with bytes, computes."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import online_steps, recomputation, tile_bits, visits
from mmee_solver.lines import Line, Piece, line, shorten
from mmee_solver.nest import ArrayConfig, Compute, Group, Hold, Loop, Nest
from mmee_solver.roles import RowStep, group_roles
from mmee_solver.trace import ComputeSite, HoldSite, Pieces, Trace, count_pieces, cut, trace
from mmee_solver.units import bits_to_bytes, ceil_div, iec_bytes
from mmee_solver.validate import stationary
from mmee_solver.workload import Graph, Op, Step

_NAME = 16
_TEXT = 40
_GAP = 3
_TIE = "\u00a0"  # a blank that does not end a line; printed as a plain one


def title(graph: Graph, group: Group) -> str:
    """The ops of a group with what is folded into them: ``→`` before a consumer, ``∥`` before a sibling.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    group : Group
        Its ops in order.
    """
    text, made = "", set[str]()
    for name in group.ops:
        op = graph.op(name)
        between = " → " if made & set(op.reads) else " ∥ "
        text += (between if text else "") + _label(op)
        made.add(op.output)
    return text


def _label(op: Op) -> str:
    names = [*(step.name for step in op.prologue), op.name, *(step.name for step in op.epilogue)]
    return "+".join(shorten(name, _NAME) for name in names)


def nest_lines(
    graph: Graph, accelerator: Accelerator, group: Group, resident: Collection[str] = (), width: int = 78
) -> list[Line]:
    """The nest of a group, one line per loop, hold and compute, and lines for what goes with them.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    accelerator : Accelerator
        Says whether streamed tiles take their room twice.
    group : Group
        Ops, nest and array configurations.
    resident : collection of str
        Tensors that stay whole in the buffer during the group.
    width : int
        Most characters of a line; what is longer goes on in the next one.
    """
    rows = _View.of(graph, accelerator, group, resident).rows(group.nest)
    return [entry for row in _aligned(rows, width) for entry in row]


@dataclass(frozen=True, slots=True)
class _Row:
    """One line before its columns are aligned: depth in the nest, text, bytes held, remark."""

    depth: int
    text: str
    size: str = ""
    note: str = ""
    style: str = ""


def _aligned(rows: list[_Row], width: int) -> Iterator[list[Line]]:
    """The lines of every row, with the bytes in one column and the remarks in another."""
    step = 2 if max((row.depth for row in rows), default=0) <= 10 else 1
    left = min(_TEXT, max((step * row.depth + len(row.text) for row in rows if row.size), default=0))
    right = max((len(row.size) for row in rows), default=0)
    remarks = left + right + 2 * _GAP
    for row in rows:
        indent = " " * (step * row.depth)
        text = indent + row.text
        if row.size:
            text = f"{text:<{left + _GAP + right - len(row.size)}}{row.size}"
        if not row.note:
            parts = textwrap.wrap(text, width, subsequent_indent=f"{indent}    ", break_on_hyphens=False)
            yield [line(Piece(part.replace(_TIE, " "), row.style)) for part in parts]
            continue
        blanks = " " * max(_GAP, remarks - len(text))
        note = Piece(row.note, "dim")
        if len(text) + len(blanks) + len(row.note) <= width:
            yield [line(Piece(text, row.style), blanks, note)]
        else:
            yield [line(Piece(text, row.style)), line(" " * max(0, width - len(row.note)), note)]


@dataclass(slots=True)
class _View:
    """What the lines of one group are made from; ``pending`` are the holds still to come, in order."""

    graph: Graph
    accelerator: Accelerator
    group: Group
    resident: frozenset[str]
    pending: Iterator[HoldSite]
    sites: Trace
    online: tuple[RowStep, ...]
    inputs: frozenset[str]
    internal: frozenset[str]
    leaving: frozenset[str]
    pad: int

    @classmethod
    def of(cls, graph: Graph, accelerator: Accelerator, group: Group, resident: Collection[str]) -> _View:
        sites, roles = trace(graph, group.nest), group_roles(graph, group.ops)
        return cls(
            graph,
            accelerator,
            group,
            frozenset(resident),
            iter(sites.holds),
            sites,
            online_steps(graph, group.ops, sites),
            frozenset(roles.inputs),
            frozenset(roles.internal),
            frozenset(roles.leaving),
            max(len(shorten(name, _NAME)) for name in group.ops),
        )

    def rows(self, nest: Nest) -> list[_Row]:
        """Every row of a nest."""
        return list(self._walk(nest, 0, {dim: ((size, 1),) for dim, size in self.graph.dims.items()}))

    def _walk(self, nest: Nest, depth: int, pieces: dict[str, Pieces]) -> Iterator[_Row]:
        for item in nest:
            if isinstance(item, Hold):
                yield self._hold(next(self.pending), depth)
            elif isinstance(item, Loop):
                yield _loop(item, pieces[item.dim], depth)
                inner = {**pieces, item.dim: cut(pieces[item.dim], item.tile)}
                yield from self._walk(item.body, depth + 1, inner)
            else:
                yield from self._compute(item, depth)

    def _hold(self, site: HoldSite, depth: int) -> _Row:
        dims = self.graph.tensors[site.tensor].dims
        index = ",".join(shorten(dim, _NAME) if site.steps(dim) > 1 else "·" for dim in dims)
        text = shorten(f"hold {shorten(site.tensor, _NAME)}[{index}]", _TEXT)
        size = iec_bytes(bits_to_bytes(tile_bits(self.graph, site)))
        streamed = site.tensor not in self.internal or site.tensor in self.leaving
        if self.accelerator.buffer.double_buffered and streamed and site.tensor not in self.resident:
            size = f"2 × {size}"
        return _Row(depth, text, size, self._moves(site))

    def _moves(self, site: HoldSite) -> str:
        """What a hold moves between DRAM and buffer, in words."""
        name = site.tensor
        times = visits(self.graph, site)
        if name in self.resident:
            return "resident: moves nothing"
        if name in self.inputs:
            return f"read {_times(times)}"
        if name in self.internal:
            return "written once, for later groups" if name in self.leaving else "never leaves the chip"
        return f"written {_times(times)}" + (f", read {_times(times - 1)}" if times > 1 else "")

    def _compute(self, item: Compute, depth: int) -> Iterator[_Row]:
        op = self.graph.op(item.op)
        site = self.sites.compute_of(op.name)
        for step in op.prologue:
            yield _Row(depth, f"{_step(step)} of {shorten(step.tensor, _NAME)} as it is read", style="dim")
        how = self._array(op, site, self.group.array.get(op.name))
        yield _Row(depth, f"{shorten(op.name, _NAME):<{self.pad}}  {how}", style="bold")
        if op.epilogue:
            yield _Row(depth + 1, self._epilogue(op, site), style="dim")
        for row in self.online:
            if row.consumer == op.name:
                yield _Row(depth + 1, self._online(op, row), style="dim")
        times = recomputation(self.graph, op, site)
        if times > 1:
            yield _Row(depth + 1, f"recomputed: {times} times in all", style="dim")

    def _epilogue(self, op: Op, site: ComputeSite) -> str:
        """The steps on an op's output; they wait until its sum is complete."""
        steps = ", ".join(_step(step) for step in op.epilogue)
        summed = [dim for dim in self.graph.reduction_dims(op) if count_pieces(site.pieces[dim]) > 1]
        text = f"after the last {_tuple(summed)}: {steps}" if summed else f"then {steps}"
        hold = self.sites.hold_of(op.name, op.output)
        apart = op.output in self.leaving and any(s.row_wise and hold.steps(s.axis) > 1 for s in op.epilogue)
        return f"{text}, statistics beside {shorten(op.output, _NAME)}" if apart else text

    def _online(self, op: Op, row: RowStep) -> str:
        """Where the statistics of an online step live, and what becomes of the output."""
        output = shorten(op.output, _NAME)
        text = f"online {row.step.kind}: statistics of {_tuple(row.rows)} beside {output}"
        if row.step.kind != "softmax":
            return f"{text}, scaled at the end"
        steps = self.sites.hold_of(op.name, row.tensor).steps(row.step.axis)
        return f"{text}, rescaled {_times(steps - 1)}"

    def _array(self, op: Op, site: ComputeSite, config: ArrayConfig | None) -> str:
        """How an op runs: extents on the arrays, the inner dim and what stays, or the vector unit."""
        if config is None:
            work = "product" if op.kind == "einsum" else _step(Step(op.name, op.kind, op.function, op.axis))
            return f"{work} on the vector unit"
        pairs = [pair for pair in (config.rows, config.cols) if pair is not None]
        text = f"array {'×'.join(str(extent) for _, extent in pairs)} on {_tuple(dim for dim, _ in pairs)}"
        if config.batch is not None and config.batch[1] > 1:
            text += f", {config.batch[1]} of {config.batch[0]} at once"
        text += f", {config.inner} inside{self._stays(op, config.inner)}"
        used = prod(
            self.graph.dims[dim] / (extent * _passes(site.pieces[dim], extent))
            for dim, extent in (*pairs, *([config.batch] if config.batch else []))
        )
        return text + (f" ({100 * used:.3g}{_TIE}%{_TIE}used)" if used < 0.9995 else "")

    def _stays(self, op: Op, inner: str) -> str:
        """Which tensor's tile stays in the arrays while the inner dim runs; none if all have that dim."""
        lacking = [name for name in op.inputs if inner not in self.graph.tensors[name].dims]
        if stationary(self.graph, op, inner) != "output":
            return f", {shorten(lacking[0], _NAME)} stays"
        return f", {shorten(op.output, _NAME)} stays" if inner in self.graph.reduction_dims(op) else ""


def _passes(pieces: Pieces, extent: int) -> int:
    return sum(count * ceil_div(size, extent) for size, count in pieces)


def _loop(item: Loop, pieces: Pieces, depth: int) -> _Row:
    full = pieces[0][0]
    text = f"for {shorten(item.dim, _NAME)} in {full}" + (f" by {item.tile}" if item.tile > 1 else "")
    last = full % item.tile
    note = f"the last tile is {last}" if last else ""
    return _Row(depth, text, note=note)


def _step(step: Step) -> str:
    """A vector step in words.

    >>> _step(Step("s", "softmax", axis="l")), _step(Step("m", "elementwise", "mul", inputs=("G",)))
    ('softmax over l', 'mul by G')
    """
    if step.row_wise:
        return f"{step.function or step.kind} over {shorten(step.axis, _NAME)}"
    if not step.inputs:
        return shorten(step.function, _NAME)
    names = " and ".join(shorten(name, _NAME) for name in step.inputs)
    return f"{shorten(step.function, _NAME)} {'by' if step.function == 'mul' else 'of'} {names}"


def _tuple(dims: Collection[str] | Iterator[str]) -> str:
    names = [shorten(dim, _NAME) for dim in dims]
    return names[0] if len(names) == 1 else f"({', '.join(names)})"


def _times(count: int) -> str:
    """How often, in words.

    >>> _times(1), _times(32)
    ('once', '32 times')
    """
    return "once" if count == 1 else f"{count:,} times".replace(",", " ")
