"""The program of a group: its trees, skeletons and layouts in matrix form, independent of the objective."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmee_solver.accelerator import Accelerator
from mmee_solver.arrays import OpTable, op_table
from mmee_solver.emit import Chosen, emit
from mmee_solver.encode import Encoding, encode_skeletons, has_odd_bits
from mmee_solver.encode_layouts import encode_layouts
from mmee_solver.layouts import Layout, LayoutLister, Path, Stem, leaf_path
from mmee_solver.nest import Group
from mmee_solver.skeletons import Skeleton, shares_loops, skeletons
from mmee_solver.space import GroupSpace
from mmee_solver.trees import OrderTree, order_trees
from mmee_solver.workload import Graph

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Leaf:
    """One leaf: its layouts in matrix form, which of them belong to each skeleton, and how axes map.

    ``path_axes`` (S, P): the skeleton's axis of each axis of the leaf's path, -1 beyond the path.
    """

    encoding: Encoding
    layouts: tuple[Ints, ...]
    path_axes: Ints


@dataclass(frozen=True, slots=True)
class Pick:
    """What one leaf does: numbers of its layout and array configuration, tile sizes of its axes."""

    layout: int
    tiles: Sequence[int]
    config: int = 0


@dataclass(frozen=True)
class Program:
    """All that a search of one group needs, whatever the objective."""

    space: GroupSpace
    trees: int
    skeletons: tuple[Skeleton, ...]
    top: Encoding
    leaves: tuple[Leaf, ...]
    odd_bits: bool
    exact: bool  # whether figures of single tilings are exact, not bounds

    @property
    def structures(self) -> int:
        """Structures in all: every skeleton with every layout of each of its leaves."""
        total = 0
        for number in range(len(self.skeletons)):
            count = 1
            for leaf in self.leaves:
                count *= len(leaf.layouts[number])
            total += count
        return total

    def group(self, number: int, tiles: Sequence[int], leaves: Sequence[Pick]) -> Group:
        """The dataflow of a skeleton (number) with tile sizes of its axes and a pick for every leaf."""
        skeleton, chosen, configs = self.skeletons[number], [], {}
        for name, leaf, pick in zip(skeleton.ops, self.leaves, leaves, strict=True):
            layout = leaf.encoding.structures[pick.layout]
            assert isinstance(layout, Layout)
            chosen.append(Chosen(layout, pick.tiles))
            if leaf.encoding.table is not None:
                configs[name] = leaf.encoding.table.configs[pick.config]
        return emit(self.space.graph, skeleton, tiles, chosen, configs)


def group_program(
    graph: Graph,
    accelerator: Accelerator,
    ops: Sequence[str],
    recompute: bool,
    recut: bool,
    resident: Collection[str] = (),
    trees: Sequence[OrderTree] | None = None,
    tables: dict[str, OpTable | None] | None = None,
) -> Program:
    """List and encode everything that a group may do.

    Parameters
    ----------
    graph : Graph
        The folded graph.
    accelerator : Accelerator
        Arrays, double buffering and energies.
    ops : sequence of str
        The group, in topological order.
    recompute : bool
        Whether loops that recompute an op are in the space.
    recut : bool
        Whether a granule may take sizes that a loop may not (with divisors).
    resident : collection of str
        Tensors that stay whole in the buffer.
    trees : sequence of OrderTree, optional
        Its order trees; all of them unless given.
    tables : dict, optional
        Array configurations by op, kept for other groups of the graph.
    """
    space = GroupSpace.of(graph, ops, resident)
    trees = order_trees(graph, ops, recompute) if trees is None else trees
    tables = {} if tables is None else tables
    found: list[Skeleton] = []
    paths: list[list[Path]] = []
    lister = LayoutLister(space, recut)
    listed: dict[Path, list[Stem]] = {}
    for skeleton in skeletons(space, trees):
        if not shares_loops(space, skeleton.root):
            continue
        own = [leaf_path(space, skeleton, leaf) for leaf in range(len(ops))]
        for path in own:
            if path not in listed:
                listed[path] = lister.stems(path)
        if all(listed[path] for path in own):
            found.append(skeleton)
            paths.append(own)
    twice = frozenset(lister.twice)
    leaves = []
    for leaf in range(len(ops)):
        mine = dict.fromkeys(own[leaf] for own in paths)
        start, numbers = 0, {}
        for path in mine:
            count = sum(len(stem.parts) for stem in listed[path])
            numbers[path] = np.arange(start, start + count)
            start += count
        name = ops[leaf]
        if name not in tables:
            tables[name] = op_table(graph, accelerator, graph.op(name))
        stems = [stem for path in mine for stem in listed[path]]
        encoding = encode_layouts(space, stems, accelerator, twice, tables[name])
        widest = max(len(path.loops) for path in mine)
        axes = np.full((len(found), widest), -1, dtype=np.int64)
        for number, skeleton in enumerate(found):
            steps = skeleton.paths[leaf]
            axes[number, : len(steps)] = [step.axis for step in steps]
        leaves.append(Leaf(encoding, tuple(numbers[own[leaf]] for own in paths), axes))
    top = encode_skeletons(space, found, accelerator, twice)
    odd = has_odd_bits(space)
    # double-buffered statistics count once in the encoding, even where they count twice
    exact = not odd and not (accelerator.buffer.double_buffered and space.rows)
    return Program(space, len(trees), tuple(found), top, tuple(leaves), odd, exact)
