"""Float layers whose int8 form takes more time than it saves on this machine, by alternating profiles.

    alternating profiles  ->  times of the kernels and boundaries  ->  minimum cut  ->  calls of the cut's file

The kernels that only the table of costs keeps in float (`costly_kernels.py`) are in int8 in the profiled model: the cut
may return them to int8. One profile shows whether another choice can save time at all: further ones are made only then.
A predicted choice counts only if its file is measured to be faster. Each file has one process in each runtime for all
rounds. For several runtimes, the choice has the smallest mean of their predicted times.
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
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.cost import CostModel, measure_costs, predict_costs
from quantkit.quantization.precision.decision import COST, FLOAT, Decision
from quantkit.quantization.precision.search import TimeCut
from quantkit.quantization.report.census import infer_sample_shapes
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.latency import find_candidates
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.trials import Trials
from quantkit.runtimes import find_runtime


def exclude_slow_kernels(conversion: Conversion, trials: Trials) -> Conversion:
    """Return the conversion without the kernels that float computes faster, if that makes the model faster here.

    Args:
        conversion: conversion with all other decisions.
        trials: trials on the calibration samples: the loss must not grow, or be small. No time is measured if the
            option ``runs`` is 0.
    """
    options = trials.options
    if options.runs == 0 or not trials.is_possible or not conversion.plan.patterns:
        return conversion
    titles = join_names(find_runtime(name).title for name in conversion.runtimes)
    seconds = len(conversion.runtimes) * 2 * policy.PROFILE_ROUNDS * policy.PROFILE_SECONDS
    options.on_progress(Progress(f"measuring the time of the layers in {titles}", 0, seconds=seconds))
    samples = trials.samples.sample_shapes
    try:
        with temporary_folder() as folder, _KernelTimes(conversion, folder, samples, conversion.runtimes) as times:
            times.profile()
            return times.choose(trials)
    except QuantkitError as error:
        options.on_message(f"the time of the layers is not measured: {error.message}")
        return conversion


def find_faster_alternatives(
    conversion: Conversion, samples: Mapping[str, tuple[int, ...]], runtime: str, seconds: float
) -> list[Conversion]:
    """Return the conversion with other float layers, as profiles predict that they make it faster in a runtime.

    Args:
        conversion: conversion with all other decisions.
        samples: shape of each input in a sample.
        runtime: name of the runtime.
        seconds: time limit of the profiles.

    Raises:
        UnavailableError: the runtime does not run a model or measure the time of ops, or the time limit is exceeded.
    """
    with temporary_folder() as folder, _KernelTimes(conversion, folder, samples, (runtime,), seconds) as times:
        times.profile()
        return [alternative for _, alternative in times.find_alternatives()]


class _KernelTimes:
    """Measured times of a conversion.

    Attributes:
        present: conversion with the float kernels of the table of costs.
        choice: names of the kernels that the table of costs keeps in float.
        conversion: conversion with the kernels of ``choice`` in int8.
        folder: for the files of the models.
        table: predicted times of the kernels and boundaries.
        costs: measured times of the kernels and boundaries, the mean over the runtimes; before a profile, ``table``.
        latency: mean latency of the conversion in the runtimes, in seconds.
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
            conversion: conversion with all other decisions.
            folder: for the files of the models.
            samples: shape of each input in a sample.
            runtimes: runtimes to profile, some of those of the conversion.
            seconds: time limit of the profiles.

        Raises:
            UnavailableError: the runtimes are not installed.
        """
        self.present, self.conversion, self.folder = conversion, conversion.without_cut(), folder
        self._files: list[tuple[Conversion, Path]] = []
        floats, quantized = find_candidates(self.conversion, self._find_file(self.conversion), folder, samples)
        self.quantized = {each.settings.runtime: each for each in quantized}
        self.floats = [each for each in floats if each.settings.runtime in self.quantized.keys() & set(runtimes)]
        if not self.floats:
            raise UnavailableError("no runtime opens the float and the int8 model", hint="quantkit doctor lists them")
        shapes = infer_sample_shapes(conversion.graph, samples)
        self.table = predict_costs(conversion.graph, self.conversion.plan, shapes, runtimes)
        int8 = {*(pattern.layer for pattern in conversion.plan.patterns), *conversion.plan.pass_through}
        self.choice = frozenset(self.table.kernels.keys() - int8)
        self.costs, self.latency = self.table, 0.0
        self._profiles = AlternatingProfiles(self.floats[0], seconds)
        self._rounds: list[tuple[list[ModelProfile], list[ModelProfile]]] = [([], []) for _ in self.floats]

    def profile(self) -> None:
        """Measure the costs and the latency by one profile, and by further ones if another choice may save time.

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
            saved = cut.seconds(self.choice) - cut.seconds(choice)
            if choice in choices or saved < policy.MIN_SAVED * self.latency:
                continue
            choices.add(choice)
            alternative = self._exclude(choice) if choice else self.conversion
            if alternative.plan.patterns:
                yield choice, alternative

    def choose(self, trials: Trials) -> Conversion:
        """Return the present conversion, or the first alternative that is measured to be faster."""
        for choice, alternative in self.find_alternatives():
            is_better = trials.is_better(alternative, self.present, policy.MAX_FASTER_LOSS)
            if not is_better and (choice >= self.choice or not trials.is_good(alternative)):
                continue
            ratios = self._compare(alternative)
            speedups = [median(each) for each in ratios]
            is_faster = geometric_mean(speedups) >= 1 / (1 - policy.MIN_SAVED) and geometric_mean(map(min, ratios)) > 1
            if is_faster and min(speedups) >= 1 - policy.MIN_SAVED:
                self._report(choice, max(speedups), trials.options)
                return alternative
        return self.present

    def _report(self, choice: frozenset[str], speedup: float, options: Options) -> None:
        """Report the layers that change their precision."""
        stays, returns = (
            "stay float, for example {}: their int8 form costs more time than it saves",
            "return to int8, for example {}: float, which the table of costs chose, saves no time",
        )
        for names, text in ((choice - self.choice, stays), (self.choice - choice, returns)):
            if layers := sorted(names & self.conversion.plan.pattern_of.keys()):
                options.on_message(
                    f"{len(layers)} layers {text.format(layers[0])} on this machine (the model is {speedup:.2f} times "
                    "as fast)"
                )

    def _exclude(self, choice: frozenset[str]) -> Conversion:
        """Return the conversion with the kernels of a choice in float."""
        reason = "float is faster on this machine, with its quantize/dequantize boundaries"
        times = self.costs.kernels
        return self.conversion.decide(
            {
                name: Decision(name, FLOAT, reason, COST, saved_ms=(times[name].int8 - times[name].float) * 1e3)
                for name in sorted(choice)
            }
        ).with_kernels()

    def _compare(self, alternative: Conversion) -> list[list[float]]:
        """Return the speed-ups of an alternative over the present conversion in each runtime, one for each round."""
        paths = [self._find_file(each) for each in (self.present, alternative)]
        models = [self.quantized[each.settings.runtime] for each in self.floats]
        pairs = [(replace(model, path=paths[0]), replace(model, path=paths[1])) for model in models]
        self._profiles.start([each for pair in pairs for each in pair])
        calls = int(min(max(policy.PROFILE_SECONDS / self.latency, policy.MIN_CALLS), policy.MAX_CALLS))
        return [self._profiles.compare(pair, policy.PROFILE_ROUNDS, calls) for pair in pairs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._profiles.__exit__(*error)

    def _find_file(self, conversion: Conversion) -> Path:
        """Return the file of a conversion, which is written once."""
        for present, path in self._files:
            if present is conversion:
                return path
        path = self.folder / f"{len(self._files)}{conversion.target.suffixes[0]}"
        conversion.write(path)
        self._files.append((conversion, path))
        return path
