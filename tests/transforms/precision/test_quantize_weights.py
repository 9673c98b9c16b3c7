from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quantkit.errors import GraphError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.runtimes import open_session
from quantkit.transforms.precision.quantize_weights import CHUNK, quantize_values, quantize_weights

Floats = npt.NDArray[np.float32]

floats = arrays.arrays(
    np.float32,
    arrays.array_shapes(max_dims=4, max_side=6),
    elements=st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda value: value == 0 or abs(value) > 2.0**-100),
)


def graph_of(values: npt.ArrayLike, **fields: object) -> Graph:
    weights = constant("w", np.asarray(values, np.float32)).with_(**fields)
    return Graph.of([weights, Node("y", "Identity", (Edge("w"),), attrs={"T": DType.FLOAT})], [], ["y"])


def dequantize(graph: Graph) -> Floats:
    """Compute the output of Dequantize in float64."""
    quantized, low, high = (graph[edge.node].value.array for edge in graph["w"].inputs)
    step = (float(high) - float(low)) / 255
    values: Floats = (np.rint(float(low) / step) + quantized) * step
    return values


@given(floats)
def test_error_is_at_most_one_step(values: Floats) -> None:
    after = quantize_weights(graph_of(values), minimum_size=1)
    low, high = (after[f"w_quantized_{end}"].value.array.item() for end in ("min", "max"))
    assert low <= min(0, values.min())
    assert high >= max(0, values.max())
    error = np.abs(dequantize(after) - values)
    assert error.max() <= (high - low) / 255 * 1.001
    assert not error[values == 0].any()


@given(floats)
def test_quantize_weights_is_deterministic_and_keeps_argument(values: Floats) -> None:
    graph = graph_of(values.copy())
    once = quantize_weights(graph, minimum_size=1)
    assert once == quantize_weights(graph, minimum_size=1)
    np.testing.assert_array_equal(graph["w"].value.array, values)


@given(st.lists(st.integers(-510, 510), min_size=1), st.sampled_from([0.5, 0.25, 1.0, 2.0**-40]))
def test_halves_round_away_from_zero_in_double_precision(numbers: list[int], factor: float) -> None:
    values = np.array(numbers, np.float32) * np.float32(factor)
    low, high = min(values.min(), np.float32(0)), max(values.max(), np.float32(0))
    if low == high:
        return
    scale = 256.0 / (float(high - low) * (256.0 / 255.0))
    exact = [int(Decimal(float(x) * scale).quantize(Decimal(1), ROUND_HALF_UP)) for x in (*values, low)]
    expected = [min(max(level - exact[-1], 0), 255) for level in exact[:-1]]
    assert quantize_values(values, low, high).tolist() == expected


def test_long_tensors_are_quantized_like_short_tensors() -> None:
    values = np.random.default_rng(0).normal(size=(2 * CHUNK + 17)).astype(np.float32)
    low, high = values.min(), values.max()
    pieces = [quantize_values(piece, low, high) for piece in np.array_split(values, 11)]
    np.testing.assert_array_equal(quantize_values(values, low, high), np.concatenate(pieces))


def test_zeros_are_quantized_exactly() -> None:
    after = quantize_weights(graph_of(np.zeros(8)), minimum_size=1)
    assert after["w_quantized_max"].value.array == 1
    assert not after["w_quantized_const"].value.array.any()


@pytest.mark.parametrize(
    ("values", "low", "high"), [([-3.0, -1.0], -3, 0), ([2.0, 4.0], 0, 4), ([-1.0, 1.0], -1, 1), ([1e-40], 0, 1)]
)
def test_range_is_smallest_that_includes_zero(values: list[float], low: float, high: float) -> None:
    after = quantize_weights(graph_of(values), minimum_size=1)
    assert [float(after[f"w_quantized_{limit}"].value.array) for limit in ("min", "max")] == [low, high]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.inf, "w: the constant contains infinite or NaN values"),
        (-np.inf, "w: the constant contains infinite or NaN values"),
        (np.nan, "w: the constant contains infinite or NaN values"),
        (np.float32(3.4e38), "w: the width of the range [-1e+38, 3.4e+38] is beyond float32"),
    ],
)
def test_values_that_cannot_be_quantized_are_skipped(value: float, reason: str) -> None:
    graph = graph_of([-1e38, 0, value])
    outcome = quantize_weights.outcome(graph, minimum_size=1)
    assert outcome.graph == graph
    assert [str(skip) for skip in outcome.skips] == [reason]


@pytest.mark.parametrize(("minimum_size", "expected"), [(3, "Dequantize"), (4, "Const"), (0, "Dequantize")])
def test_minimum_size_counts_elements(minimum_size: int, expected: str) -> None:
    assert quantize_weights(graph_of([1, 2, 3]), minimum_size=minimum_size)["w"].op == expected


@pytest.mark.parametrize("values", [constant("w", np.zeros((0, 3), np.float32)), constant("w", np.zeros(9, np.int32))])
def test_empty_and_integer_constants_stay(values: Node) -> None:
    graph = Graph.of([values], [], ["w"])
    assert quantize_weights(graph, minimum_size=0) == graph


def test_names_order_and_attributes_equal_classic_tool() -> None:
    after = quantize_weights(graph_of([[1, -2]], device="/gpu:0"), minimum_size=1)
    assert list(after.nodes) == ["w_quantized_const", "w_quantized_min", "w_quantized_max", "w", "y"]
    assert after["w"].inputs == (Edge("w_quantized_const"), Edge("w_quantized_min"), Edge("w_quantized_max"))
    assert after["w"].attrs == {"T": DType.QUINT8, "mode": b"MIN_FIRST"}
    assert repr(after["w_quantized_const"].value) == "Tensor(quint8, 1x2)"
    assert {node.device for node in after.nodes.values()} == {""}


def test_constants_in_loop_keep_control_dependencies() -> None:
    source = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(())})
    weights = constant("w", np.array([1, 2], np.float32)).with_(controls=("x",))
    after = quantize_weights(Graph.of([source, weights], ["x"], ["w"]), minimum_size=1)
    assert [after[f"w_quantized_{part}"].controls for part in ("const", "min", "max")] == [("x",)] * 3


def test_lazy_tensor_is_computed_once() -> None:
    calls: list[int] = []

    def load() -> Floats:
        calls.append(1)
        return np.ones(100_000, np.float32)

    weights = constant("w", Tensor(DType.FLOAT, (100_000,), load))
    after = quantize_weights(Graph.of([weights], [], ["w"]))
    assert [after["w_quantized_const"].value.array.max() for _ in range(3)] == [255] * 3
    assert len(calls) == 1


@pytest.mark.parametrize("missing", ["dtype", "value"])
def test_constant_without_type_or_value_is_rejected(missing: str) -> None:
    broken = constant("w", np.array([1], np.float32)).with_attrs(**{missing: None})
    with pytest.raises(GraphError, match=f"^No '{missing}' attribute for Const node w$"):
        quantize_weights(Graph.of([broken], [], ["w"]))


@pytest.mark.engine
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e5, 1e-35, 0.0])
def test_tensorflow_dequantizes_weights(scale: float) -> None:
    values = (np.random.default_rng(1).normal(size=(40, 30)) * scale).astype(np.float32)
    after = quantize_weights(graph_of(values))
    with open_session(after, "tensorflow") as session:
        actual = session.run({})["y"]
    np.testing.assert_allclose(actual, dequantize(after), rtol=1e-6, atol=1e-6 * scale)
    np.testing.assert_allclose(actual, values, rtol=0, atol=float(np.ptp(values)) / 255)
