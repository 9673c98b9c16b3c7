import numpy as np
import pytest

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Range, Ranges, Scheme, annotate
from quantkit.quantization.targets.tensorflow import convert
from quantkit.quantization.targets.tensorflow.streams import add_streams, schedule_for_two_threads
from quantkit.runtimes.tensorflow import RUNTIME


def diamond() -> Graph:
    """A short and a long branch."""
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT}),
            Node("start", "Relu", (Edge("x"),)),
            Node("short", "Relu", (Edge("start"),)),
            Node("long", "Relu", (Edge("start"),)),
            Node("longer", "Relu", (Edge("long"),)),
            Node("end", "AddN", (Edge("short"), Edge("longer"))),
        ],
        ["x"],
        ["end"],
    )


def test_the_longest_branch_starts_first() -> None:
    costs = {"start": 1.0, "short": 1.0, "long": 1.0, "longer": 2.0, "end": 1.0}
    assert all(not node.controls for node in add_streams(diamond(), costs).nodes.values())
    single = add_streams(diamond(), costs, count=1)
    assert [name for name in single.order if name in costs] == ["start", "long", "longer", "short", "end"]


def test_outputs_keep_no_consumers() -> None:
    nodes = [*diamond().nodes.values(), Node("first", "Relu", (Edge("start"),)), Node("last", "Relu", (Edge("end"),))]
    graph = Graph.of(nodes, ["x"], ["first", "short", "last"])
    ordered = add_streams(
        graph, dict.fromkeys(("start", "short", "first", "long", "longer", "end", "last"), 1.0), count=1
    )
    assert not ordered.node_uses.get("first")
    assert ordered["first"].controls == ordered["last"].controls == ("end",)


def test_free_nodes_get_no_control_dependencies() -> None:
    ordered = add_streams(diamond(), {"short": 1.0, "longer": 5.0}, count=1)
    assert ordered["short"].controls == ("longer",)
    assert not ordered["long"].controls


def test_sizes_are_in_no_stream() -> None:
    nodes = [
        Node("n", "Placeholder", attrs={"dtype": DType.INT32, "shape": Shape((1,))}),
        constant("axis", np.int32(0)),
        *(
            Node(name, "ConcatV2", (Edge("n"), Edge("n"), Edge("axis")), attrs={"T": DType.INT32, "N": 2})
            for name in ("first", "second", "third")
        ),
    ]
    ordered = schedule_for_two_threads(Graph.of(nodes, ["n"], ["first", "second", "third"]), {})
    assert not any(node.controls for node in ordered.nodes.values())


def tower() -> Graph:
    """Two consecutive layers that are large enough to be split."""
    generator = np.random.default_rng(0)
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 24, 24, 128))})]
    window: dict[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"SAME", "T": DType.FLOAT}
    source = "x"
    for name in ("one", "two", "end"):
        nodes += [
            constant(f"{name}/w", generator.normal(0, 0.2, (3, 3, 128, 128)).astype(np.float32)),
            Node(f"{name}/layer", "Conv2D", (Edge(source), Edge(f"{name}/w")), attrs=window),
            Node(name, "Relu", (Edge(f"{name}/layer"),), attrs={"T": DType.FLOAT}),
        ]
        source = name
    return Graph.of(nodes, ["x"], ["one", "end"])  # two outputs: the first layer has two consumers


@pytest.mark.engine
@pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)
def test_halves_of_channels_keep_the_outputs() -> None:
    graph = tower()
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    ranges = Ranges({edge: Range(-1.0 if edge == Edge("x") else 0.0, 2.0) for edge in plan.activations})
    plain, arranged = (convert(graph, plan, ranges, streams=streams) for streams in (False, True))
    halves = [name for name in arranged.nodes if name.endswith(("/low", "/high"))]
    assert len(halves) >= 4
    assert not [name for name in plain.nodes if name.endswith(("/low", "/high"))]
    weights = sum(node.value.num_bytes for node in arranged.nodes.values() if node.is_constant)
    assert weights < 1.1 * sum(node.value.num_bytes for node in plain.nodes.values() if node.is_constant)
    feeds = {"x": np.random.default_rng(1).uniform(-1, 1, (1, 24, 24, 128)).astype(np.float32)}
    with RUNTIME.open(plain) as first, RUNTIME.open(arranged) as second:
        for name, values in first.run(feeds).items():
            np.testing.assert_array_equal(values, second.run(feeds)[name])
