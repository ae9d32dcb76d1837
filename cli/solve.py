"""``mmee-solve``: parse the command line, call the library, print what it gives.

Only click is imported here; the library is when it is needed, so that help and errors come at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mmee_solver import __version__

if TYPE_CHECKING:
    from mmee_solver import Accelerator, Graph, InfeasibleError, Mapping

BAD_INPUT, INFEASIBLE, STOPPED = 2, 3, 4

_EPILOG = """\b
GRAPH and ACCEL are files or names. mmee-solve --list shows the graphs and
accelerators that come with this program; mmee-solve --schema graph and
--schema accel say how to write your own.

\b
Examples:
  mmee-solve gpt3-6.7b-attention accel1
  mmee-solve my.json my.yaml --objective latency -o mapping.json
  mmee-solve llama3-8b-attention accel2 --buffer 256KiB --objective dram
  mmee-solve bert-b-ffn tileflow-edge --fusion none --json | jq .metrics
  mmee-solve --list

\b
How to read the nest on the page:
  for i in 2048 by 64     step dim i in tiles of 64
  hold K[h,l,·]  64 KiB   keep this tile of K on chip from here to its last
                          use; it is a part of dims h and l, which are cut
                          by the loops above, and all (·) of the third
  qk  array 64×64 on (i, l), k inside, P stays
                          run op qk on the PE arrays: 64 of i by 64 of l at
                          once, k innermost, the tile of P stays in place

\b
Exit codes:
  0  proved optimal
  2  bad input or usage
  3  infeasible: the buffer is too small for any mapping
  4  stopped before the proof (Ctrl-C, out of memory)
"""


@dataclass(frozen=True)
class _Request:
    """What the command line asks for."""

    graph: str
    accelerator: str
    options: dict[str, Any]
    buffer_bytes: int | None
    output: str | None
    as_json: bool
    quiet: bool

    @property
    def prints_json(self) -> bool:
        return self.as_json or self.output == "-"

    @property
    def file(self) -> str | None:
        """The file to write, if any."""
        return None if self.output == "-" else self.output


def _size(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    """Bytes in a size such as 256KiB."""
    if text is None:
        return None
    from mmee_solver.errors import InputError
    from mmee_solver.units import parse_size

    try:
        return parse_size(text)
    except InputError as error:
        raise click.BadParameter(str(error)) from None


def _show_list(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    import shutil

    import mmee_graphs
    from mmee_solver.io import accelerator_names, load_accelerator
    from mmee_solver.report import describe_accelerator, listing

    graphs = [(name, str(mmee_graphs.describe(name))) for name in mmee_graphs.names()]
    machines = [(name, describe_accelerator(load_accelerator(name))) for name in accelerator_names()]
    width = max(60, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None
    _guarded(lambda: _print(listing(graphs, machines, width)))
    ctx.exit()


def _show_schema(ctx: click.Context, _param: click.Parameter, which: str | None) -> None:
    if which is None or ctx.resilient_parsing:
        return
    from mmee_solver.io import dump_json, schema

    _guarded(lambda: _print_bytes(dump_json(schema(which))))
    ctx.exit()


@click.command(
    name="mmee-solve",
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.argument("graph")
@click.argument("accel")
@click.option(
    "--objective",
    type=click.Choice(["dram", "energy", "latency", "edp"]),
    default="energy",
    show_default=True,
    help="What to minimise: bytes moved from and to DRAM, energy, latency, or energy × latency.",
)
@click.option(
    "--tiles",
    type=click.Choice(["integer", "divisors"]),
    default="integer",
    show_default=True,
    help="Tile sizes to consider: every integer, or only those that divide their dim.",
)
@click.option(
    "--buffer",
    "buffer_bytes",
    metavar="SIZE",
    callback=_size,
    help="Buffer capacity instead of the accelerator's: 256KiB, 1MiB.",
)
@click.option(
    "--fusion",
    type=click.Choice(["none", "auto", "all"]),
    default="auto",
    show_default=True,
    help="Compute every op alone, fuse where it pays, or fuse into as few groups as can be.",
)
@click.option("--no-recompute", is_flag=True, help="Leave out dataflows that compute a value twice.")
@click.option(
    "--no-residency", is_flag=True, help="Let no intermediate stay in the buffer between fusion groups."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the mapping as JSON; - writes it to stdout, instead of the page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the mapping as JSON instead of the page.")
@click.option("-q", "--quiet", is_flag=True, help="Print no page and no progress.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_list,
    help="Show the graphs and accelerators that can be named, and exit.",
)
@click.option(
    "--schema",
    type=click.Choice(["graph", "accel", "mapping"]),
    is_eager=True,
    expose_value=False,
    callback=_show_schema,
    help="Print the JSON Schema of a document, and exit.",
)
@click.version_option(__version__, prog_name="mmee-solve", message="%(prog)s %(version)s")
def main(
    graph: str,
    accel: str,
    objective: str,
    tiles: str,
    buffer_bytes: int | None,
    fusion: str,
    no_recompute: bool,
    no_residency: bool,
    output: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the dataflow of least cost for a graph of tensor operators, and prove it.

    GRAPH is a DAG of operators (JSON), ACCEL an accelerator with DRAM, one on-chip buffer, PE arrays
    and a vector unit (YAML). The answer says which operators to fuse, how to nest and tile the loops,
    which tiles to keep on chip and for how long; no dataflow of the searched space costs less.
    """
    options = {
        "objective": objective,
        "tiles": tiles,
        "fusion": fusion,
        "recompute": not no_recompute,
        "residency": not no_residency,
    }
    request = _Request(graph, accel, options, buffer_bytes, output, as_json, quiet)
    _guarded(lambda: _run(request))


