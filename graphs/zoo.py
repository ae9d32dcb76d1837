"""The named entries of the workload zoo: what each is, how it is built and where its file lies."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING

from mmee_graphs.block_entries import block_entries, model_entries
from mmee_graphs.entries import Entry, part_entries, single_entries
from mmee_graphs.models import LAYERS

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from mmee_graphs.document import JsonGraph


def names() -> tuple[str, ...]:
    """List every name in the zoo, relatives side by side.

    >>> names()[:2]
    ('gpt3-6.7b-attention', 'gpt3-6.7b-ffn')
    """
    return tuple(_ENTRIES)


def describe(name: str) -> str:
    """Say in one line what a graph is.

    Raises
    ------
    LookupError
        If there is no such name.

    >>> describe("llama3-8b-decode-attention")
    'Llama 3 8B decode attention: 32 heads of 128 on 8 KV heads, 1 query, 2048 cached keys, softmax'
    """
    about: str = _entry(name).about
    return about


def build(name: str) -> JsonGraph:
    """Build a graph anew, as a document in format "mmee-graph/1".

    Raises
    ------
    LookupError
        If there is no such name.

    >>> build("matmul-61-67-71")["dims"]
    {'m': 61, 'k': 67, 'n': 71}
    """
    entry = _entry(name)
    graph: JsonGraph = entry.make(name=name, source=entry.source)
    return graph


def path(name: str) -> Traversable:
    """Locate the JSON file of a graph, installed with this package.

    Raises
    ------
    LookupError
        If there is no such name.

    >>> path("bert-b-attention").name
    'bert-b-attention.json'
    """
    _entry(name)
    return files("mmee_graphs") / f"{name}.json"


def _entry(name: str) -> Entry:
    try:
        return _ENTRIES[name]
    except KeyError:
        close = get_close_matches(name, _ENTRIES, n=1)
        hint = f'; did you mean "{close[0]}"?' if close else ""
        raise LookupError(f'no graph named "{name}" in the zoo{hint}') from None


def _all_entries() -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key, layer in LAYERS.items():
        entries |= part_entries(key, layer)
        entries |= block_entries(key, layer)
    entries |= model_entries()
    entries |= single_entries()
    return entries


_ENTRIES = _all_entries()
