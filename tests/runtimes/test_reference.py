"""Tests of the NumPy runtime that are not in tests/conformance."""

import weakref
from typing import Any

import numpy as np
import pytest

from quantkit.errors import GraphError, UnavailableError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.runtimes import reference
from quantkit.runtimes.reference import RUNTIME
from quantkit.runtimes.session import SessionOptions

FLOAT = {"T": DType.FLOAT}


def placeholder(name: str, *dims: int | None) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(dims)})


def node(name: str, op: str, *inputs: str, controls: tuple[str, ...] = (), **attrs: Any) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), controls, {**FLOAT, **attrs})


CHAIN = Graph.of(
    [
        placeholder("x", None, 2),
        constant("two", np.float32(2)),
        node("double", "Mul", "x", "two"),
        node("shifted", "Add", "double", "two"),
        node("y", "Relu", "shifted"),
    ],
    ["x"],
    ["y"],
)
X = np.ones((1, 2), np.float32)


def test_graph_runs() -> None:
    with RUNTIME.open(CHAIN) as session:
        assert session.inputs[0].shape == Shape((None, 2))
        np.testing.assert_array_equal(session.run({"x": X})["y"], [[4, 4]])


def test_any_edge_can_be_an_input_or_output() -> None:
    graph = CHAIN.with_endpoints(["double"], ["y", "double", "two"])
    with RUNTIME.open(graph) as session:
        outputs = session.run({"double": -3 * X})
    assert {name: array.tolist() for name, array in outputs.items()} == {"y": [[0, 0]], "double": [[-3, -3]], "two": 2}


def test_one_output_of_a_node_can_be_an_input_while_another_is_computed() -> None:
    graph = Graph.of(
        [
            placeholder("x", 4),
            constant("axis", np.int32(0)),
            node("split", "Split", "axis", "x", num_split=2),
            node("y", "Sub", "split:1", "split"),
        ],
        ["x", "split:1"],
        ["y"],
    )
    with RUNTIME.open(graph) as session:
        feeds = {"x": np.arange(4, dtype=np.float32), "split:1": np.array([10, 20], np.float32)}
        np.testing.assert_array_equal(session.run(feeds)["y"], [10, 19])


def test_arrays_are_freed_after_their_last_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: dict[str, int] = {}
    results: dict[str, weakref.ref[Any]] = {}

    def record(step: Node, inputs: list[Any], max_bytes: int) -> tuple[Any, ...]:
        alive[step.name] = sum(ref() is not None for ref in results.values())
        outputs = tuple(np.array(inputs[0]) for _ in range(1))
        results[step.name] = weakref.ref(outputs[0])
        return outputs

    names = [f"n{i}" for i in range(6)]
    chain = [node(name, "Relu", before) for before, name in zip(["x", *names], names, strict=False)]
    monkeypatch.setattr(reference, "evaluate", record)
    session = RUNTIME.open(Graph.of([placeholder("x", 2), *chain], ["x"], [names[-1]]))
    session.run({"x": np.ones(2, np.float32)})
    assert max(alive.values()) == 1


def test_defaults_checks_and_control_dependencies_run() -> None:
    graph = Graph.of(
        [
            constant("default", np.array([1, np.nan], np.float32)),
            Node("x", "PlaceholderWithDefault", (Edge("default"),), attrs={"dtype": DType.FLOAT, "shape": Shape((2,))}),
            node("check", "CheckNumerics", "x", message=b"x is bad"),
            node("y", "Identity", "x", controls=("check",)),
        ],
        [],
        ["y"],
    )
    with pytest.raises(GraphError, match=r"'check' \(CheckNumerics\).*x is bad : Tensor had NaN"):
        RUNTIME.open(graph).run({})
    with_input = graph.with_endpoints(["x"], None)
    np.testing.assert_array_equal(RUNTIME.open(with_input).run({"x": np.array([3, 4], np.float32)})["y"], [3, 4])


