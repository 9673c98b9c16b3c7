"""First half of a quantization of a model that was trained with fake quantization: its ranges are known."""

from typing import Protocol, runtime_checkable

from quantkit.errors import UsageError
from quantkit.model import Model
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.options import ORIGINAL, Options, check_fallback, check_output
from quantkit.quantization.workflow.planning import save_plan

# Options that the training has fixed.
_FIXED = (
    *("scheme", "plan", "ranges", "calibration", "observer", "recipe", "finetune"),
    *("inputs", "outputs", "signature", "tags", "checkpoint", "input_shapes"),
    *("weights_only", "uint8_input", "reduce_range", "random_weights"),
)


@runtime_checkable
class TrainedModel(Protocol):
    """Model whose weights and ranges were trained with fake quantization."""

    def trained_conversion(self) -> tuple[Model, Conversion]:
        """Return the float model, and the calibrated model with the trained weights and ranges."""


def convert_trained_model(trained: TrainedModel, options: Options) -> tuple[Model, Conversion]:
    """Return the float model and the conversion of a trained model.

    Raises:
        UsageError: an option contradicts the training.
        InputError: the weights are not finite, or the output cannot be written.
    """
    for name in _FIXED:
        value = getattr(options, name)
        if value is not None and value is not False:
            raise UsageError(
                f"{name} has no effect on a quantization-aware model, whose training has fixed it",
                hint=f"omit {name}, or give the float model",
            )
    if options.float_parts != ORIGINAL:
        raise UsageError(
            "float_parts has no effect on a quantization-aware model, whose float layers keep their types",
            hint="omit float_parts, or give the float model",
        )
    model, conversion = trained.trained_conversion()
    if options.target not in (None, conversion.target.name):
        raise UsageError(
            f"the model is quantization-aware for target {conversion.target.name!r}, not {options.target!r}",
            hint=f"call quantization_aware with target={options.target!r}, and train again",
        )
    check_fallback(options, conversion.target)
    if options.file is not None:
        check_output(conversion.target, options.file)
    save_plan(options, conversion.graph, conversion.plan)
    if options.save_ranges is not None:
        conversion.ranges.save(options.save_ranges)
    return model, conversion
