"""Convert float32 to 16-bit types: the stored weights only, or the whole computation. Convert other types to float32.

float16:   11-bit significand, up to 65504       relative rounding error <= 2^-11
bfloat16:   8-bit significand, up to 3.4e38      relative rounding error <= 2^-9
"""

from collections.abc import Collection
from functools import partial
from typing import Literal

import numpy as np

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip, free_name, rewrite_nodes
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.tensorflow.signatures import op_names
from quantkit.transforms.precision._half_graphs import convert_to_half
from quantkit.transforms.precision._retyping import OTHER_FLOATS, convert_tensor, find_types, restore_half, widen
from quantkit.transforms.registry import transform

__all__ = ["OTHER_FLOATS", "convert_precision", "find_types", "narrow_ops", "restore_half"]

TYPES = {"float16": DType.HALF, "bfloat16": DType.BFLOAT16}
# Maximum error of a tensor relative to its norm. Rounding alone causes at most half of it;
# underflow causes more.
MAX_RELATIVE_ERROR = 2.0**-8


@transform(exact=False, dialects=("tensorflow", "onnx"))
def convert_precision(
    graph: Graph,
    *,
    to: Literal["float16", "bfloat16", "float32"] = "float16",
    weights_only: bool = True,
    keep: tuple[str, ...] = (),
    minimum_size: int = 1024,
) -> Outcome:
    """Store weights in 16 bits, half the size, or compute in 16 bits, or compute 16-bit and double graphs in float32.

    With weights_only, weights are rounded once and cast back to float32 when a runtime loads the
    graph: the latency stays the same, and the outputs are those of the rounded weights. The whole
    graph in 16 bits is faster on processors with 16-bit arithmetic, and slower on others. Ops that
    accumulate many values (softmax, norms, averages) stay float32, and so do inputs and outputs.
    Every layer rounds its result: the logits of the bundled network change by at most 0.002
    (float16) or 0.02 (bfloat16) of the largest logit. Activations above 65504 overflow in float16,
    but not in bfloat16.

    float32 takes the place of float16, bfloat16 and double in the whole graph, weights included. The inputs and outputs
    keep their types, and so do computations of integers, loops of ONNX graphs, and ops of other domains.

    Before:  conv(x, Const[float]) -> Softmax
    After:   conv(x, Cast(Const[half])) -> Softmax                               weights_only
             conv[half](Cast(x), Const[half]) -> Cast -> Softmax                 weights_only=false

    Options:
        to: float16, bfloat16 or float32.
        weights_only: convert only stored constants, and compute in float32.
        keep: nodes or op types that stay float32, with their constants.
        minimum_size: with weights_only, constants with fewer elements stay float32.

    Skips a constant whose values are too large or too small for the type: the constant and its
    consumers stay float32. Without weights_only, also skips ops without a 16-bit form that is known
    to be safe, and graph outputs of nodes with several outputs.

    Raises:
        RecipeError: an entry of ``keep`` is neither a node nor an op type.
        GraphError: weights_only is false, the graph is an ONNX graph, and the type is bfloat16.

    Example:
        convert_precision(to=bfloat16, weights_only=false)
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        w = Const[3x3x2x2]()
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        y = Softmax(conv)
    """
    if to == "float32":
        widened = widen(graph)
        changed = [node for name, node in widened.nodes.items() if graph.nodes.get(name) is not node]
        return Outcome(widened, tuple(f"{node.name} ({node.op})" for node in changed))
    dtype = TYPES[to]
    for name in keep:
        if name not in graph and name not in graph.op_counts and name not in op_names():
            raise RecipeError(
                f"convert_precision: keep={name} is neither a node nor an op type",
                hint=did_you_mean(name, (*graph.nodes, *graph.op_counts)) or "quantkit summarize lists the op types",
            )
    names = frozenset(node.name for node in graph.nodes.values() if not {node.name, node.op}.isdisjoint(keep))
    if weights_only:
        return _convert_weights(dtype, graph, names, minimum_size)
    if graph.dialect != "tensorflow" and dtype is DType.BFLOAT16:
        raise GraphError(
            f"cannot compute a graph of {graph.dialect} ops in {to}: the runtimes of ONNX files have no kernels for it",
            hint="use float16 or weights_only=true, or convert the TensorFlow graph from which the file was exported",
        )
    return _convert_ops(graph, dtype, names)


