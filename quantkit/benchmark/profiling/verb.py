"""Profile of models: traced calls of each candidate, mapped to the layers of the first model."""

from pathlib import Path
from typing import Any, Unpack

from quantkit.arguments import public, require_callable, require_flag
from quantkit.benchmark.candidate import Candidate
from quantkit.benchmark.machine import this_machine
from quantkit.benchmark.profiling.layer_names import LayerNames
from quantkit.benchmark.profiling.layer_work import Peaks
from quantkit.benchmark.profiling.peaks import measure_peaks
from quantkit.benchmark.profiling.profile import ModelProfile, Profile, profile_model
from quantkit.benchmark.profiling.tracing import TracedCalls, trace_calls
from quantkit.benchmark.worker import read_model
from quantkit.benchmark.workflow import CandidateOptions, select_candidates
from quantkit.formats.temporary import temporary_folder
from quantkit.ir.graph import Graph
from quantkit.progress import OnProgress, Progress, ignore_progress

# Coverage below which a model has its own layers: it is another network than the first model.
SAME_NETWORK = 0.5


@public
def profile_layers(
    models: Any, *, peaks: bool = True, on_progress: OnProgress = ignore_progress, **options: Unpack[CandidateOptions]
) -> Profile:
    """Measure the time of the layers of models side by side, float and int8.

    Each model runs in a process of its own, with and without a trace in turn. The layers have the names of the first
    model, to which the nodes of the others are mapped.

    Args:
        models: see `benchmark`.
        peaks: also measure the peaks of the machine: matrix products in each runtime, and a copy of arrays.
        on_progress: receives the progress.
        options: see `benchmark`.

    Raises:
        UsageError: there is no such runtime, model card or CPU, or a number is out of range.
        InputError: a model file is missing or broken, or a download failed.
        UnavailableError: no runtime that measures the time of ops can run a model.
    """
    require_flag(peaks=peaks)
    require_callable(on_progress=on_progress)
    with temporary_folder() as folder:
        candidates = select_candidates(models, folder, on_progress, **options)
        return profile_candidates(candidates, folder if peaks else None, on_progress)


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
        calls = trace_calls(candidate)
        graph = _graph(candidate)
        original = graph if original is None else original
        models.append(_profile(candidate, calls, original, graph))
        runtime = calls.runtime.name
        if peaks_folder is not None and runtime not in peaks:
            peaks[runtime] = measure_peaks(runtime, candidate.settings, machine, peaks_folder)
    return Profile(tuple(models), peaks, (machine.sentence,))


def _profile(candidate: Candidate, calls: TracedCalls, original: Graph, own: Graph) -> ModelProfile:
    """Return the profile with the layers of the original graph, or of the candidate if that is another network."""
    profile = profile_model(candidate.label, calls, LayerNames(original, calls.input_shapes))
    if profile.coverage >= SAME_NETWORK or own is original:
        return profile
    return profile_model(candidate.label, calls, LayerNames(own, calls.input_shapes))


def _graph(candidate: Candidate) -> Graph:
    """Return the graph of a candidate.

    Raises:
        UnavailableError: the format of the file has no graph that quantkit reads.
    """
    settings = candidate.settings
    return read_model(candidate.path, _names(settings.inputs), _names(settings.outputs)).graph


def _names(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)
