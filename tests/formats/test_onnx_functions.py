"""Functions of ONNX models are inlined: the outputs are those of ONNX Runtime for the model with its functions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit import limits
from quantkit.errors import GraphError, InputError
from quantkit.formats import load, onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.recipes import rewrite
from quantkit.runtimes import open_session

pytestmark = pytest.mark.engine
package = pytest.importorskip("onnx", reason="pip install onnx")
helper, FLOAT = package.helper, package.TensorProto.FLOAT
X = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)


def function(name: str, inputs: str, outputs: str, nodes: list[Any], **options: Any) -> Any:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return helper.make_function("my", name, inputs.split(), outputs.split(), nodes, opsets, **options)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    """Return a node; ``-`` stands for an omitted value, an op in lower case is a function."""
    names = [[name.strip("-") for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, domain="my" if op.islower() else "", **attrs)


def reference(name: str, kind: str, **attrs: Any) -> Any:
    """Return an attribute that refers to an attribute of the function."""
    return package.AttributeProto(
        name=name, ref_attr_name=attrs["to"], type=getattr(package.AttributeProto, kind.upper())
    )


def with_attribute(message: Any, attribute: Any) -> Any:
    message.attribute.append(attribute)
    return message


def model(nodes: list[Any], functions: list[Any], constants: dict[str, Array] | None = None) -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", FLOAT, ["n", 3, 4, 4])],
        [info("y", FLOAT, ["n", "c", "h", "w"])],
        [package.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    data: bytes = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


def check(data: bytes, *ops: str) -> Graph:
    """Compare outputs and op types of the inlined graph, and those of the rewritten graph."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    onnxruntime.set_default_logger_severity(4)
    expected = onnxruntime.InferenceSession(data).run(None, {"x": X})[0]
    graph = onnx.decode(data)
    assert "my" not in onnx.opsets(graph)
    for each in (graph, onnx.decode(onnx.encode(graph)), rewrite(graph, "inference")):
        package.checker.check_model(package.load_from_string(onnx.encode(each)))
        with open_session(each, "onnxruntime") as session:
            np.testing.assert_allclose(session.run({"x": X})["y"], expected, rtol=1e-6)
    assert sorted(each.op for each in graph.nodes.values() if each.op not in ("Placeholder", "Constant")) == sorted(ops)
    return graph


BLOCK = function("block", "a w", "o", [node("Conv", "a w", "h", pads=[1] * 4), node("Relu", "h", "o")])
WEIGHTS = X[0, :, :3, :3].reshape(1, 3, 3, 3).repeat(3, axis=0)


def test_calls_become_nodes_with_names_of_their_own() -> None:
    data = model([node("block", "x w", "h"), node("block", "h w", "y")], [BLOCK], {"w": WEIGHTS})
    graph = check(data, "Conv", "Relu", "Conv", "Relu")
    assert {"h/h", "h", "y/h", "y"} <= graph.nodes.keys()


def test_names_that_exist_are_not_used_again() -> None:
    nodes = [node("Neg", "x", "y/h"), node("block", "y/h w", "y")]
    assert "y/h_1" in check(model(nodes, [BLOCK], {"w": WEIGHTS}), "Neg", "Conv", "Relu").nodes


def test_functions_call_functions() -> None:
    twice = function("twice", "a w", "o", [node("block", "a w", "h"), node("block", "h w", "o")])
    data = model([node("twice", "x w", "h"), node("twice", "h w", "y")], [twice, BLOCK], {"w": WEIGHTS})
    check(data, *["Conv", "Relu"] * 4)


@pytest.mark.parametrize("call", [{}, {"alpha": 0.5}, {"slope": 0.25}, {"alpha": 0.5, "slope": 0.25}])
def test_attributes_have_the_value_of_the_call_or_the_default(call: dict[str, float]) -> None:
    nodes = [
        with_attribute(node("LeakyRelu", "a", "h"), reference("alpha", "float", to="slope")),
        with_attribute(node("Elu", "h", "o"), reference("alpha", "float", to="alpha")),
    ]
    body = function(
        "act", "a", "o", nodes, attributes=["slope"], attribute_protos=[helper.make_attribute("alpha", 2.0)]
    )
    nested = function(
        "outer",
        "a",
        "o",
        [with_attribute(with_attribute(node("act", "a", "o"), reference("slope", "float", to="slope")), ALPHA)],
        attributes=["slope", "alpha"],
    )
    graph = check(model([node("outer", "x", "y", **call)], [body, nested]), "LeakyRelu", "Elu")
    assert graph["y/h"].attrs.get("alpha") == call.get("slope")
    assert graph["y"].attrs["alpha"] == call.get("alpha", 2.0)


