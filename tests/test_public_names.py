import subprocess
import sys

import pytest

import quantkit

# What users' scripts rely on.
NAMES = {
    *("load", "save", "summarize"),
    "transform",
    *("calibrate", "quantize", "open_session"),
    *("benchmark", "classify", "compare", "evaluate"),
}


def test_the_public_names_are_those_that_were_promised() -> None:
    assert set(quantkit.__all__) == set(dir(quantkit)) == NAMES


@pytest.mark.parametrize("name", quantkit.__all__)
def test_each_can_be_called_and_says_what_it_does(name: str) -> None:
    function = getattr(quantkit, name)
    assert callable(function)
    assert function.__doc__


def test_a_star_brings_nothing_else_and_loads_no_engine() -> None:
    script = "before = {*globals(), 'before'}\nfrom quantkit import *\nprint(*sorted({*globals()} - before))\n"
    script += "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    brought, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert brought == NAMES
    assert not {"tensorflow", "onnxruntime", "openvino", "torch"} & loaded


def test_a_function_keeps_its_name_when_a_package_of_that_name_is_imported() -> None:
    script = (
        "import quantkit, quantkit.benchmark.report; print(callable(quantkit.benchmark), callable(quantkit.benchmark))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "True True\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        quantkit.quantise  # type: ignore[attr-defined]  # noqa: B018
