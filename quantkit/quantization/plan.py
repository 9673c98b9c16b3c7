"""The decisions about a graph: which tensors become 8 bits, in which form, and why the others do not.

A *fused pattern* is what an engine computes in one go:

    Conv2D | DepthwiseConv2dNative | MatMul  [+ bias]  [+ Add of a residual]  [+ Relu | Relu6]

Inputs and outputs of a fused pattern are quantized values; inside, values have 32 bits. Between
fused patterns, pools, concatenations, reshapes and pads are *pass-through* nodes: they work on
quantized values and keep the range of their inputs. The other nodes stay float, each with a reason.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from quantkit.errors import InputError
from quantkit.formats.documents import read_json
from quantkit.formats.files import write_whole
from quantkit.ir.graph import Edge, Graph
from quantkit.ops.layers import LAYER_OPS
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import Spec

SCHEMA = "quantkit.plan/2"
FORM = "quantkit quantize --save-plan FILE writes such files"
PATTERN_LAYER_OPS = LAYER_OPS - {"Conv2DBackpropInput"}
ADDS = frozenset({"Add", "AddV2"})
ACTIVATIONS = frozenset({"Relu", "Relu6"})
CONCATS = frozenset({"Concat", "ConcatV2"})
AVERAGES = frozenset({"AvgPool", "Mean"})
# Ops that only move codes: what comes out is some of what went in.
MOVING = frozenset({"MaxPool", "Reshape", "Squeeze", "ExpandDims", "Pad", "MirrorPad", "Identity", "Relu", "Relu6"})
PASS_THROUGH_OPS = CONCATS | AVERAGES | MOVING
# Of constants no codes serve.
NOT_FINITE = "hold NaN or infinity"


@dataclass(frozen=True)
class FusedPattern:
    """A layer and what is computed with it in one go.

    Attributes:
        layer: the node of the convolution or matrix product.
        weights: the constant it multiplies with.
        bias: the node that adds a constant per channel, or nothing.
        add: the node that adds a residual, or nothing.
        activation: the Relu or Relu6, or nothing.
        input: what the layer reads.
        summand: what ``add`` adds to the layer's own result.
        inner: the layer's own result that ``add`` reads, for engines that add in an op of its own.
        output: what leaves the pattern.
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

    @property
    def name(self) -> str:
        """The name of the last node."""
        return self.output.node

    @property
    def nodes(self) -> tuple[str, ...]:
        """Its nodes in execution order."""
        return tuple(name for name in (self.layer, self.bias, self.add, self.activation) if name)

    @property
    def reads(self) -> tuple[Edge, ...]:
        """The edges whose codes it reads."""
        return (self.input,) if self.summand is None else (self.input, self.summand)

    def to_json(self) -> dict[str, str]:
        """Names by role, those that are there."""
        written = {key: str(value) for key, value in vars(self).items() if value is not None}
        return {key: value for key, value in written.items() if value}

    @classmethod
    def from_json(cls, document: Mapping[str, str]) -> Self:
        """The pattern of names by role."""
        edges = ("input", "output", "summand", "inner")
        return cls(**{key: Edge.parse(value) if key in edges else value for key, value in document.items()})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Plan:
    """Every decision about a graph; no data has been seen.

    Attributes:
        scheme: what was wanted.
        activations: form of the codes, by edge.
        weights: form of the codes, by constant; `Spec.axes` says which dimensions number the channels.
        groups: edges that share one range.
        patterns: in execution order.
        pass_through: nodes that work on codes and pass their range on, in execution order.
        float_fallbacks: the other nodes, and why; with `Scheme.weights_only` the layers whose weights stay float.
        edges: the edges whose range is observed, in execution order: of each group those that the others follow from.
        graph: digest of the float graph, as `quantkit.quantization.ranges.graph_digest` gives it; empty: not known.
    """

    scheme: Scheme
    activations: Mapping[Edge, Spec]
    weights: Mapping[str, Spec]
    groups: tuple[frozenset[Edge], ...]
    patterns: tuple[FusedPattern, ...]
    pass_through: tuple[str, ...]
    float_fallbacks: Mapping[str, str]
    edges: tuple[Edge, ...]
    graph: str = ""

    @cached_property
    def pattern_of(self) -> Mapping[str, FusedPattern]:
        """The pattern of each of its nodes."""
        return {name: pattern for pattern in self.patterns for name in pattern.nodes}

    @property
    def averaged(self) -> tuple[Edge, ...]:
        """The edges whose channels' means bias correction needs: what patterns read."""
        return tuple(dict.fromkeys(pattern.input for pattern in self.patterns)) if self.scheme.bias_correction else ()

    def group_of(self, edge: Edge) -> frozenset[Edge]:
        """The edges that share the range of an edge, itself included."""
        return self._groups.get(edge, frozenset({edge}))

    @cached_property
    def _groups(self) -> Mapping[Edge, frozenset[Edge]]:
        return {edge: group for group in self.groups for edge in group}

    def positive(self, graph: Graph) -> frozenset[Edge]:
        """The edges of the float graph that hold no number below 0: outputs of Relu, passed through."""
        found: set[Edge] = set()
        for name in graph.order:
            node = graph[name]
            reads = [edge for edge in node.inputs if graph.constant_of(edge) is None]
            if node.op in ACTIVATIONS or (name in self.pass_through and found.issuperset(reads)):
                found.add(Edge(name))
        return frozenset(found)

    def require(self, ranges: Ranges) -> None:
        """See that every quantized edge has a range.

        Raises:
            InputError: naming the first one that has none.
        """
        for edge in self.activations:
            if edge not in ranges:
                raise InputError(
                    f"the ranges lack {str(edge)!r}, which the plan quantizes",
                    hint="they were collected for another graph, target or scheme: calibrate once more, for this one",
                )

    def require_nodes(self, graph: Graph) -> None:
        """See that a graph has all that the plan speaks of.

        Raises:
            InputError: naming the first node that is missing.
        """
        named = [*self.pattern_of, *self.weights, *self.pass_through, *(edge.node for edge in self.activations)]
        for name in named:
            if name not in graph:
                raise InputError(
                    f"the plan speaks of {name!r}, which is not in the graph",
                    hint="it was made for another graph: annotate this one, or prepare it with the same recipe",
                )

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them."""
        return {
            "schema": SCHEMA,
            "graph": self.graph,
            "scheme": self.scheme.to_json(),
            "patterns": [pattern.to_json() for pattern in self.patterns],
            "pass_through": list(self.pass_through),
            "float_fallbacks": dict(self.float_fallbacks),
            "activations": {str(edge): str(spec) for edge, spec in self.activations.items()},
            "weights": {name: str(spec) for name, spec in self.weights.items()},
            "groups": [sorted(map(str, group)) for group in self.groups],
            "observed": list(map(str, self.edges)),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The plan of plain values.

        Raises:
            InputError: they are none.
        """
        if document.get("schema") != SCHEMA:
            raise InputError(
                f"this is no plan: the schema is {document.get('schema')!r}, not {SCHEMA!r}",
                hint=FORM,
            )
        try:
            return cls(
                Scheme.from_json(document["scheme"]),
                {Edge.parse(name): Spec.parse(text) for name, text in document["activations"].items()},
                {name: Spec.parse(text) for name, text in document["weights"].items()},
                tuple(frozenset(map(Edge.parse, group)) for group in document["groups"]),
                tuple(map(FusedPattern.from_json, document["patterns"])),
                tuple(document["pass_through"]),
                dict(document["float_fallbacks"]),
                tuple(map(Edge.parse, document["observed"])),
                str(document.get("graph", "")),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InputError(f"this plan is damaged: {error}", hint="annotate the graph once more") from None

    @cached_property
    def text(self) -> str:
        """The file's text."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the plan to a file; it appears whole or not at all."""
        write_whole(Path(path), lambda file: file.write(self.text.encode()))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The plan of a file.

        Raises:
            InputError: it can not be read, or holds no plan.
        """
        return cls.from_json(read_json(Path(path), FORM))
