"""Step-by-step guides: every file, program and command of a page runs, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from transcripts import COMMAND, lines_without_digits

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "assets" / "guides"
# Guides that build a project step by step; tests/test_documentation.py runs the commands of the others.
STEP_BY_STEP = ("write-a-transform.md",)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.(?:py|toml))(, continued)?\n")


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which packages installed to ``site`` are found."""
    scripts = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(folder / "site")}


def write_file(folder: Path, name: str, text: str, *, is_continued: bool) -> None:
    """Write a file of the page, or append to it."""
    before = (folder / name).read_text() + "\n\n" if is_continued else ""
    (folder / name).write_text(before + text)


def run_program(folder: Path, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def install_package(folder: Path) -> None:
    """Build the wheel of a folder and unpack it to ``site``: tests do not install into their own environment."""
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    ZipFile(wheel).extractall(folder / "site")


def run_command(folder: Path, command: str, output: str) -> None:
    """Run a command and compare its output with the page; ``...`` stands for any lines, and numbers may differ."""
    if command == "pip install .":
        install_package(folder)
        return
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    missing = set(lines_without_digits(output)) - {"..."} - set(lines_without_digits(done.stdout))
    assert not missing, f"{command}\n{done.stdout}"


@pytest.mark.parametrize("name", STEP_BY_STEP)
def test_guide(name: str, tmp_path: Path) -> None:
    text = (GUIDES / name).read_text()
    num_commands = 0
    for kind, block in _BLOCK.findall(text):
        file = _FILE.match(block)
        if file:
            write_file(tmp_path, file[1], block[file.end() :], is_continued=bool(file[2]))
        elif kind == "python":
            run_program(tmp_path, block)
        elif kind == "console":
            for command, output in COMMAND.findall(block):
                run_command(tmp_path, command, output)
                num_commands += 1
    assert num_commands == text.count("\n$ ") > 0
