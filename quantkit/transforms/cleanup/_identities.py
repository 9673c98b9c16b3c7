"""Shared parts of the algebraic rules: known facts about a graph, and the replacement nodes.

A rule is a function ``(facts, node) -> nodes | Skip | None``. The last node that it returns
replaces the node that it matched.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Rule, Skip, free_name
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.shape_inference import UNKNOWN, Inference
from quantkit.ops.tensorflow.signatures import attribute, output_dtypes

# Larger constants are not evaluated: comparing all their elements costs more than it saves.
MAX_ELEMENTS = 1 << 16
# Maximum length of a chain of Identity nodes between a rule's nodes.
MAX_IDENTITIES = 8


@dataclass(frozen=True)
class Facts:
    """Known facts about a graph.

    Attributes:
        graph: current graph.
        inference: shapes of the graph, and integers that the graph computes from shapes.
        has_signed_zeros: 0 and -0 count as different.
    """

    graph: Graph
    inference: Inference
    has_signed_zeros: bool = True

    def shape(self, edge: Edge) -> Shape:
        return self.inference.shapes.get(edge, UNKNOWN)

    def sizes(self, edge: Edge) -> list[int | None] | None:
        """Return a list of integers that the graph computes from shapes, None for unknown elements.

        Returns:
            None if the edge is not such a list.
        """
        sizes = self.inference.sizes.get(edge)
        return None if sizes is None or sizes.ndim != 1 else sizes.tolist()

    def value(self, edge: Edge) -> Array | None:
        """Return the value of a constant; None for a graph input or more than `MAX_ELEMENTS`."""
        tensor = self.graph.constant_of(edge)
        if tensor is None or edge.node in self.graph.input_names or tensor.num_elements > MAX_ELEMENTS:
            return None
        return tensor.array

    def skip_identities(self, edge: Edge) -> Edge:
        """Return the input edge of the chain of Identity nodes that ends with an edge."""
        for _ in range(MAX_IDENTITIES):
            node = self.graph[edge.node]
            if node.op != "Identity" or node.controls or node.name in self.graph.input_names:
                break
            edge = node.inputs[0]
        return edge

    def producer(self, edge: Edge, ops: frozenset[str]) -> Node | None:
        """Return the producer of an edge if its op type is in ``ops`` and its inputs may be used directly.

        Identity nodes are skipped. Control dependencies and graph inputs prevent the direct use.
        """
        edge = self.skip_identities(edge)
        node = self.graph[edge.node]
        is_usable = node.op in ops and not edge.port and not node.controls and node.name not in self.graph.input_names
        return node if is_usable else None

    def is_shared(self, edge: Edge, inner: Node) -> bool:
        """Return True if ``inner``, which produces an edge, has consumers other than the edge's one."""
        while edge.node != inner.name:
            if self.graph.is_shared(self.graph[edge.node]):
                return True
            edge = self.graph[edge.node].inputs[0]
        return self.graph.is_shared(inner)

    def have_equal_shapes(self, first: Edge, second: Edge) -> bool:
        """Return True if two edges with the same elements are known to have the same shape."""
        dims, other_dims = self.shape(first).dims, self.shape(second).dims
        return dims is not None and dims == other_dims and dims.count(None) <= 1 and 0 not in dims

    def broadcasts_to(self, small: Shape, edge: Edge) -> bool:
        """Return True if broadcasting a shape with the shape of an edge gives the edge's shape."""
        if small.rank == 0:
            return True
        dims = self.shape(edge).dims
        if dims is None or small.dims is None or len(small.dims) > len(dims):
            return False
        pairs = zip(small.dims[::-1], dims[::-1], strict=False)
        return all(dim == 1 or (dim is not None and dim == size) for dim, size in pairs)

    def constant(self, node: Node, suffix: str, values: Array, dtype: DType | None = None) -> Node:
        """Return a new constant named ``node/suffix``."""
        return constant(free_name(self.graph, f"{node.name}/{suffix}"), Tensor.of(values, dtype))


Rewritten = Sequence[Node] | Skip | None
Simplify = Callable[[Facts, Node], Rewritten]


def as_rule(ops: str, simplify: Simplify, inference: Inference, has_signed_zeros: bool) -> Rule:
    """Return a rule for `apply_rules` that matches used nodes of some op types, except graph inputs."""

    def rewrite(graph: Graph, root: Node) -> Rewritten:
        if root.name in graph.input_names or not (root.name in graph.endpoint_names or graph.node_uses.get(root.name)):
            return None
        try:
            return simplify(Facts(graph, inference, has_signed_zeros), root)
        except (ValueError, IndexError, TypeError, ZeroDivisionError):
            return None  # the node is not valid for its op type: the runtime reports that more precisely

    return Rule(op(ops), rewrite, ("root",), simplify.__name__)


def pass_through(node: Node, *sources: Edge) -> list[Node]:
    """Return an Identity or IdentityN that replaces a node whose outputs equal its sources."""
    dtypes = output_dtypes(node)
    types: Attr | None = tuple(dtype or DType.FLOAT for dtype in dtypes) if len(sources) > 1 else dtypes[0]
    op_type = "Identity" if len(sources) == 1 else "IdentityN"
    return [Node(node.name, op_type, sources, node.controls, {}, node.device).with_attrs(T=types)]


def normalize_axes(values: Array, rank: int) -> list[int]:
    """Return axes as non-negative integers."""
    return [int(axis) % rank for axis in np.asarray(values).reshape(-1)]


def attribute_or_default(node: Node, name: str) -> Attr | None:
    """Return an attribute or its default; None if the node lacks a required attribute."""
    value: Attr | None = node.attrs.get(name)
    if value is not None:
        return value
    try:
        default: Attr = attribute(node, name)
    except GraphError:
        return None
    return default


def remove_new_identities(before: Graph, after: Graph) -> Graph:
    """Remove the Identity nodes that rules have added, and connect their consumers to their inputs."""
    draft = Draft(after)
    dependencies = {name for node in after.nodes.values() for name in node.controls}
    for node in after.nodes.values():
        old = before.nodes.get(node.name)
        is_new = node.op in ("Identity", "IdentityN") and (old is None or old.op != node.op)
        if is_new and not node.controls and node.name not in dependencies and node.name not in after.endpoint_names:
            draft.remove(node.name)
            for port, edge in enumerate(node.inputs):
                draft.redirect(Edge(node.name, port), edge)
    return draft.graph()
