"""Function libraries of GraphDefs, as TensorFlow writes them."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import GraphError, InputError
from quantkit.formats import graphdef
from quantkit.formats.graphdef.function_library import decode_library, encode_library
from quantkit.formats.graphdef.schema import message_class
from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.ir.text import from_text, to_text

TEXT = """inputs: x
outputs: y
x = Placeholder[2x3]()
y = PartitionedCall(x, Tin=[float], Tout=[float, float], f=&halves)
function halves(mean = norm:1, second = split:1, ^done = nothing)
a = _Arg(T=float, index=0)
axis = Const[int32](0)
split = Split(axis, a, T=float, num_split=2)
one = Const[3]()
norm = FusedBatchNormV3(b, one, one, one, one, T=float, U=float)
b = helper(split:1)
nothing = NoOp(^axis)
end
function helper(out = x)
x = _Arg(T=float, index=0)
end
"""


def library_message(data: bytes) -> object:
    return message_class("FunctionDefLibrary").FromString(data)


def test_edges_are_converted_to_output_names() -> None:
    graph = from_text(TEXT)
    message = message_class("GraphDef").FromString(graphdef.encode(graph))
    halves, helper = message.library.function
    assert [list(node.input) for node in halves.node_def if node.input] == [
        ["axis:output:0", "a"],
        ["b:out:0", "one:output:0", "one:output:0", "one:output:0", "one:output:0"],
        ["split:output:1"],
        ["^axis"],
    ]
    assert dict(halves.ret) == {"mean": "norm:batch_mean:0", "second": "split:output:1"}
    assert dict(halves.control_ret) == {"done": "nothing"}
    assert [arg.name for arg in halves.signature.output_arg] == ["mean", "second"]
    assert dict(helper.ret) == {"out": "x"}
    again = graphdef.decode(graphdef.encode(graph)).with_endpoints(graph.inputs, graph.outputs)
    assert to_text(again) == to_text(graph)


def test_unchanged_library_is_encoded_byte_for_byte() -> None:
    data = encode_library(from_text(TEXT).library)
    library = decode_library(data)
    assert library["halves"].graph["norm"].inputs[0] == Edge("b")
    assert encode_library(library) == data


def test_unknown_fields_of_changed_function_are_preserved() -> None:
    message = message_class("FunctionDefLibrary")()
    function = message.function.add()
    function.signature.name = "f"
    function.signature.is_stateful = True
    function.signature.input_arg.add(name="a", type=1, description="kept")
    function.signature.output_arg.add(name="out", type=1)
    function.node_def.add(name="n", op="Neg", input=["a"])
    function.ret["out"] = "n:y:0"
    function.arg_attr[0].attr["_user_specified_name"].s = b"a"
    function.attr["api_implements"].s = b"x"
    message.gradient.add(function_name="f", gradient_func="g")
    data = message.SerializeToString(deterministic=True)
    library = decode_library(data)
    assert library.gradients == {"f": "g"}
    assert library["f"].attrs == {"api_implements": b"x"}
    changed = library.with_(library["f"])
    assert library_message(encode_library(changed)) == library_message(data)


@pytest.mark.parametrize("text", ["b:y:0", "n:z:0", "n:y:1"])
def test_dangling_input_is_rejected(text: str) -> None:
    message = message_class("FunctionDefLibrary")()
    function = message.function.add()
    function.signature.name = "f"
    function.node_def.add(name="n", op="Neg", input=[text])
    library = decode_library(message.SerializeToString())
    with pytest.raises(GraphError, match=f"input '{text.removesuffix(':0')}' in function 'f'"):
        library["f"]


def test_missing_control_output_is_rejected() -> None:
    message = message_class("FunctionDefLibrary")()
    function = message.function.add()
    function.signature.name = "f"
    function.control_ret["done"] = "n"
    with pytest.raises(GraphError, match="control output 'n' of function 'f' is not a node of the function"):
        _ = decode_library(message.SerializeToString())["f"]


def test_invalid_number_of_outputs_is_rejected() -> None:
    message = message_class("FunctionDefLibrary")()
    function = message.function.add()
    function.signature.name = "f"
    function.node_def.add(name="n", op="Unpack").attr["num"].s = b"two"
    function.node_def.add(name="m", op="Neg", input=["n:output:0"])
    with pytest.raises(GraphError, match="node 'n' \\(Unpack\\) is damaged: attribute 'num' is b'two'"):
        _ = decode_library(message.SerializeToString())["f"]
    function.node_def[0].attr["num"].i = 1 << 60
    function.node_def[1].input[:] = ["n:output"]
    with pytest.raises(GraphError, match="input 'n:output' in function 'f' names an output that Unpack"):
        _ = decode_library(message.SerializeToString())["f"]


def test_duplicate_function_names_are_rejected() -> None:
    message = message_class("FunctionDefLibrary")()
    message.function.add().signature.name = "f"
    message.function.add().signature.name = "f"
    with pytest.raises(InputError, match="two functions are named 'f'"):
        decode_library(message.SerializeToString())


def test_unknown_op_is_rejected() -> None:
    body = Graph.of([Node("n", "CustomOp")], [], [Edge("n")])
    with pytest.raises(GraphError, match="Op type not registered 'CustomOp'"):
        encode_library(Library({"f": Function("f", body, {"out": DType.FLOAT})}))


def test_library_round_trip_through_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    @tf.function(input_signature=[tf.TensorSpec([4], tf.float32)])
    def outer(x):  # type: ignore[no-untyped-def]
        @tf.function
        def inner(a):  # type: ignore[no-untyped-def]
            values, indices = tf.math.top_k(a, 2)
            return values, tf.cast(indices, tf.float32)

        values, indices = inner(x)
        return indices - values

    written = outer.get_concrete_function().graph.as_graph_def()
    graph = graphdef.decode(written.SerializeToString())
    opened = graph.with_(library=graph.library.with_(*graph.library.values()))
    assert len(opened.library) >= 1
    again = tf.compat.v1.GraphDef.FromString(graphdef.encode(opened))
    x = np.array([3, 1, 4, 1.5], np.float32)
    call = next(node for node in graph.nodes.values() if node.op.endswith("PartitionedCall"))
    with tf.Graph().as_default() as tf_graph:
        tf.import_graph_def(again, name="")
        with tf.compat.v1.Session(graph=tf_graph) as session:
            values, indices = session.run([f"{call.name}:0", f"{call.name}:1"], {"x:0": x})
    np.testing.assert_array_equal(values, [4, 3])
    np.testing.assert_array_equal(indices, [2, 0])
