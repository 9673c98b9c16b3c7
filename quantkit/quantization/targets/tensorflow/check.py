"""Whether this host's TensorFlow computes a graph of fused 8-bit ops, and computes it right.

The 8-bit graph runs once on seeded numbers. Each pattern is then computed in float from the very codes that its 8-bit
form read, so that a wrong kernel shows at its own node and rounding does not add up from layer to layer.
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
from quantkit.quantization.targets.tensorflow.parameters import edge_parameters, quantized_name
from quantkit.runtimes.availability import require
from quantkit.runtimes.session import Session, TensorInfo
from quantkit.runtimes.tensorflow import RUNTIME

# Rounded weights and codes differ from float by about 1 % of a result's spread; a kernel that reads codes wrongly by
# more than 15 %.
MOST_ERROR = 0.1
ROUNDING_CODES = 4
PORTION_BYTES = 16 << 20
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


@dataclass(frozen=True)
class PatternError:
    """How far a pattern's 8-bit form is from float on the same inputs.

    Attributes:
        pattern: the pattern's last node in the float graph.
        error: root mean square of the difference, over that of the float result and a few codes.
    """

    pattern: str
    error: float


def check_on_this_host(graph: Graph, plan: Plan, ranges: Ranges, quantized: Graph) -> tuple[PatternError, ...]:
    """Run an 8-bit graph here and compare it with the float graph, pattern by pattern.

    Args:
        graph: the float graph.
        plan: what was quantized.
        ranges: with what ranges.
        quantized: what `convert` made of these.

    Returns:
        The error of every pattern whose result is in codes, in execution order.

    Raises:
        UnavailableError: TensorFlow is not there, runs without oneDNN, or has no kernel for a node, which is named.
        GraphError: TensorFlow refuses the graph.
        CheckError: a pattern's numbers are wrong; the first such node is named.
    """
    require_onednn()
    codes = {
        edge: parameters
        for edge, parameters in edge_parameters(graph, plan, ranges).items()
        if quantized_name(edge) in quantized
    }
    fetched = [Edge(quantized_name(edge)) for edge in codes]
    with RUNTIME.open(copy_shared_summands(quantized.with_endpoints(None, [*fetched, *quantized.outputs]))) as session:
        feeds = _seeded(session, plan, ranges)
        found = _explained(session, feeds)
    _require_finite(quantized, found)
    numbers = {edge: parameters.dequantize(_bytes(found[quantized_name(edge)])) for edge, parameters in codes.items()}
    errors = tuple(_unit_errors(graph, plan, codes, numbers))
    for one in errors:
        if not one.error <= MOST_ERROR:
            raise CheckError(
                f"node {quantized_name(Edge(one.pattern))!r}: this host computes it {one.error:.0%} away from float",
                hint=f"keep it in float: keep_float = [{one.pattern!r}]",
            )
    return errors


def require_onednn() -> None:
    """See that fused 8-bit ops have kernels here.

    Raises:
        UnavailableError: TensorFlow is not installed, or oneDNN is switched off or not built in.
    """
    if os.environ.get(ONEDNN, "1").strip().lower() in ("0", "false"):
        raise UnavailableError(
            f"the 8-bit ops of the target tensorflow are oneDNN's, and {ONEDNN}=0 switches oneDNN off",
            hint=f"unset {ONEDNN}, or set it to 1, in a new process",
        )
    require(RUNTIME.available())


def _seeded(session: Session, plan: Plan, ranges: Ranges) -> dict[str, Array]:
    """Numbers that fill the inputs' ranges."""
    generator = np.random.default_rng(0)
    return {info.name: _numbers(generator, info, plan, ranges) for info in session.inputs}


