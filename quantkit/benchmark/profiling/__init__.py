"""Time by layer of the original graph, measured by the runtimes."""

from quantkit.benchmark.profiling.profile import ModelProfile, Profile, ProfileRow
from quantkit.benchmark.profiling.verb import profile_candidates, profile_layers

__all__ = ["ModelProfile", "Profile", "ProfileRow", "profile_candidates", "profile_layers"]
