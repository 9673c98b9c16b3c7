"""Sources of a packing: image folders, list files, NumPy files, TFRecord files, tar files and CIFAR archives."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from quantkit.data.dataset import ArrayDataset, Dataset, FileDataset
from quantkit.data.packing import archives, cifar
from quantkit.data.packing.cifar import ArchiveMember
from quantkit.data.packing.items import Kind, Source, SourceItem
from quantkit.data.sources import IMAGE_SUFFIXES, as_dataset, label_of
from quantkit.errors import InputError, UsageError
from quantkit.formats.tfrecord import records_size


def find_source(path: Path, split: str, work: Path) -> Source:
    """List the samples of a source.

    Args:
        path: folder, list file, NumPy file, TFRecord file or tar file.
        split: part of a CIFAR archive, ``train`` or ``test``; empty for the training part.
        work: path of a decompressed copy of a compressed tar file.

    Raises:
        InputError: the source does not exist, is damaged, or has no samples.
        UsageError: `split` is given, and the source has no splits.
    """
    members = _members(path, work)
    version = cifar.find_version([member.name for member in members])
    if version is not None:
        return _cifar_source(path, version, members, split or "train")
    if split:
        raise UsageError(
            f"{path} has no parts 'train' and 'test'", hint="remove --split: only CIFAR archives have them"
        )
    if archives.is_tar(path):
        return _tar_source(path, members)
    return _dataset_source(path, as_dataset(path, keep_order=True))


def _members(path: Path, work: Path) -> list[ArchiveMember]:
    """Return the files that identify a CIFAR source: all members of a tar file, or the files of a folder."""
    if path.is_dir():
        names = os.listdir(path)
        if cifar.find_version(names) is None:
            return []
        return [ArchiveMember(file.name, str(file), 0, file.stat().st_size) for file in map(path.joinpath, names)]
    return archives.list_members(path, work) if path.is_file() and archives.is_tar(path) else []


def _cifar_source(path: Path, version: cifar.Version, members: Sequence[ArchiveMember], split: str) -> Source:
    by_name = {member.base: member for member in members}
    classes = cifar.class_names(version, by_name[version.classes])
    items: list[SourceItem] = []
    for name in version.files(split):
        items += (
            _binary_items(version, by_name[name]) if version.label_bytes else _pickled_items(version, by_name[name])
        )
    (other,) = {*cifar.SPLITS} - {split}
    items = [replace(item, label=_class_name(classes, int(item.label), path)) for item in items]
    kind: Kind = "pixels" if version.label_bytes else "pickled_pixels"
    return Source(str(path), kind, tuple(items), classes, (f"the {other} images are not packed: use --split {other}",))


def _class_name(classes: Sequence[str], number: int, path: Path) -> str:
    if number >= len(classes):
        raise InputError(f"{path} has the class number {number} and {len(classes)} class names")
    return classes[number]


def _binary_items(version: cifar.Version, member: ArchiveMember) -> list[SourceItem]:
    size = version.label_bytes + cifar.PIXEL_BYTES
    data = member.read()
    if len(data) % size:
        raise InputError(f"{member.name} has {len(data):,} bytes, not a multiple of {size:,}")
    starts = range(0, len(data), size)
    return [
        SourceItem(
            f"{member.base}#{row}",
            str(data[start + version.label_bytes - 1]),
            member.path,
            member.offset + start + version.label_bytes,
            cifar.PIXEL_BYTES,
            _stamp(member.path),
        )
        for row, start in enumerate(starts)
    ]


def _pickled_items(version: cifar.Version, member: ArchiveMember) -> list[SourceItem]:
    stamp = _stamp(member.path)
    return [
        SourceItem(f"{member.base}#{row}", str(label), member.path, member.offset, cifar.PIXEL_BYTES, stamp, row)
        for row, label in enumerate(cifar.pickled_labels(version, member))
    ]


def _tar_source(path: Path, members: Iterable[ArchiveMember]) -> Source:
    stamp = _stamp(str(path))
    images = [member for member in members if PurePosixPath(member.name).suffix.lower() in IMAGE_SUFFIXES]
    if not images:
        raise InputError(f"{path} contains no images", hint=f"images end in {', '.join(sorted(IMAGE_SUFFIXES))}")
    items = (
        SourceItem(member.name, label_of(member.name.split("/")), member.path, member.offset, member.size, stamp)
        for member in images
    )
    return _with_classes(Source(str(path), "image", tuple(items)))


def _dataset_source(path: Path, dataset: Dataset) -> Source:
    if isinstance(dataset, ArrayDataset):
        stamp, size = _stamp(str(path)), path.stat().st_size // dataset.size
        rows = (SourceItem(str(row), dataset.labels[row], str(path), 0, size, stamp, row) for row in dataset.rows)
        return _with_classes(Source(str(path), "row", tuple(rows)))
    assert isinstance(dataset, FileDataset)
    if dataset.samples[0].offset is not None:
        return _record_source(path, dataset)
    noun = "images" if dataset.holds_images else "arrays"
    notes = (f"{dataset.skipped_files} other files are not {noun}",) if dataset.skipped_files else ()
    root = path if path.is_dir() else path.parent
    items = tuple(_file_item(sample.path or Path(sample.name), sample.label, root) for sample in dataset.samples)
    return _with_classes(Source(str(path), "image" if dataset.holds_images else "arrays", items, notes=notes))


def _file_item(path: Path, label: str, root: Path) -> SourceItem:
    text, prefix = os.fspath(path), os.path.join(root, "")
    status = os.stat(text)
    return SourceItem(
        text.removeprefix(prefix).replace(os.sep, "/"), label, text, 0, status.st_size, status.st_mtime_ns
    )


def _record_source(path: Path, dataset: FileDataset) -> Source:
    """List the records of TFRecord files, which keep their features."""
    stamps = {
        file: (_stamp(file), records_size(Path(file))) for file in {str(sample.path) for sample in dataset.samples}
    }
    items = []
    for sample, following in zip(dataset.samples, (*dataset.samples[1:], None), strict=True):
        file, offset = str(sample.path), sample.offset or 0
        stamp, end = stamps[file]
        if following is not None and str(following.path) == file and following.offset is not None:
            end = following.offset
        items.append(SourceItem(sample.name, "", file, offset, end - offset, stamp))
    return Source(str(path), "record", tuple(items))


def _with_classes(source: Source) -> Source:
    """Return the source with its class names in sorted order, unless all labels are class numbers."""
    labels = {item.label for item in source.items if item.label}
    if all(label.isdecimal() for label in labels):
        return source
    return replace(source, classes=tuple(sorted(labels)))


def _stamp(path: str) -> int:
    return os.stat(path).st_mtime_ns
