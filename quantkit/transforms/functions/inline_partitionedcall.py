"""Put the nodes of functions where PartitionedCall nodes call them."""

from quantkit.errors import GraphError
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.functions._inlining import inline_calls
from quantkit.transforms.registry import transform

CALLS = ("PartitionedCall", "StatefulPartitionedCall")


@transform
def inline_partitionedcall(graph: Graph) -> Outcome:
    """Replace calls of functions by the nodes of the functions, and the calls among these, too.

    Most transforms look at the nodes of the graph alone: what a function computes is hidden from them.

    Before:  y = PartitionedCall(x, f=&double)
             function double(out = add): add = AddV2(a, a)
    After:   y/add = AddV2(x, x), which the readers of y read

    Options: none. The functions stay in the library.

    A node of the function is called ``<call>/<node>``. Whoever waits for the call waits for what its function must
    run; what begins the function waits for what the call waited for. A call that is an output of the graph becomes an
    Identity of its name.

    Skips when a call is an input of the graph, a function calls itself or takes functions, or is made for several
    types and the call does not say which.

    Raises:
        GraphError: a call names no function, one that the library lacks, or gives it too many or too few tensors.

    Example:
        inline_partitionedcall
        inputs: x
        outputs: z
        x = Placeholder[2]()
        y = PartitionedCall(x, Tin=[float], Tout=[float], f=&double)
        z = Neg(y)
        function double(out = add)
        a = _Arg(T=float, index=0)
        add = AddV2(a, a, T=float)
        end
    """
    return inline_calls(graph, _callee)


def _callee(graph: Graph, node: Node) -> str | None:
    if node.op not in CALLS:
        return None
    function = node.attrs.get("f")
    if function is None:
        raise GraphError(f"Node {node.name} has no attribute: f", hint="the file is damaged")
    if not isinstance(function, FunctionName):
        raise GraphError("Cannot figure out function name", hint=f"{node.name} has an attribute f that names none")
    return function.name
