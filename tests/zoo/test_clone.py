"""Python in the root of a clone, next to a plain installation, imports the folder `quantkit` of the clone."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# An editable installation maps `quantkit.models` to its folder; a plain one has no such map.
PLAIN = "import sys; sys.meta_path[:] = [each for each in sys.meta_path if 'editable' not in repr(each)]; "


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "quantkit").symlink_to(ROOT / "quantkit")
    (tmp_path / "models").symlink_to(ROOT / "models")
    return tmp_path


@pytest.mark.parametrize(
    "code",
    [
        "import quantkit as qk; print(qk.load('digits').card.name)",
        "from quantkit.zoo.datasets import data_cards; print(data_cards()[0].name)",
        "import quantkit as qk; print(len(qk.classify('%s', 'digits', runtime='reference')))",
    ],
)
def test_the_cards_of_the_clone_are_found(code: str, clone: Path) -> None:
    result = run(clone, "-c", PLAIN + code.replace("%s", str(ROOT / "assets/digit_3.png")))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("digits", "cifar10", "5")


def test_without_cards_the_error_names_the_remedy(clone: Path) -> None:
    (clone / "models").unlink()
    (clone / "quantkit").unlink()
    (clone / "quantkit").mkdir()
    for entry in (ROOT / "quantkit").iterdir():
        (clone / "quantkit" / entry.name).symlink_to(entry)
    code = "import quantkit as qk\ntry: qk.load('digits')\nexcept qk.UnavailableError as error: print(error.hint)"
    moved = f"import quantkit.zoo.cards as cards; cards.__file__ = {str(clone / 'quantkit/zoo/cards.py')!r}\n"
    result = run(clone, "-c", PLAIN + moved + code)
    assert "pip install -e ." in result.stdout, result.stderr
