"""Optimized pipelines have the elements of the original; rewrites that do not apply give reasons."""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated_pipelines import make_pipeline

import quantkit as qk
from quantkit.cores import available_cores
from quantkit.errors import InputError, UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.pipelines import bridge, caching, optimization
from quantkit.pipelines.execution import Execution
from quantkit.pipelines.gain import Gain, choose, measure_gain, race
from quantkit.pipelines.loading import run_function
from quantkit.pipelines.optimization import REWRITES
from quantkit.pipelines.parallelism import parallelize
from quantkit.pipelines.python_lines import function_name, python_lines
from quantkit.pipelines.short_epochs import find_short_epoch
from quantkit.pipelines.stages import stages_of
from quantkit.pipelines.verification import compare_elements, describe_difference, fix_randomness

tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def execution() -> Execution:
    return Execution()


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> str:
    """TFRecord file with 40 examples of packed bits."""
    path = str(tmp_path_factory.mktemp("records") / "bits.tfrecord")
    generator = np.random.default_rng(0)
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(40):
            bits = tf.train.Feature(bytes_list=tf.train.BytesList(value=[generator.bytes(16)]))
            value = tf.train.Feature(float_list=tf.train.FloatList(value=generator.normal(size=2)))
            features = tf.train.Features(feature={"bits": bits, "value": value})
            writer.write(tf.train.Example(features=features).SerializeToString())
    return path


def article_pipeline(records: str) -> Any:
    """Parse each example alone, batch, and then unpack bits and stack channels."""
    features = {"bits": tf.io.FixedLenFeature([], tf.string), "value": tf.io.FixedLenFeature([2], tf.float32)}

    def parse(record: Any) -> Any:
        return tf.io.parse_single_example(record, features)

    def unpack(example: Any) -> Any:
        raw = tf.io.decode_raw(example["bits"], tf.uint8)
        planes = [
            tf.bitwise.bitwise_and(tf.bitwise.right_shift(raw, tf.constant(bit, tf.uint8)), 1) for bit in range(8)
        ]
        return tf.cast(tf.stack(planes, axis=-1), tf.float32), example["value"]

    return tf.data.TFRecordDataset(records).shuffle(20).map(parse).batch(8).map(unpack)


def rewrite_all(graph: Graph) -> Graph:
    for rewrite in REWRITES.values():
        graph = rewrite(graph).graph
    return graph


def ops_of(graph: Graph) -> list[str]:
    """Return the stages from the source to the end."""
    return [stage.op.removesuffix("V2").removesuffix("V3").removesuffix("Dataset") for stage in stages_of(graph)][::-1]


def elements_of(graph: Graph, execution: Execution) -> list[Any]:
    return list(execution.elements(fix_randomness(graph)))


def assert_same_elements(first: Graph, second: Graph, execution: Execution) -> int:
    """Compare all elements of two pipelines; return their number."""
    expected, actual = elements_of(first, execution), elements_of(second, execution)
    assert len(actual) == len(expected)
    for left, right in zip(expected, actual, strict=True):
        assert not describe_difference(left, right)
    return len(expected)


def test_examples_are_parsed_after_the_batch(records: str, execution: Execution) -> None:
    graph = bridge.to_graph(article_pipeline(records))
    rewritten = rewrite_all(graph)
    assert ops_of(graph) == ["TensorSlice", "FlatMap", "Shuffle", "Map", "Batch", "Map"]
    assert ops_of(rewritten) == ["TensorSlice", "FlatMap", "Shuffle", "Batch", "ParallelMap", "Prefetch"]
    assert assert_same_elements(graph, rewritten, execution) == 5
    lines = python_lines(rewritten)
    assert lines[:3] == [
        f"dataset = tf.data.TFRecordDataset([{records!r}])",
        "dataset = dataset.shuffle(20)",
        "dataset = dataset.batch(8)",
    ]
    assert "num_parallel_calls=tf.data.AUTOTUNE" in lines[3]


