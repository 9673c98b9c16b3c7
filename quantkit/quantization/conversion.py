"""Steps of quantization that need no data: prepare the float graph, and convert it."""

from quantkit.arguments import public
from quantkit.ir.graph import Graph
from quantkit.quantization.annotation import annotate, in_target_dialect
from quantkit.quantization.corrections import correct_biases, equalize
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scale_migration import migrate_scales
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.capabilities import WrittenByConverter
from quantkit.quantization.weights import store_weights
from quantkit.runtimes import AUTO


@public
def prepare(graph: Graph, scheme: Scheme, *, runtime: str = AUTO) -> Graph:
    """Return the graph to annotate and calibrate, with equalized weights if the scheme has them.

    A graph of the other dialect than that of the target is converted.

    Args:
        graph: float graph.
        scheme: scheme of the quantization.
        runtime: runtime whose int8 kernels the form of the layers suits; ``auto`` for all runtimes of the target.

    Raises:
        UnavailableError: an op has no equivalent in the dialect of the target, or no form in a later opset.
    """
    graph = in_target_dialect(graph, scheme.target)
    if not scheme.weights_only:
        graph = find_target(scheme.target).prepare(graph, runtime)
    return equalize(graph, annotate(graph, scheme)) if scheme.equalize else graph


def with_int8_weights(graph: Graph, plan: Plan) -> Graph:
    """Return the float graph with int8 weights, for a plan of `Scheme.weights_only`.

    Raises:
        UnavailableError: the weights cannot be stored in the files of the target.
    """
    target = find_target(plan.scheme.target)
    return target.store_weights(graph, plan) if isinstance(target, WrittenByConverter) else store_weights(graph, plan)


@public
def convert(graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
    """Return the quantized graph in the dialect of the plan's target.

    Args:
        graph: annotated float graph, converted as in `annotate` if it has the other dialect.
        plan: decisions about the graph.
        ranges: range of every edge that the plan quantizes; empty with `Scheme.weights_only`.

    Raises:
        InputError: an edge has no range.
        UnavailableError: the target is not available in this installation.
    """
    target = find_target(plan.scheme.target)
    graph = in_target_dialect(graph, target.name)
    if plan.scheme.weights_only:
        return with_int8_weights(graph, plan)
    plan.require_ranges(ranges)
    ranges = ranges.merge_groups(plan.groups)
    graph = migrate_scales(graph, ranges.scales)
    if plan.scheme.bias_correction:
        graph = correct_biases(graph, plan, ranges)
    return target.convert(graph, plan, ranges)
