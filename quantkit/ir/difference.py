"""Whether two graphs are the same, node by node: what the classic ``compare_graphs`` tells, in its words.

A node is its op, device, data inputs in order, control inputs as a set, and attributes but those that begin with ``_``.
The order of nodes, versions and the function library do not count.
"""

from collections.abc import Iterator, Mapping

from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Attr, Graph, Node, Opaque
from quantkit.ir.tensor import DType, Shape, Tensor

EQUAL = "Graphs are equal."


def differences(actual: Graph, expected: Graph) -> Iterator[str]:
    """Each node that differs, in a sentence; the classic tool told of the first one only.

    Args:
        actual: the graph in question.
        expected: what it should be.
    """
    for node in actual.nodes.values():
        wanted = expected.nodes.get(node.name)
        if wanted is None:
            yield f"Found unexpected node '{node.name}'"
        elif found := difference(node, wanted):
            yield f"Node named '{node.name}' has {found}"
    yield from (f"Did not find expected node '{name}'" for name in expected.nodes if name not in actual.nodes)


def difference(node: Node, wanted: Node) -> str:
    """In what two nodes of one name differ, in a clause; empty where they do not."""
    if node.op != wanted.op:
        return f"op '{node.op}' that is not expected '{wanted.op}'"
    if node.device != wanted.device:
        return f"device '{node.device}' that is not expected '{wanted.device}'"
    if node.inputs != wanted.inputs or set(node.controls) != set(wanted.controls):
        return f"inputs {_inputs(node)} that don't match expected {_inputs(wanted)}"
    return _attributes_differ(_shown(node), _shown(wanted))


def _attributes_differ(attrs: Mapping[str, Attr], wanted: Mapping[str, Attr]) -> str:
    for key in sorted(wanted.keys() | attrs.keys()):
        if key not in attrs:
            return f"no attr '{key}', expected with value: {attribute_text(wanted[key])}"
        if key not in wanted:
            return f"unexpected attr '{key}' with value: {attribute_text(attrs[key])}"
        if attrs[key] != wanted[key] or type(attrs[key]) is not type(wanted[key]):
            found, expected = attribute_text(attrs[key]), attribute_text(wanted[key])
            return f"attr '{key}' with value: {found} that does not match expected: {expected}"
    return ""


def _shown(node: Node) -> dict[str, Attr]:
    return {key: value for key, value in node.attrs.items() if not key.startswith("_")}


def _inputs(node: Node) -> str:
    names = [*map(str, node.inputs), *(f"^{name}" for name in sorted(node.controls))]
    return f"'{', '.join(names)}'"


def attribute_text(value: Attr) -> str:
    """An attribute in a few words; of a tensor the first numbers.

    >>> attribute_text((1, 2, 2, 1)), attribute_text(DType.FLOAT), attribute_text(b"SAME")
    ('[1, 2, 2, 1]', 'float', '"SAME"')
    """
    if isinstance(value, bytes):
        return f'"{value.decode(errors="backslashreplace")}"'
    if isinstance(value, DType):
        return value.value
    if isinstance(value, Shape):
        return str(value)
    if isinstance(value, Tensor):
        numbers = ", ".join(map(str, value.array.reshape(-1)[:8].tolist()))
        more = ", ..." if value.num_elements > 8 else ""
        return f"{value.dtype.value} {'x'.join(map(str, value.shape)) or 'scalar'} [{numbers}{more}]"
    if isinstance(value, FunctionName):
        return f"function {value.name}"
    if isinstance(value, Opaque):
        return f"{len(value.data)} bytes"
    if isinstance(value, tuple):
        return f"[{', '.join(map(attribute_text, value))}]"
    return str(value)