ALPHA = reference("alpha", "float", to="alpha")


def test_tensors_of_calls_and_of_functions() -> None:
    large = package.numpy_helper.from_array(X.reshape(-1, 1, 1, 1).repeat(8, axis=1)[:3].repeat(32, axis=1)[:, :3])
    constant = with_attribute(node("Constant", "", "c"), reference("value", "tensor", to="weights"))
    body = function("scale", "a", "o", [constant, node("Conv", "a c", "o")], attributes=["weights"])
    check(model([node("scale", "x", "y", weights=large)], [body]), "Conv")
    big = package.numpy_helper.from_array(np.arange(768, dtype=np.float32).reshape(16, 3, 4, 4))
    inner = function("scale", "a", "o", [node("Constant", "", "c", value=big), node("Conv", "a c", "o")])
    check(model([node("scale", "x", "h"), node("scale", "x", "g"), node("Add", "h g", "y")], [inner]), *CONVS)


CONVS = ("Conv", "Conv", "Add")


def test_outputs_that_are_inputs_or_equal() -> None:
    same = function("same", "a b", "a s o s", [node("Add", "a b", "s"), node("Mul", "a s", "o")])
    nodes = [node("same", "x x", "p q r s"), node("Sum", "p q r s", "y")]
    body = function("same", "a b", "p s o q", [*same.node, node("Identity", "a", "p"), node("Identity", "s", "q")])
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    expected = onnxruntime.InferenceSession(model(nodes, [body])).run(None, {"x": X})[0]
    with open_session(onnx.decode(model(nodes, [same])), "reference") as session:
        np.testing.assert_allclose(session.run({"x": X})["y"], expected, rtol=1e-6)


def test_omitted_inputs_and_outputs() -> None:
    body = function("clip", "a low high", "n o", [node("Clip", "a low high", "o"), node("Neg", "a", "n")])
    data = model(
        [node("clip", "x low", "n y"), node("clip", "x - low", "- z")], [body], {"low": np.array(-0.5, np.float32)}
    )
    graph = onnx.decode(data)
    assert [str(edge) for edge in graph["y"].inputs] == ["x", "low", ""]
    assert [str(edge) for edge in graph["z"].inputs] == ["x", "", "low"]
    with open_session(graph, "reference") as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], X.clip(-0.5))


def test_calls_in_subgraphs_and_subgraphs_in_functions() -> None:
    info = helper.make_tensor_value_info

    def branch(name: str, nodes: list[Any]) -> Any:
        return helper.make_graph(nodes, name, [], [info(f"{name}_y", FLOAT, ["n", "c", "h", "w"])])

    then = branch("then", [node("block", "x w", "then_y")])
    other = branch("else", [node("choose", "x w yes", "else_y")])
    inner = [branch("then", [node("block", "a w", "then_y")]), branch("else", [node("Neg", "a", "else_y")])]
    choose = function("choose", "a w c", "o", [node("If", "c", "o", then_branch=inner[0], else_branch=inner[1])])
    constants = {"w": WEIGHTS, "yes": np.array(True)}
    nodes = [
        node("If", "no", "h", then_branch=then, else_branch=other),
        node("choose", "h w flag", "y"),
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "no"),
        node("Not", "no", "flag"),
    ]
    data = model([*nodes[2:4], nodes[0], nodes[4], nodes[1]], [choose, BLOCK], constants | {"zero": np.float32(1e9)})
    check(data, "If", "If", "ReduceSum", "Greater", "Not")


def test_the_overload_selects_the_function() -> None:
    functions = [function("act", "a", "o", [node(op, "a", "o")]) for op in ("Relu", "Neg")]
    calls = [node("act", "x", "h"), node("act", "h", "y")]
    for name, each, call in zip(("", "other"), functions, calls, strict=True):
        each.overload = call.overload = name
    assert [onnx.decode(model(calls, functions))[name].op for name in ("h", "y")] == ["Relu", "Neg"]


def test_opsets_of_functions_are_imported() -> None:
    body = function("gelu", "a", "o", [helper.make_node("Gelu", ["a"], ["o"], domain="com.microsoft")])
    body.opset_import.add(domain="com.microsoft", version=1)
    graph = check(model([node("gelu", "x", "y")], [body]), "com.microsoft.Gelu")
    assert onnx.opsets(graph) == {"": 17, "com.microsoft": 1}