def _run(request: _Request) -> None:
    """Read, solve, print."""
    from mmee_solver.errors import InfeasibleError
    from mmee_solver.io import load_accelerator, load_graph

    graph = load_graph(request.graph)
    accelerator = load_accelerator(request.accelerator)
    if request.buffer_bytes is not None:
        accelerator = _with_buffer(accelerator, request.buffer_bytes)
    if request.file is not None:
        _check_target(request.file)
    try:
        mapping = _solve(graph, accelerator, request)
    except InfeasibleError as error:
        _fail(_too_small(error, request), INFEASIBLE)
    _deliver(mapping, request)


def _with_buffer(accelerator: Accelerator, capacity_bytes: int) -> Accelerator:
    from mmee_solver.errors import InputError

    try:
        return accelerator.with_buffer(capacity_bytes)
    except InputError as error:
        raise InputError(error.message, "--buffer") from None


def _check_target(path: str) -> None:
    """Refuse at once what cannot be written after a long solve."""
    from mmee_solver.errors import InputError
    from mmee_solver.files import printable

    folder = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path):
        raise InputError("cannot be written: it is a folder", "", printable(path, 4096))
    if not os.path.isdir(folder):
        raise InputError("cannot be written: there is no such folder", "", printable(path, 4096))


def _solve(graph: Graph, accelerator: Accelerator, request: _Request) -> Mapping:
    from mmee_cli.progress import Spinner
    from mmee_solver import solve

    if request.quiet or not sys.stderr.isatty():
        return solve(graph, accelerator, **request.options)
    with Spinner() as spinner:
        return solve(graph, accelerator, **request.options, progress=spinner)


def _deliver(mapping: Mapping, request: _Request) -> None:
    """Print the page or the JSON, and write the file."""
    from mmee_solver.files import printable, write_text_atomic
    from mmee_solver.io import accelerator_to_json, dump_json, graph_to_json
    from mmee_solver.mapping import mapping_to_json
    from mmee_solver.report import page
    from mmee_solver.units import iec_bytes

    machine = mapping.accelerator
    data = mapping_to_json(mapping, graph_to_json(mapping.graph), accelerator_to_json(machine))
    if request.prints_json:
        _print_bytes(dump_json(data))
    elif not request.quiet:
        with_buffer = f" with {iec_bytes(request.buffer_bytes)}" if request.buffer_bytes else ""
        _print(page(mapping, mapping.graph.name, machine.name + with_buffer, colour=_colour()))
    if request.file is not None:
        write_text_atomic(request.file, dump_json(data))
        if not request.prints_json and not request.quiet:
            _print(f"\n{printable(request.file, 4096)} written")


def _too_small(error: InfeasibleError, request: _Request) -> str:
    """The message of an infeasible solve, with the place where the capacity stands."""
    from mmee_solver.files import printable

    if request.buffer_bytes is not None:
        return str(error).replace("buffer.capacity_bytes", "--buffer", 1)
    return f"{printable(request.accelerator, 4096)}: {error}"


def _guarded(action: Callable[[], None]) -> None:
    """Do something; what goes wrong for a reason of the user's becomes a message and an exit code."""
    from mmee_solver.errors import MmeeError

    try:
        action()
    except MmeeError as error:
        _fail(str(error), BAD_INPUT)
    except BrokenPipeError:  # the reader has seen enough
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        _fail(f"{error.filename or 'standard output'}: {error.strerror or error}", BAD_INPUT)
    except MemoryError:
        _fail("out of memory; try --tiles divisors, or a smaller graph", STOPPED)
    except KeyboardInterrupt:
        _fail("interrupted", STOPPED)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(code)


def _colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _print(text: str) -> None:
    """Print text; what the terminal cannot show becomes a question mark."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding))


def _print_bytes(text: str) -> None:
    """Print a document: UTF-8, whatever the terminal takes."""
    click.echo(text.encode(), nl=False)


def _drop_stdout() -> None:
    """Send what is still in stdout's buffer nowhere, or Python complains about it at exit."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # no real stdout
        return


if __name__ == "__main__":
    main(prog_name="mmee-solve")
