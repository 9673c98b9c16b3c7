"""A misspelled keyword of a public function is a UsageError that names the function and the nearest keyword."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

import quantkit as qk
from quantkit.arguments import public
from quantkit.data import PreprocessingOptions
from quantkit.evaluation import Evaluation, LayerComparison
from quantkit.model import Model
from quantkit.quantization import Scheme
from quantkit.recipes import rewrite
from quantkit.runtimes import SessionOptions
from quantkit.training import PruningSchedule

PACKAGES = (
    *("quantkit", "quantkit.quantization", "quantkit.recipes", "quantkit.rewriting"),
    *("quantkit.evaluation", "quantkit.benchmark", "quantkit.model", "quantkit.data", "quantkit.summary"),
    "quantkit.runtimes",
    *("quantkit.batch_inference", "quantkit.training"),
)
CLASSES = (Scheme, SessionOptions, PreprocessingOptions, PruningSchedule)
METHODS = (Model.save, Model.with_endpoints, Evaluation.check, LayerComparison.check, SessionOptions.with_)


def public_functions() -> Iterator[Callable[..., Any]]:
    """Yield each function that a public package exports, except those whose keywords are data."""
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            if inspect.isfunction(function := getattr(package, name)) and function is not rewrite:
                yield function


CALLABLES: tuple[Callable[..., Any], ...] = (*public_functions(), *CLASSES, *METHODS)
FUNCTIONS = {f"{function.__module__}.{function.__qualname__}": function for function in CALLABLES}


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """Return the keywords of a function, those of ``**options: Unpack[...]`` included."""
    keywords = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords += get_args(parameter.annotation)[0].__annotations__
        elif parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            keywords.append(parameter.name)
    return keywords


def test_all_verbs_are_covered() -> None:
    verbs = {name for name in qk.__all__ if inspect.isfunction(getattr(qk, name))}
    assert verbs <= {function.__name__ for function in FUNCTIONS.values()}
    assert len(FUNCTIONS) > 40


def error_of(function: Callable[..., Any], keyword: str) -> tuple[str, str]:
    """Return the message and the hint for a keyword that a function does not have."""
    try:
        function(**{keyword: None})
    except qk.UsageError as error:
        return error.message, error.hint
    except Exception as error:  # the test names the function
        return repr(error), ""
    return "no error", ""


def test_unknown_keyword_is_a_usage_error() -> None:
    errors = {name: error_of(function, "banana") for name, function in FUNCTIONS.items()}
    messages = {name: f"{function.__qualname__}() has no argument 'banana'" for name, function in FUNCTIONS.items()}
    assert {name: message for name, (message, _) in errors.items()} == messages
    assert [name for name, (_, hint) in errors.items() if not hint] == []


def test_nearest_keyword_is_suggested() -> None:
    keywords = [
        (name, keyword) for name, function in FUNCTIONS.items() for keyword in keywords_of(function) if len(keyword) > 4
    ]
    errors = {(name, keyword): error_of(FUNCTIONS[name], keyword[:-2] + keyword[-1]) for name, keyword in keywords}
    assert len(errors) > 200
    assert {key: error for key, error in errors.items() if repr(key[1]) not in error[1]} == {}


@pytest.mark.parametrize(
    ("call", "keyword"),
    [
        (lambda: qk.quantize("digits", "data", max_dorp=0.01), "max_drop"),  # type: ignore[call-arg]
        (lambda: qk.classify("digit.png", "digits", tob=3), "top"),  # type: ignore[call-overload]
        (lambda: qk.transform("digits", "inference", verfy=True), "verify"),  # type: ignore[call-arg]
        (lambda: Scheme(wieghts=None), "weights"),  # type: ignore[call-arg]
        (lambda: Scheme().with_(observr="mse"), "observer"),
    ],
)
def test_misspelled_keyword(call: Callable[[], Any], keyword: str) -> None:
    with pytest.raises(qk.UsageError) as caught:
        call()
    assert caught.value.hint == f"did you mean {keyword!r}?"


def test_signature_and_documentation_are_those_of_the_function() -> None:
    signature = inspect.signature(qk.evaluate)
    assert list(signature.parameters)[:3] == ["model", "data", "reference"]
    assert signature.return_annotation is Evaluation
    assert (qk.evaluate.__doc__ or "").startswith("Compute the accuracy of a model")
    assert qk.evaluate.__module__ == "quantkit.evaluation.accuracy"


def test_arguments_and_results_pass_through() -> None:
    @public
    def area(width: int, /, height: int = 2, *, scale: int = 1) -> int:
        return width * height * scale

    assert area(3, height=4, scale=5) == 60
    with pytest.raises(qk.UsageError, match="has no argument 'width'"):
        area(width=3)  # type: ignore[call-arg]
