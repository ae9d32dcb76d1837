"""Plain data as the structs of :mod:`mmee_solver.schema`, and what is wrong with it in our words."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from mmee_solver.errors import InputError, did_you_mean
from mmee_solver.files import check_plain, join, show
from mmee_solver.schema import (
    ACCELERATOR_FORMAT,
    FORMATS,
    GRAPH_FORMAT,
    MAPPING_FORMAT,
    MAX_NAME_LENGTH,
    GraphFile,
    OpEntry,
    StepEntry,
)
from mmee_solver.units import parse_size

Document = TypeVar("Document", bound=msgspec.Struct)

_UNKNOWN = r"(?s)Object contains unknown field `(.*)`"
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "null": "null",
    "object": "an object",
    "array": "a list",
}


def decode(data: object, document: type[Document], file: str = "") -> Document:
    """Plain data as a document of a given structure.

    Parameters
    ----------
    data : object
        Plain data, as a parser gives it.
    document : type
        A struct of :mod:`mmee_solver.schema`.
    file : str
        Name for errors.

    Returns
    -------
    document
        Keys and types checked; values not.

    Raises
    ------
    InputError
        Names the place, what stands there and what was expected.
    """
    try:
        check_plain(data)
        _check_format(data, FORMATS[document])
        try:
            return msgspec.convert(data, document)
        except msgspec.ValidationError as error:
            raise _located(data, str(error), inspect.type_info(document)) from None
    except InputError as error:
        raise error.in_file(file) from None


def _check_format(data: object, expected: str) -> None:
    if not isinstance(data, dict):
        raise InputError(f'{show(data)}; expected an object with "format": "{expected}"')
    if "format" not in data:
        raise InputError(f'missing key "format"; expected "format": "{expected}"')
    found = data["format"]
    if found != expected:
        swapped = found in (GRAPH_FORMAT, ACCELERATOR_FORMAT) and expected != MAPPING_FORMAT
        hint = " (the graph comes first, then the accelerator)" if swapped else ""
        raise InputError(f'{show(found)}; expected "{expected}"{hint}', "format")


def _located(data: object, text: str, info: inspect.Type, place: str = "") -> InputError:
    """The error for a msgspec message: its path followed to the value, the rest in our words."""
    found = re.fullmatch(r"(?s)(.*) - at `\$([^`]*)`", text)
    top = re.fullmatch(_UNKNOWN, text)
    if top and isinstance(data, dict) and top[1] in data:
        found = None  # a key at the top may itself look like a path
    message, path = (found[1], found[2]) if found else (text, "")
    value: Any = data
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        info = _inner(info, name or index)
        if index == "...":  # msgspec does not say which entry: it is the first that fails alone
            entry_type = info.cls if isinstance(info, inspect.StructType) else int
            for key, entry in value.items():
                try:
                    msgspec.convert(entry, entry_type)
                except msgspec.ValidationError as error:
                    return _located(entry, str(error), info, join(place, key))
        value = value[name] if name else value[int(index)]
        place = join(place, name) if name else f"{place}[{index}]"
    return InputError(_in_words(message, value, _bare(info)), place)


def _bare(info: inspect.Type) -> inspect.Type:
    """A type without its description, and without the null that may stand in its place."""
    while isinstance(info, inspect.Metadata | inspect.UnionType):
        info = info.type if isinstance(info, inspect.Metadata) else info.types[0]
    return info


def _inner(info: inspect.Type, token: str) -> inspect.Type:
    """The type of a field, an entry or an item."""
    info = _bare(info)
    if isinstance(info, inspect.StructType):
        return _bare(next(field.type for field in info.fields if field.encode_name == token))
    if isinstance(info, inspect.TupleType):
        return _bare(info.item_types[int(token)])
    if isinstance(info, inspect.DictType):
        return _bare(info.value_type)
    return _bare(info.item_type) if isinstance(info, inspect.VarTupleType | inspect.ListType) else info


def _in_words(message: str, value: object, info: inspect.Type) -> str:
    fields = {field.encode_name: field.type for field in getattr(info, "fields", ())}
    if found := re.fullmatch(_UNKNOWN, message):
        hint = did_you_mean(found[1][:MAX_NAME_LENGTH], fields)
        return f"unknown key {show(found[1])}{hint or '; expected one of ' + ', '.join(fields)}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", message):
        what = fields[found[1]]
        described = what.extra_json_schema if isinstance(what, inspect.Metadata) else None
        about = f" ({_lowered(described['description'].rstrip('.'))})" if described else ""
        return f'missing key "{found[1]}"{about}'
    if found := re.fullmatch(r"Expected `array` of length (\d+), got \d+", message):
        return f"{show(value)}; expected a list of {found[1]}"
    if found := re.fullmatch(r"Expected `(.*?)`, got `.*`", message):
        wanted = found[1].split(" | ")
        expected = " or ".join(_EXPECTED.get(name, name) for name in wanted)
        return f"{show(value)}; expected {expected}{_advice(wanted[0], value)}"
    return f"{show(value)}; {_lowered(message)}"


def _lowered(sentence: str) -> str:
    """A sentence as it reads after a colon; what starts with an abbreviation stays."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def _advice(wanted: str, value: object) -> str:
    if wanted == "str" and isinstance(value, int | float):
        return ", in quotes"
    if wanted == "int" and isinstance(value, float) and value.is_integer():
        return f", e.g. {int(value)}"
    if wanted in ("int", "float") and isinstance(value, str):
        with suppress(InputError):
            return f", e.g. {parse_size(value)}"
    return ""


