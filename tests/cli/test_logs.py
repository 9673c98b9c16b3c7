"""Output of commands: no log lines of the C++ code of a runtime."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_process import CommandProcess

HELD_OUT = Path(__file__).parent.parent.parent / "assets" / "digits_heldout.npz"
DATA = ("--data", str(HELD_OUT), "--limit", "3")
CALIBRATION = ("--calibration", str(HELD_OUT), "--limit", "3", "--runs")
CPP_LINE = re.compile(
    r"^(WARNING: All log|INFO: Created|[IWEF]\d{4} |\d{4}-\d\d-\d\d \d\d:\d\d:[\d.]+: )", re.MULTILINE
)


@pytest.fixture(scope="module")
def commands() -> Iterator[CommandProcess]:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    with CommandProcess.start(environment) as process:
        yield process


@pytest.mark.engine
@pytest.mark.parametrize(
    "arguments",
    [
        ("transform", "digits", "-o", "d.pb", "--recipe", "inference", "--verify", "--runtime", "tensorflow"),
        ("quantize", "digits", "-o", "q.pb", "--target", "tensorflow", *CALIBRATION, "0"),
        ("quantize", "digits", "-o", "q.tflite", "--target", "litert", *CALIBRATION, "1"),
        ("evaluate", "digits@tensorflow", "--reference", "digits", *DATA),
        ("benchmark", "digits@tensorflow", "digits@litert", "--runs", "1", "--processes", "1", "-v"),
    ],
    ids=lambda arguments: " ".join(arguments[:4]),
)
def test_no_log_line_of_tensorflow_is_printed(
    arguments: tuple[str, ...], tmp_path: Path, commands: CommandProcess
) -> None:
    for module in ("tensorflow", "ai_edge_litert"):
        pytest.importorskip(module, reason=f"pip install {module}")
    done = commands.run(arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not CPP_LINE.search(done.stdout + done.stderr), done.stdout + done.stderr
