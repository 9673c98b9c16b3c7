"""Names that scripts of users import from quantkit."""

import subprocess
import sys

import pytest

import quantkit

FUNCTIONS = {
    *("limits", "load", "save", "summarize", "sweep", "transform"),
    *("calibrate", "quantize", "receipt", "open_session", "custom_op_library"),
    *("benchmark", "classify", "compare", "evaluate", "monitor", "optimize", "run"),
}
CLASSES = {
    *("Model", "Graph", "Node", "Edge"),
    *("Scheme", "Plan", "Ranges", "QuantizationResult", "Session"),
    *("QuantkitError", "CheckError", "UsageError", "RecipeError", "InputError", "GraphError", "UnavailableError"),
}


def test_public_names_are_complete() -> None:
    assert set(quantkit.__all__) == set(dir(quantkit)) == FUNCTIONS | CLASSES


def test_public_names_are_documented() -> None:
    values = {name: getattr(quantkit, name) for name in quantkit.__all__}
    assert {name for name, value in values.items() if isinstance(value, type)} == CLASSES
    assert [name for name, value in values.items() if not (callable(value) and value.__doc__)] == []


def test_star_import_adds_only_public_names() -> None:
    script = "names = {*globals(), 'names'}\nfrom quantkit import *\nprint(*sorted({*globals()} - names))\n"
    script += "import sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names, modules = (set(line.split()) for line in result.stdout.splitlines())
    assert names == FUNCTIONS | CLASSES
    assert not {"tensorflow", "onnxruntime", "openvino", "torch"} & modules


def test_function_keeps_its_name_when_a_package_of_that_name_is_imported() -> None:
    script = "import quantkit as qk, quantkit.benchmark.host\nprint(callable(qk.benchmark), callable(qk.benchmark))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "True True\n"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        quantkit.quantise  # type: ignore[attr-defined]  # noqa: B018
