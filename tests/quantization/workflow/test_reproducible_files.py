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


@pytest.mark.parametrize("target", ["onnx", "tensorflow", "litert"])
def test_a_file_does_not_depend_on_folder_threads_and_instructions(target: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    suffix = {"onnx": ".onnx", "tensorflow": ".pb", "litert": ".tflite"}[target]
    first, second = tmp_path / f"first{suffix}", tmp_path / "other folder" / f"second{suffix}"
    second.parent.mkdir()
    data = second.with_name("copy.npz")
    shutil.copy(DATA, data)
    qk.quantize("digits", DATA, held_out=DATA, target=target, limit=24, runs=0, output=first)
    program = (
        "import sys, quantkit as qk; data, target, output = sys.argv[1:]; "
        "qk.quantize('digits', data, held_out=data, target=target, limit=24, runs=0, output=output)"
    )
    arguments = [sys.executable, "-c", program, data.name, target, str(second)]
    environment = {**os.environ, **OTHER_PROCESSOR, "PYTHONPATH": str(ASSETS.parent)}
    subprocess.run(arguments, check=True, cwd=second.parent, env=environment, capture_output=True)
    assert second.read_bytes() == first.read_bytes()


def test_a_saved_plan_reproduces_the_file(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    qk.quantize("digits", DATA, limit=24, runs=0, output=first, save_plan=plan, input_mean=128, input_std=128)
    qk.quantize("digits", DATA, limit=24, runs=0, output=second, plan=plan, input_mean=128.0, input_std=128.0)
    assert second.read_bytes() == first.read_bytes()
