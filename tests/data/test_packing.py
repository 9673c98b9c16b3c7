"""Packing of sources into TFRecord shards: content, resumption, verification."""

import gzip
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inline_clusters import use_inline_workers
from PIL import Image
from records import example, write_records

import quantkit as qk
from quantkit.data import as_dataset
from quantkit.data.dataset import FileDataset
from quantkit.data.packing import pack, read_index, verify
from quantkit.data.packing.pickles import read_pickle
from quantkit.data.packing.workflow import parse_size
from quantkit.errors import CheckError, InputError, UnavailableError, UsageError
from quantkit.formats.tfrecord import parse_example, read_record, record_offsets

CLASSES = ("cat", "dog", "owl")
NAMES = [f"class{number}" for number in range(10)]


def encode(pixels: Any, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def pixels_of(seed: int, size: int = 8) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """One folder per class, with four images each."""
    root = tmp_path / "pets"
    for number in range(12):
        folder = root / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        kind = "JPEG" if number % 2 else "PNG"
        (folder / f"{number}.{kind.lower()}").write_bytes(encode(pixels_of(number), kind))
    return root


def read_all(files: Any) -> list[Any]:
    """Return the features of all records."""
    return [parse_example(read_record(file, offset), file.name) for file in files for offset in record_offsets(file)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_image_folder_becomes_shards_with_index_and_labels(images: Path, tmp_path: Path) -> None:
    (images / "cat" / "notes.txt").write_text("no image")
    result = pack(images, tmp_path / "shards", shard_size="1kB", workers=2)
    names = [path.name for path in result.files]
    assert len(names) > 1
    assert names == [f"pets-{number:05}-of-{len(names):05}.tfrecord" for number in range(len(names))]
    assert (tmp_path / "shards" / "pets.labels.txt").read_text().split() == list(CLASSES)
    records = read_all(result.files)
    assert len(records) == result.num_records == 12
    for features in records:
        name = features["image/filename"][0].decode()
        assert features["image/encoded"] == [(images / name).read_bytes()]
        assert features["image/class/text"] == [Path(name).parent.name.encode()]
        assert CLASSES[features["image/class/label"][0]] == Path(name).parent.name
        assert (features["image/height"][0], features["image/width"][0], features["image/channels"][0]) == (8, 8, 3)
        assert features["image/format"][0].decode().lower() == Path(name).suffix[1:]
    index = read_index(tmp_path / "shards" / "pets.index.json")
    assert [list(shard.offsets) for shard in index.shards] == [record_offsets(path) for path in result.files]
    assert [shard.sha256 for shard in index.shards] == [sha256(path.read_bytes()).hexdigest() for path in result.files]
    labels = {features["image/filename"][0]: features["image/class/label"][0] for features in records}
    assert list(labels.values()) != sorted(labels.values())  # the classes are mixed
    assert result.notes == ("1 other files are not images",)
    assert len(os.listdir(tmp_path / "shards")) == len(names) + 2
    assert "12 records of 3 classes" in str(result)
    assert json.loads(json.dumps(result.to_json()))["records"] == 12


def test_names_may_hold_any_bytes_and_classes_only_text(images: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.png")
    try:
        (images / "cat" / name).write_bytes(encode(pixels_of(0)))
    except OSError:
        pytest.skip("this file system takes no such name")
    dataset = as_dataset(images, limit=5)
    assert isinstance(dataset, FileDataset)
    assert len(dataset.samples) == 5
    records = read_all(pack(images, tmp_path / "shards").files)
    assert b"cat/\xff.png" in {record["image/filename"][0] for record in records}
    (images / "cat").rename(images / os.fsdecode(b"\xff"))
    with pytest.raises(InputError, match="the class name .* is not UTF-8"):
        pack(images, tmp_path / "others")


def test_shards_do_not_depend_on_workers_and_can_be_evaluated(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "one", shard_size=1000, workers=1)
    pack(images, tmp_path / "two", shard_size=1000, workers=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    dataset = as_dataset(tmp_path / "one")
    assert isinstance(dataset, FileDataset)
    assert sorted(int(sample.label) for sample in dataset.read()) == [0] * 4 + [1] * 4 + [2] * 4


def test_killed_packing_is_resumed_with_the_same_bytes(images: Path, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from quantkit.data.packing import index, pack\n"
        "add = index.Journal.add\n"
        "def add_and_die(journal, shard):\n"
        "    add(journal, shard)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "index.Journal.add = add_and_die\n"
        "pack(sys.argv[1], sys.argv[2], shard_size=600, workers=2)\n"
    )
    folder = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", script, images, folder], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (folder / "pets.index.json").exists()
    messages: list[str] = []
    result = pack(images, folder, shard_size=600, workers=1, on_message=messages.append)
    assert any("resuming: 1 of" in message for message in messages)
    assert len(result.written) == len(result.files) - 1
    pack(images, tmp_path / "whole", shard_size=600, workers=1)
    assert contents(folder) == contents(tmp_path / "whole")
    again = pack(images, folder, shard_size=600)
    assert again.written == ()
    assert "all shards were complete" in str(again)


def test_a_lost_worker_is_reported_with_the_way_to_resume(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_inline_workers(monkeypatch, lambda message: message is not None, "data.packing.pool")
    with pytest.raises(UnavailableError, match="was ended by SIGKILL") as lost:
        pack(images, tmp_path / "shards", shard_size=600, workers=2)
    assert lost.value.hint.startswith("the system ends the largest process when memory runs out")
    assert "run the same command to resume; fewer --workers need less memory" in lost.value.hint


def test_changed_source_rewrites_only_its_shard(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "shards", shard_size=800, workers=1)
    changed = images / "owl" / "2.png"
    status = changed.stat()
    data = bytearray(changed.read_bytes())
    changed.write_bytes(data)
    os.utime(changed, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    result = pack(images, tmp_path / "shards", shard_size=800, workers=1)
    assert len(result.written) == 1 < len(result.files)
    assert verify(tmp_path / "shards").ok
    with pytest.raises(UsageError, match="shards of another packing"):
        pack(images, tmp_path / "shards", shard_size="1MB")


def test_damaged_images_are_listed(images: Path, tmp_path: Path) -> None:
    (images / "dog" / "text.jpg").write_text("no image")
    (images / "dog" / "empty.png").write_bytes(b"")
    (images / "dog" / "cut.jpeg").write_bytes(encode(pixels_of(0, 64), "JPEG")[:-200])
    result = pack(images, tmp_path / "shards", workers=1)
    assert result.num_records == 12
    assert {sample.name for sample in result.skipped} == {"dog/text.jpg", "dog/empty.png", "dog/cut.jpeg"}
    assert all(sample.reason for sample in result.skipped)
    assert "3 samples are not packed" in str(result)


def test_shard_of_damaged_images_is_skipped(images: Path, tmp_path: Path) -> None:
    for number in range(3):
        (images / "cat" / f"0{number}.png").write_bytes(b"not an image" * 20)
    result = pack(images, tmp_path / "shards", shard_size=1, workers=1, keep_order=True)
    empty = [path for path in result.files if not path.stat().st_size]
    assert empty
    assert as_dataset(tmp_path / "shards").size == 12
    with pytest.raises(InputError, match="is empty"):
        as_dataset(empty[0])


def test_images_can_be_resized_and_encoded_again(images: Path, tmp_path: Path) -> None:
    (images / "cat" / "large.png").write_bytes(encode(pixels_of(1, 40)[:, :20]))
    (images / "cat" / "web.webp").write_bytes(encode(pixels_of(1, 6), "WEBP"))
    records = read_all(pack(images, tmp_path / "small", resize=10, workers=1).files)
    by_name = {features["image/filename"][0]: features for features in records}
    large = by_name[b"cat/large.png"]
    assert (large["image/height"][0], large["image/width"][0], large["image/format"]) == (20, 10, [b"PNG"])
    assert by_name[b"cat/web.webp"]["image/format"] == [b"PNG"]  # TensorFlow does not decode WebP
    assert by_name[b"cat/0.png"]["image/encoded"] == [(images / "cat/0.png").read_bytes()]
    encoded = read_all(pack(images, tmp_path / "jpeg", encode="jpeg", quality=50, workers=1).files)
    assert {features["image/format"][0] for features in encoded} == {b"JPEG"}


def test_tar_file_is_packed_like_its_folder(images: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "pets.tar.gz", "w:gz") as archive:
        for path in sorted(images.rglob("*.*")):
            archive.add(path, path.relative_to(images).as_posix())
    folder = pack(images, tmp_path / "a", keep_order=True, workers=1)
    result = pack(tmp_path / "pets.tar.gz", tmp_path / "b", keep_order=True, workers=1)
    assert result.files[0].name == "pets-00000-of-00001.tfrecord"
    assert result.files[0].read_bytes() == folder.files[0].read_bytes()
    assert sorted(os.listdir(tmp_path / "b")) == [result.files[0].name, "pets.index.json", "pets.labels.txt"]


def test_list_file_with_class_numbers(images: Path, tmp_path: Path) -> None:
    lines = [f"pets/{path.relative_to(images)} {number + 5}" for number, path in enumerate(images.glob("cat/*"))]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    result = pack(tmp_path / "list.txt", tmp_path / "shards", keep_order=True, workers=1)
    assert [features["image/class/label"][0] for features in read_all(result.files)] == [5, 6, 7, 8]
    assert not (tmp_path / "shards" / "list.labels.txt").exists()


def test_arrays_of_images_and_of_numbers(tmp_path: Path) -> None:
    pixels = np.stack([pixels_of(number) for number in range(3)])
    np.savez(tmp_path / "images.npz", images=pixels, labels=np.array([2, 0, 1]))
    records = read_all(pack(tmp_path / "images.npz", tmp_path / "a", keep_order=True, workers=1).files)
    for features, expected, label in zip(records, pixels, (2, 0, 1), strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(features["image/encoded"][0]))), expected)
        assert features["image/class/label"].tolist() == [label]
    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    np.savez(tmp_path / "numbers.npz", x=values, y=np.array(["b", "a", "b"]))
    result = pack(tmp_path / "numbers.npz", tmp_path / "b", keep_order=True, workers=1)
    assert [features["label"].tolist() for features in read_all(result.files)] == [[1], [0], [1]]
    dataset = as_dataset(tmp_path / "b", keep_order=True)
    assert np.array_equal([sample.arrays["x"] for sample in dataset.read() if sample.arrays], values)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress])
def test_records_are_copied_to_other_shards(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    records = [example(image=[encode(pixels_of(number))], label=np.array([number], np.int64)) for number in range(6)]
    path = write_records(tmp_path / "all.tfrecord", records)
    path.write_bytes(compress(path.read_bytes()))
    result = pack(tmp_path / "all.tfrecord", tmp_path / "shards", shard_size=700, keep_order=True, workers=1)
    assert len(result.files) > 1
    assert [read_record(file, offset) for file in result.files for offset in record_offsets(file)] == records
    with pytest.raises(UsageError, match="copied unchanged"):
        pack(tmp_path / "all.tfrecord", tmp_path / "shards", resize=4)


def cifar_rows(count: int, seed: int) -> tuple[Any, list[int]]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, 3072), np.uint8), generator.integers(0, 10, count).tolist()


def write_cifar(folder: Path, version: str) -> Path:
    """Write a small archive with the files of the published one."""
    files: dict[str, bytes] = {}
    for number, name in enumerate([*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"]):
        rows, labels = cifar_rows(2, number)
        if version == "python":
            files[name] = pickle.dumps({b"data": rows, b"labels": labels}, protocol=2)
        else:
            lines = (bytes([label]) + row.tobytes() for label, row in zip(labels, rows, strict=True))
            files[f"{name}.bin"] = b"".join(lines)
    if version == "python":
        files["batches.meta"] = pickle.dumps({b"label_names": [name.encode() for name in NAMES]}, protocol=2)
    else:
        files["batches.meta.txt"] = "\n".join(NAMES).encode()
    path = folder / f"cifar-10-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"cifar/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize("version", ["python", "binary"])
def test_cifar_archive(version: str, tmp_path: Path) -> None:
    archive = write_cifar(tmp_path, version)
    result = pack(archive, tmp_path / "shards", keep_order=True, workers=1)
    records = read_all(result.files)
    assert len(records) == 10
    rows, labels = cifar_rows(2, 0)
    for features, row, label in zip(records, rows, labels, strict=False):
        expected = row.reshape(3, 32, 32).transpose(1, 2, 0)
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(features["image/encoded"][0]))), expected)
        assert (features["image/class/label"][0], features["image/class/text"]) == (label, [NAMES[label].encode()])
    assert result.source_bytes == 10 * 3072
    assert result.notes == ("the test images are not packed: use --split test",)
    assert (tmp_path / "shards" / f"{result.index.name}.labels.txt").read_text().split() == NAMES


