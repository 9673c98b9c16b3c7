"""Installed runtimes, found without importing them."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self

from quantkit.distribution import install_command, package_version
from quantkit.errors import UnavailableError


@dataclass(frozen=True)
class Availability:
    """Version of an installed runtime, or the reason why the runtime is missing and the command that installs it.

    Attributes:
        ok: True if the runtime is installed.
        detail: version; if the runtime is missing, ``reason: command``.
    """

    ok: bool
    detail: str

    @property
    def command(self) -> str:
        """Command that installs a missing runtime, or an empty string."""
        return "" if self.ok else self.detail.partition(": ")[2]

    @classmethod
    def yes(cls, version: str) -> Self:
        return cls(True, version)

    @classmethod
    def no(cls, reason: str) -> Self:
        return cls(False, reason)


def no_telemetry() -> str:
    """Return the state of the usage reports of a package that sends none."""
    return "none: the package sends no usage reports"


def find_package(title: str, module: str, *packages: str, extra: str = "", command: str = "") -> Availability:
    """Find the Python package of a runtime without importing it.

    Args:
        title: name of the runtime in messages.
        module: Python module of the runtime.
        packages: distributions that provide the module, the usual one first.
        extra: extra of quantkit that installs the first of them.
        command: command that installs the first of them; empty for that of ``extra``.
    """
    from importlib.metadata import PackageNotFoundError

    if find_spec(module) is None:
        return Availability.no(f"{title} is not installed: {command or install_command(extra)}")
    for package in packages:
        try:
            return Availability.yes(package_version(package))
        except PackageNotFoundError:
            continue
    return Availability.yes("of unknown version")


def require(availability: Availability) -> None:
    """Check that a runtime is installed.

    Raises:
        UnavailableError: the runtime is missing; the hint is the command that installs it.
    """
    if not availability.ok:
        raise UnavailableError(availability.detail.partition(": ")[0], hint=availability.command)
