"""Lookup tables: an error if an output depends on one, ignored otherwise."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InputError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.model.importers import tables
from quantkit.runtimes import tensorflow

TENSORFLOW = tensorflow.RUNTIME.available()
requires_tensorflow = [
    pytest.mark.engine,
    pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail),
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own
]
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
X = np.array([[1, 2, 3, 4]], np.float32)


def looking_up(*, fills: bool = False) -> Graph:
    """Return a graph with a lookup in a table and an output that depends on no table."""
    types = {"key_dtype": DType.STRING, "value_dtype": DType.INT64}
    nodes = [
        Node("word", "Placeholder", attrs={"dtype": DType.STRING, "shape": Shape((None,))}),
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4))}),
        constant("w", W),
        constant("none", np.int64(0)),
        Node("table", "HashTableV2", attrs=types),
        Node("alias", "Identity", (Edge("table"),), attrs={"T": DType.RESOURCE}),
        Node("found", "LookupTableFindV2", (Edge("alias"), Edge("word"), Edge("none"))),
        Node("rows", "GatherV2", (Edge("w"), Edge("found"), Edge("none"))),
        Node("plain", "MatMul", (Edge("x"), Edge("w")), ("found",), {"T": DType.FLOAT}),
        constant("keys", np.array([b"a"], object)),
        constant("values", np.array([1], np.int64)),
        Node("fill", "InitializeTableV2", (Edge("table"), Edge("keys"), Edge("values"))),
    ]
    outputs = ["rows", "plain", *(["fill"] if fills else [])]
    return tables.remove_lookup_controls(Graph.of(nodes, ["word", "x"], outputs))


def test_error_names_the_table_and_a_workaround() -> None:
    with pytest.raises(InputError, match=r"m: 'found' \(LookupTableFindV2\) uses the table 'table'") as caught:
        tables.check(looking_up(), "m")
    assert caught.value.hint == "choose outputs that depend on no table: --outputs=plain"
    with pytest.raises(InputError) as caught:
        tables.check(looking_up().with_endpoints(None, ["rows"]), "m")
    assert caught.value.hint == "look the values up before, and feed them: --inputs=found"


def test_outputs_without_tables_are_accepted() -> None:
    tables.check(looking_up().with_endpoints(None, ["plain"]), "m")
    tables.check(looking_up().with_endpoints(["found", "x"], None), "m")


def test_graph_that_initializes_its_table_is_accepted() -> None:
    tables.check(looking_up(fills=True), "m")


def save_second_kind(folder: Path, *, file: Path | None = None) -> None:
    tf = tensorflow.import_tensorflow()
    lookup = tf.lookup
    module = tf.Module()
    module.w = tf.Variable(W)
    if file:
        index = lookup.TextFileIndex
        filled = lookup.TextFileInitializer(str(file), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    else:
        filled = lookup.KeyValueTensorInitializer(["a", "b", "c"], tf.range(3, dtype=tf.int64))
    module.vocabulary = lookup.StaticVocabularyTable(filled, 1)
    module.names = lookup.StaticHashTable(
        lookup.KeyValueTensorInitializer(tf.range(3, dtype=tf.int64), ["A", "B", "C"]), "?"
    )
    plain = tf.function(lambda x: {"y": x @ module.w}, input_signature=[tf.TensorSpec([None, 4], name="x")])
    with_names = tf.function(
        lambda x: {"y": x @ module.w, "name": module.names.lookup(tf.argmax(x @ module.w, -1))},
        input_signature=[tf.TensorSpec([None, 4], name="x")],
    )
    rows = tf.function(
        lambda text: {"y": tf.gather(module.w, module.vocabulary.lookup(text), name="rows")},
        input_signature=[tf.TensorSpec([None], tf.string, name="word")],
    )
    module.functions = [plain, with_names, rows]
    tf.saved_model.save(
        module,
        str(folder),
        signatures={
            name: function.get_concrete_function()
            for name, function in (("serving_default", rows), ("plain", plain), ("named", with_names))
        },
    )


def save_first_kind(folder: Path) -> None:
    tf = tensorflow.import_tensorflow()
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        text = v1.placeholder(tf.string, [None], name="word")
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b", "c"], tf.range(3, dtype=tf.int64)), 0, name="table"
        )
        rows = tf.gather(v1.get_variable("w", initializer=W), table.lookup(text), name="rows")
        fill = v1.tables_initializer()
        session.run([v1.global_variables_initializer(), fill])
        builder = v1.saved_model.Builder(str(folder))
        signature = v1.saved_model.predict_signature_def({"word": text}, {"rows": rows})
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=fill)
        builder.save()


def run(graph: Graph, feeds: dict[str, Any]) -> dict[str, Any]:
    with qk.open_session(graph, "tensorflow") as session:
        return dict(session.run(feeds))


class TestSavedModels:
    pytestmark = requires_tensorflow

    @pytest.mark.parametrize("with_file", [False, True])
    def test_a_signature_without_tables_is_frozen(self, with_file: bool, tmp_path: Path) -> None:
        vocabulary = tmp_path / "vocabulary.txt"
        vocabulary.write_text("a\nb\nc\n")
        save_second_kind(tmp_path / "m", file=vocabulary if with_file else None)
        np.testing.assert_allclose(run(qk.load(tmp_path / "m", signature="plain").graph, {"x": X})["y"], X @ W)

    def test_labels_after_the_scores_are_omitted(self, tmp_path: Path) -> None:
        save_second_kind(tmp_path / "m")
        with pytest.raises(InputError, match="LookupTableFindV2.* uses a table") as caught:
            qk.load(tmp_path / "m", signature="named")
        (name,) = caught.value.hint.split("--outputs=")[1:]
        graph = qk.load(tmp_path / "m", signature="named", outputs=[name]).graph
        np.testing.assert_allclose(run(graph, {"x": X})[name], X @ W)

    def test_values_of_tables_are_fed_as_numbers(self, tmp_path: Path) -> None:
        save_second_kind(tmp_path / "m")
        with pytest.raises(InputError, match="uses a table") as caught:
            qk.load(tmp_path / "m")
        inputs = caught.value.hint.split("--inputs=")[1].split(",")
        size, lookup = (next(name for name in inputs if name.endswith(op)) for op in ("SizeV2", "FindV2"))
        graph = qk.load(tmp_path / "m", inputs=inputs).graph
        feeds = {"word": np.array([b"b"], object), lookup: np.array([1], np.int64), size: np.int64(3)}
        np.testing.assert_allclose(run(graph, feeds)["y"], W[1:2])

    def test_table_of_the_first_version_is_rejected(self, tmp_path: Path) -> None:
        save_first_kind(tmp_path / "m")
        with pytest.raises(InputError, match="uses the table 'table'") as caught:
            qk.load(tmp_path / "m")
        (name,) = caught.value.hint.split("--inputs=")[1].split(",")
        graph = qk.load(tmp_path / "m", inputs=[name]).graph
        np.testing.assert_allclose(run(graph, {name: np.array([2], np.int64)})["rows"], W[2:3])

    def test_the_initializer_as_an_output_initializes_the_table(self, tmp_path: Path) -> None:
        tf = tensorflow.import_tensorflow()
        save_first_kind(tmp_path / "m")
        graph = qk.load(tmp_path / "m", outputs=["rows", "init_all_tables"]).graph
        with tf.compat.v1.Session(graph=tensorflow.import_graph(graph)) as session:
            session.run("init_all_tables")
            np.testing.assert_allclose(session.run("rows:0", {"word:0": [b"b"]}), W[1:2])


@pytest.mark.parametrize("save", [save_first_kind, save_second_kind])
@pytest.mark.engine
@pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail)
@pytest.mark.filterwarnings("ignore")
def test_command_prints_an_error_of_one_line(
    save: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = import_module("quantkit.cli").main
    save(tmp_path / "m")
    assert main(["transform", str(tmp_path / "m"), "-o", str(tmp_path / "out.pb")]) == 3
    error, hint = capsys.readouterr().err.strip().splitlines()[-2:]
    assert "whose content a frozen graph cannot hold" in error
    assert hint.startswith("hint: look the values up before, and feed them: --inputs=")
    assert not (tmp_path / "out.pb").exists()
