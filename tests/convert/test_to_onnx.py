import os
from pathlib import Path

import numpy as np
import pytest

from quantkit.convert import cache as conversion_cache
from quantkit.convert import to_onnx as module
from quantkit.convert.to_onnx import NEVER_CONVERTED, to_onnx
from quantkit.errors import GraphError, UnavailableError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes import tensorflow
from quantkit.runtimes.availability import Availability, installed

ANSWERS = (installed("tf2onnx", "tf2onnx", "tf2onnx", extra="onnx"), tensorflow.RUNTIME.available())
pytestmark = pytest.mark.skipif(
    not all(answer.ok for answer in ANSWERS), reason=" ".join(answer.detail for answer in ANSWERS)
)

FLOAT = DType.FLOAT


def placeholder(name: str, *dims: int | None) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": FLOAT, "shape": Shape(dims)})


def node(name: str, op: str, *inputs: str) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    return tmp_path / "converted"


def small(op: str = "Atan") -> Graph:
    """A graph that tf2onnx has to convert."""
    return Graph.of([placeholder("x", None, 2), node("y", op, "x")], ["x"], ["y"])


def test_ends_keep_their_names_and_the_opset_is_recent(cache: Path) -> None:
    import onnx

    graph = Graph.of(
        [
            placeholder("x", 2, 4),
            constant("axis", np.array([1], np.int32)).with_(name="axes"),
            node("negative", "Atan", "x"),
            Node("sum", "Sum", (Edge("negative"), Edge("axes")), attrs={"T": FLOAT, "Tidx": DType.INT32}),
        ],
        ["x"],
        ["sum", "negative"],
    )
    model = onnx.load_from_string(to_onnx(graph))
    assert [value.name for value in model.graph.input] == ["x"]
    assert [value.name for value in model.graph.output] == ["sum", "negative"]
    assert model.opset_import[0].version >= 17
    onnx.checker.check_model(model)


def test_what_quantkit_converts_itself_needs_no_tensorflow(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "by_tf2onnx", lambda graph: pytest.fail("asked tf2onnx"))
    assert to_onnx(small("Relu"))
    assert not cache.exists()


def test_without_tf2onnx_the_refusal_names_the_node(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", lambda *names, extra: Availability.no(extra))
    with pytest.raises(UnavailableError, match=r"node 'y' \(Atan\)") as caught:
        to_onnx(small())
    assert "pip install 'quantkit[onnx,tensorflow]'" in caught.value.hint


def test_a_conversion_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = to_onnx(small())
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("converted again"))
    assert to_onnx(small()) == made


def test_other_nodes_and_other_ends_are_other_conversions(cache: Path) -> None:
    graph = Graph.of([placeholder("x", None, 2), node("y", "Atan", "x"), node("z", "Neg", "y")], ["x"], ["z"])
    digests = {
        conversion_cache.digest(one, ()) for one in (graph, graph.with_endpoints(["y"], None), small(), small("Sin"))
    }
    assert len(digests) == 4


def test_ops_that_can_not_be_converted_are_named_and_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small("Lgamma")
    with pytest.raises(UnavailableError, match=r"Lgamma \(1\)") as first:
        to_onnx(graph)
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("tried again"))
    with pytest.raises(UnavailableError) as second:
        to_onnx(graph)
    assert second.value.message == first.value.message
    assert "--runtime tensorflow" in second.value.hint


def test_hopeless_ops_are_refused_without_trying(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("tried"))
    with pytest.raises(UnavailableError, match=r"BatchNormWithGlobalNormalization \(1\)"):
        to_onnx(small("BatchNormWithGlobalNormalization"))


def test_an_op_behind_a_fed_tensor_does_not_matter(cache: Path) -> None:
    picture = Node("picture", "Placeholder", attrs={"dtype": DType.STRING, "shape": Shape(())})
    decoded = Node("decoded", "DecodeJpeg", (Edge("picture"),), attrs={"channels": 3})
    cast = Node("cast", "Cast", (Edge("decoded"),), attrs={"SrcT": DType.UINT8, "DstT": FLOAT})
    graph = Graph.of([picture, decoded, cast, node("y", "Relu", "cast")], ["cast"], ["y"])
    assert to_onnx(graph)


def test_weights_stored_as_codes_become_floats(cache: Path) -> None:
    import onnx

    nodes = [
        placeholder("x", None, 2),
        constant("codes", np.uint8([0, 255]), DType.QUINT8),
        constant("low", np.float32(0)),
        constant("high", np.float32(510)),
        Node("weights", "Dequantize", tuple(map(Edge, ("codes", "low", "high"))), attrs={"T": DType.QUINT8}).with_attrs(
            mode=b"MIN_FIRST"
        ),
        Node("y", "Mul", (Edge("x"), Edge("weights")), attrs={"T": FLOAT}),
    ]
    model = onnx.load_from_string(to_onnx(Graph.of(nodes, ["x"], ["y"])))
    (weights,) = model.graph.initializer
    np.testing.assert_allclose(onnx.numpy_helper.to_array(weights), [0, 510], rtol=1e-6)


def test_what_is_called_hopeless_is_unknown_to_tf2onnx() -> None:
    from tf2onnx import tfonnx  # noqa: F401  (its import registers the handlers)
    from tf2onnx.handler import tf_op

    known = tf_op.create_mapping(module.OPSET, [])
    assert "Conv2D" in known
    assert not [op for op in known if NEVER_CONVERTED.fullmatch(op)]


def test_an_output_that_does_not_exist_is_the_graphs_fault(cache: Path) -> None:
    with pytest.raises(GraphError, match="'y:3'"):
        to_onnx(small().with_endpoints(None, ["y:3"]))


def test_a_full_disk_is_no_reason_to_fail(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion_cache, "write_whole", full)
    assert to_onnx(small())
    assert not list(cache.iterdir())


def test_the_oldest_conversions_go_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    conversion_cache._drop_oldest(tmp_path, 25)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["middle", "new"]
