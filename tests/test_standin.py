"""The main job on the real graph: the stand-in of the 2015 Inception v3, node for node the release."""

import json
import shlex
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from command_line import main
from fingerprint import fingerprint

from quantkit.formats import load

pytestmark = pytest.mark.models

EXPECTED = json.loads((Path(__file__).parent / "golden" / "standin.json").read_text())
PANDA = Path(__file__).parent.parent.parent / "shared" / "inception_v3" / "cropped_panda.jpg"

FLOAT = """
  add_default_attributes
  strip_unused_nodes(type=float, shape="1,299,299,3")
  remove_nodes(op=Identity, op=CheckNumerics)
  fold_constants(ignore_errors=true)
  fold_batch_norms
  fold_old_batch_norms
"""
RECIPES = {
    "float": f"{FLOAT} strip_unused_nodes sort_by_execution_order",
    "eightbit": f"{FLOAT} quantize_weights quantize_nodes strip_unused_nodes sort_by_execution_order",
}


# Print the peak memory of the process that runs a command, in kB.
SCRIPT = """
import sys
from importlib import import_module

assert import_module("quantkit.cli").main(sys.argv[1:]) == 0
with open("/proc/self/status") as status:
    print(status.read().partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""


class CommandResult(NamedTuple):
    """Graph that the old tutorial's command makes.

    Attributes:
        path: its file.
        peak_bytes: peak memory of the process of the command.
    """

    path: Path
    peak_bytes: int


@pytest.fixture(scope="module")
def transformed(standin: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, CommandResult]:
    """The graphs with and without the quantize steps."""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    results = {}
    for name, recipe in RECIPES.items():
        path = tmp_path_factory.mktemp("transformed") / f"{name}.pb"
        files = [f"--in_graph={standin}/classify_image_graph_def.pb", f"--out_graph={path}"]
        arguments = ["transform", *files, "--inputs=Mul", "--outputs=softmax", f"--transforms={recipe}", "-q"]
        command = [sys.executable, "-c", SCRIPT, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        results[name] = CommandResult(path, int(done.stderr.split()[-1]) * 1024)
    return results


@pytest.mark.parametrize("name", RECIPES)
def test_it_is_the_original_tools_graph_bit_for_bit(name: str, transformed: dict[str, CommandResult]) -> None:
    """The digests were taken of the graphs that TensorFlow 2.12.1's transform_graph makes of the same file."""
    assert fingerprint(load(transformed[name].path, ["Mul"], ["softmax"])) == EXPECTED[name]


@pytest.mark.parametrize("name", RECIPES)
def test_memory_stays_below_two_and_a_half_files(
    name: str, standin: Path, transformed: dict[str, CommandResult]
) -> None:
    assert transformed[name].peak_bytes < 2.5 * (standin / "classify_image_graph_def.pb").stat().st_size


def test_explain(standin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file names no input: its card does. The README verifies these transforms."""
    arguments = ["transform", str(standin / "classify_image_graph_def.pb"), "-o", str(tmp_path / "out.pb")]
    recipe = "strip_unused_nodes remove_nodes(op=Identity, op=CheckNumerics) fold_old_batch_norms"
    assert main([*arguments, f"--transforms={recipe}", "--explain", "-q"]) == 0
    text = capsys.readouterr().out
    assert "fold_old_batch_norms: 796 -> 514 nodes" in text
    assert "86 more (--verbose lists them)" in text


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(standin: Path) -> Any:
    """Return the URL of the archive on a local server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *arguments: Quiet(*arguments, directory=str(standin)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/inception-2015-12-05.tgz"
    server.shutdown()
    server.server_close()


def test_fetched_then_classified(
    standin: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import hashlib

    if not PANDA.exists():
        pytest.skip("needs ../shared/inception_v3/cropped_panda.jpg")
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path))
    digest = hashlib.sha256((standin / "inception-2015-12-05.tgz").read_bytes()).hexdigest()
    assert main(["models", "fetch", "inception_v3", "--url", address, "--sha256", "0" * 64]) == 3
    assert "sha-256" in capsys.readouterr().err.lower()
    assert main(["models", "fetch", "inception_v3", "--url", address, "--sha256", digest]) == 0
    capsys.readouterr()
    assert main(["classify", str(PANDA), "--offline", "--json", "-q"]) == 0
    (image,) = json.loads(capsys.readouterr().out)["images"]
    best = image["predictions"][0]
    assert best["label"].startswith("giant panda")
    assert best["score"] == pytest.approx(0.9506, abs=2e-3)


def test_the_bare_file_has_one_input_for_every_command(
    standin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file names no input: its card does, and the command that summarize advises succeeds."""
    model = str(standin / "classify_image_graph_def.pb")
    assert main(["summarize", model, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(entry["name"], entry["shape"]) for entry in document["inputs"]] == [("Mul", [1, 299, 299, 3])]
    command = document["next_step"].partition(": ")[0].replace("OUT", str(tmp_path / "folded"))
    assert main(shlex.split(command)[1:]) == 0
    folded = load(tmp_path / "folded.pb")
    assert [folded[edge.node].op for edge in folded.inputs] == ["Placeholder"]
