"""Graphs in 8 bits for LiteRT: which ops the file has, and numbers near the float graph's."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization import Range, Ranges, Scheme, annotate, calibrate, convert
from quantkit.quantization.targets.litert import FAKE_QUANT
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.session import SessionOptions

ENGINES = [find_runtime(name) for name in ("tensorflow", "litert")]
engine = pytest.mark.skipif(
    not all(one.available().ok for one in ENGINES), reason=" ".join(one.available().detail for one in ENGINES)
)
FLOAT = DType.FLOAT
SCHEME = Scheme.for_target("litert")
SIZE = 9


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUANTKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT, **attrs})


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(0, 0.3, shape).astype(np.float32)


def layer(name: str, source: str, kernel: tuple[int, ...], op: str = "Conv2D", activation: str = "") -> list[Node]:
    nodes = [
        constant(f"{name}/w", random(*kernel)),
        constant(f"{name}/b", random(kernel[2] if op != "Conv2D" else kernel[3])),
        node(f"{name}/conv", op, source, f"{name}/w", strides=(1, 1, 1, 1), padding=b"SAME"),
        node(f"{name}/sum" if activation else name, "BiasAdd", f"{name}/conv", f"{name}/b"),
    ]
    return [*nodes, node(name, activation, f"{name}/sum")] if activation else nodes


def average(name: str, source: str, size: int, stride: int, padding: bytes) -> Node:
    return node(name, "AvgPool", source, ksize=(1, size, size, 1), strides=(1, stride, stride, 1), padding=padding)


def network() -> Graph:
    """What convolutional networks are made of: joined branches, pools, a depthwise layer, a residual, a classifier."""
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, SIZE, SIZE, 3))}),
            *layer("first", "x", (3, 3, 3, 8), activation="Relu"),
            *layer("left", "first", (1, 1, 8, 8)),
            average("average", "left", 3, 1, b"SAME"),
            node("clamped", "Relu", "average"),
            *layer("right", "first", (3, 3, 8, 1), "DepthwiseConv2dNative", "Relu6"),
            constant("axis", np.int32(3)),
            Node("join", "ConcatV2", (Edge("clamped"), Edge("right"), Edge("axis"))).with_attrs(
                T=FLOAT, N=2, Tidx=DType.INT32
            ),
            *layer("narrow", "join", (1, 1, 16, 8)),
            node("residual", "AddV2", "narrow", "first"),
            *layer("last", "residual", (1, 1, 8, 8), activation="Relu"),
            average("mean", "last", SIZE, 1, b"VALID"),
            constant("flat", np.int32([1, 8])),
            Node("reshaped", "Reshape", (Edge("mean"), Edge("flat")), attrs={"T": FLOAT, "Tshape": DType.INT32}),
            constant("w", random(8, 5)),
            node("logits", "MatMul", "reshaped", "w"),
            node("softmax", "Softmax", "logits"),
        ],
        ["x"],
        ["softmax"],
    )


DATA = np.random.default_rng(1).uniform(-1, 1, (24, SIZE, SIZE, 3)).astype(np.float32)


def answers(model: Graph | Path, runtime: str) -> np.ndarray:
    with open_session(model, runtime) as session:
        (name,) = (info.name for info in session.outputs)
        return np.concatenate([session.run({"x": one[None]})[name] for one in DATA])


def converted(graph: Graph, **changes: Any) -> Graph:
    scheme = SCHEME.with_(observer="min_max", **changes)
    plan = annotate(graph, scheme)
    return convert(graph, plan, calibrate(graph, plan, [DATA], runtime="reference"))


def litert_ops(graph: Graph) -> Counter[str]:
    with open_session(graph, "litert", SessionOptions(log_placement=True)) as session:
        return Counter(line.partition("(")[2].partition(")")[0] for line in session.placement)


def test_ranges_stand_under_the_edges_names() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    made = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(0.5, 3.0))))
    assert made.inputs == graph.inputs
    assert made.outputs == graph.outputs
    assert made["first"].op == FAKE_QUANT
    assert made["first/exact"].op == "Relu"
    assert made["x"].op == "Placeholder"
    assert made["first/conv"].inputs[0] == Edge("x/0/codes")
    ends = [made.constant_of(edge) for edge in made["first"].inputs[1:]]
    assert [end.array.item() for end in ends if end] == [0.0, 3.0]


def test_what_is_joined_begins_at_zero_where_relus_made_it() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    made = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-1.0, 3.0))))
    low = {name: made.constant_of(made[name].inputs[1]) for name in ("clamped", "join", "right", "left")}
    assert {name: value.array.item() for name, value in low.items() if value} == {
        "clamped": 0.0,
        "join": 0.0,
        "right": 0.0,
        "left": -1.0,
    }


def test_a_dead_range_gets_some_width() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    made = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(0.0, 0.0))))
    ends = [made.constant_of(edge) for edge in made["first"].inputs[1:]]
    assert [end.array.item() for end in ends if end] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("pool", "op"),
    [
        (average("pool", "first", 3, 1, b"SAME"), "Mul"),
        (average("pool", "first", 3, 2, b"SAME"), "Mul"),
        (average("pool", "first", 2, 2, b"VALID"), "DepthwiseConv2dNative"),
        (average("pool", "first", SIZE, 1, b"VALID"), "Mean"),
        (average("pool", "first", 7, 1, b"SAME"), "AvgPool"),
    ],
)
def test_averages_are_computed_another_way(pool: Node, op: str) -> None:
    start = network().with_endpoints(None, ["first"])
    nodes = [node for node in start.nodes.values() if node.name in start.reachable()]
    graph = Graph.of([*nodes, pool, *layer("y", "pool", (1, 1, 8, 2))], ["x"], ["y"])
    plan = annotate(graph, SCHEME)
    made = convert(graph, plan, Ranges(dict.fromkeys(plan.activations, Range(-64.0, 64.0))))
    assert made["pool/exact"].op == op
    exact = made.with_nodes(  # without the rounding
        node.with_(op="Identity", inputs=node.inputs[:1], attrs={"T": FLOAT}) if node.op == FAKE_QUANT else node
        for node in made.nodes.values()
    )
    np.testing.assert_allclose(answers(exact, "reference"), answers(graph, "reference"), rtol=1e-5, atol=1e-5)


@engine
@pytest.mark.engine
def test_all_but_the_softmax_computes_on_codes() -> None:
    ops = litert_ops(converted(network()))
    assert ops["QUANTIZE"] == ops["DEQUANTIZE"] == 1
    assert ops["CONV_2D"] == 4
    assert ops["DEPTHWISE_CONV_2D"] == 2
    assert ops["AVERAGE_POOL_2D"] == 0


@engine
@pytest.mark.engine
def test_the_file_computes_what_its_graph_says() -> None:
    graph = network()
    made = converted(graph)
    exact, simulated, found = answers(graph, "reference"), answers(made, "tensorflow"), answers(made, "litert")
    np.testing.assert_allclose(simulated, exact, atol=0.05)
    np.testing.assert_allclose(found, simulated, atol=0.03)
    assert (found.argmax(1) == exact.argmax(1)).mean() > 0.9


@engine
@pytest.mark.engine
def test_a_layer_that_is_kept_float_is_float() -> None:
    graph = network()
    made = converted(graph, keep_float=("last/conv",))
    ops = litert_ops(made)
    assert ops["QUANTIZE"] == 2
    assert ops["DEQUANTIZE"] == 2
    np.testing.assert_allclose(answers(made, "litert"), answers(graph, "reference"), atol=0.05)


@engine
@pytest.mark.engine
def test_a_graph_that_ends_with_a_layer_computes_it_on_codes() -> None:
    graph = network().with_endpoints(None, ["logits"])
    made = converted(graph)
    assert litert_ops(made)["DEQUANTIZE"] == 1
    assert made.outputs == graph.outputs
    exact = answers(graph, "reference")
    np.testing.assert_allclose(answers(made, "litert"), exact, atol=0.05 * np.abs(exact).max())
