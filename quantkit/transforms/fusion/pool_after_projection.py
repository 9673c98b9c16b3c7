"""Move average pooling after the 1x1 convolution that follows it.

avg(x) * W  ==  avg(x * W)     W: (1, 1, c_in, c_out)
avg(y) + b  ==  avg(y + b)     padding is not averaged: the weights of every window sum to 1
"""

from collections.abc import Mapping
from functools import partial
from math import prod

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import commutative, const, op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name, sharing_reason
from quantkit.ir.tensor import Shape
from quantkit.ops.layers import channel_axis
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import bias_of_layer
from quantkit.transforms.onnx import _pools as onnx_pools
from quantkit.transforms.registry import transform

Shapes = Mapping[Edge, Shape]


@transform(dialects=("tensorflow", "onnx"))
def pool_after_projection(graph: Graph) -> Outcome:
    """Move a 1x1 convolution that reduces the channels before the AvgPool that precedes it.

    Averaging is linear over positions, and a 1x1 convolution is linear over channels: the two ops
    commute. After the projection, fewer channels are averaged. The bias also moves before the pool,
    where runtimes fuse it with the convolution; a Relu stays after the pool.

    Before:  x -> AvgPool -> Conv2D(1x1) -> BiasAdd -> Relu
    After:   x -> Conv2D(1x1) -> BiasAdd -> AvgPool -> Relu

    Options: none. The last pool takes the name of the BiasAdd, or else of the convolution: every
    remaining name keeps its tensor.

    Skips if the convolution does not reduce the channels, if the additional MACs of the convolution
    exceed the additions that the pool saves (a pool with a stride) or the sizes are unknown, if the
    pool has other consumers or is a graph input or output, if the convolution is strided, larger or
    pads, or if the data formats differ. MaxPool does not commute with a convolution.

    Example:
        pool_after_projection
        inputs: x
        outputs: y
        x = Placeholder[1x5x5x8]()
        w = Const[1x1x8x2]()
        b = Const([0.5, -1.0])
        pool = AvgPool(x, ksize=[1, 3, 3, 1], padding=SAME, strides=[1, 1, 1, 1])
        conv = Conv2D(pool, w, padding=SAME, strides=[1, 1, 1, 1])
        y = BiasAdd(conv, b)

    Example:
        pool_after_projection
        inputs: x
        outputs: y
        x = Placeholder[1x4x4x8]()
        w = Const[1x1x8x2]()
        bias = Const([[[[0.5, -1.0]]]])
        pool = AvgPool(x, ksize=[1, 3, 3, 1], padding=SAME, strides=[1, 1, 1, 1])
        conv = Conv2D(pool, w, padding=SAME, strides=[1, 1, 1, 1])
        sum = AddV2(conv, bias)
        y = Relu(sum)

    Example:
        pool_after_projection
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x8x5x5]()
        w = Constant[2x8x1x1]()
        b = Constant([0.5, -1.0])
        pool = AveragePool(x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        conv = Conv(pool, w, b)
        y = Relu(conv)
    """
    if graph.dialect == onnx.DIALECT:
        return onnx_pools.pool_after_projection(graph)
    if "AvgPool" not in graph.op_counts:
        return Outcome(graph)
    shapes = infer_shapes(graph)
    project = Rule(
        op("Conv2D")(op("AvgPool", "pool"), const("weights")),
        partial(_move_projection, shapes),
        ("root", "pool", "weights"),
    )
    pooled = op("AvgPool", "pool")(op("Conv2D", "layer"))
    biases = (
        Rule(pattern(pooled, const()), partial(_move_bias, graph), ("root", "pool", "layer"))
        for pattern in (op("BiasAdd"), commutative("Add|AddV2"))
    )
    outcome = apply_rules(graph, project, *biases)
    return outcome._replace(changes=tuple(_describe_changes(graph, outcome.graph, shapes)))


def _move_projection(shapes: Shapes, graph: Graph, root: Node, pool: Node, weights: Node) -> list[Node] | Skip:
    """Replace ``conv(pool(x))`` by ``pool(conv(x))``, also for several pools in a row."""
    reason = _reason_to_stay(shapes, graph, root, pool, weights, root)
    if reason:
        return Skip(reason)
    pools = [pool]
    while (previous := graph[pools[-1].inputs[0].node]).op == "AvgPool":
        if _reason_to_stay(shapes, graph, root, previous, weights, pools[-1]):
            break
        pools.append(previous)
    nodes = [root.with_(name=free_name(graph, f"{root.name}/before_pool")).with_input(0, pools[-1].inputs[0])]
    for old in pools[::-1]:
        nodes.append(old.with_(name=free_name(graph, f"{old.name}/projected")).with_input(0, Edge(nodes[-1].name)))
    return nodes


