"""Checkpoints: variables by name, and which of them a graph restores where.

A checkpoint holds variables under the names that a saver gave them. A partitioned variable is one there, and several
nodes in the graph, each with a part of it:

    net/weights (10, 4)      net/weights/part_0: rows 0 to 4, net/weights/part_1: rows 5 to 9

TensorFlow's reader opens the files of both kinds: that of 2015, which is one file, and that of today.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from quantkit.errors import InputError, did_you_mean
from quantkit.formats.kinds import shards
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.runtimes.availability import require
from quantkit.runtimes.tensorflow_library import available, import_tensorflow, suppress_log, translate_read_errors

# What savers call the node that restores all they saved.
RESTORE = "save/restore_all"
# Their second input names what they restore, their third, which Restore has not, parts of that.
_RESTORING = frozenset({"RestoreV2", "RestoreSlice", "Restore"})
_ASSIGNING = frozenset({"Assign", "AssignVariableOp"})


@dataclass(frozen=True)
class Place:
    """Where a checkpoint has the values of a variable.

    Attributes:
        name: of the variable there.
        part: which part of it, as RestoreV2 takes it: sizes of the whole, then begin and length along each dimension
            or ``-`` for all of it: ``100 1 50,25:-``; nothing: the whole.
    """

    name: str
    part: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint; values stay in it until they are used.

    Attributes:
        prefix: what its files begin with.
    """

    prefix: str
    _files: str
    _reader: Any

    @classmethod
    def open(cls, prefix: str) -> Self:
        """Read the index.

        Raises:
            InputError: there is no such checkpoint, or it is broken.
            UnavailableError: TensorFlow is not installed.
        """
        require(available())
        tf, path = import_tensorflow(), Path(prefix).expanduser()
        files = f"{path}-?????-of-?????" if shards(path) else str(path)
        with _reading(prefix), suppress_log():
            return cls(prefix, files, tf.train.load_checkpoint(files))

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Sizes of the variables by name; those of a partitioned one are the whole's."""
        return {name: tuple(sizes) for name, sizes in self._reader.get_variable_to_shape_map().items()}

    def tensor(self, place: Place) -> Tensor:
        """The values of a variable, or of a part of one.

        Raises:
            InputError: there is no such variable, no graph has its type, or the part is not in it.
        """
        if place.name not in self.shapes:
            raise InputError(f"{self.prefix} holds no variable {place.name!r}", hint=self._instead_of(place.name))
        with _reading(self.prefix):
            dtype = DType.of(self._reader.get_variable_to_dtype_map()[place.name].as_numpy_dtype)
        whole = self.shapes[place.name]
        return Tensor(dtype, _sizes(place, whole), lambda: self._values(place))

    def _instead_of(self, name: str) -> str:
        whole = re.sub(r"/part_\d+$", "", name)
        if whole in self.shapes:
            return f"it holds {whole!r} in one piece, and which part of it that is, only the graph with its saver tells"
        return did_you_mean(name, self.shapes) or f"it holds {', '.join(sorted(self.shapes)[:5])}"

    def _values(self, place: Place) -> Array:
        with _reading(self.prefix), suppress_log():
            return np.asarray(self._part(place) if place.part else self._reader.get_tensor(place.name))

    def _part(self, place: Place) -> Any:
        """A part alone: the whole, of which there may be hundreds of parts, is never read."""
        v1 = import_tensorflow().compat.v1
        dtype = self._reader.get_variable_to_dtype_map()[place.name]
        with v1.Graph().as_default(), v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as session:
            return session.run(
                v1.raw_ops.RestoreV2(
                    prefix=self._files, tensor_names=[place.name], shape_and_slices=[place.part], dtypes=[dtype]
                )[0]
            )


def read_variable(prefix: str, name: str, part: str = "") -> Array:
    """The values of a variable, or of a part of one; see `Place`.

    Raises:
        InputError: there is no such checkpoint or variable, or the part is not in it.
        UnavailableError: TensorFlow is not installed.
    """
    return Checkpoint.open(prefix).tensor(Place(name, part.strip())).array


def places(graph: Graph, restore: str = RESTORE) -> Mapping[str, Place]:
    """Where a graph restores its variables from, by the names of their nodes; nothing where it has no saver.

    Args:
        graph: with what a saver added to it.
        restore: the node that waits for all that is restored.
    """
    if restore not in graph.nodes:
        return {}
    waiting, found = [restore], {}
    seen = set(waiting)
    while waiting:
        node = graph[waiting.pop()]
        if node.op in _ASSIGNING and len(node.inputs) > 1 and (place := _restored(graph, node.inputs[1])) is not None:
            found[node.inputs[0].node] = place
        more = [name for name in node.controls if name in graph.nodes and name not in seen]
        seen.update(more)
        waiting.extend(more)
    return found


def _restored(graph: Graph, edge: Edge) -> Place | None:
    """The place that a value is restored from; None where it comes from elsewhere."""
    node, seen = graph.nodes.get(edge.node), set()
    while node and node.op == "Identity" and node.inputs and node.name not in seen:
        seen.add(node.name)
        edge = node.inputs[0]
        node = graph.nodes.get(edge.node)
    if node is None or node.op not in _RESTORING:
        return None
    # Each output is one of the variables that these list.
    texts = [_text(graph, listed, edge.port) for listed in node.inputs[1:3]]
    if not texts or texts[0] is None:
        return None
    return Place(*(text or "" for text in texts))


def _text(graph: Graph, edge: Edge, number: int) -> str | None:
    """One of the texts that a constant holds; None where there is none."""
    value = graph.constant_of(edge)
    if value is None or value.dtype is not DType.STRING or number >= value.num_elements:
        return None
    return bytes(value.array.reshape(-1)[number]).decode(errors="replace")


def _reading(prefix: str) -> AbstractContextManager[None]:
    return translate_read_errors(
        f"the checkpoint {prefix}",
        "name what its files begin with, without .index or .data-00000-of-00001; if they are there, copy them again",
    )


def _sizes(place: Place, whole: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a part of a variable of given sizes.

    Raises:
        InputError: it is not in the variable.
    """
    if not place.part:
        return whole
    found = [re.fullmatch(r"-|(\d+),(\d+)", word) for word in place.part.split()[-1].split(":")]
    if len(found) == len(whole) and None not in found:
        ends = [(int(one[1] or 0), int(one[2] or size)) for one, size in zip(found, whole, strict=True) if one]
        if all(begin + length <= size for (begin, length), size in zip(ends, whole, strict=True)):
            return tuple(length for _, length in ends)
    raise InputError(f"{place.part!r} is no part of {place.name!r}, which has sizes {list(whole)}")
