"""Digest of a graph, for the comparison with the graphs of the original tool.

``python tests/support/fingerprint.py GRAPH.pb`` prints the entry of `tests/golden/standin.json` for a graph of the
original tool.
"""

import hashlib
import json
import sys
from pathlib import Path

from quantkit.formats import load
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Tensor

# Attributes with defaults that TensorFlow added after the last release of the original tool.
NEWER_ATTRS = frozenset({"grad_a", "grad_b"})


def fingerprint(graph: Graph) -> dict[str, object]:
    """Return the node count, op counts, and a digest of names, ops, inputs, attributes and constants."""
    digest = hashlib.sha256()
    for name in sorted(graph.nodes, key=plain_name):
        node = graph[name]
        digest.update(f"{plain_name(name)} {node.op} {node.device}\n".encode())
        digest.update(repr([(plain_name(edge.node), edge.port) for edge in node.inputs]).encode())
        digest.update(repr(sorted(map(plain_name, node.controls))).encode())
        for key in sorted(node.attrs.keys() - NEWER_ATTRS):
            value = node.attrs[key]
            digest.update(f"{key} ".encode() + (value.digest if isinstance(value, Tensor) else repr(value).encode()))
    return {"nodes": len(graph), "op_counts": dict(graph.op_counts), "digest": digest.hexdigest()}


def plain_name(name: str) -> str:
    """Remove the suffix that the original tool adds for an input ``x:0``."""
    return name.replace("__port__0", "")


if __name__ == "__main__":
    print(json.dumps(fingerprint(load(Path(sys.argv[1]), [Edge("Mul")], [Edge("softmax")]))))
