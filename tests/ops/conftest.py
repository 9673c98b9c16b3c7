import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from quantkit.ir.graph import Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.tensorflow import find_op, input_dtypes, num_outputs

Compute = Callable[[Node, Sequence[Array]], list[Array]]
LONG_WORDS = {"float": "float32", "double": "float64", "half": "float16"}


def _attribute(value: Any) -> Any:
    """An attribute as TensorFlow's eager runtime takes it."""
    import tensorflow as tf

    if isinstance(value, tuple):
        return [_attribute(item) for item in value]
    if isinstance(value, DType):
        return tf.dtypes.as_dtype(LONG_WORDS.get(value.value, value.value)).as_datatype_enum
    if isinstance(value, Shape):
        return value.dims
    return value


def _tensor(array: Array, dtype: DType | None) -> Any:
    import tensorflow as tf

    if dtype is not None and dtype.is_quantized:
        return tf.bitcast(tf.constant(array), tf.dtypes.as_dtype(dtype.value))
    return tf.constant(array)


def _compute(node: Node, inputs: Sequence[Array]) -> list[Array]:
    from tensorflow.python.eager import context, execute

    tensors = [_tensor(array, dtype) for array, dtype in zip(inputs, input_dtypes(node), strict=True)]
    op = find_op(node.op)
    assert op is not None
    defaults = {name: attr.default for name, attr in op.attrs.items() if attr.default is not None}
    attrs = [item for key, value in {**defaults, **node.attrs}.items() for item in (key, _attribute(value))]
    made = execute.execute(node.op.encode(), num_outputs(node), tensors, tuple(attrs), context.context())
    return [np.asarray(tensor.numpy()) for tensor in made]


@pytest.fixture(scope="session")
def in_tensorflow() -> Compute:
    """Computes a node with TensorFlow's kernel, eagerly."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    return _compute
