"""Profiles of pipelines: the model of the stages, and the limits."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from records import write_records

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.pipelines import bridge
from quantkit.pipelines.profiling import PipelineProfile, measure_disk
from quantkit.pipelines.python_lines import stage_labels
from quantkit.pipelines.stage_model import StageTime, configured_limit, cores_limit, model_extent, read_model

KINDS = {0: "UNKNOWN", 1: "INTERLEAVE_MANY", 3: "KNOWN_RATIO", 4: "ASYNC_KNOWN_RATIO"}


class ModelNode:
    """Stage of a model, with the fields of TensorFlow's message."""

    DESCRIPTOR = SimpleNamespace(
        fields_by_name={
            "node_class": SimpleNamespace(
                enum_type=SimpleNamespace(
                    values_by_number={number: SimpleNamespace(name=name) for number, name in KINDS.items()}
                )
            )
        }
    )

    def __init__(
        self, name: str, milliseconds: float, count: int, ratio: float, inputs: list[int], **fields: Any
    ) -> None:
        self.name = name
        self.processing_time = int(milliseconds * 1e6)
        self.num_elements = count
        self.ratio = ratio
        self.inputs = inputs
        self.bytes_produced = fields.get("num_bytes", 0)
        self.node_class = fields.get("kind", 3)
        calls = fields.get("calls")
        self.parameters = [SimpleNamespace(name="parallelism", value=calls)] if calls else []


def make_model(calls: int) -> Any:
    """Return a model: records, a parallel map of 8 ms for each of 4 records in a batch, and a prefetch."""
    nodes = {
        -1: ModelNode("Root", 0, 100, 1, [0]),
        0: ModelNode("ForeverRepeat", 50, 100, 1, [1]),
        1: ModelNode("Prefetch", 10, 10, 1, [2], kind=4),
        2: ModelNode("Batch", 20, 10, 4, [3]),
        3: ModelNode("ParallelMap", 8 * 44, 44, 1, [4], kind=4, calls=calls),
        4: ModelNode("FlatMap", 50, 50, 0, [5], kind=1),
        5: ModelNode("TFRecord", 100, 50, 0, [], num_bytes=5000),
    }
    return SimpleNamespace(nodes=nodes, output=-1)


def test_times_and_visits_of_the_stages() -> None:
    stages = read_model(make_model(2))
    assert [stage.name for stage in stages] == ["Prefetch", "Batch", "ParallelMap", "FlatMap", "TFRecord"]
    assert [stage.visits for stage in stages] == [1, 1, 4, 4, 4]
    assert [round(stage.core_seconds * 1e3, 6) for stage in stages] == [1, 2, 32, 4, 8]
    assert [stage.parallelism for stage in stages] == [1, 1, 2, 1, 1]
    assert stages[3].thread == stages[4].thread
    assert len({stage.thread for stage in stages}) == 4
    assert stages[4].bytes_per_element == 100


def test_models_with_missing_stages_have_a_smaller_extent() -> None:
    whole, ended = make_model(2), make_model(2)
    assert model_extent(whole) == (4, 10 + 10 + 44 + 50 + 50)
    ended.nodes[3].inputs, ended.nodes[3].num_elements = [], 400
    assert model_extent(ended) == (3, 10 + 10 + 400)
    assert model_extent(whole) > model_extent(ended)


def test_inner_datasets_belong_to_their_interleave() -> None:
    model = make_model(2)
    model.nodes[4].inputs += [6, 7]
    model.nodes[6] = ModelNode("TensorSlice", 100, 20, 1, [8])
    model.nodes[7] = ModelNode("FixedLengthRecordV2", 100, 30, 1, [])
    model.nodes[8] = ModelNode("Map", 50, 30, 1, [])
    stages = read_model(model)
    assert [stage.name for stage in stages] == ["Prefetch", "Batch", "ParallelMap", "FlatMap", "TFRecord"]
    assert stages[3].seconds * 1e3 == pytest.approx((50 + 100 + 100 + 50) / 50)


def test_limits_of_threads_and_cores() -> None:
    stages = read_model(make_model(1))
    limit = configured_limit(stages, 16)
    assert (limit.cause, round(limit.elements_per_second, 3)) == ("ParallelMap", round(1 / 0.032, 3))
    limit = configured_limit(read_model(make_model(8)), 16)
    assert (limit.cause, round(limit.elements_per_second, 3)) == ("TFRecord", round(1 / 0.012, 3))
    assert cores_limit(stages, 2).elements_per_second == pytest.approx(2 / 0.047)
    assert configured_limit(read_model(make_model(8)), 1).cause == "1 cores"