def test_python_has_all_parts_of_a_source() -> None:
    source = tf.data.Dataset.from_tensor_slices((["a.jpg"] * 5, tf.range(5), np.zeros((5, 2)))).batch(2)
    lines = python_lines(bridge.to_graph(source))
    assert lines[0] == (
        "dataset = tf.data.Dataset.from_tensor_slices((['a.jpg', 'a.jpg', 'a.jpg', ...], [0, 1, 2, ...], ...))"
    )


def test_result_of_the_function(records: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.pb"
    dataset = article_pipeline(records)
    result = qk.data.optimize(dataset, output=path, time_budget=0.1)
    assert isinstance(result.dataset, tf.data.Dataset)
    assert result.dataset.element_spec == dataset.element_spec
    assert [step.name for step in result.steps] == [*list(REWRITES)[:3], "cache", *list(REWRITES)[3:]]
    assert json.loads(json.dumps(result.to_json()))["schema"] == "quantkit.data_optimize/1"
    assert result._repr_html_().startswith("<pre>")
    assert str(result).startswith(f"{next(iter(REWRITES))}: ")
    assert result.python().startswith("dataset = tf.data.TFRecordDataset")
    loaded = qk.data.load_dataset(str(path))
    assert loaded.element_spec == dataset.element_spec
    assert sorted(value.tobytes() for batch in loaded.unbatch().as_numpy_iterator() for value in batch[1:]) == sorted(
        value.tobytes() for batch in dataset.unbatch().as_numpy_iterator() for value in batch[1:]
    )


@pytest.mark.parametrize("seed", range(12))
def test_generated_pipelines_keep_their_elements(seed: int, execution: Execution) -> None:
    graph = bridge.to_graph(make_pipeline(seed))
    rewritten = rewrite_all(graph)
    assert rewritten != graph
    assert_same_elements(graph, rewritten, execution)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sums of axes": lambda x: (tf.reduce_sum(x, 0), tf.reduce_mean(x, [0, -1]), tf.reduce_any(x > 0, 1, keepdims=True)),
    "slices": lambda x: (x[1], x[..., 1], x[:, ::-1], x[-2:, None, 1:3], tf.slice(x, [1, 0], [2, -1])),
    "other ranks": lambda x: (x + x[0], x[0, 0] * tf.ones([3, 4, 5]), tf.maximum(x, tf.ones([2, 3, 4]))),
    "positions": lambda x: (tf.argmax(x, 1), tf.cumsum(x, axis=0), tf.one_hot([1, 2], 3, axis=0), tf.reverse(x, [0])),
    "joined": lambda x: (tf.stack([x, x], 1), tf.concat([x, tf.ones([1, 4])], 0), tf.unstack(x, axis=1)[2]),
    "parts": lambda x: (tf.split(x, [1, 3], axis=1)[1], tf.split(x, 2, axis=-1)[0], tf.tile(x, [2, 1])),
    "gathered": lambda x: (tf.gather(x, [2, 0], axis=1), tf.gather(tf.constant([5, 6, 7]), tf.argmax(x, 0) % 3)),
    "gathered rows": lambda x: tf.gather(x, tf.argmax(x, 0) % 3, axis=0),
    "shapes": lambda x: (tf.shape(x), tf.reshape(x, [2, -1]), tf.transpose(x), tf.squeeze(x[None, :, :, None])),
    "padded": lambda x: (tf.pad(x, [[1, 1], [0, 2]]), tf.expand_dims(x, -1), tf.broadcast_to(tf.constant(1.0), [2])),
    "texts": lambda x: (tf.strings.as_string(tf.cast(x, tf.int32)), tf.constant(["a", "b"])),
    "mirrored": lambda x: (
        tf.pad(x, [[1, 1], [0, 2]], "REFLECT"),
        tf.math.reduce_euclidean_norm(x, [0, -1]),
        tf.squeeze(x),
    ),
    "sorted": lambda x: (tf.sort(x), tf.nn.softmax(x), x[: tf.shape(x)[0] // 2], tf.gather_nd(x, [[0, 1]])),
    "choices": lambda x: (tf.where(x > 0, x, -x), tf.clip_by_value(x, -0.5, 0.5), tf.cast(x, tf.int8)),
    "nested calls": tf.function(lambda x: tf.nn.relu(x) / 3.0) if hasattr(tf, "function") else abs,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rules_for_batches(name: str, execution: Execution) -> None:
    data = np.random.default_rng(1).normal(size=(7, 3, 4)).astype(np.float32)
    graph = bridge.to_graph(tf.data.Dataset.from_tensor_slices(data).map(FUNCTIONS[name]).batch(3))
    outcome = REWRITES["vectorize_maps"](graph)
    assert outcome.changes, outcome.skips
    assert ops_of(outcome.graph) == ["TensorSlice", "Batch", "Map"]
    assert assert_same_elements(graph, outcome.graph, execution) == 3


SKIPPED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no rule": (lambda x: tf.where(x > 0), "(Where) has no rule for batches"),
    "rounded otherwise": (lambda x: tf.matmul(x[None], x[:, None]), "(MatMul) has no rule for batches"),
    "branch": (lambda x: tf.cond(x[0] > 0, lambda: x, lambda: -x), "(StatelessIf) has no rule for batches"),
    "random": (lambda x: x + tf.random.uniform([4]), "random or has state"),
    "parameter": (
        lambda x: tf.fill(tf.cast(x[:1], tf.int32), 1.0),
        "(Fill) has a parameter that differs from row to row",
    ),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_reasons_against_batches(name: str) -> None:
    function, reason = SKIPPED[name]
    graph = bridge.to_graph(tf.data.Dataset.from_tensor_slices(np.zeros((6, 4), np.float32)).map(function).batch(2))
    outcome = REWRITES["vectorize_maps"](graph)
    assert outcome.graph is graph
    assert reason in str(outcome.skips[0])


@pytest.mark.parametrize("num_maps", [1, 2])
def test_rows_of_different_sizes_are_not_batched(num_maps: int, execution: Execution) -> None:
    """A batch would need one size, which the sums do not."""
    texts = tf.data.Dataset.from_tensor_slices([b"ab", b"abcd", b"ef", b"ghij"])
    if num_maps == 1:
        sums = texts.map(lambda text: tf.reduce_sum(tf.io.decode_raw(text, tf.uint8)))
    else:
        sums = texts.map(lambda text: tf.io.decode_raw(text, tf.uint8)).map(tf.reduce_sum)
    graph = bridge.to_graph(sums.batch(2))
    assert assert_same_elements(graph, rewrite_all(graph), execution) == 2


def test_other_version_of_tensorflow_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = bridge.to_graph(tf.data.Dataset.range(4).map(lambda x: x * 2).batch(2))
    monkeypatch.setitem(sys.modules, "tensorflow.python.ops.parallel_for.pfor", None)
    outcome = REWRITES["vectorize_maps"](graph)
    assert outcome.graph is graph
    assert f"TensorFlow {tf.__version__} has no rules for batches" in str(outcome.skips[0])


def test_errors_of_rules_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tf.data.Dataset.from_tensor_slices(np.zeros((6, 4), np.float32))
    graph = bridge.to_graph(data.map(tf.math.reduce_euclidean_norm).batch(2))
    monkeypatch.delattr(tf.math, "reduce_euclidean_norm")
    with pytest.raises(AttributeError, match="reduce_euclidean_norm"):
        REWRITES["vectorize_maps"](graph)


def test_rules_stay_out_of_the_table_of_tensorflow() -> None:
    """A program may register its own rule for an op type, which TensorFlow permits once."""
    from tensorflow.python.ops.parallel_for import pfor

    graph = bridge.to_graph(tf.data.Dataset.from_tensor_slices(["A", "B"]).map(tf.strings.lower).batch(2))
    assert REWRITES["vectorize_maps"](graph).changes
    assert "StringLower" not in pfor._pfor_converter_registry


def test_random_functions_are_parallel_only_without_a_seed() -> None:
    numbers = tf.data.Dataset.range(5)
    unseeded = bridge.to_graph(numbers.map(lambda x: tf.random.uniform([2])))
    assert REWRITES["parallelize"](unseeded).changes
    seeded = REWRITES["parallelize"](bridge.to_graph(numbers.map(lambda x: tf.random.uniform([2], seed=3))))
    assert "has a seed" in str(seeded.skips[0])
    counter = tf.Variable(0, dtype=tf.int64)
    stateful = REWRITES["parallelize"](bridge.to_graph(numbers.map(lambda x: counter.assign_add(x))))
    assert "has state" in str(stateful.skips[0])


def test_pipeline_with_a_variable_stays_unchanged() -> None:
    """The serialized form of a dataset has a copy of the variable."""
    counter = tf.Variable(0, dtype=tf.int64)
    dataset = tf.data.Dataset.range(4).map(lambda x: counter.assign_add(1))
    result = qk.data.optimize(dataset, time_budget=0.2)
    assert result.dataset is dataset
    assert "uses a variable" in str(result.steps[0].skips)
    assert counter.numpy() == 0


def test_broken_and_empty_pipelines(tmp_path: Path) -> None:
    broken = tf.data.TFRecordDataset("no_such_file")
    for function in (qk.data.optimize, qk.data.profile):
        with pytest.raises(InputError, match="the pipeline fails: no_such_file; No such file or directory$"):
            function(broken)
    empty = tf.data.Dataset.range(0)
    report = str(qk.data.optimize(empty, output=tmp_path / "dataset.pb"))
    assert "the pipeline stays unchanged: the pipeline has no elements" in report
    assert "dataset.pb: quantkit.data.load_dataset reads the dataset" in report
    with pytest.raises(InputError, match="the pipeline has no elements"):
        qk.data.profile(empty)


def test_functions_with_other_elements_in_each_run_are_kept() -> None:
    calls = count()
    dataset = tf.data.Dataset.range(4).map(lambda x: tf.py_function(lambda: next(calls), [], tf.int64))
    result = qk.data.optimize(dataset, time_budget=0.2)
    assert set(result.applied) <= {"add_prefetch"}
    assert "two runs of the pipeline differ" in str(result.steps[0].skips)


def test_cache_is_placed_before_randomness(execution: Execution) -> None:
    dataset = tf.data.Dataset.range(30).map(lambda x: x * 2).shuffle(5).map(lambda x: x + 1).batch(4)
    graph = bridge.to_graph(dataset)
    site = caching.find_cache_site(graph, execution, 1.0, 10**9)
    assert isinstance(site, caching.CacheSite)
    assert (graph[site.stage].op, site.num_elements, site.num_bytes) == ("MapDataset", 30, 240)
    cached = caching.insert_cache(graph, site).graph
    assert ops_of(cached) == ["Range", "Map", "Cache", "Shuffle", "Map", "Batch"]
    assert_same_elements(graph, cached, execution)


def test_elements_of_different_shapes_are_counted(execution: Execution) -> None:
    dataset = tf.data.Dataset.range(7).filter(lambda x: x != 3).map(lambda x: tf.range(x))
    site = caching.find_cache_site(bridge.to_graph(dataset), execution, 5.0, 10**9)
    assert isinstance(site, caching.CacheSite)
    assert site.num_elements == 7  # the bound that follows from the range
    short_of_memory = caching.find_cache_site(bridge.to_graph(dataset), execution, 5.0, site.num_bytes)
    assert isinstance(short_of_memory, caching.CacheSite)
    assert short_of_memory.num_elements == 6


def test_elements_after_a_slow_filter_are_bounded(execution: Execution) -> None:
    """The bound needs no run of the filter, whose elements cannot be counted in the given time."""
    dataset = tf.data.Dataset.range(1000).filter(lambda x: x % 2 == 0).batch(8, drop_remainder=True).prefetch(2)
    site = caching.find_cache_site(bridge.to_graph(dataset), execution, 0.0, 10**9)
    assert isinstance(site, caching.CacheSite)
    assert site.num_elements == 125


def test_shuffles_are_delayed_for_a_cache(execution: Execution) -> None:
    numbers = tf.data.Dataset.range(30).shuffle(5)
    graph = bridge.to_graph(numbers.map(lambda x: x * 2).map(lambda x: (x, x + 1)).batch(4))
    delayed = caching.delay_shuffles(graph)
    assert ops_of(delayed) == ["Range", "Map", "Map", "Shuffle", "Batch"]
    site = caching.find_cache_site(delayed, execution, 1.0, 10**9)
    assert isinstance(site, caching.CacheSite)
    cached = caching.insert_cache(delayed, site).graph
    assert ops_of(cached) == ["Range", "Map", "Map", "Cache", "Shuffle", "Batch"]
    assert assert_same_elements(graph, cached, execution) == 8
    random = bridge.to_graph(numbers.map(lambda x: tf.random.uniform([2])))
    assert caching.delay_shuffles(random) is random


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (lambda numbers: numbers.map(lambda x: x * 2).repeat().batch(2), ""),
        (lambda numbers: numbers.map(lambda x: x * 2).cache().batch(2), "has a cache"),
        (lambda numbers: numbers.map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64)), "random or has state"),
        (lambda numbers: numbers.batch(2), "no function computes"),
    ],
)
def test_reasons_against_a_cache(stages: Callable[[Any], Any], reason: str, execution: Execution) -> None:
    graph = bridge.to_graph(stages(tf.data.Dataset.range(8)))
    site = caching.find_cache_site(graph, execution, 1.0, 10**9)
    if reason:
        assert reason in str(site)
    else:
        assert isinstance(site, caching.CacheSite)
        assert graph[site.stage].op == "MapDataset"
    assert "more than the free memory" in str(
        caching.find_cache_site(bridge.to_graph(tf.data.Dataset.range(8).map(lambda x: x * 2)), execution, 1.0, 1)
    )


