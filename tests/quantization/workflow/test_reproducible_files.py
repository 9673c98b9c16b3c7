"""The same file from other folders, threads and instructions, and from a saved plan."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quantkit as qk

pytestmark = pytest.mark.engine

ASSETS = Path(__file__).parents[3] / "assets"
DATA = ASSETS / "digits_heldout.npz"
# Older instructions and one thread for each library that computes.
OTHER_PROCESSOR = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "7",
}


SUFFIXES = {"onnx": ".onnx", "tensorflow": ".pb", "litert": ".tflite"}
PROGRAM = """
import sys, quantkit as qk
data, *targets = sys.argv[1:]
for target, output in (text.split("=") for text in targets):
    qk.quantize("digits", data, held_out=data, target=target, limit=24, runs=0, output=output)
"""


@pytest.fixture(scope="module")
def other_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files of each target from a process with another processor in another folder."""
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    folder = tmp_path_factory.mktemp("other folder")
    shutil.copy(DATA, folder / "copy.npz")
    files = {target: folder / f"second{suffix}" for target, suffix in SUFFIXES.items()}
    targets = [f"{target}={file}" for target, file in files.items()]
    environment = {**os.environ, **OTHER_PROCESSOR, "PYTHONPATH": str(ASSETS.parent)}
    arguments = [sys.executable, "-c", PROGRAM, "copy.npz", *targets]
    subprocess.run(arguments, check=True, cwd=folder, env=environment, capture_output=True)
    return files


@pytest.mark.parametrize("target", SUFFIXES)
def test_a_file_does_not_depend_on_folder_threads_and_instructions(
    target: str, other_files: dict[str, Path], tmp_path: Path
) -> None:
    first = tmp_path / f"first{SUFFIXES[target]}"
    qk.quantize("digits", DATA, held_out=DATA, target=target, limit=24, runs=0, output=first)
    assert other_files[target].read_bytes() == first.read_bytes()


def test_a_saved_plan_reproduces_the_file(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    qk.quantize("digits", DATA, limit=24, runs=0, output=first, save_plan=plan, input_mean=128, input_std=128)
    qk.quantize("digits", DATA, limit=24, runs=0, output=second, plan=plan, input_mean=128.0, input_std=128.0)
    assert second.read_bytes() == first.read_bytes()
