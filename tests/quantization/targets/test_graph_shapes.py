"""Networks whose ops change the rank or depend on the batch size are quantized for each target."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.quantization import Scheme

tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(0)
SAMPLES = list(RANDOM.normal(0, 1, (8, 8, 8, 3)).astype(np.float32))


def weights(*shape: int) -> Any:
    return tf.constant(RANDOM.normal(0, 0.3, shape).astype(np.float32))


def convolve(x: Any, *shape: int, stride: int = 1) -> Any:
    return tf.nn.conv2d(x, weights(*shape), stride, "SAME")


def insert_axis(x: Any) -> Any:
    mean = tf.reduce_mean(tf.nn.relu(convolve(x, 3, 3, 3, 8)), [1, 2])
    return tf.matmul(tf.reshape(mean[:, tf.newaxis], [-1, 8]), weights(8, 5))


def prepend_token(x: Any) -> Any:
    patches = tf.reshape(tf.nn.relu(convolve(x, 4, 4, 3, 8, stride=4)), [-1, 4, 8])
    tokens = tf.concat([tf.tile(weights(1, 1, 8), [tf.shape(x)[0], 1, 1]), patches], 1)
    return tf.reshape(tf.matmul(tf.reshape(tokens, [-1, 8]), weights(8, 6)), [-1, 5, 6])[:, 0]


def resize_to_input(x: Any) -> Any:
    small = tf.nn.relu(convolve(x, 3, 3, 3, 8, stride=2))
    return convolve(tf.image.resize(small, tf.shape(x)[1:3]), 3, 3, 8, 4)


def flatten_positions(x: Any) -> Any:
    return tf.reshape(convolve(x, 3, 3, 3, 8), [-1, 64, 8])


def unstack_rows(x: Any) -> Any:
    rows = tf.unstack(tf.nn.relu(convolve(x, 3, 3, 3, 8)), axis=1, num=8)
    return tf.matmul(tf.reshape(rows[0] + rows[3], [-1, 64]), weights(64, 4))


@pytest.mark.parametrize(
    ("network", "target", "height"),
    [
        (insert_axis, "onnx", 8),
        (prepend_token, "onnx", 8),
        (resize_to_input, "onnx", None),
        (resize_to_input, "tensorflow", None),
        (flatten_positions, "litert", 8),
        (unstack_rows, "litert", 8),
    ],
)
def test_layers_around_such_ops_are_int8(
    network: Callable[[Any], Any], target: str, height: int | None, tmp_path: Path
) -> None:
    module = tf.Module()
    signature = [tf.TensorSpec((None, height, height, 3), tf.float32, name="x")]
    module.call = tf.function(network, input_signature=signature)
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.call.get_concrete_function())
    result = qk.quantize(tmp_path / "model", SAMPLES, scheme=Scheme.for_target(target), runs=0)
    report = result.report
    assert report.census.float_macs == 0 < report.census.int8_macs
    metrics: Any = report.accuracy.metrics
    assert metrics.worst > 20 if hasattr(metrics, "worst") else metrics.kl_divergence < 0.01
