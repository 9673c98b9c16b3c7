"""Graphs whose outputs and some inner tensors are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array, Shape
from quantkit.ops import macs
from quantkit.ops.onnx import shapes as onnx_shapes
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.recipes import rounding
from quantkit.runtimes.session import Session

# (runs, ...) by name of the output, or by description of an inner tensor.
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class ObservedGraph:
    """A graph with inner tensors as further outputs.

    Attributes:
        graph: the graph.
        labels: descriptions of the inner tensors, which are the last outputs.
    """

    graph: Graph
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, graph: Graph, edges: Mapping[str, Edge]) -> Self:
        """Return a graph with more outputs.

        Args:
            graph: graph of either dialect.
            edges: inner tensors by description.
        """
        labels = {edge: label for label, edge in edges.items() if edge not in graph.outputs}
        if not labels:
            return cls(graph)
        observed = graph.with_endpoints(None, [*graph.outputs, *labels])
        return cls(copy_shared_summands(observed), tuple(labels.values()))

    @property
    def fields(self) -> tuple[Any, ...]:
        return compared_fields(self.graph)

    def move_constants(self, seed: int, names: frozenset[str] | None = None) -> Self:
        """Return the graph with constants that have moved, see `move_constants`."""
        return replace(self, graph=rounding.move_constants(self.graph, seed, names))

    def title(self, name: str) -> str:
        """Return the name of an output for messages."""
        return name if name in self.labels else f"output {name!r}"

    def join(self, session: Session, runs: Sequence[Mapping[str, Array]]) -> Outputs:
        """Return the outputs of several runs, stacked; an output whose size differs between the runs is several."""
        names = [info.name for info in session.outputs]
        titles = dict(zip(names[len(names) - len(self.labels) :], self.labels, strict=True))
        outputs: dict[str, Array] = {}
        for name in names:
            arrays, title = [run[name] for run in runs], titles.get(name, name)
            if len({array.shape for array in arrays}) == 1:
                outputs[title] = np.stack(arrays)
            else:
                outputs |= {f"{title} of run {index}": array[None] for index, array in enumerate(arrays)}
        return outputs

    def count_macs(self, feeds: Mapping[str, Array]) -> int:
        """Return the multiply-accumulate operations of a run, without those of unknown number."""
        is_onnx = self.graph.dialect == onnx.DIALECT
        sizes = {
            onnx.edge_of(self.graph, name) if is_onnx else self.graph.edge(name): feed for name, feed in feeds.items()
        }
        nodes = dict(self.graph.nodes)
        for edge, array in sizes.items():
            nodes[edge.node] = nodes[edge.node].with_attrs(shape=Shape(array.shape))
        shapes = infer_shapes(self.graph.with_nodes(nodes.values()))
        count = onnx_shapes.count_macs if is_onnx else macs.count_macs
        return sum(count(node, shapes) or 0 for node in self.graph.nodes.values())


def compared_fields(graph: Graph) -> tuple[Any, ...]:
    """Return the fields that determine the outputs of a graph."""
    return graph.nodes, graph.inputs, graph.outputs, graph.library
