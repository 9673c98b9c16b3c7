"""A digest of a graph that two tools' versions of it share when they are the same graph.

``python tests/support/fingerprint.py GRAPH.pb`` prints what `tests/golden/standin.json` holds for a graph of the
original tool.
"""

import hashlib
import json
import sys
from pathlib import Path

from quantkit.formats import load
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Tensor

# Defaults that TensorFlow gave its ops after the original tool's last release.
NEWER_ATTRS = frozenset({"grad_a", "grad_b"})


def fingerprint(graph: Graph) -> dict[str, object]:
    """Node count, op counts, and a digest over names, ops, inputs, attributes and the bits of constants."""
    hashed = hashlib.sha256()
    for name in sorted(graph.nodes, key=plain):
        node = graph[name]
        hashed.update(f"{plain(name)} {node.op} {node.device}\n".encode())
        hashed.update(repr([(plain(edge.node), edge.port) for edge in node.inputs]).encode())
        hashed.update(repr(sorted(map(plain, node.controls))).encode())
        for key in sorted(node.attrs.keys() - NEWER_ATTRS):
            value = node.attrs[key]
            hashed.update(f"{key} ".encode() + (value.digest if isinstance(value, Tensor) else repr(value).encode()))
    return {"nodes": len(graph), "op_counts": dict(graph.op_counts), "digest": hashed.hexdigest()}


def plain(name: str) -> str:
    """A name without the port that the original writes out where an input is written ``x:0``."""
    return name.replace("__port__0", "")


if __name__ == "__main__":
    print(json.dumps(fingerprint(load(Path(sys.argv[1]), [Edge("Mul")], [Edge("softmax")]))))
