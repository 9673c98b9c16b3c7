import os
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import quantkit as qk
from quantkit.convert import cache as conversion_cache
from quantkit.convert import to_onnx as module
from quantkit.convert.to_onnx import UNSUPPORTED, to_onnx
from quantkit.distribution import install_command
from quantkit.errors import FallbackWarning, GraphError, UnavailableError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes import tensorflow
from quantkit.runtimes.availability import Availability, find_package

TOOLS = (find_package("tf2onnx", "tf2onnx", "tf2onnx", extra="onnx"), tensorflow.RUNTIME.available())
pytestmark = pytest.mark.skipif(not all(tool.ok for tool in TOOLS), reason=" ".join(tool.detail for tool in TOOLS))

FLOAT = DType.FLOAT


def placeholder(name: str, *dims: int | None) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": FLOAT, "shape": Shape(dims)})


def node(name: str, op: str, *inputs: str) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    return tmp_path / "converted"


def small(op: str = "Cumprod") -> Graph:
    """Return a graph of one op; only tf2onnx can convert a Cumprod."""
    axis = constant("axis", np.int32(1))
    inputs = ("x", "axis") if op == "Cumprod" else ("x",)
    return Graph.of([placeholder("x", None, 2), axis, node("y", op, *inputs)], ["x"], ["y"])


def test_inputs_and_outputs_keep_their_names_and_the_opset_is_recent(cache: Path) -> None:
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


def test_conversion_of_supported_ops_needs_no_tensorflow(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "convert_by_tf2onnx", lambda graph: pytest.fail("called tf2onnx"))
    assert to_onnx(small("Relu"))
    assert not cache.exists()


def test_error_without_tf2onnx_names_the_node(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_package", lambda *names, extra: Availability.no(extra))
    with pytest.raises(UnavailableError, match=r"node 'y' \(Cumprod\)") as caught:
        to_onnx(small())
    assert install_command("onnx", "tensorflow") in caught.value.hint


def test_fallback_is_reported(cache: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.warns(FallbackWarning, match=r"node 'y' \(Cumprod\) cannot be converted to ONNX: .*tf2onnx converts"):
        to_onnx(small())
    qk.save(small(), tmp_path / "cumprod.pb")
    (entry,) = (script for script in entry_points(group="console_scripts") if script.name == "quantkit")
    arguments = [
        "transform",
        str(tmp_path / "cumprod.pb"),
        "-o",
        str(tmp_path / "cumprod.onnx"),
        "--transforms=strip_unused_nodes",
    ]
    assert entry.load()(arguments) == 0
    assert "warning: node 'y' (Cumprod)" in capsys.readouterr().err


def test_conversion_is_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = to_onnx(small())
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("converted again"))
    assert to_onnx(small()) == data


def test_nodes_inputs_and_outputs_are_part_of_the_key(cache: Path) -> None:
    graph = Graph.of([placeholder("x", None, 2), node("y", "Atan", "x"), node("z", "Neg", "y")], ["x"], ["z"])
    graphs = (graph, graph.with_endpoints(["y"], None), small(), small("Sin"))
    assert len({conversion_cache.digest(graph, ()) for graph in graphs}) == 4


def test_unsupported_ops_are_named_and_the_message_is_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small("Lgamma")
    with pytest.raises(UnavailableError, match=r"Lgamma \(1\)") as first:
        to_onnx(graph)
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("tried again"))
    with pytest.raises(UnavailableError) as second:
        to_onnx(graph)
    assert second.value.message == first.value.message
    assert "--runtime tensorflow" in second.value.hint


def test_ops_without_any_conversion_are_rejected_before_the_conversion(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("tried"))
    with pytest.raises(UnavailableError, match=r"DecodePng \(1\)"):
        to_onnx(small("DecodePng"))


def test_op_before_an_input_is_ignored(cache: Path) -> None:
    image = Node("image", "Placeholder", attrs={"dtype": DType.STRING, "shape": Shape(())})
    decoded = Node("decoded", "DecodeJpeg", (Edge("image"),), attrs={"channels": 3})
    cast = Node("cast", "Cast", (Edge("decoded"),), attrs={"SrcT": DType.UINT8, "DstT": FLOAT})
    graph = Graph.of([image, decoded, cast, node("y", "Relu", "cast")], ["cast"], ["y"])
    assert to_onnx(graph)


def test_quantized_weights_become_floats(cache: Path) -> None:
    import onnx

    nodes = [
        placeholder("x", None, 2),
        constant("quantized", np.array([0, 255], np.uint8), DType.QUINT8),
        constant("low", np.float32(0)),
        constant("high", np.float32(510)),
        Node(
            "weights", "Dequantize", tuple(map(Edge, ("quantized", "low", "high"))), attrs={"T": DType.QUINT8}
        ).with_attrs(mode=b"MIN_FIRST"),
        Node("y", "Mul", (Edge("x"), Edge("weights")), attrs={"T": FLOAT}),
    ]
    model = onnx.load_from_string(to_onnx(Graph.of(nodes, ["x"], ["y"])))
    (weights,) = model.graph.initializer
    np.testing.assert_allclose(onnx.numpy_helper.to_array(weights), [0, 510], rtol=1e-6)


def test_tf2onnx_supports_none_of_the_rejected_ops() -> None:
    from tf2onnx import tfonnx  # noqa: F401  (its import registers the handlers)
    from tf2onnx.handler import tf_op

    supported = tf_op.create_mapping(module.OPSET, [])
    assert "Conv2D" in supported
    assert not [op for op in supported if UNSUPPORTED.fullmatch(op)]


def test_missing_output_is_a_graph_error(cache: Path) -> None:
    with pytest.raises(GraphError, match="'y:3'"):
        to_onnx(small().with_endpoints(None, ["y:3"]))


def test_full_disk_does_not_prevent_a_conversion(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion_cache, "write_whole", full)
    assert to_onnx(small())
    assert not list(cache.iterdir())


def test_least_recently_used_conversions_are_removed_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "old")):
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    conversion_cache._remove_oldest(tmp_path, 25)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["middle", "new"]
