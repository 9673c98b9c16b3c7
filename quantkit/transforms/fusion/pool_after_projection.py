"""Average pools after the projections that read them.

avg(x) * W  ==  avg(x * W)     W: (1, 1, c_in, c_out)
avg(y) + b  ==  avg(y + b)     padding is not counted, so the weights of an average sum to 1
"""

from collections.abc import Mapping
from functools import partial
from math import prod

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import commutative, const, op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name, sharing_reason
from quantkit.ir.tensor import Shape
from quantkit.ops.layers import channel_axis
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import attribute
from quantkit.transforms.folding._channels import bias_of_layer
from quantkit.transforms.registry import transform

Shapes = Mapping[Edge, Shape]
_ADDED = ("root", "pool", "layer")


@transform
def pool_after_projection(graph: Graph) -> Outcome:
    """Let a 1x1 convolution that makes fewer channels run before the average pool it reads.

    Averaging and a 1x1 convolution are both linear, one over places and one over channels: they commute. After the
    projection there is less to average. The sum of a bias comes before the pool, too, where engines fuse it with
    the convolution; a ReLU stays behind.

    Before:  x -> AvgPool -> Conv2D(1x1) -> BiasAdd -> Relu
    After:   x -> Conv2D(1x1) -> BiasAdd -> AvgPool -> Relu

    Options: none. Every name that is kept stands for the tensor it stood for: the last pool takes the name
    of the BiasAdd, or else of the convolution.

    Skips when the convolution makes as many channels or more, when it would have more to do than the pool saves
    (a pool with a stride) or sizes that tell are not known, when the pool is read elsewhere or is an end of the
    graph, when the convolution is strided, larger or pads, or the data formats differ. Maximum pools do not commute.

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
    """
    if "AvgPool" not in graph.op_counts:
        return Outcome(graph)
    shapes = infer_shapes(graph)
    project = Rule(
        op("Conv2D")(op("AvgPool", "pool"), const("weights")), partial(_projected, shapes), ("root", "pool", "weights")
    )
    adds = (
        Rule(pattern(op("AvgPool", "pool")(op("Conv2D", "layer")), const()), partial(_added, graph), _ADDED)
        for pattern in (op("BiasAdd"), commutative("Add|AddV2"))
    )
    made = apply_rules(graph, project, *adds)
    return made._replace(changes=tuple(_told(graph, made.graph, shapes)))


def _projected(shapes: Shapes, graph: Graph, root: Node, pool: Node, weights: Node) -> list[Node] | Skip:
    """``conv(pool(x))`` as ``pool(conv(x))``, and the same for several pools in a row."""
    reason = _reason_to_stay(shapes, graph, root, pool, weights, root)
    if reason:
        return Skip(reason)
    pools = [pool]
    while (further := graph[pools[-1].inputs[0].node]).op == "AvgPool":
        if _reason_to_stay(shapes, graph, root, further, weights, pools[-1]):
            break
        pools.append(further)
    nodes = [root.with_(name=free_name(graph, f"{root.name}/before_pool")).with_input(0, pools[-1].inputs[0])]
    for one in pools[::-1]:
        nodes.append(one.with_(name=free_name(graph, f"{one.name}/projected")).with_input(0, Edge(nodes[-1].name)))
    return nodes


def _reason_to_stay(shapes: Shapes, graph: Graph, root: Node, pool: Node, weights: Node, reader: Node) -> str:
    shape = weights.value.shape
    axis = channel_axis(root, 4)
    if root.name in graph.input_names or len(shape) != 4:
        return f"{root.name} is no convolution of what it reads"
    if shape[:2] != (1, 1):
        return f"it is a {shape[0]}x{shape[1]} convolution, not 1x1"
    if axis is None or axis != channel_axis(pool, 4):
        return f"its data_format is not that of {pool.name}"
    if set(attribute(root, "strides")) != {1} or any(attribute(root, "explicit_paddings")):
        return "it has a stride or a padding"
    if {attribute(pool, name)[place] for name in ("ksize", "strides") for place in (0, axis)} != {1}:
        return f"{pool.name} averages over channels or pictures"
    shared = sharing_reason(graph, pool, reader)
    if shared:
        return shared
    if shape[3] >= shape[2]:
        return f"it makes {shape[3]} channels of {shape[2]}: there would be no less to average"
    saved = _saved(shapes, pool, pool.inputs[0], *shape[2:])
    if saved is None:
        return f"the size of {pool.inputs[0]} is not known, and with it what {pool.name} costs"
    if saved <= 0:
        return f"it would do {-saved:,} more multiply-adds on the tensor before {pool.name}"
    return ""


def _saved(shapes: Shapes, pool: Node, source: Edge, c_in: int, c_out: int) -> int | None:
    """Additions of the pool less multiply-adds of the convolution that a move from behind it saves.

    Args:
        shapes: of the tensors.
        pool: its output is that of the pair.
        source: the tensor that the pair reads.
        c_in: channels the convolution reads.
        c_out: channels it makes.

    Returns:
        For one picture; for one place where the pool keeps the size and that is not known; None where it decides.
    """
    window = prod(attribute(pool, "ksize"))
    given, made = _places(shapes, pool, source), _places(shapes, pool, Edge(pool.name))
    if set(attribute(pool, "strides")) == {1} and attribute(pool, "padding") == b"SAME":
        return int(window * (c_in - c_out)) * (made or 1)
    if given is None or made is None:
        return None
    return int(made * window * (c_in - c_out)) - (given - made) * c_in * c_out


def _places(shapes: Shapes, pool: Node, edge: Edge) -> int | None:
    """Pixels of a tensor of the first picture; None: not known."""
    dims = shapes.get(edge, UNKNOWN).dims
    if dims is None:
        return None
    sizes = [size for place, size in enumerate(dims) if place not in (0, channel_axis(pool, 4))]
    return None if None in sizes else prod(size for size in sizes if size is not None)


def _added(before: Graph, graph: Graph, root: Node, pool: Node, layer: Node) -> list[Node] | None:
    """``pool(conv(x)) + b`` as ``pool(conv(x) + b)``, where the pool stands behind a convolution that was moved."""
    if layer.name in before or root.name in graph.input_names or sharing_reason(graph, pool, root):
        return None
    if bias_of_layer(graph, layer, root) is None:
        return None
    slot = root.inputs.index(Edge(pool.name))
    moved = root.with_(name=free_name(graph, f"{root.name}/before_pool")).with_input(slot, pool.inputs[0])
    return [moved, pool.with_input(0, Edge(moved.name))]


def _told(before: Graph, after: Graph, shapes: Shapes) -> list[str]:
    """A line for each pool that moved: what there is less to do."""
    lines = []
    for name, pool in after.nodes.items():
        if pool.op != "AvgPool" or name not in before or before[name].op == "AvgPool":
            continue
        layer = after[pool.inputs[0].node]
        while layer.op != "Conv2D":
            layer = after[next(edge.node for edge in layer.inputs if after.constant_of(edge) is None)]
        c_in, c_out = after[layer.inputs[1].node].value.shape[2:]
        line = f"{name}: averages {c_out} channels behind the projection instead of {c_in} before it"
        places = _places(shapes, pool, Edge(name))
        saved = _saved(shapes, pool, layer.inputs[0], c_in, c_out) if places else None
        if places and saved:
            line += f"; {saved:,} additions and {8 * places * (c_in - c_out):,} bytes less to read and write"
        lines.append(line)
    return lines
