"""``quantkit transform``: verification, undone steps, traces and recipe files."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import main

import quantkit as qk
from quantkit.formats import load, save
from quantkit.ir.text import from_text
from quantkit.recipes.named import RECIPES

WRONG = '''
from quantkit.rewriting import constant, transform

@transform
def scale_wrongly(graph):
    """Scale wrongly."""
    return graph.with_nodes(constant("two", 2.01) if n.name == "two" else n for n in graph.nodes.values())
'''


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    nodes = "x = Placeholder[?x3]()\ns = Identity(x, T=float)\ntwo = Const(2.0)\ny = Mul(s, two, T=float)"
    save(from_text(f"inputs: x\noutputs: y\n{nodes}"), tmp_path / "graph.pb")
    (tmp_path / "wrong.py").write_text(WRONG)
    recipe = "scale_wrongly remove_nodes(op=Identity)"
    out = ["-o", str(tmp_path / "out.pb"), "--plugin", str(tmp_path / "wrong.py")]
    return ["transform", str(tmp_path / "graph.pb"), *out, "--transforms", recipe, "--runtime", "reference"]


def test_mismatch_exits_with_1_and_writes_no_file(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--verify", "--trace", str(tmp_path / "t.json")]) == 1
    assert "scale_wrongly changes output 'y'" in capsys.readouterr().err
    assert not (tmp_path / "out.pb").exists()
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(("model", "out"), [("graph.pb", "both.json"), ("both.json", "out.pb")])
def test_trace_does_not_overwrite_another_file(
    model: str, out: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, both = tmp_path / "graph.pb", tmp_path / "both.json"
    before = graph.read_bytes()
    graph.rename(tmp_path / model)
    files = ["--in_graph", str(tmp_path / model), "--out_graph", str(tmp_path / out), "--trace", str(both)]
    assert main(["transform", *files, "--transforms", "remove_nodes(op=Identity)"]) == 2
    assert "both.json" in capsys.readouterr().err
    assert (tmp_path / model).read_bytes() == before
    assert not (tmp_path / out).exists()


def test_mismatch_may_be_skipped(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--on-mismatch", "skip", "--trace", str(tmp_path / "t.json")]) == 0
    out, err = capsys.readouterr()
    assert "scale_wrongly: undone: scale_wrongly changes output 'y'" in err
    assert "scale_wrongly: 4 -> 4 nodes" in out
    assert "verified on inputs of seed 0: exact steps within 10 times the rounding of the model" in out
    graph = load(tmp_path / "out.pb")
    assert (graph["two"].value.array == 2).all()
    assert "s" not in graph
    document = json.loads((tmp_path / "t.json").read_text())
    assert "changes output 'y'" in document["steps"][0]["undone"]
    assert document["steps"][1]["check"] == "y: equal"


def test_tolerance_and_data_are_reported(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((5, 3), np.float32))
    assert main([*arguments, "--tolerance", "0.1", "--data", str(tmp_path / "data.npz"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    verification = document["verification"]
    assert "over the given samples" in verification.pop("warning")
    assert verification == {"data": "given", "seed": 0, "tolerance": 0.1, "max_rounding": 10, "min_cosine": 0.5}
    assert document["steps"][0]["check"] == "y: largest difference 0.01"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tolerance", "much"], "'much' is not a fraction such as 1e-5"),
        (["--tolerance", "1_0e-2"], "'1_0e-2' is not a fraction such as 1e-5"),
        (["--on-mismatch", "skp"], "invalid choice"),
        (["--trace", "trace.txt"], "a trace cannot be written to trace.txt"),
        (["--trace", "no/trace.html"], "no is not a folder"),
    ],
)
def test_wrong_flags_are_rejected(
    arguments: list[str], flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, *flags]) == 2
    assert message in capsys.readouterr().err


def test_data_that_matches_no_input(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", a=np.ones((5, 3), np.float32), b=np.ones((5, 3), np.float32))
    assert main([*arguments, "--data", str(tmp_path / "data.npz")]) == 2
    assert "cannot tell which inputs" in capsys.readouterr().err


def transform_digits(folder: Path) -> list[str]:
    return f"transform digits -o {folder}/out.pb --recipe inference --runtime reference".split()


def test_images_are_preprocessed_for_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = Path(__file__).parent.parent.parent / "assets" / "digit_3.png"
    assert main([*transform_digits(tmp_path), "--verify", "--data", str(image)]) == 0
    assert "verified on the given data" in capsys.readouterr().out


def test_quiet_prints_only_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*transform_digits(tmp_path), "--verify", "-q"]) == 0
    captured = capsys.readouterr()
    assert [line.partition(" ")[0] for line in captured.out.splitlines()] == ["verified", f"{tmp_path}/out.pb:"]
    assert not captured.err


def test_page_is_written(arguments: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "--trace", str(tmp_path / "t.html")]) == 0
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")


def test_recipe_file_may_set_inputs_and_outputs(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('inputs = ["s"]\noutputs = ["y"]\n[[step]]\ntransform = "strip_unused_nodes"\n')
    source = [
        argument
        for argument in arguments
        if argument not in ("--transforms", "scale_wrongly remove_nodes(op=Identity)")
    ]
    assert main([*source, "--recipe", str(path)]) == 0
    assert load(tmp_path / "out.pb")["s"].op == "Placeholder"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('input = ["s"]\n', "has the unknown key 'input'"),
        ('inputs = "s"\n', "inputs is not a list of names"),
    ],
)
def test_wrong_keys_of_a_recipe_file_are_rejected(
    arguments: list[str], tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text + '[[step]]\ntransform = "strip_unused_nodes"\n')
    assert main([*arguments[:-4], "--recipe", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_transforms_list_has_the_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transforms", "list", "--json"]) == 0
    recipes = {recipe["name"]: recipe for recipe in json.loads(capsys.readouterr().out)["recipes"]}
    assert set(recipes) == set(RECIPES)
    assert "quantize_weights obfuscate_names" in recipes["mobile"]["steps"]
    assert main(["transforms", "list"]) == 0
    assert "for an app bundle" in capsys.readouterr().out


def test_summarize_counts_weights_in_other_files(tmp_path: Path) -> None:
    package = pytest.importorskip("onnx")
    qk.save(qk.load("digits", inputs=["Mul"], outputs=["softmax"]), tmp_path / "one.onnx")
    (tmp_path / "two").mkdir()
    options = {"save_as_external_data": True, "size_threshold": 64, "location": "weights"}
    package.save(package.load(tmp_path / "one.onnx"), tmp_path / "two" / "two.onnx", **options)
    files = [file.stat().st_size for file in (tmp_path / "two").iterdir()]
    assert len(files) == 2
    assert qk.summarize(tmp_path / "two" / "two.onnx").file_bytes == sum(files)


def test_summarize_estimates_int8(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summarize", arguments[1], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["file_bytes"] == Path(arguments[1]).stat().st_size
    assert document["int8_outlook"]["layers"] == 0
    assert main(["summarize", arguments[1]]) == 0
    assert "no layer to quantize" in capsys.readouterr().out
