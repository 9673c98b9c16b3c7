"""ONNX <-> Graph: round trips, lazy tensors, rejection of damaged files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import GraphError, InputError, QuantkitError, UsageError
from quantkit.formats import load, onnx, save
from quantkit.formats.onnx.schema import message_class
from quantkit.ir.graph import Edge, Graph, Node, Opaque, constant
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.onnx.types import DTYPES, NUMBERS


def info(name: str, *dims: int | str) -> Any:
    message = message_class("ValueInfoProto")(name=name)
    message.type.tensor_type.elem_type = 1
    for size in dims:
        message.type.tensor_type.shape.dim.add(**{"dim_value" if isinstance(size, int) else "dim_param": size})
    return message


def add_node(graph: Any, op: str, inputs: list[str], outputs: list[str], **fields: Any) -> Any:
    return graph.node.add(op_type=op, input=inputs, output=outputs, **fields)


def rich_model() -> Any:
    """Return a model with every kind of attribute, subgraphs, absent values, custom domains and unknown fields."""
    message = message_class("ModelProto")(ir_version=8, producer_name="somebody", doc_string="a model")
    message.opset_import.add(domain="", version=17)
    message.opset_import.add(domain="com.microsoft", version=1)
    message.metadata_props.add(key="who", value="me")
    graph = message.graph
    graph.name, graph.doc_string = "rich", "every kind"
    graph.input.extend([info("x", "n", 4), info("flag")])
    graph.output.extend([info("parts:1", "n", 2), info("resized", "n", "m")])
    graph.value_info.append(info("relu", "n", 4))
    graph.initializer.add(name="sizes", dims=[2], data_type=7, int64_data=[4, 4])
    add_node(graph, "Relu", ["x"], ["relu"], name="Relu_0", doc_string="positive")
    add_node(graph, "Split", ["relu"], ["parts", "parts:1", "third"])
    resize = add_node(graph, "Resize", ["relu", "", "", "sizes"], ["resized"])
    resize.attribute.add(name="mode", type=3, s=b"linear")
    custom = add_node(graph, "Custom", ["parts"], ["custom"], domain="com.microsoft")
    for name, kind, field, value in (
        ("f", 1, "f", 0.5),
        ("i", 2, "i", -3),
        ("floats", 6, "floats", [0.5, 0.25]),
        ("ints", 7, "ints", [1, -2]),
        ("no_ints", 7, "ints", []),
        ("no_floats", 6, "floats", []),
        ("strings", 8, "strings", [b"a", b""]),
    ):
        attribute = custom.attribute.add(name=name, type=kind)
        getattr(attribute, field).extend(value) if isinstance(value, list) else setattr(attribute, field, value)
    tensor = custom.attribute.add(name="t", type=4).t
    tensor.data_type, tensor.dims[:], tensor.float_data[:] = 1, [2], [1, 2]
    tensors = custom.attribute.add(name="ts", type=9).tensors
    tensors.add(data_type=1, dims=[1], raw_data=b"\0\0\x80?")
    choice = add_node(graph, "If", ["flag"], ["chosen"])
    for name in ("then_branch", "else_branch"):
        branch = choice.attribute.add(name=name, type=5).g
        branch.name = name
        add_node(branch, "Neg", ["relu"], [f"{name}/y"])
        branch.output.append(info(f"{name}/y"))
    constant_node = add_node(graph, "Constant", [], ["seven"])
    constant_node.attribute.add(name="value_string", type=3, s=b"seven")
    skipped = add_node(graph, "Dropout", ["seven"], ["", "mask"])
    skipped.attribute.add(name="seed", type=2, i=0)
    return message


def canonical(data: bytes) -> Any:
    """Return the message without fields that have several equivalent encodings."""
    message = message_class("ModelProto").FromString(data)
    for node in message.graph.node:
        if not node.domain:
            node.ClearField("domain")
        node.attribute.sort(key=lambda attribute: attribute.name)
    for tensor in message.graph.initializer:
        tensor.ClearField("int64_data")
        tensor.ClearField("raw_data")
    for node in message.graph.node:
        for attribute in node.attribute:
            for tensor in (attribute.t, *attribute.tensors):
                tensor.ClearField("float_data")
                tensor.ClearField("raw_data")
    return message


def test_round_trip_preserves_all_fields() -> None:
    data = rich_model().SerializeToString(deterministic=True)
    graph = onnx.decode(data)
    encoded = onnx.encode(graph)
    assert canonical(encoded) == canonical(data)
    assert onnx.decode(encoded) == graph


def test_unknown_fields_are_preserved() -> None:
    model = rich_model()
    unknown = b"\xfa\x3e\x03abc"  # field 1007
    data = model.SerializeToString(deterministic=True) + unknown
    node = message_class("NodeProto").FromString(model.graph.node[0].SerializeToString() + unknown)
    model.graph.node[0].CopyFrom(node)
    assert onnx.encode(onnx.decode(data)).count(unknown) == 1
    assert onnx.encode(onnx.decode(model.SerializeToString())).count(unknown) == 1


def test_value_names_become_edges() -> None:
    graph = onnx.decode(rich_model().SerializeToString())
    assert graph.inputs == (Edge("x"), Edge("flag"))
    assert graph.outputs == (Edge("parts", 1), Edge("resized"))
    assert graph["resized"].inputs == (Edge("relu"), Edge(""), Edge(""), Edge("sizes"))
    assert graph["chosen"].controls == ("relu",)
    assert graph["mask"].op == "Dropout"
    assert onnx.value_name(graph["mask"], 0) == ""
    assert onnx.value_name(graph["parts"], 2) == "third"
    assert onnx.edge_of(graph, "third") == Edge("parts", 2)
    assert onnx.edge_of(graph, "elsewhere:1") == Edge("elsewhere", 1)


def test_fields_are_decoded() -> None:
    graph = onnx.decode(rich_model().SerializeToString())
    custom = graph["custom"]
    assert custom.op == "com.microsoft.Custom"
    assert custom.attrs["ints"] == (1, -2)
    assert custom.attrs["no_ints"] == ()
    assert isinstance(custom.attrs["no_floats"], Opaque)
    assert custom.attrs["t"] == Tensor.of(np.array([1, 2], np.float32))
    assert isinstance(graph["chosen"].attrs["then_branch"], Opaque)
    assert graph["x"].attrs == {"dtype": DType.FLOAT, "shape": Shape((None, 4))}
    assert onnx.opsets(graph) == {"": 17, "com.microsoft": 1}


def test_large_tensors_are_views_of_the_file() -> None:
    values = np.arange(5000, dtype=np.float32)
    value = Tensor.of(values)
    nodes = [Node("w", "Constant", attrs={"value": value}), Node("k", "Keep", (Edge("w"),), attrs={"t": value})]
    data = onnx.encode(Graph.of(nodes, [], ["k"], dialect="onnx"))
    graph = onnx.decode(data)
    for tensor in (graph["w"].value, graph["k"].attrs["t"]):
        assert isinstance(tensor, Tensor)
        assert np.shares_memory(tensor.array, np.frombuffer(data, np.uint8))
        np.testing.assert_array_equal(tensor.array, values)


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("count", [0, 1, 7, 3000])
def test_tensors_of_all_types_round_trip(dtype: DType, count: int) -> None:
    values = np.array([b"x" * (i % 5) for i in range(count)], object)
    if dtype is not DType.STRING:
        values = (np.arange(count) % 2).astype(dtype.numpy)
    graph = Graph.of([Node("c", "Constant", attrs={"value": Tensor.of(values, dtype)})], dialect="onnx")
    tensor = onnx.decode(onnx.encode(graph))["c"].value
    assert (tensor.dtype, tensor.shape) == (dtype, (count,))
    np.testing.assert_array_equal(tensor.array, values)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"data_type": 1, "float_data": [2.5, 1]}, np.array([2.5, 1], np.float32)),
        ({"data_type": 2, "int32_data": [200, 1]}, np.array([200, 1], np.uint8)),
        ({"data_type": 3, "int32_data": [-100, 1]}, np.array([-100, 1], np.int8)),
        ({"data_type": 9, "int32_data": [0, 1]}, np.array([False, True])),
        ({"data_type": 10, "int32_data": [0x3C00, 0]}, np.array([1, 0], np.float16)),
        ({"data_type": 12, "uint64_data": [1 << 31, 1]}, np.array([1 << 31, 1], np.uint32)),
        ({"data_type": 14, "float_data": [1, 2, 3, 4]}, np.array([1 + 2j, 3 + 4j], np.complex64)),
        ({"data_type": 11, "double_data": [0.1, 1]}, np.array([0.1, 1], np.float64)),
    ],
)
def test_typed_fields_are_decoded(fields: dict[str, Any], values: np.ndarray) -> None:
    message = message_class("ModelProto")()
    message.graph.initializer.add(name="c", dims=[2], **fields)
    np.testing.assert_array_equal(onnx.decode(message.SerializeToString())["c"].value.array, values)


@pytest.mark.parametrize(("number", "dtype", "values"), [(22, DType.INT4, [2, 1, -5]), (21, DType.UINT4, [2, 1, 11])])
@pytest.mark.parametrize("is_raw", [True, False])
def test_values_of_4_bits_are_packed(number: int, dtype: DType, values: list[int], is_raw: bool) -> None:
    message = message_class("ModelProto")()
    tensor = message.graph.initializer.add(name="c", dims=[3], data_type=number)
    if is_raw:
        tensor.raw_data = b"\x12\x0b"
    else:
        tensor.int32_data[:] = [0x12, 0x0B]
    graph = onnx.decode(message.SerializeToString())
    assert graph["c"].value.dtype is dtype
    assert graph["c"].value.array.astype(int).tolist() == values
    (saved,) = message_class("ModelProto").FromString(onnx.encode(graph)).graph.initializer
    assert saved.raw_data == b"\x12\x0b"
    computed = graph.with_nodes([graph["c"].with_attrs(value=Tensor.of(graph["c"].value.array, dtype))])
    assert onnx.encode(computed) == onnx.encode(graph)


def test_unsupported_types_are_preserved(tmp_path: Path) -> None:
    """Types of 2 bits have no NumPy type: the bytes of the initializer stay, those of external data too."""
    message = message_class("ModelProto")()
    message.graph.initializer.add(name="c", dims=[3], data_type=26, raw_data=b"\x12")
    graph = onnx.decode(message.SerializeToString())
    saved = message_class("ModelProto").FromString(onnx.encode(graph)).graph.initializer
    assert saved[0].SerializeToString() == message.graph.initializer[0].SerializeToString()
    tensor = message.graph.initializer.add(name="d", dims=[3], data_type=26, data_location=1)
    tensor.external_data.add(key="location", value="weights.bin")
    (tmp_path / "weights.bin").write_bytes(b"\x34")
    (tmp_path / "m.onnx").write_bytes(message.SerializeToString())
    saved = message_class("ModelProto").FromString(onnx.encode(load(tmp_path / "m.onnx"))).graph.initializer
    assert [tensor.raw_data for tensor in saved] == [b"\x12", b"\x34"]


def test_external_data_in_the_model_folder(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    (tmp_path / "weights.bin").write_bytes(b"junk" + values.tobytes())
    message = message_class("ModelProto")()
    tensor = message.graph.initializer.add(name="w", dims=[6], data_type=1, data_location=1)
    for key, value in (("location", "weights.bin"), ("offset", "4"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(message.SerializeToString())
    np.testing.assert_array_equal(load(tmp_path / "m.onnx")["w"].value.array, values)
    with pytest.raises(InputError, match="in an external file"):
        onnx.decode(message.SerializeToString())
    for key, value, match in (
        ("length", "25", "exceeds the end"),
        ("location", "../x", "outside"),
        ("location", "weights\0.bin", "has a null character"),
        ("offset", "a", "n"),
    ):
        broken = message_class("ModelProto").FromString(message.SerializeToString())
        for entry in broken.graph.initializer[0].external_data:
            entry.value = value if entry.key == key else entry.value
        (tmp_path / "m.onnx").write_bytes(broken.SerializeToString())
        with pytest.raises(InputError, match=match):
            load(tmp_path / "m.onnx")


def test_nodes_are_written_in_topological_order() -> None:
    nodes = [Node("z", "Neg", (Edge("y"),)), Node("y", "Relu", (Edge("x"),)), Node("x", "Placeholder")]
    encoded = onnx.encode(Graph.of(nodes, ["x"], ["z"], dialect="onnx"))
    assert [node.op_type for node in message_class("ModelProto").FromString(encoded).graph.node] == ["Relu", "Neg"]


def test_input_keeps_named_dimensions_unless_its_shape_changes() -> None:
    graph = onnx.decode(rich_model().SerializeToString())

    def dims(shape: Shape) -> list[Any]:
        changed = graph.with_nodes([graph["x"].with_attrs(shape=shape), *list(graph.nodes.values())[1:]])
        (value_info, _) = message_class("ModelProto").FromString(onnx.encode(changed)).graph.input
        return [dim.dim_param or dim.dim_value for dim in value_info.type.tensor_type.shape.dim]

    assert dims(Shape((None, 4))) == ["n", 4]
    assert dims(Shape((8, 4))) == [8, 4]


def test_file_suffix_determines_the_format(tmp_path: Path) -> None:
    graph = onnx.decode(rich_model().SerializeToString())
    save(graph, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    assert loaded == graph
    assert load(tmp_path / "m.onnx", outputs=["third"]).outputs == (Edge("parts", 2),)
    with pytest.raises(UsageError, match="dialect onnx"):
        save(graph, tmp_path / "m.pb")
    with pytest.raises(UsageError, match="dialect tensorflow"):
        save(Graph.of([constant("c", 1.0)]), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.node[0].output.__setitem__(0, "x"), "two values are named 'x'"),
        (lambda graph: graph.node[0].input.__setitem__(0, "missing"), "'relu' .* has 'missing'"),
        (lambda graph: graph.output.add(name="missing"), "the list of outputs has 'missing'"),
        (lambda graph: graph.node[0].ClearField("output"), "'Relu_0' .* no output"),
        (lambda graph: setattr(graph.node[0], "op_type", ""), "has the invalid op type"),
        (lambda graph: setattr(graph.node[0], "op_type", "Conv"), r"'relu' \(Conv\) has no input 1"),
        (lambda graph: setattr(graph.node[0], "op_type", "LSTM"), r"'relu' \(LSTM\) has no input 1"),
        (lambda graph: graph.initializer[0].dims.append(3), "sizes.* has 2 values"),
        (lambda graph: graph.initializer.add(name="r", dims=[2], data_type=1, raw_data=b"123"), "8 bytes but has 3"),
        (lambda graph: graph.initializer.add(name="r", dims=[-1], data_type=1), "the invalid shape"),
    ],
)
def test_invalid_model_is_rejected_with_reason(change: Any, message: str) -> None:
    model = rich_model()
    change(model.graph)
    with pytest.raises(InputError, match=message):
        onnx.decode(model.SerializeToString())


def test_model_without_graph_is_rejected() -> None:
    with pytest.raises(InputError, match="has no graph"):
        onnx.decode(b"\x08\x07")


def test_duplicate_value_names_are_rejected() -> None:
    nodes = [Node("x", "Placeholder"), Node("s", "Split", (Edge("x"),)), Node("s:1", "Neg", (Edge("s", 1),))]
    with pytest.raises(GraphError, match="'s:1'"):
        onnx.encode(Graph.of(nodes, ["x"], ["s:1"], dialect="onnx"))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2000), st.integers(0, 255), st.booleans())
def test_mutated_bytes_are_decoded_or_rejected(position: int, byte: int, is_truncated: bool) -> None:
    data = bytearray(rich_model().SerializeToString(deterministic=True))
    position %= len(data)
    data[position] = byte
    try:
        onnx.encode(onnx.decode(bytes(data[:position] if is_truncated else data)))
    except QuantkitError as error:
        assert error.message  # noqa: PT017


@pytest.mark.engine
def test_onnx_checker_accepts_encoded_models() -> None:
    checker = pytest.importorskip("onnx", reason="pip install onnx")
    helper = checker.helper
    x = helper.make_tensor_value_info("x", 1, ["n", 2])
    y = helper.make_tensor_value_info("y", 1, ["n", 2])
    w = checker.numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    model = helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w]))
    again = checker.load_from_string(onnx.encode(onnx.decode(model.SerializeToString())))
    checker.checker.check_model(again, full_check=True)
    assert again.graph.input == model.graph.input

    graph = Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 2))}),
            Node("w", "Constant", attrs={"value": Tensor.of(np.ones((2, 2), np.float32))}),
            Node("y", "Gemm", (Edge("x"), Edge("w")), attrs={"alpha": 0.5, "transB": 1}),
        ],
        ["x"],
        ["y"],
        dialect="onnx",
        extra=onnx.header({"y": (DType.FLOAT, Shape((None, 2)))}),
    )
    checker.checker.check_model(checker.load_from_string(onnx.encode(graph)), full_check=True)


def test_inputs_keep_their_order() -> None:
    message = message_class("ModelProto")(ir_version=8)
    message.graph.input.extend([info("a", 2), info("b", 2)])
    message.graph.output.append(info("y", 2))
    add_node(message.graph, "Sub", ["a", "b"], ["y"])
    graph = onnx.decode(message.SerializeToString())
    reordered = graph.with_nodes(reversed(list(graph.nodes.values())))
    assert onnx.decode(onnx.encode(reordered)).inputs == (Edge("a"), Edge("b"))


def graph_of_version_3() -> Graph:
    """Return a graph whose initializer ``w`` is also an input."""
    message = message_class("ModelProto")(ir_version=3)
    message.graph.input.extend([info("x", 2), info("w", 2)])
    message.graph.output.append(info("y", 2))
    message.graph.initializer.add(name="w", dims=[2], data_type=1, float_data=[1, 2])
    add_node(message.graph, "Mul", ["x", "w"], ["y"])
    return onnx.decode(message.SerializeToString())


def test_initializers_before_version_4_are_inputs_only_if_all_are() -> None:
    graph = graph_of_version_3()
    saved = message_class("ModelProto").FromString(onnx.encode(graph))
    assert saved.ir_version == 3
    assert [value.name for value in saved.graph.input] == ["x", "w"]
    more = [*graph.nodes.values(), Node("v", "Constant", attrs={"value": Tensor.of(np.array([3, 4], np.float32))})]
    saved = message_class("ModelProto").FromString(onnx.encode(graph.with_nodes(more)))
    assert saved.ir_version == 4
    assert [value.name for value in saved.graph.input] == ["x"]


@pytest.mark.parametrize("array", [np.array([1, 2], np.float16), np.array([[1], [2]], np.float32)])
def test_initializers_that_are_inputs_state_their_new_type(array: Array) -> None:
    graph = graph_of_version_3()
    graph = graph.with_nodes([*graph.nodes.values(), graph["w"].with_attrs(value=Tensor.of(array))])
    saved = message_class("ModelProto").FromString(onnx.encode(graph)).graph.input[1].type.tensor_type
    assert saved.elem_type == NUMBERS[DType.of(array.dtype)]
    assert [dim.dim_value for dim in saved.shape.dim] == [*array.shape]


def test_constant_with_a_node_name_does_not_become_an_input() -> None:
    message = message_class("ModelProto")(ir_version=8)
    message.graph.input.append(info("x", 2))
    message.graph.output.append(info("y", 2))
    tensor = add_node(message.graph, "Constant", [], ["w"], name="Constant_0").attribute.add(name="value", type=4).t
    tensor.data_type, tensor.dims[:], tensor.float_data[:] = 1, [2], [1, 2]
    add_node(message.graph, "Mul", ["x", "w"], ["y"])
    saved = message_class("ModelProto").FromString(onnx.encode(onnx.decode(message.SerializeToString())))
    assert [value.name for value in saved.graph.input] == ["x"]
    assert [value.name for value in saved.graph.initializer] == ["w"]
