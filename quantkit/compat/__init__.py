"""The 2016 Graph Transform Tool and its companions, defects included; nothing else imports this package."""

from quantkit.compat.driver import run_classic
from quantkit.compat.grammar import parse_classic

__all__ = ["parse_classic", "run_classic"]
