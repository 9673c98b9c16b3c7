"""The command that an installation of quantkit offers."""

from collections.abc import Callable
from importlib.metadata import entry_points

(_ENTRY,) = entry_points(group="console_scripts", name="quantkit")
main: Callable[..., int] = _ENTRY.load()