def test_missing_kernels_are_named_when_opening() -> None:
    graph = Graph.of(
        [placeholder("x", 2), node("a", "Fft", "x"), node("b", "Wavelet", "a"), node("c", "Relu", "b")], ["x"], ["c"]
    )
    with pytest.raises(UnavailableError, match=r"'a': the NumPy runtime has no kernel for Fft, nor for Wavelet"):
        RUNTIME.open(graph)
    downstream = graph.with_endpoints([Edge("b")], None).with_nodes(
        step.with_(op="Neg") if step.name == "b" else step for step in graph.nodes.values()
    )
    np.testing.assert_array_equal(RUNTIME.open(downstream).run({"b": np.array([1, -1], np.float32)})["c"], [1, 0])


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (CHAIN.with_(inputs=()), GraphError, "placeholder 'x' is required and is not an input"),
        (
            CHAIN.with_(outputs=(Edge("z"),)),
            GraphError,
            "node 'z', an input of a node or an output of the graph, is not in the graph",
        ),
        (CHAIN.with_(outputs=(Edge("y", 1),)), GraphError, "'y:1' is not a tensor: node 'y'.*has 1 outputs"),
        (CHAIN.with_(dialect="other"), UnavailableError, "not other graphs"),
    ],
)
def test_graph_that_cannot_run_is_rejected(graph: Graph, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RUNTIME.open(graph)


def test_other_devices_and_precisions_are_rejected() -> None:
    for options in (SessionOptions(device="gpu"), SessionOptions(precision="bfloat16")):
        with pytest.raises(UnavailableError):
            RUNTIME.open(CHAIN, options)


def test_strings_pass_through() -> None:
    graph = Graph.of(
        [
            Node("text", "Placeholder", attrs={"dtype": DType.STRING, "shape": Shape((2,))}),
            Node("same", "Equal", (Edge("text"), Edge("text")), attrs={"T": DType.STRING}),
            Node("y", "Identity", (Edge("text"),), attrs={"T": DType.STRING}),
        ],
        ["text"],
        ["y", "same"],
    )
    outputs = RUNTIME.open(graph).run({"text": np.array([b"a", b"b"])})
    assert outputs["y"].tolist() == [b"a", b"b"]
    assert outputs["same"].tolist() == [True, True]


def test_functions_run_where_they_are_called() -> None:
    graph = from_text("""
        inputs: x
        outputs: y:1, z
        x = Placeholder[2]()
        y = PartitionedCall(x, Tin=[float], Tout=[float, float], f=&outer)
        z = Neg(y, T=float)
        function outer(first = inner, second = one)
        a = _Arg(T=float, index=0)
        one = Const([1.0, 2.0])
        inner = StatefulPartitionedCall(a, one, Tin=[float, float], Tout=[float], f=&product)
        end
        function product(out = product, ^check = check)
        a = _Arg(T=float, index=0)
        b = _Arg(T=float, index=1)
        product = Mul(a, b, T=float)
        check = CheckNumerics(a, T=float, message=bad)
        end
    """)
    outputs = RUNTIME.open(graph).run({"x": np.array([3, 4], np.float32)})
    assert {name: values.tolist() for name, values in outputs.items()} == {"y:1": [1, 2], "z": [-3, -8]}
    with pytest.raises(GraphError, match="bad"):
        RUNTIME.open(graph).run({"x": np.array([np.nan, 4], np.float32)})


def test_missing_or_recursive_function_is_rejected_on_opening() -> None:
    call = "n = PartitionedCall(x, Tin=[float], Tout=[float], f=&again)"
    endless = f"function again(out = n)\nx = _Arg(T=float, index=0)\n{call}\nend"
    with pytest.raises(GraphError, match="'again', which is not in the library"):
        RUNTIME.open(from_text(f"inputs: x\noutputs: n\nx = Placeholder[2]()\n{call}"))
    with pytest.raises(UnavailableError, match="recursive functions"):
        RUNTIME.open(from_text(f"inputs: x\noutputs: n\nx = Placeholder[2]()\n{call}\n{endless}"))
