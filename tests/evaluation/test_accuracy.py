"""Evaluating the digits: from Python, and on the command line."""

import json
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from records import example, write_records

import quantkit as qk
from quantkit.data import Data
from quantkit.data.labels import Labels
from quantkit.errors import InputError, UsageError
from quantkit.evaluation.accuracy import Interrupted, class_of, evaluate
from quantkit.evaluation.classification_metrics import Proportion
from quantkit.ir.graph import Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

ASSETS = Path(__file__).parent.parent.parent / "assets"
HELDOUT = ASSETS / "digits_heldout.npz"
(ENTRY,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit"]
main = ENTRY.load()


@pytest.fixture(scope="module")
def folded() -> Graph:
    """The digits in few nodes, for the reference engine."""
    recipe = 'strip_unused_nodes(shape="1,16,16,1") fold_constants fold_batch_norms fold_old_batch_norms'
    return qk.transform(qk.load("digits", inputs=["Mul"], outputs=["softmax"]).graph, recipe)


def test_digits_are_all_right() -> None:
    found = qk.evaluate("digits", HELDOUT, runtime="reference", limit=40, batch=40)
    assert found.quality.top1 == Proportion(40, 40)
    assert found.quality.agreement is None
    assert found.model == "digits"
    assert found.pictures_per_second > 0
    assert "100.0 %" in str(found)


def test_a_version_agrees_with_its_reference(folded: Graph) -> None:
    seen: list[tuple[int, int]] = []
    found = evaluate(
        folded,
        HELDOUT,
        reference="digits",
        runtime="reference",
        reference_runtime="reference",
        limit=20,
        batch=8,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert found.quality.agreement == Proportion(20, 20)
    assert found.quality.kl_divergence == pytest.approx(0, abs=1e-6)
    assert seen == [(8, 20), (16, 20), (20, 20)]


def test_folders_of_classes_and_lists(tmp_path: Path) -> None:
    for digit in range(10):
        (tmp_path / "folder" / str(digit)).mkdir(parents=True)
        (tmp_path / "folder" / str(digit) / f"{digit}.png").write_bytes((ASSETS / f"digit_{digit}.png").read_bytes())
    (tmp_path / "folder" / "3" / "broken.png").write_bytes(b"no picture")
    found = evaluate("digits", tmp_path / "folder", runtime="reference")
    assert found.quality.top1 == Proportion(10, 10)
    assert [Path(name).name for name in found.refused] == ["broken.png"]
    lines = [f"{ASSETS}/digit_{digit}.png {digit if digit else 'zebra'}" for digit in range(4)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    found = evaluate("digits", tmp_path / "list.txt", runtime="reference")
    assert (found.quality.top1, found.unknown_labels) == (Proportion(3, 3), 1)
    assert "none of the model's classes" in str(found)
    assert "nothing tells what is right" not in str(found)
    assert "nothing tells what is right" in str(evaluate("digits", ASSETS, runtime="reference"))
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="none of 1 pictures"):
        evaluate("digits", tmp_path / "only", runtime="reference")


def test_pixels_and_prepared_numbers_give_the_same(folded: Graph) -> None:
    with np.load(HELDOUT) as file:
        pixels, labels = file["images"][:10], file["labels"][:10]
    prepared = Data.of((pixels.astype(np.float32) - 128) / 128, labels)
    first = evaluate(folded, Data.of(pixels, labels), runtime="reference").quality
    second = evaluate(folded, prepared, reference=folded, runtime="reference", reference_runtime="reference").quality
    assert first.top1 == second.top1 == Proportion(10, 10)
    with pytest.raises(UsageError, match="holds 2 arrays"):
        evaluate(folded, Data.of({"a": pixels, "b": pixels}), runtime="reference")


def test_records_are_evaluated_like_files(tmp_path: Path) -> None:
    pictures = [(ASSETS / f"digit_{digit}.png").read_bytes() for digit in range(10)]
    records = [
        example(image__encoded=[picture], image__class__label=np.array([digit]))
        for digit, picture in enumerate(pictures)
    ]
    records.append(example(image__encoded=[b"no picture"], image__class__label=np.array([1])))
    found = evaluate("digits", write_records(tmp_path / "digits.tfrecord", records), runtime="reference")
    assert found.quality.top1 == Proportion(10, 10)
    assert list(found.refused) == [f"{tmp_path}/digits.tfrecord (digits.tfrecord#10)"]


def test_a_graph_of_uint8_and_channels_first_is_fed_its_way(folded: Graph) -> None:
    """The same network in front of which pixels are normalised and turned."""
    pixels = Node("pixels", "Placeholder", attrs={"dtype": DType.UINT8, "shape": Shape((1, 1, 16, 16))})
    nodes = [
        pixels,
        constant("turn", np.int32([0, 2, 3, 1])),
        Node("turned", "Transpose", ("pixels", "turn"), attrs={"T": DType.UINT8, "Tperm": DType.INT32}),
        Node("float", "Cast", ("turned",), attrs={"SrcT": DType.UINT8, "DstT": DType.FLOAT}),
        constant("centre", np.float32(128)),
        constant("scale", np.float32(1 / 128)),
        Node("centred", "Sub", ("float", "centre"), attrs={"T": DType.FLOAT}),
        Node("Mul", "Mul", ("centred", "scale"), attrs={"T": DType.FLOAT}),
    ]
    nodes = [node.with_(inputs=tuple(Graph.of([], node.inputs).inputs)) for node in nodes]
    rest = [node for node in folded.nodes.values() if node.name != "Mul"]
    turned = Graph.of([*nodes, *rest], ["pixels"], ["softmax"])
    found = evaluate(
        turned, HELDOUT, reference=folded, runtime="reference", reference_runtime="reference", limit=6, labels=None
    )
    assert found.quality.agreement == Proportion(6, 6)
    assert found.quality.kl_divergence == pytest.approx(0, abs=1e-6)


def test_interrupting_keeps_what_was_counted(folded: Graph) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        evaluate(folded, HELDOUT, runtime="reference", batch=4, progress=interrupt)
    assert stopped.value.evaluation.quality.samples == 4


def test_labels_mean_classes_by_synset_words_or_number() -> None:
    labels = Labels({1: "crane", 2: "crane", 3: "giant panda, panda"}, {1: "n00000001", 2: "n00000002"}, length=4)
    assert class_of("n00000002", labels, 4) == 2
    assert class_of("Giant_panda", labels, 4) == 3
    assert class_of("crane", labels, 4) is None
    assert class_of("1", labels, 4) == 1
    assert class_of("4", labels, 4) is None


def test_the_command_prints_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "digits@reference", "--data", str(HELDOUT), "--limit", "12"]
    assert main([*words, "--json", "--min-top1", "0.9", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "quantkit.evaluate/1"
    assert document["top1"]["count"] == document["samples"] == 12
    assert main([*words, "--reference", "digits@reference", "--min-agreement", "1", "--max-kl", "1e-6"]) == 0
    assert "agreement    100.0 %" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--data", str(HELDOUT), "--min-agreement", "0.9"], 1, "there is no --reference"),
        (["--data", str(HELDOUT), "--max-kl", "0.9"], 1, "there is no --reference"),
        (["--data", str(ASSETS), "--min-top1", "0.9"], 1, "no picture has a label"),
        (["--data", str(HELDOUT), "--min-top1", "2"], 2, "is not a fraction"),
        (["--data", str(HELDOUT), "--limit", "0"], 2, "is not a whole number"),
        (["--data", "nowhere"], 3, "does not exist"),
        ([], 2, "--data"),
    ],
)
def test_what_can_not_be_done_is_a_sentence(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = [] if "--limit" in words else ["--limit", "4"]
    assert main(["evaluate", "digits@reference", *limit, *words]) == code
    assert message in capsys.readouterr().err
