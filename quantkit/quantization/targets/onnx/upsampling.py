"""Nearest-neighbor resize of int8 images in ONNX models."""

from collections.abc import Sequence

import numpy as np

from quantkit.errors import QuantkitError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes, remove_unused
from quantkit.ir.tensor import Array
from quantkit.ops.onnx.kernels.registry import evaluate
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.targets.onnx.blocks import MIN_ROW, TO_FIRST, TO_LAST
from quantkit.quantization.targets.onnx.first_layers import IMAGE_RANK
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes


def gather_rows(graph: Graph) -> Graph:
    """Resize int8 images to the nearest neighbor by copies of rows.

        before:  x -> DequantizeLinear -> Resize(nearest) -> QuantizeLinear
        after:   x -> Transpose -> Gather(columns) -> Gather(rows) -> Transpose

    The quantization parameters before and after are the same, so that the integers only move. ONNX Runtime computes
    int8 layers with channels last and removes both transposes: its Resize then copies single values, Gather all
    channels of a position.

    Args:
        graph: quantized ONNX graph.
    """
    nodes = [node for node in graph.nodes.values() if node.op == "Resize" and node.attrs.get("mode") == b"nearest"]
    shapes, draft = infer_shapes(graph) if nodes else {}, Draft(graph)
    for node in nodes:
        consumers, source = graph.consumers(node.name), graph[node.inputs[0].node]
        dims, resized = (shapes.get(edge, UNKNOWN).dims or () for edge in (node.inputs[0], Edge(node.name)))
        is_copy = [source.op, *(each.op for each in consumers)] == ["DequantizeLinear", "QuantizeLinear"]
        if not is_copy or node.name in graph.referenced_names or not _has_equal_parameters(graph, source, *consumers):
            continue
        if len(dims) != IMAGE_RANK or dims[:2] != resized[:2] or (dims[1] or 0) < MIN_ROW:
            continue
        if (order := _find_order(graph, node, dims[2:])) is None:
            continue
        moved, (rows, columns) = NewNodes(graph, node.name), order
        edge = moved.add("copied/last", "Transpose", source.inputs[0], perm=TO_LAST)
        edge = moved.add("copied/wide", "Gather", edge, moved.constant("copied/columns", columns), axis=2)
        edge = moved.add("copied", "Gather", edge, moved.constant("copied/rows", rows), axis=1)
        last = consumers[0].name
        draft.replace(last, *moved, Node(last, "Transpose", (edge,), attrs={"perm": TO_FIRST}))
    return remove_unused(graph, draft.graph())


def _has_equal_parameters(graph: Graph, *nodes: Node) -> bool:
    """Return True for nodes with the same constant scale and zero point."""
    before, after = ([graph.constant_of(edge) for edge in node.inputs[1:]] for node in nodes)
    return len(before) == len(after) == 2 and all(
        a is not None and b is not None and a.dtype is b.dtype and np.array_equal(a.array, b.array)
        for a, b in zip(before, after, strict=True)
    )


def _find_order(graph: Graph, node: Node, sizes: Sequence[int | None]) -> tuple[Array, Array] | None:
    """Return the source of each row and of each column; None for unknown sizes, other axes or an unknown mode."""
    height, width = sizes
    constants = [graph.constant_of(edge) for edge in node.inputs[1:]]
    values = [None if each is None else each.array.copy() for each in constants]
    if height is None or width is None:
        return None
    scales, lengths = (*values, None, None, None)[1:3]
    if scales is not None and (scales[:2] != 1).any():
        return None
    if lengths is not None:  # those of the batch and of the channels
        lengths[:2] = 1
    image = np.arange(height * width, dtype=np.float32).reshape(1, 1, height, width)
    try:
        moved = evaluate(node, [image, *values], is_folded=True)[0][0, 0].astype(np.int64)
    except QuantkitError:
        return None
    rows, columns = moved[:, 0] // width, moved[0] % width
    return (rows, columns) if np.array_equal(moved, rows[:, None] * width + columns) else None
