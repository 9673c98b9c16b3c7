"""The 2016 Graph Transform Tool and its companions, defects included; imported by no other package."""

from quantkit.compat.driver import run_classic
from quantkit.compat.grammar import parse_classic
from quantkit.compat.transform_graph import transform_classic

__all__ = ["parse_classic", "run_classic", "transform_classic"]
