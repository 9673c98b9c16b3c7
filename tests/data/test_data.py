"""Folders, lists and arrays give the same samples everywhere."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from records import example, write_records

from quantkit.data import Data, find_data
from quantkit.errors import InputError, UsageError


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes with a folder each, a file that is no picture, and one whose name begins with a WordNet id."""
    folder = tmp_path / "pictures"
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


def test_a_folder_of_classes(pictures: Path) -> None:
    data = find_data(pictures)
    assert {sample.name: sample.label for sample in data.samples} == {
        "a.png": "cat",
        "b.JPG": "cat",
        "c.webp": "dog",
        "n01440764_d.jpg": "n01440764",
        "e.png": "n02510455",
        "f.png": "",
    }
    assert data.skipped == 1


def test_the_order_is_that_of_the_digests_of_the_names(pictures: Path) -> None:
    names = [sample.name for sample in find_data(pictures).samples]
    assert names == sorted(names, key=lambda name: sha256(name.encode()).hexdigest())
    assert [sample.name for sample in find_data(pictures, limit=2).samples] == names[:2]
    assert [sample.name for sample in find_data(pictures, limit=3, skip=2).samples] == names[2:5]
    with pytest.raises(UsageError, match="nothing is left"):
        find_data(pictures, skip=6)


def test_a_list_names_paths_and_labels(pictures: Path) -> None:
    (pictures / "cat" / "with space.png").write_bytes(b"x")
    (pictures / "list.txt").write_text("# mine\ncat/a.png 7\ncat/with space.png giant panda\ncat/with space.png\n\n")
    found = find_data(pictures / "list.txt").samples
    assert sorted((sample.name, sample.label) for sample in found) == [
        ("a.png", "7"),
        ("with space.png", ""),
        ("with space.png", "giant panda"),
    ]
    (pictures / "list.txt").write_text("cat/nobody.png 3\n")
    with pytest.raises(InputError, match="line 1"):
        find_data(pictures / "list.txt")


def test_arrays_with_and_without_labels(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.savez(tmp_path / "a.npz", images=values, labels=np.array([3, 1, 0, 2]))
    np.save(tmp_path / "a.npy", values)
    for ending in ("npz", "npy"):
        data = find_data(tmp_path / f"a.{ending}", limit=3)
        (name,) = data.arrays
        assert data.rows(name, data.samples).tolist() == [values[int(sample.name)].tolist() for sample in data.samples]
    assert [sample.label for sample in find_data(tmp_path / "a.npz").samples] == [
        str([3, 1, 0, 2][int(sample.name)]) for sample in find_data(tmp_path / "a.npz").samples
    ]
    assert not any(sample.label for sample in find_data(tmp_path / "a.npy").samples)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", b"PK broken", "can not be read as NumPy's"),
        ("a.npy", b"", "can not be read as NumPy's"),
        ("list.txt", b"\n", "is empty"),
        ("list.txt", b"\xff\xfe\x00", "neither a picture nor a list"),
    ],
)
def test_broken_data_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        find_data(tmp_path / name)


def test_missing_or_empty_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(InputError, match="no pictures"):
        find_data(tmp_path / "pictures")
    with pytest.raises(InputError, match="does not exist") as refused:
        find_data(tmp_path / "picture")
    assert "pictures" in refused.value.hint
    with pytest.raises(InputError, match="no rows"):
        Data.of(np.zeros((0, 3)))


def test_records_of_pictures(tmp_path: Path) -> None:
    """Only the chosen records are read, in an order that does not depend on how they were written."""
    for shard in range(2):
        records = [
            example(image__encoded=[b"picture %d" % number], image__class__label=np.int64([10 * shard + number]))
            for number in range(4)
        ]
        write_records(tmp_path / f"train-{shard}-of-2", records)
    for source in (tmp_path, tmp_path / "train-*"):
        data = find_data(source, limit=6)
        names = [sample.name for sample in data.samples]
        assert names == sorted(names, key=lambda name: sha256(name.encode()).hexdigest())
        for sample in data.samples:
            shard, number = int(sample.name[6]), int(sample.name[-1])
            assert sample.encoded == b"picture %d" % number
            assert sample.label == str(10 * shard + number)
    (tmp_path / "other").mkdir()
    path = write_records(tmp_path / "other" / "one", [example(image=[b"a"], image__class__synset=[b"n02510455"])])
    (sample,) = find_data(path).samples
    assert (sample.label, sample.encoded) == ("n02510455", b"a")


def test_records_of_numbers(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = write_records(tmp_path / "a.tfrecord", [example(x=row, label=row[:1].astype(np.int64)) for row in rows])
    data = find_data(path)
    assert sorted(data.arrays["x"].tolist()) == rows.tolist()
    assert [float(sample.label) for sample in data.samples] == [data.rows("x", [one])[0, 0] for one in data.samples]
    shaped = [example(x=row, x__shape=np.array([2, 2])) for row in rows]
    assert find_data(write_records(tmp_path / "b.tfrecord", shaped)).arrays["x"].shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([example(name=[b"x"])], "hold neither pictures nor real numbers, but name"),
        ([example(x=np.ones(1, np.float32)), example(x=np.ones(2, np.float32))], "has not the same size"),
        ([b"\xff\xff"], "is no tf"),
    ],
)
def test_records_of_something_else_are_named(tmp_path: Path, records: list[bytes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_data(write_records(tmp_path / "a.tfrecord", records))
