"""Decisions about a graph: the number format of each quantized tensor, and the reasons of float fallbacks.

A *fused pattern* is a group of nodes that a runtime computes as one kernel:

    convolution | matrix product  [+ bias]  [+ Add of a residual]  [+ Relu | Relu6 | Clip]

Inputs and outputs of a fused pattern are quantized values; inside, values have 32 bits. Between
fused patterns, pools, concatenations, reshapes and pads are *pass-through* nodes: they work on
quantized values and keep the range of their inputs. The other nodes stay float, each with a reason.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from quantkit.arguments import without_none
from quantkit.errors import InputError
from quantkit.formats.documents import check_structure, read_json
from quantkit.formats.files import write_whole
from quantkit.ir.graph import Edge, Graph
from quantkit.ops.roles import find_roles
from quantkit.quantization.precision.decision import INT8, Decision
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import Spec

SCHEMA = "quantkit.plan/3"
HINT = "write a plan with quantkit quantize --save-plan FILE"
# Types of the values of a plan file; `Scheme.from_json` checks those of the scheme.
_STRUCTURE = {
    "activations": {str: str},
    "weights": {str: str},
    "groups": [[str]],
    "patterns": [{str: str}],
    "pass_through": [str],
    "decisions": [{"unit": str, "precision": str, "reason": str, "source": str}],
    "observed": [str],
}
# Reason of a fallback whose constants cannot be quantized.
NOT_FINITE = "hold NaN or infinity"


@dataclass(frozen=True)
class FusedPattern:
    """A layer with the bias, residual and activation that are computed in the same kernel.

    Attributes:
        layer: node of the convolution or matrix product.
        weights: constant of the layer; empty for a product of two activations.
        input: input edge of the layer.
        output: output edge of the pattern.
        bias: node that adds a constant per channel, or empty.
        add: node that adds a residual, or empty.
        activation: Relu, Relu6 or Clip node, or empty.
        summand: residual edge of ``add``; None without ``add``.
        inner: the other edge of ``add``, for runtimes that add in a separate op; None without ``add``.
        operand: second edge of a product of two activations; None with constant weights.
    """

    layer: str
    weights: str
    input: Edge
    output: Edge
    bias: str = ""
    add: str = ""
    activation: str = ""
    summand: Edge | None = None
    inner: Edge | None = None
    operand: Edge | None = None

    @property
    def name(self) -> str:
        """Name of the last node."""
        return self.output.node

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in execution order."""
        return tuple(name for name in (self.layer, self.bias, self.add, self.activation) if name)

    @property
    def inputs(self) -> tuple[Edge, ...]:
        """Quantized input edges: the layer's activations and the residual."""
        return tuple(edge for edge in (self.input, self.operand, self.summand) if edge is not None)

    def to_json(self) -> dict[str, str]:
        """Return the names of nodes and edges by role, without empty ones."""
        names = {
            key: value.reference if isinstance(value, Edge) else value
            for key, value in vars(self).items()
            if value is not None
        }
        return {key: name for key, name in names.items() if name}

    @classmethod
    def from_json(cls, document: Mapping[str, str]) -> Self:
        """Return the pattern of names by role."""
        edges = ("input", "output", "summand", "inner", "operand")
        return cls(**{key: Edge.parse(value) if key in edges else value for key, value in document.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Plan:
    """All decisions about a graph, made without data.

    Attributes:
        scheme: requested quantization.
        activations: number format of each quantized edge.
        weights: number format of each quantized constant; `Spec.axes` are the channel dimensions.
        groups: sets of edges with a common range.
        patterns: fused patterns in execution order.
        pass_through: nodes that keep the quantization parameters of their input, in execution order.
        decisions: precision of each fused pattern, pass-through node and float node that computes; with
            `Scheme.weights_only`, of each node with weights.
        edges: observed edges in execution order, which determine the ranges of all edges.
        graph: digest of the float graph, from `quantkit.quantization.ranges.graph_digest`; may be empty.
    """

    scheme: Scheme
    activations: Mapping[Edge, Spec]
    weights: Mapping[str, Spec]
    groups: tuple[frozenset[Edge], ...]
    patterns: tuple[FusedPattern, ...]
    pass_through: tuple[str, ...]
    decisions: tuple[Decision, ...]
    edges: tuple[Edge, ...]
    graph: str = ""

    @cached_property
    def float_decisions(self) -> Mapping[str, Decision]:
        """Decision about each node that is not int8, by name."""
        return {decision.unit: decision for decision in self.decisions if decision.precision != INT8}

    @cached_property
    def refined(self) -> Mapping[str, Decision]:
        """Decision about each int8 layer or table with another form than that of its scheme, by name."""
        return {decision.unit: decision for decision in self.decisions if decision.is_refined}

    @property
    def tables(self) -> tuple[str, ...]:
        """Gather nodes whose tables are stored in int8, one scale for each row."""
        return tuple(name for name, decision in self.refined.items() if decision.stores_table)

    @cached_property
    def float_fallbacks(self) -> Mapping[str, str]:
        """Reason of each node that stays float; with `Scheme.weights_only`, of each layer whose weights stay float."""
        return {name: decision.reason for name, decision in self.float_decisions.items()}

    @cached_property
    def pattern_of(self) -> Mapping[str, FusedPattern]:
        """Fused pattern of each node in one."""
        return {name: pattern for pattern in self.patterns for name in pattern.nodes}

    @property
    def mean_edges(self) -> tuple[Edge, ...]:
        """Edges whose channel means are observed for bias correction: the inputs of the layers with weights."""
        patterns = self.patterns if self.scheme.bias_correction else ()
        return tuple(dict.fromkeys(pattern.input for pattern in patterns if pattern.weights))

    def range_edge(self, edge: Edge) -> Edge:
        """Return the edge whose range determines the quantization parameters of an edge.

        With `Scheme.split_patterns`, the values before an activation that clamps them need no range of their own.
        """
        pattern = self.pattern_of.get(edge.node)
        if pattern is None or not (self.scheme.split_patterns and pattern.activation):
            return edge
        return pattern.output if edge.node in pattern.nodes[-2:] else edge

    def group_of(self, edge: Edge) -> frozenset[Edge]:
        """Return the edges with the same range as an edge, itself included."""
        return self._groups.get(edge, frozenset({edge}))

    @cached_property
    def _groups(self) -> Mapping[Edge, frozenset[Edge]]:
        return {edge: group for group in self.groups for edge in group}

    def nonnegative_edges(self, graph: Graph) -> frozenset[Edge]:
        """Return the edges of the float graph without negative values: Relu outputs, also after pass-through nodes."""
        roles = find_roles(graph)
        edges: set[Edge] = set()
        for name in graph.order:
            node = graph[name]
            inputs = [edge for edge in node.inputs if graph.constant_of(edge) is None]
            if roles.is_activation(graph, node) or (name in self.pass_through and edges.issuperset(inputs)):
                edges.add(Edge(name))
        return frozenset(edges)

    def require_ranges(self, ranges: Ranges) -> None:
        """Check that every quantized edge has a range.

        Raises:
            InputError: an edge has no range.
        """
        for edge in self.activations:
            if edge not in ranges:
                raise InputError(
                    f"there is no range of edge {str(edge)!r}, which the plan quantizes",
                    hint="calibrate again, for this graph, target and scheme",
                )

    def require_nodes(self, graph: Graph) -> None:
        """Check that all nodes of the plan are in a graph, and that the nodes of each pattern belong together.

        Raises:
            InputError: a node is missing, or a pattern does not fit the graph.
        """
        names = [*self.pattern_of, *self.weights, *self.pass_through, *(decision.unit for decision in self.decisions)]
        names += [edge.node for edge in self.activations]
        for name in names:
            if name not in graph:
                raise InputError(
                    f"the plan references node {name!r}, which is not in the graph",
                    hint="compute a plan for this graph, or prepare it with the same --recipe",
                )
        for pattern in self.patterns:
            if reason := self._find_contradiction(pattern, graph):
                raise InputError(f"the plan is damaged: {reason}", hint="compute it again")

    def _find_contradiction(self, pattern: FusedPattern, graph: Graph) -> str:
        """Return why a pattern does not fit a graph that has its nodes; empty if it fits."""
        if not pattern.layer or len(graph[pattern.layer].inputs) < 2:
            return f"pattern {pattern.name!r} has the layer {pattern.layer!r}, which has no weights"
        if pattern.weights and pattern.weights not in self.weights:
            return f"the weights {pattern.weights!r} of layer {pattern.layer!r} have no number format"
        for before, name in pairwise(pattern.nodes):
            sources = [edge.node for edge in graph[name].inputs]
            if before not in sources or (name in (pattern.bias, pattern.add) and len(sources) < 2):
                return f"node {name!r} of pattern {pattern.name!r} does not consume {before!r}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values, for `from_json`."""
        return {
            "schema": SCHEMA,
            "graph": self.graph,
            "scheme": self.scheme.to_json(),
            "patterns": [pattern.to_json() for pattern in self.patterns],
            "pass_through": list(self.pass_through),
            "decisions": [without_none(**decision.to_json()) for decision in self.decisions],
            "activations": {edge.reference: str(spec) for edge, spec in self.activations.items()},
            "weights": {name: str(spec) for name, spec in self.weights.items()},
            "groups": [sorted(edge.reference for edge in group) for group in self.groups],
            "observed": [edge.reference for edge in self.edges],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the plan of JSON values.

        Raises:
            InputError: the values are not a plan.
        """
        if document.get("schema") != SCHEMA:
            raise InputError(
                f"the file does not contain a plan: the schema is {document.get('schema')!r} instead of {SCHEMA!r}",
                hint=HINT,
            )
        try:
            for name, structure in _STRUCTURE.items():
                check_structure(document[name], structure, name)
            return cls(
                Scheme.from_json(document["scheme"]),
                {Edge.parse(name): Spec.parse(text) for name, text in document["activations"].items()},
                {name: Spec.parse(text) for name, text in document["weights"].items()},
                tuple(frozenset(map(Edge.parse, group)) for group in document["groups"]),
                tuple(map(FusedPattern.from_json, document["patterns"])),
                tuple(document["pass_through"]),
                tuple(Decision(**decision) for decision in document["decisions"]),
                tuple(map(Edge.parse, document["observed"])),
                str(document.get("graph", "")),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"the plan is damaged: {error}", hint="compute it again") from None

    @cached_property
    def text(self) -> str:
        """Content of a plan file."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """Hash of all decisions."""
        return blake2b(self.text.encode(), digest_size=8).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file; the file appears complete or not at all."""
        write_whole(Path(path), lambda file: file.write(self.text.encode()))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the plan of a file.

        Raises:
            InputError: the file cannot be read, or is not a plan.
        """
        return cls.from_json(read_json(Path(path), HINT))
