"""``quantkit classify``, through the console entry point."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quantkit.data.dataset import Sample
from quantkit.evaluation.classifier import Classifier, ImagePredictions, RejectedImage
from quantkit.ir.graph import Graph
from quantkit.runtimes import Runtime, Session, SessionOptions

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "inception_v3"
DIGITS = sorted((ROOT / "assets").glob("digit_*.png"))

Main = Callable[[list[str]], int]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Main:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    (entry,) = entry_points(group="console_scripts", name="quantkit")
    loaded: Main = entry.load()
    return loaded


def document(main: Main, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code = main(["classify", *arguments, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def refusal(main: Main, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["classify", *arguments])
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return code, error


@pytest.mark.engine
def test_every_digit_of_the_assets_is_read(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    result = document(main, capsys, *map(str, DIGITS), "--model", "digits", "--offline", "--top", "3")
    assert result["schema"] == "quantkit.classify/2"
    assert [image["predictions"][0]["label"] for image in result["images"]] == list("0123456789")
    assert all(len(image["predictions"]) == 3 and image["are_probabilities"] for image in result["images"])
    assert set(result["images"][0]["seconds"]) == {"decode", "preprocess", "run"}
    assert result["runtime"]["name"]
    assert result["preprocessing"]["channels"] == 1


@pytest.mark.engine
def test_text_has_bars_labels_and_times(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", str(DIGITS[7]), "--model", "digits", "--top", "2"]) == 0
    text = capsys.readouterr().out
    first, best, second, last = text.splitlines()
    assert first.startswith(str(DIGITS[7]))
    assert "%" in best
    assert best.endswith(" 7"), "the index is not printed twice"
    assert best.count("█") > second.count("█")
    assert all(text_part in last for text_part in ("digits in ", "opened in", "decode", "preprocess", "run"))
    assert "\x1b" not in text


@pytest.mark.engine
def test_a_folder_is_walked_and_the_rest_is_counted(
    main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    (folder / "deeper").mkdir(parents=True)
    for index, name in enumerate(("b.png", "deeper/a.png")):
        (folder / name).write_bytes(DIGITS[index].read_bytes())
    (folder / "notes.txt").write_text("none")
    assert main(["classify", str(folder), "--model", "digits", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert [image["image"] for image in result["images"]] == [str(folder / "b.png"), str(folder / "deeper/a.png")]
    assert result["skipped_files"] == 1
    assert "skipped 1 file that is not an image" in captured.err


@pytest.mark.engine
def test_flags_of_label_image_are_accepted(main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]))
    result = document(
        main,
        capsys,
        f"--image={DIGITS[4]}",
        f"--graph={ROOT / 'models' / 'digits.pb'}",
        f"--labels={labels}",
        "--input_layer=Mul",
        "--output_layer=softmax",
        "--input_width=16",
        "--input_height=0",
        "--input_mean=128",
        "--input_std=128",
    )
    assert result["images"][0]["predictions"][0]["label"] == "four"
    assert result["labels"]["source"] == str(labels)


@pytest.mark.engine
def test_decoder_of_the_graph_predicts_the_same_class(
    main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "three.jpg"
    Image.open(DIGITS[3]).convert("L").save(path, quality=95)
    results = [
        document(main, capsys, str(path), "--model", "digits", *flags)["images"][0]["predictions"]
        for flags in ([], ["--input-layer", "DecodeJpeg/contents"], ["--input-layer", "DecodeJpeg:0"])
    ]
    for predictions in results:
        assert predictions[0]["label"] == "3"
        assert predictions[0]["score"] == pytest.approx(results[0][0]["score"], abs=1e-4)


def test_only_tensorflow_decodes_inside_a_graph(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "digits", "--input-layer", "DecodeJpeg/contents", "--runtime", "onnxruntime"]
    code, error = refusal(main, capsys, str(DIGITS[0]), *arguments)
    assert code == 4
    assert "only TensorFlow decodes" in error
    assert "hint:" in error


@pytest.mark.engine
def test_the_graphs_decoder_reads_only_jpeg(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = refusal(main, capsys, str(DIGITS[0]), "--model", "digits", "--input-layer", "DecodeJpeg/contents")
    assert code == 3
    assert "is not a JPEG" in error


@pytest.mark.engine
def test_broken_image_does_not_stop_the_command(main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(DIGITS[0].read_bytes()[:60])
    assert main(["classify", str(broken), str(DIGITS[1]), "--model", "digits", "--json"]) == 3
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert [image["predictions"][0]["label"] for image in result["images"]] == ["1"]
    assert [image["image"] for image in result["rejected"]] == [str(broken)]
    assert captured.err.count(str(broken)) == 1


@pytest.mark.engine
def test_labels_of_the_wrong_length_are_rejected(
    main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "labels.txt").write_text("zero\none\n")
    code, error = refusal(main, capsys, str(DIGITS[0]), "--model", "digits", "--labels", str(tmp_path / "labels.txt"))
    assert code == 3
    assert "has 10 class scores" in error
    assert "has 2" in error


@pytest.mark.engine
def test_scores_that_are_not_probabilities_are_reported(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    graph = str(ROOT / "models" / "digits.pb")
    assert main(["classify", str(DIGITS[5]), "--model", graph, "--output-layer", "softmax/logits"]) == 0
    captured = capsys.readouterr()
    assert "does not sum to one" in captured.out
    assert "%" not in captured.out
    assert "class 5" in captured.out.splitlines()[1]
    assert "no labels found" in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no image is given"),
        (["https://example.org/a.jpg"], 2, "is a web address"),
        (["missing.jpg", "--model", "digits"], 3, "does not exist"),
        ([str(DIGITS[0]), "--model", "digits", "--graph", "x.pb"], 2, "name two models"),
        ([str(DIGITS[0]), "--model", "digit"], 2, "neither a file nor"),
        ([str(DIGITS[0]), "--model", "missing.pb"], 3, "missing.pb"),
        ([str(DIGITS[0]), "--offline"], 3, "inception_v3 is not in"),
        ([str(DIGITS[0]), "--model", "digits", "--input-layer", "Mull"], 2, "not in the graph"),
        ([str(DIGITS[0]), "--model", "digits", "--runtime", "tensorflw"], 2, "not a runtime"),
        ([str(DIGITS[0]), "--model", "digits", "--input_std=x"], 2, "--input-std"),
        (["missing.jpg", "--input-std", "0"], 2, "'0' is not a number to divide by"),
        (["missing.jpg", "--top", "0"], 2, "--top: '0' is not a whole number from 1"),
        (["missing.jpg", "--intra-op", "0"], 2, "--intra-op: '0' is not a whole number from 1"),
    ],
)
def test_invalid_command_gives_a_message(
    main: Main, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    result, error = refusal(main, capsys, *arguments)
    assert result == code
    assert message in error


@pytest.mark.engine
@pytest.mark.models
def test_the_panda(main: Main, capsys: pytest.CaptureFixture[str], standin: Path) -> None:
    arguments = [
        str(SHARED / "cropped_panda.jpg"),
        "--model",
        str(standin / "classify_image_graph_def.pb"),
        "--labels",
        str(SHARED),
    ]
    best = document(main, capsys, *arguments)["images"][0]["predictions"][0]
    assert (best["index"], best["wordnet"]) == (169, "n02510455")
    assert best["label"].startswith("giant panda")
    assert best["score"] == pytest.approx(0.9506, abs=5e-4)
    in_graph = document(main, capsys, *arguments, "--input-layer", "DecodeJpeg/contents")
    assert in_graph["images"][0]["predictions"][0]["score"] == pytest.approx(best["score"], abs=1e-5)


@pytest.mark.engine
@pytest.mark.models
def test_labels_of_another_release_are_rejected(
    main: Main, capsys: pytest.CaptureFixture[str], standin: Path, tmp_path: Path
) -> None:
    lines = ["background", "tench", *(f"class {index}" for index in range(2, 1001))]
    for index, label in ((9, "hen"), (279, "kit fox"), (389, "giant panda"), (544, "dumbbell")):
        lines[index] = label
    labels = tmp_path / "imagenet_slim_labels.txt"
    labels.write_text("\n".join(lines))
    arguments = [
        str(SHARED / "cropped_panda.jpg"),
        "--graph",
        str(standin / "classify_image_graph_def.pb"),
        "--labels",
        str(labels),
    ]
    code, error = refusal(main, capsys, *arguments)
    assert code == 3
    assert "every prediction would be wrong" in error


def test_interrupt_keeps_the_finished_images(
    main: Main, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Classifier.classify

    def classify_two(self: Classifier, samples: Sequence[Sample]) -> Iterator[ImagePredictions | RejectedImage]:
        yield from whole(self, samples[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "classify", classify_two)
    arguments = ["classify", *map(str, DIGITS), "--model", "digits", "--runtime", "reference"]
    assert main([*arguments, "--json"]) == 130
    images = json.loads(capsys.readouterr().out)["images"]
    assert [image["image"] for image in images] == list(map(str, DIGITS[:2]))
    assert main(arguments) == 130
    assert str(DIGITS[1]) in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("classify", str(DIGITS[0]), "--model", "digits"),
        ("evaluate", "digits", "--data", str(ROOT / "assets" / "digits_heldout.npz"), "--limit", "4"),
        ("compare", "digits", "digits", "--limit", "1"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_unavailable_precision_is_rejected(
    main: Main, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main([*arguments, "--runtime", "reference", "--precision", "bfloat16"]) == 4
    error = capsys.readouterr().err
    assert "the NumPy runtime does not support the precision 'bfloat16'" in error
    assert "hint: use --precision float32" in error


def test_reference_model_runs_in_float32(
    main: Main, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions: list[str] = []
    open_model = Runtime.open

    def open_in_float32(self: Runtime, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        precisions.append(options.precision)
        return open_model(self, model, replace(options, precision="float32"))

    monkeypatch.setattr(Runtime, "open", open_in_float32)
    data = ["--data", str(ROOT / "assets" / "digits_heldout.npz"), "--limit", "2", "--runtime", "reference"]
    assert main(["evaluate", "digits", "--reference", "digits@reference", *data, "--precision", "bfloat16"]) == 0
    assert main(["compare", "digits", "digits", *data, "--precision", "float16"]) == 0
    capsys.readouterr()
    assert precisions == ["bfloat16", "float32", "float32", "float16"]
