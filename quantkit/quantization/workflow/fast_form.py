"""Float layers whose int8 form takes more time than it saves: by the table of costs, then by profiles of this machine.

    table of costs        ->  times of the kernels and boundaries  ->  minimum cut
    alternating profiles  ->  times of the kernels and boundaries  ->  minimum cut  ->  profiles of the cut

By the table, int8 saves time in proportion to the MACs, and a boundary takes time: small layers between float ops stay
float. The files are the same on every machine. One profile shows whether float layers can save time at all: further
ones are made only then. A predicted choice of float layers counts only if its file is measured to be faster. Each file
has one process in each runtime for all rounds. The form for several runtimes minimizes over all of them.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Self

from quantkit.benchmark.profiling import AlternatingProfiles, ModelProfile
from quantkit.errors import QuantkitError, UnavailableError
from quantkit.facts import join_names
from quantkit.formats.temporary import temporary_folder
from quantkit.progress import Progress
from quantkit.quantization.bodies import count_macs_of_run
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.cost import CostModel, KernelTime, is_estimated, measure_costs, predict_costs
from quantkit.quantization.precision.decision import COST, FLOAT, Decision, as_decisions
from quantkit.quantization.precision.search import TimeCut
from quantkit.quantization.report.census import infer_sample_shapes
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.latency import find_candidates
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import Trials
from quantkit.runtimes import find_runtime


def exclude_costly_kernels(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion without the kernels whose int8 form takes more time than it saves by the table of costs.

    The loss is not measured: these kernels get the precision of the float model. Layers whose MACs are unknown stay in
    int8. If no layer of known size saves time, the conversion is unchanged: a file without an int8 layer would be a
    mere copy of the float model. The same holds if the times of a runtime of the target are estimates.

    Args:
        conversion: conversion with all kernels in int8.
        trials: trials on the calibration samples, whose first one has the sizes.
        options: options of the quantization; they receive the message that the float model is to be kept.
    """
    graph, plan = conversion.graph, conversion.plan
    if not plan.patterns or is_estimated(conversion.target.runtimes):
        return conversion
    shapes = infer_sample_shapes(graph, {name: array.shape for name, array in trials.samples.feeds[0].items()})
    costs = predict_costs(graph, plan, shapes, conversion.runtimes)
    layers = [pattern.layer for pattern in plan.patterns]
    unknown = [layer for layer in layers if count_macs_of_run(graph, graph[layer], shapes) is None]
    int8 = dict.fromkeys(unknown, KernelTime(0.0, inf))
    cut = TimeCut(graph, plan, replace(costs, kernels={**costs.kernels, **int8}))
    choice = cut.choose()
    if cut.seconds(frozenset()) - cut.seconds(choice) < policy.MIN_PREDICTED_SAVED * cut.seconds(frozenset()):
        return conversion
    reason = "int8 saves less time than its quantize/dequantize boundaries take, by the table of costs"
    alternative = conversion.decide(as_decisions(dict.fromkeys(sorted(choice), reason), COST)).with_kernels()
    if any(pattern.layer not in unknown for pattern in alternative.plan.patterns):
        return alternative
    if not unknown:
        options.on_message(
            "keep the float model, unless size matters more than time: by the table of costs, no int8 layer saves the "
            "time of its quantize/dequantize boundaries"
        )
    return conversion


def exclude_slow_kernels(conversion: Conversion, trials: Trials, options: Options) -> Conversion:
    """Return the conversion without the kernels that float computes faster, if that makes the model faster here.

    Args:
        conversion: conversion with all other decisions.
        trials: trials on the calibration samples: the loss must not grow.
        options: options of the quantization; no time is measured if ``runs`` is 0.
    """
    if options.runs == 0 or not trials.is_possible or not conversion.plan.patterns:
        return conversion
    titles = join_names(find_runtime(name).title for name in conversion.runtimes)
    seconds = len(conversion.runtimes) * 2 * policy.PROFILE_ROUNDS * policy.PROFILE_SECONDS
    options.on_progress(Progress(f"measuring the time of the layers in {titles}", 0, seconds=seconds))
    samples = {name: array.shape for name, array in trials.samples.feeds[0].items()}
    try:
        with temporary_folder() as folder, _FastForm(conversion, folder, samples, conversion.runtimes) as form:
            form.profile()
            return form.choose(trials, options)
    except QuantkitError as error:
        options.on_message(f"the time of the layers is not measured: {error.message}")
        return conversion


def find_fast_forms(
    conversion: Conversion, samples: Mapping[str, tuple[int, ...]], runtime: str, seconds: float
) -> list[Conversion]:
    """Return the conversion with float layers, as profiles predict that they make it faster in a runtime.

    Args:
        conversion: conversion with all other decisions.
        samples: shape of each input in a sample.
        runtime: name of the runtime.
        seconds: time limit of the profiles.

    Raises:
        UnavailableError: the runtime does not run a model, or does not measure the time of ops, or the time limit is
            exceeded.
    """
    with temporary_folder() as folder, _FastForm(conversion, folder, samples, (runtime,), seconds) as form:
        form.profile()
        return [alternative for _, alternative in form.find_alternatives()]


