"""Division of random maps, compared with the original pipelines."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.pipelines import bridge, caching
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.python_lines import python_lines
from quantkit.pipelines.splitting import split_random_map
from quantkit.pipelines.verification import compare_elements

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.engine

IMAGES = np.random.default_rng(0).integers(0, 255, (20, 6, 8, 3), np.uint8)
OFFSET = tf.constant(3, tf.uint8)
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.range(20), tf.range(20) * 2), -1)


@pytest.fixture(scope="module")
def execution() -> Execution:
    return Execution()


def flip(image: Any, label: Any) -> Any:
    return tf.image.random_flip_left_right(image + OFFSET), label


def crop(image: Any, label: Any) -> Any:
    return {"image": tf.image.random_crop(tf.cast(image, tf.float32) / 255, [4, 4, 3]), "label": TABLE.lookup(label)}


def check_and_brighten(image: Any, label: Any) -> Any:
    tf.debugging.assert_equal(tf.shape(image)[-1], 3)
    return tf.image.random_brightness(image, 0.2), tf.strings.as_string(label)


def in_a_branch(image: Any, label: Any) -> Any:
    half = image // 2
    return tf.cond(label > 5, lambda: tf.image.random_flip_left_right(half), lambda: half), label


def in_a_loop(image: Any, label: Any) -> Any:
    half = image // 2
    for _ in tf.range(3):
        half = tf.image.random_flip_left_right(half)
    return half, label


def before_python(image: Any, label: Any) -> Any:
    return tf.numpy_function(lambda values: values[::-1], [image // 2], tf.uint8), label


@pytest.mark.parametrize("stages", ["map", "shuffle, parallel map, batch"])
@pytest.mark.parametrize(
    ("function", "op"),
    [
        (flip, "RandomUniform"),
        (crop, "RandomUniformInt"),
        (check_and_brighten, "RandomUniform"),
        (in_a_branch, "If"),
        (in_a_loop, "While"),
        (before_python, "PyFunc"),
    ],
)
def test_parts_of_a_map_compute_its_elements(
    function: Callable[[Any, Any], Any], op: str, stages: str, execution: Execution
) -> None:
    source = tf.data.Dataset.from_tensor_slices((IMAGES, tf.range(20)))
    dataset = (
        source.map(function) if stages == "map" else source.shuffle(9).map(function, num_parallel_calls=2).batch(4)
    )
    graph = bridge.to_graph(dataset)
    outcome = split_random_map(graph)
    assert outcome.changes[0].startswith(f"{function.__name__} divided before ")
    assert outcome.changes[0].endswith(f"({op})")
    delayed = caching.delay_shuffles(outcome.graph)
    site = caching.find_cache_site(delayed, execution, 1.0, 10**9)
    assert isinstance(site, caching.CacheSite)
    assert site.stage.endswith("/fixed")
    cached = caching.insert_cache(delayed, site).graph
    for rewritten in (outcome.graph, cached):
        comparison = compare_elements(graph, rewritten, execution, 5.0)
        assert comparison.difference == ""
        assert comparison.num_elements >= 5
    lines = [line.removeprefix("dataset = dataset.").partition("(")[0] for line in python_lines(cached)]
    assert lines[1:3] == ["map", "cache"]


def test_random_part_stays_random() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((IMAGES, tf.range(20))).map(flip)
    graph = split_random_map(bridge.to_graph(dataset)).graph
    divided = bridge.to_dataset(graph, dataset.element_spec)
    first, second = (np.stack([image for image, _ in divided.as_numpy_iterator()]) for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda image, label: (tf.random.uniform([2, 3]), label), "no op before random_uniform"),
        (lambda image, label: (tf.debugging.assert_less(label, 99), tf.random.uniform([]))[1], "no op before"),
        (lambda image, label: (tf.image.random_flip_left_right(image), label), "no op before random_flip_left_right"),
    ],
)
def test_maps_without_a_fixed_part_remain(function: Callable[[Any, Any], Any], reason: str) -> None:
    graph = bridge.to_graph(tf.data.Dataset.from_tensor_slices((IMAGES, tf.range(20))).map(function))
    outcome = split_random_map(graph)
    assert outcome.graph is graph
    assert reason in outcome.skips[0].reason
    pure = bridge.to_graph(tf.data.Dataset.from_tensor_slices(IMAGES).map(lambda image: image + 1))
    assert split_random_map(pure).graph is pure


def test_decoded_images_are_cached_before_the_flip() -> None:
    jpeg = tf.io.encode_jpeg(np.random.default_rng(0).integers(0, 255, (400, 500, 3), np.uint8)).numpy()

    def decode_and_flip(data: Any) -> Any:
        return tf.image.random_flip_left_right(tf.io.decode_jpeg(data)[:8])

    dataset = tf.data.Dataset.from_tensor_slices([jpeg] * 16).shuffle(16).map(decode_and_flip).batch(4)
    result = qk.data.optimize(dataset, time_budget=3)
    assert "cache" in result.applied
    assert "decode_and_flip divided before random_flip_left_right (RandomUniform)" in result.lines()
    assert "map(decode_and_flip_random_part" in result.python()
