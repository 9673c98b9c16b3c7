"""The files of all kinds contain metadata, transforms and conversions keep them, and other programs ignore them."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_cases import FOLDER, Case, golden_cases, results

import quantkit as qk
from quantkit.convert.to_onnx import to_onnx_graph
from quantkit.errors import InputError
from quantkit.formats import metadata, onnx
from quantkit.formats.metadata import decode, encode, read_text, text_of, with_metadata, with_text
from quantkit.ir.graph import Graph

METADATA = {"labels": {"names": ["Bär", "\n# quantkit: {", None], "order": "own"}, "preprocessing": {"mean": 0.1}}
NAMES = ("m.onnx", "m.pb", "m.pbtxt", "m_saved/", "m.tflite")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return qk.transform("digits", "inference").graph


def save(graph: Graph, name: str, folder: Path) -> Path:
    qk.save(graph, f"{folder}/{name}")
    return folder / name


def read(path: Path) -> dict[str, Any]:
    model = qk.load(path)
    return dict(model.metadata)


def files(path: Path) -> dict[str, bytes]:
    paths = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in paths}


@pytest.mark.engine
@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_file_holds_metadata(name: str, graph: Graph, tmp_path: Path) -> None:
    path = save(with_metadata(graph, METADATA), name, tmp_path)
    assert read(path) == METADATA
    assert read(save(graph, f"none_{name}", tmp_path)) == {}
    before = files(path)
    (tmp_path / "again").mkdir()
    again = save(with_metadata(graph, METADATA), name, tmp_path / "again")
    assert files(again) == before  # no date, and no path


@pytest.mark.engine
@pytest.mark.parametrize("name", NAMES)
def test_runtimes_ignore_metadata(name: str, graph: Graph, tmp_path: Path) -> None:
    runtime = {"m.onnx": "onnxruntime", "m.tflite": "litert"}.get(name, "tensorflow")
    x = np.random.default_rng(0).random((1, 16, 16, 1), np.float32)
    outputs: list[np.ndarray] = []
    for model in (graph, with_metadata(graph, METADATA)):
        path = save(model, f"{len(outputs)}{name}", tmp_path)
        for opened in (runtime, "openvino"):
            with qk.open_session(path, opened) as session:
                outputs += session.run(x).values()
    assert np.array_equal(outputs[0], outputs[2])
    assert np.array_equal(outputs[1], outputs[3])


@pytest.mark.engine
def test_the_libraries_of_the_formats_read_the_files(graph: Graph, tmp_path: Path) -> None:
    text = encode(METADATA).decode()
    package = pytest.importorskip("onnx")
    model = package.load(save(with_metadata(graph, METADATA), "m.onnx", tmp_path))
    package.checker.check_model(model, full_check=True)
    assert {entry.key: entry.value for entry in model.metadata_props} == {"quantkit": text}
    tf = import_module("tensorflow")
    text_format = import_module("google.protobuf.text_format")
    for name in ("m.pb", "m.pbtxt"):
        content = save(with_metadata(graph, METADATA), name, tmp_path).read_bytes()
        message = tf.compat.v1.GraphDef()
        if name == "m.pb":
            message.ParseFromString(content)
        else:
            text_format.Parse(content.decode(), message)
        with tf.Graph().as_default():
            tf.import_graph_def(message, name="")
    save(with_metadata(graph, METADATA), "m_saved/", tmp_path)
    assert (tmp_path / "m_saved/assets.extra/quantkit.json").read_text() == text
    assert list(tf.saved_model.load(str(tmp_path / "m_saved")).signatures) == ["serving_default"]


@pytest.mark.engine
def test_litert_metadata_of_the_converter_stay(graph: Graph, tmp_path: Path) -> None:
    schema = import_module("tensorflow.lite.python.schema_py_generated")
    models = [
        schema.ModelT.InitFromPackedBuf(save(model, name, tmp_path).read_bytes())
        for model, name in ((graph, "a.tflite"), (with_metadata(graph, METADATA), "b.tflite"))
    ]
    entries = [{entry.name: bytes(model.buffers[entry.buffer].data) for entry in model.metadata} for model in models]
    assert len(entries[0]) > 0
    assert entries[1] == {**entries[0], b"quantkit": encode(METADATA)}
    assert len(models[1].buffers) == len(models[0].buffers) + 1
    for first, second in zip(models[0].buffers, models[1].buffers, strict=False):
        assert np.array_equal(first.data, second.data)
    assert [tensor.buffer for tensor in models[0].subgraphs[0].tensors] == [
        tensor.buffer for tensor in models[1].subgraphs[0].tensors
    ]


def test_other_metadata_of_a_model_stay(graph: Graph) -> None:
    model = onnx.values.parse_message("ModelProto", to_onnx_graph(graph).extra)
    for key in ("author", "quantkit", "quantkit.other"):
        model.metadata_props.add(key=key, value=f"of {key}")
    converted = to_onnx_graph(graph).with_(extra=model.SerializeToString())
    changed = with_metadata(converted, METADATA)
    assert text_of(changed) == encode(METADATA)
    props = onnx.values.parse_message("ModelProto", changed.extra).metadata_props
    assert [entry.key for entry in props] == ["author", "quantkit.other", "quantkit"]
    assert text_of(with_metadata(changed, {})) is None


def keep_dialect(graph: Graph) -> Graph:
    return qk.transform(graph, "inference").graph


@pytest.mark.parametrize("convert", [keep_dialect, to_onnx_graph], ids=["transform", "convert"])
def test_metadata_survive(convert: Callable[[Graph], Graph], graph: Graph) -> None:
    assert text_of(convert(with_metadata(graph, METADATA))) == encode(METADATA)


def test_every_transform_keeps_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [Case.read(path) for path in golden_cases()]
    before = Case.before.fget
    monkeypatch.setattr(Case, "before", property(lambda case: with_metadata(before(case), METADATA)))
    graphs = {case.path: after for case in cases if (after := results(case)[1]) is not None}
    assert len(graphs) > 280
    assert not [path.relative_to(FOLDER) for path, after in graphs.items() if text_of(after) != encode(METADATA)]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"{}", b'{"schema": "quantkit.metadata/2"}', b"[" * 99999])
@pytest.mark.parametrize("name", ["m.onnx", "m.pb", "m.pbtxt"])
def test_damaged_metadata_are_rejected_on_use(name: str, text: bytes, graph: Graph, tmp_path: Path) -> None:
    if name != "m.pb" and text == b"\xff":
        text = b"x"  # their texts are UTF-8
    model = qk.load(save(with_text(to_onnx_graph(graph) if name == "m.onnx" else graph, text), name, tmp_path))
    assert len(model.graph) > 5
    with pytest.raises(InputError, match=r"m\.\w+: the metadata .*file"):
        _ = model.metadata


def test_the_text_is_canonical() -> None:
    first, second = encode({"b": 1, "a": {"d": [0.1], "c": "ä"}}), encode({"a": {"c": "ä", "d": [0.1]}, "b": 1})
    assert first == second
    assert json.loads(first)["schema"] == metadata.SCHEMA
    assert decode(first) == {"b": 1, "a": {"d": [0.1], "c": "ä"}}
    assert decode(None) == {}


@pytest.mark.engine
def test_damaged_litert_files_are_read_or_rejected(graph: Graph, tmp_path: Path) -> None:
    path = save(with_metadata(graph, METADATA), "m.tflite", tmp_path)
    whole = path.read_bytes()
    texts, rejected = list[bytes | None](), 0
    for seed in range(300):
        data, random = bytearray(whole), np.random.default_rng(seed)
        for position in random.integers(0, 600, 4):
            data[position] = random.integers(256)
        path.write_bytes(bytes(data[: random.integers(8, len(data))] if seed % 3 == 0 else data))
        try:
            texts.append(read_text(path))
        except InputError:
            rejected += 1
    assert texts.count(encode(METADATA)) > 20
    assert rejected > 20
