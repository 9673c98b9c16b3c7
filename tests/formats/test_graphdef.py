"""GraphDef <-> Graph: round trips, lazy tensors, rejection of damaged files."""

import os

import numpy as np
import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.errors import GraphError, QuantkitError
from quantkit.formats import graphdef
from quantkit.formats.graphdef.schema import message_class
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node, Opaque, Versions, constant
from quantkit.ir.tensor import DType, Shape, Tensor


def rich_graph_bytes() -> bytes:
    """Return a GraphDef with every kind of attribute, function and unknown field."""
    message = message_class("GraphDef")()
    message.versions.producer, message.versions.min_consumer = 27, 12
    message.versions.bad_consumers.append(13)
    node = message.node.add(name="x", op="Placeholder", device="/device:CPU:0")
    node.attr["shape"].shape.dim.add(size=-1)
    node.attr["shape"].shape.dim.add(size=3)
    node.attr["dtype"].type = 1
    node = message.node.add(name="everything", op="Custom", input=["x", "x:1", "^x"])
    node.attr["i"].i = -5
    node.attr["f"].f = 0.1
    node.attr["b"].b = False
    node.attr["s"].s = b"\xff\x00"
    node.attr["unknown_rank"].shape.unknown_rank = True
    node.attr["named"].shape.dim.add(size=2, name="batch")
    node.attr["placeholder"].placeholder = "T"
    node.attr["func"].func.name = "f"
    node.attr["func"].func.attr["T"].type = 3
    node.attr["empty"].list.SetInParent()
    node.attr["ints"].list.i.extend([1, -2])
    node.attr["types"].list.type.extend([1, 101])
    node.attr["strings"].list.s.append(b"a")
    node.attr["bools"].list.b.extend([True, False])
    node.attr["floats"].list.f.append(0.5)
    node.attr["shapes"].list.shape.add().dim.add(size=4)
    node.attr["functions"].list.func.add(name="g")
    node.attr["tensors"].list.tensor.add(dtype=1, float_val=[1.0])
    node.attr["nothing"].SetInParent()
    node.attr["reference"].type = 101
    node.experimental_debug_info.original_node_names.append("original")
    node.experimental_type.type_id = 1000
    function = message.library.function.add()
    function.signature.name = "f"
    function.node_def.add(name="inner", op="Identity", input=["arg:0"])
    function.ret["out"] = "inner:output:0"
    return bytes(message.SerializeToString(deterministic=True))


def canonical(data: bytes) -> bytes:
    return bytes(message_class("GraphDef").FromString(data).SerializeToString(deterministic=True))


def test_round_trip_preserves_all_fields() -> None:
    data = rich_graph_bytes()
    assert canonical(graphdef.encode(graphdef.decode(data))) == data


def test_unknown_fields_are_preserved() -> None:
    unknown_node_field = b"\xfa\x3e\x03abc"  # field 1007
    node = b"\x0a\x01n\x12\x04NoOp" + unknown_node_field
    data = b"\x0a" + bytes([len(node)]) + node + b"\xba\x3e\x02hi"
    encoded = graphdef.encode(graphdef.decode(data))
    assert unknown_node_field in encoded
    assert encoded.endswith(b"\xba\x3e\x02hi")


def test_text_round_trip_preserves_all_fields() -> None:
    graph = graphdef.decode(rich_graph_bytes())
    assert canonical(graphdef.encode(graphdef.decode_text(graphdef.encode_text(graph)))) == rich_graph_bytes()


def test_fields_are_decoded() -> None:
    graph = graphdef.decode(rich_graph_bytes())
    node = graph["everything"]
    assert node.inputs == (Edge("x"), Edge("x", 1))
    assert node.controls == ("x",)
    assert graph["x"].attrs["shape"] == Shape((None, 3))
    assert graph["x"].device == "/device:CPU:0"
    assert graph.versions == Versions(27, 12, (13,))
    assert node.attrs["ints"] == (1, -2)
    assert node.attrs["empty"] == ()
    assert node.attrs["unknown_rank"] == Shape(None)
    assert isinstance(node.attrs["placeholder"], Opaque)
    assert isinstance(node.attrs["func"], FunctionName)
    assert node.attrs["functions"] == (FunctionName("g"),)
    assert set(graph.library) == {"f"}


