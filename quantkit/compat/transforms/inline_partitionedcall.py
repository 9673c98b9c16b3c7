"""The original's way to put the nodes of functions where they are called."""

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


@classic_transform
def inline_partitionedcall(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """One level; control inputs, outputs behind the first of a node, and results that are arguments go wrong."""
    result: list[NodeDef] = []
    names: dict[str, str] = {}
    for node in nodes:
        if node.op == "PartitionedCall":
            made, results = _inlined(node, context.library)
            result.extend(made)
            names.update((f"{node.name}:{port}", text) for port, text in enumerate(results))
        else:
            result.append(node)
    return [
        node.with_(inputs=tuple(names.get(canonical(text), text) for text in node.inputs))
        for node in result
    ]


def _inlined(call: NodeDef, library: Library[Graph]) -> tuple[list[NodeDef], list[str]]:
    """The nodes of a call, and what makes its results."""
    if "f" not in call.attrs:
        raise GraphError(f"Node {call.name} has no attribute: f")
    named = call.attrs["f"]
    if not isinstance(named, FunctionName):
        raise GraphError("Cannot figure out function name")
    if named.name not in library:
        raise GraphError(f"function {named.name} Not found")
    function = parse("FunctionDef", encode_function(library, named.name))
    arguments = [arg.name for arg in function.signature.input_arg]
    if len(call.inputs) != len(arguments):
        raise GraphError(f"Called function  {named.name} has invalid input signature.")
    given = dict(zip(arguments, call.inputs, strict=True))
    nodes = [_placed(node, call.name, given) for node in function.node_def]
    results = [
        _read(function.ret[arg.name], call.name, {}) for arg in function.signature.output_arg
    ]
    return nodes, results


def _placed(message: Any, call: str, given: Mapping[str, str]) -> NodeDef:
    written = [_read(text, call, given) for text in message.input]
    del message.input[:]
    data = message.SerializeToString(deterministic=True)
    plain = decode_node(memoryview(data), 0, len(data))
    return NodeDef(
        f"{call}/{plain.name}", plain.op, tuple(written), plain.attrs, plain.device, plain.extra
    )


def _read(text: str, call: str, given: Mapping[str, str]) -> str:
    """An input of a node of a function, as it is read in the graph; the name of the output is dropped."""
    if text in given:
        return given[text]
    name, *rest = text.split(":")
    return ":".join((f"{call}/{name}", *rest[1:]))
