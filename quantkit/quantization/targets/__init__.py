"""Targets of quantization: one registered `Target` object for each form of quantized model.

An installed package adds a target through an entry point of the group ``quantkit.targets``:

    [project.entry-points."quantkit.targets"]
    toy = "toy_target:TARGET"
"""

from collections.abc import Mapping

from quantkit.quantization.targets import eightbit, litert, onnx, tensorflow
from quantkit.quantization.targets.base import Target
from quantkit.registry import Registry

__all__ = ["REGISTRY", "Target", "find_target", "targets"]

REGISTRY = Registry(
    "target",
    Target,
    (onnx.TARGET, tensorflow.TARGET, eightbit.TARGET, litert.TARGET),
)


def targets() -> Mapping[str, Target]:
    """Return all targets by name: the built-in ones, then those of plugins."""
    return REGISTRY.objects()


def find_target(name: str) -> Target:
    """Return the target of a name.

    Raises:
        UsageError: the name is not registered; the hint suggests similar names.
        UnavailableError: a plugin of that name cannot be loaded.
    """
    return REGISTRY.find(name)