def test_large_tensors_are_views_of_the_file() -> None:
    values = np.arange(5000, dtype=np.float32)
    data = graphdef.encode(Graph.of([constant("w", values)]))
    tensor = graphdef.decode(data)["w"].value
    assert np.shares_memory(tensor.array, np.frombuffer(data, np.uint8))
    np.testing.assert_array_equal(tensor.array, values)


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DType if dtype not in (DType.RESOURCE, DType.VARIANT, DType.INT4, DType.UINT4)]
)
@pytest.mark.parametrize("count", [0, 1, 7, 3000])
def test_tensors_of_all_types_round_trip(dtype: DType, count: int) -> None:
    values = np.array([b"x" * (i % 5) for i in range(count)], object)
    if dtype is not DType.STRING:
        values = (np.arange(count) % 2).astype(dtype.numpy)
    graph = Graph.of([constant("c", Tensor.of(values, dtype))])
    tensor = graphdef.decode(graphdef.encode(graph))["c"].value
    assert (tensor.dtype, tensor.shape) == (dtype, (count,))
    np.testing.assert_array_equal(tensor.array, values)


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"dtype": 1, "float_val": [2.5]}, np.float32([2.5] * 4)),
        ({"dtype": 3, "int_val": [1, 2]}, np.array([1, 2, 2, 2], np.int32)),
        ({"dtype": 10, "bool_val": [True]}, np.array([True] * 4)),
        ({"dtype": 19, "half_val": [15360]}, np.float16([1] * 4)),
        ({"dtype": 12, "int_val": [200]}, np.uint8([200] * 4)),
        ({"dtype": 8, "scomplex_val": [1, 2]}, np.array([1 + 2j] * 4, np.complex64)),
        ({"dtype": 1}, np.float32([0] * 4)),
    ],
)
def test_last_value_fills_the_tensor(fields: dict[str, object], values: np.ndarray) -> None:
    proto = message_class("TensorProto")(**fields)
    proto.tensor_shape.dim.add(size=4)
    message = message_class("GraphDef")()
    node = message.node.add(name="c", op="Const")
    node.attr["value"].tensor.CopyFrom(proto)
    data = message.SerializeToString(deterministic=True)
    graph = graphdef.decode(data)
    np.testing.assert_array_equal(graph["c"].value.array, values)
    assert graph["c"].value.array.dtype == values.dtype
    assert canonical(graphdef.encode(graph)) == data


def test_lazy_values_are_computed_during_encoding() -> None:
    calls = []

    def load() -> np.ndarray:
        calls.append(1)
        return np.ones((300, 300), np.float32)

    graph = Graph.of([Node("w", "Const", attrs={"dtype": DType.FLOAT, "value": Tensor(DType.FLOAT, (300, 300), load)})])
    assert not calls
    data = graphdef.encode(graph)
    assert len(calls) == 1
    np.testing.assert_array_equal(graphdef.decode(data)["w"].value.array, 1)


def test_lazy_value_with_wrong_shape_is_rejected() -> None:
    wrong = Tensor(DType.FLOAT, (300, 300), lambda: np.ones(7, np.float32))
    with pytest.raises(GraphError, match="300x300"):
        graphdef.encode(Graph.of([Node("w", "Const", attrs={"value": wrong})]))


def test_graph_over_two_gigabytes_is_rejected_before_encoding() -> None:
    huge = Tensor(DType.FLOAT, (1 << 15, 1 << 15), lambda: pytest.fail("no value may be computed"))
    with pytest.raises(GraphError, match="4.29 GB.*largest: w"):
        graphdef.encode(Graph.of([Node("w", "Const", attrs={"value": huge})]))


def test_duplicate_names_are_rejected() -> None:
    data = graphdef.encode(Graph.of([Node("a", "NoOp")]))
    with pytest.raises(GraphError, match="two nodes are named 'a'"):
        graphdef.decode(data + data)


