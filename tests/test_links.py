"""Links between the Markdown files of the repository."""

import re
from pathlib import Path

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


def test_links_have_targets() -> None:
    assert [(name, target) for name, target in LINKS if not ((ROOT / name).parent / target).exists()] == []
