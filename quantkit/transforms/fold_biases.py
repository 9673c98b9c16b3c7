"""Sums with one constant a channel, as the BiasAdd they are.

layer(x) + [b0, b1, ...]  ==  BiasAdd(layer(x), b)
"""

from collections.abc import Mapping
from functools import partial

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name
from quantkit.ir.tensor import Shape
from quantkit.ops.inference import UNKNOWN, infer_shapes
from quantkit.ops.layers import WEIGHTS_SLOT, broadcast_channels, find_layer
from quantkit.transforms.registry import transform

ADDITIONS = ("Add", "AddV2")


@transform
def fold_biases(graph: Graph) -> Outcome:
    """Write a sum of a layer and one constant a channel as BiasAdd.

    TensorFlow fuses a layer with its BiasAdd and with the activation or the residual sum behind it. It moves
    activations behind other sums past a concat, where they become passes over the tensor, and joins such sums with
    residual ones: decomposed batch norms are slower so.

    Before:  x -> Conv2D -> Add([b0, b1, ...])
    After:   x -> Conv2D -> BiasAdd([b0, b1, ...])

    Options: none. Conv2D, DepthwiseConv2dNative, Conv2DBackpropInput and MatMul; both orders of the operands.

    Declines when the constant is one number for all channels, differs within a channel, or is fed, and when the number
    of channels is not known.

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
    """
    if graph.op_counts.keys().isdisjoint(ADDITIONS):
        return Outcome(graph)
    return apply_rules(graph, Rule(op("|".join(ADDITIONS)), partial(_as_bias, infer_shapes(graph)), ("root",)))


def _as_bias(shapes: Mapping[Edge, Shape], graph: Graph, root: Node) -> list[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    for slot in (0, 1):
        source, summand = root.inputs[slot], root.inputs[1 - slot]
        layer, value = find_layer(graph[source.node]), graph.constant_of(summand)
        if layer is None or value is None:
            continue
        if summand.node in graph.input_names:
            return Skip(f"{summand.node} is an input of the graph")
        weights = shapes.get(graph[source.node].inputs[WEIGHTS_SLOT], UNKNOWN)
        if not weights.is_known:
            return Skip(f"the number of channels of {source} is not known")
        num_channels = layer.num_channels(weights.known)
        biases = broadcast_channels(value, rank=layer.rank, axis=layer.axis, num_channels=num_channels)
        if biases is None or value.array.size != num_channels:
            return Skip(f"{summand.node} is not one number for each of {num_channels} channels")
        made = []
        if value.shape != biases.shape:
            made.append(constant(free_name(graph, f"{root.name}/bias"), biases, value.dtype))
            summand = Edge(made[0].name)
        format_ = graph[source.node].attrs.get("data_format", b"NHWC")
        attrs = {"T": value.dtype, "data_format": format_}
        return [*made, root.with_(op="BiasAdd", inputs=(source, summand), attrs=attrs)]
    return None
