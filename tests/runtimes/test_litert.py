from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.convert import to_litert as module
from quantkit.convert.to_litert import check_convertible, save_litert, to_litert
from quantkit.errors import GraphError, InputError, UnavailableError, UsageError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.runtimes import open_session, tensorflow
from quantkit.runtimes.litert import RUNTIME, _info, _num_threads, _translate_error
from quantkit.runtimes.session import SessionOptions

TOOLS = (RUNTIME.available(), tensorflow.RUNTIME.available())
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not all(tool.ok for tool in TOOLS), reason=" ".join(tool.detail for tool in TOOLS)),
]
FLOAT = DType.FLOAT


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def small(op: str = "Neg", *dims: int | None) -> Graph:
    x = Node("a/x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape(dims or (None, 2))})
    return Graph.of([x, Node("b/y", op, (Edge("a/x"),), attrs={"T": FLOAT})], ["a/x"], ["b/y"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_litert(small(), tmp_path / "small.tflite")
    return tmp_path / "small.tflite"


def test_file_keeps_the_names_of_the_graph(file: Path) -> None:
    with RUNTIME.open(file) as session:
        assert [(info.name, info.dtype, info.shape) for info in session.inputs] == [("a/x", FLOAT, Shape((None, 2)))]
        for n in (1, 4, 0, 2):
            x = np.ones((n, 2), np.float32)
            np.testing.assert_array_equal(session.run({"a/x": x})["b/y"], -x)


def test_functions_of_different_graphs_may_have_one_name(tmp_path: Path) -> None:
    text = """
        inputs: x
        outputs: y
        x = Placeholder[2]()
        one = Const[int32](1)
        y = StatelessCase(one, x, Tin=[float], Tout=[float], branches=[&kept, &changed])
        function kept(out = a)
        a = _Arg(T=float, index=0)
        end
        function changed(out = n)
        a = _Arg(T=float, index=0)
        n = Neg(a, T=float)
        end
    """
    x = np.array([1, -2], np.float32)
    for number, (op, want) in enumerate((("Neg", -x), ("Abs", abs(x)), ("Neg", -x))):
        save_litert(from_text(text.replace("Neg", op)), tmp_path / f"{number}.tflite")
        with RUNTIME.open(tmp_path / f"{number}.tflite") as session:
            np.testing.assert_array_equal(session.run({"x": x})["y"], want)


def test_names_are_those_of_the_signature(tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()

    class Model(tf.Module):  # type: ignore[misc, name-defined]
        def compute(self, left: Any, right: Any) -> Any:
            return {"sum": left + right, "difference": left - right}

        __call__ = tf.function(
            compute, input_signature=[tf.TensorSpec([1, 2], name="left"), tf.TensorSpec([1, 2], name="right")]
        )

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "saved"), signatures=model.__call__)
    path = tmp_path / "two.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved")).convert())
    with RUNTIME.open(path) as session:
        assert {info.name for info in session.inputs} == {"left", "right"}
        feeds = {"left": np.array([[1, 2]], np.float32), "right": np.array([[3, 5]], np.float32)}
        results = session.run(feeds)
    np.testing.assert_array_equal(results["sum"], [[4, 7]])
    np.testing.assert_array_equal(results["difference"], [[-2, -3]])


def test_equal_outputs_keep_their_names(tmp_path: Path) -> None:
    """The converter computes them once."""
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 4))}),
        Node("r", "Relu", (Edge("x"),), attrs={"T": DType.FLOAT}),
        Node("i", "Identity", (Edge("r"),), attrs={"T": DType.FLOAT}),
        Node("n", "Neg", (Edge("x"),), attrs={"T": DType.FLOAT}),
    ]
    graph = Graph.of(nodes, ["x"], ["i", "n", "r"])
    save_litert(graph, tmp_path / "equal.tflite")
    values = np.array([[1, -2, 3, -4]], np.float32)
    for model in (graph, tmp_path / "equal.tflite"):
        with open_session(model, "litert") as session:
            outputs = session.run({"x": values})
        assert {name: array.tolist() for name, array in outputs.items()} == {
            "i": [[1, 0, 3, 0]],
            "n": [[-1, 2, -3, 4]],
            "r": [[1, 0, 3, 0]],
        }


@pytest.mark.filterwarnings("ignore:Statistics for quantized inputs")
def test_quantized_inputs_and_outputs_keep_their_types(tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    function = tf.function(tf.nn.relu, input_signature=[tf.TensorSpec([1, 4], name="x")]).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([np.array([[-1, 0, 1, 2]], np.float32)] for _ in range(2))
    converter.inference_input_type, converter.inference_output_type = tf.int8, tf.uint8
    (tmp_path / "quantized.tflite").write_bytes(converter.convert())
    with RUNTIME.open(tmp_path / "quantized.tflite") as session:
        assert [info.dtype for info in (*session.inputs, *session.outputs)] == [DType.INT8, DType.UINT8]
        (result,) = session.run({session.inputs[0].name: np.array([[-128, -43, 42, 127]], np.int8)}).values()
    assert result.dtype == np.uint8
    assert result.max() > result.min()


def test_unknown_sizes_may_be_smaller_than_a_window(tmp_path: Path) -> None:
    attrs = {"T": FLOAT, "strides": (1, 1, 1, 1), "padding": b"VALID"}
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, None, None, 2))}),
        constant("w", np.ones((5, 5, 2, 3), np.float32)),
        Node("conv", "Conv2D", (Edge("x"), Edge("w")), attrs=attrs),
    ]
    graph = Graph.of(nodes, ["x"], ["conv"])
    save_litert(graph, tmp_path / "window.tflite")
    session = open_session(tmp_path / "window.tflite")
    for size in (9, 6, 9):
        (result,) = session.run({"x": np.ones((1, size, 5, 2), np.float32)}).values()
        np.testing.assert_allclose(result, np.full((1, size - 4, 1, 3), 50, np.float32))
    with pytest.raises(GraphError, match=r"LiteRT rejects window\.tflite"):
        session.run({"x": np.ones((1, 1, 1, 2), np.float32)})


