"""Sort nodes topologically."""

from quantkit.ir.graph import Graph
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def sort_by_execution_order(graph: Graph) -> Graph:
    """Sort nodes topologically: each node follows the producers of its inputs.

    Before:  c = Relu(b)   a = Placeholder   b = Conv2D(a, w)   w = Const
    After:   w = Const   a = Placeholder   b = Conv2D(a, w)   c = Relu(b)

    Options: none.

    Skips no node; a cycle without a Merge is an error.

    Example:
        sort_by_execution_order
        inputs: x
        outputs: c
        c = Relu(b)
        b = Mul(x, w)
        w = Const([1.0, 2.0])
        x = Placeholder[2]()
    """
    return graph.with_nodes(graph[name] for name in graph.order)