def test_unpacked_cifar_archive_is_packed_like_the_archive(tmp_path: Path) -> None:
    archive = write_cifar(tmp_path, "python")
    with tarfile.open(archive) as members:
        members.extractall(tmp_path, filter="data")
    expected, result = (
        pack(source, tmp_path / name, keep_order=True, workers=1, split="test")
        for source, name in ((archive, "of archive"), (tmp_path / "cifar", "of folder"))
    )
    assert read_all(result.files) == read_all(expected.files)
    assert len(read_all(result.files)) == 2


def test_data_card_is_fetched_from_a_url_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    url = write_cifar(tmp_path, "binary").as_uri()
    digest = sha256((tmp_path / "cifar-10-binary.tar.gz").read_bytes()).hexdigest()
    result = pack("cifar10", tmp_path / "shards", url=url, sha256=digest, split="test", workers=1)
    assert [file.name for file in result.files] == ["cifar10-test-00000-of-00001.tfrecord"]
    assert result.num_records == 2
    again = pack("cifar10", tmp_path / "shards", offline=True, split="test", workers=1)
    assert again.written == ()
    with pytest.raises(InputError, match="expected SHA-256"):
        pack("cifar10", tmp_path / "shards", url=url, sha256="0" * 64)
    with pytest.raises(InputError, match="--offline forbids"):
        pack("cifar100", tmp_path / "shards", offline=True)


