"""Targets of quantization: one registered `Target` object for each form of quantized model.

An installed package adds a target through an entry point of the group ``quantkit.targets``:

    [project.entry-points."quantkit.targets"]
    toy = "toy_target:TARGET"
"""

from collections.abc import Mapping

from quantkit.quantization.target_registry import REGISTRY
from quantkit.quantization.targets.base import Target
from quantkit.quantization.targets.eightbit import EightbitTarget
from quantkit.quantization.targets.litert import LiteRTTarget
from quantkit.quantization.targets.onnx import OnnxTarget
from quantkit.quantization.targets.tensorflow import TensorFlowTarget
from quantkit.quantization.targets.tensorrt import TensorRTTarget

__all__ = [
    "REGISTRY",
    "EightbitTarget",
    "LiteRTTarget",
    "OnnxTarget",
    "Target",
    "TensorFlowTarget",
    "TensorRTTarget",
    "find_target",
    "targets",
]


def targets() -> Mapping[str, Target]:
    """Return all targets by name: the built-in ones, then those of plugins."""
    return REGISTRY.objects()


def find_target(name: str) -> Target:
    """Return the target of a name.

    Raises:
        UsageError: the name is not registered; the hint suggests similar names.
        UnavailableError: a plugin of that name cannot be loaded.
    """
    target: Target = REGISTRY.find(name)
    return target
