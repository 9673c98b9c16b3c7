"""Every command of the README runs and answers as shown there; its tables are the committed measurements."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from records import example, write_records

from quantkit.ir.tensor import Array

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(console|python|toml)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
# (command, what is shown below it)
SHOWN = [
    (command.strip(), answer)
    for kind, block in BLOCKS
    if kind == "console"
    for command, answer in re.findall(r"^\$ (.*?(?:'\n(?:[^$].*\n)*?.*')?)\n((?:[^$\n].*\n|\n)*)", block, re.MULTILINE)
]
COMMANDS = [command for command, _ in SHOWN]
# Blocks that begin with the name of a file are that file.
FILES = {found[1]: block for _, block in BLOCKS if (found := re.match(r"# (\S+\.(?:py|toml))\n", block))}
PROGRAMS = [block for kind, block in BLOCKS if kind == "python" and block not in FILES.values()]
PANDA = ROOT.parent / "shared" / "inception_v3" / "cropped_panda.jpg"


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of the README would stand; commands find there what earlier ones wrote."""
    made = tmp_path_factory.mktemp("readme")
    (made / "assets").symlink_to(ROOT / "assets")
    (made / "labels.txt").write_text("zero one two three four five six seven eight nine".replace(" ", "\n"))
    for name, text in FILES.items():
        (made / name).write_text(text)
    with np.load(ROOT / "assets" / "digits_heldout.npz") as held_out:
        images, labels = held_out["images"][:80, ..., 0], held_out["labels"][:80]
    examples = (
        example(image__encoded=[png(image)], image__class__label=np.int64([label]))
        for image, label in zip(images[:40], labels, strict=False)
    )
    write_records(made / "digits.tfrecord", examples)
    for place, (image, label) in enumerate(zip(images[40:], labels[40:], strict=True)):
        (made / "classes" / str(label)).mkdir(parents=True, exist_ok=True)
        (made / "classes" / str(label) / f"{place}.png").write_bytes(png(image))
    return made


def png(pixels: Array) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """The same folder with what Keras and the sessions of TensorFlow 1 write."""
    subprocess.run([sys.executable, "-c", TRAINING], cwd=folder, check=True, capture_output=True)
    return folder


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # What is tested is that it runs.
    fewer = {
        "benchmark": "--runs 3 --warmup 1",
        "quantize": "--runs 3",
        "evaluate": "--limit 12",
        "compare": "" if "--structure" in command else "--limit 2",
    }
    command += f" {fewer.get(command.split()[1], '')}"
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "QUANTKIT_CACHE": str(folder / "cache")}
    return subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) == README.count("\n$ ") >= 30
    assert all(command.startswith("quantkit ") for command in COMMANDS)
    assert {"mine.toml", "my_transforms.py"} < FILES.keys()


@pytest.fixture(scope="module")
def fetched(folder: Path, request: pytest.FixtureRequest) -> Path:
    """The same folder with the stand-in of Inception v3 in its cache, where there is one."""
    standin: Path = request.getfixturevalue("standin")
    archive = standin / "inception-2015-12-05.tgz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    done = run(f"quantkit models fetch inception_v3 --url file://{archive} --sha256 {digest}", folder)
    assert done.returncode == 0, done.stderr
    (folder / "classify_image_graph_def.pb").symlink_to(standin / "classify_image_graph_def.pb")
    shutil.copy(PANDA, folder)
    (folder / "pictures").mkdir()
    for picture in sorted((PANDA.parent / "images").glob("*.jpg"))[:12]:
        (folder / "pictures" / picture.name).symlink_to(picture)
    return folder


@pytest.mark.engine
@pytest.mark.parametrize(("command", "answer"), SHOWN, ids=COMMANDS)
def test_command(command: str, answer: str, folder: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    if re.search(r"inception_v3|classify_image|panda|folded\.pb|old\.pb", command):
        request.getfixturevalue("fetched")
    if re.search(r"model\.keras|training/", command):
        request.getfixturevalue("trained")
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if not re.match(r"quantkit (benchmark|quantize|doctor|models)", command):  # what these say is of a machine
        assert set(without_numbers(answer)) - {"..."} <= set(without_numbers(done.stdout))


def without_numbers(text: str) -> list[str]:
    """Lines of text in which each number is a 0; those of times, sizes and versions differ from run to run."""
    return [re.sub(r"\d+(\.\d+)*(e-\d+)?", "0", line).rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.engine
@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program: str, folder: Path) -> None:
    for name in ("onnxruntime", "tensorflow"):
        pytest.importorskip(name, reason=f"pip install {name}")
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "multiply-adds" in done.stdout


def test_the_tables_are_the_committed_measurements() -> None:
    from readme_table import filled

    assert filled(README) == README, "run python tests/support/readme_table.py"


def test_rewrites_are_told_engine_by_engine() -> None:
    from readme_table import rewrites

    from quantkit.benchmark.machine import this_machine

    speed = {"ratio": 1.25, "low": 1.2, "high": 1.3}
    row = {"model": "m", "rewrite": "fold_pads", "version": "1.0", "difference": 2e-8, "speed_up": speed}
    rows = [row | {"engine": "openvino"}, row | {"engine": "litert"}, row | {"engine": "litert", "model": "n"}]
    text = rewrites({"machine": this_machine().to_json(), "rows": rows}, Path("rewrites.json"))
    assert "| rewrite, on | openvino 1.0 | litert 1.0 | answers differ by |" in text
    assert "| `fold_pads`, m | 1.25 (1.20 to 1.30) | 1.25 (1.20 to 1.30) | 2e-08 |" in text
    assert "| `fold_pads`, n |  | 1.25 (1.20 to 1.30) | 2e-08 |" in text


def test_the_committed_measurements_can_be_read() -> None:
    from quantkit.benchmark import Benchmark

    for path in (ROOT / "tests" / "bench").glob("*.json"):
        document = json.loads(path.read_text())
        assert document["rows"]
        if document["schema"] == "quantkit.benchmark/1":
            assert Benchmark.from_json(document).rows
