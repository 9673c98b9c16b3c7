"""Choice of the observer of a fine-tuning by cross-validation: ranges before weights.

A training changes a range by a few percent. It cannot reach values that an observer cuts off, and no sample of the
calibration shows what its ranges do to the values of other samples:

    1. The samples of the calibration and those after them are split into blocks of consecutive samples.
    2. Each observer computes the ranges of all blocks but one, and a file with these ranges computes that one.
    3. The observer with the smallest loss over all blocks together gives the ranges. Its file has the same latency.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic

import numpy as np

from quantkit.data import Dataset
from quantkit.errors import QuantkitError
from quantkit.model import Model
from quantkit.progress import Progress
from quantkit.quantization.calibration import open_calibration_session
from quantkit.quantization.calibration.observation import Observation
from quantkit.quantization.fallback import ERROR, Loss
from quantkit.quantization.finetuning.report import MetricGain, RangeChoice
from quantkit.quantization.observers import observers
from quantkit.quantization.precision import policy
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.workflow.accuracy import open_conversion
from quantkit.quantization.workflow.calibration_run import compute_ranges
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.options import Options

# Number of blocks, and largest number of runs, which are evenly distributed over all samples.
NUM_BLOCKS, MAX_RUNS = 5, 64


def choose_ranges(
    model: Model,
    conversion: Conversion,
    data: Dataset,
    references: Sequence[FloatReference],
    options: Options,
    seconds: float,
) -> tuple[Conversion, RangeChoice | None]:
    """Return the conversion with the ranges of the best observer, and the gain; None if the ranges stay.

    Trained ranges, ranges with migrated scales and those of an observer of the caller stay.

    Args:
        model: float model.
        conversion: calibrated model.
        data: calibration dataset.
        references: float outputs of the calibration samples, and of other samples, if there are any.
        options: options of the caller.
        seconds: time budget; no observer is measured after it.

    Raises:
        UnavailableError, GraphError, InputError: no runtime can run the graph or its calibrated file.
    """
    reference = _join(references)
    is_fixed = options.observer is not None or conversion.ranges.provenance.trained or conversion.ranges.scales
    if is_fixed or len(reference.feeds) < 2:
        return conversion, None
    start, present = monotonic(), conversion.plan.scheme.observer
    blocks = [list(map(int, block)) for block in np.array_split(np.arange(len(reference.feeds)), NUM_BLOCKS)]
    blocks = [block for block in blocks if block]
    options.on_progress(Progress("comparing observers", 0))
    losses = {present: _cross_validate(conversion, present, reference, blocks, options)}
    before = losses[present][0]
    is_good = before.drop <= policy.GOOD_ERROR if before.kind == ERROR else before <= Loss(0.0, policy.GOOD_KL)
    names = [] if is_good else [name for name in observers() if name != present]
    for number, name in enumerate(names):
        if monotonic() - start > seconds:
            break
        options.on_progress(Progress("comparing observers", number + 1, len(names) + 1))
        try:
            losses[name] = _cross_validate(conversion, name, reference, blocks, options)
        except QuantkitError as error:
            options.on_message(f"warning: the observer {name} is not compared: {error.message}")
    candidates = (name for name, (loss, *_) in losses.items() if _is_smaller(loss, before))
    best = min(candidates, key=lambda name: losses[name][0], default=present)
    if best == present:
        return conversion, None
    gain = MetricGain.of_blocks(losses[present], losses[best], f"{len(reference)} samples, cross-validated")
    replacement = _with_observer(conversion, best)
    ranges, _ = compute_ranges(model, replacement.graph, replacement.plan, data, options)
    return replace(replacement, ranges=ranges), RangeChoice(best, gain)


def _is_smaller(loss: Loss, present: Loss) -> bool:
    """Return True if a loss is clearly smaller; few samples change their class, and most by chance."""
    return loss.drop <= present.drop and loss.distance < policy.MAX_CORRECTED_LOSS * present.distance


def _with_observer(conversion: Conversion, observer: str) -> Conversion:
    """Return the conversion whose plan names an observer; the ranges stay."""
    scheme = conversion.plan.scheme.with_(observer=observer)
    return replace(conversion, plan=replace(conversion.plan, scheme=scheme))


def _join(references: Sequence[FloatReference]) -> FloatReference:
    """Return the cached runs of all references, at most `MAX_RUNS`."""
    joined = replace(
        references[-1],
        feeds=[feeds for each in references for feeds in each.feeds],
        outputs=[outputs for each in references for outputs in each.outputs[: len(each.feeds)]],
        classes=[classes for each in references for classes in each.classes[: len(each.feeds)]],
        uncached=None,
        is_classifier=references[-1].has_class_scores,
    )
    count = len(joined.feeds)
    return joined.select(sorted({round(index) for index in np.linspace(0, count - 1, min(count, MAX_RUNS))}))


def _cross_validate(
    conversion: Conversion, observer: str, reference: FloatReference, blocks: Sequence[Sequence[int]], options: Options
) -> list[Loss]:
    """Return the loss of all blocks together, and that without each block."""
    conversion = _with_observer(conversion, observer)
    runs = []
    for ranges, block in zip(_observe(conversion, reference, blocks, options), blocks, strict=True):
        samples = reference.select(block)
        with open_conversion(replace(conversion, ranges=ranges)) as session:
            runs.append(list(samples.runs(session)))
    omitted = (None, *range(len(blocks)))
    return [
        reference.loss(reference.measure(run for number, each in enumerate(runs) if number != other for run in each))
        for other in omitted
    ]


def _observe(
    conversion: Conversion, reference: FloatReference, blocks: Sequence[Sequence[int]], options: Options
) -> Iterator[Ranges]:
    """Yield the ranges of the samples outside of each block, all observed in the same runs of the float graph."""
    graph, plan = conversion.graph, conversion.plan
    with open_calibration_session(graph, plan, options.runtime, varies=reference.varies) as session:
        observations = [Observation(plan, session, graph) for _ in blocks]
        for number, block in enumerate(blocks):
            for run in block:
                feeds, count = reference.feeds[run], len(reference.classes[run])
                outputs = session.run(feeds)
                for other, observation in enumerate(observations):
                    if other != number:
                        observation.observe(feeds, outputs, count)
    for observation in observations:
        yield observation.ranges()
