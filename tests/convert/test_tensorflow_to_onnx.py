"""Conversion of TensorFlow graphs to ONNX, compared with the NumPy runtime."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from quantkit.convert.tensorflow_to_onnx import convert, translate
from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes import find_runtime
from quantkit.runtimes.runtime import Runtime

FLOAT, INT32 = DType.FLOAT, DType.INT32


def placeholder(name: str, *dims: int | None, dtype: DType = FLOAT) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(dims)})


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT, **attrs})


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).uniform(-1, 1, shape).astype(np.float32)


def ints(name: str, *values: int) -> Node:
    return constant(name, np.int32(values))


def image_graph(*nodes: Node, size: tuple[int, int] = (7, 6), out: str = "y") -> Graph:
    return Graph.of([placeholder("x", 2, *size, 4), *nodes], ["x"], [out])


WINDOWS = {"strides": (1, 2, 2, 1), "padding": b"SAME"}
FILTER, DEPTHWISE = constant("w", random(3, 2, 4, 6)), constant("w", random(3, 3, 4, 2))
HALF = {"SrcT": DType.HALF, "DstT": FLOAT}
CASES: dict[str, Graph] = {
    "half_weights": image_graph(
        constant("h", random(3, 2, 4, 6).astype(np.float16)),
        node("w", "Cast", "h", **HALF),
        node("y", "Conv2D", "x", "w", **WINDOWS),
    ),
    # Keras mixed_float16: Cast of a variable, here back to float32.
    "weights_rounded_to_half": image_graph(
        FILTER,
        node("v", "Identity", "w"),
        node("h", "Cast", "v", SrcT=FLOAT, DstT=DType.HALF),
        node("k", "Identity", "h", T=DType.HALF),
        node("f", "Cast", "k", **HALF),
        node("y", "Conv2D", "x", "f", **WINDOWS),
    ),
    "half_depthwise_read_twice": image_graph(
        constant("h", random(3, 3, 4, 2).astype(np.float16)),
        node("w", "Cast", "h", **HALF),
        node("a", "DepthwiseConv2dNative", "x", "w", **WINDOWS),
        node("b", "DepthwiseConv2dNative", "x", "w", **WINDOWS),
        node("y", "Add", "a", "b"),
    ),
    "convolution": image_graph(FILTER, node("y", "Conv2D", "x", "w", **WINDOWS)),
    "convolution_valid": image_graph(FILTER, node("y", "Conv2D", "x", "w", strides=(1, 1, 1, 1), padding=b"VALID")),
    "explicit": image_graph(
        FILTER,
        node(
            "y",
            "Conv2D",
            "x",
            "w",
            strides=(1, 2, 1, 1),
            padding=b"EXPLICIT",
            explicit_paddings=(0, 0, 1, 2, 0, 1, 0, 0),
        ),
    ),
    "dilated": image_graph(
        FILTER, node("y", "Conv2D", "x", "w", strides=(1, 1, 1, 1), padding=b"SAME", dilations=(1, 2, 2, 1))
    ),
    "grouped": image_graph(constant("w", random(3, 3, 2, 6)), node("y", "Conv2D", "x", "w", **WINDOWS)),
    "bias_and_relu": image_graph(
        FILTER,
        constant("b", random(6)),
        node("conv", "Conv2D", "x", "w", **WINDOWS),
        node("biased", "BiasAdd", "conv", "b"),
        node("y", "Relu", "biased"),
    ),
    "add_as_bias": image_graph(
        FILTER,
        constant("b", random(6)),
        node("conv", "Conv2D", "x", "w", **WINDOWS),
        node("biased", "AddV2", "b", "conv"),
        node("y", "Relu6", "biased"),
    ),
    "depthwise": image_graph(DEPTHWISE, node("y", "DepthwiseConv2dNative", "x", "w", **WINDOWS)),
    "max_pool": image_graph(node("y", "MaxPool", "x", ksize=(1, 3, 2, 1), **WINDOWS)),
    "average_pool": image_graph(node("y", "AvgPool", "x", ksize=(1, 3, 3, 1), strides=(1, 1, 1, 1), padding=b"SAME")),
    "average_of_all": image_graph(
        node("pool", "AvgPool", "x", ksize=(1, 7, 6, 1), strides=(1, 1, 1, 1), padding=b"VALID"),
        ints("shape", -1, 4),
        node("y", "Reshape", "pool", "shape"),
    ),
    "mean": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS),
        ints("axes", 1, 2),
        node("kept", "Mean", "pool", "axes", keep_dims=True),
        node("y", "Squeeze", "kept", squeeze_dims=(1, 2)),
    ),
    "mean_dropped": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS),
        ints("axes", -3, -2),
        node("y", "Mean", "pool", "axes"),
    ),
    "sum_over_channels": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS), ints("axes", 3), node("y", "Sum", "pool", "axes")
    ),
    "flattened_image": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS),
        ints("shape", 2, -1),
        node("y", "Reshape", "pool", "shape"),
    ),
    "joined": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), strides=(1, 1, 1, 1), padding=b"SAME"),
        constant("axis", np.int32(-1)),
        node("joined", "ConcatV2", "pool", "x", "pool", "axis", N=3),
        constant("scale", random(12)),
        node("scaled", "Mul", "joined", "scale"),
        constant("offset", random(6, 12)),
        node("y", "Sub", "offset", "scaled"),
    ),
    "padded": image_graph(
        constant("pads", np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)),
        node("padded", "Pad", "x", "pads"),
        FILTER,
        node("y", "Conv2D", "padded", "w", strides=(1, 2, 2, 1), padding=b"VALID"),
    ),
    "split_channels": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS),
        constant("axis", np.int32(3)),
        node("parts", "Split", "axis", "pool", num_split=2),
        node("y", "Neg", "parts:1"),
    ),
    "split_by_sizes": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS),
        ints("sizes", 1, 3),
        constant("axis", np.int32(3)),
        node("y", "SplitV", "pool", "sizes", "axis", num_split=2),
        out="y:1",
    ),
    "slice": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS),
        ints("begin", 0, 1, 0, 2),
        ints("size", -1, 2, -1, 1),
        node("y", "Slice", "pool", "begin", "size"),
    ),
    "softmax_of_channels": image_graph(
        node("pool", "MaxPool", "x", ksize=(1, 2, 2, 1), **WINDOWS), node("y", "Softmax", "pool")
    ),
    "residual": image_graph(
        constant("w", random(3, 3, 4, 4)),
        node("conv", "Conv2D", "x", "w", strides=(1, 1, 1, 1), padding=b"SAME"),
        node("y", "AddV2", "x", "conv"),
    ),
    "batch_norm": image_graph(
        *(constant(name, np.abs(random(4, seed=seed)) + 0.1) for seed, name in enumerate("abcd")),
        node("y", "FusedBatchNormV3", "x", *"abcd", epsilon=0.01, is_training=False, U=FLOAT),
    ),
    "resize": image_graph(ints("size", 5, 9), node("y", "ResizeBilinear", "x", "size", half_pixel_centers=True)),
    "resize_corners": image_graph(ints("size", 5, 9), node("y", "ResizeBilinear", "x", "size", align_corners=True)),
    "resize_classic": image_graph(ints("size", 5, 9), node("y", "ResizeBilinear", "x", "size")),
    "elements": image_graph(
        node("a", "Sigmoid", "x"),
        node("b", "Rsqrt", "a"),
        node("c", "Square", "b"),
        node("d", "SquaredDifference", "c", "a"),
        node("y", "Tanh", "d"),
    ),
    "dense": Graph.of(
        [
            placeholder("x", None, 4),
            constant("w", random(3, 4)),
            constant("b", random(3)),
            node("product", "MatMul", "x", "w", transpose_b=True),
            node("y", "BiasAdd", "product", "b"),
        ],
        ["x"],
        ["y"],
    ),
    "picture": Graph.of(
        [
            placeholder("x", 1, 4, 4, 3, dtype=DType.UINT8),
            Node("float", "Cast", (Edge("x"),), attrs={"SrcT": DType.UINT8, "DstT": FLOAT}),
            constant("mean", np.float32(128)),
            node("centred", "Sub", "float", "mean"),
            node("scaled", "Mul", "centred", "scale"),
            constant("scale", np.float32(1 / 128)),
            constant("w", random(3, 3, 3, 2)),
            node("y", "Conv2D", "scaled", "w", strides=(1, 1, 1, 1), padding=b"SAME"),
        ],
        ["x"],
        ["y"],
    ),
    "transposed": image_graph(
        constant("w", random(3, 2, 5, 4)),
        constant("b", random(5)),
        ints("sizes", 2, 14, 12, 5),
        node("up", "Conv2DBackpropInput", "sizes", "w", "x", strides=(1, 2, 2, 1), padding=b"SAME"),
        node("biased", "BiasAdd", "up", "b"),
        node("y", "Relu", "biased"),
    ),
    "transposed_of_an_odd_size": image_graph(
        constant("w", random(2, 2, 3, 4)),
        ints("sizes", 2, 15, 13, 3),
        node("y", "Conv2DBackpropInput", "sizes", "w", "x", strides=(1, 2, 2, 1), padding=b"VALID"),
    ),
    "transposed_of_an_open_batch": Graph.of(
        [
            placeholder("x", None, 5, 5, 4),
            constant("w", random(3, 3, 2, 4)),
            node("shape", "Shape", "x", out_type=INT32),
            ints("zero", 0),
            ints("one", 1),
            node("batch", "StridedSlice", "shape", "zero", "one", "one", T=INT32, Index=INT32, shrink_axis_mask=1),
            constant("ten", np.int32(10)),
            constant("two", np.int32(2)),
            node("sizes", "Pack", "batch", "ten", "ten", "two", T=INT32, N=4),
            node("y", "Conv2DBackpropInput", "sizes", "w", "x", strides=(1, 2, 2, 1), padding=b"SAME"),
        ],
        ["x"],
        ["y"],
    ),
    "gelu": image_graph(node("e", "Erfc", "x"), node("y", "Mul", "x", "e")),
    "attention": Graph.of(
        [
            placeholder("x", 2, 3, 4, 5),
            node("scores", "Einsum", "x", "x", equation=b"btnh,bsnh->bnts", N=2),
            node("share", "Softmax", "scores"),
            node("y", "Einsum", "share", "x", equation=b"bnts,bsnh->btnh", N=2),
        ],
        ["x"],
        ["y"],
    ),
    "products_turned": Graph.of(
        [placeholder("x", 2, 3, 4), node("y", "BatchMatMulV2", "x", "x", adj_y=True)], ["x"], ["y"]
    ),
    "state_of_zeros": Graph.of(
        [
            placeholder("x", None, 6, 4),
            node("shape", "Shape", "x", out_type=INT32),
            ints("zero", 0),
            ints("one", 1),
            node("batch", "StridedSlice", "shape", "zero", "one", "one", T=INT32, Index=INT32, shrink_axis_mask=1),
            constant("four", np.int32(4)),
            node("sizes", "Pack", "batch", "four", T=INT32, N=2),
            constant("half", np.float32(0.5)),
            node("state", "Fill", "sizes", "half", index_type=INT32),
            node("steps", "Unpack", "x", num=6, axis=1),
            node("first", "Add", "state", "steps"),
            node("both", "Pack", "first", "steps:5", N=2, axis=1),
            ints("axes", 1),
            node("y", "Sum", "both", "axes", Tidx=INT32),
        ],
        ["x"],
        ["y"],
    ),
    "sliced_with_strides": Graph.of(
        [
            placeholder("x", 2, 7, 6),
            ints("begin", 0, 5, -1),
            ints("end", 2, 0, 0),
            ints("steps", 1, -2, 1),
            node("y", "StridedSlice", "x", "begin", "end", "steps", Index=INT32, end_mask=2, shrink_axis_mask=4),
        ],
        ["x"],
        ["y"],
    ),
    "looked_up_and_chosen": Graph.of(
        [
            placeholder("x", 2, 5),
            ints("places", 4, 0, 2),
            constant("one", np.int32(1)),
            node("found", "GatherV2", "x", "places", "one", Tparams=FLOAT, Tindices=INT32, Taxis=INT32),
            constant("least", np.float32(0)),
            node("above", "Greater", "found", "least"),
            node("negative", "Neg", "found"),
            node("y", "SelectV2", "above", "found", "negative"),
        ],
        ["x"],
        ["y"],
    ),
    "names_that_are_taken": Graph.of(
        [
            placeholder("x", 2, 3),
            constant("y/part_1", random(2, 3)),
            ints("y/axes", 1),
            node("same", "ExpandDims", "y/part_1", "y/axes", Tdim=INT32),
            node("flat", "Squeeze", "same", squeeze_dims=(1,)),
            node("y", "Pack", "x", "flat", N=2, axis=1),
        ],
        ["x"],
        ["y"],
    ),
    "class_token_of_a_dynamic_batch": Graph.of(
        [
            placeholder("x", None, 3, 4),
            constant("token", random(1, 1, 4)),
            node("shape", "Shape", "x", out_type=INT32),
            ints("zero", 0),
            ints("one", 1),
            node("batch", "StridedSlice", "shape", "zero", "one", "one", T=INT32, Index=INT32, shrink_axis_mask=1),
            constant("single", np.int32(1)),
            node("multiples", "Pack", "batch", "single", "single", T=INT32, N=3),
            node("tokens", "Tile", "token", "multiples", Tmultiples=INT32),
            node("joined", "ConcatV2", "tokens", "x", "single", N=2, Tidx=INT32),
            ints("last", -1),
            node("y", "Mean", "joined", "last", Tidx=INT32),
        ],
        ["x"],
        ["y"],
    ),
    "reshaped_as_computed": Graph.of(
        [
            placeholder("x", None, None, 4),
            node("shape", "Shape", "x", out_type=INT32),
            ints("zero", 0),
            ints("one", 1),
            node("batch", "StridedSlice", "shape", "zero", "one", "one", T=INT32, Index=INT32, shrink_axis_mask=1),
            constant("two", np.int32(2)),
            constant("rest", np.int32(-1)),
            node("sizes", "Pack", "batch", "rest", "two", T=INT32, N=3),
            node("y", "Reshape", "x", "sizes", Tshape=INT32),
        ],
        ["x"],
        ["y"],
    ),
}


def feeds(graph: Graph) -> Mapping[str, np.ndarray]:
    (edge,) = graph.inputs
    placeholder = graph[edge.node]
    shape = placeholder.attrs["shape"]
    assert isinstance(shape, Shape)
    dims = [size or 2 for size in shape.dims or ()]
    if placeholder.attrs["dtype"] is DType.UINT8:
        return {str(edge): np.random.default_rng(0).integers(0, 256, dims).astype(np.uint8)}
    return {str(edge): random(*dims)}


@pytest.fixture(params=["onnxruntime", "openvino"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    runtime = find_runtime(request.param)
    if not runtime.available().ok:
        pytest.skip(runtime.available().detail)
    return runtime


@pytest.mark.engine
@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_the_reference(name: str, runtime: Runtime) -> None:
    graph = CASES[name]
    converted = convert(graph)
    verify(converted)
    inputs = feeds(graph)
    with find_runtime("reference").open(graph) as session:
        expected = session.run(inputs)
    with runtime.open(converted) as session:
        results = session.run(inputs)
    assert list(results) == list(expected)
    for output, values in expected.items():
        np.testing.assert_allclose(results[output], values, rtol=1e-5, atol=1e-5, err_msg=output)


@pytest.mark.engine
@pytest.mark.parametrize(
    "name", sorted(CASES.keys() - {"slice"})
)  # the shape of its output is unknown, and the checker requires it
def test_onnx_accepts_the_model(name: str) -> None:
    checker = pytest.importorskip("onnx", reason="pip install onnx")
    checker.checker.check_model(checker.load_from_string(onnx.encode(convert(CASES[name]))), full_check=True)


def test_images_are_transposed_only_at_inputs_and_outputs() -> None:
    graph = CASES["bias_and_relu"]
    converted = convert(graph)
    assert dict(converted.op_counts) == {"Constant": 2, "Transpose": 2, "Placeholder": 1, "Conv": 1, "Relu": 1}
    assert converted["y"].op == "Transpose"
    pooled = convert(CASES["average_of_all"])
    assert pooled.op_counts["Transpose"] == 1
    assert pooled["pool"].op == "GlobalAveragePool"


def test_translation_maps_edges() -> None:
    translation = translate(CASES["bias_and_relu"])
    assert translation.edges[Edge("biased")] == Edge("biased")
    assert translation.edges[Edge("y")] == Edge("y/nchw")
    assert Edge("conv") not in translation.edges


def test_control_dependencies_are_removed() -> None:
    nodes = [node("check", "NoOp", "x"), node("y", "Relu", "x").with_(controls=("check",))]
    assert dict(convert(image_graph(*nodes)).op_counts) == {"Placeholder": 1, "Relu": 1}


def test_internal_input_becomes_placeholder() -> None:
    graph = CASES["bias_and_relu"].with_endpoints(["conv"], ["y"])
    converted = convert(graph)
    assert converted.inputs == (Edge("conv"),)
    assert converted["conv"].attrs == {"dtype": FLOAT, "shape": Shape((2, 4, 3, 6))}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("y", "Lgamma", "x")], r"node 'y' \(Lgamma\) .* the op is not supported"),
        ([node("w", "Neg", "x"), node("y", "Conv2D", "x", "w", **WINDOWS)], "the weights must be constant"),
        ([node("s", "Neg", "x"), node("y", "Reshape", "x", "s")], "input 1 must be constant"),
        ([node("y", "MaxPool", "x", ksize=(1, 1, 1, 2), **WINDOWS)], "the window covers batch or channels"),
        ([node("y", "FusedBatchNorm", "x", "x", "x", "x", "x")], "training"),
        ([node("y", "Conv2D", "x")], "the node is invalid"),
    ],
)
def test_error_names_unsupported_node(nodes: list[Node], message: str) -> None:
    with pytest.raises(UnavailableError, match=message) as error:
        convert(image_graph(*nodes))
    assert error.value.hint


def test_hint_for_an_old_batch_norm_names_the_transform_that_folds_it() -> None:
    norm = node("y", "BatchNormWithGlobalNormalization", "x", "x", "x", "x", "x")
    with pytest.raises(UnavailableError, match="the op is not supported") as error:
        convert(image_graph(norm))
    assert error.value.hint == "run the transform fold_old_batch_norms first, or the recipe inference"


def test_intermediate_nodes_have_unused_names() -> None:
    """Keras names the computed shape of a Reshape as the conversion names its Cast."""
    nodes = [
        placeholder("x", None, 4),
        ints("one", 1),
        ints("zero", 0),
        node("sizes", "Shape", "x", out_type=INT32),
        node("batch", "StridedSlice", "sizes", "zero", "one", "one", T=INT32, Index=INT32, shrink_axis_mask=1),
        constant("two", np.int32(2)),
        node("y/shape", "Pack", "batch", "two", "two", T=INT32, N=3),
        node("y", "Reshape", "x", "y/shape", Tshape=INT32),
    ]
    converted = convert(Graph.of(nodes, ["x"], ["y"]))
    verify(converted)
    assert converted["y/shape"].op == "Concat"


def test_cast_weights_are_stored_once_in_their_type() -> None:
    converted = convert(CASES["half_depthwise_read_twice"])
    (stored,) = [node for node in converted.nodes.values() if node.op == "Constant"]
    assert (stored.value.dtype, stored.value.shape) == (DType.HALF, (8, 1, 3, 3))
    assert converted.op_counts["Cast"] == 1


@pytest.mark.engine
def test_float16_values_are_clipped_in_float16(runtime: Runtime) -> None:
    """OpenVINO computes in float32 on processors without float16, and merges the last Cast with the output."""
    graph = image_graph(
        node("h", "Cast", "x", SrcT=FLOAT, DstT=DType.HALF),
        node("r", "Relu6", "h", T=DType.HALF),
        node("y", "Cast", "r", **HALF),
    )
    inputs = feeds(graph)
    with runtime.open(convert(graph)) as session:
        results = session.run(inputs)
    assert list(results) == ["y"]
    np.testing.assert_allclose(results["y"], np.clip(inputs["x"], 0, 6), rtol=2.0**-10, atol=1e-6)
