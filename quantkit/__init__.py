"""Rewrite trained networks, make them 8-bit, and prove that the result is faster and still right.

Importing this loads no engine, and little else: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantkit.bench import benchmark
    from quantkit.classify.evaluation import evaluate
    from quantkit.model.loading import load
    from quantkit.model.saving import save
    from quantkit.quantization import calibrate, quantize
    from quantkit.quantization.compare import compare
    from quantkit.recipe import transform
    from quantkit.runtimes import open_session
    from quantkit.summary import summarize
    from quantkit.transforms.registry import transform as transform_function

_HOMES = {
    "benchmark": "quantkit.bench",
    "calibrate": "quantkit.quantization",
    "compare": "quantkit.quantization.compare",
    "evaluate": "quantkit.classify.evaluation",
    "load": "quantkit.model.loading",
    "open_session": "quantkit.runtimes",
    "quantize": "quantkit.quantization",
    "save": "quantkit.model.saving",
    "summarize": "quantkit.summary",
    "transform": "quantkit.recipe",
    "transform_function": "quantkit.transforms.registry",
}
_NAMES = {"transform_function": "transform"}

__all__ = [
    "benchmark",
    "calibrate",
    "compare",
    "evaluate",
    "load",
    "open_session",
    "quantize",
    "save",
    "summarize",
    "transform",
    "transform_function",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), _NAMES.get(name, name))
    raise AttributeError(f"module 'quantkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
