"""Preparation of the samples of a dataset, on several threads, while a runtime computes.

    samples -> threads: read, decode, resize, normalize -> queue in the order of the dataset -> batches

The decoder, the resize and the runtime release the interpreter lock, so that they run at the same time. The order, the
values and the rejected samples do not depend on the number of threads.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, islice
from time import perf_counter, thread_time
from typing import NamedTuple, TypeVar

import numpy as np

from quantkit.arguments import public
from quantkit.cores import available_cores
from quantkit.data.dataset import Dataset, Sample
from quantkit.data.pipeline import InputPipeline, Prepared
from quantkit.errors import InputError
from quantkit.ir.tensor import Array
from quantkit.runtimes.session import TensorInfo

Item = TypeVar("Item")
Result = TypeVar("Result")

# Samples of one run with their prepared forms, one form for each model.
PreparedSample = tuple[Sample, list[Prepared]]

MAX_THREADS = 8
# Samples that are prepared ahead of the consumer, in addition to those in the threads.
AHEAD = 16


class Batch(NamedTuple):
    """Samples of one run; `feeds` is padded to the batch size of the model."""

    feeds: dict[str, Array]
    samples: tuple[Sample, ...]


@dataclass
class InputTimes:
    """Times of an input pipeline.

    Attributes:
        cpu_seconds: CPU time of the preparation, over all threads.
        waiting_seconds: time that the consumer was idle for lack of samples.
    """

    cpu_seconds: float = 0.0
    waiting_seconds: float = 0.0

    def rates(self, num_samples: int, seconds: float) -> dict[str, float]:
        """Return the rates with and without overlap, and the fraction of the time that the consumer waited.

        Without overlap, the consumer would prepare the samples itself instead of waiting for them.

        Args:
            num_samples: number of samples.
            seconds: duration, from the first sample to the last one.
        """
        serial_seconds = seconds - self.waiting_seconds + self.cpu_seconds
        return {
            "samples_per_second": num_samples / seconds,
            "samples_per_second_without_overlap": num_samples / serial_seconds,
            "waiting_fraction": min(self.waiting_seconds / seconds, 1.0),
        }


def describe_rates(rates: Mapping[str, float]) -> str:
    """Return the rates of `InputTimes.rates` in one line.

    >>> describe_rates(InputTimes(cpu_seconds=4.0, waiting_seconds=1.0).rates(100, 10.0))
    '10.0 samples/s (about 7.7 without overlap), runtime idle 10 %'
    """
    rate, serial_rate, fraction = rates.values()
    return f"{rate:.1f} samples/s (about {serial_rate:.1f} without overlap), runtime idle {100 * fraction:.0f} %"


class _Rejection(NamedTuple):
    """Sample that cannot be prepared.

    Attributes:
        name: name for the list of rejected samples.
        reason: reason for the list of rejected samples.
        error: the same for a caller without such a list.
    """

    name: str
    reason: str
    error: InputError


def default_threads() -> int:
    """Return the number of threads that prepare samples: the cores of this process, at most `MAX_THREADS`."""
    return min(available_cores(), MAX_THREADS)


@public
def prepare_samples(
    samples: Iterable[Sample],
    pipelines: Sequence[InputPipeline],
    rejected: dict[str, str] | None = None,
    *,
    require_finite: bool = False,
    threads: int | None = None,
    times: InputTimes | None = None,
) -> Iterator[PreparedSample]:
    """Prepare each sample for every model, in order; an image is decoded once.

    Args:
        samples: samples of a dataset.
        pipelines: one pipeline for each model.
        rejected: receives the reason for each image that cannot be read, by name; if None such an
            image is an error.
        require_finite: reject arrays with NaN or infinite values as well.
        threads: threads that prepare images ahead of the consumer (default: the cores); 0 prepares each image on
            request. Arrays are always prepared on request.
        times: receives the times of the preparation.

    Raises:
        InputError: an image cannot be read, and there is no `rejected`.
        UsageError: an input does not take the data.
    """
    for sample, prepared in _prepare_all(samples, pipelines, require_finite, threads, times):
        if not isinstance(prepared, _Rejection):
            yield sample, prepared
        elif rejected is None:
            raise prepared.error
        else:
            rejected[prepared.name] = prepared.reason


@public
def prepare_batches(
    samples: Iterable[Sample],
    pipelines: Sequence[InputPipeline],
    size: int,
    rejected: dict[str, str],
    *,
    threads: int | None = None,
    times: InputTimes | None = None,
) -> Iterator[list[PreparedSample]]:
    """Prepare samples in batches of consecutive samples.

    The samples of a batch depend on their positions only: a rejected sample leaves a gap. So the batches of a part of
    the dataset that begins at a multiple of ``size`` equal those of the whole dataset.

    Args:
        samples: samples of a dataset.
        pipelines: one pipeline for each model.
        size: number of samples per batch, rejected ones included.
        rejected: receives the reason for each sample that cannot be prepared, by name.
        threads, times: see `prepare_samples`.

    Raises:
        UsageError: an input does not take the data.
    """
    results = _prepare_all(samples, pipelines, False, threads, times)
    while chunk := list(islice(results, size)):
        rejected |= {result.name: result.reason for _, result in chunk if isinstance(result, _Rejection)}
        yield [(sample, result) for sample, result in chunk if not isinstance(result, _Rejection)]


@public
def batches(
    dataset: Dataset,
    pipeline: InputPipeline,
    size: int = 1,
    rejected: dict[str, str] | None = None,
    *,
    require_finite: bool = False,
    times: InputTimes | None = None,
) -> Iterator[Batch]:
    """Prepare a dataset in batches of samples of equal shapes.

    Args:
        dataset: the data.
        pipeline: preparation for the model.
        size: number of samples per batch where the model takes any number.
        rejected, require_finite, times: see `prepare_samples`.

    Raises:
        InputError, UsageError: see `prepare_samples`.
    """
    read = dataset.read(pipeline.rank)
    samples: deque[Sample] = deque()

    def prepare() -> Iterator[Prepared]:
        for sample, (form,) in prepare_samples(read, [pipeline], rejected, require_finite=require_finite, times=times):
            samples.append(sample)
            yield form

    for batch in pipeline.split(prepare(), size):
        yield Batch(pipeline.stack(batch), tuple(samples.popleft() for _ in batch))


def map_ahead(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the result of a function for each item, in order, computed by threads ahead of the consumer.

    Args:
        function: function of one item; its errors are raised at the position of the item.
        items: items, which are read in the thread of the consumer.
        threads: number of threads, at least 1.
    """
    pool = ThreadPoolExecutor(threads, "quantkit-input")
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > AHEAD + threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _prepare_all(
    samples: Iterable[Sample],
    pipelines: Sequence[InputPipeline],
    require_finite: bool,
    threads: int | None,
    times: InputTimes | None,
) -> Iterator[tuple[Sample, list[Prepared] | _Rejection]]:
    """Yield each sample with its prepared forms, or with the reason for its rejection."""
    times = InputTimes() if times is None else times

    def prepare(sample: Sample) -> tuple[Sample, list[Prepared] | _Rejection, float]:
        start = thread_time()
        return sample, _prepare(sample, pipelines, require_finite), thread_time() - start

    iterator = iter(samples)
    first = next(iterator, None)
    if first is None:
        return
    threads = default_threads() if threads is None else threads
    items = chain([first], iterator)
    results = map_ahead(prepare, items, threads) if threads and first.arrays is None else map(prepare, items)
    while True:
        start = perf_counter()
        result = next(results, None)
        times.waiting_seconds += perf_counter() - start
        if result is None:
            return
        sample, prepared, seconds = result
        times.cpu_seconds += seconds
        yield sample, prepared


