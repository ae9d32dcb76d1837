"""A mapping as a page of text: verdict, figures with what bounds them, nests, traffic, proof.

Nothing here prints or solves, and the page is the same wherever it is read: in a terminal, in a log, in
a bug report.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from fractions import Fraction

from mmee_solver.accelerator import Accelerator
from mmee_solver.cost import Metrics
from mmee_solver.lines import Line, Piece, bar, flow, line, plain, render, shorten
from mmee_solver.mapping import Mapping, Options
from mmee_solver.nestview import nest_lines, title
from mmee_solver.units import bits_to_bytes, iec_bytes, si_bytes, si_energy, si_time

GOALS = {
    "dram": "least DRAM traffic",
    "energy": "least energy",
    "latency": "least latency",
    "edp": "least energy × delay",
}
_UNITS = {"array": "array", "dram": "DRAM", "vector": "vector unit", "buffer": "buffer"}
_LABEL = 11
_NAME = 20


def page(mapping: Mapping, name: str, accelerator_name: str, width: int = 80, colour: bool = False) -> str:
    """A solved mapping on one page, for a person.

    Parameters
    ----------
    mapping : Mapping
        What :func:`mmee_solver.solve` gives.
    name, accelerator_name : str
        What the graph and the accelerator are called in the first line.
    width : int
        Most characters of a line.
    colour : bool
        Whether to colour it with terminal codes.

    Returns
    -------
    str
        Lines of at most ``width`` characters, without a newline at the end.

    >>> from mmee_solver import load_accelerator, load_graph, solve
    >>> mapping = solve(load_graph("matmul-64"), load_accelerator("accel1"))
    >>> print(page(mapping, "matmul-64", "accel1").splitlines()[5])
      DRAM       24.58 kB   compulsory, no byte more
    """
    lines: list[Line] = [*_verdict(mapping, name, accelerator_name, width), ()]
    lines += _figures(mapping, width)
    for index in range(len(mapping.groups)):
        lines += [(), *_group(mapping, index, width)]
    lines += [(), *_traffic(mapping)]
    lines += [(), *_proof(mapping, width)]
    return render(lines, width, colour=colour)


def listing(
    graphs: Sequence[tuple[str, str]], accelerators: Sequence[tuple[str, str]], width: int | None = None
) -> str:
    """The graphs of the zoo and the accelerators that ship, each with its description.

    Parameters
    ----------
    graphs, accelerators : sequence of (name, description)
        In the order in which they are shown.
    width : int, optional
        Most characters of a line; if left out, each entry is one line, however long.
    """
    return "\n".join(
        (
            "graphs (GRAPH is one of these names, or a file)",
            *_entries(graphs, width),
            "",
            "accelerators (ACCEL is one of these names, or a file)",
            *_entries(accelerators, width),
        )
    )


def _entries(entries: Sequence[tuple[str, str]], width: int | None) -> Iterator[str]:
    left = max((len(name) for name, _ in entries), default=0) + 2
    for name, description in entries:
        room = max(20, width - left - 2) if width else max(1, len(description))
        first, *rest = textwrap.wrap(description, room) or [""]
        yield f"  {name:<{left}}{first}".rstrip()
        yield from (" " * (left + 2) + more for more in rest)


def describe_accelerator(accelerator: Accelerator) -> str:
    """An accelerator's main figures in one line.

    >>> from mmee_solver import load_accelerator
    >>> describe_accelerator(load_accelerator("accel1"))
    '4 arrays of 32×32, buffer 1 MiB, DRAM 60 GB/s, 1 GHz'
    """
    array = accelerator.array
    shapes = " or ".join(f"{rows}×{cols}" for rows, cols in array.shapes[:3])
    shapes += " or …" if len(array.shapes) > 3 else ""
    arrays = f"{array.count} arrays of {shapes}" if array.count > 1 else f"one array of {shapes}"
    return (
        f"{arrays}, buffer {iec_bytes(accelerator.buffer.capacity_bytes)}, "
        f"DRAM {accelerator.dram.bandwidth_bytes_per_s / 1e9:g} GB/s, {accelerator.clock_hz / 1e9:g} GHz"
    )


def _verdict(mapping: Mapping, name: str, accelerator_name: str, width: int) -> list[Line]:
    """What was solved, for what, and whether it is proved: on one line, or on two if names are long."""
    proved = mapping.status == "optimal"
    outcome = "proved optimal" if proved else f"best found, at most {100 * mapping.gap:.2g} % off"
    machine = shorten(accelerator_name, max(12, width // 2 - 2))
    graph = shorten(name, max(12, width - len(machine) - len(" on ")))
    names = line(Piece(graph, "bold"), " on ", Piece(machine, "bold"))
    took = f" · {_seconds(mapping.seconds)}" if mapping.seconds else ""
    rest = line(f"{GOALS[mapping.options.objective]} · ", Piece(outcome, "good" if proved else "bad"), took)
    whole = (*names, Piece(" · "), *rest)
    return [whole] if len(plain(whole)) <= width else [names, rest]


def _seconds(seconds: float) -> str:
    """How long a solve took.

    >>> _seconds(0.213), _seconds(75.2)
    ('0.21 s', '75 s')
    """
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _figures(mapping: Mapping, width: int) -> list[Line]:
    """What the mapping costs, and what each figure is made of or bound by."""
    metrics, accelerator = mapping.metrics, mapping.accelerator
    capacity = iec_bytes(accelerator.buffer.capacity_bytes)
    lines = flow(_figure("energy", _energy(metrics.energy.total)), _shares(metrics), width)
    latency = _figure("latency", _time(metrics, accelerator))
    lines += flow(latency, _bounds(mapping), width, between=", ")
    if mapping.options.objective == "edp":
        lines.append(_figure("EDP", _edp(metrics, accelerator)))
    lines.append((*_figure("DRAM", si_bytes(metrics.dram_bytes)), *line(_compulsory(mapping))))
    lines.append(
        (*_figure("buffer", iec_bytes(metrics.peak_buffer_bytes)), Piece(f"of {capacity} at the peak"))
    )
    for entry in mapping.resident:
        size = iec_bytes(bits_to_bytes(mapping.graph.bits(entry.tensor)))
        stay = f"{shorten(entry.tensor, _NAME)} stays there from group {entry.first + 1} to {entry.last + 1}"
        lines.append((*_figure("resident", size), Piece(stay)))
    if mapping.unfused is not None and len(mapping.graph.ops) > 1:
        lines += _unfused(mapping, mapping.unfused, width)
    return lines


def _figure(label: str, value: str) -> Line:
    return line("  ", Piece(f"{label:<{_LABEL}}", "dim"), Piece(f"{value:<11}", "bold"))


def _energy(picojoules: Fraction | int) -> str:
    return si_energy(float(picojoules)).replace(" u", " µ")


def _time(metrics: Metrics, accelerator: Accelerator) -> str:
    return si_time(metrics.latency_cycles / accelerator.clock_hz).replace(" u", " µ")


def _edp(metrics: Metrics, accelerator: Accelerator) -> str:
    seconds = metrics.latency_cycles / accelerator.clock_hz
    return f"{_energy(Fraction(float(metrics.energy.total) * seconds))}·s"


def _shares(metrics: Metrics) -> list[Line]:
    """Components of the energy, largest first, each with a bar."""
    total = metrics.energy.total
    parts = {name: getattr(metrics.energy, name) for name in ("dram", "buffer", "register", "mac", "vector")}
    shares = sorted(
        ((float(part / total), name) for name, part in parts.items() if part), key=lambda p: -p[0]
    )
    return [
        line(f"{name} ", Piece(f"{bar(share)} " if bar(share) else "", "bar"), _percent(share))
        for share, name in shares
    ]


def _percent(share: float) -> str:
    """A share of 1 in percent.

    >>> _percent(0.384), _percent(0.002), _percent(0)
    ('38 %', '<1 %', '0 %')
    """
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _bounds(mapping: Mapping) -> list[Line]:
    """Which resource binds the latency, and how busy the others are."""
    bound: dict[str, int] = {}
    for part in mapping.group_metrics:
        most = max(part.cycles, key=lambda name: part.cycles[name])
        bound[most] = bound.get(most, 0) + part.latency_cycles
    total = max(1, mapping.metrics.latency_cycles)
    used = mapping.metrics.utilisation(mapping.accelerator)
    aside = {"array": f" ({100 * used:.3g} % utilised)" if used else ""}
    if len(bound) == 1:
        (most,) = bound
        texts = [f"bound by {_UNITS[most]}{aside.get(most, '')}"]
    else:
        shares = sorted(bound.items(), key=lambda entry: -entry[1])
        texts = ["bound by " + " and ".join(f"{_UNITS[n]} ({_percent(c / total)} of it)" for n, c in shares)]
    for name in ("array", "dram", "vector", "buffer"):
        cycles = mapping.metrics.cycles[name]
        if cycles and list(bound) != [name]:
            texts.append(f"{_UNITS[name]} busy {_percent(cycles / total)}{aside.get(name, '')}")
    return [line(text) for text in texts]


def _compulsory(mapping: Mapping) -> str:
    least, moved = mapping.graph.compulsory_bytes(), mapping.metrics.dram_bytes
    if moved == least:
        return "compulsory, no byte more"
    return f"compulsory {si_bytes(least)} ({_ratio(moved, least)})"


def _ratio(value: Fraction | int, base: Fraction | int) -> str:
    """How many times the base a value is, in about three digits.

    >>> _ratio(5, 4), _ratio(136, 10), _ratio(1234, 1)
    ('1.25×', '13.6×', '1234×')
    """
    times = float(Fraction(value) / Fraction(base)) if base else 0.0
    return f"{times:.{2 if times < 9.995 else 1 if times < 99.95 else 0}f}×"


def _unfused(mapping: Mapping, unfused: Metrics, width: int) -> list[Line]:
    """The best dataflow with every op alone, beside the one found."""
    ours, accelerator, goal = mapping.metrics, mapping.accelerator, mapping.options.objective
    shown = {
        "energy": _energy(unfused.energy.total),
        "latency": _time(unfused, accelerator),
        "dram": si_bytes(unfused.dram_bytes),
        "edp": _edp(unfused, accelerator),
    }
    if all(len(group.ops) == 1 for group in mapping.groups) and unfused.value(goal) == ours.value(goal):
        return [(*_figure("unfused", shown[goal]), Piece("the same: fusing gains nothing here"))]
    words = {"energy": "energy", "latency": "latency", "dram": "DRAM traffic", "edp": "EDP"}
    order = dict.fromkeys((goal, "energy", "dram", "latency"))
    texts = [f"{_ratio(unfused.value(key), ours.value(key))} {words[key]}" for key in order]
    return flow(_figure("unfused", shown[goal]), [line(text) for text in texts], width, between=", ")


def _group(mapping: Mapping, index: int, width: int) -> Iterator[Line]:
    """One group: its ops, its figures where there are several groups, and its nest."""
    group, metrics = mapping.groups[index], mapping.group_metrics[index]
    head = f"group {index + 1} of {len(mapping.groups)}   "
    ops = title(mapping.graph, group).split(" ")
    yield from flow(line(Piece(head, "dim")), [line(Piece(op, "bold")) for op in ops], width, between=" ")
    if len(mapping.groups) > 1:
        most = max(metrics.cycles, key=lambda name: metrics.cycles[name])
        texts = (
            _energy(metrics.energy.total),
            f"{_time(metrics, mapping.accelerator)}, bound by {_UNITS[most]}",
            f"{si_bytes(metrics.dram_bytes)} moved",
            f"{iec_bytes(metrics.peak_buffer_bytes)} held",
        )
        yield line("  ", Piece(" · ".join(texts), "dim"))
    resident = {r.tensor for r in mapping.resident if r.first <= index <= r.last}
    for entry in nest_lines(mapping.graph, mapping.accelerator, group, resident, width - 2):
        yield line("  ", *entry)


def _traffic(mapping: Mapping) -> Iterator[Line]:
    """What each tensor moves between DRAM and buffer."""
    graph, traffic = mapping.graph, mapping.metrics.traffic
    rows = []
    for name in graph.tensors:
        size, moved = bits_to_bytes(graph.bits(name)), traffic.get(name, (0, 0))
        times = _ratio(sum(moved), size) if any(moved) else "stays on chip"
        rows.append((shorten(name, _NAME), si_bytes(size), *moved, times))
    rows.append(("in all", "", mapping.metrics.dram_read_bytes, mapping.metrics.dram_write_bytes, ""))
    left = max(len(row[0]) for row in rows)
    yield line(
        Piece(f"{'traffic':<{left + 2}}{'size':>12}{'read':>12}{'written':>12}   times its size", "dim")
    )
    for label, whole, read, written, times in rows:
        yield line(f"  {label:<{left}}{whole:>12}{_moved(read):>12}{_moved(written):>12}   {times}")


def _moved(count: int) -> str:
    return si_bytes(count) if count else "–"


def _proof(mapping: Mapping, width: int) -> Iterator[Line]:
    """What was asked for and how much was searched, from the certificate."""
    asked = flow(
        line(f"{'options':<9}"), [line(text) for text in _asked(mapping.options)], width, between=" · "
    )
    found = mapping.certificate
    parts = [
        f"{_count(found[key])} {word if found[key] != 1 else one}"
        for key, one, word in (
            ("trees", "order tree", "order trees"),
            ("structures", "structure", "structures"),
            ("candidates", "candidate", "candidates"),
            ("bounded", "box bounded", "boxes bounded"),
            ("evaluated", "evaluated exactly", "evaluated exactly"),
        )
        if isinstance(found.get(key), int)
    ]
    searched = (
        flow(line(f"{'proof':<9}"), [line(text) for text in parts], width, between=" · ") if parts else []
    )
    for entry in (*asked, *searched):
        yield tuple(Piece(piece.text, "dim") for piece in entry)


def _count(count: int) -> str:
    """A count that a person can read: 13 185, or 3.1e18 beyond nine digits."""
    return f"{count:,}".replace(",", " ") if count < 10**9 else f"{count:.1e}".replace("e+", "e")


def _asked(options: Options) -> tuple[str, ...]:
    return (
        "any tile size" if options.tiles == "integer" else "tile sizes that divide",
        {"none": "no fusion", "auto": "fusion where it pays", "all": "fewest groups"}[options.fusion],
        "recomputation allowed" if options.recompute else "no recomputation",
        *(("nothing resident between groups",) if not options.residency and options.fusion != "none" else ()),
    )
