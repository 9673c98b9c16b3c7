"""Write functions out where they are called."""

from collections.abc import Container
from dataclasses import replace

from quantkit.errors import QuantkitError
from quantkit.formats.graphdef.function_library import names_in
from quantkit.ir.functions import Function, FunctionName, Library, function_names
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.transforms.functions._inlining import Callee, inline_calls
from quantkit.transforms.registry import transform

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@transform
def inline_functions(graph: Graph, *, keep: tuple[str, ...] = ()) -> Outcome:
    """Replace calls of functions by what the functions hold, at any depth.

    Keras and tf.function leave a network in functions, where no other transform sees it. Calls in the bodies of loops
    and branches are written out inside of those. remove_unused_functions drops the functions afterwards.

    Before:  y = PartitionedCall(x, f=&double)      function double(sum = s): s = Add(a, a)
    After:   y/s = Add(x, x)

    Options:
        keep: functions to leave as calls.

    Replaces PartitionedCall, StatefulPartitionedCall and nodes whose op is a function; nodes are named
    ``call/node``. What a call waited for, what waited for it, and side effects that no result needs keep their order. A
    call that is an output of the graph becomes an Identity of its name.

    Skips when a function is not in the library, calls itself, takes functions, or holds ops that nobody knows, or is
    made for several types and the call does not say which.

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
    closed = {**_unopened(library), **{name: f"function {name!r} is kept" for name in keep}}

    def callee(_: Graph, node: Node) -> str | None:
        name = _name(node, library)
        return name if name in library and name not in closed else None

    outcome = inline_calls(graph, callee)
    bodies = _written_out(outcome.graph, closed, callee)
    after = outcome.graph.with_(library=library.with_(*bodies)) if bodies else outcome.graph
    changes = (*outcome.changes, *(f"function {body.name} without its calls" for body in bodies))
    skips = (
        Skip(closed.get(name, f"function {name!r} is not in the library"), node.name)
        for node in after.nodes.values()
        if (name := _name(node, library)) and callee(after, node) is None
    )
    return Outcome(after, changes, (*outcome.skips, *skips))


def _name(node: Node, library: Library[Graph]) -> str:
    """The function that a node calls, or nothing."""
    named = node.attrs.get("f")
    if node.op in CALLS and isinstance(named, FunctionName):
        return named.name
    return node.op if node.op in library else ""


def _unopened(library: Library[Graph]) -> dict[str, str]:
    """Reasons for the functions that can not be opened."""
    reasons: dict[str, str] = {}
    for name in library:
        if library.is_open(name):
            continue  # a call may close it
        try:
            _ = library[name]
        except QuantkitError as error:
            reasons[name] = error.message
    return reasons


def _written_out(graph: Graph, closed: Container[str], callee: Callee) -> list[Function[Graph]]:
    """The functions that a graph still needs whose bodies call others, without their calls."""
    library = graph.library
    made: list[Function[Graph]] = []
    seen: set[str] = set()
    stack = _named(graph)
    while stack:
        name = stack.pop()
        if name in seen or name in closed or name not in library:
            continue
        seen.add(name)
        if library.is_open(name):
            stack.extend(names_in(library, name))
            continue
        body = _without_calls(library, library[name], callee)
        if body is not library[name]:
            made.append(body)
        stack.extend(_named(body.graph))
    return made


def _named(graph: Graph) -> list[str]:
    """What may be names of functions, the last ones first."""
    return [name for node in graph.nodes.values() for name in (node.op, *function_names(node.attrs))][::-1]


def _without_calls(library: Library[Graph], function: Function[Graph], callee: Callee) -> Function[Graph]:
    waited_for = (Edge(node) for node in function.controls.values())
    body = function.graph.with_(outputs=(*function.graph.outputs, *waited_for), library=library)
    outcome = inline_calls(body, callee)
    if not outcome.changes:
        return function
    made = outcome.graph.with_(outputs=outcome.graph.outputs[: len(function.results)], library=Library())
    return replace(function, graph=made)
