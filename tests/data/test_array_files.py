"""Samples of different shapes: numbered arrays of a file, a folder or list of files, lists of arrays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.data import Dataset, InputPipeline, as_dataset, batches, pack
from quantkit.errors import InputError, UsageError
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import TensorInfo

RANDOM = np.random.default_rng(0)
SAMPLES: list[Array] = [RANDOM.normal(size=(2, length)).astype(np.float32) for length in (5, 7, 7, 4)]
INPUT = TensorInfo("x", DType.FLOAT, Shape((None, 2, None)))
LABELS = ["0", "1", "2", "3"]


def write_numbered(folder: Path) -> Any:
    np.savez(folder / "x.npz", **{f"x_{number}": sample for number, sample in enumerate(SAMPLES)})
    return folder / "x.npz"


def write_positional(folder: Path) -> Any:
    np.savez(folder / "x.npz", *SAMPLES)
    return folder / "x.npz"


def write_arrays(folder: Path) -> Any:
    for number, sample in enumerate(SAMPLES):
        np.save(folder / f"{number}.npy", sample)
    return folder


def write_batches(folder: Path) -> Any:
    for number, sample in enumerate(SAMPLES):
        np.savez(folder / f"{number}.npz", x=sample[None])
    return folder


def write_list(folder: Path) -> Any:
    write_arrays(folder)
    (folder / "list.txt").write_text("".join(f"{number}.npy {number}\n" for number in range(len(SAMPLES))))
    return folder / "list.txt"


def list_paths(folder: Path) -> Any:
    return sorted(write_arrays(folder).iterdir())


def stack(folder: Path) -> Any:
    samples = np.empty(len(SAMPLES), object)
    for number, sample in enumerate(SAMPLES):
        samples[number] = sample
    return {"x": samples}


FORMS: list[Callable[[Path], Any]] = [
    write_numbered,
    write_positional,
    write_arrays,
    write_batches,
    write_list,
    list_paths,
    stack,
    lambda folder: {"x": SAMPLES},
    lambda folder: SAMPLES,
    lambda folder: iter(SAMPLES),
    lambda folder: (SAMPLES, np.arange(4)),
    lambda folder: [{"x": sample[None]} for sample in SAMPLES],
]


@pytest.mark.parametrize("form", FORMS)
def test_samples_of_different_shapes_have_several_forms(form: Callable[[Path], Any], tmp_path: Path) -> None:
    dataset = as_dataset(form(tmp_path), keep_order=True)
    pipeline = InputPipeline.of([INPUT], dataset)
    runs = list(batches(dataset, pipeline, 8))
    assert [len(run.samples) for run in runs] == [1, 2, 1]  # samples of equal shapes are a batch
    rows = [row for run in runs for row in run.feeds["x"]]
    assert all(np.array_equal(row, sample) for row, sample in zip(rows, SAMPLES, strict=True))


@pytest.mark.parametrize("form", FORMS[:9])
def test_the_shape_of_all_samples_has_an_unknown_size(form: Callable[[Path], Any], tmp_path: Path) -> None:
    (shape,) = as_dataset(form(tmp_path)).shapes(3).values()
    assert shape == Shape((2, None))


@pytest.mark.parametrize("form", [write_numbered, write_arrays, stack])
def test_a_part_has_its_samples(form: Callable[[Path], Any], tmp_path: Path) -> None:
    part = as_dataset(form(tmp_path), keep_order=True).part(1, 3)
    assert [values(sample).shape for sample in part.read(3)] == [(2, 7), (2, 7)]


def values(sample: Any) -> Array:
    (array,) = sample.arrays.values()
    return np.asarray(array)


def read_labels(dataset: Dataset) -> list[str]:
    return [sample.label for sample in dataset.read(3)]


def test_samples_have_labels(tmp_path: Path) -> None:
    arrays = {f"x_{number}": sample for number, sample in enumerate(SAMPLES)}
    np.savez(tmp_path / "labels.npz", **arrays, labels=np.arange(4))
    np.savez(tmp_path / "label_n.npz", **arrays, **{f"label_{number}": np.array(number) for number in range(4)})
    for number in range(4):
        (tmp_path / f"files/{number}").mkdir(parents=True)
        np.save(tmp_path / f"files/{number}/sample.npy", SAMPLES[number])
    (tmp_path / "inside").mkdir()
    for number in range(4):
        np.savez(tmp_path / f"inside/{number}.npz", x=SAMPLES[number], label=number)
    for source in ("labels.npz", "label_n.npz", "files", "inside"):
        assert read_labels(as_dataset(tmp_path / source, keep_order=True)) == LABELS, source
    assert read_labels(as_dataset(write_list(tmp_path), keep_order=True)) == LABELS
    assert read_labels(as_dataset((SAMPLES, LABELS), keep_order=True)) == LABELS


def test_samples_of_several_inputs_are_numbered(tmp_path: Path) -> None:
    ids = {f"ids_{number}": sample[0] for number, sample in enumerate(SAMPLES)}
    masks = {f"attention_mask_{number}": sample[1] for number, sample in enumerate(SAMPLES)}
    np.savez(tmp_path / "x.npz", **ids, **masks)
    dataset = as_dataset(tmp_path / "x.npz", keep_order=True)
    assert [{name: row.shape for name, row in (sample.arrays or {}).items()} for sample in dataset.read()] == [
        {"ids": (length,), "attention_mask": (length,)} for length in (5, 7, 7, 4)
    ]


def test_arrays_of_inputs_with_numbered_names_hold_rows(tmp_path: Path) -> None:
    rows = {"x_0": np.zeros((3, 2), np.float32), "x_1": np.zeros((3, 4), np.float32)}
    np.savez(tmp_path / "x.npz", **rows)
    assert as_dataset(tmp_path / "x.npz", inputs=frozenset({"x_0", "x_1"})).size == 3
    assert as_dataset(rows).size == 3  # an object has the names of the inputs
    assert as_dataset(tmp_path / "x.npz").size == 2
    np.savez(tmp_path / "one.npz", x_0=np.zeros((3, 2), np.float32))
    assert as_dataset(tmp_path / "one.npz").size == 3
    np.savez(tmp_path / "gap.npz", x_0=np.zeros((3, 2)), x_2=np.zeros((4, 2)))
    with pytest.raises(InputError, match="arrays of different lengths") as caught:
        as_dataset(tmp_path / "gap.npz")
    assert "x_0, x_1" in caught.value.hint


def test_arrays_of_objects_are_never_unpickled(tmp_path: Path) -> None:
    objects = stack(tmp_path)["x"]
    np.savez(tmp_path / "x.npz", x=objects)
    np.save(tmp_path / "x.npy", objects, allow_pickle=True)
    for name in ("x.npz", "x.npy"):
        with pytest.raises(InputError, match=f"{name} holds an array of Python objects, which .* never unpickles") as e:
            as_dataset(tmp_path / name)
        assert "x_0, x_1, ..." in e.value.hint


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([{"x": SAMPLES[0]}, {"z": SAMPLES[1]}], "1.npz of .* has other arrays than the first sample: z, not x"),
        (
            [{"x": SAMPLES[0]}, {"x": np.zeros((3, 5, 2, 1))}],
            "1.npz: input 'x' takes float of shape .* have the shape 3x5",
        ),
        (
            [{"x": SAMPLES[0]}, {"x": np.zeros((3, 2, 5))}],
            "1.npz: input 'x' takes samples of shape 2x\\?, .* batch of 3",
        ),
        ([{"x": SAMPLES[0]}, {"x": np.zeros(3, "M8[s]")}], "the array 'x' of .*1.npz holds datetime64"),
        ([{"x": SAMPLES[0]}, {}], "1.npz holds no arrays"),
    ],
)
def test_errors_name_the_file_of_a_sample(arrays: list[dict[str, Array]], message: str, tmp_path: Path) -> None:
    for number, contents in enumerate(arrays):
        np.savez(tmp_path / f"{number}.npz", **contents)
    dataset = as_dataset(tmp_path, keep_order=True)
    pipeline = InputPipeline.of([INPUT], dataset)
    with pytest.raises(InputError, match=message):
        list(batches(dataset, pipeline))


@pytest.mark.parametrize(
    ("shape", "batch", "dtype"),
    [((2, 3, 4, 4), 2, DType.FLOAT), ((5, 6, 4, 1), 5, DType.HALF), ((3, 1, 7, 7), 3, DType.DOUBLE)],
)
def test_stacked_batches_are_described(shape: tuple[int, ...], batch: int, dtype: DType) -> None:
    info = TensorInfo("x", dtype, Shape(shape))
    dataset = as_dataset(np.zeros((6, batch, *shape[1:]), dtype.numpy))
    sample = "x".join(map(str, shape[1:]))
    message = (
        f"takes samples of shape {sample}, and each sample has the shape {batch}x{sample}, that of a batch of {batch}"
    )
    with pytest.raises(InputError, match=message) as caught:
        list(batches(dataset, InputPipeline.of([info], dataset)))
    assert "array.reshape(-1, *array.shape[2:])" in caught.value.hint


def test_a_list_of_images_and_arrays_is_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", SAMPLES[0])
    (tmp_path / "b.png").touch()
    (tmp_path / "list.txt").write_text("a.npy\nb.png\n")
    with pytest.raises(InputError, match="names images and arrays"):
        as_dataset(tmp_path / "list.txt")
    with pytest.raises((InputError, UsageError)):
        as_dataset([tmp_path / "missing.npy"])


def test_a_batch_of_fixed_size_is_padded_for_each_shape(tmp_path: Path) -> None:
    info = TensorInfo("x", DType.FLOAT, Shape((2, 2, None)))
    dataset = as_dataset({"x": SAMPLES}, keep_order=True)
    runs = list(batches(dataset, InputPipeline.of([info], dataset)))
    assert [run.feeds["x"].shape for run in runs] == [(2, 2, 5), (2, 2, 7), (2, 2, 4)]
    assert np.array_equal(runs[0].feeds["x"][1], SAMPLES[0])


def test_arrays_of_one_sample_each_are_packed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_arrays(tmp_path / "source")
    pack(tmp_path / "source", tmp_path / "packed")
    shapes = sorted(values(sample).shape for sample in as_dataset(tmp_path / "packed").read(3))
    assert shapes == [(2, 4), (2, 5), (2, 7), (2, 7)]
