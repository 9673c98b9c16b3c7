"""Check of the fused int8 kernels of this host's TensorFlow against float.

The quantized graph runs once on a calibration sample, else on seeded random inputs in the calibrated ranges. Each
fused pattern is then computed in float from the same quantized inputs, so that a wrong kernel shows at its own node and
rounding errors do not add up from layer to layer.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantkit.errors import CheckError, GraphError, UnavailableError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType
from quantkit.ops.tensorflow.in_place_sums import copy_shared_summands
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import FusedPattern, Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.targets.tensorflow.parameters import edge_parameters, quantized_name, requantized_name
from quantkit.runtimes.availability import require
from quantkit.runtimes.random_inputs import Sizes, find_random_inputs, random_arrays
from quantkit.runtimes.session import Session
from quantkit.runtimes.tensorflow import RUNTIME

# Rounding gives an error of about 1 % of the standard deviation; a wrong kernel more than 15 %.
MAX_ERROR = 0.1
ROUNDING_STEPS = 4
BATCH_BYTES = 16 << 20
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


@dataclass(frozen=True)
class PatternError:
    """Relative error of an int8 kernel on the same inputs as float.

    Attributes:
        pattern: name of the fused pattern.
        error: root mean square of the difference, divided by that of the float output plus a few steps.
    """

    pattern: str
    error: float


def check_on_this_host(
    graph: Graph, plan: Plan, ranges: Ranges, quantized: Graph, feeds: Mapping[str, Array] = {}
) -> tuple[PatternError, ...]:
    """Run a quantized graph and compare each fused pattern with float.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        ranges: ranges of every edge of the plan.
        quantized: result of `convert`.
        feeds: arrays by input name; inputs without one get random values in the calibrated ranges.

    Returns:
        Errors of all patterns with a quantized output, in topological order.

    Raises:
        UnavailableError: TensorFlow is not installed, runs without oneDNN, or has no kernel for a node.
        GraphError: TensorFlow rejects the graph.
        UsageError: an input without an array takes strings, or its rank is unknown.
        CheckError: a kernel is wrong; the message names the first such node.
    """
    require_onednn()
    parameters = edge_parameters(graph, plan, ranges)
    names = {edge: name for edge in parameters if (name := _planned_name(quantized, edge)) in quantized}
    parameters_of = {edge: parameters[edge] for edge in names}
    fetches = [Edge(name) for name in names.values()]
    with RUNTIME.open(copy_shared_summands(quantized.with_endpoints(None, [*fetches, *quantized.outputs]))) as session:
        names_of = {Edge.parse(info.name): info.name for info in session.inputs}
        bounds = {name: (ranges[edge].low, ranges[edge].high) for edge, name in names_of.items() if edge in ranges}

        def run(sizes: Sizes, integers: tuple[int, int]) -> dict[str, Array]:
            arrays = random_arrays(session.inputs, feeds=feeds, sizes=sizes, bounds=bounds, integers=integers)
            return _run(session, arrays)

        outputs = find_random_inputs(graph, session.inputs, run, feeds)
    _require_finite(quantized, outputs)
    values = {
        edge: parameters.dequantize(_as_uint8(outputs[names[edge]])) for edge, parameters in parameters_of.items()
    }
    errors = tuple(_pattern_errors(graph, plan, parameters_of, values))
    for error in errors:
        if not error.error <= MAX_ERROR:
            raise CheckError(
                f"node {quantized_name(Edge(error.pattern))!r}: the kernel of this host is {error.error:.0%} off",
                hint=f"keep it in float: keep_float = [{error.pattern!r}]",
            )
    return errors


def _planned_name(quantized: Graph, edge: Edge) -> str:
    """Return the name of the node with the quantized values of an edge in its planned range.

    A pass-through op keeps the range of its input; if its own range differs, another node has the planned values.
    """
    name = requantized_name(edge.node)
    return name if name in quantized else quantized_name(edge)


def require_onednn() -> None:
    """Check that this host has kernels of the fused int8 ops.

    Raises:
        UnavailableError: TensorFlow is not installed, or oneDNN is disabled.
    """
    if os.environ.get(ONEDNN, "1").strip().lower() in ("0", "false"):
        raise UnavailableError(
            f"the target tensorflow needs oneDNN, which {ONEDNN}=0 disables",
            hint=f"unset {ONEDNN}, or set it to 1, in a new process",
        )
    require(RUNTIME.available())


def _run(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    try:
        return session.run(feeds)
    except GraphError as error:
        if re.search(r"Missing \d+-th output", str(error)):
            raise UnavailableError(
                f"{error}: TensorFlow runs without oneDNN",
                hint=f"set {ONEDNN}=1 before TensorFlow is imported; only its x86 wheels contain oneDNN",
            ) from error
        raise


def _require_finite(quantized: Graph, outputs: Mapping[str, Array]) -> None:
    for edge in quantized.outputs:
        values = outputs[str(edge)]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise CheckError(
                f"the quantized output {str(edge)!r} contains NaN or infinity",
                hint="quantkit compare finds the first bad layer",
            )


def _as_uint8(values: Array) -> Array:
    """Return quantized values as uint8: TensorFlow returns its quantized types as records."""
    return values.view(np.uint8) if values.dtype.names or values.dtype.itemsize == 1 else values


def _pattern_errors(
    graph: Graph,
    plan: Plan,
    parameters_of: Mapping[Edge, QuantizationParameters],
    values: Mapping[Edge, Array],
) -> Iterator[PatternError]:
    patterns = [
        pattern
        for pattern in plan.patterns
        if pattern.output in parameters_of and all(edge in values for edge in pattern.inputs)
    ]
    for batch in _batches(graph, patterns):
        separate, feeds = _separate(graph, batch, values)
        with RUNTIME.open(separate) as session:
            outputs = session.run(feeds)
        for number, pattern in enumerate(batch):
            parameters = parameters_of[pattern.output]
            expected = parameters.fake_quantize(outputs[f"pattern_{number}/{pattern.name}"])
            noise = _root_mean_square(expected - values[pattern.output])
            # The steps keep the error small if all values are within a few steps of 0.
            signal = _root_mean_square(expected) + ROUNDING_STEPS * float(parameters.scale)
            yield PatternError(pattern.name, noise / signal)


def _batches(graph: Graph, patterns: Sequence[FusedPattern]) -> Iterator[list[FusedPattern]]:
    """Yield patterns with at most `BATCH_BYTES` of weights: a session holds several copies of them."""
    batch: list[FusedPattern] = []
    num_bytes = 0
    for pattern in patterns:
        size = graph[pattern.weights].value.num_bytes
        if batch and num_bytes + size > BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(pattern)
        num_bytes += size
    if batch:
        yield batch


def _separate(
    graph: Graph, patterns: Sequence[FusedPattern], values: Mapping[Edge, Array]
) -> tuple[Graph, dict[str, Array]]:
    """Return a graph in which each pattern has its own inputs, and the feeds."""
    nodes: dict[str, Node] = {}
    feeds: dict[str, Array] = {}
    outputs: list[Edge] = []
    for number, pattern in enumerate(patterns):
        prefix = f"pattern_{number}/"
        for edge in pattern.inputs:
            name = prefix + edge.node
            nodes[name] = Node(name, "Placeholder", attrs={"dtype": DType.FLOAT})
            feeds[name] = values[edge]
        inside = [graph[name] for name in pattern.nodes]
        constants = [graph[edge.node] for node in inside for edge in node.inputs if graph[edge.node].is_constant]
        for node in (*constants, *inside):
            name = prefix + node.name
            inputs = tuple(Edge(prefix + edge.node) for edge in node.inputs)
            nodes[name] = node.with_(name=name, inputs=inputs, controls=())
        outputs.append(Edge(prefix + pattern.name))
    return Graph.of(nodes.values(), feeds, outputs, versions=graph.versions), feeds


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
