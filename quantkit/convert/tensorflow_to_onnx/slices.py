"""Conversion of StridedSlice: slices, removed axes, new axes, and an ellipsis.

    x[:, i, ..., None]   ->   Gather(x, [i], axis 1), Squeeze(axis 1), Unsqueeze(last axis)

An index can be computed, for example from the number of an iteration. TensorFlow's input has one entry for each index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quantkit.convert.tensorflow_to_onnx.translator import PLAIN, Translator, conversion_error, converts
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.tensorflow.signatures import attribute

# End of a slice without limit.
SLICE_LIMIT = int(np.iinfo(np.int64).max)


@dataclass
class _Axes:
    """Axes of a slice.

    Attributes:
        sliced: axes of the input by index of the entry.
        removed: axes of the input by index of the entry.
        added: new axes of the output.
    """

    sliced: dict[int, int] = field(default_factory=dict)
    removed: dict[int, int] = field(default_factory=dict)
    added: list[int] = field(default_factory=list)


def _read_axes(translator: Translator, node: Node, count: int) -> _Axes:
    masks: dict[str, int] = {name: attribute(node, f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis")}
    axes = _Axes()
    axis = position = 0
    for entry in range(count):
        if masks["ellipsis"] >> entry & 1:
            rank = translator.rank(node.inputs[0])
            if rank is None:
                raise conversion_error(node, "the rank of its input is unknown")
            others = sum(not masks["new_axis"] >> later & 1 for later in range(entry + 1, count))
            position += rank - others - axis
            axis = rank - others
        elif masks["new_axis"] >> entry & 1:
            axes.added.append(position)
            position += 1
        elif masks["shrink_axis"] >> entry & 1:
            axes.removed[entry] = axis
            axis += 1
        else:
            axes.sliced[entry] = axis
            axis, position = axis + 1, position + 1
    return axes


@converts("StridedSlice")
def _strided_slice(translator: Translator, node: Node) -> None:
    steps = [int(step) for step in translator.constant(node, 3).reshape(-1)]
    begins, ends = (_entries(translator, node, slot, len(steps)) for slot in (1, 2))
    axes = _read_axes(translator, node, len(steps))
    limits: dict[int, tuple[int | Edge, int | Edge]] = {}
    for entry in axes.sliced:
        begin_mask, end_mask = (attribute(node, f"{name}_mask") >> entry & 1 for name in ("begin", "end"))
        forward = steps[entry] > 0
        begin = (0 if forward else SLICE_LIMIT) if begin_mask else begins[entry]
        end = (SLICE_LIMIT if forward else -SLICE_LIMIT) if end_mask else ends[entry]
        limits[entry] = begin, end
    computed = {}
    for entry in axes.removed:
        begin = begins[entry]
        if isinstance(begin, Edge):
            computed[entry] = begin
        else:
            limits[entry] = begin, begin + 1 or SLICE_LIMIT
            steps[entry] = 1
    chain = _NodeChain(translator, node)
    if limits:
        all_axes = axes.sliced | axes.removed
        entries = sorted(limits)
        lists: dict[str, list[int | Edge]] = {
            "starts": [limits[entry][0] for entry in entries],
            "ends": [limits[entry][1] for entry in entries],
            "axes": [all_axes[entry] for entry in entries],
            "steps": [steps[entry] for entry in entries],
        }
        chain.append("part", "Slice", [_vector(translator, node, name, values) for name, values in lists.items()])
    for entry, index in computed.items():
        chain.append(f"row_{entry}", "Gather", [index], axis=axes.removed[entry])
    if axes.removed:
        chain.append("squeezed", "Squeeze", [translator.add_integers(f"{node.name}/gone", axes.removed.values())])
    if axes.added:
        chain.append("expanded", "Unsqueeze", [translator.add_integers(f"{node.name}/added", axes.added)])
    chain.emit()


@dataclass
class _NodeChain:
    """Nodes in the place of one; each takes the output of the node before as its first input."""

    translator: Translator
    node: Node
    steps: list[tuple[str, str, Sequence[Edge], dict[str, Attr]]] = field(default_factory=list)

    def append(self, suffix: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> None:
        self.steps.append((suffix, op, inputs, attrs))

    def emit(self) -> None:
        """Add the nodes; the last one keeps the name."""
        value = self.translator.plain(self.node.inputs[0])
        for suffix, op, inputs, attrs in self.steps[:-1]:
            value = self.translator.add_intermediate(self.node, suffix, op, [value, *inputs], **attrs)
        _, op, inputs, attrs = self.steps[-1] if self.steps else ("", "Identity", (), {})
        self.translator.emit(self.node, op, [value, *inputs], PLAIN, **attrs)


def _entries(translator: Translator, node: Node, slot: int, count: int) -> list[int | Edge]:
    """Return the entries of an input: integers, and vectors of one element for computed ones."""
    edge = node.inputs[slot]
    entries: list[int | Edge] = []
    for index, value in enumerate(translator.sizes(edge) or [None] * count):
        if value is not None:
            entries.append(value)
            continue
        begin, end = (translator.add_integers(f"{node.name}/{limit}", [limit]) for limit in (index, index + 1))
        long = translator.add_node(f"{edge}/long", "Cast", [translator.plain(edge)], to=NUMBERS[DType.INT64])
        entries.append(translator.add_intermediate(node, f"{slot}_{index}", "Slice", [long, begin, end]))
    return entries


def _vector(translator: Translator, node: Node, name: str, values: Sequence[int | Edge]) -> Edge:
    """Return integers and computed integers as one vector."""
    numbers = [value for value in values if not isinstance(value, Edge)]
    if len(numbers) == len(values):
        return translator.add_integers(f"{node.name}/{name}", numbers)
    parts = [
        value if isinstance(value, Edge) else translator.add_integers(f"{node.name}/{name}_{index}", [value])
        for index, value in enumerate(values)
    ]
    return translator.add_intermediate(node, name, "Concat", parts, axis=0)
