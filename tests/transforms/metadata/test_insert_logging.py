"""Tests of insert_logging."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, placeholder

from quantkit.formats import graphdef
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType
from quantkit.transforms.metadata.insert_logging import insert_logging

FLOAT: dict[str, Attr] = {"T": DType.FLOAT}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Generate graphs of small ops, some with two outputs, with and without consumers."""
    nodes = [placeholder((4,)), constant("axis", np.int32(0))]
    edges = ["x"]
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["Neg", "AddV2", "Split"]))
        operands = [Edge.parse(draw(st.sampled_from(edges))) for _ in range(2)]
        if kind == "Split":
            node = Node(f"n{number}", kind, (Edge("axis"), Edge("x")), attrs={**FLOAT, "num_split": 2})
            edges += [f"n{number}:1", f"n{number}"]
        else:
            node = Node(f"n{number}", kind, tuple(operands[: 1 if kind == "Neg" else 2]), attrs=FLOAT)
            edges.append(f"n{number}")
        nodes.append(node)
    # The sizes of operands of AddV2 may differ.
    valid = [node for node in nodes if node.op != "AddV2"]
    outputs = draw(st.lists(st.sampled_from([node.name for node in valid]), min_size=1, unique=True))
    return Graph.of(valid, ["x"], outputs)


def is_complete(graph: Graph) -> bool:
    return all(edge.node in graph for node in graph.nodes.values() for edge in node.inputs)


@given(graphs().filter(is_complete))
def test_outputs_stay(graph: Graph) -> None:
    check_exact_transform(insert_logging, graph)


@given(graphs().filter(is_complete))
def test_each_print_logs_used_outputs_of_its_node(graph: Graph) -> None:
    after = insert_logging(graph)
    for node in after.nodes.values():
        if node.op == "Print":
            used = {edge for edge in graph.uses if edge.node == node.name.removesuffix("__print__")}
            assert set(node.inputs[1:]) == used
            assert node.attrs["U"] == (DType.FLOAT if node.name[0] != "a" else DType.INT32,) * len(used)


def test_tensorflow_prints_message_and_values(capfd: pytest.CaptureFixture[str]) -> None:
    tf = pytest.importorskip("tensorflow")
    split = Node("split", "Split", (Edge("axis"), Edge("x")), attrs={**FLOAT, "num_split": 3})
    total = Node("y", "AddV2", (Edge("split", 1), Edge("split", 2)), attrs=FLOAT)
    graph = Graph.of([placeholder((3,)), constant("axis", np.int32(0)), split, total], ["x"], ["y"])
    after = insert_logging(graph, op=("Split",), show_name=True, show_op=True, message="here:")
    graph_def = tf.compat.v1.GraphDef.FromString(graphdef.encode(after))
    with tf.Graph().as_default() as target:
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session(graph=target) as session:
            capfd.readouterr()
            assert session.run("y:0", {"x:0": [1, 2, 3]}).tolist() == [5]
    assert ";Split;;split__print__;here:[2][3]" in capfd.readouterr().err


def test_transform_runs_in_linear_time() -> None:
    def chain(length: int) -> Graph:
        nodes = [placeholder((2,))]
        nodes += [Node(f"n{i}", "Neg", (Edge(f"n{i - 1}" if i else "x"),), attrs=FLOAT) for i in range(length)]
        return Graph.of(nodes, ["x"], [nodes[-1].name])

    assert insert_logging(chain(3), op=("Neg",)).op_counts["Print"] == 2
    check_linear_work(insert_logging, chain)
