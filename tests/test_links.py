"""Links between the Markdown files of the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (".github", "assets", "cli", "models", "quantkit", "tests")
FILES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
LINKS = [
    (path.relative_to(ROOT).as_posix(), target)
    for path in FILES
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text())
    if not re.match(r"\w+:", target)
]


def test_files_have_links() -> None:
    assert len(FILES) >= 30
    assert len(LINKS) >= 15


@pytest.mark.parametrize(("name", "target"), LINKS)
def test_link_has_a_target(name: str, target: str) -> None:
    assert ((ROOT / name).parent / target).exists()
