"""Commands on mutated files keep the contract of exit codes and messages; `python -m tests.fuzz` runs more mutants."""

import json
import os
import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Mutants of the default run, in one process. The slow formats take seconds to make, or start processes.
MUTANTS = int(os.environ.get("QUANTKIT_FUZZ_MUTANTS", "200"))
SLOW_FORMATS = (
    *("tflite", "keras", "h5", "trained_h5", "trained_keras", "trained_saved_model", "finetune_state"),
    *("manifest", "results_jsonl", "results_npz", "baseline", "sweep_state"),
)
# Limits of one command in its own process.
MAX_SECONDS = 60
MAX_BYTES = 8 << 30


@pytest.fixture(autouse=True)
def _import_tests_alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with the tests only: the source folder has the package without its command line."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(folder)


def formats() -> list[str]:
    code = "from tests.fuzz.formats import FORMATS; print(*FORMATS)"
    text = subprocess.run([sys.executable, "-c", code], text=True, check=True, capture_output=True).stdout
    names = text.split()
    missing = {"onnx_subgraphs"} if find_spec("onnx") is None else set()
    return [name for name in names if name not in SLOW_FORMATS and name not in missing]


def test_commands_on_mutated_files_keep_the_contract() -> None:
    names = formats()
    assert len(names) > 15
    command = [sys.executable, "-m", "tests.fuzz", "--mutants", str(MUTANTS), "--formats", ",".join(names)]
    run = subprocess.run(command, text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert f"{MUTANTS} mutants of seed 0: exit codes {{" in run.stdout
    assert ", 0 violations" in run.stdout


JOBS = ("pb:0", "onnx:1", "saved_model:2", "npz:3", "recipe:4", "image_png:5")


@pytest.fixture(scope="module")
def command_lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Write a mutant for each job, and return its command line."""
    folder = tmp_path_factory.mktemp("mutants")
    (folder / "tests").symlink_to(ROOT / "tests")
    jobs = [job for job in JOBS if not job.startswith("image") or find_spec("PIL")]
    code = (
        "import json, sys; from pathlib import Path; from tests.fuzz.worker import command_line\n"
        "for job in sys.argv[1:]:\n"
        "    name, index = job.split(':')\n"
        "    print(json.dumps(command_line(name, int(index), 5, Path.cwd() / name)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, *jobs], cwd=folder, text=True, check=True, capture_output=True
    )
    return dict(zip(jobs, map(json.loads, process.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("job", JOBS)
def test_a_command_in_its_own_process_keeps_the_contract(job: str, command_lines: dict[str, list[str]]) -> None:
    if job not in command_lines:
        pytest.skip("needs Pillow")
    run = subprocess.run(
        [sys.executable, "-m", "quantkit", *command_lines[job]],
        text=True,
        errors="replace",
        capture_output=True,
        check=False,
        timeout=MAX_SECONDS,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES)),
    )
    assert run.returncode in range(5), run.stderr
    assert "Traceback" not in run.stderr
    assert "a bug" not in run.stderr
    messages = [line for line in run.stderr.splitlines() if line.startswith("quantkit: ")]
    assert len(messages) == (run.returncode > 1), run.stderr


def test_equal_seeds_give_equal_mutants() -> None:
    code = (
        "from tests.fuzz.worker import make_mutant; import hashlib; "
        "print(*(hashlib.sha256(make_mutant(name, 3, 9)[0]).hexdigest() for name in ('pb', 'npz', 'recipe')))"
    )
    command = [sys.executable, "-c", code]
    outputs = {subprocess.run(command, check=True, capture_output=True).stdout for _ in range(2)}
    assert len(outputs) == 1
