from pathlib import Path

import pytest

import quantkit as qk
from quantkit.distribution import install_command
from quantkit.errors import InputError, UnavailableError
from quantkit.ir.graph import constant
from quantkit.pipelines import bridge, optimization
from quantkit.pipelines.loading import run_function
from quantkit.runtimes import tensorflow_library
from quantkit.runtimes.availability import find_package


def test_a_missing_file_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pipeline\.py does not exist"):
        run_function(f"{tmp_path / 'pipeline.py'}:dataset")


def test_without_tensorflow_the_hint_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = find_package("TensorFlow", "missing_package", extra="tensorflow")
    monkeypatch.setattr(tensorflow_library, "available", lambda: missing)
    file = tmp_path / "pipeline.py"
    file.write_text("import tensorflow as tf\n")
    with pytest.raises(UnavailableError, match="TensorFlow is not installed") as caught:
        run_function(f"{file}:dataset")
    assert caught.value.hint == install_command("tensorflow")


PIPELINES = """import collections
import numpy as np
import tensorflow as tf

range_ = tf.data.Dataset.range(100)
Pair = collections.namedtuple("Pair", "a b")


def wrong_type():
    def parse(number):
        return tf.cast(number, tf.float32) + tf.constant("a")
    return range_.map(parse)


def missing_key():
    def parse(row):
        return row["image"]
    return tf.data.Dataset.from_tensor_slices({"a": [1]}).map(parse)


def nested_call():
    def inner(number):
        return number + "a"
    return range_.map(tf.function(lambda number: inner(number)))


def numpy_error():
    def decode(number):
        raise KeyError("image")
    return range_.map(lambda number: tf.numpy_function(decode, [number], tf.float32))


def generator_error():
    def rows():
        yield 1
        raise RuntimeError("row 7 is broken")
    return tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.int32)).batch(2)


def missing_file():
    return range_.map(lambda number: tf.io.read_file("/missing/a.jpg"))


def wrong_python():
    return {}["image"]


def wrong_numpy():
    return np.zeros(3).reshape(2)


def with_argument(x):
    return range_


def numpy_code():
    def double(number):
        return tf.numpy_function(lambda value: value * 2, [number], tf.int64)
    return range_.map(double)


def eager_code():
    return range_.map(lambda number: tf.py_function(lambda value: value, [number], tf.int64))


def code_in_a_branch():
    def double(number):
        return tf.numpy_function(lambda value: value * 2, [number], tf.int64)
    return range_.map(lambda number: tf.cond(number > 2, lambda: double(number), lambda: number))


def code_in_a_filter():
    return range_.filter(lambda number: tf.numpy_function(lambda value: value > 1, [number], tf.bool))


def code_in_an_interleave():
    def rows(number):
        return tf.data.Dataset.from_tensors(number).map(
            lambda value: tf.py_function(lambda each: each, [value], tf.int64)
        )
    return range_.interleave(rows)


def generator():
    return tf.data.Dataset.from_generator(lambda: range(5), output_signature=tf.TensorSpec([], tf.int32))


def named_tuple():
    return range_.map(lambda number: Pair(number, number))
"""


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipelines") / "pipe.py"
    path.write_text(PIPELINES)
    return path


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_type", r"pipe\.py, line 11, in parse: TypeError: Input 'y' of 'AddV2' Op has type string that"),
        ("missing_key", r"pipe\.py, line 17, in parse: KeyError: 'image'"),
        ("nested_call", r"pipe\.py, line 23, in inner: TypeError: "),
        ("numpy_error", r"pipe\.py, line 29, in decode: KeyError: 'image'"),
        ("generator_error", r"pipe\.py, line 36, in rows: RuntimeError: row 7 is broken$"),
        ("missing_file", r"fails: /missing/a\.jpg; No such file or directory$"),
        ("wrong_python", r"pipe\.py, line 45: KeyError: 'image'"),
        ("wrong_numpy", r"pipe\.py, line 49: ValueError: cannot reshape"),
        ("with_argument", r"pipe\.py, line 52: TypeError: with_argument\(\) missing 1 required"),
    ],
)
def test_errors_in_the_code_of_the_user_have_their_line(name: str, message: str, pipelines: Path) -> None:
    with pytest.raises(InputError, match=message):
        qk.data.profile(run_function(f"{pipelines}:{name}"), seconds=0.01)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("numpy_code", "numpy_function in double runs Python code"),
        ("eager_code", "py_function runs Python code"),
        ("code_in_a_branch", "numpy_function runs Python code"),
        ("code_in_a_filter", "numpy_function runs Python code"),
        ("code_in_an_interleave", "py_function runs Python code"),
        ("generator", "from_generator runs Python code"),
        ("named_tuple", "elements of the type Pair cannot be written"),
    ],
)
def test_datasets_that_no_file_can_hold_are_rejected_before_the_search(
    name: str, message: str, pipelines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimization, "_Optimizer", None)
    dataset = run_function(f"{pipelines}:{name}")
    with pytest.raises(UnavailableError, match=message) as caught:
        qk.data.optimize(dataset, output=tmp_path / "dataset.pb")
    assert caught.value.hint
    if name != "named_tuple":  # files of earlier versions
        graph = bridge.to_graph(dataset)
        structure = constant(bridge._STRUCTURE, b'{"dtype": "int64", "shape": []}')
        (tmp_path / "old.pb").write_bytes(bridge.encode(graph.with_nodes([*graph.nodes.values(), structure])))
        with pytest.raises(InputError, match="runs Python code of the process that made the dataset"):
            qk.data.load_dataset(tmp_path / "old.pb")
