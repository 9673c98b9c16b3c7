import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import GraphError, UnavailableError
from quantkit.ir.graph import Edge, Graph, Node, Versions, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.runtimes import open_session, tensorflow_library
from quantkit.runtimes.session import SessionOptions
from quantkit.runtimes.tensorflow import RUNTIME
from quantkit.runtimes.tensorflow_library import translate_error

pytestmark = pytest.mark.skipif(not RUNTIME.available().ok, reason=RUNTIME.available().detail)

FLOAT = DType.FLOAT


def placeholder(name: str, dtype: DType, *dims: int | None) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(dims)})


def decoder() -> Graph:
    decode = Node("decode", "DecodeJpeg", (Edge("contents"),), attrs={"channels": 3})
    return Graph.of([placeholder("contents", DType.STRING), decode], ["contents"], ["decode"])


def jpeg() -> bytes:
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (4, 2), (10, 20, 30)).save(file, "JPEG")
    return file.getvalue()


def test_jpeg_bytes_are_decoded_by_the_graph() -> None:
    with RUNTIME.open(decoder()) as session:
        image = session.run({"contents": jpeg()})["decode"]  # type: ignore[dict-item]
    assert image.shape == (2, 4, 3)
    assert image.dtype == np.uint8


def test_failed_op_is_named_with_its_reason() -> None:
    with (
        RUNTIME.open(decoder()) as session,
        pytest.raises(GraphError, match=r"^node 'decode' \(DecodeJpeg\): .*nknown image file format"),
    ):
        session.run({"contents": b"not an image"})  # type: ignore[dict-item]


def old_graph() -> Graph:
    numbers = {name: constant(name, np.array([1, 2], np.float32)) for name in ("mean", "variance", "beta", "gamma")}
    attrs = {"T": FLOAT, "variance_epsilon": 0.0, "scale_after_normalization": True}
    norm = Node("norm", "BatchNormWithGlobalNormalization", tuple(map(Edge, ("x", *numbers))), attrs=attrs)
    nodes = [placeholder("x", FLOAT, 1, 1, 1, 2), *numbers.values(), norm]
    return Graph.of(nodes, ["x"], ["norm"], versions=Versions(producer=8))


def test_removed_op_runs_in_a_graph_of_an_old_version() -> None:
    with RUNTIME.open(old_graph()) as session:
        result = session.run({"x": np.array([3, 4], np.float32).reshape(1, 1, 1, 2)})["norm"]
    np.testing.assert_allclose(result.reshape(-1), [3, 2 / np.sqrt(2) * 2 + 2], rtol=1e-5)


def test_removed_op_in_a_newer_graph_is_rejected_by_name() -> None:
    with pytest.raises((GraphError, UnavailableError), match="BatchNormWithGlobalNormalization"):
        RUNTIME.open(old_graph().with_(versions=Versions(producer=27)))


def test_quantized_inputs_and_outputs_are_integers() -> None:
    identity = Node("y", "Identity", (Edge("x"),), attrs={"T": DType.QUINT8})
    graph = Graph.of([placeholder("x", DType.QUINT8, 3), identity], ["x"], ["y"])
    with RUNTIME.open(graph) as session:
        assert session.inputs[0].dtype is DType.QUINT8
        result = session.run({"x": np.array([1, 2, 255], np.uint8)})["y"]
    assert result.dtype == np.uint8
    assert result.tolist() == [1, 2, 255]


def test_unregistered_op_is_named_with_its_node() -> None:
    graph = Graph.of([placeholder("x", FLOAT, 1), Node("y", "Reluu", (Edge("x"),), attrs={"T": FLOAT})], ["x"], ["y"])
    with pytest.raises(UnavailableError, match=r"no op Reluu, the op of node 'y'") as caught:
        RUNTIME.open(graph)
    assert "Relu" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("Node 'y': Unknown input node 'x'", GraphError, "node 'y' (Relu): TensorFlow rejects it: Node 'y'"),
        ("Bad sizes\n\t [[{{node y}}]]\nmore", GraphError, "node 'y' (Relu): TensorFlow rejects it: Bad sizes"),
        ("Depth 3 for '{{node y}} = Relu[T=...](x)'", GraphError, "TensorFlow rejects it: Depth 3"),
        (
            "No OpKernel was registered to support Op 'Relu' used by {{node y}} with these attrs. Registered: ...",
            UnavailableError,
            "node 'y' (Relu): TensorFlow",
        ),
        ("OOM when allocating tensor [[{{node y}}]]", UnavailableError, "cannot run it here: OOM"),
        (
            "Graph execution error:\n\nDetected at node a/y defined at (most recent call last):\n"
            "<stack traces unavailable>\nBad sizes\n\t [[{{node a/y}}]] [Op:__inference_f_1]",
            GraphError,
            "TensorFlow rejects the graph: Bad sizes",
        ),
        ("", GraphError, "TensorFlow rejects the graph: no reason"),
    ],
)
def test_error_is_one_line_with_node_and_op(text: str, kind: type[Exception], message: str) -> None:
    error = translate_error(ValueError(text), {"x": "Placeholder", "y": "Relu"})
    assert type(error) is kind
    assert message in error.message
    assert "\n" not in error.message
    assert error.hint


