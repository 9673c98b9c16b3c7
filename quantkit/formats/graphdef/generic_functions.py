"""Generic functions, whose types and tensor counts depend on the attributes of the call.

The attributes of a call determine the types of arguments and results, the lengths of lists, and attributes of nodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.errors import GraphError
from quantkit.formats.graphdef.nodes import decode_attr, encode_attr
from quantkit.formats.graphdef.schema import parse
from quantkit.formats.graphdef.tensors import element_type
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Attr, Node, Opaque
from quantkit.ir.tensor import DType

# Maximum length of a list of tensors; a damaged file may have any length.
MAX_TENSORS = 100_000


class Binding:
    """Attributes of one call of a generic function.

    Args:
        function: name of the function for messages.
        signature: signature of the FunctionDef.
        attrs: attributes of the call.

    Raises:
        GraphError: the call has no value for an attribute, or an attribute is a function.
    """

    def __init__(self, function: str, signature: Any, attrs: Mapping[str, Attr]) -> None:
        self._function = function
        self._attrs: dict[str, Attr] = {}
        for declared in signature.attr:
            if declared.type in ("func", "list(func)"):
                raise GraphError(
                    f"function {function!r} has function arguments, which quantkit does not support",
                    hint="export the model with tf.function and an input signature",
                )
            if declared.name in attrs:
                self._attrs[declared.name] = attrs[declared.name]
            elif declared.HasField("default_value"):
                self._attrs[declared.name] = decode_attr(declared.default_value)
            else:
                raise GraphError(
                    f"function {function!r} is generic and the call has no attribute {declared.name}",
                    hint="call the function with this attribute",
                )

    def tensors(self, arg: Any) -> list[tuple[str, DType | None]]:
        """Return names and types of the tensors of an argument or result; tensors of a list are numbered."""
        if arg.type_list_attr:
            dtypes = list(self._attr_list(arg.type_list_attr))
        else:
            dtype = self._attrs.get(arg.type_attr) if arg.type_attr else element_type(arg.type)
            count = self._attrs.get(arg.number_attr) if arg.number_attr else 1
            if not isinstance(count, int) or count > MAX_TENSORS or (arg.type_attr and not isinstance(dtype, DType)):
                raise GraphError(f"function {self._function!r}: type or number of tensors {arg.name!r} is not known")
            dtypes = [dtype] * count
        if len(dtypes) == 1:
            return [(arg.name, dtypes[0])]
        return [(f"{arg.name}_{index}", dtype) for index, dtype in enumerate(dtypes)]

    def _attr_list(self, key: str) -> Sequence[Any]:
        value = self._attrs.get(key, ())
        return value if isinstance(value, tuple) else (value,)

    def node(self, node: Node) -> Node:
        """Return a node of the function with placeholders in attributes replaced."""
        if not self._attrs:
            return node
        attrs = {key: self._substitute(value) for key, value in node.attrs.items()}
        return node.with_(attrs=attrs)

    def _substitute(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._substitute, value))
        if isinstance(value, Opaque):
            name = parse("AttrValue", value.data).placeholder
            return self._attrs.get(name, value) if name else value
        if isinstance(value, FunctionName) and value.extra:
            message = parse("NameAttrList", value.extra)
            for attr in message.attr.values():
                if attr.placeholder in self._attrs:
                    encode_attr(attr, self._attrs[attr.placeholder], Node(self._function, "function"))
            return FunctionName(value.name, message.SerializeToString(deterministic=True))
        return value


def call_attrs(function: FunctionName) -> dict[str, Attr]:
    """Return the attributes of a call by an attribute value."""
    message = parse("NameAttrList", function.extra)
    return {key: decode_attr(value) for key, value in message.attr.items()}
