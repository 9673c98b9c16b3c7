"""ONNX models with subgraphs and external data."""

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from conformance_cases import CASES

from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.formats import onnx
from quantkit.formats.onnx.values import message_class as onnx_message


def models_with_subgraphs() -> list[bytes]:
    """Return a model with an If, a Loop and shape arithmetic; none without the onnx package."""
    if find_spec("onnx") is None:
        return []
    from onnx import TensorProto, helper

    def value(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int | str] = (1, 4)) -> object:
        return helper.make_tensor_value_info(name, kind, shape)

    def branch(op: str) -> object:
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}_out"])], op, [], [value(f"{op}_out")])

    body = helper.make_graph(
        [helper.make_node("Add", ["state", "one"], ["next"]), helper.make_node("Identity", ["go"], ["still"])],
        "body",
        [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("state")],
        [value("still", TensorProto.BOOL, ()), value("next")],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["large"]),
        helper.make_node("If", ["large"], ["chosen"], then_branch=branch("Relu"), else_branch=branch("Neg")),
        helper.make_node("Loop", ["count", "yes", "chosen"], ["looped"], body=body),
        helper.make_node("Shape", ["looped"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Pad", ["zeros", "pads"], ["padded"]),
        helper.make_node("Add", ["looped", "padded"], ["y"]),
    ]
    initializers = [
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0]),
        helper.make_tensor("count", TensorProto.INT64, [], [3]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        helper.make_tensor("pads", TensorProto.INT64, [4], [0, 0, 0, 0]),
    ]
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return [model.SerializeToString()]


def external_models() -> list[bytes]:
    """Return a model whose weights are in ``weights.bin``."""
    message = onnx_message("ModelProto").FromString(onnx.encode(convert(CASES["dense"].graph)))
    for tensor in message.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = 1
        for key, text in (("location", "weights.bin"), ("offset", "0"), ("length", str(4 * int(np.prod(tensor.dims))))):
            tensor.external_data.add(key=key, value=text)
    return [message.SerializeToString()]


def nested_models() -> list[bytes]:
    """Return models with an If in a Loop, and a Scan, whose weights are in ``weights.bin``; none without onnx."""
    if find_spec("onnx") is None:
        return []
    from onnx import TensorProto, helper

    def value(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int] = (1, 4)) -> object:
        return helper.make_tensor_value_info(name, kind, shape)

    def weights(name: str, *dims: int) -> object:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
        length = str(4 * int(np.prod(dims)))
        for key, text in (("location", "weights.bin"), ("offset", "0"), ("length", length)):
            tensor.external_data.add(key=key, value=text)
        return tensor

    product = helper.make_graph(
        [helper.make_node("MatMul", ["state", "w"], ["product"])], "then", [], [value("product")], [weights("w", 4, 4)]
    )
    same = helper.make_graph([helper.make_node("Identity", ["state"], ["same"])], "else", [], [value("same")])
    body = helper.make_graph(
        [
            helper.make_node("If", ["go"], ["next"], then_branch=product, else_branch=same),
            helper.make_node("Identity", ["go"], ["still"]),
        ],
        "body",
        [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("state")],
        [value("still", TensorProto.BOOL, ()), value("next")],
    )
    step = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["total"]), helper.make_node("Mul", ["total", "v"], ["scaled"])],
        "step",
        [value("sum", shape=(4,)), value("row", shape=(4,))],
        [value("total", shape=(4,)), value("scaled", shape=(4,))],
        [weights("v", 4)],
    )
    constants = [
        helper.make_tensor("count", TensorProto.INT64, [], [2]),
        helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        helper.make_tensor("start", TensorProto.FLOAT, [4], [0.0] * 4),
    ]
    loop = helper.make_node("Loop", ["count", "yes", "x"], ["y"], body=body)
    scan = helper.make_node("Scan", ["start", "x"], ["last", "y"], body=step, num_scan_inputs=1)
    models = []
    for node, used in ((loop, constants[:2]), (scan, constants[2:])):
        graph = helper.make_graph([node], "g", [value("x")], [value("y")], used)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        models.append(model.SerializeToString())
    return models