def check_name(name: str, place: str, what: str = "name") -> None:
    """Refuse a name that is empty, longer than 200 characters or cannot be printed.

    Parameters
    ----------
    name : str
        The name.
    place : str
        Where it stands.
    what : str
        What it is called in the error.

    Raises
    ------
    InputError
        Names the place.
    """
    if not name.strip():
        raise InputError(f"an empty {what}; expected at least one character", place)
    if len(name) > MAX_NAME_LENGTH:
        raise InputError(f"a {what} of {len(name)} characters; at most {MAX_NAME_LENGTH} may be", place)
    if not name.isprintable():
        raise InputError(f"{show(name)} holds a character that cannot be printed; expected none", place)


def check_source(source: str) -> None:
    """Refuse a source that cannot be printed; newlines and tabs are allowed.

    Parameters
    ----------
    source : str
        Free text.

    Raises
    ------
    InputError
        At the place ``source``.
    """
    for char in source:
        if not (char.isprintable() or char in "\n\t"):
            raise InputError(f"holds the character {show(char)}, which cannot be printed", "source")


def check_names(document: GraphFile) -> None:
    """Refuse names of a graph that are empty, longer than 200 characters or cannot be printed.

    Parameters
    ----------
    document : GraphFile
        A decoded graph.

    Raises
    ------
    InputError
        Names the place.
    """
    check_name(document.name, "name")
    check_source(document.source)
    check_name(document.dtype, "dtype", "dtype")
    for name in document.dims:
        check_name(name, join("dims", name))
    for name, tensor in document.tensors.items():
        check_name(name, join("tensors", name))
        if isinstance(tensor.dtype, str):
            check_name(tensor.dtype, f"{join('tensors', name)}.dtype", "dtype")
        for index, dim in enumerate(tensor.dims):
            check_name(dim, f"{join('tensors', name)}.dims[{index}]")
    for index, op in enumerate(document.ops):
        place = f"ops[{index}]"
        check_name(op.output, f"{place}.output")
        _check_step_names(op, place)
        for part, steps in (("epilogue", op.epilogue), ("prologue", op.prologue)):
            for number, step in enumerate(steps):
                _check_step_names(step, f"{place}.{part}[{number}]")
    for index, name in enumerate(document.outputs):
        check_name(name, f"outputs[{index}]")


def _check_step_names(entry: OpEntry | StepEntry, place: str) -> None:
    check_name(entry.name, f"{place}.name")
    check_name(entry.kind, f"{place}.kind", "kind")
    for key in ("function", "axis", "tensor"):
        if value := getattr(entry, key, ""):
            check_name(value, f"{place}.{key}", key)
    for index, name in enumerate(entry.inputs):
        check_name(name, f"{place}.inputs[{index}]")
