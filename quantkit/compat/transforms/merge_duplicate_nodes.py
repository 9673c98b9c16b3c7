"""The original's merging of equal nodes, in the order of their hashes.

Its hash is MurmurHash64A with a fixed seed; the order of nodes in its result, and which of several equal ones survives
in a chain of them, follow from it. (Austin Appleby's MurmurHash2, 64-bit version, is in the public domain.)
"""

import struct
from collections.abc import Sequence

import numpy as np

from quantkit.compat.transforms.defaults import op_of
from quantkit.compat.transforms.matching import rename_inputs
from quantkit.compat.transforms.nodes import NodeDef, canonical
from quantkit.compat.transforms.table import ClassicContext, classic_transform
from quantkit.formats.graphdef.nodes import encode_attr
from quantkit.formats.graphdef.schema import message_class
from quantkit.ir.graph import Attr, Node

MASK = (1 << 64) - 1
SEED = 0xDECAFCAFFE
MULTIPLIER = 0xC6A4A7935BD1E995
SHIFT = 47
COMBINER = 0x9E3779B97F4A7800


@classic_transform
def merge_duplicate_nodes(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Equal nodes become one, until there are none; an end given with a port is not known as one."""
    return merge(nodes, {*context.inputs, *context.outputs})


def merge(nodes: Sequence[NodeDef], kept: set[str]) -> list[NodeDef]:
    """The nodes without duplicates, in the order of their hashes.

    Args:
        nodes: in file order.
        kept: names that count when nodes are compared.

    Raises:
        GraphError: an op that TensorFlow does not know.
    """
    result = list(nodes)
    attrs: dict[int, tuple[NodeDef, tuple[int, ...]]] = {}
    while True:
        groups: dict[int, list[NodeDef]] = {}
        for node in result:
            groups.setdefault(
                _hash_node(node, node.name if node.name in kept else "", attrs), []
            ).append(node)
        names: dict[str, str] = {}
        merged: list[NodeDef] = []
        for _, group in sorted(groups.items()):
            for number, node in enumerate(group):
                if number and not op_of(node).is_stateful:
                    names[f"{node.name}:*"] = group[0].name
                else:
                    op_of(node)
                    merged.append(node)
        result = rename_inputs(merged, names)
        if not names:
            return result


def _hash_node(node: NodeDef, name: str, known: dict[int, tuple[NodeDef, tuple[int, ...]]]) -> int:
    """The hash of a node under a name; those of its attributes are computed once for each mapping."""
    key = id(node.attrs)
    if key not in known:
        hashes = tuple(murmur(_serialized(node.attrs[one])) for one in sorted(node.attrs))
        known[key] = (node, hashes)  # the node is kept so that no other mapping gets its id
    parts = [murmur(name.encode()), *(murmur(canonical(text).encode()) for text in node.inputs)]
    parts += [murmur(node.device.encode()), *known[key][1]]
    value = murmur(node.op.encode())
    for part in parts:
        value ^= (part + COMBINER + (value << 10) + (value >> 4)) & MASK
    return value


def _serialized(value: Attr) -> bytes:
    message = message_class("AttrValue")()
    encode_attr(message, value, Node("", ""))
    return bytes(message.SerializeToString(deterministic=True))


def murmur(data: bytes) -> int:
    """MurmurHash64A of some bytes.

    >>> hex(murmur(b""))
    '0x81769421199f9e3b'
    """
    whole = len(data) & ~7
    value = (SEED ^ (len(data) * MULTIPLIER)) & MASK
    words = np.frombuffer(data, "<u8", whole // 8)
    with np.errstate(over="ignore"):
        mixed = words * np.uint64(MULTIPLIER)
        mixed ^= mixed >> np.uint64(SHIFT)
        mixed *= np.uint64(MULTIPLIER)
    for word in mixed.tolist():
        value = ((value ^ word) * MULTIPLIER) & MASK
    if tail := data[whole:]:
        value = ((value ^ struct.unpack("<Q", tail.ljust(8, b"\0"))[0]) * MULTIPLIER) & MASK
    value ^= value >> SHIFT
    value = (value * MULTIPLIER) & MASK
    return value ^ (value >> SHIFT)
