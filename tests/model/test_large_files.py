"""Files over 2 GB are rejected early. The files are sparse, so that they take no disk space."""

import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import GraphError, InputError
from quantkit.formats import graphdef, onnx
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.model.exporters.files import OutputFile
from quantkit.runtimes import tensorflow

HUGE = 3_000_000_000
MOST_KIBIBYTES = 1 << 20
TENSORFLOW = tensorflow.RUNTIME.available()
needs_tensorflow = pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail)


@pytest.fixture(autouse=True)
def _without_allocation() -> Any:
    """Check that a rejected or unused weight takes no memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_KIBIBYTES


def hole(path: Path, head: bytes = b"", size: int = HUGE) -> Path:
    """A file of a size that takes no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def never() -> Array:
    raise AssertionError("the values were read")


def huge_graph(variable: bool = False) -> Graph:
    shape = (1000, HUGE // 4000)
    attrs = {"dtype": DType.FLOAT, "shape": Shape(shape)}
    weights = Node("w", "VarHandleOp", attrs=attrs) if variable else constant("w", Tensor(DType.FLOAT, shape, never))
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 1000))}),
        weights,
        *([Node("read", "ReadVariableOp", (Edge("w"),), attrs={"dtype": DType.FLOAT})] if variable else []),
        Node("y", "MatMul", (Edge("x"), Edge("read" if variable else "w")), attrs={"T": DType.FLOAT}),
    ]
    return Graph.of(nodes, ["x"], ["y"])


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("g.pb", b"\x0a\x05"),
        ("g.pbtxt", b"node {\n" * 100),
        ("g.onnx", b"\x08\x07"),
        ("m/saved_model.pb", b"\x08\x01\x12"),
        ("m/saved_model.pbtxt", b"saved_model_schema_version: 1\n"),
    ],
)
def test_too_large_graph_is_rejected(name: str, head: bytes, tmp_path: Path) -> None:
    path = hole(tmp_path / name, head)
    with pytest.raises(InputError, match=r"3\.00 GB; the limit of a graph in one file is 2\.15 GB") as caught:
        _ = qk.load(path.parent if path.parent != tmp_path else path).graph
    assert "save_as_external_data" in caught.value.hint


def test_too_large_variables_are_rejected(tmp_path: Path) -> None:
    qk.save(huge_graph(variable=True), tmp_path / "g.pb")
    hole(tmp_path / "model.ckpt.index", size=100)
    with pytest.raises(InputError, match=r"of .*model.ckpt take 3\.00 GB; the limit of a frozen graph is 2\.15"):
        qk.load(tmp_path / "g.pb", outputs=["y"], checkpoint=tmp_path / "model.ckpt")


@needs_tensorflow
@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")  # Keras' own
@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_too_large_keras_file_is_rejected(ending: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    keras = tensorflow.import_tensorflow().keras
    path = tmp_path / f"model{ending}"
    keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)]).save(path)
    weights, group = (path, "model_weights") if ending == ".h5" else (tmp_path / "model.weights.h5", "layers")
    if ending == ".keras":
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        weights.write_bytes(members[weights.name])
    with h5py.File(weights, "r+") as file:
        file[group].create_dataset("more", (HUGE // 4,), np.float32)  # takes room when it is written
    if ending == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**members, weights.name: weights.read_bytes()}.items():
                archive.writestr(name, content)
    with pytest.raises(InputError, match=r"the weights of .* take 3\.00 GB; the limit of a frozen graph is 2\.15 GB"):
        qk.load(path)


@needs_tensorflow
@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
def test_too_large_model_in_memory_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    keras = tensorflow.import_tensorflow().keras
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3)])
    monkeypatch.setattr(graphdef, "MAX_BYTES", 4 * 15 - 1)
    with pytest.raises(InputError, match="the weights of the model take .* GB"):
        qk.load(model)


@pytest.mark.parametrize("name", ["out.pb", "out.pbtxt", "out/", "out.tflite"])
def test_too_large_graphs_are_rejected_before_the_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"has 3\.00 GB of tensors"):
        qk.save(huge_graph(), f"{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())


def test_onnx_weights_in_a_second_file_stay_there(tmp_path: Path) -> None:
    shape = (HUGE // 4,)
    graph = Graph.of(
        [Node("w", "Constant", attrs={"value": Tensor(DType.FLOAT, shape, never)}), Node("y", "Relu", (Edge("w"),))],
        [],
        ["y"],
        dialect=onnx.DIALECT,
    )
    (tmp_path / "m.onnx").write_bytes(b"".join(onnx.chunks(graph, "m.onnx.data")))
    hole(tmp_path / "m.onnx.data")
    read = qk.load(tmp_path / "m.onnx").graph
    assert read["w"].value.shape == shape
    assert read["w"].value.array[-1] == 0  # one page of it
    OutputFile.of(tmp_path / "again.onnx").check(read)
    with pytest.raises(GraphError, match=r"3\.00 GB of tensors"):
        OutputFile.of(tmp_path / "again.pb").check(read)
    hole(tmp_path / "m.onnx.data", size=HUGE - 4)
    with pytest.raises(InputError, match="exceeds the end of 'm.onnx.data'"):
        _ = qk.load(tmp_path / "m.onnx").graph
