"""Names of nodes, and references to their outputs.

A reference is ``name`` or ``name:port``. As in TensorFlow, digits after the last colon are the output index. Any other
text after a colon belongs to the name: names of ONNX values may contain colons.
"""

import re
from collections.abc import Container
from itertools import chain, count

# Names that TensorFlow reads from a GraphDef, and names with a leading underscore, which its optimizers write.
_PIECE = r"[A-Za-z0-9_.\\/-]*"
_TENSORFLOW_NAME = re.compile(rf"[A-Za-z0-9_.]{_PIECE}(>[A-Za-z0-9.]{_PIECE})*")
# Larger output indices do not exist.
_REFERENCE = re.compile(r"(.+):([0-9]{1,9})", re.DOTALL)


def split_reference(text: str) -> tuple[str, str]:
    """Split a reference into the name of the node and the digits of the output index, which can be empty.

    >>> split_reference("split:1"), split_reference("split:"), split_reference("layer:0:2")
    (('split', '1'), ('split:', ''), ('layer:0', '2'))
    """
    match = _REFERENCE.fullmatch(text)
    return (match[1], match[2]) if match else (text, "")


def is_tensorflow_name(name: str) -> bool:
    """Return True if TensorFlow accepts the name of a node.

    >>> is_tensorflow_name("block/conv-1"), is_tensorflow_name("split:"), is_tensorflow_name("")
    (True, False, False)
    """
    return _TENSORFLOW_NAME.fullmatch(name) is not None


def unused_name(names: Container[str], name: str, reserved: Container[str] = ()) -> str:
    """Return ``name`` if it is not among the names, else ``name`` with a number appended.

    >>> unused_name({"sum"}, "sum", reserved={"sum_1"})
    'sum_2'
    """
    numbered = (f"{name}_{number}" for number in count(1))
    return next(each for each in chain([name], numbered) if each not in names and each not in reserved)