def test_wrong_rewrites_are_found(execution: Execution) -> None:
    numbers = tf.data.Dataset.range(70)
    original = bridge.to_graph(numbers.map(lambda x: x * 2).batch(4))
    for other in (
        numbers.map(lambda x: x * 2 + tf.cast(x == 9, tf.int64)).batch(4),
        numbers.map(lambda x: x * 2).batch(4, drop_remainder=True),
        numbers.map(lambda x: x * 2).shuffle(3).batch(4),
        numbers.map(lambda x: x * 2).take(66).batch(4),
    ):
        assert compare_elements(original, bridge.to_graph(other), execution, 1.0).difference
    assert not compare_elements(original, original, execution, 1.0).difference


def test_gain_needs_most_rounds() -> None:
    assert Gain((1.0, 1.0, 1.0), (1.2, 1.1, 1.3)).is_gain
    assert not Gain((1.0, 1.0, 1.0), (1.2, 0.9, 1.3)).is_gain
    assert not Gain((1.0, 1.0, 1.0), (1.01, 1.02, 1.01)).is_gain
    assert Gain((1.0,) * 5, (1.2, 0.9, 1.3, 1.1, 1.1)).is_gain
    assert not Gain((1.0,), (1.2,)).is_gain
    assert Gain((1.0,), (2.0,)).is_gain


