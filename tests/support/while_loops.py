"""Frozen graphs with while loops of TensorFlow 1 between int8 layers."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from quantkit.formats import graphdef
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array

NUM_STEPS = 5
STATE_SIZE = 32
LOOPS = ("cell", "sequence", "nested")


def images(count: int = 16) -> Array:
    """Return inputs of the graphs, (count, 8, 8, 3)."""
    return np.random.default_rng(1).normal(0, 1, (count, 8, 8, 3)).astype(np.float32)


@cache
def loop_graph(kind: str) -> Graph:
    """Return a convolution, a loop, a matrix product and a softmax.

    Args:
        kind: ``cell`` for a recurrent cell with constants inside and outside the loop, ``sequence`` for a recurrent
            layer that reads and writes tensor arrays, ``nested`` for a loop in a loop.
    """
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    v1 = tf.compat.v1
    generator = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> Any:
        return tf.constant(generator.normal(0, shape[-2] ** -0.5, shape).astype(np.float32), name=name)

    was_v2 = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [None, 8, 8, 3], "x")
            y = tf.nn.conv2d(x, weights("kernel", 3, 3, 3, 8) / 3.0, 1, "SAME")
            y = tf.nn.relu(tf.nn.bias_add(y, tf.fill([8], 0.1)))
            state = {"cell": _build_cell, "sequence": _build_sequence, "nested": _build_nested}[kind](tf, y, weights)
            tf.nn.softmax(tf.matmul(state, weights("head", STATE_SIZE, 10), name="logits"), name="y")
    finally:
        if was_v2:
            v1.enable_control_flow_v2()
    return graphdef.decode(graph.as_graph_def().SerializeToString()).with_endpoints(["x"], ["y"])


def _build_cell(tf: Any, y: Any, weights: Callable[..., Any]) -> Any:
    z = tf.matmul(tf.reshape(y, [-1, 512]), weights("embedding", 512, STATE_SIZE))
    outside = weights("outside", STATE_SIZE, STATE_SIZE)

    def step(number: Any, state: Any, previous: Any) -> Any:
        inside = weights("inside", STATE_SIZE, STATE_SIZE)
        return number + 1, tf.tanh(tf.matmul(state, outside) + tf.nn.relu(tf.matmul(previous, inside)) + z), state

    return tf.compat.v1.while_loop(
        lambda number, *_: number < NUM_STEPS, step, [tf.constant(0), tf.zeros_like(z), tf.ones_like(z)]
    )[1]


def _build_sequence(tf: Any, y: Any, weights: Callable[..., Any]) -> Any:
    rows = tf.TensorArray(tf.float32, 8).unstack(tf.transpose(tf.reshape(y, [-1, 8, 64]), [1, 0, 2]))
    states = tf.TensorArray(tf.float32, 8)
    from_row, from_state = weights("from_row", 64, STATE_SIZE), weights("from_state", STATE_SIZE, STATE_SIZE)

    def step(number: Any, state: Any, states: Any) -> Any:
        state = tf.tanh(tf.matmul(state, from_state) + tf.matmul(rows.read(number), from_row))
        return number + 1, state, states.write(number, state)

    start = tf.zeros([tf.shape(y)[0], STATE_SIZE])
    states = tf.compat.v1.while_loop(lambda number, *_: number < 8, step, [tf.constant(0), start, states])[2]
    return states.stack()[-1]


def _build_nested(tf: Any, y: Any, weights: Callable[..., Any]) -> Any:
    z = tf.matmul(tf.reshape(y, [-1, 512]), weights("embedding", 512, STATE_SIZE))

    def inner(number: Any, state: Any) -> Any:
        return number + 1, tf.tanh(tf.matmul(state, weights("inner", STATE_SIZE, STATE_SIZE)))

    def outer(number: Any, state: Any) -> Any:
        return number + 1, tf.compat.v1.while_loop(lambda j, _: j < 2, inner, [tf.constant(0), state])[1] + z

    return tf.compat.v1.while_loop(lambda i, _: i < 3, outer, [tf.constant(0), z])[1]
