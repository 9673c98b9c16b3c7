"""What algebraic rules look at, and the nodes they make.

A rule is a function ``(facts, node) -> nodes | Skip | None``; the last of the nodes it returns takes the place of the
one that it was given.
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

# A new constant is no larger than what it replaces, but not every size is worth computing.
MOST_ELEMENTS = 1 << 16
# How many nodes that only pass a tensor on are looked through.
MOST_PASSED = 8


@dataclass(frozen=True)
class Facts:
    """What is known of a graph.

    Attributes:
        graph: as it is now.
        known: its shapes, and the numbers that it computes of them.
        has_signed_zeros: whether 0 and -0 count as different.
    """

    graph: Graph
    known: Inference
    has_signed_zeros: bool = True

    def shape(self, edge: Edge) -> Shape:
        return self.known.shapes.get(edge, UNKNOWN)

    def sizes(self, edge: Edge) -> list[int | None] | None:
        """A list of whole numbers that is computed of shapes, None for those that are not known; None: no such list."""
        found = self.known.sizes.get(edge)
        return None if found is None or found.ndim != 1 else found.tolist()

    def value(self, edge: Edge) -> Array | None:
        """The values of a constant that is not fed, unless it is too large to be worth a look."""
        tensor = self.graph.constant_of(edge)
        if tensor is None or edge.node in self.graph.input_names or tensor.num_elements > MOST_ELEMENTS:
            return None
        return tensor.array

    def behind(self, edge: Edge) -> Edge:
        """The edge that this one is, past nodes that only pass it on."""
        for _ in range(MOST_PASSED):
            node = self.graph[edge.node]
            if node.op != "Identity" or node.controls or node.name in self.graph.input_names:
                break
            edge = node.inputs[0]
        return edge

    def maker(self, edge: Edge, ops: frozenset[str]) -> Node | None:
        """The node of one of these types that makes an edge, if its inputs may be read in its stead."""
        edge = self.behind(edge)
        node = self.graph[edge.node]
        is_one = node.op in ops and not edge.port and not node.controls and node.name not in self.graph.input_names
        return node if is_one else None

    def is_shared(self, edge: Edge, inner: Node) -> bool:
        """Whether others than the reader of an edge see what ``inner`` makes, which the edge is."""
        while edge.node != inner.name:
            if self.graph.is_shared(self.graph[edge.node]):
                return True
            edge = self.graph[edge.node].inputs[0]
        return self.graph.is_shared(inner)

    def are_equal(self, first: Edge, second: Edge) -> bool:
        """Whether two edges that hold the same elements surely have the same shape."""
        one, other = self.shape(first).dims, self.shape(second).dims
        return one is not None and one == other and one.count(None) <= 1 and 0 not in one

    def spreads_over(self, small: Shape, edge: Edge) -> bool:
        """Whether a tensor of a shape, combined with an edge, gives one of the edge's shape."""
        if small.rank == 0:
            return True
        dims = self.shape(edge).dims
        if dims is None or small.dims is None or len(small.dims) > len(dims):
            return False
        pairs = zip(small.dims[::-1], dims[::-1], strict=False)
        return all(one == 1 or (one is not None and one == size) for one, size in pairs)

    def constant(self, near: Node, word: str, values: Array, dtype: DType | None = None) -> Node:
        return constant(free_name(self.graph, f"{near.name}/{word}"), Tensor.of(values, dtype))


Simplify = Callable[[Facts, Node], Sequence[Node] | Skip | None]


def as_rule(ops: str, simplify: Simplify, known: Inference, has_signed_zeros: bool) -> Rule:
    """A rule for `apply_rules` about nodes of some types that somebody reads and nobody feeds."""

    def rewrite(graph: Graph, root: Node) -> Sequence[Node] | Skip | None:
        if root.name in graph.input_names or not (root.name in graph.endpoint_names or graph.node_uses.get(root.name)):
            return None
        try:
            return simplify(Facts(graph, known, has_signed_zeros), root)
        except (ValueError, IndexError, TypeError, ZeroDivisionError):
            return None  # the node does not fit its op: whoever runs it will say so better

    return Rule(op(ops), rewrite, ("root",), simplify.__name__)


def passing(node: Node, *sources: Edge) -> list[Node]:
    """What stands for a node that only hands tensors on."""
    dtypes = output_dtypes(node)
    kinds: Attr | None = tuple(dtype or DType.FLOAT for dtype in dtypes) if len(sources) > 1 else dtypes[0]
    made = Node(node.name, "Identity" if len(sources) == 1 else "IdentityN", sources, node.controls, {}, node.device)
    return [made.with_attrs(T=kinds)]


def axes_of(values: Array, rank: int) -> list[int]:
    """Axes from the front."""
    return [int(axis) % rank for axis in np.asarray(values).reshape(-1)]


def setting(node: Node, name: str) -> Attr | None:
    """An attribute or its default; None where the node lacks one that it must have."""
    value = node.attrs.get(name)
    if value is not None:
        return value
    try:
        found: Attr = attribute(node, name)
    except GraphError:
        return None
    return found


def spliced(before: Graph, after: Graph) -> Graph:
    """Let readers read past the nodes that have become mere passers on."""
    draft = Draft(after)
    waited_for = {name for node in after.nodes.values() for name in node.controls}
    for node in after.nodes.values():
        old = before.nodes.get(node.name)
        is_new = node.op in ("Identity", "IdentityN") and (old is None or old.op != node.op)
        if is_new and not node.controls and node.name not in waited_for and node.name not in after.endpoint_names:
            draft.remove(node.name)
            for port, edge in enumerate(node.inputs):
                draft.redirect(Edge(node.name, port), edge)
    return draft.graph()
