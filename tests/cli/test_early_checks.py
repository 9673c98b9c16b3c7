"""Missing files, unknown names and unreadable formats are errors before a model is loaded, converted or run."""

from pathlib import Path
from typing import Any

import pytest
from command_line import main

import quantkit as qk
from quantkit.errors import InputError, QuantkitError, UnavailableError, UsageError
from quantkit.formats.files import save
from quantkit.ir.text import from_text
from quantkit.model import loading

GRAPH = from_text("dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[?x4]()\nw = Constant[4x3]()\ny = MatMul(x, w)")
COMMANDS = (
    ("compare M T", 4, "the layers of T cannot be read"),
    ("compare T M", 4, "the layers of T cannot be read"),
    ("compare M V --structure", 4, "the layers of V cannot be read"),
    ("compare M missing.onnx", 3, "missing.onnx does not exist"),
    ("compare M M --data missing", 3, "missing does not exist"),
    ("compare M M@nowhere", 2, "'nowhere' is not a runtime"),
    ("evaluate M --data missing", 3, "missing does not exist"),
    ("evaluate M --data DATA --reference missing.onnx", 3, "missing.onnx does not exist"),
    ("evaluate M --data DATA --labels missing.txt", 3, "missing.txt' cannot be read"),
    ("evaluate M --data DATA --min-agreement 0.9", 2, "agreement is measured with a reference model"),
    ("evaluate M --data DATA --max-kl 0.9", 2, "the KL divergence is measured with a reference model"),
    ("evaluate M --data DATA --task text", 2, "token agreement is measured with a reference model"),
    ("evaluate M --data DATA --runtime nowhere", 2, "'nowhere' is not a runtime"),
    ("benchmark M missing.onnx", 3, "missing.onnx does not exist"),
    ("benchmark M --data missing", 3, "missing does not exist"),
    ("benchmark M --save nowhere/b.json --runs 2", 2, "nowhere is not a folder"),
    ("quantize M -o o.onnx --calibration missing", 3, "missing does not exist"),
    ("quantize M -o o.onnx --calibration DATA --held-out missing", 3, "missing does not exist"),
    ("quantize M -o o.onnx --calibration DATA --labels missing.txt", 3, "missing.txt' cannot be read"),
    ("quantize M -o o.onnx --calibration DATA --recipe nowhere", 2, "no recipe is named 'nowhere'"),
    ("quantize M -o o.onnx --ranges missing.json", 3, "missing.json"),
    ("transform M -o nowhere/o.onnx --recipe inference", 2, "nowhere is not a folder"),
    ("transform M -o o.onnx --recipe inference --verify --data missing", 3, "missing does not exist"),
    ("transform M -o o.onnx --recipe inference --verify --runtime nowhere", 2, "'nowhere' is not a runtime"),
    ("run M --data missing -o results", 3, "missing does not exist"),
    ("run M --data DATA -o results --runtime nowhere", 2, "'nowhere' is not a runtime"),
)
PYTHON = (
    (lambda files: qk.compare(files["M"], files["T"]), UnavailableError),
    (lambda files: qk.compare(files["M"], files["M"], "missing"), InputError),
    (lambda files: qk.compare(files["M"], files["M"], runtimes=("auto", "nowhere")), UsageError),
    (lambda files: qk.evaluate(files["M"], files["DATA"], min_agreement=0.9), UsageError),
    (lambda files: qk.evaluate(files["M"], files["DATA"], "missing.onnx"), InputError),
    (lambda files: qk.evaluate(files["M"], files["DATA"], labels="missing.txt"), InputError),
    (lambda files: qk.quantize(files["M"], files["DATA"], held_out="missing"), InputError),
    (lambda files: qk.transform(files["M"], "inference", data="missing"), InputError),
    (lambda files: qk.run(files["M"], "missing", "results"), InputError),
)


@pytest.fixture(name="files")
def make_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the paths of a model, of files without readable layers, and of data; no model can be loaded."""
    save(GRAPH, tmp_path / "m.onnx")
    (tmp_path / "t.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(100))
    (tmp_path / "v.xml").write_text("<?xml version='1.0'?><net></net>")
    data = Path(__file__).parents[2] / "assets" / "digits_heldout.npz"
    monkeypatch.chdir(tmp_path)

    def fail(*arguments: object) -> None:
        raise AssertionError("a model is loaded before the check")

    monkeypatch.setattr(loading, "import_file", fail)
    return {"M": "m.onnx", "T": "t.tflite", "V": "v.xml", "DATA": str(data)}


@pytest.mark.parametrize(("command", "code", "message"), COMMANDS)
def test_commands_check_files_and_names_first(
    command: str, code: int, message: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [text.partition("@") for text in command.split()]
    assert main(["".join((files.get(name, name), *rest)) for name, *rest in arguments]) == code
    error = capsys.readouterr().err
    assert " ".join(files.get(name, name) for name in message.split()) in error


@pytest.mark.parametrize(("call", "kind"), PYTHON)
def test_functions_check_files_and_names_first(call: Any, kind: type[QuantkitError], files: dict[str, str]) -> None:
    with pytest.raises(kind):
        call(files)
