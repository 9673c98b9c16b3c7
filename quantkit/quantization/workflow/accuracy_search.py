"""``max_drop``: search for the layers that must stay in float to keep the accuracy."""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from quantkit.errors import CheckError
from quantkit.quantization.fallback import Fallback, Loss, search
from quantkit.quantization.workflow.accuracy import measure_loss
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.doubts import barely_vary
from quantkit.quantization.workflow.error_signals import rank_layers
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import Options


def search_fallbacks(conversion: Conversion, reference: FloatReference, options: Options, max_drop: float) -> Fallback:
    """Return the layers that must stay in float for a drop of at most ``max_drop``.

    Args:
        conversion: with all layers quantized.
        reference: outputs of the float model.
        options: options of the quantization; the state of an interrupted search is saved next to the output.
        max_drop: largest accepted drop, a fraction.

    Raises:
        CheckError: there are no finite float outputs to measure the drop on.
    """
    _require_outputs(conversion, reference, max_drop)
    _announce_metric(reference, options)
    state = options.state_file(f"{_state_key(conversion, reference)}.fallback")

    def measure(layers: frozenset[str]) -> Loss:
        return measure_loss(conversion.exclude(layers), reference)

    if state is not None and state.exists():
        options.on_message(f"resuming from the search state in {state}")
    with _announce_state(state, options):
        fallback = search(
            [pattern.layer for pattern in conversion.plan.patterns],
            measure,
            max_drop=max_drop,
            seconds=options.seconds,
            suspects=_suspects(conversion),
            rank=lambda: rank_layers(conversion, reference, options),
            state=state,
            on_progress=options.on_progress,
        )
    if fallback.is_complete and state is not None:
        state.unlink(missing_ok=True)
    return fallback


@contextmanager
def _announce_state(state: Path | None, options: Options) -> Iterator[None]:
    """Report the state file of an interrupted search."""
    try:
        yield
    except KeyboardInterrupt:
        if state is not None and state.exists():
            options.on_message(f"search state saved to {state}; run the same command to resume")
        raise


def _require_outputs(conversion: Conversion, reference: FloatReference, max_drop: float) -> None:
    if not len(reference):
        reason = "is missing"
    elif reference.is_never_finite:
        reason = "contains NaN or infinity for every sample"
    elif len(reference) > 1 and barely_vary(reference):
        reason = "barely varies over the samples: check the preprocessing (--input-mean, --input-std)"
    else:
        return
    raise CheckError(
        f"cannot measure --max-drop {max_drop:g}: the output of the float model {reason}",
        hint="; ".join(conversion.ranges.warnings) or "run quantkit compare to find the layer",
    )


def _announce_metric(reference: FloatReference, options: Options) -> None:
    top1 = reference.top1
    if reference.task is not None:
        metric = f"1 - {reference.task.metric}, with the float model as reference"
    elif top1 is not None:
        metric = f"top-1 accuracy of {reference.score_output!r} (float model: {top1})"
    elif reference.has_class_scores:
        metric = "agreement with the float model"
    else:
        metric = "the error of the outputs (0.1 is 20 dB, 0.01 is 40 dB)"
    options.on_message(f"--max-drop limits {metric}, measured on {reference.source}")


def _state_key(conversion: Conversion, reference: FloatReference) -> str:
    """Return the digest of this graph, these ranges and these samples."""
    provenance = conversion.ranges.provenance
    key = " ".join((provenance.graph, provenance.data, conversion.plan.digest, reference.digest))
    return blake2b(key.encode(), digest_size=8).hexdigest()


def _suspects(conversion: Conversion) -> list[str]:
    """Return the layers with a calibration warning."""
    edges = {warning.partition(": ")[0] for warning in conversion.ranges.warnings}
    return [pattern.layer for pattern in conversion.plan.patterns if edges & {str(pattern.output), str(pattern.input)}]