class _FastForm:
    """Measured times of a conversion.

    Attributes:
        conversion: conversion with all kernels in int8.
        folder: for the files of the models.
        table: predicted times of the kernels and boundaries.
        costs: measured times of the kernels and boundaries, the mean over the runtimes; those of the table at first.
        latency: mean latency of the conversion in the runtimes, in seconds.
        num_files: number of alternatives with a file.
    """

    def __init__(
        self,
        conversion: Conversion,
        folder: Path,
        samples: Mapping[str, tuple[int, ...]],
        runtimes: Collection[str],
        seconds: float = inf,
    ) -> None:
        """Write the conversion.

        Args:
            conversion: conversion with all kernels in int8.
            folder: for the files of the models.
            samples: shape of each input in a sample.
            runtimes: runtimes to profile, some of those of the conversion.
            seconds: time limit of the profiles.

        Raises:
            UnavailableError: the runtimes are not installed.
        """
        self.conversion, self.folder = conversion, folder
        file = self._write(conversion, "int8")
        floats, quantized = find_candidates(conversion, file, folder, samples)
        self.quantized = {each.settings.runtime: each for each in quantized}
        self.floats = [each for each in floats if each.settings.runtime in self.quantized.keys() & set(runtimes)]
        if not self.floats:
            raise UnavailableError("no runtime opens the float and the int8 model", hint="quantkit doctor lists them")
        shapes = infer_sample_shapes(conversion.graph, samples)
        self.table = predict_costs(conversion.graph, conversion.plan, shapes, runtimes)
        self.costs, self.latency = self.table, 0.0
        self.num_files = 0
        self._profiles = AlternatingProfiles(self.floats[0], seconds)
        self._rounds: list[tuple[list[ModelProfile], list[ModelProfile]]] = [([], []) for _ in self.floats]

    def profile(self) -> None:
        """Measure the costs and the latency by one profile, and by further ones if float layers may save time.

        Raises:
            UnavailableError: a runtime does not run a model, or does not measure the time of ops.
        """
        self._profile(1)
        if any(True for _ in self.find_alternatives()):
            self._profile(policy.PROFILE_ROUNDS - 1)

    def _profile(self, rounds: int) -> None:
        """Measure the costs and the latency by more profiles of the float model and the conversion.

        Args:
            rounds: number of further profiles of each.

        Raises:
            UnavailableError: a runtime does not run a model, or does not measure the time of ops.
        """
        graph, plan = self.conversion.graph, self.conversion.plan
        pairs = [(each, self.quantized[each.settings.runtime]) for each in self.floats]
        self._profiles.start([each for pair in pairs for each in pair])
        repetitions = [self._profiles.measure(pair, rounds, policy.PROFILE_SECONDS) for pair in pairs]
        for profiles, measured in zip(self._rounds, repetitions, strict=True):
            for earlier, more in zip(profiles, measured, strict=True):
                earlier += more
        models = [measure_costs(graph, plan, self.table, before, after) for before, after in self._rounds]
        latencies = [median(profile.untraced_seconds for profile in after) for _, after in self._rounds]
        self.costs, self.latency = CostModel.mean(models), fmean(latencies)

    def find_alternatives(self) -> Iterator[tuple[frozenset[str], Conversion]]:
        """Yield the choices of float kernels that save enough time by the costs, with their conversions."""
        choices = set[frozenset[str]]()
        for factor in policy.BOUNDARY_FACTORS:
            boundaries = {edge: factor * seconds for edge, seconds in self.costs.boundaries.items()}
            cut = TimeCut(self.conversion.graph, self.conversion.plan, replace(self.costs, boundaries=boundaries))
            choice = cut.choose()
            saved = cut.seconds(frozenset()) - cut.seconds(choice)
            if choice in choices or saved < policy.MIN_SAVED * self.latency:
                continue
            choices.add(choice)
            alternative = self._exclude(choice)
            if alternative.plan.patterns:
                yield choice, alternative

    def choose(self, trials: Trials, options: Options) -> Conversion:
        """Return the conversion, or the first alternative that is measured to be faster."""
        for choice, alternative in self.find_alternatives():
            if not trials.is_better(alternative, self.conversion, policy.MAX_FASTER_LOSS):
                continue
            ratios = self._compare(alternative)
            speedups = [median(each) for each in ratios]
            is_faster = geometric_mean(speedups) >= 1 / (1 - policy.MIN_SAVED) and geometric_mean(map(min, ratios)) > 1
            if is_faster and min(speedups) >= 1 - policy.MIN_SAVED:
                layers = sorted(choice & self.conversion.plan.pattern_of.keys())
                options.on_message(
                    f"{len(layers)} layers stay float, for example {layers[0]}: their int8 form costs more time than "
                    f"it saves on this machine (the model is {max(speedups):.2f} times as fast)"
                )
                return alternative
        return self.conversion

    def _exclude(self, choice: frozenset[str]) -> Conversion:
        """Return the conversion with these kernels in float."""
        reason = "float is faster on this machine, with its quantize/dequantize boundaries"
        times = self.costs.kernels
        return self.conversion.decide(
            {
                name: Decision(name, FLOAT, reason, COST, saved_ms=(times[name].int8 - times[name].float) * 1e3)
                for name in sorted(choice)
            }
        ).with_kernels()

    def _compare(self, alternative: Conversion) -> list[list[float]]:
        """Return the speed-ups of an alternative over the conversion in each runtime, one for each round."""
        self.num_files += 1
        path = self._write(alternative, f"alternative_{self.num_files}")
        presents = [self.quantized[each.settings.runtime] for each in self.floats]
        pairs = [(present, replace(present, path=path)) for present in presents]
        self._profiles.start([other for _, other in pairs])
        calls = int(min(max(policy.PROFILE_SECONDS / self.latency, policy.MIN_CALLS), policy.MAX_CALLS))
        return [self._profiles.compare(pair, policy.PROFILE_ROUNDS, calls) for pair in pairs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._profiles.__exit__(*error)

    def _write(self, conversion: Conversion, name: str) -> Path:
        path = self.folder / f"{name}{conversion.target.suffixes[0]}"
        conversion.write(path)
        return path
