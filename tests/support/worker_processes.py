"""Processes of a run with workers, by their kind."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def kind_of(process: "psutil.Process") -> str:
    """Return ``worker``, ``node`` for the main process of a Ray node, or an empty string."""
    import psutil  # the doctests of this folder run without it

    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    if "quantkit.workers.child" in command or "ray::RayService" in command:
        return "worker"
    return "node" if "raylet/raylet" in command else ""
