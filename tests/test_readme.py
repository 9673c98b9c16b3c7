"""Every command of the README runs; its table is the committed measurement."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [
    command.strip()
    for block in re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    for command in re.findall(r"^\$ (.*?(?:'\n(?:.*\n)*?.*')?)$", block, re.MULTILINE)
]
PANDA = ROOT.parent / "shared" / "inception_v3" / "cropped_panda.jpg"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader of the README would stand; commands find there what earlier ones wrote."""
    made = tmp_path_factory.mktemp("readme")
    (made / "assets").symlink_to(ROOT / "assets")
    (made / "labels.txt").write_text("zero one two three four five six seven eight nine".replace(" ", "\n"))
    return made


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # What is tested is that it runs.
    fewer = {"benchmark": "--runs 3 --warmup 1", "quantize": "--runs 3", "evaluate": "--limit 12"}
    command += f" {fewer.get(command.split()[1], '')}"
    scripts = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "QUANTKIT_CACHE": str(folder / "cache")}
    return subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_readme_has_commands() -> None:
    assert len(COMMANDS) >= 12
    assert all(command.startswith("quantkit ") for command in COMMANDS)


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
@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str, folder: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    if re.search(r"inception_v3|classify_image|panda|folded\.pb", command):
        request.getfixturevalue("fetched")
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_python_example(folder: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TensorInfo" in done.stdout


def test_the_recipe_file(folder: Path) -> None:
    (recipe,) = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (folder / "mine.toml").write_text(recipe)
    done = run("quantkit transform digits -o mine.pb --recipe mine.toml", folder)
    assert done.returncode == 0, done.stderr


def test_the_tables_are_the_committed_measurements() -> None:
    from readme_table import filled

    assert filled(README) == README, "run python tests/support/readme_table.py"


def test_rewrites_are_told_engine_by_engine() -> None:
    from readme_table import rewrites

    from quantkit.bench.machine import this_machine

    speed = {"ratio": 1.25, "low": 1.2, "high": 1.3}
    row = {"model": "m", "rewrite": "fold_pads", "version": "1.0", "difference": 2e-8, "speed_up": speed}
    rows = [row | {"engine": "openvino"}, row | {"engine": "litert"}, row | {"engine": "litert", "model": "n"}]
    text = rewrites({"machine": this_machine().to_json(), "rows": rows}, Path("rewrites.json"))
    assert "| rewrite, on | openvino 1.0 | litert 1.0 | answers differ by |" in text
    assert "| `fold_pads`, m | 1.25 (1.20 to 1.30) | 1.25 (1.20 to 1.30) | 2e-08 |" in text
    assert "| `fold_pads`, n |  | 1.25 (1.20 to 1.30) | 2e-08 |" in text


def test_the_committed_measurements_can_be_read() -> None:
    from quantkit.bench import Benchmark

    for path in (ROOT / "tests" / "bench").glob("*.json"):
        document = json.loads(path.read_text())
        assert document["rows"]
        if document["schema"] == "quantkit.benchmark/1":
            assert Benchmark.from_json(document).rows
