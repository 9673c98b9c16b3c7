"""Lines and tokens of each package, and the difference to the last release.

    python tests/support/package_size.py [COMMIT]

COMMIT is compared with the work tree (default: the last tag ``v*``, else the last release in CHANGELOG.md). Tokens are
those of Python without comments and line breaks, so that other line lengths and longer comments do not change them.
"""

import subprocess
import sys
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("quantkit", "cli")
_UNCOUNTED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}
_UNCOUNTED |= {tokenize.ENDMARKER}


def package_of(path: str) -> str:
    """Return the package of a file: the first folder below ``quantkit``, or its first folder."""
    return "/".join(Path(path).parent.parts[:2])


def count_file(source: bytes) -> tuple[int, int]:
    """Return lines and tokens of a Python file."""
    tokens = sum(token.type not in _UNCOUNTED for token in tokenize.tokenize(BytesIO(source).readline))
    return len(source.splitlines()), tokens


def read_worktree(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each Python file."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root).as_posix(), path.read_bytes()


def read_commit(commit: str, root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each Python file of a commit."""
    archive = run_git(root, "archive", "--format=tar", commit, "--", *FOLDERS)
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        for member in files:
            if member.name.endswith(".py") and (file := files.extractfile(member)):
                yield member.name, file.read()


def last_release(root: Path) -> str:
    """Return the commit of the last release before the work tree."""
    tags = run_git(root, "tag", "--merged", "HEAD", "--sort=-creatordate", "--list", "v*").decode().split()
    if tags:
        return tags[0]
    return run_git(root, "log", "-1", "--format=%h", r"-G^## \[[0-9]", "--", "CHANGELOG.md").decode().strip()


def run_git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout


def sum_packages(files: Iterator[tuple[str, bytes]]) -> tuple[Counter[str], Counter[str]]:
    """Return the lines and the tokens of each package."""
    lines, tokens = Counter[str](), Counter[str]()
    for path, source in files:
        num_lines, num_tokens = count_file(source)
        lines[package_of(path)] += num_lines
        tokens[package_of(path)] += num_tokens
    return lines, tokens


def size_table(old: tuple[Counter[str], Counter[str]], new: tuple[Counter[str], Counter[str]], commit: str) -> str:
    """Return a Markdown table: a row for each package, with the differences to a commit."""
    rows = [f"| package | lines | since {commit} | tokens | since {commit} |", "|---|---:|---:|---:|---:|"]
    names = sorted(name for name in {*new[0], *old[0]} if new[0][name] or old[0][name])
    for name, members in [*((name, [name]) for name in names), ("all", names)]:
        cells = [name]
        for before, after in zip(old, new, strict=True):
            size = sum(after[member] for member in members)
            cells += [f"{size:,}", f"{size - sum(before[member] for member in members):+,}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    release = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else last_release(ROOT)
    print(size_table(sum_packages(read_commit(release, ROOT)), sum_packages(read_worktree(ROOT)), release))
