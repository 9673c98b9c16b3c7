"""Arguments of the public functions: a wrong value is a UsageError before any work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.arguments import parse_duration, type_name

ASSETS = Path(__file__).parents[1] / "assets"
DATA = ASSETS / "digits_heldout.npz"


def rejects(call: Callable[[], Any], *texts: str) -> None:
    """Check that a call raises a UsageError with a hint, whose message contains the texts."""
    with pytest.raises(qk.UsageError) as caught:
        call()
    assert caught.value.hint
    for text in texts:
        assert text in caught.value.message


@pytest.mark.parametrize(("value", "seconds"), [(90, 90.0), ("90s", 90.0), ("2m", 120.0), ("1.5h", 5400.0)])
def test_duration_is_parsed(value: Any, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["2 minutes", "", "0s", 0, -1, float("nan"), None, True, [2]])
def test_wrong_duration_is_a_usage_error(value: Any) -> None:
    rejects(lambda: parse_duration(value, "time_budget"), "time_budget", "such as 90s or 10m")


def test_type_names_have_their_article() -> None:
    assert [type_name(value) for value in (3, "a", np.zeros(1), 1.5)] == ["an int", "a str", "an ndarray", "a float"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": "5"},
        {"limit": 0},
        {"runs": "3"},
        {"runs": True},
        {"max_drop": "1%"},
        {"max_drop": 1.5},
        {"max_drop": float("nan")},
        {"time_budget": "soon"},
        {"labels": ["a", "b"]},
        {"scheme": 3},
        {"ranges": {}},
        {"plan": 3},
        {"output": 3},
        {"inputs": 3},
        {"input_std": 0},
        {"uint8_input": "no"},
        {"target": 3},
        {"runtime": 3},
        {"on_progress": 3},
    ],
    ids=str,
)
def test_quantize_checks_its_arguments(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    rejects(lambda: qk.quantize("digits", DATA, **arguments), name)


def test_quantize_takes_the_fields_of_a_scheme() -> None:
    result = qk.quantize("digits", scheme={"target": "onnx", "weights_only": True}, runs=0, time_budget="2m")
    assert result.plan.scheme.weights_only
    rejects(lambda: qk.quantize("digits", DATA, scheme={"weigths": "qint8"}), "weigths")


@pytest.mark.parametrize(
    "verb",
    [
        "benchmark",
        "calibrate",
        "classify",
        "compare",
        "evaluate",
        "load",
        "open_session",
        "quantize",
        "save",
        "summarize",
        "transform",
    ],
)
def test_public_functions_have_their_own_names_and_plain_help(verb: str) -> None:
    import pydoc

    function = getattr(qk, verb)
    assert function.__name__ == verb
    assert " at 0x" not in pydoc.plain(pydoc.render_doc(function))
