"""Search for the fastest file, runtime and settings inside an accuracy bound, and folders of servers."""

from quantkit.optimize.result import Optimization, OptimizationInterrupted
from quantkit.optimize.verb import optimize

__all__ = ["Optimization", "OptimizationInterrupted", "optimize"]
