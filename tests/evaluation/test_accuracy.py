"""Evaluation of the digits model, from Python and on the command line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import main
from PIL import Image
from records import example, write_records

import quantkit as qk
from quantkit.data import ArrayDataset
from quantkit.data.labels import Labels
from quantkit.errors import CheckError, InputError, UsageError
from quantkit.evaluation import EvaluationInterrupted, evaluate
from quantkit.evaluation.classification_metrics import Proportion
from quantkit.evaluation.evaluation_run import find_class
from quantkit.ir.graph import Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.progress import Progress
from quantkit.recipes import rewrite

ASSETS = Path(__file__).parent.parent.parent / "assets"
HELDOUT = ASSETS / "digits_heldout.npz"


@pytest.fixture(scope="module")
def folded() -> Graph:
    """Folded digits model, for the NumPy runtime."""
    recipe = 'strip_unused_nodes(shape="1,16,16,1") fold_constants fold_batch_norms fold_old_batch_norms'
    return rewrite(qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph, recipe)


def test_all_digits_are_correct() -> None:
    evaluation = qk.evaluate("digits", HELDOUT, runtime="reference", limit=40, batch=40)
    assert evaluation.metrics.top1 == Proportion(40, 40)
    assert evaluation.metrics.agreement is None
    assert evaluation.model == "digits"
    assert evaluation.samples_per_second > 0
    assert "100.0 %" in str(evaluation)


def test_transformed_model_agrees_with_its_reference(folded: Graph) -> None:
    reports: list[Progress] = []
    evaluation = evaluate(
        folded,
        HELDOUT,
        reference="digits",
        runtime="reference",
        reference_runtime="reference",
        limit=20,
        batch=8,
        on_progress=reports.append,
    )
    assert evaluation.metrics.agreement == Proportion(20, 20)
    assert evaluation.metrics.kl_divergence == pytest.approx(0, abs=1e-6)
    assert reports == [Progress("evaluating", done, 20) for done in (8, 16, 20)]


def test_sorted_folders_are_the_classes_of_a_model_without_labels(tmp_path: Path) -> None:
    nodes = (
        Node("pixels", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 2, 2, 1))}),
        Node("axes", "Const", attrs=constant("axes", np.array([1, 2], np.int32)).attrs),
        Node("mean", "Mean", ("pixels", "axes")),
        constant("weights", np.array([[1, 0, -1]], np.float32)),
        Node("product", "MatMul", ("mean", "weights")),
        constant("bias", np.array([0, 0.5, 0], np.float32)),
        Node("scores", "BiasAdd", ("product", "bias")),
    )
    model = Graph.of(nodes, ["pixels"], ["scores"])
    names = {"a_bright": 255, "b_gray": 128, "c_dark": 0}
    for name, value in names.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("L", (2, 2), value).save(tmp_path / "data" / name / "x.png")
    evaluation = evaluate(model, tmp_path / "data", runtime="reference", limit=2)
    assert (evaluation.metrics.top1, evaluation.unknown_labels) == (Proportion(2, 2), 0)
    assert f"the 3 folders of {tmp_path / 'data'}, sorted" in str(evaluation)
    (tmp_path / "labels.txt").write_text("\n".join(reversed(names)))  # names with an underscore
    evaluation = evaluate(model, tmp_path / "data", runtime="reference", labels=tmp_path / "labels.txt")
    assert (evaluation.metrics.top1, evaluation.unknown_labels, evaluation.classes) == (Proportion(1, 3), 0, "")
    (tmp_path / "data" / "d").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "data" / "d" / "x.png")
    evaluation = evaluate(model, tmp_path / "data", runtime="reference")
    assert (evaluation.metrics.top1, evaluation.unknown_labels, evaluation.classes) == (None, 4, "")


def test_hint_of_a_limit_that_the_reference_model_misses(folded: Graph) -> None:
    with np.load(HELDOUT) as data:
        images, labels = data["images"][:8], data["labels"][:8]
    arrays = (images, np.where(np.arange(8) < 4, labels, (labels + 1) % 10))
    evaluation = evaluate(folded, arrays, "digits", runtime="reference", reference_runtime="reference")
    with pytest.raises(CheckError, match="below the limit 0.9") as caught:
        evaluation.check(min_top1=0.9)
    assert "the reference model is below this limit, too" in caught.value.hint
    evaluation = replace(evaluation, metrics=replace(evaluation.metrics, agreement=Proportion(2, 8)))
    with pytest.raises(CheckError, match="below the limit 0.9") as caught:
        evaluation.check(min_top1=0.9)
    assert "quantkit compare" in caught.value.hint


def test_folders_of_classes_and_lists(tmp_path: Path) -> None:
    for digit in range(10):
        (tmp_path / "folder" / str(digit)).mkdir(parents=True)
        (tmp_path / "folder" / str(digit) / f"{digit}.png").write_bytes((ASSETS / f"digit_{digit}.png").read_bytes())
    (tmp_path / "folder" / "3" / "broken.png").write_bytes(b"no picture")
    evaluation = evaluate("digits", tmp_path / "folder", runtime="reference")
    assert evaluation.metrics.top1 == Proportion(10, 10)
    assert [Path(name).name for name in evaluation.rejected] == ["broken.png"]
    lines = [f"{ASSETS}/digit_{digit}.png {digit if digit else 'zebra'}" for digit in range(4)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    evaluation = evaluate("digits", tmp_path / "list.txt", runtime="reference")
    assert (evaluation.metrics.top1, evaluation.unknown_labels) == (Proportion(3, 3), 1)
    assert "not classes of the model" in str(evaluation)
    assert "no labels" not in str(evaluation)
    assert "no labels and no reference" in str(evaluate("digits", ASSETS, runtime="reference"))
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="none of 1 images can be decoded"):
        evaluate("digits", tmp_path / "only", runtime="reference")


def test_pixels_and_preprocessed_arrays_give_equal_metrics(folded: Graph) -> None:
    with np.load(HELDOUT) as file:
        pixels, labels = file["images"][:10], file["labels"][:10]
    prepared = ArrayDataset.of((pixels.astype(np.float32) - 128) / 128, labels)
    first = evaluate(folded, ArrayDataset.of(pixels, labels), runtime="reference").metrics
    second = evaluate(folded, prepared, reference=folded, runtime="reference", reference_runtime="reference").metrics
    assert first.top1 == second.top1 == Proportion(10, 10)
    with pytest.raises(UsageError, match="holds 2 arrays"):
        evaluate(folded, ArrayDataset.of({"a": pixels, "b": pixels}), runtime="reference")


def test_records_are_evaluated_like_files(tmp_path: Path) -> None:
    images = [(ASSETS / f"digit_{digit}.png").read_bytes() for digit in range(10)]
    records = [
        example(image__encoded=[image], image__class__label=np.array([digit])) for digit, image in enumerate(images)
    ]
    records.append(example(image__encoded=[b"no picture"], image__class__label=np.array([1])))
    evaluation = evaluate("digits", write_records(tmp_path / "digits.tfrecord", records), runtime="reference")
    assert evaluation.metrics.top1 == Proportion(10, 10)
    assert list(evaluation.rejected) == [f"{tmp_path}/digits.tfrecord (digits.tfrecord#10)"]


def test_input_may_be_uint8_with_channels_first(folded: Graph) -> None:
    """Prepend normalization and a transpose to the digits model."""
    pixels = Node("pixels", "Placeholder", attrs={"dtype": DType.UINT8, "shape": Shape((1, 1, 16, 16))})
    nodes = [
        pixels,
        constant("perm", np.array([0, 2, 3, 1], np.int32)),
        Node("transposed", "Transpose", ("pixels", "perm"), attrs={"T": DType.UINT8, "Tperm": DType.INT32}),
        Node("float", "Cast", ("transposed",), attrs={"SrcT": DType.UINT8, "DstT": DType.FLOAT}),
        constant("centre", np.float32(128)),
        constant("scale", np.float32(1 / 128)),
        Node("centred", "Sub", ("float", "centre"), attrs={"T": DType.FLOAT}),
        Node("Mul", "Mul", ("centred", "scale"), attrs={"T": DType.FLOAT}),
    ]
    nodes = [node.with_(inputs=tuple(Graph.of([], node.inputs).inputs)) for node in nodes]
    rest = [node for node in folded.nodes.values() if node.name != "Mul"]
    transposed = Graph.of([*nodes, *rest], ["pixels"], ["softmax"])
    evaluation = evaluate(
        transposed, HELDOUT, reference=folded, runtime="reference", reference_runtime="reference", limit=6, labels=None
    )
    assert evaluation.metrics.agreement == Proportion(6, 6)
    assert evaluation.metrics.kl_divergence == pytest.approx(0, abs=1e-6)


def test_interrupt_keeps_the_finished_samples(folded: Graph) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(EvaluationInterrupted) as stop:
        evaluate(folded, HELDOUT, runtime="reference", batch=4, on_progress=interrupt)
    assert stop.value.result.metrics.samples == 4


def test_class_is_found_by_wordnet_id_name_or_index() -> None:
    labels = Labels({1: "crane", 2: "crane", 3: "giant panda, panda"}, {1: "n00000001", 2: "n00000002"}, length=4)
    assert find_class("n00000002", labels, 4) == 2
    assert find_class("Giant_panda", labels, 4) == 3
    assert find_class("crane", labels, 4) is None
    assert find_class("1", labels, 4) == 1
    assert find_class("4", labels, 4) is None


def test_the_command_prints_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "digits@reference", "--data", str(HELDOUT), "--limit", "12"]
    assert main([*arguments, "--json", "--min-top1", "0.9", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "quantkit.evaluate/2"
    assert document["top1"]["count"] == document["samples"] == 12
    assert main([*arguments, "--reference", "digits@reference", "--min-agreement", "1", "--max-kl", "1e-6"]) == 0
    assert "agreement    100.0 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", str(HELDOUT), "--min-agreement", "0.9"], 2, "agreement is measured with a reference model"),
        (["--data", str(HELDOUT), "--max-kl", "0.9"], 2, "KL divergence is measured with a reference model"),
        (["--data", str(ASSETS), "--min-top1", "0.9"], 1, "no sample has a label"),
        (["--data", str(HELDOUT), "--min-top1", "2"], 2, "is not a fraction"),
        (["--data", str(HELDOUT), "--limit", "0"], 2, "is not a whole number"),
        (["--data", "nowhere"], 3, "does not exist"),
        ([], 2, "--data"),
    ],
)
def test_invalid_command_gives_a_message(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = [] if "--limit" in arguments else ["--limit", "4"]
    assert main(["evaluate", "digits@reference", *limit, *arguments]) == code
    assert message in capsys.readouterr().err


def test_representation_is_one_short_line() -> None:
    evaluation = qk.evaluate("digits", HELDOUT, runtime="reference", limit=4)
    assert repr(evaluation).startswith("Evaluation('digits' in reference, 4 samples, top-1 100.0 %")


@pytest.mark.parametrize(
    "command",
    [
        "evaluate DIGITS --data DATA --reference DIGITS --max-kl nan",
        "evaluate DIGITS --data DATA --batch 99999999999999999999",
        "compare digits digits --limit 1 --runtime reference --min-sqnr nan",
    ],
)
def test_invalid_limits_and_counts_are_rejected(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(__file__).parents[2] / "assets" / "digits_heldout.npz"
    assert main(command.replace("DIGITS", "digits@reference").replace("DATA", str(data)).split()) == 2
    assert command.split()[-1] in capsys.readouterr().err
