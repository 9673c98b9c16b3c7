"""The original's merge of duplicate nodes, in the order of their hashes.

The hash is MurmurHash64A with a fixed seed. The order of the resulting nodes, and which node of a
chain of duplicates remains, depend on the hash. (Austin Appleby's MurmurHash2, 64-bit version, is
in the public domain.)
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


@classic_transform()
def merge_duplicate_nodes(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Merge duplicate nodes until no duplicates remain.

    Graph inputs and outputs that the caller names with a port are merged like any other node.
    """
    return merge(nodes, {*context.inputs, *context.outputs})


def merge(nodes: Sequence[NodeDef], endpoints: set[str]) -> list[NodeDef]:
    """Merge duplicate nodes.

    Args:
        nodes: nodes in file order.
        endpoints: names that are part of the comparison; other names are not.

    Returns:
        Nodes without duplicates, in the order of their hashes.

    Raises:
        GraphError: an op type is not TensorFlow's.
    """
    result = list(nodes)
    cache: dict[int, tuple[NodeDef, tuple[int, ...]]] = {}
    while True:
        groups: dict[int, list[NodeDef]] = {}
        for node in result:
            name = node.name if node.name in endpoints else ""
            groups.setdefault(_hash_node(node, name, cache), []).append(node)
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


def _hash_node(node: NodeDef, name: str, cache: dict[int, tuple[NodeDef, tuple[int, ...]]]) -> int:
    """Return the hash of a node with this name.

    Args:
        node: node to hash.
        name: name that is hashed in place of the node's name.
        cache: hashes of attributes by the identity of the mapping, with a node that owns the
            mapping and so prevents the reuse of the identity.
    """
    key = id(node.attrs)
    if key not in cache:
        hashes = tuple(murmur(_serialize(node.attrs[attr])) for attr in sorted(node.attrs))
        cache[key] = (node, hashes)
    parts = [murmur(name.encode()), *(murmur(canonical(text).encode()) for text in node.inputs)]
    parts += [murmur(node.device.encode()), *cache[key][1]]
    value = murmur(node.op.encode())
    for part in parts:
        value ^= (part + COMBINER + (value << 10) + (value >> 4)) & MASK
    return value


def _serialize(value: Attr) -> bytes:
    message = message_class("AttrValue")()
    encode_attr(message, value, Node("", ""))
    return bytes(message.SerializeToString(deterministic=True))


def murmur(data: bytes) -> int:
    """Return the MurmurHash64A of the data.

    >>> hex(murmur(b""))
    '0x81769421199f9e3b'
    """
    num_whole = len(data) & ~7
    value = (SEED ^ (len(data) * MULTIPLIER)) & MASK
    blocks = np.frombuffer(data, "<u8", num_whole // 8)
    with np.errstate(over="ignore"):
        mixed = blocks * np.uint64(MULTIPLIER)
        mixed ^= mixed >> np.uint64(SHIFT)
        mixed *= np.uint64(MULTIPLIER)
    for block in mixed.tolist():
        value = ((value ^ block) * MULTIPLIER) & MASK
    if tail := data[num_whole:]:
        value = ((value ^ struct.unpack("<Q", tail.ljust(8, b"\0"))[0]) * MULTIPLIER) & MASK
    value ^= value >> SHIFT
    value = (value * MULTIPLIER) & MASK
    return value ^ (value >> SHIFT)
