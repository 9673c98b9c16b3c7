"""Prose and names follow the project's language guide; see ``support/banned_words.toml``."""

from functools import cache
from pathlib import Path

import pytest
from language import (
    Text,
    Totals,
    Violation,
    collect_markdown,
    collect_python,
    collect_texts,
    count_totals,
    find_files,
    find_violations,
    load_phrases,
)

ROOT = Path(__file__).resolve().parents[1]
CHECKED = ("quantkit", "cli", "models", "assets", "tests", ".github")


def names_of_files() -> list[str]:
    folders = [ROOT / name for name in CHECKED if (ROOT / name).exists()]
    return [path.relative_to(ROOT).as_posix() for path in find_files([*folders, *ROOT.glob("*.md")])]


@cache
def texts_of_file(name: str) -> tuple[Text, ...]:
    return tuple(collect_texts(ROOT / name, ROOT, strings=not name.startswith("tests/")))


@cache
def violations_of_file(name: str) -> tuple[Violation, ...]:
    return tuple(find_violations(texts_of_file(name), load_phrases()))


def test_files_follow_the_language_guide() -> None:
    violations = [violation for name in names_of_files() for violation in violations_of_file(name)]
    assert not violations, "\n".join(["", *map(str, violations)])


def test_private_words_and_question_openings_are_rare() -> None:
    names = names_of_files()
    texts = [text for name in names for text in texts_of_file(name)]
    totals = count_totals(texts, [violation for name in names for violation in violations_of_file(name)])
    assert len(names) > 500
    assert totals.words > 60_000
    assert totals.names > 10_000
    assert totals.docstrings > 2_000
    assert totals.private_words_per_10000 < 2
    assert totals.question_openings < totals.docstrings / 100


PYTHON_VIOLATIONS = {
    "module docstring": '"""Images can not be read."""',
    "class docstring": 'class Size:\n    """Size that can not change."""',
    "attribute docstring": 'class Size:\n    width: int\n    """Number that can not change."""',
    "function docstring": 'def f():\n    """Return a size that can not change."""',
    "docstring over two lines": 'def f():\n    """Return a size that can\n    not change."""',
    "comment": "width = 1  # can not change",
    "comment over two lines": "# the width can\n# not change\nwidth = 1",
    "message": 'raise GraphError("can not read")',
    "short message": 'raise GraphError("pictures")',
    "formatted message": 'raise GraphError(f"{name} can not be read")',
    "hint": 'raise GraphError(text, hint="can not")',
    "skip": 'Skip("can not")',
    "log": 'log("can not")',
    "help": 'parser.add_argument("--width", help="can not")',
    "help with the default in bare parentheses": 'add_argument("--width", help="image width (128)")',
    "help without a noun": 'add_argument("--width", help="of the images")',
    "help with a full stop": 'add_argument("--width", help="image width.")',
    "metavar": 'parser.add_argument("--width", metavar="PICTURES")',
    "description": 'ArgumentParser(description="can not")',
    "epilog": 'ArgumentParser(epilog="can not")',
    "conditional message": 'raise GraphError("can not" if x else "")',
    "returned sentence": 'def f():\n    return "the width can not change"',
    "function name": "def picture_size(): ...",
    "test name": "def test_a_picture_is_read(): ...",
    "participle as function name": "def _kept(): ...",
    "class name": "class PictureSize: ...",
    "argument without a noun": 'def f():\n    """Return a size.\n\n    Args:\n        x: of f.\n    """',
    "error without a subject": 'def f():\n    """Return x.\n\n    Raises:\n        OSError: it fails.\n    """',
    "parameter": "def f(*, picture): ...",
    "lambda parameter": "f = lambda picture: 1",
    "variable": "found = 1",
    "loop variable": "for picture in x: ...",
    "comprehension variable": "x = [1 for picture in y]",
    "caught exception": "try: ...\nexcept OSError as picture: ...",
    "attribute": "self.picture = 1",
    "field": "class Size:\n    pictures: int",
    "captured name": "match x:\n    case [picture]: ...",
}


@pytest.mark.parametrize("kind", PYTHON_VIOLATIONS)
def test_violation_in_python_is_found(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(PYTHON_VIOLATIONS[kind])
    assert len(find_violations(collect_texts(path, tmp_path), load_phrases())) == 1


MARKDOWN_VIOLATIONS = {
    "paragraph": "Images can not be read.",
    "paragraph over two lines": "Images can\nnot be read.",
    "list item": "- Images can not be read",
    "table": "| file | can not be read |\n|---|---|",
    "heading": "# Files that can not be read",
    "transcript": "```console\n$ quantkit classify\nerror: can not read\n```",
}


@pytest.mark.parametrize("kind", MARKDOWN_VIOLATIONS)
def test_violation_in_markdown_is_found(kind: str) -> None:
    texts = collect_markdown(MARKDOWN_VIOLATIONS[kind], "page.md")
    assert len(find_violations(texts, load_phrases())) == 1


@pytest.mark.parametrize(
    "source",
    [
        'x = "Placeholder"',
        'node = {"name": "pictures"}',
        '"""Read ``pictures/``."""',
        '"""Read images.\n\n>>> pictures\n"""',
        'raise GraphError("exit code 2")',
        'def f():\n    """Process the images."""',
        'def f():\n    """Embed the images."""',
        '@property\ndef size(self):\n    """The size."""',
        "for image in images: ...",
        "picture.size()",
        'add_argument("--width", help="image width (default: 128)")',
    ],
)
def test_standard_term_or_quoted_literal_passes(source: str) -> None:
    assert not find_violations(collect_python(source, "module.py"), load_phrases())


def test_fenced_block_of_markdown_is_skipped() -> None:
    source = "```python\npictures = 1\n```\n\n```console\n$ ls pictures\n```\n"
    assert not find_violations(collect_markdown(source, "page.md"), load_phrases())


@pytest.mark.parametrize("opening", ["What", "Whether", "How", "Who", "The", "Names", "Returning", "Checked"])
def test_opening_without_imperative_verb_is_found(opening: str) -> None:
    source = f'def f():\n    """{opening} something."""'
    (violation,) = find_violations(collect_python(source, "quantkit/module.py"), ())
    assert opening in violation.phrase
    assert violation.line == 2


def test_violation_names_line_and_suggestion() -> None:
    source = '"""Graphs.\n\nThese can not\nbe read by OpenCV; pictures\ncan.\n"""\n'
    violations = find_violations(collect_python(source, "module.py"), load_phrases())
    assert [str(violation) for violation in violations] == [
        "module.py:3: can not -> cannot",
        "module.py:4: pictures -> image(s)",
    ]


def test_totals_count_words_names_and_docstrings() -> None:
    source = '"""Graphs and nodes."""\n\n\ndef f(x):\n    """What cannot be; pictures can."""\n    y = x\n'
    texts = list(collect_python(source, "module.py"))
    totals = count_totals(texts, find_violations(texts, load_phrases()))
    assert totals == Totals(words=8, names=3, docstrings=2, question_openings=1, prose_violations=1, name_violations=0)
    assert totals.private_words_per_10000 == pytest.approx(1 / 8 * 10_000)


def test_list_rejects_exception_without_reason(tmp_path: Path) -> None:
    path = tmp_path / "banned.toml"
    path.write_text('[[phrase]]\npattern = "x"\nwrite = "y"\nallow = ["x z"]\n')
    with pytest.raises(ValueError, match="no reason"):
        load_phrases(path)
