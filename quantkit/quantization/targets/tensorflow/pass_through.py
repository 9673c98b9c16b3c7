"""Nodes between layers that work on codes: concats, pools, and what moves numbers without changing them."""

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.plan import CONCATS
from quantkit.quantization.targets.tensorflow.graph_builder import AGAIN, GraphBuilder
from quantkit.quantization.targets.tensorflow.parameters import QUANTIZED, QuantizedTensor, quantized_name


def add_pass_through(builder: GraphBuilder, node: Node) -> None:
    """Put what a pass-through node makes of its codes into the graph; or the node, in float, where nothing can.

    Raises:
        GraphError: the plan does not fit the graph, or the node joins along a dimension that is not known.
    """
    output = Edge(node.name)
    wanted = builder.parameters_of(output)
    if wanted is None:
        raise GraphError(f"the plan carries {node.name!r} and gives it no codes", hint=AGAIN)
    if node.op in CONCATS:
        builder.quantized[output] = _concat(builder, node, wanted)
        return
    made = _moved(builder, node, builder.quantized_of(node.inputs[0]))
    if made is None:
        builder.reasons[node.name] = "its size is not known, so no pool computes it"
        builder.keep(node)
    else:
        builder.quantized[output] = builder.requantized(node.name, made, wanted)


def _concat(builder: GraphBuilder, node: Node, wanted: QuantizedTensor) -> QuantizedTensor:
    slot = 0 if node.op == "Concat" else len(node.inputs) - 1
    parts = [edge for place, edge in enumerate(node.inputs) if place != slot]
    axis = builder.source.constant_of(node.inputs[slot])
    if axis is None:
        raise GraphError(f"{node.name!r} joins along a computed dimension", hint="run fold_constants first")
    rank = next((shape.rank for edge in parts if (shape := builder.shapes.get(edge, UNKNOWN)).is_known), None)
    place = int(axis.array.reshape(-1)[0])
    if place < 0 and rank is None:
        raise GraphError(f"{node.name!r} joins along dimension {place} of an unknown number", hint="give its shape")
    place = place + (rank or 0) if place < 0 else place
    quantized = [
        builder.requantized(f"{node.name}/{at}", builder.quantized_of(edge), wanted) for at, edge in enumerate(parts)
    ]
    # The plain op: it copies bytes twice as fast as QuantizedConcatV2, which minds ranges that are all one here.
    inputs = [*(one.edge for one in quantized), builder.constant(f"{node.name}/axis", np.int32(place))]
    name = quantized_name(Edge(node.name))
    made = builder.add(name, "ConcatV2", inputs, N=len(quantized), T=QUANTIZED, Tidx=DType.INT32)
    return wanted._replace(edge=made)


def _moved(builder: GraphBuilder, node: Node, quantized: QuantizedTensor) -> QuantizedTensor | None:
    """What a pass-through node of one data input makes of its codes; None: it can not."""
    name = quantized_name(Edge(node.name))
    if node.op in ("MaxPool", "AvgPool"):
        window = {key: node.attrs[key] for key in ("ksize", "strides", "padding")}
        made = builder.add(
            name, f"Quantized{node.op}", (quantized.edge, *builder.span(quantized)), T=QUANTIZED, **window
        )
    elif node.op == "Mean":
        return _spatial_mean(builder, node, name, quantized)
    elif node.op in ("Relu", "Relu6"):
        made = builder.clipped(name, node.op, quantized)
    else:
        made = builder.on_bytes(name, node, quantized)
    return quantized._replace(edge=made)


def _spatial_mean(builder: GraphBuilder, node: Node, name: str, quantized: QuantizedTensor) -> QuantizedTensor | None:
    dims = builder.shapes.get(node.inputs[0], UNKNOWN).dims
    if dims is None or None in dims[1:]:
        return None
    window: dict[str, Attr] = {"ksize": (1, dims[1], dims[2], 1), "strides": (1, 1, 1, 1), "padding": b"VALID"}
    inputs = (quantized.edge, *builder.span(quantized))
    if node.attrs.get("keep_dims"):
        return quantized._replace(edge=builder.add(name, "QuantizedAvgPool", inputs, T=QUANTIZED, **window))
    made = builder.add(f"{name}/pool", "QuantizedAvgPool", inputs, T=QUANTIZED, **window)
    shape = builder.constant(f"{name}/shape", np.array([-1, dims[3]], np.int32))
    flat = Node(name, "Reshape", (made, shape), attrs={"Tshape": DType.INT32})
    return quantized._replace(edge=builder.on_bytes(name, flat, quantized._replace(edge=made)))
