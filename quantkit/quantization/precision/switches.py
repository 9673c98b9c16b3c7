"""Float graph in which each quantization of a plan can be switched on and off.

    edges with a range    x  ->  fake_quantize(x) if s else x
    layer                 y  ->  y + layer(x, quantized weights - weights, new bias - bias) if s else y

The switches s are one more input of the graph. Without a switch only the float layers are computed. One session then
measures the outputs of any choice of int8 layers, without a file for each choice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.roles import find_roles
from quantkit.quantization.corrections import correct_biases
from quantkit.quantization.marked_edges import mark_edges
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scale_migration import migrate_scales
from quantkit.quantization.targets import find_target

INPUT = "quantization_switches"
FLOAT_ATTRS: Mapping[str, Attr] = {"T": DType.FLOAT}


@dataclass(frozen=True)
class SwitchedGraph:
    """Float graph with a switch for each quantization of a plan.

    Attributes:
        graph: the graph.
        input: name of its input of the switches, bool of shape (n,).
        groups: edges with a common range, for the first switches.
        layers: layers with quantized weights, for the switches after those of the edges.
        inputs: indices of the switches of the inputs of each of these layers.
    """

    graph: Graph
    input: str
    groups: tuple[frozenset[Edge], ...]
    layers: tuple[str, ...]
    inputs: tuple[frozenset[int], ...]

    def __len__(self) -> int:
        return len(self.groups) + len(self.layers)

    def switches(self, plan: Plan) -> Array:
        """Return the switches of a plan of the same graph, (n,) bool."""
        layers = {pattern.layer for pattern in plan.patterns if pattern.weights}
        edges = plan.activations.keys()
        return np.array([*(not edges.isdisjoint(group) for group in self.groups), *(x in layers for x in self.layers)])


def switch_quantization(graph: Graph, plan: Plan, ranges: Ranges) -> SwitchedGraph:
    """Return the float graph of a plan with a switch for each quantization.

    Args:
        graph: float graph of either dialect.
        plan: plan of ``graph`` with all layers in int8.
        ranges: range of every edge that the plan quantizes.
    """
    ranges = ranges.merge_groups(plan.groups)
    graph = migrate_scales(graph, ranges.scales)
    parameters = find_target(plan.scheme.target).edge_parameters(graph, plan, ranges)
    corrected = correct_biases(graph, plan, ranges) if plan.scheme.bias_correction else graph
    # Nodes that copy values do not round them again: their edges have one switch.
    groups = tuple(dict.fromkeys(plan.group_of(edge) for edge in parameters))
    patterns = tuple(pattern for pattern in plan.patterns if pattern.weights)
    switches = _Switches(graph, plan, len(groups) + len(patterns))
    for number, pattern in enumerate(patterns, len(groups)):
        switches.switch_layer(number, pattern, corrected)
    for number, group in enumerate(groups):
        for edge in group & parameters.keys():
            switches.switch_edge(number, edge, parameters[edge])
    layers = tuple(pattern.layer for pattern in patterns)
    number_of = {edge: number for number, group in enumerate(groups) for edge in group}
    inputs = tuple(frozenset(number_of[edge] for edge in each.inputs if edge in number_of) for each in patterns)
    return SwitchedGraph(switches.graph(), switches.input, groups, layers, inputs)


class _Switches:
    """Switches of one graph.

    Attributes:
        source: float graph with an Identity for each quantized edge.
        plan: plan of the graph.
        input: name of the input of the switches.
        nodes: nodes of the switched graph.
        redirected: outputs of the layers, and those with their switches.
    """

    def __init__(self, source: Graph, plan: Plan, count: int) -> None:
        self.plan = plan
        self.source, self.markers = mark_edges(source, plan, list(plan.activations))
        self.is_onnx = source.dialect == onnx.DIALECT
        self.nodes = dict(self.source.nodes)
        self.redirected: dict[Edge, Edge] = {}
        self.input = free_name(source, INPUT)
        shape: dict[str, Attr] = {"dtype": DType.BOOL, "shape": Shape([count])}
        self.nodes[self.input] = Node(self.input, "Placeholder", attrs=shape)
        self.conditions: dict[int, Edge] = {}

    def switch_edge(self, number: int, edge: Edge, parameters: QuantizationParameters) -> None:
        """Replace the marker of an edge by a switch."""
        name = self.markers[edge]
        edge = self.redirected.get(edge, edge)
        low, high = map(np.float32, parameters.step_limits)
        scale = self._constant(f"{name}/scale", parameters.scale)
        ops = ("Div", "Max", "Min") if self.is_onnx else ("RealDiv", "Maximum", "Minimum")
        limits = [self._constant(f"{name}/low", low), self._constant(f"{name}/high", high)]
        steps = self._node(f"{name}/steps", ops[0], edge, Edge(scale.name))
        rounded = self._node(f"{name}/rounded", "Round", Edge(steps.name))
        above = self._node(f"{name}/above", ops[1], Edge(rounded.name), Edge(limits[0].name))
        below = self._node(f"{name}/below", ops[2], Edge(above.name), Edge(limits[1].name))
        values = self._node(f"{name}/quantized", "Mul", Edge(below.name), Edge(scale.name))
        self._switch(name, number, [scale, *limits, steps, rounded, above, below, values], (edge,))

    def switch_layer(self, number: int, pattern: FusedPattern, corrected: Graph) -> None:
        """Add the error of the weights and the bias of a layer to its output, with a switch."""
        layer = self.nodes[pattern.layer]
        weights = self.source[pattern.weights].value.array
        parameters = QuantizationParameters.of_weights(self.plan.weights[pattern.weights], weights)
        name = free_name(self.source, f"{layer.name}/switched")
        error = self._constant(f"{name}/weights", parameters.fake_quantize(weights).reshape(weights.shape) - weights)
        inner = layer.with_(name=f"{name}/layer", inputs=(layer.inputs[0], Edge(error.name)), controls=())
        nodes = [error, inner]
        result = Edge(inner.name)
        if (change := self._bias_change(pattern, corrected)) is not None:
            node, slot, values = change
            bias = self._constant(f"{name}/bias", values)
            nodes.append(bias)
            if node.name == layer.name:
                attrs = {**layer.attrs, "beta": 1.0} if layer.op == "Gemm" else layer.attrs
                nodes[1] = inner.with_(inputs=(*inner.inputs, Edge(bias.name)), attrs=attrs)
            else:
                inputs = [result] * 2
                inputs[slot] = Edge(bias.name)
                nodes.append(node.with_(name=f"{name}/biased", inputs=tuple(inputs), controls=()))
                result = Edge(f"{name}/biased")
        elif layer.op == "Gemm":
            nodes[1] = inner.with_attrs(beta=None)
        nodes.append(self._node(f"{name}/sum", "Add" if self.is_onnx else "AddV2", Edge(layer.name), result))
        self._switch(name, number, nodes, (Edge(layer.name), layer.inputs[0]))
        self.redirected[Edge(layer.name)] = Edge(name)

    def _bias_change(self, pattern: FusedPattern, corrected: Graph) -> tuple[Node, int, Array] | None:
        """Return the node that adds the bias of a layer, its input index, and the change by the bias correction."""
        bias_input = find_roles(self.source).bias_input(self.source, self.source[pattern.layer], pattern.bias)
        if bias_input is None:
            return None
        node, slot = bias_input
        before, after = (graph[node.name].inputs[slot : slot + 1] for graph in (self.source, corrected))
        if before == after:
            return None
        value = corrected[after[0].node].value.array
        old = self.source[before[0].node].value.array.reshape(-1) if before else np.float32(0)
        return node, slot, value - np.broadcast_to(old, value.shape)

    def graph(self) -> Graph:
        """Return the switched graph."""
        redirected = self.redirected
        nodes = dict(self.nodes)
        for name in self.source.nodes:
            node = nodes[name]
            if not redirected.keys().isdisjoint(node.inputs):
                nodes[name] = node.with_(inputs=tuple(redirected.get(edge, edge) for edge in node.inputs))
        inputs = [*self.source.inputs, Edge(self.input)]
        outputs = [redirected.get(edge, edge) for edge in self.source.outputs]
        return self.source.with_nodes(nodes.values()).with_endpoints(inputs, outputs)

    def _switch(self, name: str, number: int, nodes: Sequence[Node], captured: Sequence[Edge]) -> None:
        """Add a node with the result of nodes if a switch is on, else with the first captured edge."""
        condition = self._condition(number)
        if self.is_onnx:
            names = {edge: onnx.value_name(self.nodes[edge.node], edge.port) for edge in captured}
            inner = _redirect(nodes, {edge: Edge(value) for edge, value in names.items()})
            then = self._subgraph("then_branch", name, names.values(), inner)
            same = Node(f"{name}/same", "Identity", (Edge(names[captured[0]]),))
            attrs: dict[str, Attr] = {
                "then_branch": then,
                "else_branch": self._subgraph("else_branch", name, [names[captured[0]]], [same]),
            }
            controls = tuple(dict.fromkeys(edge.node for edge in captured))
            self.nodes[name] = Node(name, "If", (condition,), controls, attrs)
            return
        branches = {edge: f"{name}/switch_{index}" for index, edge in enumerate(captured)}
        for edge, branch in branches.items():
            self.nodes[branch] = Node(branch, "Switch", (edge, condition), attrs=FLOAT_ATTRS)
        for node in _redirect(nodes, {edge: Edge(branch, 1) for edge, branch in branches.items()}):
            self.nodes[node.name] = node
        inputs = (Edge(branches[captured[0]]), Edge(nodes[-1].name))
        self.nodes[name] = Node(name, "Merge", inputs, attrs={**FLOAT_ATTRS, "N": 2})

    def _subgraph(self, key: str, name: str, values: Iterable[str], nodes: Sequence[Node]) -> Attr:
        placeholders = [Node(value, "Placeholder", attrs={"dtype": DType.FLOAT}) for value in values]
        inputs = [Edge(node.name) for node in placeholders]
        graph = Graph.of([*placeholders, *nodes], inputs, [Edge(nodes[-1].name)], dialect=onnx.DIALECT)
        return onnx.encode_subgraph(key, graph.with_(extra=self.source.extra), f"{name}/{key}")

    def _condition(self, number: int) -> Edge:
        """Return the switch of a number, bool of shape ()."""
        name = f"{self.input}/{number}"
        if name not in self.nodes:
            index = self._constant(f"{name}/index", np.int64(number))
            constants, attrs = [index], dict[str, Attr]()
            if not self.is_onnx:
                constants.append(self._constant(f"{name}/axis", np.int64(0)))
                attrs = {"Tparams": DType.BOOL, "Tindices": DType.INT64, "Taxis": DType.INT64}
            op = "Gather" if self.is_onnx else "GatherV2"
            gather = Node(name, op, (Edge(self.input), *(Edge(node.name) for node in constants)), attrs=attrs)
            self.nodes.update({node.name: node for node in (*constants, gather)})
        return Edge(name)

    def _node(self, name: str, op: str, *inputs: Edge) -> Node:
        return Node(name, op, inputs, attrs={} if self.is_onnx else FLOAT_ATTRS)

    def _constant(self, name: str, values: npt.ArrayLike) -> Node:
        tensor = Tensor.of(values)
        return Node(name, "Constant", attrs={"value": tensor}) if self.is_onnx else constant(name, tensor)


def _redirect(nodes: Iterable[Node], edges: Mapping[Edge, Edge]) -> list[Node]:
    """Return nodes with other edges as inputs."""
    return [node.with_(inputs=tuple(edges.get(edge, edge) for edge in node.inputs)) for node in nodes]
