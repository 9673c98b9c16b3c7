"""Pass-through nodes on quantized values: concatenations, pools, and ops that only move values."""

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType
from quantkit.ops.semantics import CONCAT_OPS
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.targets.tensorflow.graph_builder import ANNOTATE_AGAIN, GraphBuilder
from quantkit.quantization.targets.tensorflow.parameters import ACTIVATION_TYPE, QuantizedTensor, quantized_name


def add_pass_through(builder: GraphBuilder, node: Node) -> None:
    """Add the quantized form of a pass-through node, or the float node if there is no such form.

    Raises:
        GraphError: the plan does not fit the graph.
    """
    output = Edge(node.name)
    planned = builder.planned_tensor(output)
    if planned is None:
        raise GraphError(f"the plan lists {node.name!r} as pass-through and does not quantize it", hint=ANNOTATE_AGAIN)
    if node.op in CONCAT_OPS:
        tensor = _concat(builder, node, planned)
        reason = "the axis of the concatenation is unknown"
    else:
        tensor = _apply(builder, node, builder.quantized_tensor(node.inputs[0]))
        tensor = tensor and builder.requantize(node.name, tensor, planned)
        reason = "a mean over an unknown size has no equivalent average pool"
    if tensor is None:
        builder.reasons[node.name] = reason
        builder.keep(node)
    else:
        builder.quantized[output] = tensor


def _concat(builder: GraphBuilder, node: Node, planned: QuantizedTensor) -> QuantizedTensor | None:
    """Concatenate quantized values; None if the axis is not constant, or counts from the end of an unknown rank."""
    slot = 0 if node.op == "Concat" else len(node.inputs) - 1
    parts = [edge for index, edge in enumerate(node.inputs) if index != slot]
    value = builder.source.constant_of(node.inputs[slot])
    if value is None:
        return None
    ranks = (builder.shapes.get(edge, UNKNOWN).rank for edge in parts)
    rank = next((rank for rank in ranks if rank is not None), None)
    axis = int(value.array.reshape(-1)[0])
    if axis < 0 and rank is None:
        return None
    axis = axis + (rank or 0) if axis < 0 else axis
    tensors = [
        builder.requantize(f"{node.name}/{index}", builder.quantized_tensor(edge), planned)
        for index, edge in enumerate(parts)
    ]
    # ConcatV2 copies bytes twice as fast as QuantizedConcatV2, which handles different ranges.
    inputs = [*(tensor.edge for tensor in tensors), builder.constant(f"{node.name}/axis", np.int32(axis))]
    name = quantized_name(Edge(node.name))
    output = builder.add(name, "ConcatV2", inputs, N=len(tensors), T=ACTIVATION_TYPE, Tidx=DType.INT32)
    return planned._replace(edge=output)


def _apply(builder: GraphBuilder, node: Node, tensor: QuantizedTensor) -> QuantizedTensor | None:
    """Apply a pass-through node with one data input; None if it has no quantized form."""
    name = quantized_name(Edge(node.name))
    if node.op in ("MaxPool", "AvgPool"):
        window = {key: node.attrs[key] for key in ("ksize", "strides", "padding")}
        inputs = (tensor.edge, *builder.unshifted_limits(tensor))
        output = builder.add(name, f"Quantized{node.op}", inputs, T=ACTIVATION_TYPE, **window)
    elif node.op == "Mean":
        return _spatial_mean(builder, node, name, tensor)
    elif node.op in ("Relu", "Relu6"):
        output = builder.clamp(name, node.op, tensor)
    else:
        output = builder.apply_to_bytes(name, node, tensor)
    return tensor._replace(edge=output)


def _spatial_mean(builder: GraphBuilder, node: Node, name: str, tensor: QuantizedTensor) -> QuantizedTensor | None:
    dims = builder.shapes.get(node.inputs[0], UNKNOWN).dims
    if dims is None or None in dims[1:]:
        return None
    window: dict[str, Attr] = {"ksize": (1, dims[1], dims[2], 1), "strides": (1, 1, 1, 1), "padding": b"VALID"}
    inputs = (tensor.edge, *builder.unshifted_limits(tensor))
    if node.attrs.get("keep_dims"):
        return tensor._replace(edge=builder.add(name, "QuantizedAvgPool", inputs, T=ACTIVATION_TYPE, **window))
    pooled = builder.add(f"{name}/pool", "QuantizedAvgPool", inputs, T=ACTIVATION_TYPE, **window)
    shape = builder.constant(f"{name}/shape", np.array([-1, dims[3]], np.int32))
    flat = Node(name, "Reshape", (pooled, shape), attrs={"Tshape": DType.INT32})
    return tensor._replace(edge=builder.apply_to_bytes(name, flat, tensor._replace(edge=pooled)))
