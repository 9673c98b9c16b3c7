"""Every command and program of the README and the guides runs; transcripts and tables are current."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from command_process import CommandProcess
from documentation_tables import PAGES, fill_tables
from PIL import Image
from records import example, write_records
from transcripts import COMMAND, lines_without_digits

from quantkit.ir.tensor import Array

ROOT = Path(__file__).parent.parent
PANDA = ROOT.parent / "shared" / "inception_v3" / "cropped_panda.jpg"
# Guides with a test of their own.
TESTED_ELSEWHERE = {"add-a-runtime.md", "add-a-target.md", "installation.md", "write-a-transform.md"}
# Step of a CI job.
STEP = re.compile(r"^ *- run: (quantkit .*)$", re.MULTILINE)

TRAINING = """
import tensorflow as tf

layers = tf.keras.layers
tf.keras.Sequential([tf.keras.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization()]).save("model.keras")
tf1 = tf.compat.v1
with tf1.Graph().as_default(), tf1.Session() as session:
    x = tf1.placeholder(tf.float32, [None, 4], name="x")
    y = tf.nn.softmax(tf.matmul(x, tf1.get_variable("w", [4, 3])), name="y")
    session.run(tf1.global_variables_initializer())
    tf1.train.Saver().save(session, "training/model")
"""


class Page(NamedTuple):
    """Code blocks of a page.

    Attributes:
        name: file name.
        commands: commands with the transcripts below them.
        programs: Python programs.
        files: files whose name is the first line of a block.
    """

    name: str
    commands: tuple[tuple[str, str], ...]
    programs: tuple[str, ...]
    files: dict[str, str]


def read_page(path: Path) -> Page:
    blocks = re.findall(r"^```(console|python|toml|yaml)\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    files = {match[1]: block for _, block in blocks if (match := re.match(r"# (\S+\.(?:py|toml))\n", block))}
    commands = [command for kind, block in blocks if kind == "console" for command in COMMAND.findall(block)]
    steps = [step for kind, block in blocks if kind == "yaml" for step in STEP.findall(block)]
    # A step that equals a command of the page has its result.
    commands += [(step, "") for step in dict.fromkeys(steps) if step not in dict(commands)]
    programs = [block for kind, block in blocks if kind == "python" and block not in files.values()]
    return Page(path.name, tuple(commands), tuple(programs), files)


PAGES_HERE = {path.name: read_page(path) for path in PAGES if path.name not in TESTED_ELSEWHERE}
COMMANDS = [(page.name, *command) for page in PAGES_HERE.values() for command in page.commands]
PROGRAMS = [(page.name, program) for page in PAGES_HERE.values() for program in page.programs]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Working folder of each page; a command finds there the outputs of earlier commands."""
    folders = {name: tmp_path_factory.mktemp(name.removesuffix(".md").lower()) for name in PAGES_HERE}
    for name, folder in folders.items():
        write_inputs(folder)
        for file, text in PAGES_HERE[name].files.items():
            (folder / file).write_text(text)
    return folders


@pytest.fixture(scope="module")
def commands() -> Iterator[CommandProcess]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with CommandProcess.start({**os.environ, "PATH": path}) as process:
        yield process


def write_inputs(folder: Path) -> None:
    """Create the files that the pages name: labels, TFRecord files, one folder per class."""
    (folder / "assets").symlink_to(ROOT / "assets")
    (folder / "labels.txt").write_text("zero one two three four five six seven eight nine".replace(" ", "\n"))
    with np.load(ROOT / "assets" / "digits_heldout.npz") as held_out:
        images, labels = held_out["images"][:80, ..., 0], held_out["labels"][:80]
    examples = (
        example(image__encoded=[encode_png(image)], image__class__label=np.array([label], np.int64))
        for image, label in zip(images[:40], labels, strict=False)
    )
    write_records(folder / "digits.tfrecord", examples)
    for index, (image, label) in enumerate(zip(images[40:], labels[40:], strict=True)):
        (folder / "classes" / str(label)).mkdir(parents=True, exist_ok=True)
        (folder / "classes" / str(label) / f"{index}.png").write_bytes(encode_png(image))


