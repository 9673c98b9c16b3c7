"""Float fallbacks for layers whose tensors lose channels, if the outputs are then nearer to the float model."""

from collections.abc import Mapping

from quantkit.errors import QuantkitError
from quantkit.progress import Progress
from quantkit.quantization.lost_channels import find_lossy_layers
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import NUM_RUNS, is_better, is_good, measure_loss

# Largest fraction of the layers that may become float.
MAX_LAYERS = 0.25
# Largest fraction of the loss with all layers in int8 that may remain.
GAIN = 0.75


def exclude_lossy_layers(conversion: Conversion, reference: FloatReference, options: Options) -> Conversion:
    """Return the conversion without layers that lose channels; unchanged if that does not reduce the loss much.

    A scheme, plan or ranges of the caller are kept.

    Args:
        conversion: with all layers that the plan quantizes.
        reference: outputs of the float model on the calibration samples.
        options: options of the caller.
    """
    is_stated = options.scheme is not None or options.plan is not None
    if is_stated or not reference.feeds or reference.is_never_finite:
        return conversion
    reasons = find_lossy_layers(conversion.plan, conversion.ranges)
    if not reasons or len(reasons) > MAX_LAYERS * len(conversion.plan.patterns):
        return conversion
    alternative = conversion.keep_float(reasons)
    if not _is_nearer(alternative, conversion, reference.first_runs(NUM_RUNS), options):
        return conversion
    options.on_message(_describe(reasons))
    return alternative


def _is_nearer(alternative: Conversion, conversion: Conversion, samples: FloatReference, options: Options) -> bool:
    try:
        options.on_progress(Progress("measuring layers that lose channels", 0, 2, "int8"))
        loss = measure_loss(conversion, samples)
        if is_good(loss):
            return False
        options.on_progress(Progress("measuring layers that lose channels", 1, 2, "float"))
        return is_better(measure_loss(alternative, samples), loss, GAIN)
    except QuantkitError:
        return False  # the accuracy of the result has the reason


def _describe(reasons: Mapping[str, str]) -> str:
    layer, reason = next(iter(reasons.items()))
    subject = f"{layer} stays" if len(reasons) == 1 else f"{layer} and {len(reasons) - 1} more stay"
    return f"{subject} float: {reason}; the outputs are then nearer to the float model"
