"""The jobs and the action for GitHub: the commands of ``.ci/run``, and the reports of the checks of a model."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from command_line import main

ROOT = Path(__file__).parent.parent
ACTION = ROOT / ".github" / "actions" / "check-model"
# Program that stands for a command: it writes its arguments to a file, and fails if they contain the text FAILING.
RECORDER = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$RECORD"
echo "output of $1"
case "$*" in *"$FAILING"*) exit 1 ;; esac
"""


def run_script(name: str, folder: Path, failing: str = "NONE", **variables: str) -> tuple[int, list[str]]:
    """Run a script of the action with recorders of ``quantkit`` and ``gh``; return code and arguments."""
    for command in ("quantkit", "gh"):
        (folder / command).write_text(RECORDER)
        (folder / command).chmod(0o755)
    record = folder / "record"
    record.unlink(missing_ok=True)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "RECORD": str(record), "FAILING": failing}
    environment |= {"REPORT": str(folder / "report.md"), **variables}
    done = subprocess.run(["bash", ACTION / name], env=environment, cwd=folder, capture_output=True, check=False)
    return done.returncode, record.read_text().splitlines()


def check(folder: Path, failing: str = "NONE", **variables: str) -> tuple[int, list[str]]:
    inputs = {"MODEL": "new.onnx", "REFERENCE": "old.onnx", "DATA": "images", "MIN_AGREEMENT": "0.98"}
    return run_script("check.sh", folder, failing, **{**inputs, "FAIL_BELOW": "0.97", "BASELINE": "", **variables})


def test_jobs_run_the_commands_of_the_local_check() -> None:
    local = re.findall(r"^(make .*|bash .*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    jobs = re.findall(r"- run: (.*)$", (ROOT / ".github" / "workflows" / "tests.yml").read_text(), re.MULTILINE)
    assert len(local) == 4
    assert set(local) <= set(jobs)


def test_jobs_run_on_the_versions_of_python_that_the_package_states() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    assert jobs.keys() == {"light", "full"}
    stated = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text())
    for job in jobs.values():
        versions = job["strategy"]["matrix"]["python"]
        assert versions == stated[: len(versions)]
        assert len(versions) >= 3


def test_each_input_of_the_action_is_used_and_has_a_default_or_is_required() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    text = (ACTION / "action.yml").read_text()
    inputs = yaml.safe_load(text)["inputs"]
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == inputs.keys()
    assert all(bool(each.get("required")) != ("default" in each) for each in inputs.values())


@pytest.mark.parametrize(("failing", "titles"), [("NONE", "passed passed"), ("evaluate", "failed passed")])
def test_both_checks_run_and_are_reported(failing: str, titles: str, tmp_path: Path) -> None:
    code, commands = check(tmp_path, failing)
    assert code == (failing != "NONE")
    assert [command.split()[0] for command in commands] == ["evaluate", "benchmark"]
    report = (tmp_path / "report.md").read_text()
    assert report.startswith("<!-- quantkit -->\n### agreement: ")
    assert re.findall(r"^### \w+: (\w+)$", report, re.MULTILINE) == titles.split()
    assert "output of benchmark" in report


def test_a_baseline_is_written_once_and_used_then(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    assert check(tmp_path, BASELINE=str(baseline))[1][1] == f"benchmark new.onnx --save {baseline} -q"
    baseline.touch()
    assert check(tmp_path, BASELINE=str(baseline))[1][1] == (
        f"benchmark new.onnx --baseline {baseline} --fail-below 0.97 -q"
    )


def test_a_comment_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("report")
    variables = {"GITHUB_REPOSITORY": "owner/models", "PULL_REQUEST": "7"}
    assert run_script("comment.sh", tmp_path, "PATCH", **variables) == (
        0,
        [
            "api --paginate repos/owner/models/issues/7/comments --jq "
            '.[] | select(.body | startswith("<!-- quantkit -->")) | .id',
            "api --silent --method PATCH repos/owner/models/issues/comments/output of api "
            f"--field body=@{tmp_path / 'report.md'}",
        ],
    )


@pytest.mark.engine
def test_the_commands_of_the_action_check_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    for name in ("old.onnx", "new.onnx"):
        assert main(["transform", "digits", "-o", str(tmp_path / name), "--recipe", "inference"]) == 0
    data = ROOT / "assets" / "digits_heldout.npz"
    files = {"MODEL": str(tmp_path / "new.onnx"), "REFERENCE": str(tmp_path / "old.onnx"), "DATA": str(data)}
    _, (evaluate, benchmark) = check(tmp_path, **files)
    assert main([*evaluate.split(), "--limit", "8"]) == 0
    assert main([*benchmark.split(), "--runs", "3", "--warmup", "1", "--processes", "1", "--fail-below", "0.01"]) == 0
    assert "agreement" in capsys.readouterr().out
