"""The scheme and the plan of a quantization: given, or derived from the target and this processor."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from quantkit.arguments import expand_user
from quantkit.errors import GraphError, InputError, QuantkitError, UsageError, one_line
from quantkit.ir.graph import Edge, Graph
from quantkit.ops.validation import find_invalid_node
from quantkit.quantization import Plan, Scheme, annotate
from quantkit.quantization.calibration.trained_ranges import plan_trained
from quantkit.quantization.conversion import with_int8_weights
from quantkit.quantization.precision.decision import COST, as_decisions
from quantkit.quantization.ranges import Range, Ranges, graph_digest
from quantkit.quantization.scheme import REDUCE_RANGE
from quantkit.quantization.targets import find_target, targets
from quantkit.quantization.targets.base import multiplies_u8_by_s8
from quantkit.quantization.targets.capabilities import RuntimeRules, WrittenByConverter
from quantkit.quantization.workflow.options import DEFAULT_TARGET, Options
from quantkit.runtimes import AUTO, find_runtime


def choose_scheme(options: Options) -> Scheme:
    """Return the scheme of the plan or the given scheme, else the target's default, with the other options applied.

    Raises:
        UsageError: options contradict each other.
        InputError: a file cannot be read.
    """
    scheme = _base_scheme(options)
    if options.target and options.target != scheme.target:
        source = "the plan" if options.plan is not None else "the scheme"
        raise UsageError(f"--target is {options.target}, but {source} is for {scheme.target}", hint="omit one of them")
    if options.observer:
        scheme = scheme.with_(observer=options.observer)
    if options.weights_only:
        scheme = scheme.with_(weights_only=True)
    if options.plan is None:
        scheme = _suit_runtime(scheme, options.runtime)
    if options.reduce_range and not multiplies_u8_by_s8(find_target(scheme.target)):
        others = [target.name for target in targets().values() if multiplies_u8_by_s8(target)]
        raise UsageError(
            f"--reduce-range needs --target {' or '.join(others)}; {scheme.target} defines its weight range",
            hint="omit it",
        )
    return scheme.with_(saturation=REDUCE_RANGE) if options.reduce_range else scheme


def _suit_runtime(scheme: Scheme, runtime: str) -> Scheme:
    """Return a scheme with the options that suit the kernels of a runtime."""
    target = find_target(scheme.target)
    if runtime == AUTO or "runtime" in target.fixed or not isinstance(target, RuntimeRules):
        return scheme
    if runtime in target.runtimes:
        scheme = scheme.with_(runtime=runtime)
    return scheme.with_(float_outputs=True) if find_runtime(runtime).fuses_float_ops else scheme


def choose_plan(
    options: Options, graph: Graph, scheme: Scheme, trained: Mapping[Edge, Range] = MappingProxyType({})
) -> Plan:
    """Return the given plan or annotate the graph, and write ``save_plan``.

    Args:
        options: options of the quantization.
        graph: prepared float graph.
        scheme: scheme of `choose_scheme`.
        trained: ranges of quantization-aware training; empty without it. Without calibration data, layers without
            such ranges stay float.

    Raises:
        InputError: the plan cannot be read, or references a node that is not in the graph.
    """
    plan = options.stated_plan
    if plan is None:
        target = find_target(scheme.target)
        slow = {}
        if isinstance(target, RuntimeRules) and not scheme.weights_only:
            slow = as_decisions(target.slow_nodes(graph, options.runtime), COST)
        if trained:
            scheme = scheme.with_(bias_correction=False)  # training has corrected the biases
        only_trained = trained and options.calibration is None and not scheme.weights_only
        plan = plan_trained(graph, scheme, trained, slow) if only_trained else annotate(graph, scheme, float_nodes=slow)
    else:
        plan.require_nodes(graph)
        _require_convertible(graph, plan)
        if plan.graph and plan.graph != graph_digest(graph):
            options.on_message("the plan was made for another graph, which has nodes of the same names")
    save_plan(options, graph, plan)
    return plan


def _require_convertible(graph: Graph, plan: Plan) -> None:
    """Check that a plan from a file, which a user may have edited, can be converted.

    Raises:
        InputError: the decisions of the plan contradict each other or the graph.
    """
    try:
        convert_uncalibrated(graph, plan)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        raise InputError(f"the plan does not fit the graph: {reason}", hint="compute it again") from None


def check_plan(graph: Graph, plan: Plan) -> None:
    """Convert a graph with ranges that are not calibrated: the graph alone decides about most failures.

    Args:
        graph: prepared float graph.
        plan: plan of ``graph``.

    Raises:
        GraphError: the plan does not fit the graph.
        UnavailableError: an op has no form in the target.
    """
    quantized, target = convert_uncalibrated(graph, plan), find_target(plan.scheme.target)
    if isinstance(target, WrittenByConverter):
        target.check_form(quantized)


def convert_uncalibrated(graph: Graph, plan: Plan) -> Graph:
    """Return the quantized graph of a plan, with ranges that are not calibrated.

    Raises:
        GraphError, UnavailableError: see `check_plan`.
    """
    if plan.scheme.weights_only:
        return with_int8_weights(graph, plan)
    try:
        return find_target(plan.scheme.target).convert(graph, plan, uncalibrated_ranges(plan))
    except QuantkitError:
        raise
    except Exception as error:
        # Targets expect valid nodes: an invalid one is the cause of any other error.
        invalid = find_invalid_node(graph)
        if invalid is None:
            raise
        raise GraphError(invalid.message, hint=invalid.hint) from error


def uncalibrated_ranges(plan: Plan) -> Ranges:
    """Return the range -1 .. 1 for every quantized edge of a plan."""
    return Ranges(dict.fromkeys(plan.activations, Range(-1.0, 1.0)))


def save_plan(options: Options, graph: Graph, plan: Plan) -> None:
    """Write the plan to ``save_plan`` if that is given."""
    if options.save_plan is not None:
        with_digest(plan, graph).save(options.save_plan)


def with_digest(plan: Plan, graph: Graph) -> Plan:
    """Return the plan with the digest of its float graph."""
    return replace(plan, graph=graph_digest(graph))


def _base_scheme(options: Options) -> Scheme:
    plan = options.stated_plan
    if plan is not None:
        for name in ("scheme", "observer", "reduce_range", "weights_only", "max_drop"):
            value = getattr(options, name)
            if value is not None and value is not False:
                raise UsageError(
                    f"--{name.replace('_', '-')} contradicts --plan, which already contains that decision",
                    hint="omit one of them; a plan file can be edited",
                )
        return plan.scheme
    if options.scheme is None:
        return Scheme.for_target(options.target or DEFAULT_TARGET)
    if isinstance(options.scheme, Mapping):
        return Scheme.from_json(options.scheme)
    return options.scheme if isinstance(options.scheme, Scheme) else Scheme.load(expand_user(options.scheme))
