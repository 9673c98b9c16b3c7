from typing import Any

import pytest

from quantkit.formats.onnx import decode
from quantkit.ir.graph import Graph
from quantkit.runtimes.onnxruntime_profile import read_trace

onnx = pytest.importorskip("onnx", reason="pip install onnx")
from onnx import TensorProto, helper  # noqa: E402


def _model(*nodes: Any) -> Graph:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "w")]
    output = helper.make_tensor_value_info("pool", TensorProto.UINT8, None)
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5])
    graph = helper.make_graph(list(nodes), "g", inputs, [output], [scale])
    return decode(helper.make_model(graph).SerializeToString())


def test_a_layer_in_a_blocked_layout_belongs_to_one_op() -> None:
    """The rewrite renames the outputs of the convolution and of the quantization, and keeps the names of the nodes.

    The max pool of quantized values contains the dequantization of the convolution.
    """
    graph = _model(
        helper.make_node("Conv", ["x", "w"], ["conv"], "conv"),
        helper.make_node("QuantizeLinear", ["conv", "scale"], ["conv/codes"], "conv/codes"),
        helper.make_node("DequantizeLinear", ["conv/codes", "scale"], ["conv/values"], "conv/values"),
        helper.make_node("MaxPool", ["conv/values"], ["pool/values"], "pool/values"),
        helper.make_node("QuantizeLinear", ["pool/values", "scale"], ["pool"], "pool"),
    )
    optimized = _model(
        helper.make_node("Conv", ["x", "w"], ["a"], "conv_nchwc", domain="com.microsoft.nchwc"),
        helper.make_node("QuantizeLinear", ["a", "scale"], ["b"], "conv/codes"),
        helper.make_node("MaxPool", ["b"], ["pool"], "pool"),
    )
    names = [("conv_nchwc", "Conv", "float"), ("conv/codes", "QuantizeLinear", "float"), ("pool", "MaxPool", "uint8")]
    events = [{"name": "model_run", "ts": 0, "dur": 100}] + [
        {
            "name": f"{name}_kernel_time",
            "cat": "Node",
            "ts": 10 * index,
            "dur": 5,
            "args": {"op_name": op, "input_type_shape": [{dtype: [1]}]},
        }
        for index, (name, op, dtype) in enumerate(names)
    ]
    sources = {op.name: op.sources for op in read_trace(events, graph, optimized).ops}
    assert sources == {"conv_nchwc": ("conv",), "conv/codes": ("conv/codes",), "pool": ("pool", "pool/values")}