@pytest.mark.parametrize("name", ["split:", "a:0", "a b", "^a", "/a", "a@b", "\u00e9", ">a", "a>", "a\n"])
def test_names_that_tensorflow_rejects_are_rejected(name: str) -> None:
    message = message_class("GraphDef")()
    message.node.add(name=name, op="NoOp")
    text = text_format.MessageToString(message)
    for decode, content in ((graphdef.decode, message.SerializeToString()), (graphdef.decode_text, text)):
        with pytest.raises(GraphError, match="TensorFlow rejects the node name"):
            decode(content)


@pytest.mark.parametrize("text", ["split:", "a:b:1", "^a:1", ":1", "", "^", "^^a", "a:-1", "a:" + "9" * 5000])
def test_inputs_that_tensorflow_rejects_are_rejected(text: str) -> None:
    message = message_class("GraphDef")()
    message.node.add(name="a", op="NoOp")
    message.node.add(name="b", op="Relu", input=[text])
    with pytest.raises(GraphError, match="TensorFlow rejects the input .* of node 'b'"):
        graphdef.decode(message.SerializeToString())


def test_parts_of_graphs_and_names_of_optimizers_are_decoded() -> None:
    message = message_class("GraphDef")()
    message.node.add(name="_a>b\\.c/d-1", op="Relu", input=["outside:3", "^also_outside"])
    assert graphdef.decode(message.SerializeToString())["_a>b\\.c/d-1"].sources == ("outside", "also_outside")


def test_truncated_tensor_is_rejected() -> None:
    data = graphdef.encode(Graph.of([constant("w", np.zeros(4000, np.float32))]))
    with pytest.raises(QuantkitError):
        graphdef.decode(data[:-5])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_bytes_are_decoded_or_rejected(data: st.DataObject) -> None:
    """Decode mutated bytes; only QuantkitError with a message is allowed."""
    original = bytearray(MUTATED)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(original) - 1))
        original[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(original)))
    try:
        graph = graphdef.decode(bytes(original[:cut]))
        for node in graph.nodes.values():
            for value in node.attrs.values():
                if isinstance(value, Tensor) and value.num_bytes < 1 << 20 and value.dtype is not DType.STRING:
                    _ = value.array
    except QuantkitError as error:
        assert error.message  # noqa: PT017


MUTATED = rich_graph_bytes() + graphdef.encode(Graph.of([constant("w", np.zeros(700, np.float32))]))


@pytest.mark.engine
def test_schema_agrees_with_tensorflow() -> None:
    graph_pb2 = pytest.importorskip("tensorflow.core.framework.graph_pb2", reason="pip install tensorflow")
    visited = set()
    stack = [(message_class("GraphDef").DESCRIPTOR, graph_pb2.GraphDef.DESCRIPTOR)]
    while stack:
        message, expected = stack.pop()
        if message.full_name in visited:
            continue
        visited.add(message.full_name)
        for field in message.fields:
            other = expected.fields_by_name[field.name]
            assert (field.number, field.type) == (other.number, other.type), f"{message.name}.{field.name}"
            if field.message_type:
                stack.append((field.message_type, other.message_type))
            elif field.enum_type:
                for value in field.enum_type.values:
                    expected_value = other.enum_type.values_by_name.get(value.name)
                    assert expected_value is None or expected_value.number == value.number, value.name
    assert len(visited) > 20


def test_formats_do_not_import_tensorflow() -> None:
    assert (
        os.system(f'"{os.sys.executable}" -c "import quantkit.formats, sys; sys.exit(\'tensorflow\' in sys.modules)"')
        == 0
    )


def test_strings_in_the_content_of_a_tensor() -> None:
    """TensorFlow writes larger string tensors as lengths and bytes."""
    message = message_class("GraphDef")()
    node = message.node.add(name="rows", op="Const")
    tensor = node.attr["value"].tensor
    tensor.dtype = 7
    tensor.tensor_shape.dim.add(size=3)
    long = b"x" * 200
    tensor.tensor_content = b"\x02\x00\xc8\x01" + b"a\x00" + long
    graph = graphdef.decode(message.SerializeToString())
    assert graph["rows"].value.array.tolist() == [b"a\x00", b"", long]
    assert graphdef.decode(graphdef.encode(graph)) == graph
    tensor.tensor_content = b"\x02\x00\x01ab"
    with pytest.raises(GraphError, match="damaged content"):
        _ = graphdef.decode(message.SerializeToString())["rows"].value.array
