"""Trials of alternatives on calibration samples: the loss of a conversion, and its comparison with another one."""

from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.formats.temporary import temporary_folder
from quantkit.quantization.fallback import Loss
from quantkit.quantization.workflow.accuracy import measure_accuracy
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference

# Number of runs of a trial.
NUM_RUNS = 16
# Fidelity that needs no alternative: KL divergence of classifiers, error of other outputs.
GOOD_KL, GOOD_ERROR = 0.01, 0.03


def measure_loss(conversion: Conversion, reference: FloatReference) -> Loss:
    """Return the distance of a quantized model from the float model.

    Args:
        conversion: quantized model.
        reference: outputs of the float model.

    Raises:
        QuantkitError: no runtime can run the model.
    """
    with temporary_folder() as folder:
        file = folder / f"trial{conversion.target.suffixes[0]}"
        conversion.write(file)
        metrics = measure_accuracy(file, conversion, reference).metrics
    assert metrics is not None, "a measured accuracy has metrics"
    if isinstance(metrics, OutputSqnr):
        return Loss(metrics.error, metrics.error)
    agreement, kl_divergence = metrics.agreement, metrics.kl_divergence
    return Loss(1 - agreement.value if agreement else 1.0, float("inf") if kl_divergence is None else kl_divergence)


def is_good(loss: Loss) -> bool:
    """Return whether a loss needs no alternative."""
    return (loss.drop == 0 and loss.kl_divergence <= GOOD_KL) or loss.drop == loss.kl_divergence <= GOOD_ERROR


def is_better(loss: Loss, default: Loss, most: float) -> bool:
    """Return whether a loss is at most a fraction ``most`` of the default one."""
    return loss.drop <= default.drop and loss.kl_divergence < most * default.kl_divergence
