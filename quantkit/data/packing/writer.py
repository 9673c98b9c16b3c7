"""Writing of one shard: samples are read in the order of the disk, and written in the order of the plan."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from quantkit.data.packing.examples import ImageOptions, make_record
from quantkit.data.packing.items import ChangedSourceError, Kind, SourceItem, check_unchanged, read_content
from quantkit.errors import InputError
from quantkit.formats.documents import check_structure
from quantkit.formats.tfrecord import BATCH_BYTES, frame_records

# Number of samples between two reports of progress.
_REPORT_SAMPLES = 64


@dataclass(frozen=True)
class SkippedSample:
    """Sample that is not packed.

    Attributes:
        name: path relative to the source, or number of the row.
        reason: reason, for example a damaged image.
    """

    name: str
    reason: str


_STRUCTURE = {
    "file": str,
    "num_records": int,
    "num_bytes": int,
    "sha256": str,
    "source_digest": str,
    "offsets": [int],
    "skipped": [{str: str}],
}


@dataclass(frozen=True)
class Shard:
    """Finished shard.

    Attributes:
        file: name of the file.
        num_records, num_bytes: number of records, and size of the file.
        sha256: digest of the file.
        source_digest: SHA-256 of names, labels, sizes and times of the samples and of the options.
        offsets: byte offset of each record.
        skipped: samples that are not packed.
    """

    file: str
    num_records: int
    num_bytes: int
    sha256: str
    source_digest: str
    offsets: tuple[int, ...]
    skipped: tuple[SkippedSample, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Shard":
        """Read the document of `to_json`.

        Raises:
            ValueError, TypeError: the document has another form.
        """
        check_structure(document, _STRUCTURE, "shard")
        if not document["file"] or Path(document["file"]).name != document["file"] or "\0" in document["file"]:
            raise ValueError(f"{document['file']!r} is not the name of a file")
        skipped = tuple(SkippedSample(**sample) for sample in document["skipped"])
        return cls(**{**document, "offsets": tuple(document["offsets"]), "skipped": skipped})


def write_shard(
    path: Path,
    items: Sequence[SourceItem],
    kind: Kind,
    classes: Sequence[str],
    options: ImageOptions,
    source_digest: str,
    on_samples: Callable[[int, int], None],
) -> Shard:
    """Write a shard, which appears under its name when it is complete.

    Args:
        path: file to write.
        items: samples in the order of the records.
        kind: content of the samples.
        classes: class names in the order of the class numbers; empty if labels are numbers.
        options: changes of the images.
        source_digest: digest of the samples and options.
        on_samples: receives the number and the bytes of the samples that were read since the last call.

    Raises:
        InputError: the file cannot be written, or the source changed during the work.
    """
    records, skipped = _read_records(items, kind, classes, options, on_samples)
    part = path.with_name(f".{path.name}.part")
    offsets: list[int] = []
    digest, end = sha256(), 0
    try:
        with part.open("wb") as file:
            for batch in _in_batches(records):
                for framed in frame_records(batch):
                    offsets.append(end)
                    end += len(framed)
                    digest.update(framed)
                    file.write(framed)
        os.replace(part, path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {(error.strerror or 'unknown error').lower()}", hint="free some disk space"
        ) from None
    return Shard(path.name, len(offsets), end, digest.hexdigest(), source_digest, tuple(offsets), tuple(skipped))


def _read_records(
    items: Sequence[SourceItem],
    kind: Kind,
    classes: Sequence[str],
    options: ImageOptions,
    on_samples: Callable[[int, int], None],
) -> tuple[list[bytes], list[SkippedSample]]:
    """Return the records and the skipped samples, both in the order of the items."""
    records: dict[int, bytes] = {}
    skipped: dict[int, SkippedSample] = {}
    count = num_bytes = 0
    for index in sorted(range(len(items)), key=lambda index: (items[index].path, items[index].offset)):
        item = items[index]
        try:
            check_unchanged(item)
            content = read_content(item, kind)
            if kind == "record" and isinstance(content, bytes):
                records[index] = content
            else:
                records[index] = make_record(item, content, classes, options)
        except ChangedSourceError:
            raise
        except InputError as error:
            skipped[index] = SkippedSample(item.name, error.message)
        count, num_bytes = count + 1, num_bytes + item.size
        if count == _REPORT_SAMPLES:
            on_samples(count, num_bytes)
            count = num_bytes = 0
    on_samples(count, num_bytes)
    return [records[index] for index in sorted(records)], [skipped[index] for index in sorted(skipped)]


def _in_batches(records: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    num_bytes = 0
    for record in records:
        batch.append(record)
        num_bytes += len(record)
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
