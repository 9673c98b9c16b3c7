"""Replace the sum of a layer and one constant per channel by BiasAdd.

layer(x) + [b0, b1, ...]  ==  BiasAdd(layer(x), b)
Reshape(x @ w) + b        ==  Reshape(BiasAdd(x @ w, b))        if b has one number per column of w
"""

from collections.abc import Mapping
from functools import partial

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import NewNodes, Outcome, Rule, Skip, apply_rules
from quantkit.ir.tensor import Shape, Tensor
from quantkit.ops.layers import WEIGHTS_INDEX, broadcast_channels, find_layer
from quantkit.ops.semantics import ADD_OPS
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.transforms.onnx import _batch_norms as onnx_batch_norms
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def fold_biases(graph: Graph) -> Outcome:
    """Replace the sum of a layer and one constant per channel by BiasAdd.

    TensorFlow fuses a layer with a BiasAdd and with the activation or the residual sum after it. An
    Add of a constant, as in a decomposed batch norm, is slower: TensorFlow fuses it with the
    residual sum instead, or moves the activation after a concat, where the activation is not fused.

    Before:  x -> Conv2D -> Add([b0, b1, ...])
    After:   x -> Conv2D -> BiasAdd([b0, b1, ...])

    Frameworks multiply sequences as one matrix and add the bias after the Reshape back to
    sequences. The bias moves to its product:

    Before:  x -> MatMul -> Reshape -> BiasAdd
    After:   x -> MatMul -> BiasAdd -> Reshape

    Options: none. Conv2D, DepthwiseConv2dNative, Conv2DBackpropInput and MatMul; both orders of the
    operands.

    In ONNX graphs the sum becomes the bias of Conv, ConvTranspose and Gemm.

    Skips if the constant is one number for all channels, varies within a channel, or is a graph
    input, if the number of channels is unknown, or if the product or the Reshape has other
    consumers.

    Example:
        fold_biases
        inputs: x
        outputs: y
        x = Placeholder[1x4x4x2]()
        w = Const[3x3x2x3]()
        b = Const([0.5, -1.0, 2.0])
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        sum = AddV2(conv, b)
        y = Relu(sum)

    Example:
        fold_biases
        inputs: x
        outputs: y
        x = Placeholder[8x8]()
        w = Const[8x6]()
        bias = Const([0.5, -1.0, 2.0, 1.0, 0.0, -0.5])
        sizes = Const[int32]([-1, 4, 6])
        product = MatMul(x, w)
        sequences = Reshape(product, sizes, Tshape=int32)
        y = BiasAdd(sequences, bias)

    Example:
        fold_biases
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x2x4x4]()
        w = Constant[3x2x1x1]()
        b = Constant([[[0.5]], [[-1.0]], [[2.0]]])
        conv = Conv(x, w)
        y = Add(conv, b)
    """
    if graph.dialect == onnx.DIALECT:
        return onnx_batch_norms.fold_biases(graph)
    if graph.op_counts.keys().isdisjoint({*ADD_OPS, "BiasAdd"}):
        return Outcome(graph)
    shapes = infer_shapes(graph)
    return apply_rules(
        graph,
        Rule(op("|".join(sorted(ADD_OPS))), partial(_replace_by_bias, shapes), ("root",)),
        Rule(op("|".join(sorted({*ADD_OPS, "BiasAdd"}))), partial(_move_before_reshape, shapes), ("root",)),
    )


def _replace_by_bias(shapes: Mapping[Edge, Shape], graph: Graph, root: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    for slot in (0, 1):
        source, summand = root.inputs[slot], root.inputs[1 - slot]
        layer, value = find_layer(graph[source.node]), graph.constant_of(summand)
        if layer is None or value is None:
            continue
        if summand.node in graph.input_names:
            return Skip(f"{summand.node} is a graph input")
        weights = shapes.get(graph[source.node].inputs[WEIGHTS_INDEX], UNKNOWN)
        if not weights.is_known:
            return Skip(f"the number of channels of {source} is unknown")
        num_channels = layer.num_channels(weights.sizes)
        biases = broadcast_channels(value, rank=layer.rank, axis=layer.axis, num_channels=num_channels)
        if biases is None or value.array.size != num_channels:
            return Skip(f"{summand.node} is not one number for each of {num_channels} channels")
        nodes = NewNodes(graph, root.name)
        if value.shape != biases.shape:
            summand = nodes.constant("bias", Tensor.of(biases, value.dtype))
        data_format = graph[source.node].attrs.get("data_format", b"NHWC")
        attrs = {"T": value.dtype, "data_format": data_format}
        return [*nodes, root.with_(op="BiasAdd", inputs=(source, summand), attrs=attrs)]
    return None


def _move_before_reshape(shapes: Mapping[Edge, Shape], graph: Graph, root: Node) -> list[Node] | Skip | None:
    """Move the bias of a matrix product before the Reshape of the product."""
    for slot in (0, 1) if root.op != "BiasAdd" else (0,):
        source, summand = root.inputs[slot], root.inputs[1 - slot]
        reshape, value = graph[source.node], graph.constant_of(summand)
        if reshape.op != "Reshape" or value is None or graph[reshape.inputs[0].node].op != "MatMul":
            continue
        product = graph[reshape.inputs[0].node]
        columns, dims = shapes.get(Edge(product.name), UNKNOWN).dims, shapes.get(source, UNKNOWN).dims
        has_graph_input = {root.name, reshape.name, product.name, summand.node} & graph.input_names
        if has_graph_input or reshape.controls or root.attrs.get("data_format", b"NHWC") != b"NHWC":
            continue
        for node in (reshape, product):
            if graph.is_shared(node):
                return Skip(f"{node.name} has other consumers")
        # The bias must cover all dimensions into which the columns are split.
        last = dims[-len(value.shape) :] if dims and value.shape else ()
        if columns is None or columns[1] != value.num_elements or last != value.shape:
            return Skip(f"shapes do not show that {summand.node} is one number per column of {product.name}")
        nodes = NewNodes(graph, root.name)
        flat = nodes.constant("bias", Tensor.of(value.array.reshape(-1), value.dtype))
        biased = nodes.add("biased", "BiasAdd", Edge(product.name), flat, T=value.dtype, data_format=b"NHWC")
        return [*nodes, reshape.with_(name=root.name, inputs=(biased, reshape.inputs[1]))]
    return None
