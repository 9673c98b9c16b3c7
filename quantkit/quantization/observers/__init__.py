"""Observers: estimators of a range from the values of a tensor, found by name.

An installed package adds an observer through an entry point of the group ``quantkit.observers``:

    [project.entry-points."quantkit.observers"]
    toy = "toy_observer:toy"
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature

from quantkit.errors import UsageError
from quantkit.quantization.observers.error_search import Entropy, MeanSquaredError
from quantkit.quantization.observers.histogram import BINS, Histogram, Percentile
from quantkit.quantization.observers.observer import MinMax, MovingAverage, Observer
from quantkit.quantization.spec import Spec
from quantkit.registry import Registry

__all__ = [
    "BINS",
    "REGISTRY",
    "Entropy",
    "Histogram",
    "MeanSquaredError",
    "MinMax",
    "MovingAverage",
    "Observer",
    "ObserverType",
    "Percentile",
    "create_observer",
    "find_observer",
    "observer",
    "observers",
]


@dataclass(frozen=True)
class ObserverType:
    """Named way to choose a range.

    Attributes:
        name: value of ``--observer`` and of a scheme.
        create: creates an observer for tensors of a spec; called with the number in brackets too,
            where there is one.
        takes_number: True if the name may be followed by a number, as in ``percentile(99.9)``.
    """

    name: str
    create: Callable[..., Observer]
    takes_number: bool


def observer(function: Callable[..., Observer]) -> ObserverType:
    """Make an observer type of a function ``(spec)`` or ``(spec, number=default)``.

    The function's name is the observer's name. An installed package adds the result through an
    entry point of the group ``quantkit.observers``.
    """
    return ObserverType(function.__name__, function, len(signature(function).parameters) > 1)


@observer
def min_max(spec: Spec) -> Observer:
    """Choose the extremes."""
    return MinMax()


@observer
def moving_average(spec: Spec, number: float = 0.9) -> Observer:
    """Average the extremes of the arrays, with the number as momentum."""
    return MovingAverage(number)


@observer
def percentile(spec: Spec, number: float = 99.99) -> Observer:
    """Choose the range that holds the number as percentage of the values."""
    return Percentile(number)


@observer
def entropy(spec: Spec) -> Observer:
    """Minimize the Kullback-Leibler divergence of the quantized values."""
    return Entropy(spec)


@observer
def mean_squared_error(spec: Spec) -> Observer:
    """Minimize the mean squared error of the quantized values."""
    return MeanSquaredError(spec)


REGISTRY = Registry("observer", ObserverType, (min_max, moving_average, percentile, entropy, mean_squared_error))
_TEXT = re.compile(r"(\w+)\((\d+(?:\.\d+)?)\)")


def observers() -> Mapping[str, ObserverType]:
    """Return all observer types by name."""
    return REGISTRY.objects()


def find_observer(text: str) -> tuple[ObserverType, float | None]:
    """Return the observer type and the number of a text such as ``min_max`` or ``percentile(99.9)``.

    Raises:
        UsageError: the name is not registered, or the observer takes no number.
        UnavailableError: a plugin of that name cannot be loaded.
    """
    match = _TEXT.fullmatch(text)
    kind = REGISTRY.find(match[1] if match else text)
    if match and not kind.takes_number:
        raise UsageError(f"the observer {kind.name} takes no number", hint=f"write {kind.name}")
    return kind, float(match[2]) if match else None


def create_observer(text: str, spec: Spec) -> Observer:
    """Create the observer of a text for tensors of a spec.

    Raises:
        UsageError: as `find_observer`, or the number is out of bounds.
        UnavailableError: as `find_observer`.
    """
    kind, number = find_observer(text)
    return kind.create(spec) if number is None else kind.create(spec, number)
