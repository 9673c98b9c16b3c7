"""``quantkit classify``, through the console entry point."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from quantkit.evaluation.classifier import Classifier, Prediction, Refused

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "inception_v3"
DIGITS = sorted((ROOT / "assets").glob("digit_*.png"))

Main = Callable[[list[str]], int]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Main:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    (found,) = entry_points(group="console_scripts", name="quantkit")
    loaded: Main = found.load()
    return loaded


def document(main: Main, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code = main(["classify", *words, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def refusal(main: Main, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["classify", *words])
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return code, error


@pytest.mark.engine
def test_every_digit_of_the_assets_is_read(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(main, capsys, *map(str, DIGITS), "--model", "digits", "--offline", "--top", "3")
    assert found["schema"] == "quantkit.evaluation/1"
    assert [picture["scores"][0]["words"] for picture in found["pictures"]] == list("0123456789")
    assert all(len(picture["scores"]) == 3 and picture["are_probabilities"] for picture in found["pictures"])
    assert set(found["pictures"][0]["seconds"]) == {"decode", "preprocess", "run"}
    assert found["runtime"]["name"]
    assert found["preprocessing"]["channels"] == 1


@pytest.mark.engine
def test_text_has_a_bar_the_words_and_the_times(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", str(DIGITS[7]), "--model", "digits", "--top", "2"]) == 0
    text = capsys.readouterr().out
    first, best, second, last = text.splitlines()
    assert first.startswith(str(DIGITS[7]))
    assert "%" in best
    assert best.endswith(" 7"), "the number is not said twice"
    assert best.count("█") > second.count("█")
    assert all(word in last for word in ("digits in ", "opened in", "decode", "preprocess", "run"))
    assert "\x1b" not in text


@pytest.mark.engine
def test_a_folder_is_walked_and_the_rest_is_counted(
    main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "pictures"
    (folder / "deeper").mkdir(parents=True)
    for index, name in enumerate(("b.png", "deeper/a.png")):
        (folder / name).write_bytes(DIGITS[index].read_bytes())
    (folder / "notes.txt").write_text("none")
    assert main(["classify", str(folder), "--model", "digits", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [picture["path"] for picture in found["pictures"]] == [str(folder / "b.png"), str(folder / "deeper/a.png")]
    assert found["skipped_files"] == 1
    assert "skipped 1 file that is no picture" in captured.err


@pytest.mark.engine
def test_the_classic_flags_are_taken_as_they_were(
    main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]))
    found = document(
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
    assert found["pictures"][0]["scores"][0]["words"] == "four"
    assert found["labels"]["source"] == str(labels)


@pytest.mark.engine
def test_the_graphs_own_decoder_gives_the_same_answer(
    main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "three.jpg"
    Image.open(DIGITS[3]).convert("L").save(path, quality=95)
    answers = [
        document(main, capsys, str(path), "--model", "digits", *flags)["pictures"][0]["scores"]
        for flags in ([], ["--input-layer", "DecodeJpeg/contents"], ["--input-layer", "DecodeJpeg:0"])
    ]
    for scores in answers:
        assert scores[0]["words"] == "3"
        assert scores[0]["probability"] == pytest.approx(answers[0][0]["probability"], abs=1e-4)


def test_only_tensorflow_decodes_inside_a_graph(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "digits", "--input-layer", "DecodeJpeg/contents", "--runtime", "onnxruntime"]
    code, error = refusal(main, capsys, str(DIGITS[0]), *words)
    assert code == 4
    assert "only TensorFlow decodes" in error
    assert "hint:" in error


@pytest.mark.engine
def test_the_graphs_decoder_reads_only_jpeg(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = refusal(main, capsys, str(DIGITS[0]), "--model", "digits", "--input-layer", "DecodeJpeg/contents")
    assert code == 3
    assert "is not a JPEG" in error


@pytest.mark.engine
def test_one_broken_picture_among_many(main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(DIGITS[0].read_bytes()[:60])
    assert main(["classify", str(broken), str(DIGITS[1]), "--model", "digits", "--json"]) == 3
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [picture["scores"][0]["words"] for picture in found["pictures"]] == ["1"]
    assert [one["path"] for one in found["refused"]] == [str(broken)]
    assert captured.err.count(str(broken)) == 1


@pytest.mark.engine
def test_labels_of_the_wrong_length_are_refused(main: Main, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("zero\none\n")
    code, error = refusal(main, capsys, str(DIGITS[0]), "--model", "digits", "--labels", str(tmp_path / "labels.txt"))
    assert code == 3
    assert "gives 10 numbers" in error
    assert "lists 2" in error


@pytest.mark.engine
def test_scores_are_said_to_be_no_probabilities(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    graph = str(ROOT / "models" / "digits.pb")
    assert main(["classify", str(DIGITS[5]), "--model", graph, "--output-layer", "softmax/logits"]) == 0
    captured = capsys.readouterr()
    assert "do not sum to one" in captured.out
    assert "%" not in captured.out
    assert "class 5" in captured.out.splitlines()[1]
    assert "no labels are here" in captured.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "no picture was named"),
        (["https://example.org/a.jpg"], 2, "downloading pictures is off"),
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
def test_what_is_wrong_is_said_in_a_sentence(
    main: Main, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    found, error = refusal(main, capsys, *words)
    assert found == code
    assert said in error


@pytest.mark.engine
@pytest.mark.models
def test_the_panda(main: Main, capsys: pytest.CaptureFixture[str], standin: Path) -> None:
    words = [
        str(SHARED / "cropped_panda.jpg"),
        "--model",
        str(standin / "classify_image_graph_def.pb"),
        "--labels",
        str(SHARED),
    ]
    best = document(main, capsys, *words)["pictures"][0]["scores"][0]
    assert (best["id"], best["wordnet"]) == (169, "n02510455")
    assert best["words"].startswith("giant panda")
    assert best["probability"] == pytest.approx(0.9506, abs=5e-4)
    decoded_inside = document(main, capsys, *words, "--input-layer", "DecodeJpeg/contents")["pictures"][0]["scores"][0]
    assert decoded_inside["probability"] == pytest.approx(best["probability"], abs=1e-5)


@pytest.mark.engine
@pytest.mark.models
def test_the_other_releases_labels_are_refused(
    main: Main, capsys: pytest.CaptureFixture[str], standin: Path, tmp_path: Path
) -> None:
    lines = ["background", "tench", *(f"class {index}" for index in range(2, 1001))]
    for index, words in ((9, "hen"), (279, "kit fox"), (389, "giant panda"), (544, "dumbbell")):
        lines[index] = words
    labels = tmp_path / "imagenet_slim_labels.txt"
    labels.write_text("\n".join(lines))
    words = [
        str(SHARED / "cropped_panda.jpg"),
        "--graph",
        str(standin / "classify_image_graph_def.pb"),
        "--labels",
        str(labels),
    ]
    code, error = refusal(main, capsys, *words)
    assert code == 3
    assert "every answer would be wrong" in error


def test_ctrl_c_keeps_the_answers_that_are_there(
    main: Main, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Classifier.classify

    def interrupted(self: Classifier, paths: Sequence[Path]) -> Iterator[Prediction | Refused]:
        yield from whole(self, paths[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "classify", interrupted)
    words = ["classify", *map(str, DIGITS), "--model", "digits", "--runtime", "reference"]
    assert main([*words, "--json"]) == 130
    assert [one["path"] for one in json.loads(capsys.readouterr().out)["pictures"]] == [str(one) for one in DIGITS[:2]]
    assert main(words) == 130
    assert str(DIGITS[1]) in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("classify", str(DIGITS[0]), "--model", "digits"),
        ("evaluate", "digits", "--data", str(ROOT / "assets" / "digits_heldout.npz"), "--limit", "4"),
        ("compare", "digits", "digits", "--limit", "1"),
    ],
    ids=lambda words: words[0],
)
def test_a_precision_that_is_not_there_is_refused(
    main: Main, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main([*words, "--runtime", "reference", "--precision", "bfloat16"]) == 4
    error = capsys.readouterr().err
    assert "the NumPy runtime does not support the precision 'bfloat16'" in error
    assert "hint: use --precision float32" in error


def test_the_reference_computes_in_float32(
    main: Main, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantkit.runtimes import reference

    asked: list[str] = []
    opened = reference.Reference.open

    def opening(self: Any, model: Any, options: Any) -> Any:
        asked.append(options.precision)
        return opened(self, model, replace(options, precision="float32"))

    monkeypatch.setattr(reference.Reference, "open", opening)
    data = ["--data", str(ROOT / "assets" / "digits_heldout.npz"), "--limit", "2", "--runtime", "reference"]
    assert main(["evaluate", "digits", "--reference", "digits", *data, "--precision", "bfloat16"]) == 0
    assert main(["compare", "digits", "digits", *data, "--precision", "float16"]) == 0
    capsys.readouterr()
    assert asked == ["bfloat16", "float32", "float32", "float16"]
