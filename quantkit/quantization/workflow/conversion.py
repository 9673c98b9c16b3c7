"""The quantized graph of a float graph, a plan and ranges, and its file."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quantkit import formats
from quantkit.errors import CheckError
from quantkit.formats import onnx
from quantkit.formats.content_digest import seal_receipt
from quantkit.formats.metadata import with_metadata
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.quantization import Plan, Ranges, annotate, convert
from quantkit.quantization.precision.decision import ACCURACY, COST, FLOAT, KERNEL, OP, Decision, as_decisions
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import Target, find_target
from quantkit.quantization.targets.capabilities import KernelChecks
from quantkit.quantization.targets.tensorrt.float16 import narrow_floats
from quantkit.quantization.workflow.custom_ops import join_custom_ops
from quantkit.quantization.workflow.host import count_cores
from quantkit.quantization.workflow.options import FLOAT16, FLOAT32, ORIGINAL
from quantkit.recipes.trace import Trace
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import SessionOptions
from quantkit.transforms.precision.convert_precision import narrow_ops, restore_half

FALLBACK_REASON = "quantizing this layer exceeds --max-drop"
CUT_REASON = "int8 saves less time than its quantize/dequantize boundaries take, by the table of costs"


@dataclass(frozen=True)
class Conversion:
    """A float graph with all decisions for its quantization.

    Attributes:
        graph: prepared float graph.
        plan: decisions about the graph.
        ranges: range of every edge that the plan quantizes.
        fallback_precision: precision of the fallback layers, ``float`` or ``bfloat16``.
        fallback_layers: layers that the accuracy search excludes from quantization.
        source: graph of the float model, whose inputs and outputs may have names of dimensions; None without names.
        float_graph: float graph before a fine-tuning, with the constants of layers that stay float; None without one.
        float_parts: type of the ops that are not quantized: that of ``source``, ``float32`` or ``float16``.
        whole: float graph with custom ops after ``graph``; None without custom ops.
        trace: record of the recipe that prepared ``graph``; None without one.
        uncut: plan without the float layers of the table of costs; None without such layers.
    """

    graph: Graph
    plan: Plan
    ranges: Ranges
    fallback_precision: str = FLOAT
    fallback_layers: frozenset[str] = frozenset()
    source: Graph | None = None
    float_graph: Graph | None = None
    float_parts: str = FLOAT32
    whole: Graph | None = None
    trace: Trace | None = None
    uncut: Plan | None = None

    @property
    def target(self) -> Target:
        """Target of the plan."""
        return find_target(self.plan.scheme.target)

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The runtime of the file, else those of its target, fastest first; installed ones only if there are any."""
        return find_runtimes(self.plan.scheme)

    @property
    def trial_runtimes(self) -> tuple[str, ...]:
        """The installed runtimes of the target, those first that open a model without a long compilation."""
        names = _find_installed(self.target)
        return tuple(sorted(names, key=lambda name: not find_runtime(name).keeps_tensors))

    @property
    def session_options(self) -> SessionOptions:
        """Session options that suit the quantized graph."""
        if self.plan.scheme.weights_only:
            return SessionOptions()
        return self.target.session_options(count_cores())

    def exclude(self, layers: frozenset[str]) -> "Conversion":
        """Return the conversion with these layers as float fallbacks of the accuracy search."""
        precision = self.fallback_precision
        decisions = {layer: Decision(layer, precision, FALLBACK_REASON, ACCURACY) for layer in layers}
        return replace(self.decide(decisions), fallback_layers=layers)

    def decide(self, decisions: Mapping[str, Decision]) -> "Conversion":
        """Return the conversion with more float fallbacks, or with more precise forms of int8 layers.

        Args:
            decisions: decision about each layer, in addition to the float fallbacks and refined layers of the plan.
        """
        present = {**self.plan.float_decisions, **self.plan.refined}
        graph = self._restore(decisions)
        plan = annotate(graph, self.plan.scheme, float_nodes={**present, **decisions})
        return replace(self, graph=graph, plan=plan)

    def cut(self, kernels: Collection[str]) -> "Conversion":
        """Return the conversion with float kernels by the table of costs; see `without_cut`."""
        decisions = as_decisions(dict.fromkeys(sorted(kernels), CUT_REASON), COST)
        return replace(self.decide(decisions).with_kernels(), uncut=self.plan)

    def without_cut(self) -> "Conversion":
        """Return the conversion without the float kernels of `cut`, and with all decisions after it."""
        if self.uncut is None:
            return self
        decisions = {**self.plan.float_decisions, **self.plan.refined}
        # The annotation decides by the ops again: float neighbors of a kernel of `cut` may be int8 without it.
        later = {name: each for name, each in decisions.items() if each.source not in (OP, COST) or each.is_refined}
        uncut = replace(self.uncut, scheme=self.plan.scheme)
        return replace(self, plan=uncut, uncut=None).decide(later).with_kernels()

    def with_kernels(self) -> "Conversion":
        """Return the conversion whose plan keeps layers in float that have no int8 kernel for these ranges."""
        conversion, target = self, self.target
        while isinstance(target, KernelChecks) and not self.plan.scheme.weights_only:
            reasons = target.missing_kernels(conversion.graph, conversion.plan, conversion.ranges)
            if reasons.keys() <= conversion.plan.float_decisions.keys():
                break
            conversion = conversion.decide(as_decisions(reasons, KERNEL))
        return conversion

    def _restore(self, layers: Mapping[str, Decision]) -> Graph:
        """Return the graph with the weights and biases that layers have before a fine-tuning."""
        if self.float_graph is None:
            return self.graph
        nodes = dict(self.graph.nodes)
        for layer in layers.keys() & self.plan.pattern_of.keys():
            pattern = self.plan.pattern_of[layer]
            for name in (pattern.layer, pattern.bias):
                node = self.float_graph.nodes.get(name)
                if node is not None:
                    sources = (self.float_graph[edge.node] for edge in node.inputs if edge.node in self.float_graph)
                    nodes[name] = node
                    nodes.update({source.name: source for source in sources if source.is_constant})
        return self.graph.with_nodes(nodes.values())

    @cached_property
    def quantized(self) -> Graph:
        """The quantized graph.

        Raises:
            InputError: an edge has no range.
            UnavailableError: the target is not available in this installation.
        """
        quantized = convert(self.graph, self.plan, self.ranges)
        if self.source is not None and quantized.dialect == onnx.DIALECT:
            quantized = onnx.with_dimension_names(quantized, self.source)
        if self.float_parts == FLOAT16:
            return narrow_floats(quantized)
        if self.source is not None and self.float_parts == ORIGINAL:
            int8_nodes = {*self.plan.pattern_of, *self.plan.pass_through}
            quantized = restore_half(quantized, self.source, quantized.nodes.keys() - int8_nodes)
        if self.fallback_precision == FLOAT or not self.fallback_layers:
            return quantized
        # A plan has no fused patterns of its fallbacks: the plan of all layers contains their nodes.
        pattern_of = annotate(self.graph, self.plan.scheme.with_(keep_float=())).pattern_of
        layers = self.fallback_layers
        converted = {name for layer in layers if layer in pattern_of for name in pattern_of[layer].nodes} | layers
        keep = [name for name, node in quantized.nodes.items() if name not in converted and not node.is_constant]
        return narrow_ops(quantized, self.fallback_precision, keep)

    def check_on_host(self, target: KernelChecks, feeds: Mapping[str, Array]) -> None:
        """Check that this host computes the quantized graph correctly.

        Args:
            target: target of the plan.
            feeds: one run's arrays of the data, by input name; random values without data.

        Raises:
            CheckError: this host computes the graph incorrectly.
        """
        try:
            target.check_host(self.graph, self.plan, self.ranges, self.quantized, feeds)
        except CheckError as error:
            if not self.ranges.warnings:
                raise
            raise CheckError(
                f"{error.message}; {self.ranges.warnings[0]}",
                hint=f"use --max-drop to keep such layers in float, or {error.hint.removeprefix('keep it in float: ')}",
            ) from None

    @property
    def complete(self) -> Graph:
        """The quantized graph with custom ops."""
        return self.quantized if self.whole is None else join_custom_ops(self.quantized, self.graph, self.whole)

    def save(self, output: Path, metadata: Mapping[str, Any]) -> None:
        """Write the complete graph with the metadata of its file; the file appears complete or not at all."""
        self._write(self.complete, output, metadata)

    def write(self, output: Path, metadata: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write the quantized graph without custom ops; the file appears complete or not at all."""
        self._write(self.quantized, output, metadata)

    def _write(self, graph: Graph, output: Path, metadata: Mapping[str, Any]) -> None:
        """Write a graph, or the metadata of the SavedModel folder that contains it, and seal the receipt."""
        graph = with_metadata(graph, metadata)
        if output.is_dir() and any(output.iterdir()):
            formats.save_folder_metadata(graph, output)
        else:
            self.target.write(graph, output, weights_only=self.plan.scheme.weights_only)
        if "receipt" in metadata:
            seal_receipt(output)


def find_runtimes(scheme: Scheme) -> tuple[str, ...]:
    """Return the runtime of a scheme, else those of its target, fastest first; installed ones if there are any."""
    names = _find_installed(find_target(scheme.target))
    return (scheme.runtime,) if scheme.runtime in names else names


def _find_installed(target: Target) -> tuple[str, ...]:
    """Return the runtimes of a target that are installed; all of them without an installed one."""
    return tuple(name for name in target.runtimes if find_runtime(name).available().ok) or target.runtimes
