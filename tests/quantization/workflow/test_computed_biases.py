"""Biases that exporters compute from the type of another value and the sizes of the weights are quantized."""

from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx
from quantkit.formats.onnx.schema import FLOAT, FLOATS, INTS, message_class
from quantkit.formats.sizes import measure_size
from quantkit.runtimes import find_runtime

pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(0)


def network(scale: str) -> bytes:
    """Return a network of two convolutions, the second with zeros of a computed size as bias, in the type of x.

    Args:
        scale: attribute of the constant that the bias is computed from.
    """
    model = message_class("ModelProto")(ir_version=8)
    model.opset_import.add(version=18)
    graph = model.graph

    def add(op: str, output: str, *inputs: str, **attrs: Any) -> None:
        node = graph.node.add(op_type=op, name=f"node_{output}", input=inputs, output=[output])
        for name, value in attrs.items():
            attribute = node.attribute.add(name=name, type={list: INTS, float: FLOAT, tuple: FLOATS}[type(value)])
            if isinstance(value, float):
                attribute.f = value
            else:
                (attribute.ints if isinstance(value, list) else attribute.floats).extend(value)

    for name, channels in (("w", 3), ("v", 8)):
        weights = (RANDOM.standard_normal((8, channels, 3, 3)) / 5).astype(np.float32)
        graph.initializer.add(name=name, dims=weights.shape, data_type=1, raw_data=weights.tobytes())
    add("Conv", "h", "x", "w", pads=[1] * 4)
    add("Relu", "r", "h")
    add("Shape", "all", "v")
    for name, limit in (("begin", 0), ("end", 1)):
        add("Constant", name, value_ints=[limit])
    add("Slice", "size", "all", "begin", "end")
    add("Constant", "value", **{scale: 0.5 if scale == "value_float" else (0.5,)})
    add("CastLike", "typed", "value", "r")
    add("Expand", "bias", "typed", "size")
    add("Conv", "y", "r", "v", "bias", pads=[1] * 4)
    for info, sizes in ((graph.input.add(name="x"), (1, 3, 8, 8)), (graph.output.add(name="y"), (1, 8, 8, 8))):
        info.type.tensor_type.elem_type = 1
        for size in sizes:
            info.type.tensor_type.shape.dim.add(dim_value=size)
    return bytes(model.SerializeToString())


@pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed")
@pytest.mark.parametrize("scale", ["value_float", "value_floats"])
@pytest.mark.parametrize("target", ["onnx", "tensorflow"])
def test_layers_with_computed_biases_are_int8(scale: str, target: str) -> None:
    if target == "tensorflow" and not find_runtime("tensorflow").available().ok:
        pytest.skip("TensorFlow is not installed")
    samples = [RANDOM.standard_normal((1, 3, 8, 8)).astype(np.float32) for _ in range(8)]
    report = qk.quantize(network(scale), samples, target=target, runs=0).report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 25


def test_values_of_constants_are_read_as_tensors() -> None:
    graph = onnx.decode(network("value_floats"))
    assert graph["begin"].value.array.tolist() == [0]
    assert graph["value"].value.array.tolist() == [0.5]
    assert measure_size(None, graph) == 4 * (8 * 11 * 9 + 1) + 2 * 8
    assert not any(node.op == "Constant" for node in graph.nodes.values() if not node.attrs.get("value"))
