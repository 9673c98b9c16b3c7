"""Float fallbacks for layers that lose precision, if the outputs are then nearer to the float model."""

from collections.abc import Iterator, Mapping

from quantkit.formats import onnx
from quantkit.quantization.lost_channels import find_lossy_layers
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import Trials

# Largest fraction of the layers that may become float.
MAX_LAYERS = 0.25
# Number of layers that may become float in any case.
MIN_LAYERS = 2
# Largest fraction of the loss that may remain with layers in float.
GAIN = 0.75
# The same for products of two activations, whose float kernels need no quantization of their inputs.
PRODUCT_GAIN = 0.9
# Number of layers, those with the noisiest inputs, that are tried one after the other.
NUM_NOISY_LAYERS = 4


def exclude_lossy_layers(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion without layers that lose channels; unchanged if that does not reduce the loss much."""
    reasons = find_lossy_layers(conversion.plan, conversion.ranges)
    if not reasons or len(reasons) > MAX_LAYERS * len(conversion.plan.patterns) or trials.is_good(conversion):
        return conversion
    return _try_float(conversion, reasons, GAIN, trials, options)


def exclude_products(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion of an ONNX graph without products of two activations if that reduces the loss."""
    products = [pattern.layer for pattern in conversion.plan.patterns if not pattern.weights]
    if conversion.graph.dialect != onnx.DIALECT or not products or trials.is_good(conversion):
        return conversion
    reason = "a product of two activations loses precision in int8"
    return _try_float(conversion, dict.fromkeys(products, reason), PRODUCT_GAIN, trials, options)


def exclude_noisy_layers(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion of an ONNX graph without the layers whose quantized inputs cause most of the loss.

    The layers are tried one after the other, those with the noisiest inputs first. TensorFlow graphs have no such
    trials: a float layer between int8 layers costs more there.
    """
    if conversion.graph.dialect != onnx.DIALECT:
        return conversion
    max_layers = max(MAX_LAYERS * sum(bool(pattern.weights) for pattern in conversion.plan.patterns), MIN_LAYERS)
    num_float = 0
    for layer, sqnr in list(_noisiest_layers(conversion))[:NUM_NOISY_LAYERS]:
        if num_float + 1 > max_layers or trials.is_good(conversion):
            break
        reasons = {layer: f"the int8 input has an SQNR of {sqnr:.0f} dB"}
        alternative = _try_float(conversion, reasons, GAIN, trials, options)
        num_float += alternative is not conversion
        conversion = alternative
    return conversion


def _noisiest_layers(conversion: Conversion) -> Iterator[tuple[str, float]]:
    """Yield layers and the SQNR of their noisiest input, the noisiest first."""
    sqnr = conversion.ranges.sqnr
    layers = {
        pattern.layer: min(sqnr[edge] for edge in pattern.inputs if edge in sqnr)
        for pattern in conversion.plan.patterns
        if any(edge in sqnr for edge in pattern.inputs)
    }
    yield from sorted(layers.items(), key=lambda item: item[1])


def _try_float(
    conversion: Conversion, reasons: Mapping[str, str], gain: float, trials: Trials, options: Options
) -> Conversion:
    alternative = conversion.keep_float(reasons)
    if not trials.is_better(alternative, conversion, gain):
        return conversion
    layer, reason = next(iter(reasons.items()))
    subject = f"{layer} stays" if len(reasons) == 1 else f"{layer} and {len(reasons) - 1} more stay"
    options.on_message(f"{subject} float: {reason}; the outputs are then nearer to the float model")
    return alternative
