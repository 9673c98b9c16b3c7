"""First half of a quantization: from a model and data to a plan and ranges."""

from quantkit.data import Dataset
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.formats import onnx
from quantkit.model import Model
from quantkit.progress import Progress
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.targets import find_target
from quantkit.quantization.targets.advice import warn_of_ranges
from quantkit.quantization.targets.capabilities import NeedsPackage
from quantkit.quantization.workflow.calibration_run import compute_ranges
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.costly_kernels import exclude_costly_kernels
from quantkit.quantization.workflow.custom_ops import cut_custom_ops, find_custom_ops
from quantkit.quantization.workflow.lossy_layers import (
    exclude_drifting_layers,
    exclude_last_layers,
    exclude_lossy_layers,
    exclude_noisy_layers,
    exclude_products,
)
from quantkit.quantization.workflow.observer_choice import (
    choose_bias_correction,
    choose_observer,
    choose_scales,
)
from quantkit.quantization.workflow.options import Options, require_ranges
from quantkit.quantization.workflow.planning import check_plan, choose_plan, save_plan
from quantkit.quantization.workflow.preparation import find_float_parts, prepare_float_graph
from quantkit.quantization.workflow.table_choice import store_tables
from quantkit.quantization.workflow.trials import Trials
from quantkit.quantization.workflow.zero_point_choice import add_zero_points, choose_zero_points

# Custom ops that a message names.
MAX_CUSTOM_OPS = 3
# Alternatives that are measured on calibration samples, in this order, for a conversion that is not good.
CHOICES = (
    choose_observer,
    choose_scales,
    exclude_lossy_layers,
    exclude_last_layers,
    exclude_products,
    choose_bias_correction,
    exclude_noisy_layers,
    exclude_drifting_layers,
)


def calibrate_model(
    model: Model, scheme: Scheme, data: Dataset | None, held_out: Dataset | None, options: Options
) -> tuple[Model, Conversion, Trials]:
    """Return the float model, its calibrated conversion, and the trials on the calibration samples.

    Args:
        model: float model of `load_float_model`.
        scheme: scheme that the options select.
        data: calibration dataset; None with ranges of the caller, or with weights only.
        held_out: held-out dataset; None if it is not given.
        options: options of the caller.

    Raises:
        UsageError, InputError, UnavailableError: see `quantize`.
    """
    source_graph = model.graph
    require_ranges(model.graph, options, scheme)
    options.on_progress(Progress("preparing the graph", 0))
    model, graph, scheme, trained, trace = prepare_float_graph(model, options, scheme, data or held_out)
    if trace is not None and options.trace is not None:
        trace.save(options.trace)
    whole, graph = graph, cut_custom_ops(graph) if graph.dialect == onnx.DIALECT and data is not None else graph
    if graph is not whole:
        custom = ", ".join(f"{name} ({whole[name].op})" for name in find_custom_ops(whole)[:MAX_CUSTOM_OPS])
        options.on_message(
            f"no runtime has a kernel for {custom}: the part before it is calibrated and measured, all nodes after it "
            "stay float; --custom-op-library FILE (quantkit.custom_op_library in Python) registers a library of kernels"
        )
    if model.has_random_weights:
        options.on_message(f"{model.name}: {RANDOM_WEIGHTS_NOTE}")
    plan = choose_plan(options, graph, scheme, trained)
    target = find_target(plan.scheme.target)
    if isinstance(target, NeedsPackage):
        target.check_installation(weights_only=plan.scheme.weights_only)
    if warning := warn_of_ranges(target, graph, plan):
        options.on_message(f"warning: {warning}")
    if data is not None or held_out is not None:
        check_plan(graph, plan)
    ranges, reference = compute_ranges(model, graph, plan, data, options, trained)
    trials = Trials(reference, options)
    parts = find_float_parts(model, options, scheme)
    rest = None if graph is whole else whole
    conversion = Conversion(
        graph, plan, ranges, options.fallback, source=source_graph, float_parts=parts, whole=rest, trace=trace
    ).with_kernels()
    if not trained:
        conversion = trials.improve(conversion, (exclude_costly_kernels, add_zero_points), stops_if_good=False)
        conversion = trials.improve(conversion, CHOICES)
        padded = trials.improve(conversion, (choose_zero_points,), stops_if_good=False)
        if padded is not conversion:
            # Scales that lost to chance among the noise of missing zero points may win now.
            padded = trials.improve(padded, (choose_scales, choose_bias_correction))
        conversion = trials.improve(padded, (store_tables,), stops_if_good=False)
    if conversion.plan is not plan:
        save_plan(options, graph, conversion.plan)
    if conversion.ranges is not ranges and options.save_ranges is not None:
        conversion.ranges.save(options.save_ranges)
    return model, conversion, trials