def _prepare(sample: Sample, pipelines: Sequence[InputPipeline], require_finite: bool) -> list[Prepared] | _Rejection:
    """Prepare one sample for every model.

    Raises:
        UsageError: an input does not take the data.
    """
    if sample.arrays is not None:
        reason = _not_finite_reason(sample.arrays, pipelines[0].inputs) if require_finite else ""
        if reason:
            error = InputError(f"sample {sample}: {reason}", hint="remove the sample")
            return _Rejection(f"sample {sample}", reason, error)
        if sample.path is not None:
            pipelines = [replace(pipeline, source=str(sample)) for pipeline in pipelines]
        # Versions of a model may differ in the order of their axes: the array has the axes of one of them.
        is_accepted = len(pipelines) > 1 and any(pipeline.accepts(sample.arrays) for pipeline in pipelines)
        return [pipeline.prepare_arrays(sample.arrays, transpose=is_accepted) for pipeline in pipelines]
    decoded: dict[tuple[str, int], bytes | Array] = {}
    try:
        encoded = sample.read_image()
        for pipeline in pipelines:
            if pipeline.decoding not in decoded:
                decoded[pipeline.decoding] = pipeline.decode(encoded, str(sample))
    except InputError as error:
        return _Rejection(str(sample), error.message, error)
    return [pipeline.prepare_image(decoded[pipeline.decoding]) for pipeline in pipelines]


def _not_finite_reason(arrays: Mapping[str, Array], inputs: Sequence[TensorInfo]) -> str:
    """Return which array is not finite in the type of its input; empty if all arrays are finite."""
    dtypes = {info.name: info.dtype.numpy for info in inputs if info.dtype.is_float}
    default = next(iter(dtypes.values()), np.dtype(np.float32))
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        with np.errstate(over="ignore"):
            values = array.astype(dtypes.get(name, default), copy=False)
        num_nan, num_infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        if num_nan or num_infinite:
            kind = f"NaN in {num_nan}" if num_nan else f"infinity in {num_infinite}"
            return f"{kind} of {values.size} values" + (f" of {name!r}" if name else "")
    return ""