class ScriptedExecution:
    """Execution whose rates are given for each pipeline, and whose clock advances by one second per measurement."""

    def __init__(self, **rates: Sequence[float]) -> None:
        self._rates = {name: iter(values) for name, values in rates.items()}
        self.seconds = 0.0

    def rate(self, pipeline: str, duration: float, warmup: float) -> float:
        self.seconds += 1.0
        return next(self._rates[pipeline])

    def clock(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    ("ratios", "seconds", "rounds", "is_gain"),
    [
        ((1.4, 0.9, 1.4, 1.4, 1.4), 5.5, 5, True),  # unclear after three rounds
        ((1.4, 1.3, 1.4), 5.5, 3, True),
        ((1.4, 1.3, 1.4, 1.3), 6.5, 4, True),
        ((1.6, 1.5, 1.6), 60.0, 3, True),  # clear
        ((0.9, 0.9, 0.9), 60.0, 3, False),
        ((0.9, 0.9, 1.5), 5.5, 3, False),
        ((1.4, 1.4), 1.5, 2, False),  # too few rounds for a small gain
        ((1.6,), 0.5, 1, True),
    ],
)
def test_unclear_gain_is_measured_again(ratios: Sequence[float], seconds: float, rounds: int, is_gain: bool) -> None:
    execution: Any = ScriptedExecution(before=(1.0,) * 9, after=ratios)
    gain = measure_gain("before", "after", execution, seconds, execution.clock)
    assert gain.after == tuple(ratios[:rounds])
    assert gain.is_gain == is_gain