class Payload:
    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


def test_pickles_run_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (Payload(), {b"data": Payload()}, np.array([Payload()], object), np.random.default_rng()):
        with pytest.raises(InputError, match="is not a pickle of arrays"):
            read_pickle(io.BytesIO(pickle.dumps(value)), "batch")
    assert not list(tmp_path.iterdir())
    harmless = {b"a": [1, "b"], b"empty": b""}
    assert read_pickle(io.BytesIO(pickle.dumps(harmless, protocol=2)), "batch") == harmless
    with pytest.raises(InputError, match="bytes have an unknown form"):
        read_pickle(io.BytesIO(b"\x80\x02c__builtin__\nbytes\nK\x05\x85R."), "batch")


def test_verification_finds_a_flipped_bit(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    files = pack(images, folder, shard_size=1000, workers=1).files
    assert verify(folder).ok
    data = bytearray(files[1].read_bytes())
    second = record_offsets(files[1])[1]
    data[second + 40] ^= 1
    files[1].write_bytes(data)
    for path in (folder, folder / "pets.index.json", files[1]):
        result = verify(path)
        assert not result.ok
        assert result.problems[files[1].name] == f"record 1 at byte {second} has a wrong checksum"
    with pytest.raises(CheckError, match=f"files are damaged: {files[1].name}"):
        result.check()
    (folder / "pets.index.json").unlink()
    assert sum(map(bool, verify(folder).problems.values())) == 1
    files[0].write_bytes(files[0].read_bytes()[:-3])
    files[1].unlink()
    assert "is truncated" in verify(folder).problems[files[0].name]


def test_files_of_other_writers_are_not_packed_again(tmp_path: Path) -> None:
    path = write_records(tmp_path / "other.tfrecord", [b"record"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckError, match="1 of 1 files are damaged") as caught:
        verify(path).check()
    assert caught.value.hint == "copy or download the damaged files again"
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8" + bytes(100))
    with pytest.raises(InputError, match=r"photo\.jpg is not a TFRecord file"):
        verify(tmp_path / "photo.jpg")


def test_damaged_indexes_are_rejected_and_damaged_journals_are_ignored(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    pack(images, folder, workers=1)
    index = folder / "pets.index.json"
    table = json.loads(index.read_text())
    shard = table["shards"][0]
    changes = [{"num_bytes": "9"}, {"file": "../other"}, {"file": ""}, {"offsets": 3}, {"skipped": [None]}, {"more": 1}]
    tables = [table | {"shards": [shard | change]} for change in changes]
    for wrong in (*tables, table | {"classes": [1]}, table | {"options": []}):
        index.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match="is not an index of shards"):
            verify(folder)
    index.write_text(json.dumps(table | {"shards": [shard | {"file": "x" * 300}]}))
    assert "cannot be read" in verify(folder).problems["x" * 300]
    index.unlink()
    (folder / ".pets.packing.jsonl").write_bytes(b"\xff\n[]\n" + b"[" * 100_000 + b"\n")
    assert pack(images, folder, workers=1).written


def test_missing_shard_and_other_content_are_found(images: Path, tmp_path: Path) -> None:
    files = pack(images, tmp_path / "shards", shard_size=1000, workers=1).files
    files[0].unlink()
    write_records(files[1], [bytes(files[1].stat().st_size - 16)])
    problems = verify(tmp_path / "shards").problems
    assert problems[files[0].name] == "the file is missing"
    assert problems[files[1].name] == "the content differs from the index, with intact records"


@pytest.mark.parametrize(("text", "size"), [("100MB", 10**8), ("1.5 kB", 1500), ("2MiB", 1 << 21), (7, 7)])
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["0", "MB", "-1MB", "3 apples", ""])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="such as 100MB"):
        parse_size(text)


def test_names_under_the_package(images: Path, tmp_path: Path) -> None:
    assert qk.data.pack is pack
    assert qk.data.verify is verify
    with pytest.raises(InputError, match="does not exist"):
        pack(tmp_path / "missing", tmp_path / "shards")
    with pytest.raises(UsageError, match="no parts 'train' and 'test'"):
        pack(images, tmp_path / "shards", split="test")


@pytest.mark.engine
def test_tensorflow_reads_the_shards(images: Path, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    files = pack(images, tmp_path / "shards", shard_size=1000, workers=1).files
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/filename": tf.io.FixedLenFeature([], "string"),
    }
    count = 0
    for record in tf.data.TFRecordDataset([str(file) for file in files]):
        values = tf.io.parse_single_example(record, features)
        expected = np.asarray(Image.open(images / values["image/filename"].numpy().decode()))
        if values["image/filename"].numpy().endswith(b".png"):
            assert np.array_equal(tf.io.decode_image(values["image/encoded"]).numpy(), expected)
        count += 1
    assert count == 12