def test_auto_opens_a_tflite_file(file: Path) -> None:
    with open_session(file) as session:
        (result,) = session.run({session.inputs[0].name: np.array([[1, 2]], np.float32)}).values()
    np.testing.assert_array_equal(result, [[-1, -2]])


def test_conversion_is_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = to_litert(small())
    assert [path.suffix for path in cache.iterdir()] == [".tflite"]
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("converted again"))
    assert to_litert(small()) == data


def test_the_check_of_a_graph_without_its_weights_is_cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_convertible(small())
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(module, "_convert", lambda *arguments, **options: pytest.fail("converted again"))
    check_convertible(small())


def test_unsupported_ops_are_named_and_the_message_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match=r"no LiteRT form of BesselI0e \(1\)"):
        to_litert(small("BesselI0e"))
    monkeypatch.setattr(module, "_convert", lambda graph: pytest.fail("tried again"))
    with pytest.raises(UnavailableError, match="BesselI0e") as caught:
        to_litert(small("BesselI0e"))
    assert "--runtime tensorflow" in caught.value.hint


def test_graphs_of_other_dialects_are_rejected() -> None:
    with pytest.raises(UnavailableError, match="not onnx graphs"):
        RUNTIME.open(Graph.of([], dialect="onnx"))


def test_missing_output_is_a_graph_error() -> None:
    with pytest.raises(GraphError, match="'b/y:3'"):
        to_litert(small().with_endpoints(None, ["b/y:3"]))


def test_ranges_make_an_int8_model() -> None:
    from ai_edge_litert.interpreter import Interpreter

    nodes = [
        Node("x", "Placeholder", attrs={"dtype": FLOAT, "shape": Shape((1, 8))}),
        constant("low", np.float32(-1)),
        constant("high", np.float32(1)),
        constant("w", np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)),
        Node("quantized", module.FAKE_QUANT, tuple(map(Edge, ("x", "low", "high"))), attrs={"num_bits": 8}),
        Node("product", "MatMul", (Edge("quantized"), Edge("w")), attrs={"T": FLOAT}),
        constant("bottom", np.float32(-16)),
        constant("top", np.float32(16)),
        Node("y", module.FAKE_QUANT, tuple(map(Edge, ("product", "bottom", "top"))), attrs={"num_bits": 8}),
    ]
    interpreter = Interpreter(model_content=to_litert(Graph.of(nodes, ["x"], ["y"])))
    scales = {
        len(details["quantization_parameters"]["scales"])
        for details in interpreter.get_tensor_details()
        if details["dtype"] is np.int8
    }
    assert scales == {1, 4}  # per tensor for activations, per channel for weights


def test_other_suffix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"small\.pb"):
        save_litert(small(), tmp_path / "small.pb")


def test_file_of_another_runtime_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "small.onnx").write_bytes(b"\x08\x08" + bytes(100))
    with pytest.raises(UnavailableError, match=r"small\.onnx"):
        RUNTIME.open(tmp_path / "small.onnx")


def test_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with pytest.raises(InputError, match=r"broken\.tflite"):
        RUNTIME.open(tmp_path / "broken.tflite")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_other_precisions_are_rejected(precision: str) -> None:
    with pytest.raises(UnavailableError, match=precision):
        RUNTIME.open(Graph.of([]), SessionOptions(precision=precision))


@pytest.mark.parametrize(("intra_op", "inter_op", "threads"), [(3, None, 3), (None, 2, 2), (2, 3, 6)])
def test_threads_form_one_pool(intra_op: int | None, inter_op: int | None, threads: int) -> None:
    assert _num_threads(SessionOptions(intra_op=intra_op, inter_op=inter_op)) == threads
    assert _num_threads(SessionOptions()) >= 1


def test_unsupported_element_type_is_named() -> None:
    details = {"index": 0, "name": "x:0", "dtype": np.void, "shape_signature": np.array([1], np.int32)}
    with pytest.raises(UnavailableError, match="'x' has the unsupported element type void"):
        _info(details, {})


@pytest.mark.parametrize(
    ("text", "is_file", "kind", "message"),
    [
        (
            "Encountered unresolved custom op: Foo.\nSee instructions: https://x",
            True,
            UnavailableError,
            "LiteRT has no Foo, which m uses",
        ),
        (
            "Select TensorFlow op(s), included in the given model, is(are) not supported by this interpreter. "
            "Node number 1 (FlexFoo) failed to prepare.",
            True,
            UnavailableError,
            "LiteRT has no Foo, which m uses",
        ),
        ("tflite/kernels/add.cc:12 a != b (1 != 2)\nmore", False, GraphError, "LiteRT rejects m: a != b (1 != 2)"),
        ("", True, InputError, "LiteRT cannot open m: RuntimeError"),
    ],
)
def test_error_is_one_line(text: str, is_file: bool, kind: type[Exception], message: str) -> None:
    error = _translate_error(RuntimeError(text), "m", is_file=is_file)
    assert type(error) is kind
    assert error.message == message
    assert error.hint
