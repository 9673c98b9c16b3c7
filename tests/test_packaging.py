"""The wheel contains all packages and data files of the repository, and only these."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from quantkit import distribution
from quantkit.distribution import install_command
from quantkit.runtimes import availability, find_runtime

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOP_LEVEL = {
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "Makefile",
    "quantkit",
    "models",
    "cli",
    "tests",
    "assets",
}
LEFT_BY_TOOLS = {"build", "dist", "quantkit_toolchain.egg-info", "__pycache__"}


def test_every_package_is_listed() -> None:
    on_disk = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("quantkit/**/__init__.py")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == on_disk | {"quantkit.cli", "quantkit.models"}


def test_the_version_has_a_release_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert len(releases) >= 2
    assert releases[0] == PROJECT["project"]["version"]


def test_cli_and_models_are_flat() -> None:
    for folder in ("cli", "models"):
        assert not [path for path in (ROOT / folder).iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert [path.name for path in (ROOT / "models").glob("*.py")] == ["__init__.py"]


def test_top_level_has_no_other_files() -> None:
    names = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    assert names - LEFT_BY_TOOLS <= TOP_LEVEL


def test_the_command_is_installed() -> None:
    (command,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit"]
    assert callable(command.load())


def test_every_folder_has_a_readme() -> None:
    folders = {path.parent for path in ROOT.glob("quantkit/*/__init__.py")} | {
        ROOT / name for name in ("cli", "models")
    }
    folders |= {ROOT / name for name in ("tests", "assets")}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "README.md").exists()]


def test_data_files_are_packaged() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    folders = {name: ROOT / name.replace(".", "/") for name in PROJECT["tool"]["setuptools"]["packages"]}
    folders |= {"quantkit.cli": ROOT / "cli", "quantkit.models": ROOT / "models"}
    files = [
        (name, path)
        for name, folder in folders.items()
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in (".py", ".md")
    ]
    assert len(files) >= 10
    for name, path in files:
        assert any(path.match(pattern) for pattern in patterns.get(name, ())), path


def test_hints_name_the_packages_of_extras() -> None:
    sources = [path for folder in ("quantkit", "cli") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources)
    assert not re.findall(r"pip install '?quantkit", text), "an index may have another project of this name"
    calls = re.findall(r"install_command\(([^)]*)\)|extra=(\"\w+\")", text)
    extras = {extra for call in calls for part in call for extra in re.findall(r"[\"'](\w+)[\"']", part)}
    assert extras >= {"onnx", "openvino", "tensorflow", "training", "monitor"}
    for extra in extras:
        bounds = [requirement.partition(";")[0] for requirement in PROJECT["project"]["optional-dependencies"][extra]]
        assert install_command(extra) == "pip install " + " ".join(f"'{bound}'" for bound in sorted(bounds))


RUNTIME_PACKAGES = {
    "litert": "ai-edge-litert",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "tensorflow": "tensorflow",
}


@pytest.mark.parametrize(("name", "package"), RUNTIME_PACKAGES.items())
def test_hint_of_a_missing_runtime_names_its_package(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setattr(availability, "find_spec", lambda module: None)
    hint = find_runtime(name).available().command
    assert package in re.findall(r"'([a-z-]+)>=", hint), hint


def test_the_command_of_an_extra_is_that_of_a_clone_without_an_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "NAME", "not-installed")
    assert install_command("onnx") == "pip install '.[onnx]' in a clone of quantkit"


def test_other_distributions_of_the_package_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "llm_stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-stranger\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("quantkit\n")
    assert "llm-stranger" not in distribution.find_other_distributions()
    monkeypatch.syspath_prepend(tmp_path)
    assert "llm-stranger" in distribution.find_other_distributions()
