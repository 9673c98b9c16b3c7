"""Profile of candidates: traced calls of each, mapped to the layers of the first one."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from quantkit.benchmark.host.cgroup import throttled_seconds
from quantkit.benchmark.host.machine import Machine, default_threads, this_machine, usable_threads
from quantkit.benchmark.profiling.layer_names import LayerNames
from quantkit.benchmark.profiling.layer_work import Peaks
from quantkit.benchmark.profiling.model_profile import ModelProfile, profile_model
from quantkit.benchmark.profiling.peaks import measure_peaks
from quantkit.benchmark.profiling.profile import Profile
from quantkit.benchmark.profiling.reasons import FileRemedies, find_reasons
from quantkit.benchmark.profiling.tracing import TracedCalls, TracedModels, trace_calls
from quantkit.benchmark.results.speedup import UNDISTURBED
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sampling.worker import read_model
from quantkit.ir.graph import Graph
from quantkit.progress import OnProgress, Progress, ignore_progress
from quantkit.runtimes import find_runtime

# Coverage below which a model has its own layers: it is another network than the first model.
SAME_NETWORK = 0.5


def profile_candidates(
    candidates: list[Candidate], peaks_folder: Path | None = None, on_progress: OnProgress = ignore_progress
) -> Profile:
    """Measure the time of the layers of candidates; the first one has the original graph.

    Args:
        candidates: models to profile.
        peaks_folder: for the models that measure the peaks of the machine; None to measure no peaks.
        on_progress: receives the progress.

    Raises:
        UnavailableError: the runtime of a candidate cannot run it, or does not measure the time of ops.
    """
    original: Graph | None = None
    models: list[ModelProfile] = []
    peaks: dict[str, Peaks] = {}
    machine = this_machine()
    for index, candidate in enumerate(candidates):
        on_progress(Progress(f"profiling {candidate.label}", index, len(candidates)))
        throttled, start = throttled_seconds(), perf_counter()
        calls = trace_calls(candidate)
        throttled_fraction = min((throttled_seconds() - throttled) / (perf_counter() - start), 1.0)
        graph = read_graph(candidate)
        original = graph if original is None else original
        model = _profile(candidate, calls, original, graph)
        models.append(_with_process_facts(model, candidate, machine, throttled_fraction))
        runtime = calls.runtime.name
        if peaks_folder is not None and runtime not in peaks:
            peaks[runtime] = measure_peaks(runtime, candidate.settings, machine, peaks_folder)
    profile = Profile(tuple(models), peaks, (machine.sentence,))
    remedies = FileRemedies(*(_name(candidates[index], models[index]) for index in (0, -1)))
    return replace(profile, reasons=find_reasons(profile, machine, remedies))


class AlternatingProfiles(TracedModels):
    """Profiles of candidates in undisturbed calls, each in one process for all rounds.

    Args:
        original: candidate with the original graph.
        seconds: time limit of all calls, as in `TracedModels`.
    """

    def __init__(self, original: Candidate, seconds: float = inf) -> None:
        super().__init__(seconds)
        self._original = original
        self._layers: LayerNames | None = None

    def measure(self, candidates: Sequence[Candidate], rounds: int, seconds: float) -> list[tuple[ModelProfile, ...]]:
        """Measure the time of the layers of alternating candidates.

        Args:
            candidates: models to profile.
            rounds: number of profiles of each.
            seconds: time limit of each profile.

        Raises:
            UnavailableError: the runtime of a candidate cannot run it, or does not measure the time of ops.
        """
        repetitions = self.trace(candidates, rounds, seconds)
        if self._layers is None:
            self._layers = LayerNames(read_graph(self._original), repetitions[0][0].input_shapes)
        return [
            tuple(profile_model(candidate.label, calls, self._layers, UNDISTURBED) for calls in each)
            for candidate, each in zip(candidates, repetitions, strict=True)
        ]

    def compare(self, candidates: tuple[Candidate, Candidate], rounds: int, calls: int) -> list[float]:
        """Return the speed-up of the second candidate over the first one in each round, in undisturbed calls.

        Args:
            candidates: the models.
            rounds: number of rounds.
            calls: number of calls of each model in a round.

        Raises:
            UnavailableError: the runtime of a candidate cannot run it.
        """
        first, other = (np.quantile(each, UNDISTURBED, axis=1) for each in self.time(candidates, rounds, calls))
        return [float(ratio) for ratio in first / other]


def _profile(candidate: Candidate, calls: TracedCalls, original: Graph, own: Graph) -> ModelProfile:
    """Return the profile with the layers of the original graph, or of the candidate if that is another network."""
    profile = profile_model(candidate.label, calls, LayerNames(original, calls.input_shapes))
    if profile.coverage >= SAME_NETWORK or own is original:
        return profile
    return profile_model(candidate.label, calls, LayerNames(own, calls.input_shapes))


def _with_process_facts(
    profile: ModelProfile, candidate: Candidate, machine: Machine, throttled_fraction: float
) -> ModelProfile:
    """Return the profile with the threads of its process; too many are compared with as many as the process may use."""
    settings = candidate.settings
    options, usable = settings.options, usable_threads(machine, settings.cpus)
    if options.intra_op or options.inter_op:
        threads = (options.intra_op or 1) * (options.inter_op or 1)
    else:
        has_threads = find_runtime(profile.runtime.name).has_threads
        threads = default_threads(machine, settings.cpus) if has_threads else 0
    seconds = 0.0
    if threads > usable:
        fewer = replace(settings, options=replace(options, intra_op=usable, inter_op=1))
        calls = trace_calls(replace(candidate, settings=fewer))
        seconds = profile.untraced_seconds - median(calls.untraced_seconds)
    return replace(
        profile,
        threads=threads,
        usable_threads=usable,
        oversubscription_seconds=seconds,
        throttled_fraction=throttled_fraction,
    )


def _name(candidate: Candidate, model: ModelProfile) -> str:
    """Return the file or model card of a candidate, with its runtime, as on the command line."""
    is_file = candidate.path.name == Path(candidate.label).name
    return f"{candidate.path if is_file else candidate.label}@{model.runtime.name}"


def read_graph(candidate: Candidate) -> Graph:
    """Return the graph of a candidate.

    Raises:
        UnavailableError: the format of the file has no graph that quantkit reads.
    """
    settings = candidate.settings
    return read_model(candidate.path, _names(settings.inputs), _names(settings.outputs)).graph


def _names(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
