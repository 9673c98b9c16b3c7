"""Hypothesis strategies for graphs with function calls."""

import numpy as np
from hypothesis import strategies as st
from rewritten_graphs import placeholder

from quantkit.ir.functions import Function, FunctionName, Library
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType

FLOAT: dict[str, Attr] = {"T": DType.FLOAT}


def call(name: str, function: str, *inputs: str, outputs: int = 1, controls: tuple[str, ...] = ()) -> Node:
    attrs: dict[str, Attr] = {"f": FunctionName(function)}
    attrs |= {"Tin": (DType.FLOAT,) * len(inputs), "Tout": (DType.FLOAT,) * outputs}
    return Node(name, "PartitionedCall", tuple(map(Edge.parse, inputs)), controls, attrs)


def argument(name: str, index: int) -> Node:
    return Node(name, "_Arg", attrs={"T": DType.FLOAT, "index": index})


@st.composite
def functions(draw: st.DrawFn, name: str, callable_names: list[str]) -> Function[Graph]:
    """Generate a function of two arguments and two results that may call earlier functions."""
    nodes = [argument("a", 0), argument("b", 1), constant("one", np.float32(1))]
    edges = ["a", "b", "one"]
    for number in range(draw(st.integers(0, 4))):
        first, second = draw(st.sampled_from(edges)), draw(st.sampled_from(edges))
        kinds = ["AddV2", "Mul", "Neg", *(["call"] if callable_names else [])]
        kind = draw(st.sampled_from(kinds))
        controls = draw(st.lists(st.sampled_from([node.name for node in nodes]), max_size=1))
        if kind == "call":
            nodes.append(call(f"n{number}", draw(st.sampled_from(callable_names)), first, second, outputs=2))
            edges.append(f"n{number}:1")
        else:
            inputs = (first, second)[: 1 if kind == "Neg" else 2]
            nodes.append(Node(f"n{number}", kind, tuple(map(Edge.parse, inputs)), attrs=FLOAT))
        producers = {edge.node for edge in nodes[-1].inputs}
        nodes[-1] = nodes[-1].with_(controls=tuple(name for name in controls if name not in producers))
        edges.append(f"n{number}")
    results = [draw(st.sampled_from(edges)), draw(st.sampled_from(edges))]
    must_run = draw(st.lists(st.sampled_from([node.name for node in nodes[2:]]), max_size=2, unique=True))
    body = Graph.of(nodes, ["a", "b"], results)
    return Function(name, body, {"p": DType.FLOAT, "q": DType.FLOAT}, {f"c{node}": node for node in must_run})


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Generate graphs with nested calls, control dependencies and several outputs."""
    library: list[Function[Graph]] = []
    for number in range(draw(st.integers(1, 3))):
        library.append(draw(functions(f"f{number}", [function.name for function in library])))
    nodes = [placeholder((3,)), placeholder((3,), "y")]
    edges = ["x", "y"]
    for number in range(draw(st.integers(1, 5))):
        first, second = draw(st.sampled_from(edges)), draw(st.sampled_from(edges))
        controls = draw(st.lists(st.sampled_from([node.name for node in nodes]), max_size=1))
        if draw(st.booleans()):
            nodes.append(call(f"c{number}", draw(st.sampled_from(library)).name, first, second, outputs=2))
            edges.append(f"c{number}:1")
        else:
            nodes.append(Node(f"c{number}", "AddV2", (Edge.parse(first), Edge.parse(second)), attrs=FLOAT))
        producers = {edge.node for edge in nodes[-1].inputs}
        nodes[-1] = nodes[-1].with_(controls=tuple(name for name in controls if name not in producers))
        edges.append(f"c{number}")
    outputs = draw(st.lists(st.sampled_from(edges), min_size=1, max_size=3, unique=True))
    return Graph.of(nodes, ["x", "y"], outputs, library=Library({function.name: function for function in library}))


def find_effects(graph: Graph, name: str) -> set[str]:
    """Return the CheckNumerics nodes that are upstream of a node, or the node itself."""
    upstream = graph.with_(outputs=(Edge(name),)).reachable(stop_at_inputs=False)
    return {node for node in upstream if graph[node].op == "CheckNumerics"}
