"""Variables of a checkpoint, one at a time."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import InputError
from quantkit.ir.tensor import Array
from quantkit.model.importers.checkpoint import read_variable


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Array]:
    """Prefix of a checkpoint, and its only variable, w."""
    tf = pytest.importorskip("tensorflow")
    prefix = str(tmp_path_factory.mktemp("checkpoint") / "model")
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("w", initializer=values)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, prefix)
    return prefix, values


@pytest.mark.parametrize(
    ("part", "rows", "columns"),
    [
        ("", slice(None), slice(None)),
        ("6 2 2,3:0,1", slice(2, 5), slice(0, 1)),
        ("6 2 -:1,1", slice(None), slice(1, 2)),
    ],
)
def test_partitions_are_read(saved: tuple[str, Array], part: str, rows: slice, columns: slice) -> None:
    prefix, values = saved
    np.testing.assert_array_equal(read_variable(prefix, "w", part), values[rows, columns])


def test_error_names_missing_entries(saved: tuple[str, Array], tmp_path: Path) -> None:
    prefix, _ = saved
    with pytest.raises(InputError, match="model has no variable 'v'"):
        read_variable(prefix, "v")
    with pytest.raises(InputError, match="the checkpoint .*nowhere cannot be read"):
        read_variable(str(tmp_path / "nowhere"), "w")
    for part in ("6 2 a", "6 2 -", "6 2 5,2:-"):
        with pytest.raises(InputError, match=rf"'{part}' is not a slice of 'w', which has the shape \[6, 2\]"):
            read_variable(prefix, "w", part)
