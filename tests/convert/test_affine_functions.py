"""Gates of recurrent cells as affine functions of their inputs."""

from collections.abc import Mapping

import numpy as np
import pytest

from quantkit.convert.tensorflow_to_onnx.cells import affine_of
from quantkit.ir.graph import Edge
from quantkit.ir.tensor import Shape
from quantkit.ir.text import from_text

GRAPH = """
    inputs: x, h
    outputs: y
    x = Placeholder[?x2]()
    h = Placeholder[?x3]()
    axis = Const[int32](1)
    both = ConcatV2(x, h, axis, N=2)
    w = Const([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]])
    b = Const([0.5, -0.5])
    product = MatMul(both, w, T=float)
    y = BiasAdd(product, b, T=float)
"""
WEIGHTS = np.arange(1, 11, dtype=np.float32).reshape(5, 2)


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": Shape((None, 2)), "h": Shape((None, 3))},
        {"h": Shape((None, 3))},  # the rows of the matrix determine the other width
        {"x": Shape((None, 2)), "h": Shape((None, None))},
    ],
)
def test_a_product_of_concatenated_inputs_has_a_matrix_for_each(shapes: Mapping[str, Shape]) -> None:
    function = affine_of(from_text(GRAPH), {Edge(name): shape for name, shape in shapes.items()}, Edge("y"))
    assert function is not None
    np.testing.assert_array_equal(function.weights[Edge("x")], WEIGHTS[:2])
    np.testing.assert_array_equal(function.weights[Edge("h")], WEIGHTS[2:])
    np.testing.assert_array_equal(function.bias, np.array([0.5, -0.5], np.float32))
    columns = function.columns(slice(1, 2))
    np.testing.assert_array_equal(columns.weights[Edge("h")], WEIGHTS[2:, 1:])
    np.testing.assert_array_equal(columns.bias, np.array([-0.5], np.float32))


@pytest.mark.parametrize("shapes", [{}, {"x": Shape((None, 2)), "h": Shape((None, 2))}, {"h": Shape((3,))}])
def test_inputs_of_unknown_widths_have_no_affine_function(shapes: Mapping[str, Shape]) -> None:
    assert affine_of(from_text(GRAPH), {Edge(name): shape for name, shape in shapes.items()}, Edge("y")) is None
