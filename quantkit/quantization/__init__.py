"""Calibrated 8 bits: decide without data, observe, rewrite. Each stage is a value that can be saved and read."""

from collections.abc import Callable, Iterable
from pathlib import Path

from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.ir.graph import Graph
from quantkit.quantization.annotation import annotate
from quantkit.quantization.calibration import Batch, collect, examples_at_once, open_observed
from quantkit.quantization.corrections import correct_biases, equalize
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Provenance, Range, Ranges, graph_digest
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets import find_target
from quantkit.runtimes import AUTO

__all__ = [
    "FusedPattern",
    "Plan",
    "Provenance",
    "Range",
    "Ranges",
    "Scheme",
    "Spec",
    "annotate",
    "calibrate",
    "collect",
    "convert",
    "prepare",
    "quantize",
]


def prepare(graph: Graph, scheme: Scheme) -> Graph:
    """The float graph that a scheme calibrates and converts: the same, or one with its scales evened out.

    Raises:
        UnavailableError: it is of ONNX's ops, and one of them has no form in TensorFlow's, which patterns are made of.
    """
    graph = as_tensorflow(graph)
    return equalize(graph, annotate(graph, scheme)) if scheme.equalize else graph


def calibrate(
    graph: Graph,
    batches: Iterable[Batch],
    *,
    target: str = "onnx",
    scheme: Scheme | None = None,
    runtime: str = AUTO,
    progress: Callable[[int], None] = lambda count: None,
    resume: Path | None = None,
) -> Ranges:
    """Run examples through a float graph and choose a range for every tensor that becomes 8 bits.

    Args:
        graph: in float, batch norms folded, with inputs and outputs.
        batches: arrays of examples (n, ...), or arrays by input name.
        target: what the ranges are for, a name of `quantkit.quantization.targets.targets`.
        scheme: what is to be quantized; None: what suits the target.
        runtime: engine; ``auto``: the fastest that can run the graph.
        progress: told how many examples are done.
        resume: a file that keeps the state of an interrupted calibration.

    Raises:
        InputError: there is no example.
        UsageError: an example does not fit the input.
        UnavailableError: no engine can run the graph.
    """
    scheme = scheme or Scheme.for_target(target)
    graph = prepare(graph, scheme)
    plan = annotate(graph, scheme)
    with open_observed(graph, plan, runtime) as session:
        return collect(
            session,
            plan,
            batches,
            at_once=examples_at_once(graph, plan),
            graph_digest=graph_digest(graph),
            progress=progress,
            resume=resume,
        )


def quantize(graph: Graph, ranges: Ranges, target: str = "onnx", *, scheme: Scheme | None = None) -> Graph:
    """The 8-bit form of a graph.

    Args:
        graph: the one that was calibrated.
        ranges: what `calibrate` gave.
        target: a name of `quantkit.quantization.targets.targets`.
        scheme: what is to be quantized; None: what suits the target.

    Returns:
        A graph in the target's own ops: of ONNX for ``onnx``, of TensorFlow for ``tensorflow`` and ``eightbit``.

    Raises:
        InputError: the ranges were collected on another graph, or lack an edge.
        UnavailableError: the target can not be made here.
    """
    scheme = scheme or Scheme.for_target(target)
    graph = prepare(graph, scheme)
    ranges.require_graph(graph)
    return convert(graph, annotate(graph, scheme), ranges)


def convert(graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
    """The graph with every decision of a plan carried out.

    Args:
        graph: the float graph that was annotated.
        plan: of it.
        ranges: of every edge that the plan quantizes; none where it is of weights only.

    Raises:
        InputError: an edge has no range.
        UnavailableError: the target can not be made here.
    """
    target = find_target(plan.scheme.target)
    if plan.scheme.weights_only:
        return target.store_weights(graph, plan)
    plan.require(ranges)
    ranges = ranges.shared(plan.groups)
    if plan.scheme.bias_correction:
        graph = correct_biases(graph, plan, ranges)
    return target.convert(graph, plan, ranges)
