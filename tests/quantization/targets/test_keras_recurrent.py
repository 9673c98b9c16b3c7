"""Recurrent layers of Keras with a dynamic batch are quantized and converted for each target."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text
from quantkit.quantization import Scheme, annotate, calibrate, convert
from quantkit.runtimes import find_runtime, open_session

keras = pytest.importorskip("keras", reason="pip install tensorflow")
pytest.importorskip("tensorflow", reason="pip install tensorflow")
pytestmark = pytest.mark.engine
needs_litert = pytest.mark.skipif(not find_runtime("litert").available().ok, reason="LiteRT is not installed")
layers: Any = keras.layers
X = np.random.default_rng(0).standard_normal((8, 6, 4)).astype(np.float32)

NETWORKS: dict[str, Callable[[Any], Any]] = {
    "lstm": lambda x: layers.LSTM(5)(x),
    "bidirectional": lambda x: layers.Bidirectional(layers.GRU(4))(x),
    "sequence": lambda x: layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x),
    "masked": lambda x: layers.LSTM(5)(layers.Masking()(x)),
    "stacked": lambda x: layers.RNN(layers.StackedRNNCells([layers.LSTMCell(5), layers.GRUCell(3)]))(x),
}


def network(name: str, steps: int | None = 6) -> Any:
    keras.utils.set_random_seed(0)
    x = layers.Input((steps, 4), name="x")
    return keras.Model(x, layers.Dense(3, name="y")(NETWORKS[name](x)))


@pytest.mark.parametrize("name", ["bidirectional", "sequence"])
def test_bidirectional_layers_are_quantized_for_tensorflow(name: str) -> None:
    result = qk.quantize(network(name), X, target="tensorflow", runs=0)
    assert any("QuantizedMatMul" in op for op in result.model.graph.op_counts)


@pytest.mark.parametrize(
    ("name", "policy", "target"),
    [
        ("sequence", "mixed_float16", "onnx"),
        ("bidirectional", "mixed_float16", "tensorflow"),
        ("lstm", "float64", "onnx"),
        pytest.param("stacked", "float16", "litert", marks=needs_litert),
    ],
)
def test_layers_of_other_float_types_are_quantized(name: str, policy: str, target: str) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        model = network(name)
    finally:
        keras.config.set_dtype_policy("float32")
    sqnr = qk.quantize(model, X, target=target, runs=0).report.accuracy.sqnr
    assert sqnr is not None
    assert sqnr.worst > 25


@needs_litert
@pytest.mark.parametrize(("name", "shape"), [("lstm", None), ("lstm", (1, 6, 4)), ("bidirectional", None)])
def test_layers_are_quantized_for_litert(
    name: str, shape: tuple[int, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    model = qk.load(network(name), input_shapes={"x": shape} if shape else None)
    quantized = qk.quantize(model, X, target="litert", runs=0).model
    with open_session(model.graph, "tensorflow") as session, open_session(quantized.graph, "litert") as int8:
        (expected,), (actual,) = (each.run({"x": X[:1]}).values() for each in (session, int8))
    np.testing.assert_allclose(actual, expected, atol=0.05 * np.abs(expected).max())


@needs_litert
@pytest.mark.parametrize("recipe", [None, "inference"])
@pytest.mark.parametrize(("name", "steps"), [("masked", 6), ("stacked", 6), ("sequence", 6), ("sequence", None)])
def test_litert_computes_each_batch_and_length(
    name: str, steps: int | None, recipe: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    model = qk.load(network(name, steps))
    model = model if recipe is None else qk.transform(model, recipe)
    with open_session(model.graph, "tensorflow") as session, open_session(model.graph, "litert") as litert:
        for x in (X[:3], X[:1], X[:2, : steps or 4]):
            (expected,), (actual,) = session.run({"x": x}).values(), litert.run({"x": x}).values()
            np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_a_concatenation_along_an_unknown_axis_stays_float() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder(dtype=float)
        w = Const[4x4]()
        shape = Const[int32]([-1, 4])
        rows = Reshape(x, shape, T=float, Tshape=int32)
        a = MatMul(rows, w, T=float)
        b = MatMul(rows, w, T=float)
        sizes = Shape(x, T=float, out_type=int32)
        c = Reshape(a, sizes, T=float, Tshape=int32)
        d = Reshape(b, sizes, T=float, Tshape=int32)
        axis = Const[int32](-1)
        joined = ConcatV2(c, d, axis, N=2, T=float, Tidx=int32)
        back = Reshape(joined, shape, T=float, Tshape=int32)
        y = MatMul(back, w, T=float)
    """)
    plan = annotate(graph, Scheme.for_target("tensorflow"))
    quantized = convert(graph, plan, calibrate(graph, plan, [X]))
    assert quantized["joined"].attrs["T"] is DType.FLOAT
