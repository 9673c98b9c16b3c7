"""Checkpoints: variables by name, and the variable that each node of a graph restores.

A checkpoint names its variables as their saver did. A partitioned variable is a single entry of the
checkpoint, and several nodes of the graph, each with one partition:

    net/weights (10, 4)      net/weights/part_0: rows 0 to 4, net/weights/part_1: rows 5 to 9

TensorFlow's reader opens both formats: V1, which is a single file or a set of shards, and V2.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from quantkit.arguments import expand_user
from quantkit.errors import InputError, did_you_mean
from quantkit.formats.kinds import shards
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.runtimes.tensorflow_library import import_tensorflow, suppress_log, translate_read_errors

# Default name of the node that restores all variables.
RESTORE = "save/restore_all"
# The second input lists variable names; the third, which Restore lacks, lists slices of the
# variables.
_RESTORING = frozenset({"RestoreV2", "RestoreSlice", "Restore"})
_ASSIGNING = frozenset({"Assign", "AssignVariableOp"})


@dataclass(frozen=True)
class CheckpointEntry:
    """Entry of a checkpoint: a variable, or a slice of a partitioned variable.

    Attributes:
        name: name of the variable in the checkpoint.
        slice: slice in the syntax of RestoreV2: the shape of the variable, then start and length
            along each dimension, or ``-`` for all of it: ``100 1 50,25:-``; empty for the whole
            variable.
    """

    name: str
    slice: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """Open checkpoint; values are read on first use.

    Attributes:
        prefix: common beginning of the names of its files.
    """

    prefix: str
    _files: str
    _reader: Any

    @classmethod
    def open(cls, prefix: str) -> Self:
        """Open a checkpoint and read its index.

        Raises:
            InputError: the checkpoint does not exist, or is broken.
            UnavailableError: TensorFlow is not installed.
        """
        tf, path = import_tensorflow(), expand_user(prefix)
        files = f"{path}-?????-of-?????" if shards(path) else str(path)
        with _reading(prefix), suppress_log():
            return cls(prefix, files, tf.train.load_checkpoint(files))

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the variables by name, with all partitions of a partitioned variable."""
        return {name: tuple(sizes) for name, sizes in self._reader.get_variable_to_shape_map().items()}

    def tensor(self, entry: CheckpointEntry) -> Tensor:
        """Return the values of an entry.

        Raises:
            InputError: the checkpoint lacks the variable, its type is not supported, or the slice
                is out of range.
        """
        if entry.name not in self.shapes:
            raise InputError(f"{self.prefix} has no variable {entry.name!r}", hint=self._suggest(entry.name))
        with _reading(self.prefix):
            dtype = DType.of(self._reader.get_variable_to_dtype_map()[entry.name].as_numpy_dtype)
        whole = self.shapes[entry.name]
        return Tensor(dtype, _shape_of(entry, whole), lambda: self._values(entry))

    def _suggest(self, name: str) -> str:
        whole = re.sub(r"/part_\d+$", "", name)
        if whole in self.shapes:
            return f"the checkpoint holds {whole!r} unpartitioned; the .meta graph has the partitions"
        return did_you_mean(name, self.shapes) or f"the checkpoint holds {', '.join(sorted(self.shapes)[:5])}"

    def _values(self, entry: CheckpointEntry) -> Array:
        with _reading(self.prefix), suppress_log():
            return np.asarray(self._read_slice(entry) if entry.slice else self._reader.get_tensor(entry.name))

    def _read_slice(self, entry: CheckpointEntry) -> Any:
        """Read a slice without the whole variable, which may have hundreds of partitions."""
        v1 = import_tensorflow().compat.v1
        dtype = self._reader.get_variable_to_dtype_map()[entry.name]
        with v1.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as session:
            return session.run(
                v1.raw_ops.RestoreV2(
                    prefix=self._files, tensor_names=[entry.name], shape_and_slices=[entry.slice], dtypes=[dtype]
                )[0]
            )


def read_variable(prefix: str, name: str, slice: str = "") -> Array:
    """Read the values of a variable, or of a slice of it; see `CheckpointEntry`.

    Raises:
        InputError: the checkpoint or variable does not exist, or the slice is out of range.
        UnavailableError: TensorFlow is not installed.
    """
    return Checkpoint.open(prefix).tensor(CheckpointEntry(name, slice.strip())).array


def restored_entries(graph: Graph, restore: str = RESTORE) -> Mapping[str, CheckpointEntry]:
    """Return the entry of each variable by node name; empty for a graph without a saver.

    Args:
        graph: graph with the nodes of its saver.
        restore: node with control dependencies on all restoring nodes.
    """
    if restore not in graph.nodes:
        return {}
    stack, entries = [restore], {}
    visited = set(stack)
    while stack:
        node = graph[stack.pop()]
        if (
            node.op in _ASSIGNING
            and len(node.inputs) > 1
            and (entry := _restored_entry(graph, node.inputs[1])) is not None
        ):
            entries[node.inputs[0].node] = entry
        controls = [name for name in node.controls if name in graph.nodes and name not in visited]
        visited.update(controls)
        stack.extend(controls)
    return entries


def _restored_entry(graph: Graph, edge: Edge) -> CheckpointEntry | None:
    """Return the entry that an edge is restored from; None if the value has another origin."""
    node, visited = graph.nodes.get(edge.node), set()
    while node and node.op == "Identity" and node.inputs and node.name not in visited:
        visited.add(node.name)
        edge = node.inputs[0]
        node = graph.nodes.get(edge.node)
    if node is None or node.op not in _RESTORING:
        return None
    # Output number i restores entry i of these lists.
    texts = [_text(graph, names, edge.port) for names in node.inputs[1:3]]
    if not texts or texts[0] is None:
        return None
    return CheckpointEntry(*(text or "" for text in texts))


def _text(graph: Graph, edge: Edge, number: int) -> str | None:
    """Return one string of a constant; None if the edge is not a constant of strings."""
    value = graph.constant_of(edge)
    if value is None or value.dtype is not DType.STRING or number >= value.num_elements:
        return None
    return bytes(value.array.reshape(-1)[number]).decode(errors="replace")


def _reading(prefix: str) -> AbstractContextManager[None]:
    return translate_read_errors(
        f"the checkpoint {prefix}",
        "name the prefix of its files, without .index or .data-00000-of-00001; if the files exist, copy them again",
    )


def _shape_of(entry: CheckpointEntry, whole: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an entry of a variable with the shape ``whole``.

    Raises:
        InputError: the slice is out of range.
    """
    if not entry.slice:
        return whole
    matches = [re.fullmatch(r"-|(\d+),(\d+)", text) for text in entry.slice.split()[-1].split(":")]
    if len(matches) == len(whole) and None not in matches:
        ranges = [
            (int(match[1] or 0), int(match[2] or size)) for match, size in zip(matches, whole, strict=True) if match
        ]
        if all(start + length <= size for (start, length), size in zip(ranges, whole, strict=True)):
            return tuple(length for _, length in ranges)
    raise InputError(f"{entry.slice!r} is not a slice of {entry.name!r}, which has the shape {list(whole)}")
