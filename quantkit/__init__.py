"""Rewrite, quantize, run and benchmark TensorFlow and ONNX models.

Importing quantkit loads no runtime: each name is imported on first use.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantkit.batch_inference import run
    from quantkit.benchmark import benchmark
    from quantkit.benchmark.sweep import sweep
    from quantkit.errors import (
        CheckError,
        GraphError,
        InputError,
        QuantkitError,
        RecipeError,
        UnavailableError,
        UsageError,
    )
    from quantkit.evaluation import classify, compare, evaluate
    from quantkit.ir.graph import Edge, Graph, Node
    from quantkit.limits import limits
    from quantkit.model import Model, load
    from quantkit.model.receipt import receipt
    from quantkit.model.saving import save
    from quantkit.model.sessions import open_session
    from quantkit.monitor import monitor
    from quantkit.optimize import optimize
    from quantkit.quantization import Plan, Ranges, Scheme, calibrate
    from quantkit.quantization.workflow import QuantizationResult, quantize
    from quantkit.recipes import transform
    from quantkit.runtimes.onnxruntime import custom_op_library
    from quantkit.runtimes.session import Session
    from quantkit.summary import summarize

# Packages whose functions are public under the name of the package: `quantkit.data.pack`.
_PACKAGES = frozenset({"data", "training"})
# Module of each public name.
_MODULES = {
    "CheckError": "quantkit.errors",
    "Edge": "quantkit.ir.graph",
    "Graph": "quantkit.ir.graph",
    "GraphError": "quantkit.errors",
    "InputError": "quantkit.errors",
    "Model": "quantkit.model",
    "Node": "quantkit.ir.graph",
    "Plan": "quantkit.quantization",
    "QuantizationResult": "quantkit.quantization.workflow",
    "QuantkitError": "quantkit.errors",
    "Ranges": "quantkit.quantization",
    "RecipeError": "quantkit.errors",
    "Scheme": "quantkit.quantization",
    "Session": "quantkit.runtimes.session",
    "UnavailableError": "quantkit.errors",
    "UsageError": "quantkit.errors",
    "benchmark": "quantkit.benchmark",
    "calibrate": "quantkit.quantization",
    "classify": "quantkit.evaluation",
    "compare": "quantkit.evaluation",
    "custom_op_library": "quantkit.runtimes.onnxruntime",
    "evaluate": "quantkit.evaluation",
    "limits": "quantkit.limits",
    "load": "quantkit.model",
    "monitor": "quantkit.monitor.workflow",
    "open_session": "quantkit.model.sessions",
    "optimize": "quantkit.optimize",
    "quantize": "quantkit.quantization.workflow",
    "receipt": "quantkit.model.receipt",
    "run": "quantkit.batch_inference",
    "save": "quantkit.model.saving",
    "summarize": "quantkit.summary",
    "sweep": "quantkit.benchmark.sweep",
    "transform": "quantkit.recipes",
}

__all__ = [
    "CheckError",
    "Edge",
    "Graph",
    "GraphError",
    "InputError",
    "Model",
    "Node",
    "Plan",
    "QuantizationResult",
    "QuantkitError",
    "Ranges",
    "RecipeError",
    "Scheme",
    "Session",
    "UnavailableError",
    "UsageError",
    "benchmark",
    "calibrate",
    "classify",
    "compare",
    "custom_op_library",
    "evaluate",
    "limits",
    "load",
    "monitor",
    "open_session",
    "optimize",
    "quantize",
    "receipt",
    "run",
    "save",
    "summarize",
    "sweep",
    "transform",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"quantkit.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'quantkit' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)


class _Package(ModuleType):
    """Module type that keeps a function when the package of the same name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
