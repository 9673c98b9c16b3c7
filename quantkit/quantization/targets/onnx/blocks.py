"""Blocks of channels that become positions of an image, in the forms that ONNX Runtime computes fastest.

    Reshape -> Transpose -> Reshape   ->  DepthToSpace
    DepthToSpace of many channels     ->  Transpose -> Reshape -> Transpose -> Reshape -> Transpose

In the second form, the channels are the last axis, as in ONNX Runtime's int8 convolutions. The first and the last
Transpose are the inverse of those that it inserts after and before int8 layers, and it removes both. The inner one
copies whole rows of the kernel, where DepthToSpace copies single values. OpenVINO computes the first form as fast as
the views, and the second one slower.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import NewNodes, remove_unused
from quantkit.ir.tensor import Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes

# Least number of values of a row of the kernel: shorter ones are copied faster by DepthToSpace.
MIN_ROW = 16
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
# Rows and columns of the kernel before the channels.
SWAP_COLUMNS = (0, 1, 3, 2, 4)
# Order of the axes of (n, c, i, j, h, w) and of (n, i, j, c, h, w) in the image (n, c, h, i, w, j), and the mode.
BLOCK_MODES = {(0, 1, 4, 2, 5, 3): b"CRD", (0, 3, 4, 1, 5, 2): b"DCR"}


def fuse_views(graph: Graph) -> Graph:
    """Return the ONNX graph with each move of blocks after a convolution as one DepthToSpace."""
    views = [node for node in graph.nodes.values() if node.op == "Reshape" and _split_of(graph, node) is not None]
    if not views:
        return graph
    draft, shapes = Draft(graph), infer_shapes(graph)
    for node in views:
        if (block := _fuse(graph, node, shapes)) is not None:
            draft.replace(node.name, block)
    return remove_unused(graph, draft.graph())


def _split_of(graph: Graph, image: Node) -> Node | None:
    """Return the Reshape of a Conv before the Transpose before a Reshape."""
    transpose = graph[image.inputs[0].node]
    split = graph[transpose.inputs[0].node] if transpose.op == "Transpose" else image
    return split if split is not image and split.op == "Reshape" and graph[split.inputs[0].node].op == "Conv" else None


def _fuse(graph: Graph, image: Node, shapes: Mapping[Edge, Shape]) -> Node | None:
    """Return the DepthToSpace of the last of three nodes that move blocks of a convolution; None for other views."""
    split = _split_of(graph, image)
    if split is None:
        return None
    perm = graph[image.inputs[0].node].attrs.get("perm")
    mode = BLOCK_MODES.get(perm) if isinstance(perm, tuple) else None
    axes, dims, source = _target(graph, split), _target(graph, image), shapes.get(split.inputs[0], UNKNOWN).dims
    if mode is None or len(axes) != 6 or len(dims) != 4 or axes[0] != dims[0] or source is None:
        return None
    order = (1, 2, 3, 4, 5) if mode == b"CRD" else (3, 1, 2, 4, 5)
    channels, rows, columns, height, width = (axes[axis] for axis in order)
    is_block = rows == columns and source[1:] == (channels * rows * rows, height, width)
    if not is_block or dims[1:] != (channels, height * rows, width * rows):
        return None
    return image.with_(op="DepthToSpace", inputs=split.inputs[:1], attrs={"blocksize": rows, "mode": mode})


def _target(graph: Graph, view: Node) -> tuple[int, ...]:
    """Return the constant target shape of a Reshape; empty for a computed one."""
    target = graph.constant_of(view.inputs[1])
    return () if target is None else tuple(map(int, target.array))


def move_channels_last(graph: Graph) -> Graph:
    """Return the ONNX graph with each DepthToSpace of known image size after a Conv as transposes and views."""
    blocks = [node for node in graph.nodes.values() if node.op == "DepthToSpace" and _follows_layer(graph, node)]
    if not blocks:
        return graph
    draft, shapes = Draft(graph), infer_shapes(graph)
    for node in blocks:
        if nodes := _split(graph, node, shapes):
            draft.replace(node.name, *nodes)
    return draft.graph()


def _follows_layer(graph: Graph, node: Node) -> bool:
    """Return True for blocks of channels, rows before columns, of the output of a Conv."""
    is_plain = node.attrs.get("mode", b"DCR") == b"DCR"
    return is_plain and graph[node.inputs[0].node].op == "Conv"


def _split(graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> list[Node]:
    """Return the nodes that replace a DepthToSpace; empty for unknown sizes and short rows."""
    dims = shapes.get(node.inputs[0], UNKNOWN).dims
    size = node.attrs.get("blocksize")
    if dims is None or len(dims) != 4 or None in dims[1:] or not isinstance(size, int):
        return []
    _, channels, height, width = (each or 0 for each in dims)
    if channels < MIN_ROW * size:
        return []
    rows = [0, height, width, size, channels // size]
    image = [0, height * size, width * size, channels // size**2]
    steps: list[tuple[str, Any]] = [("Transpose", TO_LAST), ("Reshape", rows), ("Transpose", SWAP_COLUMNS)]
    steps += [("Reshape", image), ("Transpose", TO_FIRST)]
    nodes, edge = NewNodes(graph, node.name), node.inputs[0]
    for number, (op, value) in enumerate(steps):
        if op == "Reshape":
            edge = nodes.add(f"{number}", op, edge, nodes.constant(f"{number}/shape", np.array(value)))
        else:
            edge = nodes.add(f"{number}", op, edge, perm=value)
    return [*nodes[:-1], nodes[-1].with_(name=node.name)]
