"""Facts about a float graph that both nodes and edges need."""

from functools import cached_property

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ops.roles import find_roles
from quantkit.ops.semantics import SHAPE_OPS
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.scheme import PAIR_SAFE, Scheme
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.base import multiplies_u8_by_s8

# Name of the facts in `Graph.analyses`.
FACTS = "float_graph"


class FloatGraph:
    """Float graph with the facts that decide about the number formats of its tensors.

    Attributes:
        graph: float graph.
        scheme: requested quantization.
        target: target of the scheme.
        roles: roles of the op types.
        shapes: inferred shapes by edge.
        nodes: nodes that the outputs need, in topological order.
        position: index in ``nodes`` by name.
        objections: cause of a layer in float, its source, and the number format of the weights, by the name of the
            layer and the number format that layers before it give its weights.
    """

    def __init__(self, graph: Graph, scheme: Scheme) -> None:
        self.graph = graph
        self.scheme = scheme
        self.target = find_target(scheme.target)
        self.roles = find_roles(graph)
        self.shapes = infer_shapes(graph)
        needed = graph.reachable()
        self.nodes = [graph[name] for name in graph.order if name in needed]
        self.position = {node.name: number for number, node in enumerate(self.nodes)}
        self.objections: dict[tuple[str, Spec | None], tuple[str, str, Spec | None]] = {}

    @classmethod
    def of(cls, graph: Graph, scheme: Scheme) -> "FloatGraph":
        """Return the facts about a graph for a scheme, the last ones of the graph again if the scheme is the same.

        A measurement of the noise of each layer needs a plan for each.
        """
        facts = graph.analyses.get(FACTS)
        if not isinstance(facts, FloatGraph) or facts.scheme != scheme:
            facts = graph.analyses[FACTS] = cls(graph, scheme)
        return facts

    @cached_property
    def limits_pairs(self) -> bool:
        """True if the weights are limited for kernels that add pairs of products in 16 bits."""
        return self.scheme.saturation == PAIR_SAFE and multiplies_u8_by_s8(self.target)

    @cached_property
    def shape_only(self) -> set[str]:
        """Nodes whose values no output needs, only their shapes, as the first step of a masked layer of Keras."""
        names, needed = {node.name for node in self.nodes}, set[str]()
        stack = [edge.node for edge in self.graph.outputs]  # an order of the nodes has no loops
        while stack:
            name = stack.pop()
            if name in names and name not in needed:
                needed.add(name)
                node = self.graph[name]
                stack += node.controls if node.op in SHAPE_OPS else node.sources
        return names - needed

    @cached_property
    def front_end(self) -> set[str]:
        """Nodes before an amplifying op that has layers after it, for example a spectrogram."""
        before_layers: set[str] = set()
        amplified: set[str] = set()
        for node in reversed(self.nodes):
            consumers = {use.node.name for use in self.graph.node_uses.get(node.name, ())}
            if any(name in before_layers or self.graph[name].op in self.roles.layer_ops for name in consumers):
                before_layers.add(node.name)
            is_amplifying = any(
                self.graph[name].op in self.roles.amplifying_ops and name in before_layers for name in consumers
            )
            if is_amplifying or not amplified.isdisjoint(consumers):
                amplified.add(node.name)
        return amplified

    def sole_consumer(self, edge: Edge) -> tuple[Node, int] | None:
        """Return the only consumer of an edge and its input index; None for several, or a graph output."""
        uses = self.graph.uses.get(edge, ())
        if len(uses) != 1 or edge.node in self.graph.endpoint_names or uses[0].node.name not in self.position:
            return None
        return uses[0].node, uses[0].slot

    def missing_kernel(self, node: Node) -> str:
        """Return why the target has no int8 kernel for a node, or an empty string."""
        return self.target.missing_kernel(self.graph, node, self.shapes)

    def is_input(self, edge: Edge) -> bool:
        """Return True for an input of the graph, and for the Cast of one."""
        node = self.graph[edge.node]
        source = node.inputs[0].node if node.op == "Cast" else node.name
        return source in self.graph.input_names

    def is_activation(self, node: Node) -> bool:
        """Return True if the kernel of a layer can compute the node."""
        return node.op in self.roles.activation_ops and self.roles.is_activation(self.graph, node)

    def is_average(self, node: Node) -> bool:
        """Return True for an average pool or a mean."""
        return node.op in self.roles.average_ops

    def is_global(self, node: Node) -> bool:
        """Return True if an average reduces all positions to one."""
        return self.roles.is_global(node, self.shapes)
