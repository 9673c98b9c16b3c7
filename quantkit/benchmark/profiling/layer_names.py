"""Names of the original graph for the ops of a compiled model.

A runtime fuses, renames and adds nodes, and a quantized model has nodes of its own. An op belongs to the layer of the
original graph that it computes: a convolution or matrix product with its bias, norm and activation, or one other node.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from quantkit.formats.onnx import DIALECT
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Shape
from quantkit.ops import macs
from quantkit.ops.onnx import shapes as onnx
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.table import Fact, find_ops
from quantkit.runtimes.session import OpTime

# Ops with one data input that belong to the layer that computes it.
_FOLLOWERS = find_ops(Fact.IN_PLACE | Fact.IDENTITY) - {"Softmax"} | {"DequantizeLinear", "QuantizeLinear"}
# Suffix of the scopes of the classic quantize_nodes transform.
_SCOPE_SUFFIX = re.compile(r"_eightbit$")


class LayerNames:
    """Layers of the original graph, found by the names of nodes.

    Args:
        graph: original graph.
        input_shapes: shapes of its inputs in the profiled calls, by name.
    """

    def __init__(self, graph: Graph, input_shapes: Mapping[str, Shape]) -> None:
        self.graph = _with_input_shapes(graph, input_shapes)
        self._nodes_by_name: dict[str, str] = {}

    @cached_property
    def shapes(self) -> Mapping[Edge, Shape]:
        """Shapes by edge in the profiled calls."""
        return infer_shapes(self.graph)

    @cached_property
    def macs(self) -> Mapping[str, int]:
        """MACs of each node; 0 if they are unknown."""
        count = onnx.count_macs if self.graph.dialect == DIALECT else macs.count_macs
        return {name: count(node, self.shapes) or 0 for name, node in self.graph.nodes.items()}

    @cached_property
    def layers(self) -> Mapping[str, str]:
        """Name of the layer of each node that is not a constant."""
        layers: dict[str, str] = {}
        for name in self.graph.order:
            node = self.graph[name]
            if node.is_constant:
                continue
            edges = [edge for edge in node.inputs if edge.node in self.graph]
            data = [edge for edge in edges if not self.graph[edge.node].is_constant]
            follows = node.op in _FOLLOWERS and len(data) == 1 and self.macs.get(layers.get(data[0].node, ""), 0)
            layers[name] = layers[data[0].node] if follows else name
        return layers

    def members(self, layer: str) -> tuple[str, ...]:
        """Return the nodes of a layer in topological order."""
        return self._members.get(layer, ())

    def find_layer(self, sources: Iterable[str]) -> str:
        """Return the layer that an op computes: the one with most MACs among its nodes, else the last one.

        Args:
            sources: names of nodes of the model, or of the runtime.

        Returns:
            A name of the graph; empty if no source belongs to one.
        """
        names = [name for name in map(self._find, sources) if name]
        layers = [self.layers[name] for name in names]
        return max(layers, key=lambda layer: (self.macs[layer], self._positions[layer]), default="")

    def find_layers(self, ops: Sequence[OpTime]) -> list[str]:
        """Return the layer of each op; an op that the runtime added belongs to the layer of a producer or consumer."""
        layers = {op.name: self.find_layer(op.sources) or self.find_layer((op.name,)) for op in ops}
        consumers: dict[str, list[str]] = {}
        for op in ops:
            for producer in op.producers:
                consumers.setdefault(producer, []).append(op.name)
        for op in ops:
            layers[op.name] = layers[op.name] or _first(layers, op.producers)
        for op in reversed(ops):
            layers[op.name] = layers[op.name] or _first(layers, consumers.get(op.name, ()))
        return [layers[op.name] for op in ops]

    @cached_property
    def _members(self) -> Mapping[str, tuple[str, ...]]:
        members: dict[str, tuple[str, ...]] = {}
        for name, layer in self.layers.items():
            members[layer] = (*members.get(layer, ()), name)
        return members

    @cached_property
    def _positions(self) -> Mapping[str, int]:
        return {name: position for position, name in enumerate(self.graph.order)}

    def _find(self, name: str) -> str:
        """Return the node whose name is the longest run of scopes in a name; empty if the graph has no such node.

        ``half_0/conv/codes`` is part of ``conv``, ``conv/Conv2D_eightbit/Mul/quantize`` of ``conv/Conv2D``.
        """
        if name not in self._nodes_by_name:
            parts = name.split("/")
            runs = ["/".join(parts[start:end]) for start in range(len(parts)) for end in range(len(parts), start, -1)]
            runs = [text for run in runs for text in (run, _SCOPE_SUFFIX.sub("", run))]
            matches = [run for run in runs if run in self.layers]
            self._nodes_by_name[name] = max(matches, key=lambda run: (run.count("/"), len(run)), default="")
        return self._nodes_by_name[name]


def _with_input_shapes(graph: Graph, shapes: Mapping[str, Shape]) -> Graph:
    nodes = graph.nodes.values()
    return graph.with_nodes(
        node.with_attrs(shape=shapes[node.name]) if node.op == "Placeholder" and node.name in shapes else node
        for node in nodes
    )


def _first(layers: Mapping[str, str], names: Iterable[str]) -> str:
    return next((layers[name] for name in names if layers.get(name)), "")
