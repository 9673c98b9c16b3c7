"""Values of a graph as affine functions of other values.

    value = first @ weights[first] + second @ weights[second] + bias

A recurrent cell computes its gates so, in one product of the concatenated inputs or in several, for all gates together
or for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.tensorflow.signatures import output_dtypes

ADDITIONS = frozenset({"Add", "AddV2", "BiasAdd"})


@dataclass(frozen=True)
class AffineFunction:
    """AffineFunction function.

    Attributes:
        weights: (k, m) by edge of shape (n, k).
        bias: (m,), or () if all columns have the same bias.
    """

    weights: Mapping[Edge, Array]
    bias: Array

    def columns(self, part: slice) -> "AffineFunction":
        """Return a part of the columns."""
        bias = self.bias[part] if self.bias.ndim else self.bias
        return AffineFunction({edge: matrix[:, part] for edge, matrix in self.weights.items()}, bias)


def affine_of(graph: Graph, shapes: Mapping[Edge, Shape], edge: Edge) -> AffineFunction | None:
    """Return a value of rank 2 as an affine function of inputs of products; None for other values.

    Args:
        graph: graph without copies of values.
        shapes: shapes of its edges.
        edge: value, (n, m).
    """
    node = graph[edge.node]
    tensor = graph.constant_of(edge)
    if tensor is not None:
        is_row = tensor.dtype is DType.FLOAT and (len(tensor.shape) < 2 or tensor.shape[:-1] == (1,))
        return AffineFunction({}, tensor.array.reshape(tensor.shape[-1:])) if is_row else None
    if node.op == "MatMul" and not (node.attrs.get("transpose_a") or node.attrs.get("transpose_b")):
        return _product(graph, shapes, node)
    if node.op in ADDITIONS:
        terms = [affine_of(graph, shapes, source) for source in node.inputs]
        return _sum(terms[0], terms[1]) if terms[0] and terms[1] else None
    if (part := columns_of(graph, shapes, edge)) is not None:
        whole = affine_of(graph, shapes, part[0])
        return whole.columns(part[1]) if whole else None
    return None


def columns_of(graph: Graph, shapes: Mapping[Edge, Shape], edge: Edge) -> tuple[Edge, slice] | None:
    """Return the value of which an edge of rank 2 is a part of the columns, and these columns; None for other nodes."""
    node = graph[edge.node]
    if node.op == "Split":
        axis, source = graph.constant_of(node.inputs[0]), node.inputs[1]
        dims = shapes[source].dims if source in shapes else None
        width = dims[1] if dims is not None and len(dims) == 2 else None
        count = len(output_dtypes(node))
        if axis is None or int(axis.array) not in (1, -1) or width is None:
            return None
        return source, slice(edge.port * (width // count), (edge.port + 1) * (width // count))
    return _sliced_columns(graph, node) if node.op == "StridedSlice" else None


def _sliced_columns(graph: Graph, node: Node) -> tuple[Edge, slice] | None:
    limits = [graph.constant_of(source) for source in node.inputs[1:]]
    masks: dict[str, Any] = {
        name: node.attrs.get(f"{name}_mask", 0) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if any(limit is None or limit.shape != (2,) for limit in limits):
        return None
    if masks["ellipsis"] or masks["new_axis"] or masks["shrink_axis"]:
        return None
    begins, ends, steps = (limit.array.tolist() for limit in limits if limit is not None)
    begin, end = (
        [None if masks[name] >> axis & 1 else values[axis] for axis in (0, 1)]
        for name, values in (("begin", begins), ("end", ends))
    )
    has_all_rows = begin[0] in (None, 0) and end[0] is None
    return (node.inputs[0], slice(begin[1], end[1])) if has_all_rows and steps == [1, 1] else None


def _sum(first: AffineFunction, second: AffineFunction) -> AffineFunction:
    weights = dict(first.weights)
    for edge, matrix in second.weights.items():
        weights[edge] = weights[edge] + matrix if edge in weights else matrix
    return AffineFunction(weights, first.bias + second.bias)


def _product(graph: Graph, shapes: Mapping[Edge, Shape], node: Node) -> AffineFunction | None:
    matrix = graph.constant_of(node.inputs[1])
    if matrix is None or matrix.dtype is not DType.FLOAT:
        return None
    edges = _find_parts(graph, node.inputs[0])
    widths = [
        dims[1] if (dims := shapes[edge].dims if edge in shapes else None) and len(dims) == 2 else None
        for edge in edges
    ]
    if widths.count(None) == 1:  # the other widths determine it
        others = sum(width for width in widths if width is not None)
        widths[widths.index(None)] = matrix.shape[0] - others
    if None in widths or sum(width or 0 for width in widths) != matrix.shape[0]:
        return None
    zero = np.zeros((), np.float32)
    result, start = AffineFunction({}, zero), 0
    for edge, width in zip(edges, widths, strict=True):
        stop = start + (width or 0)
        result = _sum(result, AffineFunction({edge: matrix.array[start:stop]}, zero))
        start = stop
    return result


def _find_parts(graph: Graph, edge: Edge) -> Sequence[Edge]:
    """Return the parts of a value that is concatenated along its columns."""
    node = graph[edge.node]
    if node.op != "ConcatV2":
        return [edge]
    axis = graph.constant_of(node.inputs[-1])
    if axis is None or int(axis.array) not in (1, -1):
        return [edge]
    return node.inputs[:-1]
