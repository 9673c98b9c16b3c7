"""Structural difference of two graphs, node by node, in the sentences of the 2016 ``compare_graphs``.

Compared are the op type, the device, the data inputs in order, the control dependencies as a set, and all attributes
that do not begin with ``_``. Node order, versions and the function library are not compared.
"""

from collections.abc import Iterator, Mapping

from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Attr, Graph, Node, Opaque
from quantkit.ir.tensor import DType, Shape, Tensor

EQUAL = "Graphs are equal."


def differences(actual: Graph, expected: Graph) -> Iterator[str]:
    """Yield one sentence for each node that differs (``compare_graphs`` reported only the first one).

    Args:
        actual: graph to check.
        expected: reference graph.
    """
    for node in actual.nodes.values():
        reference = expected.nodes.get(node.name)
        if reference is None:
            yield f"Found unexpected node '{node.name}'"
        elif clause := difference(node, reference):
            yield f"Node named '{node.name}' has {clause}"
    yield from (f"Did not find expected node '{name}'" for name in expected.nodes if name not in actual.nodes)


def difference(node: Node, expected: Node) -> str:
    """Return a clause with the first difference of two nodes of the same name; empty if they are equal."""
    if node.op != expected.op:
        return f"op '{node.op}' that is not expected '{expected.op}'"
    if node.device != expected.device:
        return f"device '{node.device}' that is not expected '{expected.device}'"
    if node.inputs != expected.inputs or set(node.controls) != set(expected.controls):
        return f"inputs {_inputs(node)} that don't match expected {_inputs(expected)}"
    return _attribute_difference(_compared_attributes(node), _compared_attributes(expected))


def _attribute_difference(attrs: Mapping[str, Attr], expected: Mapping[str, Attr]) -> str:
    for key in sorted(expected.keys() | attrs.keys()):
        if key not in attrs:
            return f"no attr '{key}', expected with value: {attribute_text(expected[key])}"
        if key not in expected:
            return f"unexpected attr '{key}' with value: {attribute_text(attrs[key])}"
        if attrs[key] != expected[key] or type(attrs[key]) is not type(expected[key]):
            texts = attribute_text(attrs[key]), attribute_text(expected[key])
            return f"attr '{key}' with value: {texts[0]} that does not match expected: {texts[1]}"
    return ""


def _compared_attributes(node: Node) -> dict[str, Attr]:
    return {key: value for key, value in node.attrs.items() if not key.startswith("_")}


def _inputs(node: Node) -> str:
    names = [*map(str, node.inputs), *(f"^{name}" for name in sorted(node.controls))]
    return f"'{', '.join(names)}'"


def attribute_text(value: Attr) -> str:
    """Return a short text of an attribute; for a tensor, of its first values.

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
