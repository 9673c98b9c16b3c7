import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from quantkit.errors import RecipeError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.transforms.precision.prune_weights import prune_weights

Floats = npt.NDArray[np.float32]
FLOAT = {"T": DType.FLOAT}
matrices = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 4).map(lambda groups: 4 * groups), st.integers(1, 5)),
    elements=st.floats(-4, 4, width=32),
)


def layer(values: Array, op: str = "MatMul", dialect: str = "tensorflow", **attrs: object) -> Graph:
    placeholder = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(None)})
    weights = constant("w", values)
    if dialect == "onnx":
        weights = weights.with_(op="Constant")
    node = Node("y", op, (Edge("x"), Edge("w")), attrs=attrs)  # type: ignore[arg-type]
    return Graph.of([placeholder, weights, node], ["x"], ["y"]).with_(dialect=dialect)


def prune(values: Array, op: str = "MatMul", dialect: str = "tensorflow", **options: object) -> Array:
    graph = layer(values, op, dialect)
    pruned: Array = prune_weights(graph, **{"minimum_size": 1, **options})["w"].value.array
    return pruned


@given(matrices, st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]))
def test_the_smallest_magnitudes_become_zero(values: Floats, sparsity: float) -> None:
    after = prune(values, sparsity=sparsity)
    count = int(sparsity * values.size + 1e-6)
    is_unchanged = after == values
    assert (after[~is_unchanged] == 0).all()
    assert np.count_nonzero(after) == min(values.size - count, np.count_nonzero(values))
    if count < values.size:
        largest = np.sort(np.abs(values), axis=None)[count:]
        np.testing.assert_array_equal(np.sort(np.abs(after), axis=None)[count:], largest)


@given(matrices)
def test_each_group_of_four_input_channels_keeps_its_two_largest(values: Floats) -> None:
    after = prune(values, pattern="2:4")
    for before_group, group in zip(values.T.reshape(-1, 4), after.T.reshape(-1, 4), strict=True):
        assert np.count_nonzero(group) <= 2
        assert sorted(np.abs(group))[2:] == sorted(np.abs(before_group))[2:]


@pytest.mark.parametrize(
    ("op", "dialect", "shape", "axis"),
    [
        ("Conv2D", "tensorflow", (3, 3, 8, 5), 2),
        ("Conv2DBackpropInput", "tensorflow", (3, 3, 5, 8), 3),
        ("Conv", "onnx", (5, 8, 3, 3), 1),
        ("ConvTranspose", "onnx", (8, 5, 3, 3), 0),
        ("MatMul", "onnx", (2, 8, 5), 1),
        ("Gemm", "onnx", (8, 5), 0),
    ],
)
def test_groups_are_input_channels(op: str, dialect: str, shape: tuple[int, ...], axis: int) -> None:
    values = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    groups = np.moveaxis(prune(values, op, dialect, pattern="2:4"), axis, -1).reshape(-1, 4)
    assert (np.count_nonzero(groups, axis=-1) == 2).all()


def test_weights_before_a_cast_are_pruned_in_their_type() -> None:
    values = np.arange(-8, 8).reshape(4, 4).astype(np.float16)
    nodes = layer(values).nodes
    cast = Node("cast", "Cast", (Edge("w"),), attrs={"SrcT": DType.HALF, "DstT": DType.FLOAT})
    product = nodes["y"].with_(inputs=(Edge("x"), Edge("cast")))
    graph = Graph.of([nodes["x"], nodes["w"], cast, product], ["x"], ["y"])
    after = prune_weights(graph, minimum_size=1)["w"].value
    assert after.dtype is DType.HALF
    assert np.count_nonzero(after.array == 0) == 8


def test_values_are_computed_on_access() -> None:
    loads: list[int] = []

    def load() -> Array:
        loads.append(1)
        return np.ones((256, 256), np.float32)

    graph = layer(np.zeros((256, 256), np.float32))
    lazy = graph["w"].with_attrs(value=Tensor(DType.FLOAT, (256, 256), load))
    pruned = prune_weights(Graph.of([graph["x"], lazy, graph["y"]], ["x"], ["y"]))
    assert not loads
    assert np.count_nonzero(pruned["w"].value.array) == 256 * 128
    assert loads


def test_biases_small_weights_and_integers_stay() -> None:
    values = np.ones((4, 4), np.float32)
    assert prune_weights(layer(values)) == layer(values)
    assert prune_weights(layer(values, "Add"), minimum_size=1) == layer(values, "Add")
    integers = layer(np.ones((4, 4), np.int8))
    outcome = prune_weights.outcome(integers, minimum_size=1)
    assert outcome.graph == integers
    assert [str(skip) for skip in outcome.skips] == ["w: the weights of y are int8, not floating-point"]


def test_not_a_number_stays() -> None:
    after = prune(np.array([[np.nan, 1, 2, np.inf]], np.float32), sparsity=0.75)
    assert np.isnan(after[0, 0])
    assert after[0, 1:].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.5}, "must be from 0 to 1, not 1.5"),
        ({"sparsity": float("nan")}, "must be from 0 to 1"),
        ({"sparsity": 0.8, "pattern": "2:4"}, "the pattern 2:4 has sparsity 0.5, not 0.8"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        prune(np.ones((4, 4), np.float32), **options)
