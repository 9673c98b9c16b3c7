"""Time by layer of the original graph, measured by the runtimes."""

from quantkit.benchmark.profiling.candidates import AlternatingProfiles, profile_candidates
from quantkit.benchmark.profiling.model_profile import ModelProfile, ProfileRow
from quantkit.benchmark.profiling.profile import Profile

__all__ = ["AlternatingProfiles", "ModelProfile", "Profile", "ProfileRow", "profile_candidates"]
