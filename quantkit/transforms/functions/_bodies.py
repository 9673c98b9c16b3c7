"""The body of a function as a graph of its own, for transforms that know graphs only.

Its arguments are the inputs, and placeholders. Nodes ``_Retval`` that read the results, and one node for each wait that
the function promises, are the outputs: so what makes a result is a node like any other, and may change.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.transforms._names import FreeNames
from quantkit.transforms.functions._call_sites import needed_functions
from quantkit.transforms.functions._effects import Effects

RESULT, WAIT = "_Retval", "NoOp"

Clean = Callable[[Graph], Outcome]


@dataclass(frozen=True)
class Opened:
    """A body.

    Attributes:
        function: whose body it is.
        graph: the body with its outputs as nodes.
        results: the node that reads each result.
        waits: the node that waits for what the function promises to run, by the name of the promise.
    """

    function: Function[Graph]
    graph: Graph
    results: tuple[str, ...]
    waits: dict[str, str]

    @classmethod
    def of(cls, function: Function[Graph], library: Library[Graph], effects: Effects) -> "Opened":
        """Open a function; nodes that must run, but that nothing waits for, are outputs as well."""
        names = FreeNames(function.graph)
        body = function.graph
        arguments = {edge.node: _placeholder(body[edge.node]) for edge in body.inputs}
        nodes = [arguments.get(name, node) for name, node in body.nodes.items()]
        results = [
            Node(names.free(name), RESULT, (edge,), (), {**({"T": dtype} if dtype else {}), "index": place})
            for place, ((name, dtype), edge) in enumerate(zip(function.results.items(), body.outputs, strict=True))
        ]
        waits = {name: Node(names.free(name), WAIT, (), (node,)) for name, node in function.controls.items()}
        ends = (*results, *waits.values())
        graph = Graph.of([*nodes, *ends], body.inputs, [Edge(node.name) for node in ends], library=library)
        needed = graph.reachable(stop_at_inputs=False)
        alone = [Edge(node.name) for node in nodes if node.name not in needed and effects.must_run(node)]
        return cls(
            function,
            graph.with_(outputs=(*graph.outputs, *alone)),
            tuple(node.name for node in results),
            {name: node.name for name, node in waits.items()},
        )

    def closed(self, graph: Graph) -> Function[Graph]:
        """The function with another body."""
        ends = {*self.results, *self.waits.values()}
        nodes = {name: node for name, node in graph.nodes.items() if name not in ends}
        nodes |= {edge.node: self.function.graph[edge.node] for edge in self.function.graph.inputs}
        names = FreeNames(graph)
        edges: list[Edge] = []
        for name, old in zip(self.results, self.function.graph.outputs, strict=True):
            end = graph[name]
            edge = end.inputs[0]
            if end.controls:
                attrs = {"T": end.attrs["T"]} if "T" in end.attrs else {}
                wanted = old.node if old.node not in graph else f"{name}/waits"
                node = Node(names.free(wanted), "Identity", (edge,), end.controls, attrs)
                nodes[node.name] = node
                edge = Edge(node.name)
            edges.append(edge)
        controls: dict[str, str] = {}
        for promise, name in self.waits.items():
            end = graph[name]
            if len(end.controls) > 1:
                nodes[name] = end
            if end.controls:
                controls[promise] = name if len(end.controls) > 1 else end.controls[0]
        body = replace(self.function.graph, nodes=nodes, outputs=tuple(edges))
        return replace(self.function, graph=body, controls=controls)


def _placeholder(argument: Node) -> Node:
    """What stands for an argument, with the shape that the function says it has."""
    attrs: dict[str, Attr] = {}
    if isinstance(dtype := argument.attrs.get("T"), DType):
        attrs["dtype"] = dtype
    shapes = argument.attrs.get("_output_shapes")
    if isinstance(shapes, tuple) and len(shapes) == 1 and isinstance(shapes[0], Shape):
        attrs["shape"] = shapes[0]
    return Node(argument.name, "Placeholder", attrs=attrs)


def cleaned(
    function: Function[Graph], library: Library[Graph], effects: Effects, clean: Clean
) -> tuple[Function[Graph], Outcome]:
    """A function whose body was rewritten as a graph of its own, and what was done.

    Args:
        function: what to rewrite.
        library: what its body may call.
        effects: of the functions of the library.
        clean: rewrites a graph and keeps its inputs and outputs.
    """
    body = Opened.of(function, library, effects)
    outcome = clean(body.graph)
    made = body.closed(outcome.graph)
    ends = {*body.results, *body.waits.values()}
    skips = (skip for skip in outcome.skips if skip.node not in ends)
    declined = tuple(Skip(skip.reason, f"{function.name}: {skip.node}") for skip in skips)
    if made == function:
        return function, Outcome(function.graph, (), declined)
    return made, Outcome(made.graph, tuple(f"{function.name}: {change}" for change in outcome.changes), declined)


def rewrite_functions(graph: Graph, clean: Clean) -> Outcome:
    """The graph whose functions are rewritten, each as a graph of its own; those that can not be opened stay."""
    if not graph.library:
        return Outcome(graph)
    effects = Effects(graph.library)
    made: list[Function[Graph]] = []
    changes: list[str] = []
    skips: list[Skip] = []
    for function in needed_functions(graph).values():
        after, outcome = cleaned(function, graph.library, effects, clean)
        made.extend([after] if after is not function else [])
        changes.extend(outcome.changes)
        skips.extend(outcome.skips)
    return Outcome(graph.with_(library=graph.library.with_(*made)) if made else graph, tuple(changes), tuple(skips))
