"""Registry of the targets, which are imported on first use: a scheme names a target, and a target converts schemes.

`quantkit.quantization.targets` describes the plugins.
"""

from typing import Any

from quantkit.registry import Registry

_PACKAGE = "quantkit.quantization.targets"

REGISTRY: Registry[Any] = Registry(
    "target",
    f"{_PACKAGE}.base:Target",
    {name: f"{_PACKAGE}.{name}:TARGET" for name in ("onnx", "tensorflow", "eightbit", "litert", "tensorrt")},
    f"{_PACKAGE}.check:check_definition",
)
