"""Functions made for several types or numbers of tensors: a call says which.

The attributes of a call fill what the function leaves open: the types of its arguments and results, how many there
are of a list, and attributes of its nodes.
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

# A list of tensors is no longer than this; in a damaged file, its length may be anything.
MOST = 100_000


class Binding:
    """What a call gives a function beside tensors.

    Args:
        function: its name, for messages.
        signature: of its FunctionDef.
        attrs: of the call.

    Raises:
        GraphError: the call leaves something open, or the function takes functions.
    """

    def __init__(self, function: str, signature: Any, attrs: Mapping[str, Attr]) -> None:
        self._function = function
        self._attrs: dict[str, Attr] = {}
        for declared in signature.attr:
            if declared.type in ("func", "list(func)"):
                raise GraphError(
                    f"function {function!r} takes functions, and quantkit opens none that do",
                    hint="export the model with tf.function and an input signature, which makes fixed functions",
                )
            if declared.name in attrs:
                self._attrs[declared.name] = attrs[declared.name]
            elif declared.HasField("default_value"):
                self._attrs[declared.name] = decode_attr(declared.default_value)
            else:
                raise GraphError(
                    f"function {function!r} is made for several types or numbers, and nothing says its {declared.name}",
                    hint="a call that gives it this attribute can be inlined",
                )

    def tensors(self, arg: Any) -> list[tuple[str, DType | None]]:
        """Names and types of the tensors of an argument or result; those of a list are numbered."""
        if arg.type_list_attr:
            dtypes = list(self._listed(arg.type_list_attr))
        else:
            dtype = self._attrs.get(arg.type_attr) if arg.type_attr else element_type(arg.type)
            count = self._attrs.get(arg.number_attr) if arg.number_attr else 1
            if not isinstance(count, int) or count > MOST or (arg.type_attr and not isinstance(dtype, DType)):
                raise GraphError(f"nothing says what the tensors {arg.name!r} of function {self._function!r} are")
            dtypes = [dtype] * count
        if len(dtypes) == 1:
            return [(arg.name, dtypes[0])]
        return [(f"{arg.name}_{place}", dtype) for place, dtype in enumerate(dtypes)]

    def _listed(self, key: str) -> Sequence[Any]:
        found = self._attrs.get(key, ())
        return found if isinstance(found, tuple) else (found,)

    def node(self, node: Node) -> Node:
        """A node of the function with its open attributes filled."""
        if not self._attrs:
            return node
        attrs = {key: self._filled(value) for key, value in node.attrs.items()}
        return node.with_(attrs=attrs)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._filled, value))
        if isinstance(value, Opaque):
            name = parse("AttrValue", value.data).placeholder
            return self._attrs.get(name, value) if name else value
        if isinstance(value, FunctionName) and value.extra:
            message = parse("NameAttrList", value.extra)
            for one in message.attr.values():
                if one.placeholder in self._attrs:
                    encode_attr(one, self._attrs[one.placeholder], Node(self._function, "function"))
            return FunctionName(value.name, message.SerializeToString(deterministic=True))
        return value


def call_attrs(named: FunctionName) -> dict[str, Attr]:
    """The attributes with which an attribute names a function."""
    message = parse("NameAttrList", named.extra)
    return {key: decode_attr(value) for key, value in message.attr.items()}
