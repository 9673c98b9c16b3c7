"""Inline the functions of PartitionedCall nodes."""

from quantkit.errors import GraphError
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Graph, Node
from quantkit.ir.rewrite import Outcome
from quantkit.ops.semantics import CALL_OPS
from quantkit.transforms.functions._inlining import inline_calls
from quantkit.transforms.registry import transform


@transform
def inline_partitionedcall(graph: Graph) -> Outcome:
    """Replace PartitionedCall nodes by the nodes of their functions, at any depth.

    Most transforms only rewrite the nodes of the graph itself, not of its functions.

    Before:  y = PartitionedCall(x, f=&double)
             function double(out = add): add = AddV2(a, a)
    After:   y/add = AddV2(x, x); the consumers of y are connected to y/add

    Options: none. The functions stay in the library.

    Nodes of the function are named ``<call>/<node>``. A control dependency on the call becomes control
    dependencies on the results and the nodes that run with every call. Control dependencies of the
    call move to the first nodes of the function. A call that is a graph output becomes an Identity of
    the same name.

    Skips calls that are graph inputs, recursive functions, functions with function arguments, and
    generic functions whose types the call does not define.

    Raises:
        GraphError: a call names no function or a missing one, or has the wrong number of arguments.

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
    if node.op not in CALL_OPS:
        return None
    function = node.attrs.get("f")
    if function is None:
        raise GraphError(f"Node {node.name} has no attribute: f", hint="copy the file again, or export the model again")
    if not isinstance(function, FunctionName):
        raise GraphError("Cannot figure out function name", hint=f"attribute f of {node.name} is not a function name")
    return function.name
