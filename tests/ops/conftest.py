import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from quantkit.ir.graph import Attr, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.kernels import evaluate
from quantkit.ops.tensorflow.signatures import find_op, input_dtypes, num_outputs

Compute = Callable[[Node, Sequence[Array]], list[Array]]
TENSORFLOW_TYPE_NAMES = {"float": "float32", "double": "float64", "half": "float16"}


def _attribute(value: Any) -> Any:
    """Convert an attribute for TensorFlow's eager runtime."""
    import tensorflow as tf

    if isinstance(value, tuple):
        return [_attribute(item) for item in value]
    if isinstance(value, DType):
        return tf.dtypes.as_dtype(TENSORFLOW_TYPE_NAMES.get(value.value, value.value)).as_datatype_enum
    if isinstance(value, Shape):
        return value.dims
    return value


def _tensor(array: Array, dtype: DType | None) -> Any:
    import tensorflow as tf

    if dtype is not None and dtype.value.startswith("q"):
        return tf.bitcast(tf.constant(array), tf.dtypes.as_dtype(dtype.value))
    return tf.constant(array)


def _compute(node: Node, inputs: Sequence[Array]) -> list[Array]:
    from tensorflow.python.eager import context, execute

    tensors = [_tensor(array, dtype) for array, dtype in zip(inputs, input_dtypes(node), strict=True)]
    op = find_op(node.op)
    assert op is not None
    defaults = {name: attr.default for name, attr in op.attrs.items() if attr.default is not None}
    attrs = [item for key, value in {**defaults, **node.attrs}.items() for item in (key, _attribute(value))]
    outputs = execute.execute(node.op.encode(), num_outputs(node), tensors, tuple(attrs), context.context())
    return [np.asarray(tensor.numpy()) for tensor in outputs]


def _typed_node(op: str, inputs: Sequence[Array], **attrs: Attr) -> Node:
    """Return a node with the type attributes of its inputs."""
    signature = find_op(op)
    assert signature is not None
    type_attrs: dict[str, Attr] = {}
    position = 0
    for arg in signature.inputs:
        if arg.type_list_attr:
            type_attrs[arg.type_list_attr] = tuple(DType.of(x.dtype) for x in inputs[position:])
            break
        if arg.type_attr:
            type_attrs[arg.type_attr] = DType.of(inputs[position].dtype)
        if arg.number_attr and arg.number_attr not in {**type_attrs, **attrs}:
            others = sum(not other.number_attr for other in signature.inputs)
            type_attrs[arg.number_attr] = len(inputs) - others
        number = {**type_attrs, **attrs}.get(arg.number_attr, 1)
        position += number if isinstance(number, int) else 1
    return Node("node", op, attrs={**type_attrs, **attrs})


def _check(op: str, inputs: Sequence[Array], rtol: float = 1e-5, **attrs: Attr) -> None:
    node = _typed_node(op, inputs, **attrs)
    results, expected = evaluate(node, inputs), _compute(node, inputs)
    assert len(results) == len(expected)
    for result, reference in zip(results, expected, strict=True):
        assert result.dtype == reference.dtype
        assert result.shape == reference.shape
        if result.dtype == object:
            assert result.tolist() == reference.tolist()
        elif result.dtype.kind in "fc":
            np.testing.assert_allclose(result, reference, rtol=rtol, atol=1e-6)
        else:
            np.testing.assert_array_equal(result, reference)


@pytest.fixture(scope="session")
def typed() -> Callable[..., Node]:
    """Return a function that creates a node with the type attributes of its inputs."""
    return _typed_node


@pytest.fixture(scope="session")
def in_tensorflow() -> Compute:
    """Return a function that computes a node with TensorFlow's kernel."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    return _compute


@pytest.fixture(scope="session")
def check(in_tensorflow: Compute) -> Callable[..., None]:
    """Return a function that compares a kernel with TensorFlow's kernel."""
    return _check
