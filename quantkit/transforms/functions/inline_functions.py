"""Inline functions."""

from collections.abc import Container
from dataclasses import replace

from quantkit.errors import QuantkitError
from quantkit.formats.graphdef.function_library import names_in
from quantkit.ir.functions import Function, FunctionName, Library, function_names
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.limits import check_num_nodes
from quantkit.ops.semantics import CALL_OPS
from quantkit.transforms.functions._inlining import Callee, inline_calls
from quantkit.transforms.registry import transform


@transform
def inline_functions(graph: Graph, *, keep: tuple[str, ...] = ()) -> Outcome:
    """Replace calls by the nodes of the called functions, at any depth.

    Keras and tf.function store a network in functions, which most transforms do not rewrite. Calls in
    the bodies of loops and branches are inlined there. Run remove_unused_functions afterwards.

    Before:  y = PartitionedCall(x, f=&double)      function double(sum = s): s = Add(a, a)
    After:   y/s = Add(x, x)

    Options:
        keep: functions that are not inlined.

    Replaces PartitionedCall, StatefulPartitionedCall and nodes whose op type is a function. Nodes are
    named ``call/node``. Control dependencies and side effects keep their order. A call that is a graph
    output becomes an Identity of the same name.

    Skips missing and recursive functions, functions with function arguments or unknown ops, and
    generic functions whose types the call does not define.

    Example:
        inline_functions
        inputs: x
        outputs: y
        x = Placeholder[2]()
        call = PartitionedCall(x, Tin=[float], Tout=[float], f=&double)
        y = Neg(call)
        function double(sum = s)
        a = _Arg(T=float, index=0)
        s = Add(a, a)
        end
    """
    library = graph.library
    excluded = {**_loading_errors(library), **{name: f"the option keep names function {name!r}" for name in keep}}

    def callee(_: Graph, node: Node) -> str | None:
        name = _called_function(node, library)
        return name if name in library and name not in excluded else None

    outcome = inline_calls(graph, callee)
    functions = _inline_in_functions(outcome.graph, excluded, callee)
    after = outcome.graph.with_(library=library.with_(*functions)) if functions else outcome.graph
    changes = (*outcome.changes, *(f"calls in function {function.name} inlined" for function in functions))
    skips = (
        Skip(excluded.get(name, f"function {name!r} is not in the library"), node.name)
        for node in after.nodes.values()
        if (name := _called_function(node, library)) and callee(after, node) is None
    )
    return Outcome(after, changes, (*outcome.skips, *skips))


def _called_function(node: Node, library: Library[Graph]) -> str:
    """Return the name of the function that a node calls, empty if the node is not a call."""
    function = node.attrs.get("f")
    if node.op in CALL_OPS and isinstance(function, FunctionName):
        return function.name
    return node.op if node.op in library else ""


def _loading_errors(library: Library[Graph]) -> dict[str, str]:
    """Return the message for each function that cannot be loaded."""
    reasons: dict[str, str] = {}
    for name in library:
        if library.is_open(name):
            continue  # a call may define the types of a generic function
        try:
            _ = library[name]
        except QuantkitError as error:
            reasons[name] = error.message
    return reasons


def _inline_in_functions(graph: Graph, excluded: Container[str], callee: Callee) -> list[Function[Graph]]:
    """Inline the calls in the functions that a graph still calls; return the changed functions."""
    library = graph.library
    changed: list[Function[Graph]] = []
    num_nodes = len(graph)
    visited: set[str] = set()
    stack = _referenced_names(graph)
    while stack:
        name = stack.pop()
        if name in visited or name in excluded or name not in library:
            continue
        visited.add(name)
        if library.is_open(name):
            stack.extend(names_in(library, name))
            continue
        function = _inline_in_function(library, library[name], callee)
        if function is not library[name]:
            changed.append(function)
            num_nodes += len(function.graph)
            check_num_nodes(num_nodes)
        stack.extend(_referenced_names(function.graph))
    return changed


def _referenced_names(graph: Graph) -> list[str]:
    """Return op types and function names of the attributes, in reverse file order."""
    return [name for node in graph.nodes.values() for name in (node.op, *function_names(node.attrs))][::-1]


def _inline_in_function(library: Library[Graph], function: Function[Graph], callee: Callee) -> Function[Graph]:
    control_outputs = (Edge(node) for node in function.controls.values())
    body = function.graph.with_(outputs=(*function.graph.outputs, *control_outputs), library=library)
    outcome = inline_calls(body, callee)
    if not outcome.changes:
        return function
    outputs = outcome.graph.outputs[: len(function.results)]
    return replace(function, graph=outcome.graph.with_(outputs=outputs, library=Library()))
