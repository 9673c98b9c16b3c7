"""`as_dataset`: the same samples from every kind of data."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import example, write_records

from quantkit.arguments import type_name
from quantkit.data import ArrayDataset, Dataset, FileDataset, as_dataset, find_images
from quantkit.data.dataset import to_array
from quantkit.errors import InputError, UsageError
from quantkit.ir.tensor import Array

VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = np.array([3, 1, 0, 2])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two class folders, a file that is not an image, and a file name with a WordNet id."""
    folder = tmp_path / "images"
    for name in (
        "cat/a.png",
        "cat/b.JPG",
        "dog/c.webp",
        "dog/n01440764_d.jpg",
        "n02510455_panda/e.png",
        "f.png",
        "notes.txt",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def names(dataset: Dataset) -> list[str]:
    return [sample.name for sample in dataset.read()]


def rows(dataset: Dataset, rank: int | None = None) -> list[Any]:
    return [next(iter((sample.arrays or {}).values())).tolist() for sample in dataset.read(rank)]


def test_a_folder_of_classes(images: Path) -> None:
    dataset = as_dataset(images)
    assert dataset.holds_images
    assert {sample.name: sample.label for sample in dataset.read()} == {
        "a.png": "cat",
        "b.JPG": "cat",
        "c.webp": "dog",
        "n01440764_d.jpg": "n01440764",
        "e.png": "n02510455",
        "f.png": "",
    }
    assert (dataset.size, dataset.skipped_files) == (6, 1)


def test_the_order_is_that_of_the_digests_of_the_names(images: Path) -> None:
    ordered = names(as_dataset(images))
    assert ordered == sorted(ordered, key=lambda name: sha256(name.encode()).hexdigest())
    assert names(as_dataset(images, limit=2)) == ordered[:2]
    assert names(as_dataset(images, limit=3, skip=2)) == ordered[2:5]
    assert names(as_dataset(images, keep_order=True))[:3] == ["a.png", "b.JPG", "c.webp"]
    with pytest.raises(UsageError, match="none of the 6 samples"):
        as_dataset(images, skip=6)


def test_a_list_file_names_paths_and_labels(images: Path) -> None:
    (images / "cat" / "with space.png").write_bytes(b"x")
    (images / "list.txt").write_text("# mine\ncat/a.png 7\ncat/with space.png giant panda\ncat/with space.png\n\n")
    samples = as_dataset(images / "list.txt").read()
    assert sorted((sample.name, sample.label) for sample in samples) == [
        ("a.png", "7"),
        ("with space.png", ""),
        ("with space.png", "giant panda"),
    ]
    (images / "list.txt").write_text("cat/missing.png 3\n")
    with pytest.raises(InputError, match="line 1"):
        as_dataset(images / "list.txt")


def test_paths_of_images_keep_their_order(images: Path) -> None:
    paths = [images / "f.png", images / "cat", str(images / "dog" / "c.webp")]
    assert names(find_images(paths)) == ["f.png", "a.png", "b.JPG", "c.webp"]
    assert sorted(names(as_dataset(paths))) == ["a.png", "b.JPG", "c.webp", "f.png"]
    with pytest.raises(UsageError, match="is a web address"):
        find_images(["https://example.org/a.png"])
    with pytest.raises(InputError, match="does not exist"):
        find_images([images / "g.png"])


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_array_files(tmp_path: Path, suffix: str) -> None:
    np.savez(tmp_path / "a.npz", images=VALUES, labels=LABELS)
    np.save(tmp_path / "a.npy", VALUES)
    dataset = as_dataset(tmp_path / f"a.{suffix}", limit=3)
    assert dataset.size == 3
    for sample, row in zip(dataset.read(), rows(dataset), strict=True):
        assert row == VALUES[int(sample.name)].tolist()
        assert sample.label == (str(LABELS[int(sample.name)]) if suffix == "npz" else "")


def _generator() -> Iterator[Any]:
    yield from (VALUES[:3], VALUES[3:])


class _Tensor:
    """Tensor of PyTorch: NumPy cannot convert it before it is detached."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def detach(self) -> "_Tensor":
        return self

    def cpu(self) -> "_Tensor":
        return self

    def numpy(self) -> Any:
        return self.values


class _DataLoader:
    """Loader of PyTorch: an iterable without an index that yields lists of tensors."""

    def __iter__(self) -> Iterator[list[_Tensor]]:
        for start in (0, 2):
            yield [_Tensor(VALUES[start : start + 2]), _Tensor(LABELS[start : start + 2])]


class _Pipeline:
    """Dataset of TensorFlow: elements come from `as_numpy_iterator`."""

    def as_numpy_iterator(self) -> Iterator[Any]:
        return iter([(VALUES[:2], LABELS[:2]), (VALUES[2:], LABELS[2:])])


@pytest.mark.parametrize(
    ("value", "has_labels"),
    [
        (lambda: VALUES, False),
        (lambda: {"x": VALUES}, False),
        (lambda: {"x": VALUES, "label": LABELS}, True),
        (lambda: (VALUES, LABELS), True),
        (lambda: ({"x": VALUES}, LABELS), True),
        (lambda: (VALUES, np.eye(4)[LABELS]), True),
        (lambda: [VALUES[:1], VALUES[1:]], False),
        (lambda: [{"x": VALUES[:1], "y": LABELS[:1]}, {"x": VALUES[1:], "y": LABELS[1:]}], True),
        (_generator, False),
        (lambda: _generator, False),
        (_DataLoader, True),
        (_Pipeline, True),
        (lambda: list(VALUES), False),
        (lambda: list(zip(VALUES, LABELS, strict=True)), True),
    ],
)
def test_objects_give_the_same_rows(value: Callable[[], Any], has_labels: bool) -> None:
    dataset = as_dataset(value(), keep_order=True)
    assert not dataset.holds_images
    samples = list(dataset.read(rank=2))
    assert [next(iter((sample.arrays or {}).values())).tolist() for sample in samples] == VALUES.tolist()
    assert [sample.label for sample in samples] == ([*map(str, LABELS)] if has_labels else [""] * 4)
    limited = as_dataset(value(), limit=2, skip=1, keep_order=True)
    assert rows(limited, rank=2) == VALUES[1:3].tolist()


def test_an_iterator_is_read_once_and_a_function_again() -> None:
    dataset = as_dataset(_generator())
    assert dataset.example()[""].tolist() == VALUES[0].tolist()
    assert rows(dataset) == VALUES.tolist()
    with pytest.raises(UsageError, match="can be read only once") as caught:
        rows(dataset)
    assert "function" in caught.value.hint
    again = as_dataset(_generator)
    assert rows(again) == rows(again) == VALUES.tolist()


def test_a_stream_is_not_read_ahead() -> None:
    elements = []

    def endless() -> Iterator[Any]:
        for number in range(10**9):
            elements.append(number)
            yield VALUES

    assert len(rows(as_dataset(endless, limit=6))) == 6
    assert len(elements) <= 2


@pytest.mark.parametrize("value", [3, None, b"bytes", object()])
def test_another_type_is_a_usage_error(value: Any) -> None:
    with pytest.raises(UsageError, match=f"{type_name(value)} is not a dataset"):
        as_dataset(value)


def test_elements_of_another_type_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="an object is not an array"):
        rows(as_dataset([object()]))
    with pytest.raises(UsageError, match="returned a int, not an iterator"):
        rows(as_dataset(lambda: 3))
    with pytest.raises(UsageError, match="has no elements"):
        _ = as_dataset([]).example()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", b"PK broken", "is not a NumPy file"),
        ("a.npy", b"", "is not a NumPy file"),
        ("list.txt", b"\n", "is empty"),
        ("list.txt", b"\xff\xfe\x00", "neither an image nor a list"),
        ("train.py", b"import keras", "is a Python file, not data"),
    ],
)
def test_error_names_broken_data(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        as_dataset(tmp_path / name)


def npz(**arrays: Any) -> bytes:
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Array) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


GOOD_NPZ = npz(x=VALUES, labels=LABELS)
GOOD_NPY = npy(VALUES)
PAIRS = np.zeros(2, [("a", "f4"), ("b", "i4")])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", GOOD_NPZ.replace(VALUES.tobytes(), b"\0" * VALUES.nbytes), "Bad CRC-32"),
        ("a.npz", GOOD_NPZ.replace(b"\x93NUMPY", b"\x93NUMPI"), "is not a NumPy file"),
        ("a.npz", GOOD_NPZ.replace(b"'descr'", b"'dscr' "), "is not a NumPy file"),
        ("a.npy", GOOD_NPY.replace(b"}", b"("), "is not a NumPy file"),
        ("a.npy", GOOD_NPY.replace(b"(4, 3)", b"(4,-3)"), "is not a NumPy file"),
        ("a.npy", GOOD_NPY.replace(b"(4, 3), }", b"(9**99,)}"), "is not a NumPy file"),
        ("a.npy", npy(PAIRS), "holds void.* elements, which are not numbers"),
        ("a.npz", npz(x=np.zeros(2, "M8[s]")), "the array 'x' of .* holds datetime64"),
        ("a.npz", npz(x=VALUES, labels=np.array([b"caf\xe9"] * 4)), r"the label b'caf\\xe9' is not UTF-8"),
        ("a.npz", npz(x=VALUES, labels=np.int64(3)), r"the labels of .* have the shape \(\)"),
        ("a.npz", npz(x=VALUES, labels=LABELS[:3]), "arrays of different lengths"),
        ("a.npz", npz(), "has no rows"),
    ],
)
def test_broken_arrays_are_rejected(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    assert content not in (GOOD_NPY, GOOD_NPZ)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        as_dataset(tmp_path / name)
    assert str(tmp_path / name) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(("name", "content"), [("a.npz", GOOD_NPZ), ("a.npy", GOOD_NPY)])
def test_mutated_arrays_are_read_or_rejected(tmp_path: Path, name: str, content: bytes) -> None:
    """Cut the file at each length, and change single bytes at random positions."""
    random = np.random.default_rng(0)
    mutants = [content[:length] for length in range(0, len(content), 7)]
    for position in random.integers(0, len(content), 300):
        changed = bytearray(content)
        changed[position] = random.integers(256)
        mutants.append(bytes(changed))
    num_rejected = 0
    for mutant in mutants:
        (tmp_path / name).write_bytes(mutant)
        with suppress(InputError):
            rows(as_dataset(tmp_path / name))
            continue
        num_rejected += 1
    assert num_rejected > len(content) // 7


def test_arrays_of_another_byte_order_are_converted(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUES.astype(">f4"))
    dataset = as_dataset(tmp_path / "a.npy", keep_order=True)
    assert dataset.example()[""].dtype == np.float32
    assert rows(dataset) == VALUES.tolist()


def test_masks_are_not_class_labels() -> None:
    dataset = as_dataset([(VALUES, np.zeros((4, 2, 2)))])
    assert [sample.label for sample in dataset.read()] == [""] * 4


def test_error_names_missing_or_empty_data(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match="contains no images"):
        as_dataset(tmp_path / "images")
    with pytest.raises(InputError, match="does not exist") as caught:
        as_dataset(tmp_path / "image")
    assert "images" in caught.value.hint
    with pytest.raises(InputError, match="no rows"):
        ArrayDataset.of(np.zeros((0, 3)))
    with pytest.raises(InputError, match="has no rows, or"):
        as_dataset({"a": np.zeros((2, 3)), "b": np.zeros((3, 3))})


def test_records_of_images(tmp_path: Path) -> None:
    """The order of records does not depend on how they were written."""
    for shard in range(2):
        records = [
            example(
                image__encoded=[b"image %d" % number], image__class__label=np.array([10 * shard + number], np.int64)
            )
            for number in range(4)
        ]
        write_records(tmp_path / f"train-{shard}-of-2", records)
    for source in (tmp_path, tmp_path / "train-*"):
        dataset = as_dataset(source, limit=6)
        assert dataset.holds_images
        assert names(dataset) == sorted(names(dataset), key=lambda name: sha256(name.encode()).hexdigest())
        for sample in dataset.read():
            shard, number = int(sample.name[6]), int(sample.name[-1])
            assert sample.read_image() == b"image %d" % number
            assert sample.label == str(10 * shard + number)
    (tmp_path / "other").mkdir()
    path = write_records(tmp_path / "other" / "one", [example(image=[b"a"], image__class__synset=[b"n02510455"])])
    (sample,) = as_dataset(path).read()
    assert (sample.label, sample.read_image()) == ("n02510455", b"a")


def test_records_of_arrays(tmp_path: Path) -> None:
    records = [example(x=row, label=row[:1].astype(np.int64)) for row in VALUES]
    path = write_records(tmp_path / "a.tfrecord", records)
    dataset = as_dataset(path)
    # The compression is found in the content of a file of any name.
    for name, compress in (("b.gz", gzip.compress), ("c", zlib.compress)):
        (tmp_path / name).write_bytes(compress(path.read_bytes()))
        assert rows(as_dataset(tmp_path / name, keep_order=True)) == rows(as_dataset(path, keep_order=True))
    assert isinstance(dataset, FileDataset)
    assert sorted(rows(dataset)) == VALUES.tolist()
    assert [float(sample.label) for sample in dataset.read()] == [row[0] for row in rows(dataset)]
    shaped = [example(x=row[:2], x__shape=np.array([2, 1])) for row in VALUES]
    first = as_dataset(write_records(tmp_path / "b.tfrecord", shaped)).example()
    assert first["x"].shape == (2, 1)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([example(names=[b"x", b"y"])], "hold neither images, real numbers nor single byte strings, but names"),
        (
            [example(x=np.ones(1, np.float32)), example(z=np.ones(1, np.float32))],
            "has other arrays than the first sample",
        ),
        ([b"\xff\xff"], "is not a tf"),
        ([example(x=np.ones(3, np.float32), x__shape=np.array([2]))], r"the 3 values of 'x' do not fit its shape"),
        ([example(x=np.ones(3, np.float32), label=[b"caf\xe9"])], "record a.tfrecord#0: the label .* is not UTF-8"),
    ],
)
def test_error_names_records_without_images_or_arrays(tmp_path: Path, records: list[bytes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rows(as_dataset(write_records(tmp_path / "a.tfrecord", records)))


def test_error_names_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", reject)
    with pytest.raises(InputError, match="cannot be read: permission denied"):
        find_images([tmp_path])


def test_folders_are_walked_in_order(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/1.jpeg", "a.webp", "notes.txt", "b/.DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    dataset = find_images([tmp_path, tmp_path / "a.webp"])
    paths = [sample.path.relative_to(tmp_path).as_posix() for sample in dataset.samples if sample.path]
    assert paths == ["a.webp", "b/1.jpeg", "b/2.PNG", "a.webp"]
    assert dataset.skipped_files == 2


def test_a_missing_image_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "panda.jpg").touch()
    with pytest.raises(InputError, match="does not exist") as caught:
        find_images([tmp_path / "pand.jpg"])
    assert "panda.jpg" in caught.value.hint


def test_tensor_of_tensorflow_is_converted_without_a_deprecated_method() -> None:
    class Tensor:
        def cpu(self) -> None:
            raise DeprecationWarning("use tf.identity instead")

        def numpy(self) -> Any:
            return VALUES

    np.testing.assert_array_equal(to_array(Tensor()), VALUES)
