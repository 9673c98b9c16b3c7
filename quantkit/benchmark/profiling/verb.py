"""The verb of profiles: candidates from any value that names a model."""

from typing import Any, Unpack

from quantkit.arguments import public, require_callable, require_flag
from quantkit.benchmark.profiling.candidates import profile_candidates
from quantkit.benchmark.profiling.profile import Profile
from quantkit.benchmark.sampling.selection import CandidateOptions, select_candidates
from quantkit.formats.temporary import temporary_folder
from quantkit.progress import OnProgress, ignore_progress


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
