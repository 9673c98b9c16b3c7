"""Random input pipelines, for the comparison of a pipeline with its rewritten form."""

import random
from typing import Any

import numpy as np


def make_pipeline(seed: int) -> Any:
    """Return a ``tf.data.Dataset`` of one epoch with two to seven stages; equal seeds give equal pipelines."""
    import tensorflow as tf

    rng = random.Random(seed)
    count = rng.randint(5, 60)
    numbers = np.random.default_rng(seed)
    kind = rng.choice(["floats", "bytes", "examples"])
    if kind == "floats":
        source = tf.data.Dataset.from_tensor_slices(numbers.normal(size=(count, 4, 6)).astype(np.float32))
    elif kind == "bytes":
        rows = [numbers.bytes(24) for _ in range(count)]
        source = tf.data.Dataset.from_tensor_slices(rows).map(lambda row: tf.io.decode_raw(row, tf.uint8))
        source = source.map(lambda row: tf.cast(tf.reshape(row, [4, 6]), tf.float32))
    else:
        rows = [_example(tf, numbers) for _ in range(count)]
        features = {"x": tf.io.FixedLenFeature([4, 6], tf.float32), "k": tf.io.FixedLenFeature([], tf.int64)}
        parsed = tf.data.Dataset.from_tensor_slices(rows).map(lambda row: tf.io.parse_single_example(row, features))
        source = parsed.map(lambda values: values["x"] * tf.cast(values["k"], tf.float32))
    dataset = source
    for _ in range(rng.randint(1, 4)):
        dataset = rng.choice(_STAGES)(tf, dataset, rng)
    size = rng.randint(1, 9)
    dataset = dataset.batch(size, drop_remainder=rng.random() < 0.3)
    for _ in range(rng.randint(0, 2)):
        dataset = rng.choice(_BATCH_STAGES)(tf, dataset, rng)
    return dataset


def _example(tf: Any, numbers: np.random.Generator) -> bytes:
    x = tf.train.Feature(float_list=tf.train.FloatList(value=numbers.normal(size=24)))
    k = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(numbers.integers(1, 9))]))
    features = tf.train.Features(feature={"x": x, "k": k})
    return bytes(tf.train.Example(features=features).SerializeToString())


def _function(tf: Any, rng: random.Random) -> Any:
    """Return a function of a tensor (4, 6) with a result of the same shape."""
    axis = rng.choice([0, 1, -1])
    permutation = rng.choice([[1, 0], [0, 1]])
    scale = rng.choice([2.0, 0.5, -1.0])
    row = tf.constant([float(number) for number in range(6)])
    functions = [
        lambda x: x * scale + 1.0,
        lambda x: tf.maximum(x, row),
        lambda x: tf.reverse(x, [axis]),
        lambda x: tf.reshape(tf.transpose(x, permutation), [4, 6]),
        lambda x: tf.concat([x[:, 3:], x[:, :3]], axis=1),
        lambda x: tf.concat([x[2:], x[:2] * 0.5], axis=0),
        lambda x: tf.stack([x[:, number] for number in range(6)], axis=-1),
        lambda x: x - tf.reduce_max(x, axis=axis, keepdims=True),
        lambda x: tf.where(x > 0, x, tf.zeros_like(x)),
        lambda x: tf.gather(x, [5, 4, 3, 2, 1, 0], axis=1),
        lambda x: tf.pad(x, [[1, 0], [0, 2]])[:4, :6],
        lambda x: tf.squeeze(tf.expand_dims(x, 0), [0]),
        lambda x: tf.tile(x[:, :3], [1, 2]),
        lambda x: tf.one_hot(tf.argmax(x, axis=1), 6) + x,
        lambda x: tf.cast(tf.cast(x, tf.int32) // 2, tf.float32),
        lambda x: tf.add_n(tf.split(tf.concat([x, x], 0), 2, axis=0)),
        lambda x: x + tf.cast(tf.shape(x)[0], tf.float32),
        lambda x: x + tf.ones([4, 1]) * x[0, 0],
        lambda x: tf.sort(x, axis=1),
        lambda x: tf.image.random_flip_left_right(x[:, :, None])[:, :, 0],
    ]
    return rng.choice(functions)


def _map(tf: Any, dataset: Any, rng: random.Random) -> Any:
    calls = rng.choice([None, None, 2])
    return dataset.map(_function(tf, rng), num_parallel_calls=calls)


def _interleave(tf: Any, dataset: Any, rng: random.Random) -> Any:
    function = _function(tf, rng)
    length, block = rng.randint(1, 4), rng.randint(1, 3)
    return dataset.interleave(
        lambda x: tf.data.Dataset.from_tensors(function(x)).repeat(2), cycle_length=length, block_length=block
    )


_STAGES: list[Any] = [
    _map,
    _map,
    _map,
    _interleave,
    lambda tf, dataset, rng: dataset.shuffle(rng.choice([3, 100])),
    lambda tf, dataset, rng: dataset.shuffle(10, seed=rng.randint(1, 9), reshuffle_each_iteration=rng.random() < 0.5),
    lambda tf, dataset, rng: dataset.take(rng.choice([-1, 7, 40])),
    lambda tf, dataset, rng: dataset.skip(rng.choice([0, 3])),
    lambda tf, dataset, rng: dataset.repeat(rng.choice([1, 2])),
    lambda tf, dataset, rng: dataset.prefetch(rng.choice([1, 4])),
    lambda tf, dataset, rng: dataset.filter(lambda x: x[0, 0] > -0.7),
    lambda tf, dataset, rng: dataset.shard(2, rng.randint(0, 1)),
    lambda tf, dataset, rng: dataset.cache(),
    lambda tf, dataset, rng: dataset.map(lambda x: x),
]
_BATCH_STAGES: list[Any] = [
    lambda tf, dataset, rng: dataset.map(lambda x: (x, tf.reduce_sum(tf.cast(x > 0, tf.int32), axis=[1, 2]))[0] * 2.0),
    lambda tf, dataset, rng: dataset.prefetch(2),
    lambda tf, dataset, rng: dataset.shuffle(5),
    lambda tf, dataset, rng: dataset.repeat(2),
]
