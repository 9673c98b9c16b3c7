"""Distributions with entry points, in the form that pip leaves in site-packages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.registry import Registry


def write_distribution(folder: Path, name: str, source: str, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write a distribution of one module and its metadata.

    Args:
        folder: folder on ``sys.path``.
        name: name of the distribution and of its module.
        source: content of the module.
        entry_points: value of each entry point by group and name: ``{"quantkit.runtimes": {"toy": "toy:RUNTIME"}}``.
    """
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, values in entry_points.items():
        lines += [f"[{group}]", *(f"{entry} = {value}" for entry, value in values.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def forget_plugins(*registries: Registry[Any]) -> None:
    """Make registries search the entry points again after a distribution was added or removed."""
    for registry in registries:
        registry._plugins = None
        registry._problems.clear()
