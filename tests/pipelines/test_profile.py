"""Profiles of pipelines: the model of the stages, and the limits."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import quantkit as qk
from quantkit.errors import UsageError
from quantkit.pipelines.profiling import PipelineProfile, measure_disk
from quantkit.pipelines.stage_model import StageTime, configured_limit, cores_limit, read_model

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
        1: ModelNode("Prefetch", 10, 10, 1, [2], kind=4),
        2: ModelNode("Batch", 20, 10, 4, [3]),
        3: ModelNode("ParallelMap", 8 * 44, 44, 1, [4], kind=4, calls=calls),
        4: ModelNode("FlatMap", 50, 50, 0, [5], kind=1),
        5: ModelNode("TFRecord", 100, 50, 0, [], num_bytes=5000),
    }
    return SimpleNamespace(nodes=nodes, output=1)


def test_times_and_visits_of_the_stages() -> None:
    stages = read_model(make_model(2))
    assert [stage.name for stage in stages] == ["Prefetch", "Batch", "ParallelMap", "FlatMap", "TFRecord"]
    assert [stage.visits for stage in stages] == [1, 1, 4, 4, 4]
    assert [round(stage.core_seconds * 1e3, 6) for stage in stages] == [1, 2, 32, 4, 8]
    assert [stage.parallelism for stage in stages] == [1, 1, 2, 1, 1]
    assert stages[3].thread == stages[4].thread
    assert len({stage.thread for stage in stages}) == 4
    assert stages[4].bytes_per_element == 100


def test_limits_of_threads_and_cores() -> None:
    stages = read_model(make_model(1))
    limit = configured_limit(stages, 16)
    assert (limit.cause, round(limit.elements_per_second, 3)) == ("ParallelMap", round(1 / 0.032, 3))
    limit = configured_limit(read_model(make_model(8)), 16)
    assert (limit.cause, round(limit.elements_per_second, 3)) == ("TFRecord", round(1 / 0.012, 3))
    assert cores_limit(stages, 2).elements_per_second == pytest.approx(2 / 0.047)
    assert configured_limit(read_model(make_model(8)), 1).cause == "1 cores"


def test_verdict_compares_input_and_consumer() -> None:
    stages = (StageTime("Map", 1, 0.01, 1, 0, False, 0), StageTime("TFRecord", 1, 0.001, 1, 1000, True, 0))
    slow = PipelineProfile(50, 5000, stages, 2, 10_000, 0.01)
    assert slow.bottleneck.cause == "disk"
    assert slow.verdict == "input-bound: the consumer is idle for 50% of the time; the limit is disk"
    fast = PipelineProfile(200, 5000, stages, 2, None, 0.01)
    assert fast.verdict == "the consumer is the limit: it takes 100.0 of 200.0 elements/s"
    assert fast.bottleneck.cause == "Map"
    assert json.loads(json.dumps(slow.to_json()))["disk_limit"] == 10
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
    assert any("Map" in stage.name for stage in result.stages)
    qk.data.pack(tmp_path, tmp_path / "shards", workers=1)
    assert qk.data.profile(tmp_path / "shards", seconds=0.05).bytes_per_second > 0
    dataset = tf.data.Dataset.range(100).map(lambda x: tf.strings.as_string(x)).batch(10)
    assert qk.data.profile(dataset, seconds=0.05, step_seconds="10s").verdict.startswith("the consumer is the limit")
    np.save(tmp_path / "numbers.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(UsageError, match="holds no images"):
        qk.data.profile(tmp_path / "numbers.npy")
