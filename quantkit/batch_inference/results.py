"""Result files: one per shard, as JSON lines, Parquet or NumPy arrays.

The bytes of a file depend on its rows only, so that two runs can be compared. A file appears complete or not at all.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from quantkit.batch_inference.rows import Row, empty_class
from quantkit.errors import InputError, UsageError, one_line
from quantkit.formats.documents import check_structure
from quantkit.ir.tensor import Array
from quantkit.runtimes.availability import find_package, require

# Prefixes of the arrays of outputs in a NumPy file, and of their shapes if these differ between the samples.
_OUTPUT, _SHAPES = "outputs/", "shapes/"


@dataclass(frozen=True)
class ResultFormat:
    """Form of the result files.

    Attributes:
        suffix: suffix of the files.
        encode: function from rows to the bytes of a file.
        decode: its inverse.
        check: function that raises `UnavailableError` if a package is missing.
    """

    suffix: str
    encode: Callable[[Sequence[Row]], bytes]
    decode: Callable[[bytes], list[Row]]
    check: Callable[[], None] = lambda: None


def publish(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, and give it its name when it is on the disk.

    Raises:
        InputError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = os.strerror(error.errno or 0).lower()
        raise InputError(f"cannot write {path}: {reason}", hint="finished shards are kept; run again") from None


def read_rows(path: Path, format: ResultFormat) -> list[Row]:
    """Read the rows of a result file.

    Raises:
        InputError: the file is broken.
    """
    try:
        rows = format.decode(path.read_bytes())
        check_structure(rows, [{"file": str}], "rows")
        check_structure([row["error"] for row in rows if "error" in row], [str], "errors")
    except Exception as error:  # json, zipfile, NumPy and Arrow raise many types on a broken file
        reason = one_line(str(error)) or type(error).__name__
        raise InputError(f"{path} is not a result file: {reason}", hint="remove it, and run again") from None
    return rows


def _encode_json(rows: Sequence[Row]) -> bytes:
    return "".join(f"{json.dumps(_without_arrays(row), allow_nan=False)}\n" for row in rows).encode()


def _without_arrays(value: Any) -> Any:
    """Return nested lists in place of arrays, and null in place of values that are not finite."""
    if isinstance(value, dict):
        return {key: _without_arrays(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _without_arrays(value.tolist())
    if isinstance(value, list):
        return [_without_arrays(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if not isinstance(value, float) or np.isfinite(value) else None


def _decode_json(data: bytes) -> list[Row]:
    return [json.loads(line) for line in data.splitlines()]


def _encode_numpy(rows: Sequence[Row]) -> bytes:
    """Return an archive with the arrays of all samples, and the names and errors of the rejected ones.

    An output of different shapes is an array of the values of all samples, and one of the shapes (n, rank).
    """
    accepted = [row for row in rows if "error" not in row]
    rejected = [row for row in rows if "error" in row]
    arrays = {
        "file": np.array([row["file"] for row in accepted], "U"),
        "rejected": np.array([row["file"] for row in rejected], "U"),
        "error": np.array([row["error"] for row in rejected], "U"),
    }
    if accepted and "outputs" in accepted[0]:
        for name in accepted[0]["outputs"]:
            arrays |= _join([row["outputs"][name] for row in accepted], name)
    elif "outputs" not in rows[0]:
        arrays["label"] = np.array([row["label"] or "" for row in accepted], "U")
        arrays["score"] = np.array([np.nan if row["score"] is None else row["score"] for row in accepted], np.float64)
        arrays["index"] = np.array([-1 if row["index"] is None else row["index"] for row in accepted], np.int64)
    file = BytesIO()
    with ZipFile(file, "w", ZIP_STORED) as archive:
        for name, array in arrays.items():
            # The time in this entry is constant, unlike that of numpy.savez.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return file.getvalue()


def _join(values: Sequence[Array], name: str) -> dict[str, Array]:
    """Return the arrays that hold the values of an output of all samples."""
    if len({value.shape for value in values}) == 1:
        return {f"{_OUTPUT}{name}": np.stack(values)}
    if len({value.ndim for value in values}) > 1:
        raise UsageError(f"the number of dimensions of output {name!r} varies", hint="write --format jsonl or parquet")
    flat = np.concatenate([value.ravel() for value in values])
    return {f"{_OUTPUT}{name}": flat, f"{_SHAPES}{name}": np.array([value.shape for value in values], np.int64)}


def _split(arrays: Mapping[str, Array], name: str) -> Sequence[Array]:
    """Return the values of an output of each sample."""
    shapes = arrays.get(f"{_SHAPES}{name}")
    if shapes is None:
        return list(arrays[f"{_OUTPUT}{name}"])
    ends = np.cumsum(shapes.prod(1))
    parts = np.split(arrays[f"{_OUTPUT}{name}"], ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes.tolist(), strict=True)]


def _decode_numpy(data: bytes) -> list[Row]:
    with np.load(BytesIO(data), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    names = [name.removeprefix(_OUTPUT) for name in arrays if name.startswith(_OUTPUT)]
    outputs = {name: _split(arrays, name) for name in names}
    rows: list[Row] = []
    for index, file in enumerate(arrays["file"].tolist()):
        if outputs:
            content: Row = {"outputs": {name: values[index] for name, values in outputs.items()}}
        elif arrays["index"][index] < 0:
            content = empty_class()
        else:
            content = {key: arrays[key][index].item() for key in ("label", "score", "index")}
        rows.append({"file": file, **content})
    errors = zip(arrays["rejected"].tolist(), arrays["error"].tolist(), strict=True)
    return rows + [{"file": file, "error": error} for file, error in errors]


def _encode_parquet(rows: Sequence[Row]) -> bytes:
    """Return a table; each output is a column of flat lists with a column of its shapes."""
    import pyarrow
    from pyarrow import parquet

    text, number, integer = pyarrow.string(), pyarrow.float64(), pyarrow.int64()
    columns = {"file": (text, [row["file"] for row in rows])}
    outputs: Mapping[str, Array] = next((row["outputs"] for row in rows if row.get("outputs")), {})
    if "outputs" not in rows[0]:
        for key, kind in (("label", text), ("score", number), ("index", integer)):
            columns[key] = (kind, [row[key] for row in rows])
    for name, example in outputs.items():
        values = [row["outputs"][name] if row["outputs"] else None for row in rows]
        kind = pyarrow.list_(pyarrow.from_numpy_dtype(example.dtype))
        columns[name] = (kind, [None if value is None else value.ravel() for value in values])
        columns[f"{name}/shape"] = (
            pyarrow.list_(integer),
            [None if value is None else list(value.shape) for value in values],
        )
    columns["error"] = (text, [row.get("error") for row in rows])
    table = pyarrow.table({name: pyarrow.array(values, kind) for name, (kind, values) in columns.items()})
    sink = BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()


def _decode_parquet(data: bytes) -> list[Row]:
    from pyarrow import parquet

    rows = parquet.read_table(BytesIO(data)).to_pylist()
    return [_decode_parquet_row(row) for row in rows]


def _decode_parquet_row(row: Row) -> Row:
    message = row.pop("error")
    error = {} if message is None else {"error": message}
    shapes = {name.removesuffix("/shape"): row.pop(name) for name in list(row) if name.endswith("/shape")}
    if "label" in row:
        return row | error
    values = {name: row.pop(name) for name in shapes}
    outputs = None if error else {name: np.reshape(values[name], shape) for name, shape in shapes.items()}
    return {**row, "outputs": outputs, **error}


def _check_parquet() -> None:
    require(find_package("pyarrow, which writes Parquet files,", "pyarrow", "pyarrow", extra="distributed"))


FORMATS = {
    "jsonl": ResultFormat("jsonl", _encode_json, _decode_json),
    "parquet": ResultFormat("parquet", _encode_parquet, _decode_parquet, _check_parquet),
    "npz": ResultFormat("npz", _encode_numpy, _decode_numpy),
}
