"""Arrays have the axes of the model's input, channels first or last, in every function that takes data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.data import InputPipeline, as_dataset, prepare_samples
from quantkit.errors import InputError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.quantization import Scheme, annotate, calibrate
from quantkit.runtimes.session import TensorInfo

pytestmark = pytest.mark.engine
pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

HEIGHT, WIDTH, CLASSES = 9, 7, 4
RANDOM = np.random.default_rng(9)
FILTERS = RANDOM.normal(size=(3, 3, 3, 6)).astype(np.float32)
PROJECTION = RANDOM.normal(size=(HEIGHT * WIDTH * 6, CLASSES)).astype(np.float32)
# (n, h, w, c)
PIXELS = RANDOM.integers(0, 256, (12, HEIGHT, WIDTH, 3), np.uint8)
VALUES = (PIXELS.astype(np.float32) - 128) / 128


def channels_first(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, -1, -3))


def tensorflow_model() -> Graph:
    """Return a classifier of (n, h, w, c)."""
    floats = {"T": DType.FLOAT}
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, HEIGHT, WIDTH, 3))}),
        constant("filters", FILTERS),
        constant("projection", PROJECTION),
        constant("shape", np.array([-1, len(PROJECTION)], np.int32)),
        Node("conv", "Conv2D", ("x", "filters"), attrs={**floats, "strides": (1, 1, 1, 1), "padding": b"SAME"}),
        Node("relu", "Relu", ("conv",), attrs=floats),
        Node("flat", "Reshape", ("relu", "shape"), attrs={**floats, "Tshape": DType.INT32}),
        Node("scores", "MatMul", ("flat", "projection"), attrs=floats),
        Node("softmax", "Softmax", ("scores",), attrs=floats),
    ]
    return Graph.of(nodes, ["x"], ["softmax"])


def onnx_model() -> Graph:
    """Return the same classifier of (n, c, h, w)."""
    by_channel = PROJECTION.reshape(HEIGHT, WIDTH, 6, CLASSES).transpose(2, 0, 1, 3).reshape(-1, CLASSES)
    weights = {"filters": FILTERS.transpose(3, 2, 0, 1), "projection": by_channel}
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 3, HEIGHT, WIDTH))}),
        *(
            Node(name, "Constant", attrs={"value": Tensor.of(np.ascontiguousarray(values))})
            for name, values in weights.items()
        ),
        Node("conv", "Conv", (Edge("x"), Edge("filters")), attrs={"pads": (1, 1, 1, 1)}),
        Node("relu", "Relu", (Edge("conv"),)),
        Node("flat", "Flatten", (Edge("relu"),), attrs={"axis": 1}),
        Node("scores", "MatMul", (Edge("flat"), Edge("projection"))),
        Node("softmax", "Softmax", (Edge("scores"),), attrs={"axis": 1}),
    ]
    info = {"softmax": (DType.FLOAT, Shape((None, CLASSES)))}
    return Graph.of(nodes, ["x"], ["softmax"], dialect="onnx", extra=onnx.header(info))


MODELS: dict[str, Callable[[], Graph]] = {"channels_last": tensorflow_model, "channels_first": onnx_model}


def expected_classes() -> list[int]:
    padded = np.pad(VALUES, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))  # n h w c 3 3
    relu = np.maximum(np.einsum("nhwcij,ijck->nhwk", windows, FILTERS), 0)
    classes: list[int] = (relu.reshape(len(relu), -1) @ PROJECTION).argmax(axis=1).tolist()
    return classes


def evaluate(model: Graph, array: Array) -> None:
    evaluation = qk.evaluate(model, (array, np.array(expected_classes())))
    assert evaluation.metrics.top1 is not None
    assert evaluation.metrics.top1.value == 1
    is_assumed = array.dtype == np.uint8
    assert evaluation.is_assumed == is_assumed
    assert evaluation.preprocessing.startswith("9 x 7 x 3, (x - 128) / 128, " if is_assumed else "arrays unchanged")


def classify(model: Graph, array: Array) -> None:
    assert [image[0].index for image in qk.classify(list(array), model)] == expected_classes()


def compare(model: Graph, array: Array) -> None:
    """The other version takes the other layout."""
    other = tensorflow_model() if model.dialect == "onnx" else onnx_model()
    comparison = qk.compare(model, other, array)
    assert comparison.samples == len(array)
    (output,) = [row for row in comparison.rows if row.name == "softmax"]
    assert output.sqnr > 80


def verify(model: Graph, array: Array) -> None:
    assert qk.transform(model, "remove_nodes(op=Identity)", verify=True, data=array).graph.outputs == model.outputs


def quantize(model: Graph, array: Array) -> None:
    result = qk.quantize(model, array, runs=0)
    low, high = VALUES.min(), VALUES.max()
    assert any(np.allclose((span.low, span.high), (low, high), atol=0.02) for span in result.ranges.ranges.values())


VERBS = {function.__name__: function for function in (evaluate, classify, compare, verify, quantize)}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("layout", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_arrays_with_the_axes_of_the_input(verb: str, layout: str, dtype: str) -> None:
    array = PIXELS if dtype == "uint8" else VALUES
    VERBS[verb](MODELS[layout](), channels_first(array) if layout == "channels_first" else array)


@pytest.mark.parametrize("verb", VERBS)
def test_pixels_may_have_channels_last_for_every_model(verb: str) -> None:
    VERBS[verb](onnx_model(), PIXELS)


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"compare"}))
@pytest.mark.parametrize(
    ("layout", "array", "hint"),
    [
        ("channels_last", channels_first(VALUES), "move the channels: numpy.moveaxis(array, -3, -1)"),
        ("channels_first", VALUES, "move the channels: numpy.moveaxis(array, -1, -3)"),
        ("channels_last", channels_first(PIXELS), "move the channels: numpy.moveaxis(array, -3, -1)"),
    ],
    ids=["first_to_last", "last_to_first", "pixels"],
)
def test_arrays_are_never_transposed(verb: str, layout: str, array: Array, hint: str) -> None:
    with pytest.raises(InputError, match="the samples have the shape") as caught:
        VERBS[verb](MODELS[layout](), array)
    assert caught.value.hint == hint


def test_calibrate_feeds_arrays_unchanged() -> None:
    graph = tensorflow_model()
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    ranges = calibrate(graph, plan, [VALUES])
    assert any(np.isclose(span.high, VALUES.max(), atol=0.02) for span in ranges.ranges.values())
    with pytest.raises(qk.UsageError, match="takes"):
        calibrate(graph, plan, [channels_first(VALUES)])


@pytest.mark.parametrize("data", [VALUES, channels_first(VALUES), channels_first(PIXELS)], ids=["last", "first", "u8"])
def test_versions_with_different_layouts_share_the_data(data: Array) -> None:
    evaluation = qk.evaluate(tensorflow_model(), (data, np.array(expected_classes())), reference=onnx_model())
    assert evaluation.metrics.agreement is not None
    assert evaluation.metrics.top1 is not None
    assert (evaluation.metrics.agreement.value, evaluation.metrics.top1.value) == (1, 1)


@pytest.mark.parametrize("dims", [(4, 9, 7), (9, 7, 4)])
def test_images_of_many_channels_are_not_reshaped(dims: tuple[int, ...]) -> None:
    info = TensorInfo("x", DType.FLOAT, Shape((None, *dims)))
    rows = RANDOM.normal(size=(2, *dims)).astype(np.float32)
    dataset = as_dataset(rows, keep_order=True)
    for row, (_, (prepared,)) in zip(
        rows, prepare_samples(dataset.read(), [InputPipeline.of([info], dataset)]), strict=True
    ):
        assert isinstance(prepared, dict)
        np.testing.assert_array_equal(prepared["x"], row)
    other = as_dataset(rows.transpose(0, 2, 3, 1) if dims[0] == 4 else rows.transpose(0, 3, 1, 2))
    with pytest.raises(InputError, match="the samples have the shape") as caught:
        list(prepare_samples(other.read(), [InputPipeline.of([info], other)]))
    assert "moveaxis" in caught.value.hint


@pytest.mark.parametrize(
    ("dims", "row"),
    [((8, 8, 1), (8, 8)), ((1, 8, 8), (8, 8)), ((8, 8, 1), (64,)), ((64,), (8, 8)), ((1, 8, 8), (8, 8, 1))],
)
def test_arrays_may_be_flat_or_omit_axes_of_size_one(dims: tuple[int, ...], row: tuple[int, ...]) -> None:
    info = TensorInfo("x", DType.FLOAT, Shape((None, *dims)))
    rows = np.arange(128, dtype=np.float32).reshape(2, *row)
    dataset = as_dataset(rows, keep_order=True)
    pipeline = InputPipeline.of([info], dataset)
    prepared = [values for _, (values,) in prepare_samples(dataset.read(), [pipeline])]
    np.testing.assert_array_equal(pipeline.stack(prepared)["x"], rows.reshape(2, *dims))


@pytest.mark.parametrize("layout", MODELS)
def test_pixels_keep_their_size_where_the_model_takes_any(layout: str) -> None:
    dims = (None, 3, None, None) if layout == "channels_first" else (None, None, None, 3)
    info = TensorInfo("x", DType.FLOAT, Shape(dims))
    dataset = as_dataset(PIXELS, keep_order=True)
    (_, (prepared,)), *_ = prepare_samples(dataset.read(), [InputPipeline.of([info], dataset)])
    expected: Any = channels_first(VALUES[0]) if layout == "channels_first" else VALUES[0]
    np.testing.assert_array_equal(np.asarray(prepared), expected)


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 8, 8, 1), (3, 1, 8, 8)])
def test_grayscale_pixels_may_omit_the_channel_axis(shape: tuple[int, ...]) -> None:
    dims = (None, 1, 8, 8) if shape[1] == 1 else (None, 8, 8, 1)
    info = TensorInfo("x", DType.FLOAT, Shape(dims))
    dataset = as_dataset(np.full(shape, 192, np.uint8))
    ((_, (prepared,)), *_) = prepare_samples(dataset.read(), [InputPipeline.of([info], dataset)])
    assert np.asarray(prepared).shape == dims[1:]
    assert np.asarray(prepared).max() == 0.5
