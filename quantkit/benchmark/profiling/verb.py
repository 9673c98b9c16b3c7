"""The verb of profiles: candidates from any value that names a model."""

from dataclasses import KW_ONLY, dataclass

from quantkit.arguments import public
from quantkit.benchmark.profiling.candidates import profile_candidates
from quantkit.benchmark.profiling.profile import Profile
from quantkit.benchmark.sampling.selection import CandidateOptions, select_candidates
from quantkit.formats.temporary import temporary_folder
from quantkit.options import option, takes


@dataclass(frozen=True)
class ProfileOptions(CandidateOptions):
    """The arguments of `profile_layers`."""

    _: KW_ONLY
    peaks: bool = option(
        True,
        doc="also measure the peaks of the machine: matrix products in each runtime, and a copy of arrays",
    )


@public
@takes(ProfileOptions)
def profile_layers(options: ProfileOptions) -> Profile:
    """Measure the time of the layers of models side by side, float and int8.

    Each model runs in a process of its own, with and without a trace in turn. The layers have the names of the first
    model, to which the nodes of the others are mapped.

    Raises:
        UsageError: there is no such runtime, model card or CPU, or a number is out of range.
        InputError: a model file is missing or broken, or a download failed.
        UnavailableError: no runtime that measures the time of ops can run a model.
    """
    with temporary_folder() as folder:
        candidates = select_candidates(options, folder)
        return profile_candidates(candidates, folder if options.peaks else None, options.on_progress)
