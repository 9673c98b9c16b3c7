"""Sizes that are dynamic by declaration only: the explanation of an error of a runtime about such an input."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from quantkit.errors import GraphError
from quantkit.formats import onnx
from quantkit.formats.files import load
from quantkit.formats.kinds import kind_of
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, Shape
from quantkit.ops.input_sizes import find_fixed_sizes
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.runtimes.session import TensorInfo

EXPORT = "export the model with a dynamic size: torch.onnx.export(..., dynamo=True)"


def fixed_sizes(model: Graph | Path, inputs: Sequence[TensorInfo], *, of_weights: bool = False) -> dict[str, Shape]:
    """Return the shapes of the inputs with sizes that the graph fixes although they are declared as dynamic, by name.

    Args:
        model: graph of either dialect, or a file; only ONNX files are read.
        inputs: inputs of a session.
        of_weights: return only the sizes that weights require, which no other export changes.
    """
    if all(info.shape.is_known for info in inputs) or (isinstance(model, Path) and kind_of(model) != "onnx"):
        return {}
    graph = load(model) if isinstance(model, Path) else model
    find = partial(onnx.edge_of, graph) if graph.dialect == onnx.DIALECT else graph.edge
    edges = {find(info.name): info for info in inputs if info.shape.dims is not None}
    sizes = find_fixed_sizes(graph, {edge: info.shape for edge, info in edges.items()}, of_weights=of_weights)
    return {edges[edge].name: shape for edge, shape in sizes.items()}


def describe_fixed_sizes(info: TensorInfo, fixed: Shape) -> str:
    """Return a sentence about the sizes of an input that the graph fixes.

    >>> from quantkit.ir.tensor import DType
    >>> describe_fixed_sizes(TensorInfo("ids", DType.INT64, Shape((None, None))), Shape((None, 16)))
    "input 'ids' is dynamic by declaration, but the graph fixes its length to 16"
    """
    dims = info.shape.dims or ()
    pairs = enumerate(zip(dims, fixed.dims or (), strict=True))
    axes = {axis: size for axis, (declared, size) in pairs if declared is None and size is not None}
    subject, value = "sizes", str(fixed)
    if len(axes) == 1:
        ((axis, size),) = axes.items()
        subject, value = f"dimension {axis}", str(size)
        if axis < 2 and len(dims) < 4:
            subject = ("batch size", "length")[axis]
    return f"input {info.name!r} is dynamic by declaration, but the graph fixes its {subject} to {value}"


def explainer(model: Graph | Path, inputs: Sequence[TensorInfo]) -> Callable[[Mapping[str, Array]], GraphError | None]:
    """Return a function that explains an error about feeds that do not have the sizes that the graph fixes.

    Args:
        model: graph, or file of a graph.
        inputs: inputs of the session.
    """
    find = cache(partial(fixed_sizes, model, tuple(inputs)))
    find_required = cache(partial(fixed_sizes, model, tuple(inputs), of_weights=True))

    def explain(feeds: Mapping[str, Array]) -> GraphError | None:
        for info in inputs:
            fixed, sizes = find().get(info.name, UNKNOWN), feeds[info.name].shape
            if not fixed.accepts(sizes):
                statement = f" and state it (quantkit transform --input-shape {info.name}:{fixed})" * fixed.is_known
                export = f", or {EXPORT}" * find_required().get(info.name, UNKNOWN).accepts(sizes)
                return GraphError(
                    f"{describe_fixed_sizes(info, fixed)}, and the samples have the shape {Shape(sizes)}",
                    hint=f"pass samples of shape {fixed}{statement}{export}",
                )
        return None

    return explain
