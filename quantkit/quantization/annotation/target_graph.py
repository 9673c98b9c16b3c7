"""The float graph in the dialect of a target, with the names and edges of the graph that it was converted from."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from quantkit.convert import tensorflow_to_onnx
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.convert.tensorflow_to_onnx.translator import Translation
from quantkit.errors import UsageError
from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.quantization.annotation.float_nodes import find_float_nodes
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import find_target


class TargetGraph(NamedTuple):
    """Float graph in the dialect of the target of a scheme.

    Attributes:
        graph: float graph.
        scheme: scheme whose ``keep_float`` names nodes of ``graph``.
        edges: edges of ``graph`` with the values of each edge of the TensorFlow graph that an ONNX graph was converted
            from; empty for other graphs.
    """

    graph: Graph
    scheme: Scheme
    edges: Mapping[Edge, tuple[Edge, ...]] = MappingProxyType({})

    @classmethod
    def of(cls, graph: Graph, scheme: Scheme) -> "TargetGraph":
        """Return a graph in the dialect of the target; a graph of the other dialect is converted.

        Args:
            graph: float graph.
            scheme: its ``keep_float`` names nodes, layers and op types of ``graph``, or nodes of the converted graph.

        Raises:
            UnavailableError: a node has no equivalent in the dialect.
        """
        if graph.dialect == find_target(scheme.target).dialect:
            return cls(graph, scheme)
        if graph.dialect == onnx.DIALECT:
            return cls(as_tensorflow(graph), scheme)
        translation = tensorflow_to_onnx.translate(graph)
        names = tuple(name for each in scheme.keep_float for name in _convert_name(each, graph, translation))
        return cls(translation.graph, scheme.with_(keep_float=tuple(dict.fromkeys(names))), translation.layouts)


def in_target_dialect(graph: Graph, target: str) -> Graph:
    """Return a float graph in the dialect of a target; a graph of the other dialect is converted.

    Raises:
        UnavailableError: a node has no equivalent in the dialect.
    """
    return TargetGraph.of(graph, Scheme.for_target(target)).graph


def _convert_name(name: str, graph: Graph, translation: Translation) -> Collection[str]:
    """Return the ONNX nodes of a name in ``keep_float``; the name itself if the TensorFlow graph does not have it."""
    try:
        names = find_float_nodes(graph, (name,))
    except UsageError:
        return (name,)
    return [each for node in sorted(names) for each in _converted_nodes(graph[node], translation)]


def _converted_nodes(node: Node, translation: Translation) -> Iterator[str]:
    """Yield the ONNX nodes that compute a TensorFlow node; a layer also computes the bias after it."""
    inputs = {value.node for edge in node.inputs for value in translation.layouts.get(edge, ())}
    computed = translation.nodes.get(node.name) or [edge.node for edge in translation.layouts.get(Edge(node.name), ())]
    for name in computed:
        if name in translation.graph and name not in inputs and not translation.graph[name].is_constant:
            yield name
