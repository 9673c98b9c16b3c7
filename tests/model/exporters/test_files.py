"""Output files: formats by suffix, folders that appear complete, and weights over 2 GiB."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.errors import GraphError, InputError, UsageError
from quantkit.formats import graphdef, kind_of, onnx, saved_model
from quantkit.formats.graphdef.schema import parse
from quantkit.formats.onnx import writer as onnx_writer
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.model.exporters.files import OutputFile
from quantkit.model.saving import save
from quantkit.runtimes import find_runtime

FLOAT = {"T": DType.FLOAT}
W = np.arange(4 * 600, dtype=np.float32).reshape(4, 600) / 1024
X = np.array([[1, 2, 3, 4], [0, -1, 0, 1]], np.float32)
needs_tensorflow = pytest.mark.skipif(
    not find_runtime("tensorflow").available().ok, reason="TensorFlow is not installed"
)
needs_onnxruntime = pytest.mark.skipif(
    not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"
)


def small_graph(weights: Any = W) -> Graph:
    """Product with a constant, whole and in two halves."""
    return Graph.of(
        [
            Node("data/x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4))}),
            constant("w", weights),
            Node("y", "MatMul", (Edge("data/x"), Edge("w")), attrs=FLOAT),
            constant("axis", np.int32(1)),
            Node("halves", "Split", (Edge("axis"), Edge("y")), attrs={**FLOAT, "num_split": 2}),
        ],
        ["data/x"],
        ["y", "halves:1"],
    )


def run(model: Any, runtime: str) -> dict[str, Array]:
    with qk.open_session(model, runtime) as session:
        return dict(session.run({session.inputs[0].name: X}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.pb", "graphdef"),
        ("a.pbtxt", "graphdef_text"),
        ("a", "graphdef"),
        ("a.frozen", "graphdef"),
        ("a.onnx", "onnx"),
        ("a.tflite", "tflite"),
        ("a/", "saved_model"),
        (".", "saved_model"),
    ],
)
def test_suffix_determines_the_format(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert OutputFile.of(name).kind == kind
    assert OutputFile.of(name, "saved_model").kind == "saved_model"


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("a.h5", {}, "would be a Keras model, which quantkit can only read"),
        ("a.onx", {}, "has the suffix '.onx', which names no format"),
        ("a.PBTX", {}, "has the suffix '.PBTX', which names no format"),
        ("a.onnx", {"as_text": True}, "has no text form"),
        ("a.pb", {"format": "saved-model"}, "'saved-model' is not a format"),
    ],
)
def test_error_names_unwritable_format(path: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        save(small_graph(), tmp_path / path, **options)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ending", "suggestion"),
    [("onx", "onnx"), ("pbtx", "pbtxt"), ("pbx", "pb"), ("tfl", "tflite"), ("lite", "tflite"), ("txt", "pbtxt")],
)
def test_a_misspelled_suffix_gets_a_suggestion(ending: str, suggestion: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        OutputFile.of(tmp_path / f"a.{ending}")
    assert caught.value.hint.startswith("did you mean")
    assert f"'.{suggestion}'" in caught.value.hint
    assert "--format graphdef" in caught.value.hint
    for options in ({"kind": "graphdef"}, {"as_text": True}):
        assert OutputFile.of(tmp_path / f"a.{ending}", **options).kind.startswith("graphdef")


@pytest.mark.parametrize("name", ["a", "a.pb", "a.onnx", "a/"])
def test_only_unknown_suffix_is_reported(name: str, tmp_path: Path) -> None:
    assert not OutputFile.of(f"{tmp_path}/{name}").is_guess
    assert OutputFile.of(tmp_path / "a.frozen").is_guess


def test_text_and_binary(tmp_path: Path) -> None:
    for name, options, kind in [
        ("a.pbtxt", {}, "graphdef_text"),
        ("b.pbtxt", {"as_text": False}, "graphdef"),
        ("c.pb", {"as_text": True}, "graphdef_text"),
        ("d.onnx", {"format": "graphdef"}, "graphdef"),
    ]:
        save(small_graph(), tmp_path / name, **options)
        head = (tmp_path / name).read_bytes()[:4]
        assert head == b"node" if kind == "graphdef_text" else head[:1] == b"\x0a"


class TestSavedModel:
    def test_saved_model_is_read_back(self, tmp_path: Path) -> None:
        graph = small_graph()
        save(graph, f"{tmp_path}/out/")
        assert [path.name for path in tmp_path.rglob("*")] == ["out", "saved_model.pb"]
        assert kind_of(tmp_path / "out") == "saved_model"
        read = qk.load(tmp_path / "out").graph
        assert (read.nodes, read.inputs, read.outputs) == (graph.nodes, graph.inputs, graph.outputs)

    def test_signature_of_saved_model_has_types_and_shapes(self, tmp_path: Path) -> None:
        save(small_graph(), tmp_path)  # an empty folder
        message = parse("SavedModel", (tmp_path / saved_model.FILE).read_bytes())
        (meta,) = message.meta_graphs
        assert list(meta.meta_info_def.tags) == ["serve"]
        assert [op.name for op in meta.meta_info_def.stripped_op_list.op] == ["Const", "MatMul", "Placeholder", "Split"]
        signature = meta.signature_def["serving_default"]
        assert signature.method_name == "tensorflow/serving/predict"
        signatures = {
            key: (info.name, info.dtype, [dim.size for dim in info.tensor_shape.dim])
            for infos in (signature.inputs, signature.outputs)
            for key, info in infos.items()
        }
        assert signatures == {
            "data/x": ("data/x:0", 1, [-1, 4]),
            "y": ("y:0", 1, [-1, 600]),
            "halves:1": ("halves:1", 1, [-1, 300]),
        }

    @needs_tensorflow
    @pytest.mark.engine
    @pytest.mark.filterwarnings("ignore")
    def test_both_loaders_of_tensorflow_run_the_saved_model(self, tmp_path: Path) -> None:
        from quantkit.runtimes.tensorflow_library import import_tensorflow

        tf = import_tensorflow()
        save(small_graph(), f"{tmp_path}/out/")
        loaded = tf.saved_model.load(str(tmp_path / "out"))
        function = loaded.signatures["serving_default"]
        outputs = function(**{"data/x": tf.constant(X)})
        assert {key: spec.shape.as_list() for key, spec in function.structured_outputs.items()} == {
            "y": [None, 600],
            "halves:1": [None, 300],
        }
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.saved_model.loader.load(session, ["serve"], str(tmp_path / "out"))
            y, half = session.run(["y:0", "halves:1"], {"data/x:0": X})
        for signatures in ((y, half), (outputs["y"], outputs["halves:1"])):
            np.testing.assert_allclose(signatures[0], X @ W, rtol=1e-6)
            np.testing.assert_allclose(signatures[1], (X @ W)[:, 300:], rtol=1e-6)

    def test_saved_model_appears_complete_or_not_at_all(self, tmp_path: Path) -> None:
        def fails() -> Array:
            raise OSError(28, "no space left")

        broken = small_graph(Tensor(DType.FLOAT, (4, 600), fails))
        with pytest.raises(InputError, match="the disk is full"):
            save(broken, f"{tmp_path}/out/")
        assert not list(tmp_path.iterdir())

    def test_folder_with_other_files_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("work of years")
        with pytest.raises(UsageError, match="is not empty: it contains precious"):
            save(small_graph(), tmp_path)
        with pytest.raises(UsageError, match="is a file"):
            save(small_graph(), f"{tmp_path}/precious/")
        with pytest.raises(UsageError, match="is not a folder"):
            save(small_graph(), f"{tmp_path}/no/where/")

    def test_error_names_output_of_unknown_type(self, tmp_path: Path) -> None:
        graph = small_graph()
        odd = graph.with_nodes([*graph.nodes.values(), Node("odd", "NobodyKnows", (Edge("y"),))])
        with pytest.raises(GraphError, match="element type of 'odd'"):
            save(odd.with_endpoints(None, ["odd"]), f"{tmp_path}/out/")
        assert not list(tmp_path.iterdir())


class TestOnnx:
    @needs_onnxruntime
    @pytest.mark.engine
    def test_a_graph_of_tensorflow_is_converted(self, tmp_path: Path) -> None:
        save(small_graph(), tmp_path / "out.onnx")
        outputs = run(tmp_path / "out.onnx", "onnxruntime")
        np.testing.assert_allclose(outputs["y"], X @ W, rtol=1e-6)
        np.testing.assert_allclose(outputs["halves:1"], (X @ W)[:, 300:], rtol=1e-6)

    def test_an_onnx_graph_is_converted_back(self, tmp_path: Path) -> None:
        save(small_graph().with_endpoints(None, ["y"]), tmp_path / "out.onnx")
        save(qk.load(tmp_path / "out.onnx").graph, tmp_path / "out.pb")
        np.testing.assert_allclose(run(qk.load(tmp_path / "out.pb").graph, "reference")["y"], X @ W, rtol=1e-6)

    @needs_onnxruntime
    @pytest.mark.engine
    def test_weights_over_the_limit_are_in_a_second_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(onnx_writer, "MAX_BYTES", 8000)
        save(small_graph(), tmp_path / "out.onnx")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "out.onnx.data"]
        assert (tmp_path / "out.onnx").stat().st_size < 2000
        np.testing.assert_allclose(run(tmp_path / "out.onnx", "onnxruntime")["y"], X @ W, rtol=1e-6)
        read = qk.load(tmp_path / "out.onnx").graph
        np.testing.assert_array_equal(read["w"].value.array, W)
        save(read, tmp_path / "out.onnx")  # replaces the file that the graph reads from
        np.testing.assert_array_equal(qk.load(tmp_path / "out.onnx").graph["w"].value.array, W)

    def test_offsets_of_several_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(onnx_writer, "MAX_BYTES", 5000)
        values = {name: np.full((rows, 601), rows, np.float32) for rows, name in enumerate("abc", 1)}
        nodes = [Node(name, "Constant", attrs={"value": Tensor.of(array)}) for name, array in values.items()]
        save(Graph.of(nodes, [], ["c"], dialect="onnx"), tmp_path / "out.onnx")
        read = qk.load(tmp_path / "out.onnx").graph
        for name, array in values.items():
            np.testing.assert_array_equal(read[name].value.array, array)

    def test_error_names_missing_weights_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(onnx_writer, "MAX_BYTES", 8000)
        save(small_graph(), tmp_path / "out.onnx")
        (tmp_path / "out.onnx.data").rename(tmp_path / "elsewhere")
        with pytest.raises(InputError, match="out.onnx.data") as caught:
            _ = qk.load(tmp_path / "out.onnx").graph
        assert "copy the file to the model's folder" in caught.value.hint
        (tmp_path / "out.onnx.data").write_bytes(b"too short")
        with pytest.raises(InputError, match="exceeds the end of 'out.onnx.data'"):
            _ = qk.load(tmp_path / "out.onnx").graph

    @pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link"])
    def test_weights_are_written_to_the_folder_of_the_model(
        self, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnx_writer, "MAX_BYTES", 8000)
        (tmp_path / "secret").write_bytes(bytes(20000))
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "link").symlink_to("../secret")
        graph = Graph.of([Node("w", "Constant", attrs={"value": Tensor.of(W)})], [], ["w"], dialect="onnx")
        (folder / "out.onnx").write_bytes(b"".join(onnx.chunks(graph, location)))
        with pytest.raises(InputError, match="outside of the model's folder"):
            _ = qk.load(folder / "out.onnx").graph


def huge(num_bytes: int) -> Graph:
    """Return a graph with a weight larger than memory, which no output depends on."""

    def never() -> Array:
        raise AssertionError("the values were read")

    return small_graph(Tensor(DType.FLOAT, (num_bytes // 4,), never))


@pytest.mark.parametrize("name", ["out.pb", "out.pbtxt", "out/"])
def test_more_than_2_gb_is_rejected_before_any_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"has 3.00 GB of tensors; .* \(largest: w, ") as caught:
        save(huge(3_000_000_000), f"{tmp_path}/{name}")
    assert ".onnx file" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_shrinks_weights_is_allowed(tmp_path: Path) -> None:
    OutputFile.of(tmp_path / "out.pb").check(huge(3_000_000_000), may_shrink=True)
    OutputFile.of(tmp_path / "out.onnx").check(huge(3_000_000_000))


def test_command_rejects_more_than_2_gb_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save(small_graph(), tmp_path / "in.pb")
    monkeypatch.setattr(graphdef, "MAX_BYTES", 9000)
    monkeypatch.setattr("quantkit.formats.files.map_file", partial(lambda path: path.read_bytes()))
    arguments = ["transform", "-v", str(tmp_path / "in.pb"), "-o", str(tmp_path / "out.pb"), "--recipe"]
    assert main([*arguments, "inference"]) == 3
    assert "Applying" not in (document := capsys.readouterr().err)
    assert "the limit of a GraphDef is 2.15 GB" in document
    assert main([*arguments, "shrink"]) == 0


@pytest.mark.parametrize("out", ["out.pb", "out.onnx", "out/", "out"])
def test_the_command_converts(out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_graph(), f"{tmp_path}/in/")
    arguments = ["transform", f"{tmp_path}/in", "-o", f"{tmp_path}/{out}", "--json", "--signature", "serving_default"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["steps"], document["outputs"]) == ([], ["y", "halves:1"])
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "in" not in path.parent.name]
    assert document["num_bytes"] == sum(path.stat().st_size for path in files)
    assert main(["summarize", f"{tmp_path}/{out}", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["inputs"][0]["shape"] == [None, 4]
    assert [None, 300] in [end["shape"] for end in summary["outputs"]]
    assert summary["parameters"] >= W.size


def test_command_reports_format_of_unknown_suffix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_graph(), tmp_path / "in.pb")
    arguments = ["transform", "--recipe", "shrink", f"{tmp_path}/in.pb"]
    assert main([*arguments, "-o", f"{tmp_path}/out.onx"]) == 2
    assert "did you mean '.onnx'?" in capsys.readouterr().err
    assert main([*arguments, "-o", f"{tmp_path}/out.xyz"]) == 0
    assert "out.xyz: .xyz names no format: writing a frozen TensorFlow graph" in capsys.readouterr().err
    assert main([*arguments, "-o", f"{tmp_path}/out.onx", "--format", "graphdef"]) == 0
    assert main([*arguments, "--out-graph", f"{tmp_path}/classic.pbx"]) == 0  # as its scripts may have it
    assert "names no format" not in capsys.readouterr().err
    assert {kind_of(tmp_path / name) for name in ("out.xyz", "out.onx", "classic.pbx")} == {"graphdef"}


def test_the_command_rewrites_onnx_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_graph(), tmp_path / "in.onnx")
    arguments = ["transform", f"{tmp_path}/in.onnx", "-o", f"{tmp_path}/out.onnx"]
    assert main([*arguments, "--transforms", "fold_old_batch_norms"]) == 3
    assert (
        "fold_old_batch_norms rewrites TensorFlow graphs, and the dialect of this graph is ONNX"
        in capsys.readouterr().err
    )
    assert main([*arguments, "--recipe", "inference", "--explain"]) == 0
    assert "not applied: the transform rewrites TensorFlow graphs only" in capsys.readouterr().out
    assert main(["compare", "--structure", f"{tmp_path}/in.onnx", f"{tmp_path}/out.onnx"]) == 0
    assert main([*arguments, "--transforms", "rename_node(old_node_name=y, new_node_name=z)"]) == 0
    assert main(["compare", "--structure", f"{tmp_path}/in.onnx", f"{tmp_path}/out.onnx"]) == 1
    assert main([*arguments[:2], "-o", f"{tmp_path}/out.pb", "--recipe", "inference"]) == 0
    assert "left out" not in capsys.readouterr().err  # it is of TensorFlow's ops before the recipe begins


@pytest.mark.parametrize("name", ["in.pb", "in.onnx", "in/"])
@pytest.mark.parametrize("command", ["transform {0}/{1} -o {0}/out{2} --recipe inference", "summarize {0}/{1}"])
def test_rewriting_loads_no_runtime(name: str, command: str, tmp_path: Path) -> None:
    save(small_graph(), f"{tmp_path}/{name}")
    arguments = command.format(tmp_path, name, "/" if name == "in/" else Path(name).suffix).split()
    script = (
        f"import sys, importlib; assert not importlib.import_module('quantkit.cli').main({arguments!r}); "
        "assert not {'tensorflow', 'onnx', 'onnxruntime', 'tf2onnx', 'openvino'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_saving_with_an_unknown_suffix_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"out\.foo: \.foo names no format: writing a frozen TensorFlow graph"):
        save(Graph.of([constant("y", [1.0])], outputs=["y"]), tmp_path / "out.foo")
    assert qk.load(tmp_path / "out.foo").graph["y"].op == "Const"
    save(qk.load(tmp_path / "out.foo"), tmp_path / "named.foo", format="graphdef")  # warnings are errors here
