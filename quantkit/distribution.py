"""The installed distribution of quantkit, and the packages that its extras install.

Hints name these packages themselves: an extra of a distribution could be installed from an index where another project
has the name.
"""

import re
from collections.abc import Iterator
from functools import cache

from quantkit.errors import UnavailableError

NAME = "quantkit-toolchain"


def install_command(*extras: str) -> str:
    """Return the command that installs the packages of extras, with their bounds.

    Args:
        extras: names of extras in ``pyproject.toml``.
    """
    requirements = dict.fromkeys(requirement for extra in extras for requirement in _requirements(extra))
    if not requirements:
        return f"pip install '.[{','.join(extras)}]' in a clone of quantkit"
    return "pip install " + " ".join(f"'{requirement}'" for requirement in requirements)


@cache
def package_version(package: str) -> str:
    """Return the version of an installed package, whose metadata are parsed once.

    Raises:
        PackageNotFoundError: the package is not installed.
    """
    from importlib.metadata import version

    return version(package)


def installed_version() -> str:
    """Return the version of quantkit.

    Raises:
        UnavailableError: the metadata of the package are missing, as in a copied folder.
    """
    from importlib.metadata import PackageNotFoundError

    try:
        return package_version(NAME)
    except PackageNotFoundError:
        raise UnavailableError(
            f"the metadata of the package {NAME} are missing, which a file states the version of",
            hint="pip install . in a clone of quantkit",
        ) from None


def find_other_distributions() -> tuple[str, ...]:
    """Return the other installed distributions with a package ``quantkit``, in the same folder."""
    from importlib.metadata import packages_distributions

    return tuple(sorted(set(packages_distributions().get("quantkit", ())) - {NAME}))


def _requirements(extra: str) -> Iterator[str]:
    """Yield the requirements of an extra, without markers; none if quantkit is not installed as a distribution."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(NAME) or ()
    except PackageNotFoundError:
        return
    for line in lines:
        requirement, _, marker = line.partition(";")
        if re.search(rf"extra == ['\"]{extra}['\"]", marker):
            yield requirement.strip()