def _reason_to_stay(shapes: Shapes, graph: Graph, root: Node, pool: Node, weights: Node, consumer: Node) -> str:
    shape = weights.value.shape
    axis = channel_axis(root, 4)
    if root.name in graph.input_names or len(shape) != 4:
        return f"{root.name} is a graph input, or its weights do not have four dimensions"
    if shape[:2] != (1, 1):
        return f"the convolution is {shape[0]}x{shape[1]}, not 1x1"
    if axis is None or axis != channel_axis(pool, 4):
        return f"data_format differs from that of {pool.name}"
    if set(attribute(root, "strides")) != {1} or any(attribute(root, "explicit_paddings")):
        return "the convolution has a stride or padding"
    if {attribute(pool, name)[dimension] for name in ("ksize", "strides") for dimension in (0, axis)} != {1}:
        return f"{pool.name} averages over channels or images"
    shared = sharing_reason(graph, pool, consumer)
    if shared:
        return shared
    if shape[3] >= shape[2]:
        return f"the convolution does not reduce the channels: {shape[2]} to {shape[3]}"
    saved = _saved_operations(shapes, pool, pool.inputs[0], *shape[2:])
    if saved is None:
        return f"the saving is unknown, because the size of {pool.inputs[0]} is unknown"
    if saved <= 0:
        return f"before {pool.name}, the convolution costs {-saved:,} more operations than the pool saves"
    return ""


def _saved_operations(shapes: Shapes, pool: Node, source: Edge, c_in: int, c_out: int) -> int | None:
    """Return the additions that the pool saves minus the additional MACs of the convolution.

    Args:
        shapes: shapes of the graph.
        pool: pool whose output has the size of the result.
        source: input of the pool before the rewrite.
        c_in: input channels of the convolution.
        c_out: output channels of the convolution.

    Returns:
        Operations per image; per position if the pool keeps an unknown size; None if the unknown
        size matters.
    """
    window = prod(attribute(pool, "ksize"))
    before, after = _num_positions(shapes, pool, source), _num_positions(shapes, pool, Edge(pool.name))
    if set(attribute(pool, "strides")) == {1} and attribute(pool, "padding") == b"SAME":
        return int(window * (c_in - c_out)) * (after or 1)
    if before is None or after is None:
        return None
    return int(after * window * (c_in - c_out)) - (before - after) * c_in * c_out


def _num_positions(shapes: Shapes, pool: Node, edge: Edge) -> int | None:
    """Return height times width of a tensor; None if unknown."""
    dims = shapes.get(edge, UNKNOWN).dims
    if dims is None:
        return None
    sizes = [size for axis, size in enumerate(dims) if axis not in (0, channel_axis(pool, 4))]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def _move_bias(before: Graph, graph: Graph, root: Node, pool: Node, layer: Node) -> list[Node] | None:
    """Replace ``pool(conv(x)) + b`` by ``pool(conv(x) + b)`` if the convolution was moved."""
    if layer.name in before or root.name in graph.input_names or sharing_reason(graph, pool, root):
        return None
    if bias_of_layer(graph, layer, root) is None:
        return None
    slot = root.inputs.index(Edge(pool.name))
    moved = root.with_(name=free_name(graph, f"{root.name}/before_pool")).with_input(slot, pool.inputs[0])
    return [moved, pool.with_input(0, Edge(moved.name))]


def _describe_changes(before: Graph, after: Graph, shapes: Shapes) -> list[str]:
    """Return one line per moved pool, with the saved operations and bytes."""
    lines = []
    for name, pool in after.nodes.items():
        if pool.op != "AvgPool" or name not in before or before[name].op == "AvgPool":
            continue
        layer = after[pool.inputs[0].node]
        while layer.op != "Conv2D":
            layer = after[next(edge.node for edge in layer.inputs if after.constant_of(edge) is None)]
        c_in, c_out = after[layer.inputs[1].node].value.shape[2:]
        line = f"{name}: pooled after the projection, {c_out} channels instead of {c_in}"
        num_positions = _num_positions(shapes, pool, Edge(name))
        saved = _saved_operations(shapes, pool, layer.inputs[0], c_in, c_out) if num_positions else None
        if num_positions and saved:
            line += f"; saves {saved:,} operations and {8 * num_positions * (c_in - c_out):,} bytes of memory traffic"
        lines.append(line)
    return lines
