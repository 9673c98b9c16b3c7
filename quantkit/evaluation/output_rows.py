"""Rows of outputs: one for each sample of a run, or the whole output of a sample.

The first dimension of most outputs counts the samples of a batch. That of others depends on the data, as with NonZero
and NonMaxSuppression, or has another size, as with a list of all positions. Such an output belongs to one sample only
if the sample runs alone.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.shape_inference import infer_shapes

# Sizes of dynamic dimensions, for the inference of other sizes; no other dimension has the size of the batch.
BATCH, SIZE = 251, 256


def find_whole_outputs(graph: Graph) -> frozenset[str]:
    """Return the names of the outputs whose first dimension is known not to count the samples of a batch."""
    nodes = dict(graph.nodes)
    batches = set()
    for edge in graph.inputs:
        shape = nodes[edge.node].attrs.get("shape")
        if not isinstance(shape, Shape) or shape.dims is None:
            return frozenset()
        if shape.dims:
            first, rest = shape.dims[0] or BATCH, shape.dims[1:]
            batches.add(first)
            nodes[edge.node] = nodes[edge.node].with_attrs(shape=Shape((first, *(size or SIZE for size in rest))))
    shapes = infer_shapes(graph.with_nodes(nodes.values()))
    dims_by_edge = {edge: shapes[edge].dims for edge in graph.outputs if edge in shapes}
    is_onnx = graph.dialect == onnx.DIALECT
    return frozenset(
        onnx.value_name(graph[edge.node], edge.port) if is_onnx else str(edge)
        for edge, dims in dims_by_edge.items()
        if dims is not None and (not dims or dims[0] not in batches)
    )


def rows_of(
    arrays: Mapping[str, Array], num_rows: int, count: int, whole: frozenset[str] = frozenset()
) -> dict[str, Array]:
    """Return one row per sample of the inputs or outputs of one run.

    Args:
        arrays: inputs or outputs.
        num_rows: number of rows in the feeds.
        count: number of samples among these rows; the others pad the batch.
        whole: names of arrays that each sample has as a whole, see `find_whole_outputs`.
    """
    return {name: _sample_rows(values, num_rows, count, name in whole) for name, values in arrays.items()}


def _sample_rows(values: Array, num_rows: int, count: int, is_whole: bool) -> Array:
    """Return one row per sample; an array without a batch axis is repeated."""
    if is_whole or values.ndim == 0 or len(values) != num_rows:
        return np.repeat(values.reshape(1, *(values.shape or (1,))), count, 0)
    return values.reshape(num_rows, *(values.shape[1:] or (1,)))[:count]


def split_rows(rows: Mapping[str, Array]) -> list[dict[str, Array]]:
    """Return the rows of `rows_of` as runs of one sample."""
    count = len(next(iter(rows.values()), ()))
    return [{name: values[index : index + 1] for name, values in rows.items()} for index in range(count)]


def join_rows(samples: Sequence[Sequence[Mapping[str, Array]]]) -> Sequence[Sequence[Mapping[str, Array]]]:
    """Return runs of one sample as one run; unchanged if the shapes of an array differ.

    Args:
        samples: for each sample, arrays (1, ...) by name of the same kinds, for example outputs of two models.
    """
    if len({tuple(values.shape for arrays in sample for values in arrays.values()) for sample in samples}) > 1:
        return samples
    return [
        [
            {name: np.concatenate([sample[kind][name] for sample in samples]) for name in arrays}
            for kind, arrays in enumerate(samples[0])
        ]
    ]
