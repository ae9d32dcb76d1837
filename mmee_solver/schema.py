"""The documents that users write and read: their structure, checked, and their JSON Schemas.

The structs mirror the JSON and YAML of design §3, §4 and §9 and hold no logic. msgspec checks what is
there and of which type; whether the values make sense is for the core types to check, so that an object
built in Python and one read from a file are refused for the same reasons.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mmee_solver.accelerator import STATIONARITY
from mmee_solver.errors import InputError
from mmee_solver.units import DTYPE_BITS
from mmee_solver.workload import KINDS, MAX_DIM_SIZE

GRAPH_FORMAT = "mmee-graph/1"
ACCELERATOR_FORMAT = "mmee-accel/1"
MAPPING_FORMAT = "mmee-mapping/1"
MAX_NAME_LENGTH = 200

Text = Annotated[str, Meta(description="Free text, e.g. where the figures come from.")]
Name = Annotated[
    str,
    Meta(
        description="A name: printable, not empty.",
        extra_json_schema={"minLength": 1, "maxLength": MAX_NAME_LENGTH},
    ),
]
Dim = Annotated[str, Meta(description="Name of a dim.")]
TensorName = Annotated[str, Meta(description="Name of a tensor.")]
OpName = Annotated[str, Meta(description="Name of an op.")]
Dtype = Annotated[str, Meta(description="Type of an element.", extra_json_schema={"enum": list(DTYPE_BITS)})]
Size = Annotated[
    int,
    Meta(
        description="Size of a dim, in elements.",
        extra_json_schema={"minimum": 1, "maximum": MAX_DIM_SIZE},
    ),
]
Side = Annotated[int, Meta(description="PEs along one side.", extra_json_schema={"minimum": 1})]
Count = Annotated[int, Meta(description="An exact count.", extra_json_schema={"minimum": 0})]
Energy = Annotated[float, Meta(description="Energy, in pJ.", extra_json_schema={"minimum": 0})]
Axis = Annotated[str, Meta(description="Dim over which softmax and normalize take row statistics.")]
Function = Annotated[
    str, Meta(description="What an elementwise or normalize op computes: add, mul, gelu, rmsnorm, ...")
]
_POSITIVE = {"exclusiveMinimum": 0}
_NOT_NEGATIVE = {"minimum": 0}


class _Strict(Struct, forbid_unknown_fields=True):
    """A struct that refuses keys it does not know."""


class TensorEntry(_Strict):
    """A tensor: its dims in order, and the type of its elements."""

    dims: Annotated[tuple[Dim, ...], Meta(description="Its dims, outermost first.")]
    dtype: Annotated[
        Dtype | UnsetType, Meta(description="Type of an element. Left out: the graph's dtype.")
    ] = UNSET


class StepEntry(_Strict):
    """An elementwise, softmax or normalize op that was folded into an einsum."""

    name: Name
    kind: Annotated[str, Meta(description="What the step is.", extra_json_schema={"enum": list(KINDS[1:])})]
    function: Function = ""
    axis: Axis = ""
    inputs: Annotated[
        tuple[TensorName, ...], Meta(description="Further operands: a residual, a gate, a bias.")
    ] = ()
    tensor: Annotated[str, Meta(description="The input that a prologue works on.")] = ""


class OpEntry(_Strict):
    """An operator: what it reads, what it makes, and the steps folded into it."""

    name: Name
    kind: Annotated[str, Meta(description="What the op is.", extra_json_schema={"enum": list(KINDS)})]
    inputs: Annotated[
        tuple[TensorName, ...],
        Meta(description="Tensors read, in order.", extra_json_schema={"minItems": 1}),
    ]
    output: Annotated[str, Meta(description="The tensor made.")]
    function: Function = ""
    axis: Axis = ""
    epilogue: Annotated[tuple[StepEntry, ...], Meta(description="Steps on the output tile, in order.")] = ()
    prologue: Annotated[tuple[StepEntry, ...], Meta(description="Steps on input tiles, in order.")] = ()


class GraphFile(_Strict):
    """A workload: a DAG of tensor operators."""

    format: Annotated[Literal["mmee-graph/1"], Meta(description="Names this format.")]
    name: Name
    dims: Annotated[dict[str, Size], Meta(description="Size of every dim, in elements.")]
    tensors: Annotated[dict[str, TensorEntry], Meta(description="Every tensor by its name.")]
    ops: Annotated[tuple[OpEntry, ...], Meta(description="The ops.", extra_json_schema={"minItems": 1})]
    source: Text = ""
    dtype: Annotated[Dtype, Meta(description="Type of the tensors that name none.")] = "fp16"
    outputs: Annotated[tuple[TensorName, ...], Meta(description="Results. Left out: what no op reads.")] = ()


class DramEntry(_Strict):
    """The off-chip memory."""

    bandwidth_bytes_per_s: Annotated[
        float, Meta(description="Bandwidth, in bytes per second.", extra_json_schema=_POSITIVE)
    ]
    read_pj_per_byte: Annotated[
        float, Meta(description="Energy of a byte read, in pJ.", extra_json_schema=_NOT_NEGATIVE)
    ]
    write_pj_per_byte: Annotated[
        float, Meta(description="Energy of a byte written, in pJ.", extra_json_schema=_NOT_NEGATIVE)
    ]


class BufferEntry(_Strict):
    """The on-chip buffer."""

    capacity_bytes: Annotated[int, Meta(description="Capacity, in bytes.", extra_json_schema={"minimum": 1})]
    read_pj_per_byte: Annotated[
        float, Meta(description="Energy of a byte read, in pJ.", extra_json_schema=_NOT_NEGATIVE)
    ]
    write_pj_per_byte: Annotated[
        float, Meta(description="Energy of a byte written, in pJ.", extra_json_schema=_NOT_NEGATIVE)
    ]
    bandwidth_bytes_per_cycle: Annotated[
        float | None, Meta(description="Bandwidth, in bytes per clock cycle; null: never the bottleneck.")
    ] = None
    double_buffered: Annotated[
        bool, Meta(description="Whether a tile streamed from or to DRAM takes its room twice.")
    ] = False


class ArrayEntry(_Strict):
    """The PE arrays."""

    count: Annotated[int, Meta(description="Number of arrays.", extra_json_schema={"minimum": 1})]
    shapes: Annotated[
        tuple[tuple[Side, Side], ...],
        Meta(
            description="[rows, cols] that one array can be, in PEs; more than one: reconfigurable.",
            extra_json_schema={"minItems": 1},
        ),
    ]
    mac_pj: Annotated[
        float,
        Meta(description="Energy of a multiply-accumulate, in pJ.", extra_json_schema=_NOT_NEGATIVE),
    ]
    register_pj_per_mac: Annotated[
        float,
        Meta(description="Energy of the registers, in pJ per MAC.", extra_json_schema=_NOT_NEGATIVE),
    ]
    stationarity: Annotated[
        tuple[str, ...],
        Meta(
            description="Operands that the arrays can keep in place.",
            extra_json_schema={"minItems": 1, "items": {"enum": list(STATIONARITY)}},
        ),
    ] = STATIONARITY
    pipeline: Annotated[
        str,
        Meta(
            description="Whether filling and draining an array costs cycles (systolic) or not (ideal).",
            extra_json_schema={"enum": ["ideal", "systolic"]},
        ),
    ] = "ideal"


class VectorEntry(_Strict):
    """The vector unit."""

    lanes: Annotated[int, Meta(description="Operations per clock cycle.", extra_json_schema={"minimum": 1})]
    pj_per_op: Annotated[
        float, Meta(description="Energy of an operation, in pJ.", extra_json_schema=_NOT_NEGATIVE)
    ]
    rescale: Annotated[
        str,
        Meta(
            description="How an online softmax rescales its output: a multiplication in the vector "
            "unit (mul), or an integer add on the exponent in the accumulator (add).",
            extra_json_schema={"enum": ["mul", "add"]},
        ),
    ] = "mul"


class AcceleratorFile(_Strict):
    """An accelerator: DRAM, one on-chip buffer, PE arrays, a vector unit."""

    format: Annotated[Literal["mmee-accel/1"], Meta(description="Names this format.")]
    name: Name
    clock_hz: Annotated[float, Meta(description="Clock, in Hz.", extra_json_schema=_POSITIVE)]
    dram: DramEntry
    buffer: BufferEntry
    array: ArrayEntry
    vector: VectorEntry
    source: Text = ""


class ArrayConfigEntry(_Strict):
    """How an op runs on the arrays."""

    rows: Annotated[tuple[Dim, Size] | None, Meta(description="[dim, extent] over the rows.")]
    cols: Annotated[tuple[Dim, Size] | None, Meta(description="[dim, extent] over the columns.")]
    batch: Annotated[tuple[Dim, Size] | None, Meta(description="[dim, extent] over the arrays.")]
    inner: Annotated[str, Meta(description="The innermost temporal dim.")]
    shape: Annotated[tuple[Side, Side], Meta(description="[rows, cols] of one array, in PEs.")]


class EnergyEntry(Struct):
    """Energy by component, in pJ."""

    dram: Energy
    buffer: Energy
    register: Energy
    mac: Energy
    vector: Energy
    total: Energy


class MetricsEntry(Struct):
    """What a group or a whole graph costs."""

    dram_read_bytes: Count
    dram_write_bytes: Count
    dram_bytes: Count
    peak_buffer_bytes: Count
    macs: Count
    array_cycles: Count
    vector_cycles: Annotated[int | float, Meta(description="Cycles of the vector unit.")]
    latency_cycles: Count
    latency_s: Annotated[float, Meta(description="Latency, in seconds.")]
    energy_pj: EnergyEntry
    edp_js: Annotated[float, Meta(description="Energy × latency, in J·s.")]
    utilisation: Annotated[float, Meta(description="MACs over array cycles × PEs, 0 to 1.")]


class GroupEntry(_Strict):
    """A fusion group and its dataflow."""

    ops: Annotated[tuple[OpName, ...], Meta(description="The ops, in order.")]
    nest: Annotated[
        list[Any],
        Meta(
            description="Items run in order.",
            extra_json_schema={"items": {"$ref": "#/$defs/NestItem"}},
        ),
    ]
    array: Annotated[
        dict[str, ArrayConfigEntry], Meta(description="Array configuration of every op that has one.")
    ]
    metrics: MetricsEntry


class ResidentEntry(_Strict, rename={"first": "from", "last": "to"}):
    """A tensor kept whole in the buffer between groups."""

    tensor: TensorName
    first: Annotated[Count, Meta(description="Index of the group that makes it.")]
    last: Annotated[Count, Meta(description="Index of the last group that reads it.")]


class ComparisonEntry(Struct):
    """What the mapping is to be measured against."""

    unfused: Annotated[MetricsEntry | None, Meta(description="The best mapping without fusion.")]
    compulsory_bytes: Annotated[Count, Meta(description="DRAM bytes that no mapping avoids.")]


class MappingFile(_Strict):
    """A solved mapping, with its certificate."""

    format: Annotated[Literal["mmee-mapping/1"], Meta(description="Names this format.")]
    status: Annotated[str, Meta(description='"optimal" when proved, else how the search ended.')]
    objective: Annotated[
        str,
        Meta(
            description="What was minimised.",
            extra_json_schema={"enum": ["dram", "energy", "latency", "edp"]},
        ),
    ]
    value: Annotated[
        int | float, Meta(description="Of the mapping: bytes, pJ, cycles or pJ·cycles, by objective.")
    ]
    bound: Annotated[int | float | None, Meta(description="Proven lower bound, in the unit of value.")]
    gap: Annotated[float | None, Meta(description="(value - bound) / value; 0 when proved.")]
    graph: GraphFile
    accelerator: AcceleratorFile
    options: Annotated[dict[str, Any], Meta(description="The options of the solve.")]
    groups: Annotated[tuple[GroupEntry, ...], Meta(description="Groups in the order they run.")]
    metrics: MetricsEntry
    certificate: Annotated[
        dict[str, Any], Meta(description="The space, what was searched of it, and the proof.")
    ]
    resident: tuple[ResidentEntry, ...] = ()
    comparison: ComparisonEntry | None = None


FORMATS: dict[type[Struct], str] = {
    GraphFile: GRAPH_FORMAT,
    AcceleratorFile: ACCELERATOR_FORMAT,
    MappingFile: MAPPING_FORMAT,
}
DOCUMENTS: dict[str, type[Struct]] = {
    "graph": GraphFile,
    "accel": AcceleratorFile,
    "mapping": MappingFile,
}

_NEST_ITEM = {
    "title": "NestItem",
    "description": "One step of a nest: keep a tile, step through a dim, or run an op.",
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "hold": {
                    "description": "Keep this tensor's tile on chip, to its last use in this list.",
                    "type": "string",
                }
            },
            "required": ["hold"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "loop": {"description": "The dim stepped through.", "type": "string"},
                "tile": {"description": "Step, in elements.", "type": "integer", "minimum": 1},
                "body": {"type": "array", "items": {"$ref": "#/$defs/NestItem"}},
            },
            "required": ["loop", "tile", "body"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "compute": {
                    "description": "Run this op on the current tile of every dim.",
                    "type": "string",
                }
            },
            "required": ["compute"],
            "additionalProperties": False,
        },
    ],
}


def schema(which: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a kind of document.

    Parameters
    ----------
    which : str
        ``graph``, ``accel`` or ``mapping``.

    Raises
    ------
    InputError
        If there is no such kind.

    >>> schema("accel")["$defs"]["BufferEntry"]["properties"]["capacity_bytes"]["description"]
    'Capacity, in bytes.'
    """
    if which not in DOCUMENTS:
        raise InputError(f'no schema "{which}"; expected one of {", ".join(DOCUMENTS)}')
    document = DOCUMENTS[which]
    (top,), definitions = msgspec.json.schema_components([document], ref_template="#/$defs/{name}")
    if which == "mapping":
        definitions["NestItem"] = _NEST_ITEM
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FORMATS[document],
        **top,
        "$defs": dict(sorted(definitions.items())),
    }
