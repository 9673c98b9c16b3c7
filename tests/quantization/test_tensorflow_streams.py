import numpy as np
import pytest

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Range, Ranges, Scheme, annotate
from quantkit.quantization.targets.tensorflow import convert
from quantkit.quantization.targets.tensorflow.streams import in_streams
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


def stem() -> Graph:
    """Two convolutions and a pool before the first branch."""
    generator = np.random.default_rng(0)
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 64, 60, 3))})]
    read, channels = "x", 3
    for name, padding, stride in (
        ("one", b"VALID", 2),
        ("two", b"SAME", 1),
        ("left", b"SAME", 1),
        ("right", b"SAME", 1),
    ):
        weights = generator.normal(0, 0.2, (3, 3, channels, 8)).astype(np.float32)
        window: dict[str, Attr] = {"strides": (1, stride, stride, 1), "padding": padding, "T": DType.FLOAT}
        nodes += [
            constant(f"{name}/w", weights),
            Node(f"{name}/layer", "Conv2D", (Edge(read), Edge(f"{name}/w")), attrs=window),
            Node(name, "Relu", (Edge(f"{name}/layer"),), attrs={"T": DType.FLOAT}),
        ]
        if name == "two":
            pool: dict[str, Attr] = {
                "ksize": (1, 3, 3, 1),
                "strides": (1, 2, 2, 1),
                "padding": b"VALID",
                "T": DType.FLOAT,
            }
            nodes.append(Node("pool", "MaxPool", (Edge("two"),), attrs={**pool, "T": DType.FLOAT}))
        read, channels = "pool" if name != "one" else "one", 8
    nodes += [constant("axis", np.int32(3))]
    joined: dict[str, Attr] = {"N": 2, "T": DType.FLOAT, "Tidx": DType.INT32}
    nodes.append(Node("join", "ConcatV2", (Edge("left"), Edge("right"), Edge("axis")), attrs=joined))
    return Graph.of(nodes, ["x"], ["join"])


def test_the_longest_way_goes_first_and_the_short_branch_runs_beside_it() -> None:
    costs = {"start": 1.0, "short": 1.0, "long": 1.0, "longer": 2.0, "end": 1.0}
    assert all(not node.controls for node in in_streams(diamond(), costs).nodes.values())
    alone = in_streams(diamond(), costs, count=1)
    assert [name for name in alone.order if name in costs] == ["start", "long", "longer", "short", "end"]


def test_free_nodes_wait_for_nobody() -> None:
    made = in_streams(diamond(), {"short": 1.0, "longer": 5.0}, count=1)
    assert made["short"].controls == ("longer",)
    assert not made["long"].controls


@pytest.mark.engine
@pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)
def test_halves_and_streams_change_no_code() -> None:
    graph = stem()
    plan = annotate(graph, Scheme.for_target("tensorflow", keep_float=("ConcatV2",)))
    ranges = Ranges({edge: Range(-1.0 if edge == Edge("x") else 0.0, 2.0) for edge in plan.activations})
    plain, arranged = (convert(graph, plan, ranges, streams=streams) for streams in (False, True))
    assert arranged.op_counts["Slice"] == 2
    assert "Slice" not in plain.op_counts
    feeds = {"x": np.random.default_rng(1).uniform(-1, 1, (1, 64, 60, 3)).astype(np.float32)}
    with RUNTIME.open(plain) as one, RUNTIME.open(arranged) as other:
        np.testing.assert_array_equal(one.run(feeds)["join"], other.run(feeds)["join"])


def tower() -> Graph:
    """Two layers one after the other, large enough that a second thread should take half of each."""
    generator = np.random.default_rng(0)
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 24, 24, 128))})]
    window: dict[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"SAME", "T": DType.FLOAT}
    read = "x"
    for name in ("one", "two", "end"):
        nodes += [
            constant(f"{name}/w", generator.normal(0, 0.2, (3, 3, 128, 128)).astype(np.float32)),
            Node(f"{name}/layer", "Conv2D", (Edge(read), Edge(f"{name}/w")), attrs=window),
            Node(name, "Relu", (Edge(f"{name}/layer"),), attrs={"T": DType.FLOAT}),
        ]
        read = name
    return Graph.of(nodes, ["x"], ["one", "end"])  # two outputs: the first layer is read twice


@pytest.mark.engine
@pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)
def test_halves_of_channels_change_no_code() -> None:
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
    with RUNTIME.open(plain) as one, RUNTIME.open(arranged) as other:
        for name, values in one.run(feeds).items():
            np.testing.assert_array_equal(values, other.run(feeds)[name])
