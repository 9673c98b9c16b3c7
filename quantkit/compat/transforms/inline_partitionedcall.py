"""The original's inlining of function calls."""

from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.compat.transforms.nodes import NodeDef, canonical
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.errors import GraphError
from quantkit.formats.graphdef.function_library import encode_function
from quantkit.formats.graphdef.nodes import decode_node
from quantkit.formats.graphdef.schema import parse
from quantkit.ir.functions import FunctionName, Library
from quantkit.ir.graph import Graph


@classic_transform()
def inline_partitionedcall(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Inline PartitionedCall, one level deep.

    The result is wrong for control inputs, for outputs of a node after the first, and for function
    results that are arguments.
    """
    result: list[NodeDef] = []
    names: dict[str, str] = {}
    for node in nodes:
        if node.op == "PartitionedCall":
            body, results = _inline(node, context.library)
            result.extend(body)
            names.update((f"{node.name}:{port}", text) for port, text in enumerate(results))
        else:
            result.append(node)
    return [node.with_(inputs=tuple(names.get(canonical(text), text) for text in node.inputs)) for node in result]


def _inline(call: NodeDef, library: Library[Graph]) -> tuple[list[NodeDef], list[str]]:
    """Return the nodes of a call's function body, and the input texts of its results."""
    if "f" not in call.attrs:
        raise GraphError(f"Node {call.name} has no attribute: f")
    function_name = call.attrs["f"]
    if not isinstance(function_name, FunctionName):
        raise GraphError("Cannot figure out function name")
    name = function_name.name
    if name not in library:
        raise GraphError(f"function {name} Not found")
    function = parse("FunctionDef", encode_function(library, name))
    arguments = [arg.name for arg in function.signature.input_arg]
    if len(call.inputs) != len(arguments):
        raise GraphError(f"Called function  {name} has invalid input signature.")
    values = dict(zip(arguments, call.inputs, strict=True))
    nodes = [_inline_node(node, call.name, values) for node in function.node_def]
    outputs = [arg.name for arg in function.signature.output_arg]
    results = [_resolve_input(function.ret[output], call.name, {}) for output in outputs]
    return nodes, results


def _inline_node(message: Any, call: str, arguments: Mapping[str, str]) -> NodeDef:
    inputs = tuple(_resolve_input(text, call, arguments) for text in message.input)
    del message.input[:]
    data = message.SerializeToString(deterministic=True)
    node = decode_node(memoryview(data), 0, len(data))
    return NodeDef(f"{call}/{node.name}", node.op, inputs, node.attrs, node.device, node.extra)


def _resolve_input(text: str, call: str, arguments: Mapping[str, str]) -> str:
    """Translate an input in a function body to one in the graph, without the output's name."""
    if text in arguments:
        return arguments[text]
    name, *rest = text.split(":")
    return ":".join((f"{call}/{name}", *rest[1:]))