def narrow_ops(graph: Graph, to: str, keep: Collection[str]) -> Graph:
    """Return the graph with all ops in 16 bits that have such a form, as `convert_precision` without ``weights_only``.

    Args:
        graph: graph of either dialect.
        to: ``float16``, or ``bfloat16`` for a TensorFlow graph.
        keep: names of the nodes that stay float32, with their constants.
    """
    return _convert_ops(graph, TYPES[to], frozenset(keep)).graph


def _convert_ops(graph: Graph, dtype: DType, keep: frozenset[str]) -> Outcome:
    return convert_to_half(graph, dtype, keep, partial(reason_against, dtype=dtype))


def reason_against(tensor: Tensor, dtype: DType) -> str:
    """Return the reason why a float32 tensor cannot be 16 bits; empty if it can.

    >>> reason_against(Tensor.of(np.float32([1, 70000])), DType.HALF)
    '70000 is out of range: the largest float16 is 65504'
    >>> reason_against(Tensor.of(np.float32([1, 70000])), DType.BFLOAT16)
    ''
    """
    values = tensor.array.reshape(-1)
    values = values[np.isfinite(values)]
    rounded = convert_tensor(Tensor.of(values), dtype).array.astype(np.float32)
    is_overflow = ~np.isfinite(rounded)
    if is_overflow.any():
        largest = np.ldexp(2.0 - 2.0**-10, 15) if dtype is DType.HALF else np.ldexp(2.0 - 2.0**-7, 127)
        return f"{values[is_overflow][0]:g} is out of range: the largest {dtype.numpy.name} is {largest:g}"
    norm = np.linalg.norm(values.astype(np.float64))
    if np.linalg.norm(rounded - values.astype(np.float64)) > MAX_RELATIVE_ERROR * norm:
        return f"values up to {np.abs(values).max():g} are too small for {dtype.numpy.name}"
    return ""


def _convert_weights(dtype: DType, graph: Graph, keep: frozenset[str], minimum_size: int) -> Outcome:
    def convert(node: Node) -> tuple[Node, ...] | Skip | None:
        value = node.attrs.get("value")
        if not node.is_constant or not isinstance(value, Tensor) or value.dtype is not DType.FLOAT:
            return None
        if value.num_elements < max(minimum_size, 1) or node.name in graph.input_names:
            return None
        reason = _keep_reason(graph, node, keep) or reason_against(value, dtype)
        return Skip(reason) if reason else _constant_and_cast(graph, node, dtype)

    return rewrite_nodes(graph, convert, lambda node: f"{node.name}: {node.value.num_elements} values")


def _keep_reason(graph: Graph, node: Node, keep: frozenset[str]) -> str:
    """Return the reason if a constant or one of its consumers is listed in ``keep``, else empty."""
    consumers = [use.node.name for use in graph.node_uses.get(node.name, ()) if use.slot >= 0] if keep else []
    if not keep.isdisjoint((node.name, *consumers)):
        return "the constant or a consumer is listed in keep"
    return ""


def _constant_and_cast(graph: Graph, node: Node, dtype: DType) -> tuple[Node, Node]:
    name = free_name(graph, f"{node.name}/{dtype.numpy.name}")
    attrs: dict[str, Attr] = {**node.attrs, "value": convert_tensor(node.value, dtype)}
    cast: dict[str, Attr] = {"to": NUMBERS[DType.FLOAT]}
    if graph.dialect == "tensorflow":
        attrs["dtype"] = dtype
        cast = {"SrcT": dtype, "DstT": DType.FLOAT}
    return node.with_(name=name, attrs=attrs), Node(node.name, "Cast", (Edge(name),), attrs=cast, device=node.device)
