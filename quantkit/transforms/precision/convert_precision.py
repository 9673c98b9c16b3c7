"""Numbers of 16 bits in place of float32: for the weights alone, or for what is computed.

float16:   11 digits of significand, up to 65504       relative rounding error <= 2^-11
bfloat16:   8 digits of significand, up to 3.4e38      relative rounding error <= 2^-9
"""

from functools import partial
from typing import Literal

import numpy as np

from quantkit.errors import GraphError, RecipeError, did_you_mean
from quantkit.formats.onnx.schema import NUMBERS
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.ops.tensorflow.signatures import op_names
from quantkit.transforms.precision._half_graphs import in_half
from quantkit.transforms.registry import transform

TYPES = {"float16": DType.HALF, "bfloat16": DType.BFLOAT16}
# Rounding alone takes at most half of this part of a tensor away; more is lost where numbers are too small.
MOST_LOST = 2.0**-8


@transform(exact=False, dialects=("tensorflow", "onnx"))
def convert_precision(
    graph: Graph,
    *,
    to: Literal["float16", "bfloat16"] = "float16",
    weights_only: bool = True,
    keep: tuple[str, ...] = (),
    minimum_size: int = 1024,
) -> Outcome:
    """Store weights in 16 bits, half the size, or compute in 16 bits.

    Weights alone are rounded once and widened when the graph runs, which engines do as they load it: the speed stays,
    and the answers are those of rounded weights. The whole graph in 16 bits is faster where the processor has such
    arithmetic, and slower where it has not. What sums many parts (softmax, norms, averages) stays float32 there, and
    so do inputs and outputs. It rounds at every layer: what enters the softmax of the bundled network changes by at
    most 0.002 (float16) or 0.02 (bfloat16) of the largest. What is computed may grow beyond 65504, where float16
    ends and bfloat16 does not.

    Before:  conv(x, Const[float]) -> Softmax
    After:   conv(x, Cast(Const[half])) -> Softmax                               weights_only
             conv[half](Cast(x), Const[half]) -> Cast -> Softmax                 weights_only=false

    Options:
        to: float16 or bfloat16.
        weights_only: whether only constants are converted, and computed with in float32.
        keep: nodes, or types of nodes, that stay float32 with the constants they read.
        minimum_size: with weights_only, constants with fewer elements stay as they are.

    Skips when a constant holds numbers too large or too small for the type, which are named: it stays float32, and
    so does what reads it. In the whole graph also for ops without a 16-bit form that is known to be safe, and for
    nodes of several outputs that leave the graph.

    Raises:
        RecipeError: ``keep`` names neither a node nor an op.
        GraphError: the whole of an ONNX graph is to be converted.

    Example:
        convert_precision(to=bfloat16, weights_only=false)
        inputs: x
        outputs: y
        x = Placeholder[1x6x6x2]()
        w = Const[3x3x2x2]()
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        y = Softmax(conv)
    """
    dtype = TYPES[to]
    for word in keep:
        if word not in graph and word not in graph.op_counts and word not in op_names():
            raise RecipeError(
                f"convert_precision: keep names {word!r}, which is neither a node nor an op",
                hint=did_you_mean(word, (*graph.nodes, *graph.op_counts)) or "quantkit summarize lists the ops",
            )
    if weights_only:
        return _stored_in(dtype, graph, frozenset(keep), minimum_size)
    if graph.dialect != "tensorflow":
        raise GraphError(
            f"only TensorFlow graphs are computed in {to}, and this is one of {graph.dialect} ops",
            hint="convert the graph that the file was made from, or give weights_only=true",
        )
    return in_half(graph, dtype, frozenset(keep), partial(narrowed, dtype=dtype), partial(objection, dtype=dtype))


def narrowed(tensor: Tensor, dtype: DType) -> Tensor:
    """A tensor of float32 in 16 bits, rounded to the nearest when it is needed."""
    return Tensor(dtype, tensor.shape, partial(_rounded, tensor, dtype))


def _rounded(tensor: Tensor, dtype: DType) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return tensor.array.astype(dtype.numpy)


def objection(tensor: Tensor, dtype: DType) -> str:
    """Why a tensor of float32 can not be 16 bits; empty: it can.

    >>> objection(Tensor.of(np.float32([1, 70000])), DType.HALF)
    'it holds 70000, and float16 ends at 65504'
    >>> objection(Tensor.of(np.float32([1, 70000])), DType.BFLOAT16)
    ''
    """
    values = tensor.array.reshape(-1)
    values = values[np.isfinite(values)]
    back = _rounded(Tensor.of(values), dtype).astype(np.float32)
    is_beyond = ~np.isfinite(back)
    if is_beyond.any():
        end = np.ldexp(2.0 - 2.0**-10, 15) if dtype is DType.HALF else np.ldexp(2.0 - 2.0**-7, 127)
        return f"it holds {values[is_beyond][0]:g}, and {dtype.numpy.name} ends at {end:g}"
    size = np.linalg.norm(values.astype(np.float64))
    if np.linalg.norm(back - values.astype(np.float64)) > MOST_LOST * size:
        return f"its numbers, {np.abs(values).max():g} at most, are too small for {dtype.numpy.name}"
    return ""


def _stored_in(dtype: DType, graph: Graph, keep: frozenset[str], minimum_size: int) -> Outcome:
    draft = Draft(graph)
    changes: list[str] = []
    skips: list[Skip] = []
    for node in graph.nodes.values():
        value = node.attrs.get("value")
        if not node.is_constant or not isinstance(value, Tensor) or value.dtype is not DType.FLOAT:
            continue
        if value.num_elements < max(minimum_size, 1) or node.name in graph.input_names:
            continue
        reason = _wish(graph, node, keep) or objection(value, dtype)
        if reason:
            skips.append(Skip(reason, node.name))
            continue
        draft.replace(node.name, *_stored_and_widened(graph, node, dtype))
        changes.append(f"{node.name}: {value.num_elements} values")
    return Outcome(draft.graph(), tuple(changes), tuple(skips))


def _wish(graph: Graph, node: Node, keep: frozenset[str]) -> str:
    """That somebody wants a constant to stay; empty: nobody does."""
    readers = [use.node for use in graph.node_uses.get(node.name, ()) if use.slot >= 0] if keep else []
    if keep & {node.name, *(reader.name for reader in readers), *(reader.op for reader in readers)}:
        return "keep names it, or what reads it"
    return ""


def _stored_and_widened(graph: Graph, node: Node, dtype: DType) -> tuple[Node, Node]:
    name = free_name(graph, f"{node.name}/{dtype.numpy.name}")
    attrs: dict[str, Attr] = {**node.attrs, "value": narrowed(node.value, dtype)}
    cast: dict[str, Attr] = {"to": NUMBERS[DType.FLOAT]}
    if graph.dialect == "tensorflow":
        attrs["dtype"] = dtype
        cast = {"SrcT": dtype, "DstT": DType.FLOAT}
    widened = Node(node.name, "Cast", (Edge(name),), attrs=cast, device=node.device)
    return node.with_(name=name, attrs=attrs), widened