def encode_png(pixels: Array) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_trained_models(folder: Path) -> None:
    """Create a Keras model and a checkpoint of TensorFlow 1."""
    if not (folder / "model.keras").exists():
        subprocess.run([sys.executable, "-c", TRAINING], cwd=folder, check=True, capture_output=True)


def write_exported_models(folder: Path) -> None:
    """Create the models of the guides for users of PyTorch, and the arrays that a program of the guide writes."""
    from exported_models import write_exports

    if not (folder / "detector.onnx").exists():
        write_exports(folder)
        if (folder / "letterbox.py").exists():
            subprocess.run([sys.executable, "letterbox.py"], cwd=folder, check=True, capture_output=True)


def fetch_inception(process: CommandProcess, folder: Path, standin: Path) -> None:
    """Put the stand-in of Inception v3 into the cache, and its graph and images into the folder."""
    if (folder / "images").exists():
        return
    archive = standin / "inception-2015-12-05.tgz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    done = run(process, f"quantkit models fetch inception_v3 --url file://{archive} --sha256 {digest}", folder)
    assert done.returncode == 0, done.stderr
    (folder / "classify_image_graph_def.pb").symlink_to(standin / "classify_image_graph_def.pb")
    shutil.copy(PANDA, folder)
    (folder / "images").mkdir()
    for image in sorted((PANDA.parent / "images").glob("*.jpg"))[:4]:
        (folder / "images" / image.name).symlink_to(image)


