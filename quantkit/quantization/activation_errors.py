"""Mean quantization error of each channel of the layers' inputs, by which clipping and rounding shift the outputs."""

from collections.abc import Iterable, Mapping

from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.quantization.calibration import open_calibration_session
from quantkit.quantization.calibration.observation import ChannelMeans, Observation
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scale_migration import migrate_scales
from quantkit.quantization.significant_bits import round_multiples
from quantkit.quantization.targets import find_target

# Precision of the errors, as a fraction of the scale of their tensor, see `significant_bits`.
ERROR_STEP = 2.0**-4


def measure_mean_errors(
    graph: Graph, plan: Plan, ranges: Ranges, runs: Iterable[Mapping[str, Array]], runtime: str
) -> dict[Edge, tuple[float, ...]]:
    """Return the mean error of each channel, (c,), by input edge of the layers with weights.

    Args:
        graph: float graph.
        plan: plan of ``graph``.
        ranges: range of every edge that the plan quantizes.
        runs: feeds of the float graph.
        runtime: runtime of the float graph, or ``auto``.

    Raises:
        UnavailableError, GraphError: the runtime cannot run the graph.
    """
    parameters = find_target(plan.scheme.target).edge_parameters(graph, plan, ranges.merge_groups(plan.groups))
    means = ChannelMeans()
    graph = migrate_scales(graph, ranges.scales)
    with open_calibration_session(graph, plan, runtime) as session:
        observation = Observation(plan, session, graph)
        for feeds in runs:
            outputs = session.run(feeds)
            for edge in plan.mean_edges:
                rows = observation.rows(edge, feeds, outputs)
                means.add(edge, parameters[edge].fake_quantize(rows) - rows)
    return {
        edge: tuple(round_multiples(values, ERROR_STEP * float(parameters[edge].scale)))
        for edge, values in means.by_edge().items()
    }
