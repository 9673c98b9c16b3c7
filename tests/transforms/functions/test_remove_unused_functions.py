"""Tests of remove_unused_functions."""

from quantkit.formats import graphdef
from quantkit.formats.graphdef.function_library import decode_library
from quantkit.formats.graphdef.schema import message_class
from quantkit.ir.functions import Library
from quantkit.ir.graph import Graph, Node
from quantkit.ir.text import from_text
from quantkit.transforms.functions.remove_unused_functions import remove_unused_functions

FUNCTIONS = "".join(
    f"function {name}(out = n)\na = _Arg(T=float, index=0)\nn = {op}(a, T=float)\nend\n"
    for name, op in (("first", "second"), ("second", "Neg"), ("third", "second"), ("slope", "Abs"))
)


def graph_of(line: str) -> Graph:
    return from_text(f"inputs: x\noutputs: y\nx = Placeholder[2]()\n{line}\n{FUNCTIONS}")


def test_indirectly_called_functions_stay() -> None:
    graph = graph_of("y = PartitionedCall(x, Tin=[float], Tout=[float], f=&first)")
    outcome = remove_unused_functions.outcome(graph)
    assert list(outcome.graph.library) == ["first", "second"]
    assert outcome.changes == ("function third has no caller", "function slope has no caller")
    assert remove_unused_functions.outcome(outcome.graph).changes == ()
    assert list(graph.library) == ["first", "second", "third", "slope"]


def test_op_types_and_lists_of_functions_are_calls() -> None:
    assert list(remove_unused_functions(graph_of("y = third(x)")).library) == ["second", "third"]
    case = "i = Const[int32](0)\ny = Case(i, x, Tin=[float], Tout=[float], branches=[&slope, &second])"
    assert list(remove_unused_functions(graph_of(case)).library) == ["second", "slope"]
    assert list(remove_unused_functions(graph_of("y = Neg(x)")).library) == []


def test_gradients_stay_with_their_functions() -> None:
    graph = graph_of("y = second(x)")
    library = Library(graph.library.entries, {"second": "slope", "third": "first"})
    remaining = remove_unused_functions(graph.with_(library=library)).library
    assert (list(remaining), remaining.gradients) == (["second", "slope"], {"second": "slope"})


def test_callees_of_functions_that_cannot_be_loaded_stay() -> None:
    message = message_class("GraphDef")()
    message.node.add(name="y", op="generic")
    generic = message.library.function.add()
    generic.signature.name = "generic"
    generic.signature.attr.add(name="T", type="type")
    generic.node_def.add(name="n", op="CustomOp").attr["f"].func.name = "needed"
    for name in ("needed", "unused"):
        message.library.function.add().signature.name = name
    graph = graphdef.decode(message.SerializeToString())
    assert list(remove_unused_functions(graph).library) == ["generic", "needed"]


def test_damaged_function_keeps_whole_library() -> None:
    message = message_class("FunctionDefLibrary")()
    message.function.add().signature.name = "damaged"
    message.function.add().signature.name = "unused"
    library = message.SerializeToString()
    function = message.function[0].SerializeToString()
    broken = function + b"\x1a\x02\x0a\x05"  # the name of the node is longer than the node
    header = bytes([0x0A, len(function)]), bytes([0x0A, len(broken)])
    graph = Graph.of(
        [Node("y", "damaged")], library=decode_library(library.replace(header[0] + function, header[1] + broken))
    )
    outcome = remove_unused_functions.outcome(graph)
    assert outcome.graph == graph
    assert str(outcome.skips[0]).startswith("damaged: the function is damaged and may call any other: ")


def test_graph_without_functions_stays() -> None:
    graph = Graph.of([Node("x", "Placeholder")], ["x"], ["x"])
    assert remove_unused_functions(graph) is graph