def test_functions_that_call_themselves_are_rejected() -> None:
    functions = [
        function("first", "a", "o", [node("second", "a", "o")]),
        function("second", "a", "o", [node("first", "a", "o")]),
    ]
    with pytest.raises(GraphError, match="calls itself"):
        onnx.decode(model([node("first", "x", "y")], functions))


def test_the_number_of_inlined_nodes_is_limited(tmp_path: Path) -> None:
    functions = [function("a0", "a", "o", [node("Neg", "a", "o")])]
    for level in range(1, 30):
        calls = [node(f"a{level - 1}", "a", "h"), node(f"a{level - 1}", "h", "o")]
        functions.append(function(f"a{level}", "a", "o", calls))
    path = tmp_path / "m.onnx"
    path.write_bytes(model([node("a29", "x", "y")], functions))
    with limits(max_nodes=1000), pytest.raises(GraphError, match="more than 1,000 nodes"):
        load(path)


@pytest.mark.parametrize(
    ("call", "message"),
    [(node("block", "x w x", "y"), "3 inputs"), (node("block", "x w", "y z"), "2 outputs")],
)
def test_calls_with_too_many_arguments_are_rejected(call: Any, message: str) -> None:
    with pytest.raises(GraphError, match=f"node 'y' has {message}, and its function 'block' has"):
        onnx.decode(model([call], [BLOCK], {"w": WEIGHTS}))


def test_functions_nested_in_subgraphs_without_end_are_rejected() -> None:
    functions = []
    for level in range(600):
        branch = helper.make_graph(
            [node(f"f{level + 1}", "a c", "o")], "b", [], [helper.make_tensor_value_info("o", FLOAT, None)]
        )
        functions.append(
            function(f"f{level}", "a c", "r", [node("If", "c", "r", then_branch=branch, else_branch=branch)])
        )
    functions.append(function("f600", "a c", "o", [node("Neg", "a", "o")]))
    with pytest.raises((InputError, GraphError), match="nested too deeply|more than"):
        onnx.decode(model([node("f0", "x flag", "y")], functions, {"flag": np.array(True)}))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *(("twice", "litert"), ("nested", "onnx"), ("nested", "tensorflow")),
        *(("weights inside", "onnx"), ("linear", "onnx"), ("linear", "tensorflow")),
    ],
)
def test_layers_of_functions_are_quantized(name: str, target: str) -> None:
    for module in ("onnxruntime", "tensorflow"):
        pytest.importorskip(module, reason=f"pip install {module}")
    leaky = function(
        "leaky",
        "a w",
        "o",
        [
            node("block", "a w", "h"),
            with_attribute(node("LeakyRelu", "h", "o"), reference("alpha", "float", to="slope")),
        ],
        attributes=["slope"],
    )
    inside = [
        node("Constant", "", "c", value=package.numpy_helper.from_array(WEIGHTS)),
        node("Conv", "a c", "o", pads=[1] * 4),
    ]
    linear = [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "a t", "m"), node("Add", "m b", "o")]
    calls, functions = {
        "twice": ([node("block", "x w", "h"), node("block", "h w", "y")], [BLOCK]),
        "nested": ([node("leaky", "x w", "h", slope=0.3), node("block", "h w", "y")], [leaky, BLOCK]),
        "weights inside": ([node("own", "x", "h"), node("own", "h", "y")], [function("own", "a", "o", inside)]),
        "linear": ([node("linear", "x v b", "y")], [function("linear", "a w b", "o", linear)]),
    }[name]
    data = model(calls, functions, {"w": WEIGHTS, "v": X[0, 0], "b": X[0, 0, 0]})
    report = qk.quantize(data, np.random.default_rng(1).normal(size=(8, 3, 4, 4)), target=target, runs=0).report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 20


def test_openvino_opens_a_file_with_functions(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="pip install openvino")
    path = tmp_path / "m.onnx"
    path.write_bytes(model([node("block", "x w", "y")], [BLOCK], {"w": WEIGHTS}))
    with open_session(onnx.decode(path.read_bytes()), "reference") as session:
        expected = session.run({"x": X})["y"]
    with open_session(path, "openvino") as session:
        np.testing.assert_allclose(session.run({"x": X})["y"], expected, rtol=1e-5, atol=1e-5)