def test_slow_pipelines_leave_the_race() -> None:
    script = {"original": (1.0,) * 3, "slow": (0.5,), "close": (1.3,) * 9, "fast": (1.4, 1.2) * 5}
    execution: Any = ScriptedExecution(**script)
    rates = race(list(script), execution, 20.0, execution.clock)
    assert list(map(len, rates)) == [3, 1, 9, 9]
    assert choose(rates) == 3


def test_race_ends_with_its_time() -> None:
    execution: Any = ScriptedExecution(original=(1.0,) * 9, other=(1.2,) * 9)
    rates = race(["original", "other"], execution, 4.5, execution.clock)
    assert rates == [(1.0,) * 3, (1.2,) * 3]
    assert choose(rates) == 1


def fix_gains(monkeypatch: pytest.MonkeyPatch, final: float, *winners: int) -> None:
    """Fix the index of the winner of each race, and the gain of each measurement of two pipelines."""
    indices = iter(winners)

    def win(pipelines: Sequence[Any], *arguments: Any) -> list[tuple[float, ...]]:
        winner = next(indices)
        return [(2.0 if index == winner else 1.0,) for index in range(len(pipelines))]

    monkeypatch.setattr(optimization, "race", win)
    monkeypatch.setattr(optimization, "measure_gain", lambda *arguments: Gain((1.0,) * 3, (final,) * 3))


