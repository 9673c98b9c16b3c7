"""Graphs in float16, bfloat16 and double as float32 graphs."""

from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, DType
from quantkit.transforms.precision.convert_precision import convert_precision, find_types, restore_half

onnx_package = pytest.importorskip("onnx")
RANDOM = np.random.default_rng(0)
TYPES = {"float16": 10, "float64": 11}


def node(*arguments: Any, **attributes: Any) -> Any:
    return onnx_package.helper.make_node(*arguments, **attributes)


def onnx_graph(
    nodes: list[Any], inputs: dict[str, Any], outputs: list[str], constants: dict[str, Array], dtype: str
) -> Graph:
    """Return an ONNX graph with the types and shapes that ONNX infers."""
    helper = onnx_package.helper
    number = TYPES[dtype]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, number, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, number, None) for name in outputs],
        [onnx_package.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return qk.load(onnx_package.shape_inference.infer_shapes(model)).graph


def network(dtype: str) -> Graph:
    """Return a network with sizes that are computed in its float type, two kinds of outputs, and a branch."""

    def normal(*shape: int) -> Array:
        return (RANDOM.standard_normal(shape) * 0.2).astype(dtype)

    number = TYPES[dtype]
    helper = onnx_package.helper
    branches = {
        name: helper.make_graph(
            [node(op, ["pooled"], [name])], name, [], [helper.make_tensor_value_info(name, number, None)]
        )
        for name, op in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    nodes = [
        node("Conv", ["x", "w", "b"], ["conv"], pads=[1] * 4),
        node("BatchNormalization", ["conv", "s", "b", "b", "v"], ["norm"]),
        node("Shape", ["norm"], ["shape"]),
        node("Cast", ["shape"], ["sizes"], to=number),
        node("Mul", ["sizes", "factors"], ["scaled"]),
        node("Cast", ["scaled"], ["target"], to=7),
        node("Resize", ["norm", "", "", "target"], ["image"], mode="nearest"),
        node("Split", ["image"], ["left", "right"], axis=1),
        node("Cast", ["left"], ["left32"], to=1),
        node("Softmax", ["left32"], ["scores32"], axis=1),
        node("Cast", ["scores32"], ["scores"], to=number),
        node("GlobalAveragePool", ["right"], ["pooled"]),
        node("If", ["is_positive"], ["y"], **branches),
    ]
    constants = {
        "w": normal(8, 3, 3, 3),
        "b": normal(8),
        "s": normal(8) + np.ones(8, dtype),
        "v": np.abs(normal(8)) + np.ones(8, dtype),
        "factors": np.array([1, 1, 0.5, 0.5], dtype),
        "is_positive": np.array(True),
    }
    return onnx_graph(nodes, {"x": (1, 3, 8, 8)}, ["scores", "y", "right"], constants, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_widened_onnx_graph_is_valid_and_keeps_its_endpoints(dtype: str) -> None:
    """Captured values, outputs and computations of sizes keep their types; every stated type is the inferred one."""
    graph = network(dtype)
    widened = convert_precision(graph, to="float32")
    model = onnx_package.load_from_string(onnx.encode(widened))
    onnx_package.checker.check_model(model, full_check=True)
    types, before = find_types(widened), DType.of(dtype)
    assert [types[edge] for edge in (*widened.inputs, *widened.outputs)] == [before] * 4
    assert [str(edge) for edge in widened.outputs] == [str(edge) for edge in graph.outputs]
    assert {types[Edge(name)] for name in ("sizes", "scaled", "pooled")} == {before}
    assert {types[Edge(name)] for name in ("conv", "norm", "image", "w", "s")} == {DType.FLOAT}
    assert widened["shape"].inputs == (Edge("norm"),)
    assert widened["w"].value.array.dtype == np.float32
    assert convert_precision(widened, to="float32").nodes.keys() == widened.nodes.keys()


@pytest.mark.engine
def test_outputs_differ_by_rounding() -> None:
    graph = network("float16")
    x = RANDOM.standard_normal((1, 3, 8, 8)).astype(np.float16)
    results = []
    for each in (graph, convert_precision(graph, to="float32")):
        with qk.open_session(each, "onnxruntime") as session:
            results.append(session.run({"x": x}))
    for name, expected in results[0].items():
        assert results[1][name].dtype == expected.dtype == np.float16
        np.testing.assert_allclose(results[1][name], expected, atol=0.01)


def test_restored_nodes_compute_in_float16_again() -> None:
    graph = network("float16")
    widened = convert_precision(graph, to="float32")
    names = [name for name in widened.nodes if name not in ("conv", "norm")]
    restored = restore_half(widened, graph, names)
    onnx_package.checker.check_model(onnx_package.load_from_string(onnx.encode(restored)), full_check=True)
    types = find_types(restored)
    assert {types[Edge(name)] for name in ("image", "left", "pooled", "scores")} == {DType.HALF}
    assert {types[Edge(name)] for name in ("conv", "norm", "scores32")} == {DType.FLOAT}
    assert "norm/float16" in restored
    unused = {name for name in restored.nodes if name not in restored.node_uses} - restored.endpoint_names
    assert not unused


def test_ops_of_other_domains_keep_float16() -> None:
    """Their types are not known: a Cast before and after them takes any."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("Gelu", ["h"], ["g"], domain="com.acme"),
        node("Cast", ["i"], ["c"], to=10),
        node("Mul", ["g", "c"], ["m"]),
        node("MatMul", ["m", "w"], ["y"]),
    ]
    graph = onnx_graph(nodes, {"x": (1, 4)}, ["y"], {"w": np.eye(4, dtype=np.float16), "i": np.arange(4)}, "float16")
    widened = convert_precision(graph, to="float32")
    assert widened["g"].inputs == (Edge("h/float16"),)
    assert widened["m"].inputs == (Edge("g/float32"), Edge("c"))
    assert (widened["c"].op, widened["c"].attrs["to"]) == ("Cast", 1)
    assert widened["w"].value.dtype is DType.FLOAT