def _numbers(generator: np.random.Generator, info: TensorInfo, plan: Plan, ranges: Ranges) -> Array:
    if info.dtype is DType.STRING:
        raise GraphError(
            f"the input {info.name!r} takes encoded pictures, and the 8-bit graph is checked with numbers",
            hint="--inputs names a tensor behind the decoder: what takes pixels",
        )
    if info.shape.dims is None:
        raise GraphError(
            f"the shape of the input {info.name!r} is not known",
            hint="prepare the graph with strip_unused_nodes(shape=...)",
        )
    shape = [size or 1 for size in info.shape.dims]
    if info.dtype is not DType.FLOAT:
        return generator.integers(0, 256, shape).astype(info.dtype.numpy)
    edge = Edge.parse(info.name)
    low, high = ranges.get(edge, (-1.0, 1.0))
    return generator.uniform(low, high, shape).astype(np.float32)


def _explained(session: Session, feeds: Mapping[str, Array]) -> dict[str, Array]:
    try:
        return session.run(feeds)
    except GraphError as error:
        if re.search(r"Missing \d+-th output", str(error)):
            raise UnavailableError(
                f"{error}: TensorFlow runs without oneDNN here",
                hint=f"x86 wheels have it: see that {ONEDNN} is not 0",
            ) from error
        raise


def _require_finite(quantized: Graph, found: Mapping[str, Array]) -> None:
    for edge in quantized.outputs:
        values = found[str(edge)]
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise CheckError(
                f"the output {str(edge)!r} holds NaN or infinity in 8 bits",
                hint="quantkit compare finds the first bad layer",
            )


def _bytes(codes: Array) -> Array:
    """Codes as plain bytes: TensorFlow gives its quantized types as records."""
    return codes.view(np.uint8) if codes.dtype.names or codes.dtype.itemsize == 1 else codes


def _unit_errors(
    graph: Graph, plan: Plan, codes: Mapping[Edge, QuantizationParameters], numbers: Mapping[Edge, Array]
) -> Iterator[PatternError]:
    patterns = [
        pattern
        for pattern in plan.patterns
        if pattern.output in codes and all(edge in numbers for edge in pattern.inputs)
    ]
    for some in _portions(graph, patterns):
        alone, feeds = _separated(graph, some, numbers)
        with RUNTIME.open(alone) as session:
            found = session.run(feeds)
        for number, pattern in enumerate(some):
            parameters = codes[pattern.output]
            wanted = parameters.fake_quantize(found[f"pattern_{number}/{pattern.name}"])
            wrong = _root_mean_square(wanted - numbers[pattern.output])
            # Where all numbers are a few codes, rounding them is a large part of them.
            yield PatternError(
                pattern.name, wrong / (_root_mean_square(wanted) + ROUNDING_CODES * float(parameters.scale))
            )


def _portions(graph: Graph, patterns: Sequence[FusedPattern]) -> Iterator[list[FusedPattern]]:
    """Patterns whose weights take no more than `PORTION_BYTES` together: a session holds them several times."""
    portion: list[FusedPattern] = []
    num_bytes = 0
    for pattern in patterns:
        size = graph[pattern.weights].value.num_bytes
        if portion and num_bytes + size > PORTION_BYTES:
            yield portion
            portion, num_bytes = [], 0
        portion.append(pattern)
        num_bytes += size
    if portion:
        yield portion


def _separated(
    graph: Graph, patterns: Sequence[FusedPattern], numbers: Mapping[Edge, Array]
) -> tuple[Graph, dict[str, Array]]:
    """A graph in which each pattern reads inputs of its own, and what to feed it."""
    made: dict[str, Node] = {}
    feeds: dict[str, Array] = {}
    outputs: list[Edge] = []
    for number, pattern in enumerate(patterns):
        prefix = f"pattern_{number}/"
        for edge in pattern.inputs:
            name = prefix + edge.node
            made[name] = Node(name, "Placeholder", attrs={"dtype": DType.FLOAT})
            feeds[name] = numbers[edge]
        inside = [graph[name] for name in pattern.nodes]
        constants = [graph[edge.node] for node in inside for edge in node.inputs if graph[edge.node].is_constant]
        for node in (*constants, *inside):
            name = prefix + node.name
            inputs = tuple(Edge(prefix + edge.node) for edge in node.inputs)
            made[name] = node.with_(name=name, inputs=inputs, controls=())
        outputs.append(Edge(prefix + pattern.name))
    return Graph.of(made.values(), feeds, outputs, versions=graph.versions), feeds


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))
