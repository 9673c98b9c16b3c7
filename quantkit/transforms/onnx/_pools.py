"""Rule that moves average pools of ONNX graphs after the 1x1 convolution that follows them."""

from functools import partial
from math import prod

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules, free_name
from quantkit.ops.layers import WEIGHTS_INDEX
from quantkit.transforms.onnx._facts import GraphFacts, producer, reason_to_keep


def pool_after_projection(graph: Graph) -> Outcome:
    """Move a 1x1 Conv that reduces the channels before the AveragePool that precedes it."""
    return apply_rules(graph, Rule(op("Conv"), partial(_move_projection, GraphFacts.of(graph)), ("root",)))


def _move_projection(facts: GraphFacts, graph: Graph, root: Node) -> list[Node] | Skip | None:
    """Replace ``conv(pool(x))`` by ``pool(conv(x))``, also for several pools in a row."""
    pools: list[Node] = []
    consumer = root
    while (pool := producer(graph, consumer.inputs[0], "AveragePool")) is not None:
        if reason := _reason_to_stay(facts, graph, root, pool, consumer):
            if not pools:
                return Skip(reason)
            break
        pools.append(pool)
        consumer = pool
    if not pools or root.name in graph.input_names:
        return None
    nodes = [root.with_(name=free_name(graph, f"{root.name}/before_pool")).with_input(0, pools[-1].inputs[0])]
    for number, pool in enumerate(reversed(pools), 1):
        name = root.name if number == len(pools) else free_name(graph, f"{pool.name}/projected")
        nodes.append(pool.with_(name=name).with_input(0, Edge(nodes[-1].name)))
    return nodes


def _reason_to_stay(facts: GraphFacts, graph: Graph, root: Node, pool: Node, consumer: Node) -> str:
    weights = graph.constant_of(root.inputs[WEIGHTS_INDEX])
    if weights is None or prod(weights.shape[2:]) != 1:
        return "the weights are not those of a 1x1 convolution"
    if root.attrs.get("group", 1) != 1 or {*root.attrs.get("strides", ()), 1} != {1} or any(root.attrs.get("pads", ())):
        return "the convolution has a stride, padding or groups"
    c_out, c_in = weights.shape[:2]
    if c_out >= c_in:
        return f"the convolution does not reduce the channels: {c_in} to {c_out}"
    if any(pool.attrs.get("pads", ())) and pool.attrs.get("count_include_pad"):
        return f"{pool.name} averages over its padding, which has no bias"
    if reason := reason_to_keep(graph, pool, consumer):
        return reason
    sizes = [facts.dims(edge) for edge in (pool.inputs[0], Edge(pool.name))]
    before, after = (
        None if dims is None or None in dims[2:] else prod(size or 0 for size in dims[2:]) for dims in sizes
    )
    window = prod(pool.attrs["kernel_shape"])
    if before is None or after is None:
        return f"the saving is unknown, because the size of {pool.inputs[0]} is unknown"
    # Additions that the pool saves minus the additional MACs of the convolution.
    saved = after * window * (c_in - c_out) - (before - after) * c_in * c_out
    return (
        "" if saved > 0 else f"before {pool.name}, the convolution costs {-saved:,} more operations than the pool saves"
    )