def test_verdict_compares_input_and_consumer() -> None:
    stages = (StageTime("Map", 1, 0.01, 1, 0, 0), StageTime("TFRecord", 1, 0.001, 1, 0, 1000))
    slow = PipelineProfile(50, 5000, stages, 2, 1000, 60_000, 0.01)
    assert slow.bottleneck.cause == "disk"
    assert slow.verdict == "input-bound: the consumer is idle for 50% of the time; the limit is disk"
    fast = PipelineProfile(200, 5000, stages, 2, None, None, 0.01)
    assert fast.verdict == "the consumer is the limit: it takes 100.0 of 200.0 elements/s"
    assert fast.bottleneck.cause == "Map"
    assert fast.bottleneck.elements_per_second == 200
    cached = PipelineProfile(50, 5000, stages, 2, 1000, 10_000, 0.01)
    assert cached.bottleneck.cause == "Map"
    assert "10.0 elements/s at 10 kB/s, 1000 bytes for each element; the page cache held the files" in str(cached)
    assert json.loads(json.dumps(slow.to_json()))["disk_limit"] == 60
    assert "TFRecord" in str(slow)
    assert slow._repr_html_().startswith("<pre>")


def test_disk_is_measured_on_files(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    rate = measure_disk([tmp_path / "data"])
    assert rate is not None
    assert rate > 0
    assert measure_disk([]) is None


@pytest.mark.engine
def test_profile_of_a_dataset_and_of_images(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    for number in range(3):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    result = qk.data.profile(tmp_path, seconds=0.05)
    assert result.elements_per_second > 0
    assert result.disk_bytes_per_second is not None
    assert any("map(decode)" in stage.name for stage in result.stages)
    qk.data.pack(tmp_path, tmp_path / "shards", workers=1)
    assert qk.data.profile(tmp_path / "shards", seconds=0.05).bytes_per_second > 0
    dataset = tf.data.Dataset.range(100).map(lambda x: tf.strings.as_string(x)).batch(10)
    assert qk.data.profile(dataset, seconds=0.05, step_seconds="10s").verdict.startswith("the consumer is the limit")
    np.save(tmp_path / "numbers.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(UsageError, match="holds no images"):
        qk.data.profile(tmp_path / "numbers.npy")


SIZE = 50_000


def _files(tf: Any, folder: Path) -> Any:
    return tf.data.Dataset.from_tensor_slices([str(folder / f"{number}.bin") for number in range(16)])


def _length(path: Any) -> Any:
    import tensorflow as tf

    return tf.strings.length(tf.io.read_file(path))


PIPELINES: dict[str, tuple[Callable[[Any, Path], Any], float, list[str]]] = {
    "batch": (lambda tf, folder: _files(tf, folder).map(_length).batch(4), 4, ["map(_length).batch(4)"]),
    "parallel map after a shuffle": (
        lambda tf, folder: _files(tf, folder).shuffle(16).map(_length, num_parallel_calls=2).prefetch(2),
        1,
        ["prefetch(2)", "map(_length)", "shuffle(16)"],
    ),
    "list of files": (
        lambda tf, folder: tf.data.Dataset.list_files(str(folder / "*.bin"), shuffle=False).map(_length).repeat(),
        1,
        ["repeat()", "map(_length)"],
    ),
    "parts of files": (
        lambda tf, folder: _files(tf, folder).interleave(
            lambda path: tf.data.FixedLengthRecordDataset(path, SIZE // 10), cycle_length=2
        ),
        0.1,
        ["interleave(function)"],
    ),
    "NumPy": (
        lambda tf, folder: _files(tf, folder).map(
            lambda path: tf.numpy_function(lambda name: np.fromfile(name.decode(), np.uint8), [path], tf.uint8)
        ),
        1,
        ["map(function)"],
    ),
}


@pytest.mark.engine
@pytest.mark.parametrize("name", PIPELINES)
def test_disk_limit_counts_the_bytes_of_the_files(name: str, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    for number in range(16):
        (tmp_path / f"{number}.bin").write_bytes(bytes(SIZE))
    make, files_per_element, labels = PIPELINES[name]
    result = qk.data.profile(make(tf, tmp_path), seconds=0.4)
    assert result.read_bytes == pytest.approx(SIZE * files_per_element, rel=0.5)
    assert result.disk is not None
    assert result.disk_bytes_per_second is not None
    assert result.read_bytes is not None
    assert result.disk.elements_per_second == result.disk_bytes_per_second / result.read_bytes
    names = [stage.name for stage in result.stages]
    assert [label for label in names if label in labels] == labels
    assert {"Root", "ForeverRepeat", "TensorSlice"}.isdisjoint(names)


@pytest.mark.engine
def test_stages_have_the_names_of_the_program(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    write_records(tmp_path / "a.tfrecord", [b"a"])
    records = bridge.to_graph(tf.data.TFRecordDataset(str(tmp_path / "a.tfrecord")).take(-1).shuffle(3).batch(2))
    names = ["Prefetch", "BatchV2", "Shuffle", "FlatMap", "TensorSlice"]
    assert stage_labels(records, names) == ["", "batch(2)", "shuffle(3)", "TFRecordDataset", ""]
    zipped = bridge.to_graph(tf.data.Dataset.zip(tf.data.Dataset.range(3), tf.data.Dataset.range(3).map(_double)))
    assert stage_labels(zipped, ["Zip", "Range", "ParallelMapV2", "Range"]) == ["zip", "range", "map(_double)", "range"]


def _double(number: Any) -> Any:
    return number * 2