def test_gain_must_be_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefetch gains in the race, and in the second measurement only with the larger factor."""
    dataset = tf.data.Dataset.range(4)
    for second, applied in ((1.2, ("add_prefetch",)), (1.01, ())):
        fix_gains(monkeypatch, second, 1)
        result = qk.data.optimize(dataset)
        assert result.applied == applied
        assert ("no gain in a second measurement" in str(result)) == (not applied)
        assert (result.dataset is dataset) == (not applied)


def test_parallel_calls_and_prefetch_are_chosen_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six schedules: sequential, automatic and fixed calls, each with and without a prefetch."""
    dataset = tf.data.Dataset.range(40).map(lambda x: x + tf.random.uniform([], 0, 9, tf.int64))
    fix_gains(monkeypatch, 1.5, 5)
    result = qk.data.optimize(dataset, time_budget=1)
    assert result.applied == ("parallelize", "add_prefetch")
    assert [step.gain and step.gain.ratio for step in result.steps[-2:]] == [2.0, 2.0]
    assert ops_of(result.graph) == ["Range", "ParallelMap", "Prefetch"]
    assert f"num_parallel_calls={2 * available_cores()}" in result.python()


def test_number_of_calls_replaces_the_automatic_one() -> None:
    automatic = bridge.to_graph(tf.data.Dataset.range(4).map(lambda x: x + 1, tf.data.AUTOTUNE))
    assert parallelize(automatic).graph is automatic
    assert "num_parallel_calls=6" in python_lines(parallelize(automatic, 6).graph)[-1]


