"""Output of commands: no log lines of the C++ code of a runtime."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HELD_OUT = Path(__file__).parent.parent.parent / "assets" / "digits_heldout.npz"
DATA = ("--data", str(HELD_OUT), "--limit", "3")
CALIBRATION = ("--calibration", str(HELD_OUT), "--limit", "3", "--runs")
CPP_LINE = re.compile(
    r"^(WARNING: All log|INFO: Created|[IWEF]\d{4} |\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: )", re.MULTILINE
)


@pytest.mark.engine
@pytest.mark.parametrize(
    "arguments",
    [
        ("transform", "digits", "-o", "d.pb", "--recipe", "inference", "--verify", "--runtime", "tensorflow"),
        ("quantize", "digits", "-o", "q.pb", "--target", "tensorflow", *CALIBRATION, "0"),
        ("quantize", "digits", "-o", "q.tflite", "--target", "litert", *CALIBRATION, "1"),
        ("evaluate", "digits@tensorflow", "--reference", "digits", *DATA),
        ("benchmark", "digits@tensorflow", "digits@litert", "--runs", "1", "--warmup", "1", "-v"),
    ],
    ids=lambda arguments: " ".join(arguments[:4]),
)
def test_no_log_line_of_tensorflow_is_printed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    for module in ("tensorflow", "ai_edge_litert"):
        pytest.importorskip(module, reason=f"pip install {module}")
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = Path(sys.executable).with_name("quantkit")
    done = subprocess.run(
        [command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not CPP_LINE.search(done.stdout + done.stderr), done.stdout + done.stderr
