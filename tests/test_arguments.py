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


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": "5"},
        {"limit": 0},
        {"batch": 0},
        {"precision": "int4"},
        {"intra_op": 0},
        {"min_top1": 90},
        {"max_kl": -1},
        {"labels": [1]},
        {"input_std": 0},
        {"on_message": 3},
    ],
    ids=str,
)
def test_evaluate_checks_its_arguments(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    rejects(lambda: qk.evaluate("digits", DATA, **arguments), name)


def test_evaluate_checks_limits_of_metrics() -> None:
    assert qk.evaluate("digits", DATA, limit=5, runtime="reference", min_top1=0.5, intra_op=1).metrics.samples == 5
    with pytest.raises(qk.UsageError, match="agreement is measured with a reference model"):
        qk.evaluate("digits", DATA, limit=5, runtime="reference", min_agreement=0.5)


def test_inputs_and_labels_of_different_lengths_are_rejected() -> None:
    pixels = np.zeros((20, 16, 16, 1), np.uint8)
    rejects(lambda: qk.evaluate("digits", (pixels, np.zeros(5, int))), "20 inputs and 5 labels")


@pytest.mark.parametrize(
    "arguments",
    [{"limit": 0}, {"seed": "1"}, {"floor": "low"}, {"runtimes": "auto"}, {"runtimes": ("auto", 3)}, {"inputs": 3}],
    ids=str,
)
def test_compare_checks_its_arguments(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    rejects(lambda: qk.compare("digits", "digits", **arguments), name)


def test_compare_takes_the_options_of_its_command() -> None:
    assert qk.compare("digits", "digits", structure=True).are_equal
    with pytest.raises(qk.CheckError):
        qk.compare("digits", qk.transform("digits", "quantize_weights"), limit=1, min_sqnr=1000)


@pytest.mark.parametrize("arguments", [{"top": "3"}, {"top": 0}, {"labels": ["a"]}, {"precision": "int4"}], ids=str)
def test_classify_checks_its_arguments(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    rejects(lambda: qk.classify(ASSETS / "digit_3.png", "digits", **arguments), name)


def test_classify_rejects_values_that_are_not_images() -> None:
    model = qk.load("digits")
    rejects(lambda: qk.classify(model, ASSETS / "digit_3.png"), "images is a Model")  # type: ignore[call-overload]
    rejects(lambda: qk.classify(None, model), "images is None")  # type: ignore[call-overload]
    rejects(lambda: qk.classify([3], model), "image 0 is an int")  # type: ignore[list-item]


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "RGBA"])
def test_classify_takes_images_of_pillow(mode: str) -> None:
    from PIL import Image

    with Image.open(ASSETS / "digit_3.png") as image:
        converted: Any = image.convert(mode)
    (best, *_) = qk.classify(converted, "digits", runtime="reference")
    assert best.label == "3"
    assert qk.classify([converted, converted], "digits", runtime="reference")[1][0].label == "3"


@pytest.mark.parametrize(
    "arguments",
    [
        {"runs": "3"},
        {"cpus": 0},
        {"cpus": "0"},
        {"cpus": [-1]},
        {"precision": "int4"},
        {"precision": 3},
        {"time_budget": "soon"},
        {"warmup": -1},
        {"environment": "A=B"},
        {"intra_op": 2.5},
    ],
    ids=str,
)
def test_benchmark_checks_its_arguments(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    rejects(lambda: qk.benchmark("digits", **arguments), name)


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_mismatch": "ignore"},
        {"verify": "yes"},
        {"tolerance": -1},
        {"seed": "0"},
        {"output": 3},
        {"plugins": "a.py"},
        {"evaluate_with": "jax"},
        {"inputs": 3},
    ],
    ids=str,
)
def test_transform_checks_its_arguments(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    rejects(lambda: qk.transform("digits", "inference", **arguments), name)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: qk.save("digits", 3), "path is an int"),
        (lambda: qk.save("digits", "d.pb", as_text="no"), "as_text is 'no'"),
        (lambda: qk.load("digits", 3), "inputs is an int"),
        (lambda: qk.load("digits", offline="no"), "offline is 'no'"),
        (lambda: qk.load("digits", tags=3), "tags is an int"),
        (lambda: qk.open_session("digits", 3), "runtime is an int"),
        (lambda: qk.open_session("digits", threads="2"), "threads is '2'"),
        (lambda: qk.open_session("digits", "reference", 2), "options is an int"),
        (lambda: qk.summarize("digits", outputs=3), "outputs is an int"),
    ],
)
def test_other_functions_check_their_arguments(call: Callable[[], Any], text: str) -> None:
    rejects(call, text)


def test_summarize_takes_inputs_and_outputs() -> None:
    graph = qk.load("digits").graph
    name = str(graph["softmax"].inputs[0])
    assert [endpoint.name for endpoint in qk.summarize("digits", outputs=[name]).outputs] == [name]


def test_calibrate_checks_its_arguments() -> None:
    from quantkit.quantization import annotate

    model = qk.transform("digits", "inference")
    plan = annotate(model.graph, qk.Scheme.for_target("onnx"))
    images = np.zeros((1, 16, 16, 1), np.float32)
    assert isinstance(qk.calibrate(model, plan, [images]), qk.Ranges)
    wrong: Any = 3
    rejects(lambda: qk.calibrate(wrong, plan, [images]), "an int is not a model")
    rejects(lambda: qk.calibrate(model, wrong, [images]), "plan is an int")
    rejects(lambda: qk.calibrate(model, plan, wrong), "batches is an int")
    rejects(lambda: qk.calibrate(model, plan, [images], resume=wrong), "resume is an int")


def test_bytes_of_other_content_have_a_hint() -> None:
    with pytest.raises(qk.InputError, match="the 3 bytes are not a serialized model") as caught:
        qk.load(b"abc")
    assert caught.value.hint


def test_array_of_an_unknown_input_is_rejected() -> None:
    pixels = np.zeros((2, 16, 16, 1), np.uint8)
    with pytest.raises(qk.UsageError, match="an array 'Mull', which is not an input") as caught:
        qk.evaluate("digits", {"Mull": pixels}, runtime="reference")
    assert caught.value.hint == "did you mean 'Mul'?"