def test_bfloat16_is_used_if_the_cpu_supports_it() -> None:
    weights = np.random.default_rng(0).uniform(-1, 1, (64, 64)).astype(np.float32)
    product = Node("product", "MatMul", (Edge("x"), Edge("w")), attrs={"T": FLOAT})
    # TensorFlow does not convert an output node.
    output = Node("y", "Identity", (Edge("product"),), attrs={"T": FLOAT})
    graph = Graph.of([placeholder("x", FLOAT, None, 64), constant("w", weights), product, output], ["x"], ["y"])
    try:
        session = RUNTIME.open(graph, SessionOptions(precision="bfloat16"))
    except UnavailableError as error:
        pytest.skip(error.message)
    with session:
        result = session.run({"x": weights})["y"]
    deviation = np.abs(result - weights @ weights).max()
    assert 1e-4 < deviation < 0.1  # 8 bits of mantissa, not 24


def test_float16_on_a_cpu_is_rejected() -> None:
    with pytest.raises(UnavailableError, match="float16"):
        RUNTIME.open(decoder(), SessionOptions(precision="float16"))


def test_tensors_that_the_optimizer_fuses_can_be_outputs() -> None:
    """Swish and layer norm, with all intermediate tensors as outputs."""
    graph = from_text("""
    inputs: x
    outputs: y
    x = Placeholder[<4x8>]()
    w = Const[8x8]()
    m = MatMul(x, w, T=float)
    s = Sigmoid(m, T=float)
    swish = Mul(m, s, T=float)
    axis = Const[int32]([1])
    mean = Mean(swish, axis, T=float, Tidx=int32, keep_dims=true)
    difference = SquaredDifference(swish, mean, T=float)
    variance = Mean(difference, axis, T=float, Tidx=int32, keep_dims=true)
    least = Const[float](0.001)
    wide = AddV2(variance, least, T=float)
    root = Rsqrt(wide, T=float)
    two = Const[float](2.0)
    scale = Mul(root, two, T=float)
    scaled = Mul(swish, scale, T=float)
    moved = Mul(mean, scale, T=float)
    offset = Sub(two, moved, T=float)
    y = AddV2(scaled, offset, T=float)
    """)
    names = [name for name in graph.order if not graph[name].is_constant]
    inputs = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    outputs = []
    for runtime in ("tensorflow", "reference"):
        with open_session(graph.with_endpoints(None, names), runtime) as session:
            outputs.append(session.run({"x": inputs}))
    for name in names:
        np.testing.assert_allclose(outputs[0][name], outputs[1][name], rtol=1e-3, atol=1e-5)


def test_bytes_of_a_broken_message_are_an_error_of_the_graph() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[2]()\ny = Neg(x)").with_(extra=b"\x12\x02\x0a\x05")
    with pytest.raises(GraphError, match="TensorFlow cannot read the graph"):
        RUNTIME.open(graph)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN is for x86 processors")
@pytest.mark.parametrize(("variables", "expected"), [({}, "1"), ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "0")])
def test_onednn_is_enabled_unless_the_user_disables_it(
    variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow reads the variable when it is imported."""
    others = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    monkeypatch.setattr(os, "environ", others | variables)
    (tmp_path / "tensorflow.py").write_text("import os\nvalue = os.environ.get('TF_ENABLE_ONEDNN_OPTS')\n")
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    del sys.modules["tensorflow"]
    monkeypatch.syspath_prepend(tmp_path)
    assert tensorflow_library.import_tensorflow().value == expected


@pytest.mark.engine
def test_a_session_imports_only_its_parts_and_the_package_can_follow() -> None:
    program = """
import sys
import numpy as np
from quantkit.ir.text import from_text
from quantkit.runtimes import open_session, tensorflow_library

graph = from_text("inputs: x\\noutputs: y\\nx = Placeholder[2]()\\ny = Relu(x, T=float)")
with open_session(graph, "tensorflow") as session:
    first = session.run({"x": np.float32([-1, 2])})["y"].tolist()
    print("tensorflow" in sys.modules, sum(name.startswith("tensorflow.") for name in sys.modules) < 800)
    import keras
    import tensorflow.compat.v2 as tf

    @tf.function
    def add(x):
        with tf.init_scope():
            four = tf.constant(4)
        return x + four

    print(tf.executing_eagerly(), int(add(tf.constant(3))), keras.layers.ReLU()(np.float32([[-1, 2]])).numpy().tolist())
    print(first == session.run({"x": np.float32([-1, 2])})["y"].tolist())
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["False True", "True 7 [[0.0, 2.0]]", "True"], result.stderr


@pytest.mark.skipif(not hasattr(sys, "setdlopenflags"), reason="this system has no flags of libraries")
def test_functions_of_libraries_are_bound_at_their_first_call_only_during_the_import() -> None:
    before = sys.getdlopenflags()
    with tensorflow_library._lazy_binding():
        assert sys.getdlopenflags() & os.RTLD_LAZY
        assert not sys.getdlopenflags() & os.RTLD_NOW
    assert sys.getdlopenflags() == before
