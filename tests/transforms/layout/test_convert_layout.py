"""NCHW and NHWC in the reference runtime, which supports both, and in the other runtimes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, compute_outputs, placeholder

from quantkit.errors import RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.model import load
from quantkit.recipes import parse, run
from quantkit.runtimes import find_runtime, open_session
from quantkit.transforms.layout.convert_layout import convert_layout

FLOAT: dict[str, Attr] = {"T": DType.FLOAT}
WINDOW: dict[str, Attr] = {**FLOAT, "strides": (1, 1, 1, 1), "padding": b"SAME"}
Dims = tuple[int, ...]


class NetworkBuilder:
    """Random network on images in one layout; `dims` is (n, h, w, c) in both layouts."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.is_first = draw(st.booleans())
        dims = (2, draw(st.integers(4, 6)), draw(st.integers(4, 6)), 4)
        self.nodes = [placeholder(tuple(dims[axis] for axis in self.order))]
        self.images: list[tuple[str, Dims]] = [("x", dims)]
        self.others: list[str] = []

    @property
    def order(self) -> tuple[int, ...]:
        return (0, 3, 1, 2) if self.is_first else (0, 1, 2, 3)

    def layout(self, values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[axis] for axis in self.order)

    def constant(self, values: object) -> str:
        self.nodes.append(constant(f"c{len(self.nodes)}", values))
        return self.nodes[-1].name

    def put(self, op: str, *edges: str, **attrs: Attr) -> str:
        self.nodes.append(Node(f"n{len(self.nodes)}", op, tuple(map(Edge.parse, edges)), attrs={**FLOAT, **attrs}))
        return self.nodes[-1].name

    def step(self) -> None:
        name, dims = self.draw(st.sampled_from(self.images))
        kind = self.draw(st.sampled_from(KINDS))
        getattr(self, f"add_{kind}")(name, dims)

    def windows(self, size: int) -> dict[str, Attr]:
        strides = (1, self.draw(st.integers(1, 2)), self.draw(st.integers(1, 2)), 1)
        padding = self.draw(st.sampled_from([b"SAME", b"EXPLICIT"])) if size else b"SAME"
        attrs: dict[str, Attr] = {"data_format": b"NCHW" if self.is_first else b"NHWC", "strides": self.layout(strides)}
        if padding == b"EXPLICIT":
            pairs = [(0, 0), (1, 0), (2, 1), (0, 0)]
            attrs["explicit_paddings"] = tuple(width for axis in self.order for width in pairs[axis])
        return {**attrs, "padding": padding}

    def image(self, name: str) -> None:
        with_shape = Graph.of(self.nodes, ["x"], [name])
        shape = compute_outputs(with_shape)[name].shape
        self.images.append((name, tuple(shape[self.order.index(axis)] for axis in range(4))))

    def add_conv(self, name: str, dims: Dims) -> None:
        depth = self.draw(st.booleans())
        weights = self.constant(self.random.standard_normal((2, 3, dims[3], 1 if depth else 4)).astype(np.float32))
        self.image(self.put("DepthwiseConv2dNative" if depth else "Conv2D", name, weights, **self.windows(2)))

    def add_pool(self, name: str, dims: Dims) -> None:
        ksize = self.layout((1, 2, 3, 1))
        self.image(self.put(self.draw(st.sampled_from(["MaxPool", "AvgPool"])), name, ksize=ksize, **self.windows(0)))

    def add_bias(self, name: str, dims: Dims) -> None:
        bias = self.constant(self.random.standard_normal(dims[3]).astype(np.float32))
        self.image(self.put("BiasAdd", name, bias, data_format=b"NCHW" if self.is_first else b"NHWC"))

    def add_norm(self, name: str, dims: Dims) -> None:
        vectors = [self.constant(self.random.uniform(0.5, 2, dims[3]).astype(np.float32)) for _ in range(4)]
        attrs: dict[str, Attr] = {"data_format": b"NCHW" if self.is_first else b"NHWC", "U": DType.FLOAT}
        training = self.draw(st.booleans())
        norm = self.put("FusedBatchNormV3", name, *vectors, **attrs, is_training=training)
        self.others.append(f"{norm}:1")
        self.image(norm)

    def add_unary(self, name: str, dims: Dims) -> None:
        self.image(self.put(self.draw(st.sampled_from(["Relu", "Identity", "Tanh", "Softmax"])), name))

    def add_binary(self, name: str, dims: Dims) -> None:
        sizes = self.layout(dims)
        shape = self.draw(st.sampled_from([(), sizes[3:], sizes[1:], sizes, (1, sizes[1], 1, 1)]))
        other = self.constant(self.random.standard_normal(shape).astype(np.float32))
        same_size = [image for image, image_dims in self.images if image_dims == dims]
        other = self.draw(st.sampled_from([other, *same_size]))
        edges = (name, other) if self.draw(st.booleans()) else (other, name)
        self.image(self.put(self.draw(st.sampled_from(["Add", "Mul", "Maximum", "Sub"])), *edges))

    def add_pad(self, name: str, dims: Dims) -> None:
        widths = self.constant(np.array(self.layout_rows([[0, 1], [1, 0], [0, 2], [1, 1]]), np.int32))
        self.image(self.put("Pad", name, widths, Tpaddings=DType.INT32))

    def layout_rows(self, rows: list[list[int]]) -> list[list[int]]:
        return [rows[axis] for axis in self.order]

    def add_join(self, name: str, dims: Dims) -> None:
        axis = self.draw(st.integers(-4, 3))
        self.image(self.put("ConcatV2", name, name, self.constant(np.int32(axis)), N=2, Tidx=DType.INT32))

    def add_split(self, name: str, dims: Dims) -> None:
        axis = next((axis for axis in (3, 0, 1, 2) if dims[axis] % 2 == 0), None)
        if axis is None:
            return
        split_axis = self.order.index(axis)
        split = self.put("Split", self.constant(np.int32(split_axis)), name, num_split=2)
        halves = tuple(size // 2 if dimension == axis else size for dimension, size in enumerate(dims))
        self.images += [(split, halves), (f"{split}:1", halves)]

    def add_slice(self, name: str, dims: Dims) -> None:
        if min(dims[1:3]) < 2:
            return
        begin, size = (np.array(self.layout(values), np.int32) for values in ((0, 1, 0, 0), (-1, -1, 2, -1)))
        self.image(self.put("Slice", name, self.constant(begin), self.constant(size), Index=DType.INT32))

    def add_reduction(self, name: str, dims: Dims) -> None:
        axes = self.draw(st.lists(st.integers(-4, 3), max_size=3, unique_by=lambda axis: axis % 4))
        keep = self.draw(st.booleans())
        op = self.draw(st.sampled_from(["Mean", "Max"]))
        reduced = self.put(op, name, self.constant(np.array(axes, np.int32)), Tidx=DType.INT32, keep_dims=keep)
        if keep or not axes:
            self.image(reduced)
        else:
            self.others.append(reduced)

    def add_squeeze(self, name: str, dims: Dims) -> None:
        mean = self.put("Mean", name, self.constant(np.array([1, -1], np.int32)), Tidx=DType.INT32, keep_dims=True)
        self.others.append(self.put("Squeeze", mean, squeeze_dims=(1, 3)))

    def add_reshape(self, name: str, dims: Dims) -> None:
        self.others.append(self.put("Reshape", name, self.constant(np.array([-1], np.int32)), Tshape=DType.INT32))

    def add_transpose(self, name: str, dims: Dims) -> None:
        order = self.draw(st.sampled_from([(0, 2, 3, 1), (0, 3, 1, 2), (3, 1, 0, 2)]))
        self.others.append(self.put("Transpose", name, self.constant(np.array(order, np.int32)), Tperm=DType.INT32))
        back = np.argsort(order).astype(np.int32)
        again = self.put("Relu", self.others[-1])
        self.image(self.put("Transpose", again, self.constant(back), Tperm=DType.INT32))

    def add_sizes(self, name: str, dims: Dims) -> None:
        self.others.append(self.put("Shape", name, out_type=DType.INT32))

    def graph(self) -> Graph:
        used = {edge.node for node in self.nodes for edge in node.inputs}
        names = (*(name for name, _ in self.images), *self.others)
        unused = [name for name in names if Edge.parse(name).node not in used and name != "x"]
        more = self.draw(st.lists(st.sampled_from([name for name, _ in self.images]), max_size=2))
        return Graph.of(self.nodes, ["x"], list(dict.fromkeys([*unused, *more])) or ["x"])


KINDS = [name.removeprefix("add_") for name in dir(NetworkBuilder) if name.startswith("add_")]


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    builder = NetworkBuilder(draw)
    for _ in range(draw(st.integers(1, 8))):
        builder.step()
    return builder.graph()


@given(networks(), st.sampled_from(["NCHW", "NHWC"]))
def test_outputs_of_converted_networks_stay_equal(graph: Graph, to: str) -> None:
    check_exact_transform(convert_layout, graph, to=to)


@given(networks())
def test_conversion_and_back_keeps_outputs_and_data_formats(graph: Graph) -> None:
    converted = convert_layout(graph, to="NCHW")
    back, _, skips = convert_layout.outcome(converted, to="NHWC")
    verify(back)
    skipped = {skip.node for skip in skips}
    for node in back.nodes.values():
        assert node.attrs.get("data_format", b"NHWC") == b"NHWC" or node.name in skipped
    for name, values in compute_outputs(graph).items():
        np.testing.assert_allclose(
            compute_outputs(back)[name], values, rtol=1e-4, atol=1e-5 * max(1, np.abs(values).max())
        )


@pytest.fixture(scope="module")
def digits() -> Graph:
    model = load("digits")
    assert model.graph is not None
    assert model.card is not None
    return run(parse(model.card.recipe), model.graph)[0]


def test_converted_network_has_transpose_at_input_only(digits: Graph) -> None:
    converted = convert_layout(digits, to="NCHW")
    assert converted.op_counts["Transpose"] == 1, "the output of the convolutions is one pixel"
    assert {node.attrs["data_format"] for node in converted.nodes.values() if node.op == "Conv2D"} == {b"NCHW"}
    back = convert_layout(converted, to="NHWC")
    assert "Transpose" not in back.op_counts
    assert {name: count for name, count in back.op_counts.items() if name != "Const"} == {
        name: count for name, count in digits.op_counts.items() if name != "Const"
    }


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["reference", "onnxruntime", "openvino", "tensorflow"])
def test_outputs_stay_equal_in_runtimes(runtime: str, digits: Graph) -> None:
    if not find_runtime(runtime).available().ok:
        pytest.skip(find_runtime(runtime).available().detail)
    converted = convert_layout(digits, to="NCHW")
    if runtime == "tensorflow":  # TensorFlow supports few NCHW ops on CPUs
        converted = convert_layout(converted, to="NHWC")
    x = np.random.default_rng(0).uniform(-1, 1, (1, 16, 16, 1)).astype(np.float32)
    expected = open_session(digits, "reference").run({"Mul": x})["softmax"]
    with open_session(converted, runtime) as session:
        np.testing.assert_allclose(session.run({"Mul": x})["softmax"], expected, rtol=1e-4, atol=1e-6)


