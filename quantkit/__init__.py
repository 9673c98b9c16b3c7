"""Rewrite trained networks, make them 8-bit, and prove that the result is faster and still right.

Importing this loads no engine, and little else: each name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantkit.benchmark import benchmark
    from quantkit.evaluation.accuracy import evaluate
    from quantkit.evaluation.compare import compare
    from quantkit.model.exporters.files import save
    from quantkit.model.loading import load
    from quantkit.quantization import calibrate, quantize
    from quantkit.recipes import transform
    from quantkit.runtimes import open_session
    from quantkit.summary import summarize
    from quantkit.transforms.registry import transform as transform_function

_HOMES = {
    "benchmark": "quantkit.benchmark",
    "calibrate": "quantkit.quantization",
    "compare": "quantkit.evaluation.compare",
    "evaluate": "quantkit.evaluation.accuracy",
    "load": "quantkit.model.loading",
    "open_session": "quantkit.runtimes",
    "quantize": "quantkit.quantization",
    "save": "quantkit.model.exporters.files",
    "summarize": "quantkit.summary",
    "transform": "quantkit.recipes",
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
