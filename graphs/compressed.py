"""Smaller weights: in fewer bits (W4A16), or as products of two thin matrices."""

from __future__ import annotations

from mmee_graphs.builders import matmul_pair
from mmee_graphs.document import JsonGraph, document, elementwise, joined, renamed

TOKEN_DIMS = frozenset("ilm")


def weights(graph: JsonGraph) -> tuple[str, ...]:
    """List the weights of a graph: tensors that no op makes and that have no dim of tokens (i, l, m).

    >>> from mmee_graphs.builders import ffn
    >>> weights(ffn(16, 64, 256))
    ('A', 'B')
    """
    made = {op["output"] for op in graph["ops"]}
    return tuple(
        tensor
        for tensor, entry in graph["tensors"].items()
        if tensor not in made and TOKEN_DIMS.isdisjoint(entry["dims"])
    )


def with_weights(graph: JsonGraph, dtype: str) -> JsonGraph:
    """Give every weight another dtype, e.g. int4 beside fp16 activations (W4A16).

    The weights are widened on the way into the array, which moves no byte. Their scales, one for
    every 128 weights as a rule and so 3 % more in fp16, are left out.

    Parameters
    ----------
    graph : dict
        A document in format "mmee-graph/1".
    dtype : str
        Dtype of the weights.

    Returns
    -------
    dict
        A new document.

    >>> from mmee_graphs.builders import ffn
    >>> with_weights(ffn(16, 64, 256), "int4")["tensors"]["A"]
    {'dims': ['k', 'f'], 'dtype': 'int4'}
    """
    chosen = weights(graph)
    tensors = {
        tensor: {**entry, "dtype": dtype} if tensor in chosen else entry
        for tensor, entry in graph["tensors"].items()
    }
    return {**graph, "tensors": tensors}


def low_rank_ffn(
    m: int,
    d: int,
    f: int,
    rank: int,
    *,
    function: str = "gelu",
    name: str = "low-rank-ffn",
    source: str = "",
    dtype: str = "fp16",
) -> JsonGraph:
    """Build a feed-forward block whose two weights are products of thin matrices, W ≈ A·B.

    X·Au → Tu, Tu·Bu → H, Z = function(H), Z·Ad → Td, Td·Bd → Y. Dims are those of `ffn` (m tokens, k
    and n of size d, f hidden), and r and s, the ranks of both weights.

    Parameters
    ----------
    m, d, f, function : int, int, int, str
        As in `ffn`.
    rank : int
        Columns of A and rows of B.
    name, source, dtype : str
        As in `matmul`.

    Returns
    -------
    dict
        The document, ready for ``json.dumps``.

    >>> low_rank_ffn(16, 64, 256, 32)["dims"]
    {'m': 16, 'k': 64, 'r': 32, 'f': 256, 's': 32, 'n': 64}
    """
    up = renamed(
        matmul_pair(m, d, rank, f),
        dims={"f": "r", "n": "f"},
        tensors={"A": "Au", "H": "Tu", "B": "Bu", "Y": "H"},
        ops={"up": "up_a", "down": "up_b"},
    )
    shapes = {"H": ["m", "f"], "Z": ["m", "f"]}
    activation = document({"m": m, "f": f}, shapes, [elementwise(function, ["H"], "Z")])
    down = renamed(
        matmul_pair(m, f, rank, d),
        dims={"k": "f", "f": "s"},
        tensors={"X": "Z", "A": "Ad", "H": "Td", "B": "Bd"},
        ops={"up": "down_a", "down": "down_b"},
    )
    return joined([up, activation, down], outputs=["Y"], name=name, source=source, dtype=dtype)
