"""Rewrite the body of a function with transforms for graphs.

The body becomes a graph whose inputs are Placeholders for the arguments. Its outputs are one
``_Retval`` node per result, and one NoOp per control output (a node that runs with every call). So the
producer of a result is an inner node, which a transform may replace.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType, Shape
from quantkit.transforms._names import FreeNames
from quantkit.transforms.functions._call_sites import reachable_functions
from quantkit.transforms.functions._effects import Effects

RESULT, CONTROL_OUTPUT = "_Retval", "NoOp"

Rewrite = Callable[[Graph], Outcome]


@dataclass(frozen=True)
class BodyGraph:
    """Body of a function as a graph.

    Attributes:
        function: original function.
        graph: body with Placeholders for arguments and nodes for results and control outputs.
        results: node of each result.
        controls: node of each control output, by the name of the control output.
    """

    function: Function[Graph]
    graph: Graph
    results: tuple[str, ...]
    controls: dict[str, str]

    @classmethod
    def of(cls, function: Function[Graph], library: Library[Graph], effects: Effects) -> "BodyGraph":
        """Convert a function; nodes with side effects that no output needs become outputs too."""
        names = FreeNames(function.graph)
        body = function.graph
        arguments = {edge.node: _placeholder(body[edge.node]) for edge in body.inputs}
        nodes = [arguments.get(name, node) for name, node in body.nodes.items()]
        results = [
            Node(names.free(name), RESULT, (edge,), (), {**({"T": dtype} if dtype else {}), "index": index})
            for index, ((name, dtype), edge) in enumerate(zip(function.results.items(), body.outputs, strict=True))
        ]
        controls = {
            name: Node(names.free(name), CONTROL_OUTPUT, (), (node,)) for name, node in function.controls.items()
        }
        outputs = (*results, *controls.values())
        graph = Graph.of([*nodes, *outputs], body.inputs, [Edge(node.name) for node in outputs], library=library)
        needed = graph.reachable(stop_at_inputs=False)
        unused_effects = [Edge(node.name) for node in nodes if node.name not in needed and effects.has_effect(node)]
        return cls(
            function,
            graph.with_(outputs=(*graph.outputs, *unused_effects)),
            tuple(node.name for node in results),
            {name: node.name for name, node in controls.items()},
        )

    def to_function(self, graph: Graph) -> Function[Graph]:
        """Return the function with a rewritten body graph."""
        output_names = {*self.results, *self.controls.values()}
        nodes = {name: node for name, node in graph.nodes.items() if name not in output_names}
        nodes |= {edge.node: self.function.graph[edge.node] for edge in self.function.graph.inputs}
        names = FreeNames(graph)
        edges: list[Edge] = []
        for name, old in zip(self.results, self.function.graph.outputs, strict=True):
            result = graph[name]
            edge = result.inputs[0]
            if result.controls:
                attrs = {"T": result.attrs["T"]} if "T" in result.attrs else {}
                base = old.node if old.node not in graph else f"{name}/waits"
                node = Node(names.free(base), "Identity", (edge,), result.controls, attrs)
                nodes[node.name] = node
                edge = Edge(node.name)
            edges.append(edge)
        controls: dict[str, str] = {}
        for control_output, name in self.controls.items():
            barrier = graph[name]
            if len(barrier.controls) > 1:
                nodes[name] = barrier
            if barrier.controls:
                controls[control_output] = name if len(barrier.controls) > 1 else barrier.controls[0]
        body = replace(self.function.graph, nodes=nodes, outputs=tuple(edges))
        return replace(self.function, graph=body, controls=controls)


def _placeholder(argument: Node) -> Node:
    """Return a Placeholder for an argument, with its declared shape."""
    attrs: dict[str, Attr] = {}
    if isinstance(dtype := argument.attrs.get("T"), DType):
        attrs["dtype"] = dtype
    shapes = argument.attrs.get("_output_shapes")
    if isinstance(shapes, tuple) and len(shapes) == 1 and isinstance(shapes[0], Shape):
        attrs["shape"] = shapes[0]
    return Node(argument.name, "Placeholder", attrs=attrs)


def rewrite_function(
    function: Function[Graph], library: Library[Graph], effects: Effects, rewrite: Rewrite
) -> tuple[Function[Graph], Outcome]:
    """Rewrite the body of a function.

    Args:
        function: function to rewrite.
        library: functions that the body may call.
        effects: side effects of the library.
        rewrite: transform that keeps the inputs and outputs of a graph.

    Returns:
        The new function (the same object if the body is unchanged), and the outcome with changes and
        skips that name the function.
    """
    body = BodyGraph.of(function, library, effects)
    outcome = rewrite(body.graph)
    rewritten = body.to_function(outcome.graph)
    output_names = {*body.results, *body.controls.values()}
    skips = tuple(
        Skip(skip.reason, f"{function.name}: {skip.node}") for skip in outcome.skips if skip.node not in output_names
    )
    if rewritten == function:
        return function, Outcome(function.graph, (), skips)
    return rewritten, Outcome(rewritten.graph, tuple(f"{function.name}: {change}" for change in outcome.changes), skips)


def rewrite_functions(graph: Graph, rewrite: Rewrite) -> Outcome:
    """Rewrite the bodies of all functions of a graph; functions that cannot be loaded stay unchanged."""
    if not graph.library:
        return Outcome(graph)
    effects = Effects(graph.library)
    rewritten: list[Function[Graph]] = []
    changes: list[str] = []
    skips: list[Skip] = []
    for function in reachable_functions(graph).values():
        after, outcome = rewrite_function(function, graph.library, effects, rewrite)
        rewritten.extend([after] if after is not function else [])
        changes.extend(outcome.changes)
        skips.extend(outcome.skips)
    after_graph = graph.with_(library=graph.library.with_(*rewritten)) if rewritten else graph
    return Outcome(after_graph, tuple(changes), tuple(skips))