def test_unknown_layout_is_rejected(digits: Graph) -> None:
    with pytest.raises(RecipeError, match="'nchw' is not a value of to") as caught:
        convert_layout(digits, to="nchw")
    assert "NCHW" in caught.value.hint


def test_layer_that_is_graph_input_stays() -> None:
    graph = Graph.of(
        [
            placeholder((1, 4, 4, 2)),
            constant("w", np.ones((1, 1, 2, 2), np.float32)),
            Node("conv", "Conv2D", (Edge("x"), Edge("w")), attrs=WINDOW),
            Node("y", "Relu", (Edge("conv"),), attrs=FLOAT),
        ],
        ["conv"],
        ["y"],
    )  # fmt: skip
    assert convert_layout(graph, to="NCHW") == graph


def test_new_constants_in_loop_have_control_dependencies() -> None:
    attrs: dict[str, Attr] = {"T": DType.FLOAT, "frame_name": b"loop"}
    graph = Graph.of(
        [
            placeholder((1, 4, 4, 2)),
            Node("enter", "Enter", (Edge("x"),), attrs=attrs),
            constant("w", np.ones((1, 1, 2, 2), np.float32)).with_(controls=("enter",)),
            Node("conv", "Conv2D", (Edge("enter"), Edge("w")), attrs=WINDOW),
            Node("sizes", "Shape", (Edge("conv"),), attrs={**FLOAT, "out_type": DType.INT32}),
            Node("y", "Exit", (Edge("conv"),), attrs=FLOAT),
            Node("z", "Exit", (Edge("sizes"),), attrs={"T": DType.INT32}),
        ],
        ["x"],
        ["y", "z"],
    )  # fmt: skip
    converted = convert_layout(graph, to="NCHW")
    verify(converted)
    new = [node for node in converted.nodes.values() if node.is_constant and node.name not in graph]
    assert len(new) == 4
    assert all(node.controls for node in new)


def layers(count: int) -> Graph:
    nodes = [placeholder((1, 4, 4, 2)), constant("w", np.ones((1, 1, 2, 2), np.float32))]
    before = "x"
    for number in range(count):
        op = ("Conv2D", "Relu", "Softmax", "Mul")[number % 4]
        edges = (Edge(before), Edge("w")) if op == "Conv2D" else (Edge(before),) * (2 if op == "Mul" else 1)
        window: dict[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"SAME"} if op == "Conv2D" else {}
        nodes.append(Node(f"n{number}", op, edges, attrs={**FLOAT, **window}))
        before = nodes[-1].name
    return Graph.of(nodes, ["x"], [before])


def test_convert_layout_runs_in_linear_time() -> None:
    check_linear_work(convert_layout, layers, to="NCHW")


def test_unknown_sizes_are_supported() -> None:
    graph = layers(4)
    unknown = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(None)})
    graph = graph.with_nodes(unknown if node.name == "x" else node for node in graph.nodes.values())
    converted = convert_layout(graph, to="NCHW")
    assert converted["n0"].attrs["data_format"] == b"NCHW"
    assert converted["n1"].inputs == (Edge("n0"),)
