"""Python and the command line give equal documents for classify, evaluate, compare and summarize."""

import json
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.evaluation import compare_structure

ASSETS = Path(__file__).parents[2] / "assets"
DIGITS = [str(ASSETS / f"digit_{digit}.png") for digit in (3, 7)]
HELDOUT = str(ASSETS / "digits_heldout.npz")
TIMES = {"input", "seconds", "opened_seconds", "samples_per_second"}

CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "classify": (
        lambda: qk.classify(DIGITS, "digits", top=3, runtime="reference"),
        ["classify", *DIGITS, "--model", "digits", "--top", "3", "--runtime", "reference"],
    ),
    "evaluate": (
        lambda: qk.evaluate("digits", HELDOUT, "digits", runtime="reference", reference_runtime="reference", limit=12),
        ["evaluate", "digits@reference", "--data", HELDOUT, "--reference", "digits@reference", "--limit", "12"],
    ),
    "evaluate a task": (
        lambda: qk.evaluate("digits", HELDOUT, "digits", runtime="reference", limit=3, task="text"),
        ["evaluate", "digits@reference", "--data", HELDOUT, "--reference", "digits", "--limit", "3", "--task", "text"],
    ),
    "compare on images": (
        lambda: qk.compare("digits", "digits", ASSETS, runtimes=("reference", "reference"), limit=2),
        ["compare", "digits@reference", "digits@reference", "--data", str(ASSETS), "--limit", "2"],
    ),
    "compare on random inputs": (
        lambda: qk.compare("digits", "digits", runtimes=("reference", "reference"), limit=1, seed=3),
        ["compare", "digits", "digits", "--runtime", "reference", "--limit", "1", "--seed", "3"],
    ),
    "compare the structure": (
        lambda: compare_structure("digits", "digits"),
        ["compare", "digits", "digits", "--structure"],
    ),
    "summarize": (lambda: qk.summarize("digits"), ["summarize", "digits"]),
}


def without_times(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: without_times(value) for key, value in document.items() if key not in TIMES}
    return [without_times(value) for value in document] if isinstance(document, list) else document


@pytest.mark.parametrize("case", CASES)
def test_documents_are_equal(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    call, arguments = CASES[case]
    (entry,) = entry_points(group="console_scripts", name="quantkit")
    assert entry.load()([*arguments, "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == f"quantkit.{arguments[0]}/2"
    result = call()
    assert without_times(json.loads(json.dumps(result.to_json()))) == without_times(document)


@pytest.mark.parametrize("case", CASES)
def test_result_prints_as_text_and_html(case: str) -> None:
    result = CASES[case][0]()
    assert "__str__" in {name for base in type(result).__mro__[:-1] for name in vars(base)}
    assert result._repr_html_().startswith("<")


def test_one_image_gives_a_list_of_predictions() -> None:
    predictions = qk.classify(DIGITS[1], "digits", top=2, runtime="reference")
    assert isinstance(predictions, list)
    assert [(best.label, best.index) for best in predictions[:1]] == [("7", 7)]
    assert 0.9 < predictions[0].score <= 1


def test_plot_marks_the_bad_layers() -> None:
    chart = qk.compare("digits", "digits", runtimes=("reference", "reference"), limit=1).plot()
    assert len(chart.bars) > 100
    assert not chart.highlighted
    assert chart.svg().count("<rect") == len(chart.bars)
    assert "softmax" in str(chart)


def test_data_may_be_of_any_kind() -> None:
    with np.load(HELDOUT) as file:
        pixels, labels = file["images"][:6], file["labels"][:6]
    options: dict[str, Any] = {"runtime": "reference"}
    metrics = [
        qk.evaluate("digits", data, **options).metrics
        for data in ((pixels, labels), [(pixels[:4], labels[:4]), (pixels[4:], labels[4:])])
    ]
    assert metrics[0] == metrics[1]
    assert metrics[0].samples == 6
    images = [*DIGITS, *pixels[:2]]
    classification = qk.classify(images, "digits", top=1, **options)
    assert [image.image for image in classification] == [*DIGITS, "array 2", "array 3"]
    assert [image[0].index for image in classification[2:]] == labels[:2].tolist()
    comparison = qk.compare("digits", "digits", {"Mul": pixels}, runtimes=("reference", "reference"))
    assert comparison.samples == 6
