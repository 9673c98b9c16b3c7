"""Division of a source into shards, each with a digest of all that its bytes depend on."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from quantkit.data.packing.examples import ImageOptions, make_record
from quantkit.data.packing.items import Source, SourceItem, read_content
from quantkit.errors import QuantkitError

# Version of the records: a change of the code that changes their bytes changes this number.
FORMAT = 1
# Number of samples whose records estimate the size of all records, where images are encoded again.
_ESTIMATE_SAMPLES = 32


@dataclass(frozen=True)
class ShardTask:
    """One shard to write.

    Attributes:
        file: name of the file.
        items: samples in the order of the records.
        digest: SHA-256 of names, labels, sizes and times of the samples and of the options.
    """

    file: str
    items: tuple[SourceItem, ...]
    digest: str

    @property
    def num_bytes(self) -> int:
        """Size of the samples in the source."""
        return sum(item.size for item in self.items)


def divide(source: Source, name: str, shard_bytes: int, options: ImageOptions) -> list[ShardTask]:
    """Divide the samples into shards of about equal size.

    Args:
        source: samples in the order of the records.
        name: first part of the file names.
        shard_bytes: approximate size of a shard.
        options: changes of the images.
    """
    ratio = _size_ratio(source, options)
    ends = _cumulative([item.size for item in source.items])
    total = ends[-1]
    count = max(1, min(round(total * ratio / shard_bytes), len(source.items)))
    groups: list[list[SourceItem]] = [[] for _ in range(count)]
    for item, end in zip(source.items, ends, strict=True):
        middle = end - item.size / 2
        groups[min(int(middle * count / total), count - 1) if total else 0].append(item)
    groups = [group for group in groups if group]
    settings = [FORMAT, source.kind, options.to_json(), list(source.classes)]
    return [
        ShardTask(f"{name}-{index:05}-of-{len(groups):05}.tfrecord", tuple(group), _digest(group, settings))
        for index, group in enumerate(groups)
    ]


def _size_ratio(source: Source, options: ImageOptions) -> float:
    """Return the size of the records divided by the size of the samples, estimated from the first samples."""
    stored = size = 0
    for item in source.items[:_ESTIMATE_SAMPLES]:
        try:
            content = read_content(item, source.kind)
            is_record = source.kind == "record" and isinstance(content, bytes)
            record = content if is_record else make_record(item, content, source.classes, options)
        except QuantkitError:
            continue
        stored += len(record)
        size += item.size
    return stored / size if size else 1.0


def _cumulative(sizes: Sequence[int]) -> list[int]:
    total, ends = 0, []
    for size in sizes:
        total += size
        ends.append(total)
    return ends


def _digest(items: Sequence[SourceItem], settings: list[Any]) -> str:
    values = [[item.name, item.label, os.path.basename(item.path), *item.to_list()[3:]] for item in items]
    return sha256(json.dumps([settings, values]).encode()).hexdigest()
