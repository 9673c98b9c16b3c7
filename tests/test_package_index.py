"""Installations from the package index: next to another project's package ``quantkit``, and by the commands of hints.

They download packages: set QUANTKIT_PACKAGE_INDEX=1 to run them.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = sorted(set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) - {"all"})

pytestmark = pytest.mark.skipif(
    "QUANTKIT_PACKAGE_INDEX" not in os.environ, reason="set QUANTKIT_PACKAGE_INDEX=1 to download packages"
)


def run(*command: str | Path) -> str:
    """Return the output of a command outside of the repository."""
    result = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of a new environment with another package ``quantkit`` and the wheel of this repository."""
    folder = tmp_path_factory.mktemp("index")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT)
    run(sys.executable, "-m", "venv", folder / "environment")
    programs = folder / "environment" / "bin"
    run(programs / "pip", "install", "-q", "--no-deps", "llm-quantkit")
    run(programs / "pip", "install", "-q", *folder.glob("*.whl"))
    return programs


def test_doctor_names_the_other_package(environment: Path) -> None:
    assert "llm-quantkit" in run(environment / "quantkit", "doctor")


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_command_of_a_hint_installs_its_packages(extra: str, environment: Path) -> None:
    program = f"from quantkit.distribution import install_command; print(install_command({extra!r}))"
    arguments = shlex.split(run(environment / "python", "-c", program))
    assert arguments[:2] == ["pip", "install"]
    report = run(environment / "pip", "install", "-q", "--no-deps", "--dry-run", "--report", "-", *arguments[2:])
    installed = {entry["metadata"]["name"].lower().replace("_", "-") for entry in json.loads(report)["install"]}
    names = {re.split(r"[<>=!~\[ ]", argument)[0].lower() for argument in arguments[2:]}
    already = {name for name in names if name in run(environment / "pip", "list").lower()}
    assert names <= installed | already
    assert "quantkit" not in installed