def run(process: CommandProcess, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with few repetitions, which do not matter here.

    The start of a runtime takes seconds, and only comparisons with a saved result require three processes.
    """
    processes = 3 if "baseline" in command else 1
    limits = {
        "benchmark": "--time-budget 2s" if "--sweep" in command else f"--runs 3 --warmup 1 --processes {processes}",
        # The ranges of a stated observer stay, without a comparison of observers.
        "quantize": f"--runs 0 {'--finetune 1 --observer min_max' if '--finetune' in command else ''}",
        "optimize": f"--time-budget 3s {'--runtimes onnxruntime' if re.search('--(html|deploy)', command) else ''}",
        "evaluate": "--limit 12",
        "compare": "" if "--structure" in command else "--limit 2",
        # The measured rounding of Inception v3 would take four further runs.
        "transform": "--tolerance 1e-4" if "--verify" in command and "inception_v3" in command else "",
    }
    command += f" {limits.get(command.split()[1], '')}"
    if "layerwise" in command:
        command += " --time-budget 2s"
    if "--calibration" in command and "--limit" not in command:
        command += " --limit 24"
    if "--fail-below" in command:
        # Few samples on a busy machine decide about no limit of a page.
        command += " --fail-below 0.01"
    return process.run(shlex.split(command)[1:], folder, {"QUANTKIT_CACHE": str(folder / "cache")})


def test_pages_have_commands_and_programs() -> None:
    assert {name for name, _, _ in COMMANDS} >= {"README.md", "graphs.md", "quantization.md"}
    texts = [path.read_text() for path in PAGES if path.name in PAGES_HERE]
    steps = [set(STEP.findall(text)) - {line.removeprefix("$ ") for line in text.splitlines()} for text in texts]
    assert len(COMMANDS) == sum(text.count("\n$ ") for text in texts) + sum(map(len, steps)) >= 30
    assert len([command for name, command, _ in COMMANDS if name == "ci.md"]) >= 8
    assert all(command.startswith("quantkit ") for _, command, _ in COMMANDS)
    assert len(PROGRAMS) >= 2


@pytest.mark.engine
@pytest.mark.parametrize(
    ("name", "command", "transcript"), COMMANDS, ids=[f"{name}: {command}" for name, command, _ in COMMANDS]
)
def test_command_runs(
    name: str,
    command: str,
    transcript: str,
    folders: dict[str, Path],
    commands: CommandProcess,
    request: pytest.FixtureRequest,
) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    folder = folders[name]
    if re.search(r"inception_v3|classify_image|panda|folded\.pb|old\.pb", command):
        fetch_inception(commands, folder, request.getfixturevalue("standin"))
    if re.search(r"model\.keras|training/", command):
        write_trained_models(folder)
    if name in ("pytorch.md", "detectors.md"):
        write_exported_models(folder)
    done = run(commands, command, folder)
    if done.returncode == 4 and "has no bfloat16 instructions" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if not re.match(
        r"quantkit (benchmark|quantize|optimize|doctor|models)", command
    ):  # their output depends on the machine
        assert set(lines_without_digits(transcript)) - {"..."} <= set(lines_without_digits(done.stdout))


@pytest.mark.engine
@pytest.mark.parametrize(("name", "program"), PROGRAMS)
def test_program_runs(name: str, program: str, folders: dict[str, Path], commands: CommandProcess) -> None:
    for module in ("onnxruntime", "openvino", "tensorflow"):
        pytest.importorskip(module, reason=f"pip install {module}")
    program = re.sub(r'time_budget="\d+s"', 'time_budget="3s"', program)
    program = re.sub(r"runs=[1-9]\d*", "runs=1", program)
    program = re.sub(r"(qk\.quantize\([^()]*), runs=1\)", r"\1)", program)
    program = re.sub(r"(qk\.quantize\((?:(?!runs=)[^()])*)\)", r"\1, runs=0)", program)
    done = commands.run(["-c", program], folders[name])
    assert done.returncode == 0, done.stderr
    files = re.findall(r"[\w.]+\.int8\.onnx", program)
    assert [file for file in files if not (folders[name] / file).exists()] == []


def test_files_of_the_pages_are_python_programs() -> None:
    files = {name: text for page in PAGES_HERE.values() for name, text in page.files.items() if name.endswith(".py")}
    for name, text in files.items():
        compile(text, name, "exec")
    assert files.keys() >= {"export.py", "letterbox.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_the_committed_measurements(page: Path) -> None:
    assert fill_tables(page) == page.read_text(), "run python tests/support/documentation_tables.py"


def test_chart_of_the_readme_is_drawn_from_the_committed_medians(tmp_path: Path) -> None:
    from results_chart import read_benchmark

    from quantkit.benchmark import benchmark
    from quantkit.benchmark.report_page import save_page

    file = ROOT / "tests" / "bench" / "eight_bit_latency.json"
    expected = json.loads(json.dumps(read_benchmark().to_json()))
    assert json.loads(file.read_text()) == expected, "run python tests/support/results_chart.py"
    save_page(tmp_path / "latency.svg", benchmark(file))
    assert (tmp_path / "latency.svg").read_text() == (ROOT / "assets" / "latency.svg").read_text()


def test_rewrite_table_has_one_column_per_runtime() -> None:
    from documentation_tables import rewrite_table

    from quantkit.benchmark.host.machine import this_machine

    speed = {"ratio": 1.25, "low": 1.2, "high": 1.3}
    row = {"model": "m", "rewrite": "fold_pads", "version": "1.0", "difference": 2e-8, "speed_up": speed}
    rows = [row | {"engine": "openvino"}, row | {"engine": "litert"}, row | {"engine": "litert", "model": "n"}]
    lines = rewrite_table({"machine": this_machine().to_json(), "rows": rows}, "rewrites.json")
    assert "| rewrite, network | openvino 1.0 | litert 1.0 | output difference |" in lines
    assert "| `fold_pads`, m | 1.25 (1.20 to 1.30) | 1.25 (1.20 to 1.30) | 2e-08 |" in lines
    assert "| `fold_pads`, n |  | 1.25 (1.20 to 1.30) | 2e-08 |" in lines


def test_committed_measurements_are_readable() -> None:
    from quantkit.benchmark import Benchmark

    documents = [json.loads(path.read_text()) for path in (ROOT / "tests" / "bench").glob("*.json")]
    assert len(documents) >= 6
    for document in documents:
        assert document["schema"]
        assert any(isinstance(value, list | dict) and value for key, value in document.items() if key != "machine")
        if document["schema"] == "quantkit.benchmark/1":
            assert Benchmark.from_json(document).rows