def test_cache_moves_back_before_the_batches(monkeypatch: pytest.MonkeyPatch, execution: Execution) -> None:
    """After a shuffle and a batch, the results of a vectorized map differ in every epoch."""
    fix_gains(monkeypatch, 2.0, 1, 4)
    dataset = tf.data.Dataset.range(40).shuffle(40).map(lambda x: x * 2).batch(8)
    result = qk.data.optimize(dataset, time_budget=5)
    assert result.applied == ("cache", "parallelize", "add_prefetch")
    assert "vectorize_maps: not applied: the cache before the batches is faster" in str(result)
    assert ops_of(result.graph) == ["Range", "ParallelMap", "Cache", "Shuffle", "Batch", "Prefetch"]
    assert assert_same_elements(result.original, result.graph, execution) == 5


def test_caches_stay_filled_between_measurements(execution: Execution) -> None:
    calls = count()
    dataset = tf.data.Dataset.range(6).map(lambda x: tf.py_function(lambda: next(calls), [], tf.int64)).cache()
    opened = execution.open(bridge.to_graph(dataset), fill_seconds=5.0)
    for _ in range(2):
        assert execution.rate(opened, 0.0, 0.0) > 0
    assert next(calls) == 6


def test_short_epochs_take_about_a_time(execution: Execution) -> None:
    graph = bridge.to_graph(tf.data.Dataset.range(50).map(lambda x: x * 2).batch(4))
    (source,) = (stage.name for stage in stages_of(graph) if stage.op == "RangeDataset")
    end = graph.outputs[0].node
    whole = find_short_epoch(graph, end, source, execution, 60.0)
    assert whole.count >= 50
    assert find_short_epoch(graph, end, source, execution, 0.0).count < 50


def test_short_epochs_have_elements(execution: Execution) -> None:
    """The first trials have fewer elements than a batch, which drops them."""
    graph = bridge.to_graph(tf.data.Dataset.range(1200).batch(512, drop_remainder=True))
    (source,) = (stage.name for stage in stages_of(graph) if stage.op == "RangeDataset")
    end = graph.outputs[0].node
    assert 512 <= find_short_epoch(graph, end, source, execution, 0.0).count < 1200
    assert find_short_epoch(graph, end, source, execution, 60.0).count >= 1200


def test_function_names() -> None:
    assert function_name("__inference_Dataset_map_parse_34") == "parse"
    assert function_name("__inference_Dataset_map_lambda_34__batched") == "function_batch"
    assert function_name("__inference_Dataset_map_a_1____inference_Dataset_map_b_2") == "a_then_b"


def test_function_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text("def numbers():\n    return [1, 2]\ndef broken():\n    raise ValueError('no data')\n")
    assert run_function(f"{file}:numbers") == [1, 2]
    with pytest.raises(InputError, match=r"broken fails: .*pipeline\.py, line 4: ValueError: no data"):
        run_function(f"{file}:broken")
    with pytest.raises(UsageError, match="has no function 'number'") as caught:
        run_function(f"{file}:number")
    assert caught.value.hint == "did you mean 'numbers'?"
    with pytest.raises(UsageError, match="names no function"):
        run_function(str(file))
    with pytest.raises(UsageError, match="is not a tf.data.Dataset"):
        qk.data.optimize([1, 2])  # type: ignore[arg-type]


def test_files_of_other_kinds_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "empty.pb").write_bytes(b"")
    with pytest.raises(InputError, match="is not a dataset of quantkit"):
        qk.data.load_dataset(str(tmp_path / "empty.pb"))
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))
    result = qk.data.optimize(ragged, time_budget=0.2)
    assert result.applied == ()
    with pytest.raises(UnavailableError, match="cannot be written to a file"):
        result.save(tmp_path / "ragged.pb")


def test_gain_states_the_rates_of_its_median_round() -> None:
    gain = Gain((80.0, 50.0, 10.0, 40.0), (1777.0, 1750.0, 400.0, 60.0))
    assert gain.ratio == 1777 / 80
    assert gain.middle_rates == (80.0, 1777.0)


def test_relevant_gain_of_few_rounds_is_not_called_no_gain() -> None:
    gain = Gain((80.0, 60.0), (1300.0, 59.0))
    assert not gain.is_gain
    assert gain.objection == "no gain"
    assert Gain((80.0,), (90.0,)).objection == "the time budget is too short to show a gain"
