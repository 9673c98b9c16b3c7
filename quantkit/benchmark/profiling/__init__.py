"""Time by layer of the original graph, measured by the runtimes."""

from quantkit.benchmark.profiling.candidates import profile_candidates
from quantkit.benchmark.profiling.profile import ModelProfile, Profile, ProfileRow

__all__ = ["ModelProfile", "Profile", "ProfileRow", "profile_candidates"]
