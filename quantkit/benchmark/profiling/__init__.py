"""Time by layer of the original graph, measured by the runtimes."""

from quantkit.benchmark.profiling.candidates import profile_alternately, profile_candidates
from quantkit.benchmark.profiling.model_profile import ModelProfile, ProfileRow
from quantkit.benchmark.profiling.profile import Profile

__all__ = ["ModelProfile", "Profile", "ProfileRow", "profile_alternately", "profile_candidates"]
