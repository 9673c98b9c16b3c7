"""Verification of transforms: the model runs on the same inputs before and after each step.

An exact step may change the outputs by the rounding of the model (`rounding`). It is measured in the runtime and, for
models that the NumPy runtime can run in seconds, also in double precision, where smaller errors are found.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import prod
from typing import Any, TypeVar

import numpy as np

from quantkit.data import Dataset, InputPipeline, as_dataset, batches
from quantkit.data.pipeline import rank_of
from quantkit.errors import CheckError, GraphError, QuantkitError, UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType
from quantkit.model import Model
from quantkit.model.model import tensor_info
from quantkit.recipes.observed import ObservedGraph, Outputs, compared_fields
from quantkit.recipes.outputs import MIN_COSINE, NEXT, compare, widen
from quantkit.recipes.rounding import ULP, in_double, last_inputs, move_arrays, new_constants, rounding_ratio
from quantkit.runtimes import AUTO, REFERENCE, find_runtime, observing_runtime, open_session, runtimes
from quantkit.runtimes.fixed_sizes import EXPORT, describe_fixed_sizes, fixed_sizes
from quantkit.runtimes.random_inputs import Sizes, find_compared_integers, find_random_inputs, random_arrays
from quantkit.runtimes.session import Session, SessionOptions, TensorInfo
from quantkit.transforms.registry import Claim

# Number of samples, of a dataset or random.
NUM_SAMPLES = 8
# An output of fewer elements needs several random inputs for a mean; for others one is enough.
MIN_ELEMENTS = 100
WIDE_BOUNDS = (-4.0, 4.0)
# Largest change of an output, as a fraction of its largest value, that counts as constant.
MIN_CHANGE = 1e-3
# Largest change as a multiple of the rounding: correct rewrites of 40 networks change by at most 1.5. The kernels of a
# runtime may round in other ways, so the limit is higher if the graphs are equal in double precision.
LIMIT, RUNTIME_LIMIT = 10.0, 100.0
# Number of runs with moved inputs, and of runs with moved constants.
NUM_MOVED = 2
# Limit of the runs in double precision, in multiply-accumulate operations: some seconds in the NumPy runtime.
MAX_COST, NODE_COST = 2_500_000_000, 100_000
# Rounding that counts in double precision: a fraction of that of float32, in which the model will run.
FINE_ULP = ULP[DType.FLOAT] / 100
NO_OPTIMIZER = "without its optimizer"

Opener = Callable[[Graph], Session]
# Function that returns arrays, by name, for some or all inputs; one item for each run.
Feeder = Callable[[tuple[TensorInfo, ...]], Sequence[Mapping[str, Array]]]
_Result = TypeVar("_Result")


@dataclass
class Verifier:
    """Check for `run` that compares the model outputs before and after each step.

    Args:
        open_session: function that opens a graph in a runtime.
        seed: seed of the random inputs.
        tolerance: largest change of an exact step as a fraction of the largest value of an output (at least 1); None
            for the rounding of the model.
        feeder: function that returns the inputs; inputs that it does not return are random.
        bounds: range of the random values by input name (default: -1 to 1).
        checks_reaction: set `warning` if the outputs of the first graph are equal for all inputs.
        fallbacks: other functions that open a graph, by a description of how they run it.

    Attributes:
        warning: message if a comparison proves little, or if the runtime is at fault; else empty.
        feeds: inputs of each run.
        is_small: True if an output has few elements.
    """

    open_session: Opener
    seed: int = 0
    tolerance: float | None = None
    feeder: Feeder | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    checks_reaction: bool = False
    fallbacks: Mapping[str, Opener] = field(default_factory=dict)
    warning: str = field(default="", init=False)
    feeds: Sequence[Mapping[str, Array]] = field(default=(), init=False)
    is_small: bool = field(default=False, init=False)
    # Outputs of the last graph, in the runtime and in double precision, and those with moved inputs and constants.
    _last: dict[str, tuple[Any, Outputs]] = field(default_factory=dict, init=False)
    _moved: Sequence[Outputs] = field(default=(), init=False)

    def __call__(self, before: Graph, after: Graph, transform: Claim) -> str:
        """Compare the outputs of two graphs and return their difference in one line.

        Raises:
            CheckError: the outputs differ by more than the transform may change them, or the new graph cannot be run.
        """
        is_rounded = transform.is_exact and self.tolerance is None
        edges = last_inputs(before, after) if is_rounded else {}
        first, second = (
            ObservedGraph.of(graph, {label: pair[index] for label, pair in edges.items()})
            for index, graph in enumerate((before, after))
        )
        if not self.feeds:
            self._choose_feeds(first)
        if compared_fields(after) == compared_fields(before):
            return "the same nodes"
        old = self._run_last("runtime", first, self._run)
        try:
            if note := self._describe_type_change(after):
                self._choose_feeds(second)
                return note
            new = self._run_last("runtime", second, self._run)
        except QuantkitError as error:
            raise self._explain_failure(second, transform, error) from error
        expected, actual = ({name: run[name] for name in run if name not in edges} for run in (old, new))
        result = compare(expected, actual, transform, self.tolerance)
        if not is_rounded:
            self._moved = ()
        elif any(not _are_equal(old[name], new[name]) for name in old.keys() & new.keys()):
            self._check_rounding(first, second, old, new, transform)
        return result

    def _describe_type_change(self, graph: Graph) -> str:
        """Return a note if an input has another type than before: such outputs do not compare."""
        for info in (tensor_info(graph, edge) for edge in graph.inputs):
            feed = self.feeds[0].get(info.name)
            if feed is not None and info.dtype is not DType.STRING and feed.dtype != info.dtype.numpy:
                return f"input {info.name!r} is {info.dtype.value} now: outputs cannot be compared"
        return ""

    def _explain_failure(self, observed: ObservedGraph, transform: Claim, error: QuantkitError) -> CheckError:
        """Return the error for a new graph that the runtime does not run; another way to run it clears the graph."""
        way = next((way for way, opener in self.fallbacks.items() if _attempt(self._run, observed, opener)), "")
        reason = f"; it runs {way}, so that the runtime is at fault" if way else ""
        return CheckError(f"the graph after {transform.name} cannot be run: {error.message}{reason}", error.hint)

    @property
    def terms(self) -> str:
        """Inputs and limits of the check, in one line."""
        data = "the given data" if self.feeder else f"inputs of seed {self.seed}"
        change = f"{LIMIT:g} times the rounding of the model"
        if self.tolerance is not None:
            change = f"{self.tolerance:g} of the largest value of each output"
        return (
            f"on {data}: exact steps within {change}, "
            f"steps that reduce precision with a cosine of at least {MIN_COSINE:g}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return inputs and limits of the check as JSON values."""
        return {
            "data": "given" if self.feeder else "seeded",
            "seed": self.seed,
            "tolerance": self.tolerance,
            "max_rounding": LIMIT,
            "min_cosine": MIN_COSINE,
            "warning": self.warning or None,
        }

    def _choose_feeds(self, observed: ObservedGraph) -> None:
        """Choose inputs that the graph accepts, and another way to run it if the runtime cannot.

        Raises:
            UsageError: inputs cannot be random, or the data cannot be assigned to inputs.
            GraphError, UnavailableError: no runtime runs the graph.
        """
        failure: QuantkitError | None = None
        for way, opener in {"": self.open_session, **self.fallbacks}.items():
            try:
                with opener(observed.graph) as session:
                    results = self._first_runs(session, observed.graph)
                    self._last["runtime"] = observed.fields, observed.join(session, results[: len(self.feeds)])
            except (GraphError, UnavailableError) as error:
                failure = failure or error
                continue
            if failure is not None:
                self.open_session, self.warning = opener, f"{failure.message}; the model is verified {way}"
            if self.checks_reaction:
                self._check_reaction(results)
            return
        assert failure is not None
        raise failure

    def _first_runs(self, session: Session, graph: Graph) -> list[dict[str, Array]]:
        """Choose the feeds, and return the outputs of each run."""
        samples = self.feeder(session.inputs) if self.feeder else [{}] * NUM_SAMPLES
        feeds: list[dict[str, Array]] = []

        compared = _compared_integers(graph, session.inputs)

        def run(sizes: Sizes, integers: tuple[int, int]) -> list[dict[str, Array]]:
            # Every other sample is larger, so that more activations are not clamped.
            wide = dict.fromkeys((info.name for info in session.inputs), WIDE_BOUNDS) | dict(self.bounds)
            feeds[:] = (
                random_arrays(
                    *(session.inputs, self.seed + index),
                    feeds={**_select_branch(compared, index), **arrays},
                    sizes=sizes,
                    bounds=wide if index % 2 else self.bounds,
                    integers=integers,
                )
                for index, arrays in enumerate(samples)
            )
            results = [session.run(arrays) for arrays in feeds[:2]]
            self.is_small = any(array.size < MIN_ELEMENTS for array in results[0].values())
            if self.feeder or self.is_small or compared:
                results += [session.run(arrays) for arrays in feeds[2:]]
            return results

        results = find_random_inputs(graph, session.inputs, run, samples[0])
        self.feeds = feeds if self.feeder or self.is_small or compared else feeds[:1]
        fixed = {} if self.feeder else fixed_sizes(graph, session.inputs)
        required = fixed_sizes(graph, session.inputs, of_weights=True) if fixed else {}
        for info in (info for info in session.inputs if fixed.get(info.name) != required.get(info.name)):
            self.warning = f"{describe_fixed_sizes(info, fixed[info.name])}: pass this size, or {EXPORT}"
        return results

    def _check_reaction(self, results: Sequence[Mapping[str, Array]]) -> None:
        """Set `warning` if no output depends noticeably on the inputs: those of several runs, or the rows of one."""
        self.checks_reaction = False
        pairs = [(results[0][name], other[name]) for other in results[1:] for name in other]
        if len(results) == 1:
            rows = {len(array) for array in self.feeds[0].values() if array.ndim}
            pairs = [
                (array[:-1], array[1:]) for array in results[0].values() if array.ndim and {len(array)} == rows - {1}
            ]
        if pairs and not any(first.shape != second.shape or _changes(first, second) for first, second in pairs):
            subject = "over the given samples" if self.feeder else "with the random inputs"
            self.warning = (
                f"the outputs barely change {subject}, so that equal outputs prove little: verify with real samples "
                "that differ (--data)"
            )

    def _run(self, observed: ObservedGraph, opener: Opener | None = None, seed: int | None = None) -> Outputs:
        """Return the outputs of all runs, with moved inputs if a seed is given.

        Raises:
            UsageError: an input has another type than the feeds.
        """
        with (opener or self.open_session)(observed.graph) as session:
            names = [info.name for info in session.inputs]
            feeds = [{name: feed[name] for name in names if name in feed} for feed in self.feeds]
            if seed is not None:
                feeds = [move_arrays(feed, seed) for feed in feeds]
            return observed.join(session, [session.run(feed) for feed in feeds])

    def _run_last(self, kind: str, observed: ObservedGraph, run: Callable[[ObservedGraph], Outputs]) -> Outputs:
        """Return the outputs of a graph, which are computed unless it is the last one."""
        fields, outputs = self._last.get(kind, (None, {}))
        if fields != observed.fields:
            outputs = run(observed)
            self._last[kind] = observed.fields, outputs
        return outputs

    def _check_rounding(
        self, first: ObservedGraph, second: ObservedGraph, old: Outputs, new: Outputs, transform: Claim
    ) -> None:
        """Check that an exact transform changes the outputs by their rounding only.

        Raises:
            CheckError: the outputs change by more.
        """
        fine = self._ratios_in_double(first, second)
        name, ratio = _largest(fine or {})
        if ratio > LIMIT:
            raise CheckError(f"{transform.name} {_describe(first.title(name), old, new, name, ratio)}", NEXT)
        if not self._moved or self._moved[0].keys() != old.keys():
            # Moved inputs and weights draw all rounding errors of the kernels again.
            graphs = [first] * NUM_MOVED + [first.move_constants(seed) for seed in range(NUM_MOVED)]
            runs = (_attempt(self._run, graph, seed=seed) for seed, graph in enumerate(graphs))
            self._moved = [outputs for outputs in runs if outputs is not None]
        limit = LIMIT if fine is None else RUNTIME_LIMIT
        name, ratio = _largest(self._ratios(old, new))
        if ratio <= limit * self._own_ratio(old, name):
            return
        change = _describe(first.title(name), old, new, name, ratio)
        opener = self.fallbacks.get(NO_OPTIMIZER)
        plain_old, plain_new = (_attempt(self._run, each, opener) if opener else None for each in (first, second))
        if plain_old is None or plain_new is None:
            raise CheckError(f"{transform.name} {change}", NEXT)
        if _largest(self._ratios(plain_old, plain_new))[1] <= limit:
            # The optimizer of the runtime changes the outputs of one of the graphs.
            if _largest(self._ratios(plain_new, new))[1] > limit:
                text = f"the optimizer of the runtime changes the result of the graph after {transform.name}"
                raise CheckError(f"{text}: it {change}", hint="the graph is correct: use another --runtime")
            text = f"the optimizer of the runtime changes the result of the model before {transform.name}"
            self.warning = f"{text}: without that, the transform {change}"
        elif fine is None:
            raise CheckError(f"{transform.name} {change}", NEXT)

    def _ratios(self, old: Outputs, new: Outputs) -> dict[str, float]:
        """Return the change of each output as a multiple of its rounding."""
        return {
            name: rounding_ratio(
                values, new[name], [moved[name] for moved in self._moved if name in moved], _ulp(values)
            )
            for name, values in old.items()
            if _are_comparable(values, new.get(name))
        }

    def _own_ratio(self, old: Outputs, name: str) -> float:
        """Return the largest change of an output by rounding as a multiple of the other changes, at least 1.

        It is large if rounding decides, for example about the order of two boxes.
        """
        moved = [outputs[name] for outputs in self._moved if _are_comparable(old[name], outputs.get(name))]
        others = ((values, [other for other in moved if other is not values]) for values in moved)
        return max((rounding_ratio(old[name], values, rest, _ulp(values)) for values, rest in others), default=1.0)

    def _ratios_in_double(self, first: ObservedGraph, second: ObservedGraph) -> dict[str, float] | None:
        """Return the change of each output as a multiple of the rounding of the constants that differ.

        Returns:
            None if the NumPy runtime cannot run the graphs, or not in seconds.
        """
        seeds = range(NUM_MOVED if self.is_small else 1)
        cost = (first.count_macs(self.feeds[0]) + NODE_COST * len(first.graph)) * (2 + 2 * len(seeds))
        if cost > MAX_COST:
            return None
        run = partial(_run_in_double, self.feeds[: MAX_COST // cost])
        graphs, moved = (first, second), []
        try:
            pair = [self._run_last("double", graph, run) for graph in graphs]
            for graph, outputs in zip(graphs, pair, strict=True):
                names = new_constants(graph.graph, graphs[graph is first].graph)
                # Moved inputs are enough for one graph: they draw the errors of double precision again.
                runs = [run(graph.move_constants(seed, names), seed) for seed in seeds if names or graph is first]
                moved += [
                    {name: pair[0][name] + values - outputs[name] for name, values in each.items()} for each in runs
                ]
        except (QuantkitError, ArithmeticError, ValueError, MemoryError):
            return None  # no kernel, or values of a size that depends on rounding
        return {
            name: rounding_ratio(values, pair[1][name], [outputs[name] for outputs in moved], FINE_ULP)
            for name, values in pair[0].items()
            if _are_comparable(values, pair[1].get(name))
        }


def _run_in_double(feeds: Sequence[Mapping[str, Array]], observed: ObservedGraph, seed: int | None = None) -> Outputs:
    """Return the outputs of a graph in the NumPy runtime, in double precision."""
    feeds = [
        {
            name: values.astype(np.float64) if DType.of(values.dtype).is_float else values
            for name, values in feed.items()
        }
        for feed in feeds
    ]
    if seed is not None:
        feeds = [move_arrays(feed, seed) for feed in feeds]
    with open_session(in_double(observed.graph), REFERENCE) as session, np.errstate(all="ignore"):
        names = [info.name for info in session.inputs]
        outputs = observed.join(session, [session.run({name: feed[name] for name in names}) for feed in feeds])
    return {name: values.astype(np.float64) for name, values in outputs.items() if values.dtype.kind in "biufV"}


def _compared_integers(graph: Graph, inputs: Sequence[TensorInfo]) -> dict[str, tuple[TensorInfo, tuple[int, ...]]]:
    """Return the inputs of one integer that the graph compares with constants, with these constants, by name."""
    infos = {info.name: info for info in inputs if info.shape.dims is not None and None not in info.shape.dims}
    values_of = {tensor_info(graph, edge).name: values for edge, values in find_compared_integers(graph).items()}
    single = (name for name in values_of if name in infos and prod(infos[name].shape.sizes) == 1)
    return {name: (infos[name], values_of[name]) for name in single if not infos[name].dtype.is_float}


def _select_branch(compared: Mapping[str, tuple[TensorInfo, tuple[int, ...]]], index: int) -> dict[str, Array]:
    """Return the compared integers of a sample: each constant in turn, and then none, for random ones."""
    arrays = {}
    for name, (info, values) in compared.items():
        position = index % (len(values) + 1)
        if position < len(values):
            arrays[name] = np.full(info.shape.sizes, values[position], info.dtype.numpy)
    return arrays


def _attempt(run: Callable[..., _Result], *args: Any, **options: Any) -> _Result | None:
    """Return the result of a run; None if it fails."""
    try:
        return run(*args, **options)
    except QuantkitError:
        return None


def _largest(ratios: Mapping[str, float]) -> tuple[str, float]:
    return max(ratios.items(), key=lambda item: item[1], default=("", 0.0))


def _describe(title: str, old: Outputs, new: Outputs, name: str, ratio: float) -> str:
    """Return the text of the largest change of an output."""
    size = "a multiple"
    if name in old and name in new:
        with np.errstate(all="ignore"):
            size = f"{np.nanmax(np.abs(widen(new[name]) - widen(old[name])), initial=0):.3g}"
    return f"changes {title} by {size}, {ratio:.0e} times the rounding of the model"


def _ulp(values: Array) -> float:
    return ULP.get(DType.of(values.dtype), 0.0)


def _are_comparable(first: Array, second: Array | None) -> bool:
    return second is not None and first.shape == second.shape and first.dtype.kind not in "OSU"


def _are_equal(first: Array, second: Array) -> bool:
    return first.shape == second.shape and np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")


def _changes(first: Array, second: Array) -> bool:
    """Return True if two outputs differ by more than a small fraction of their largest value."""
    if first.dtype.kind not in "fiu":
        return not np.array_equal(first, second)
    with np.errstate(invalid="ignore", over="ignore"):
        change = np.abs(first.astype(np.float64) - second.astype(np.float64)).max(initial=0)
        largest = max(np.abs(first).max(initial=0), np.abs(second).max(initial=0))
        return not change <= MIN_CHANGE * largest


def make_verifier(
    model: Model,
    graph: Graph,
    *,
    data: Any = None,
    runtime: str | None = None,
    seed: int = 0,
    tolerance: float | None = None,
) -> Verifier:
    """Return the verifier for a graph of a model.

    Args:
        model: model whose preprocessing applies to images.
        graph: graph that will be rewritten.
        data: dataset, see `quantkit.data.as_dataset`; None for random inputs.
        runtime: name of a runtime; None for TensorFlow, for ONNX graphs ONNX Runtime, or the reference runtime
            if it is not installed.
        seed: seed of the random inputs.
        tolerance: see `Verifier`.

    Raises:
        UsageError: the runtime is unknown, or the data cannot be assigned to inputs.
        InputError: the data cannot be read.
    """
    # The runtime of the graph's own format: others would compare their converters as well.
    runtime_name = runtime or _native_runtime(graph)
    fallbacks: dict[str, Opener] = {}
    # An unknown name is rejected before any work.
    if runtime_name != AUTO and find_runtime(runtime_name).can_omit_optimizer:
        options = SessionOptions(optimized=False)
        fallbacks[NO_OPTIMIZER] = partial(open_session, runtime=runtime_name, options=options)
    if runtime is None:
        others = (other for name, other in runtimes().items() if name != runtime_name and other.opens(graph))
        fallbacks |= {f"in {other.title}": other.open for other in others if other.available().ok}
    feeder = None
    if data is not None:
        dataset = as_dataset(data, NUM_SAMPLES, inputs=model.input_names)

        def feeder(inputs: tuple[TensorInfo, ...]) -> Sequence[Mapping[str, Array]]:
            return list(feed_dataset(model, dataset, inputs))

    scalings = {str(edge): model.find_scaling(str(edge)) for edge in graph.inputs}
    bounds = {name: (scaling.low, scaling.high) for name, scaling in scalings.items() if scaling is not None}
    return Verifier(
        lambda graph: open_session(graph, runtime_name),
        seed,
        tolerance,
        feeder,
        bounds,
        checks_reaction=True,
        fallbacks=fallbacks,
    )


def _native_runtime(graph: Graph) -> str:
    """Return the runtime of the graph's own format; the NumPy runtime if no such runtime is installed."""
    name = observing_runtime(graph.dialect)
    return name if find_runtime(name).available().ok else REFERENCE


def feed_dataset(
    model: Model, dataset: Dataset, inputs: tuple[TensorInfo, ...], num_samples: int = NUM_SAMPLES
) -> Iterator[Mapping[str, Array]]:
    """Yield batches of a dataset; arrays are assigned to the inputs by name.

    Args:
        model: model whose preprocessing applies to images.
        dataset: the data.
        inputs: inputs of the session.
        num_samples: number of samples, if the model takes any number at once; else of batches.

    Raises:
        UsageError: the data cannot be assigned to inputs, or no image can be read.
    """
    arrays = dataset.example(rank_of(inputs))
    matching = tuple(info for info in inputs if info.name in arrays)
    if not matching and (len(inputs) != 1 or len(arrays) > 1):
        raise UsageError(
            f"cannot tell which inputs {dataset.source} feeds",
            hint=f"give an array for each of {', '.join(info.name for info in inputs)}, by input name (.npz)",
        )
    if matching and len(inputs) > 1:
        pipeline = InputPipeline.of_arrays(matching, arrays, dataset.source)
    else:
        pipeline = InputPipeline.of(inputs, dataset, model.find_basis(inputs))
    rejected: dict[str, str] = {}
    dims = inputs[0].shape.dims
    size = dims[0] if dims else 1
    prepared = batches(dataset, pipeline, size or num_samples, rejected)
    first = next(prepared, None)
    if first is None:
        raise UsageError(f"no image of {dataset.source} can be read", hint=next(iter(rejected.values()), ""))
    yield first.feeds
    yield from (each.feeds for each in islice(prepared, num_samples - 1 if size else 0))
