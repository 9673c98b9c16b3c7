"""Generic functions, whose types and list lengths depend on the call."""

import numpy as np
import pytest

from quantkit.errors import GraphError
from quantkit.formats import graphdef
from quantkit.formats.graphdef.function_library import names_in
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType
from quantkit.ir.text import to_text
from quantkit.runtimes import open_session
from quantkit.transforms.functions.inline_functions import inline_functions
from quantkit.transforms.functions.remove_unused_functions import remove_unused_functions

INT32, FLOAT = "{type: DT_INT32}", "{type: DT_FLOAT}"
FUNCTIONS = """library {
 function {
  signature {
   name: "doubled" input_arg {name: "v" type_attr: "T"} output_arg {name: "r" type_attr: "T"}
   attr {name: "T" type: "type"} attr {name: "note" type: "int" default_value {i: 2}}
  }
  node_def {name: "s" op: "AddV2" input: "v" input: "v" attr {key: "T" value {placeholder: "T"}}}
  ret {key: "r" value: "s:z:0"}
 }
 function {
  signature {
   name: "twice" input_arg {name: "v" type_attr: "T"} output_arg {name: "r" type_attr: "T"}
   attr {name: "T" type: "type"} attr {name: "L" type: "list(type)"}
  }
  node_def {name: "n" op: "doubled" input: "v" attr {key: "T" value {placeholder: "T"}}}
  node_def {
   name: "m" op: "PartitionedCall" input: "n:r:0"
   attr {key: "Tin" value {placeholder: "L"}} attr {key: "Tout" value {placeholder: "L"}}
   attr {key: "f" value {func {name: "doubled" attr {key: "T" value {placeholder: "T"}}}}}
  }
  ret {key: "r" value: "m:output:0"}
 }
 function {
  signature {
   name: "total" input_arg {name: "v" type_attr: "T" number_attr: "N"} output_arg {name: "r" type_attr: "T"}
   attr {name: "T" type: "type"} attr {name: "N" type: "int"}
  }
  node_def {
   name: "s" op: "AddN" input: "v" attr {key: "T" value {placeholder: "T"}} attr {key: "N" value {placeholder: "N"}}
  }
  node_def {name: "m" op: "Mul" input: "s:sum:0" input: "v:1" attr {key: "T" value {placeholder: "T"}}}
  ret {key: "r" value: "m:z:0"}
 }
 function {
  signature {
   name: "passed" input_arg {name: "v" type_list_attr: "L"} output_arg {name: "r" type_list_attr: "L"}
   attr {name: "L" type: "list(type)"}
  }
  node_def {name: "s" op: "IdentityN" input: "v" attr {key: "T" value {placeholder: "L"}}}
  ret {key: "r" value: "s:output"}
 }
 function {
  signature {
   name: "parts" input_arg {name: "v" type_attr: "T"} output_arg {name: "r" type_attr: "T" number_attr: "N"}
   attr {name: "T" type: "type"} attr {name: "N" type: "int"}
  }
  node_def {
   name: "axis" op: "Const" attr {key: "dtype" value {type: DT_INT32}}
   attr {key: "value" value {tensor {dtype: DT_INT32 tensor_shape {} int_val: 0}}}
  }
  node_def {
   name: "s" op: "Split" input: "axis:output:0" input: "v"
   attr {key: "T" value {placeholder: "T"}} attr {key: "num_split" value {placeholder: "N"}}
  }
  ret {key: "r" value: "s:output"}
 }
}
"""


def node(name: str, op: str, *inputs: str, **attrs: str) -> str:
    input_fields = " ".join(f'input: "{name}"' for name in inputs)
    attr_fields = " ".join(f'attr {{key: "{key}" value {value}}}' for key, value in attrs.items())
    return f'node {{name: "{name}" op: "{op}" {input_fields} {attr_fields}}}\n'


def graph_of(*nodes: str) -> Graph:
    x = node("x", "Placeholder", dtype=FLOAT, shape="{shape {dim {size: 3}}}")
    return graphdef.decode_text("".join((x, *nodes)) + FUNCTIONS).with_endpoints(["x"], None)


