"""Shards: consecutive samples of a dataset with one result file. They do not depend on the number of workers."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from quantkit.data import ArrayDataset, Dataset, FileDataset
from quantkit.errors import UsageError


@dataclass(frozen=True)
class DataShard:
    """Range of samples.

    Attributes:
        index: number of the shard, from 0.
        start, stop: positions of its first sample and after its last one.
        file: name of its result file.
    """

    index: int
    start: int
    stop: int
    file: str

    @property
    def size(self) -> int:
        return self.stop - self.start


def divide(num_samples: int, shard_size: int, suffix: str) -> list[DataShard]:
    """Divide a dataset into shards.

    >>> [shard.file for shard in divide(5, 3, "jsonl")]
    ['results-00000-of-00002.jsonl', 'results-00001-of-00002.jsonl']
    """
    count = -(-num_samples // shard_size)
    return [
        DataShard(
            index,
            index * shard_size,
            min((index + 1) * shard_size, num_samples),
            f"results-{index:05}-of-{count:05}.{suffix}",
        )
        for index in range(count)
    ]


def data_digest(dataset: Dataset) -> str:
    """Return a digest of the samples: names, sizes and change times of files, or the values of arrays in memory.

    Raises:
        UsageError: the dataset is a stream.
    """
    digest = sha256()
    for part in _facts(dataset):
        digest.update(part)
    return digest.hexdigest()


def _facts(dataset: Dataset) -> Iterator[bytes]:
    if isinstance(dataset, FileDataset):
        file_facts: dict[Path | None, str] = {}
        for sample in dataset.samples:
            if sample.path not in file_facts:
                file_facts[sample.path] = _file_facts(sample.path)
            yield f"{sample}\0{sample.offset}\0{file_facts[sample.path]}\n".encode(errors="surrogateescape")
    elif isinstance(dataset, ArrayDataset):
        yield ",".join(map(str, dataset.rows)).encode()
        if (path := Path(dataset.source)).is_file():
            yield _file_facts(path).encode()
            return
        for sample in dataset.read():
            for name, array in (sample.arrays or {}).items():
                yield f"{name} {array.dtype} {array.shape}\n".encode()
                yield np.ascontiguousarray(array).tobytes() if array.dtype != object else repr(array.tolist()).encode()
    else:
        raise UsageError(
            f"{dataset.source} is read once and in order, and cannot be divided among processes",
            hint="give files, or arrays in memory",
        )


def _file_facts(path: Path | None) -> str:
    """Return size and change time of a file; empty if it cannot be read, which its row then reports."""
    try:
        status = os.stat(path or "")
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"
