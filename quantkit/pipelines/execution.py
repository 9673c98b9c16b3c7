"""Execution of pipelines: elements of any stage, their number, and the rate of the whole."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from time import perf_counter
from typing import Any

from quantkit.errors import InputError, QuantkitError, one_line
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.pipelines.bridge import to_dataset
from quantkit.pipelines.stages import element_shapes, element_types, root_of
from quantkit.runtimes.tensorflow_library import import_tensorflow

Clock = Callable[[], float]
# Number of elements between two looks at the clock while elements are counted.
_CHUNK = 64
_NAMES = re.compile(
    r"\{\{.*?\}\}\s*|\s*\[Op:.*|Error in user-defined function passed to \w+:\d+ transformation with iterator: [^ ]+ "
)


class Execution:
    """Runs datasets given as graphs; elements are tuples of NumPy arrays.

    Args:
        clock: source of the time in seconds.
    """

    def __init__(self, clock: Clock = perf_counter) -> None:
        self._tf = tf = import_tensorflow()
        self._clock = clock

        @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
        def advance(iterator: Any, count: Any) -> None:
            """Take elements from an iterator inside of TensorFlow, as the training loop of Keras does."""
            for _ in tf.range(count):
                iterator.get_next()

        self._advance = advance

    def dataset(self, graph: Graph, stage: Node | None = None) -> Any:
        """Return the dataset of a stage (default: the last one); elements are flat tuples."""
        stage = stage or root_of(graph)
        part = graph.with_endpoints([], [Edge(stage.name)]).without_unused_nodes()
        specs = zip(element_types(stage), element_shapes(stage), strict=True)
        spec = tuple(self._tf.TensorSpec(shape.dims, self._tf.as_dtype(dtype.numpy)) for dtype, shape in specs)
        return to_dataset(part, spec)

    def elements(self, graph: Graph, stage: Node | None = None) -> Iterator[tuple[Any, ...]]:
        """Return an iterator over the elements of one epoch."""
        iterator: Iterator[tuple[Any, ...]] = self.dataset(graph, stage).as_numpy_iterator()
        return iterator

    def check(self, graph: Graph) -> None:
        """Check that the first element of a pipeline can be computed.

        Raises:
            InputError: the pipeline fails.
        """
        with translate_errors():
            next(self.elements(graph), None)

    def take(self, graph: Graph, stage: Node, count: int) -> list[tuple[Any, ...]]:
        """Return the first elements of a stage."""
        with translate_errors():
            return list(islice(self.elements(graph, stage), count))

    def cardinality(self, graph: Graph, stage: Node) -> int | None:
        """Return the number of elements that follows from the stages without running them; None if it does not."""
        count = int(self.dataset(graph, stage).cardinality().numpy())
        return count if count >= 0 else None

    def count(self, graph: Graph, stage: Node, seconds: float) -> int | None:
        """Count the elements of a stage by running it; None if the time is over before the last one."""
        end = self._clock() + seconds
        count = 0
        with translate_errors():
            # Elements may have different shapes: a scalar stands for each.
            for chunk in self.dataset(graph, stage).map(lambda *parts: self._tf.constant(0)).batch(_CHUNK):
                count += len(chunk)
                if self._clock() > end:
                    return None
        return count

    def open(self, graph: Graph, fill_seconds: float = 0.0) -> Any:
        """Return the repeated dataset of a pipeline for several measurements; its caches stay filled between them.

        Args:
            graph: graph of a dataset with at least one element.
            fill_seconds: maximum time in which an epoch fills the caches; 0 without caches.

        Raises:
            InputError: the pipeline fails.
        """
        dataset = self.dataset(graph)
        end = self._clock() + fill_seconds
        with translate_errors():
            for _ in dataset if fill_seconds else ():
                if self._clock() > end:
                    break
        return dataset.repeat()

    def rate(self, dataset: Any, seconds: float, warmup: float) -> float:
        """Return the number of elements per second of a repeated dataset after a warm-up.

        Args:
            dataset: result of `open`.
            seconds: duration of the measurement.
            warmup: duration of the warm-up; the first two elements are always part of the warm-up.

        Raises:
            InputError: the pipeline fails.
        """
        with translate_errors():
            return self._rate(iter(dataset), seconds, warmup)

    def _rate(self, iterator: Any, seconds: float, warmup: float) -> float:
        next(iterator)
        self._take_elements(iterator, 1)  # traces the function
        step = 1
        started = self._clock()
        while (passed := self._clock() - started) < warmup:
            self._take_elements(iterator, step)
            # Chunks of about a tenth of the measurement.
            if (self._clock() - started - passed) * 10 < min(seconds, warmup):
                step *= 2
        count = 0
        started = self._clock()
        while (passed := self._clock() - started) < seconds or not count:
            self._take_elements(iterator, step)
            count += step
            if (self._clock() - started - passed) * 10 < seconds:
                step *= 2
        return count / (self._clock() - started)

    def _take_elements(self, iterator: Any, count: int) -> None:
        self._advance(iterator, self._tf.constant(count, self._tf.int64))  # a Python number is traced each time


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise the errors of a pipeline as `InputError`."""
    try:
        yield
    except QuantkitError:
        raise
    except Exception as error:  # TensorFlow raises errors of many types
        raise InputError(f"the pipeline fails: {describe(error)}", hint="check its files and functions") from error


def describe(error: Exception) -> str:
    """Return the message of an error in a pipeline without the names that TensorFlow adds."""
    return one_line(_NAMES.sub("", str(error))) or type(error).__name__