def test_calls_determine_types_and_list_lengths() -> None:
    graph = graph_of(
        node("i", "Cast", "x", SrcT=FLOAT, DstT=INT32),
        node("a", "twice", "x", T=FLOAT, L="{list {type: DT_FLOAT}}"),
        node("b", "twice", "i", T=INT32, L="{list {type: DT_INT32}}"),
        node("c", "total", "x", "a", "x", N="{i: 3}", T=FLOAT),
        node("d", "PartitionedCall", "i", f=f'{{func {{name: "doubled" attr {{key: "T" value {INT32}}}}}}}'),
        node("e", "passed", "x", "i", L="{list {type: DT_FLOAT type: DT_INT32}}"),
        node("g", "parts", "c", N="{i: 3}", T=FLOAT),
        node("y", "AddV2", "e", "g:2", T=FLOAT),
        node("k", "AddV2", "b", "d", T=INT32),
        node("z", "AddV2", "k", "e:1", T=INT32),
    ).with_endpoints(None, ["y", "z"])
    outcome = inline_functions.outcome(graph)
    assert not outcome.skips
    inlined = remove_unused_functions(outcome.graph)
    assert not inlined.library
    assert inlined["c/s"].attrs["N"] == 3
    assert inlined["b/m/s"].attrs["T"] is DType.INT32
    assert [str(edge) for edge in inlined["c/m"].inputs] == ["c/s", "a/m/s"]
    x = np.array([1, 2, -3], np.float32)
    with open_session(inlined, "reference") as session:
        outputs = session.run({"x": x})
    np.testing.assert_array_equal(outputs["y"], x + (6 * x * 4 * x)[2:])
    np.testing.assert_array_equal(outputs["z"], (7 * x).astype(np.int32))


def test_call_without_attribute_is_skipped() -> None:
    graph = graph_of(node("y", "twice", "x")).with_endpoints(None, ["y"])
    outcome = inline_functions.outcome(graph)
    assert outcome.graph.nodes == graph.nodes
    assert str(outcome.skips[0]) == "y: function 'twice' is generic and the call has no attribute T"
    with pytest.raises(GraphError, match="the call has no attribute T"):
        graph.library["twice"]
    assert {"doubled", "PartitionedCall"} <= set(names_in(graph.library, "twice"))
    with pytest.raises(GraphError, match="function 'total': type or number of tensors 'v' is not known"):
        graph.library.bound("total", {"T": DType.FLOAT, "N": 1 << 60})


def test_unused_functions_are_preserved() -> None:
    graph = graph_of(node("y", "Neg", "x", T=FLOAT))
    again = graphdef.decode(graphdef.encode(graph))
    assert again.library == graph.library
    assert to_text(again.with_(library=type(again.library)())) == to_text(Graph.of(graph.nodes.values()))


def test_functions_with_function_arguments_are_rejected() -> None:
    text = node("y", "Neg", "x", T=FLOAT) + FUNCTIONS.replace(
        '{name: "note" type: "int" default_value {i: 2}}', '{name: "g" type: "func"}'
    )
    library = graphdef.decode_text(text).library
    with pytest.raises(GraphError, match="function 'doubled' has function arguments"):
        library.bound("doubled", {"T": DType.FLOAT})


def test_recursive_function_is_not_inlined() -> None:
    text = FUNCTIONS.replace('op: "AddV2" input: "v" input: "v"', 'op: "twice" input: "v"').replace("s:z:0", "s:r:0")
    x = node("x", "Placeholder", dtype=FLOAT)
    graph = graphdef.decode_text(x + node("y", "twice", "x", T=FLOAT) + text).with_endpoints(["x"], ["y"])
    outcome = inline_functions.outcome(graph)
    assert outcome.graph.nodes == graph.nodes
    assert str(outcome.skips[0]) == "y: function 'twice' is recursive"


def test_list_argument_is_expanded_to_tensors() -> None:
    function = graph_of().library.bound("passed", {"L": (DType.FLOAT, DType.INT32)})
    assert function.graph["s"].inputs == (Edge("v_0"), Edge("v_1"))
    assert function.graph.outputs == (Edge("s"), Edge("s", 1))
    assert dict(function.results) == {"r_0": DType.FLOAT, "r_1": DType.INT32}
