"""Preparation of samples by threads: the same samples, order, batches and errors as without threads."""

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quantkit.data import Dataset, InputPipeline, InputTimes, as_dataset, prepare_batches, prepare_samples
from quantkit.data.images import decode
from quantkit.data.preparation import AHEAD, default_threads, map_ahead
from quantkit.errors import InputError
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes.session import TensorInfo

ASSETS = Path(__file__).parent.parent.parent / "assets"
INPUT = TensorInfo("x", DType.FLOAT, Shape((None, 8, 8, 1)))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Thirty images; the files 4 and 17 are broken."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(30):
        data = b"broken" if number in (4, 17) else (ASSETS / f"digit_{number % 10}.png").read_bytes()
        (folder / f"{number:02}.png").write_bytes(data)
    return as_dataset(folder, keep_order=True)


def input_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("quantkit-input")]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(threads: int, dataset: Dataset) -> None:
    pipeline = InputPipeline.of([INPUT], dataset)
    runs = []
    for count in (0, threads):
        rejected: dict[str, str] = {}
        prepared = list(prepare_samples(dataset.read(), [pipeline], rejected, threads=count))
        runs.append(([sample.name for sample, _ in prepared], [values[0] for _, values in prepared], rejected))
    (names, values, rejected), (other_names, other_values, other_rejected) = runs
    assert names == other_names == [f"{number:02}.png" for number in range(30) if number not in (4, 17)]
    assert np.array_equal(values, other_values)
    assert rejected == other_rejected
    assert list(rejected) == [str(sample) for sample in dataset.read() if sample.name in ("04.png", "17.png")]
    assert not input_threads()


def test_batches_of_a_part_are_those_of_the_whole(dataset: Dataset) -> None:
    pipeline = InputPipeline.of([INPUT], dataset)

    def names(part: Dataset) -> list[list[str]]:
        chunks = prepare_batches(part.read(), [pipeline], 4, {})
        return [[sample.name for sample, _ in chunk] for chunk in chunks]

    whole = names(dataset)
    assert [len(chunk) for chunk in whole] == [4, 3, 4, 4, 3, 4, 4, 2]
    parts = (names(dataset.subset(12, skip, keep_order=True)) for skip in (0, 12, 24))
    assert [chunk for part in parts for chunk in part] == whole


def test_errors_come_at_the_position_of_the_sample(dataset: Dataset) -> None:
    pipeline = InputPipeline.of([INPUT], dataset)
    samples = prepare_samples(dataset.read(), [pipeline])
    assert [next(samples)[0].name for _ in range(4)] == ["00.png", "01.png", "02.png", "03.png"]
    with pytest.raises(InputError, match=r"04\.png' is not an image"):
        next(samples)
    assert not input_threads()


def test_few_items_are_read_ahead_and_the_threads_end_with_the_consumer() -> None:
    items_read: list[int] = []

    def items() -> Iterator[int]:
        for item in range(1, 1000):
            items_read.append(item)
            yield item

    results = map_ahead(lambda item: item * item, items(), 2)
    assert [next(results) for _ in range(3)] == [1, 4, 9]
    assert len(items_read) <= 3 + AHEAD + 2
    results.close()
    assert not input_threads()


def test_times_are_those_of_the_preparation(dataset: Dataset) -> None:
    times = InputTimes()
    list(prepare_samples(dataset.read(), [InputPipeline.of([INPUT], dataset)], {}, times=times))
    assert times.cpu_seconds > 0
    assert times.waiting_seconds > 0
    rates = InputTimes(cpu_seconds=6, waiting_seconds=1).rates(30, 10)
    assert rates == {
        "samples_per_second": 3,
        "samples_per_second_without_overlap": 2,
        "waiting_fraction": 0.1,
    }


def test_warnings_are_restored_after_threads_decoded_images() -> None:
    data = (ASSETS / "digit_3.png").read_bytes()
    before = list(warnings.filters)
    assert len(list(map_ahead(lambda number: decode(data, str(number)), range(200), 4))) == 200
    assert warnings.filters == before
    assert default_threads() >= 1
