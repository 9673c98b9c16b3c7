"""Check prose and names against the project's language guide.

    python tests/support/language.py quantkit/ir cli README.md

prints ``path:line: phrase -> suggestion`` for each violation, then totals per path. The list of
banned phrases is ``banned_words.toml`` in this folder.

Prose is: docstrings, comments and string literals of Python files, and Markdown text outside fenced
code blocks (``console`` transcripts are included). Names are those that a file defines: functions,
classes, parameters, variables and attributes. A name is matched as text: ``file_name`` and
``FileName`` are both "file name".
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BANNED_WORDS = Path(__file__).with_name("banned_words.toml")
PROSE = frozenset({"docstring", "comment", "string", "help", "markdown"})
NAMES = frozenset({"function", "test", "class", "variable"})
GROUPS = {"prose": PROSE | {"test"}, "name": NAMES - {"test"}}
QUESTION_OPENING = re.compile(r"(What|Whether|How|Who)\b")

# Bounds of a phrase.
_START, _END = r"(?<![\w-])", r"(?![\w-])"
_INLINE_LITERAL = re.compile(r"(`+)[^`]+?\1")
_LINK_TARGET = re.compile(r"\]\([^)]*\)|<https?://[^>]*>|https?://\S+")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# The pattern finds strings as well, in which "#" starts no comment; a tokenizer in Python takes ten times as long.
_STRINGS = (r'"""(?:[^\\]|\\.)*?"""', r"'''(?:[^\\]|\\.)*?'''", r'"(?:[^"\\\n]|\\.)*"', r"'(?:[^'\\\n]|\\.)*'")
_STRING_OR_COMMENT = re.compile("|".join((*_STRINGS, r"#[^\n]*")), re.DOTALL)
_NAMING_NODES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.Name, ast.Attribute),
    *(ast.MatchAs, ast.MatchStar, ast.ExceptHandler),
)
_SENTENCE = re.compile(r"\w[\w'-]*[,;:]? +\w[\w'-]*[,;:]? +\w")
_KIND_OF_OWNER = {"function": "function", "property": "variable"}
_TEXT_ARGUMENTS = frozenset(
    {"hint", "help", "doc", "description", "epilog", "metavar", "title", "reason", "prog", "usage"}
)
_TEXT_CALLS = re.compile(r".*(Error|Exception|Skip|Warning)|log|warn|fail|skip|print|add_argument_group")


@dataclass(frozen=True)
class Text:
    """Piece of prose, or a defined name, with its position in a file."""

    path: str
    line: int
    kind: str
    text: str
    owner: str = ""
    """Owner of a docstring (``module``, ``class``, ``function``, ``property``), or the name itself."""


@dataclass(frozen=True)
class Phrase:
    """Banned phrase: the pattern, its replacement, and the kinds of text where it is banned."""

    pattern: re.Pattern[str]
    suggestion: str
    kinds: frozenset[str]
    allowed: tuple[re.Pattern[str], ...] = ()
    allowed_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Violation:
    """Banned phrase in a text."""

    path: str
    line: int
    kind: str
    phrase: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase} -> {self.suggestion}"


@dataclass(frozen=True)
class Totals:
    """Counts over some files."""

    words: int
    names: int
    docstrings: int
    question_openings: int
    prose_violations: int
    name_violations: int

    @property
    def private_words_per_10000(self) -> float:
        """Banned phrases per 10,000 words of prose."""
        return 10_000 * self.prose_violations / max(self.words, 1)

    def __str__(self) -> str:
        return (
            f"{self.words} words with {self.prose_violations} banned phrases "
            f"({self.private_words_per_10000:.1f} per 10,000), "
            f"{self.names} names with {self.name_violations}, "
            f"{self.docstrings} docstrings ({self.question_openings} begin with What/Whether/How/Who)"
        )


@cache
def load_phrases(path: Path = BANNED_WORDS) -> tuple[Phrase, ...]:
    """Read the banned phrases; names of tests are sentences, and ``prose`` includes them."""
    phrases = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["phrase"]:
        unknown = set(entry) - {"pattern", "write", "in", "allow", "allow_paths", "reason"}
        if unknown or (("allow" in entry or "allow_paths" in entry) and "reason" not in entry):
            raise ValueError(f"{path.name}: {entry['pattern']!r}: unknown keys {sorted(unknown)} or no reason")
        kinds = frozenset[str]().union(*(GROUPS.get(kind, {kind}) for kind in entry.get("in", ["prose"])))
        if kinds - PROSE - NAMES:
            raise ValueError(f"{path.name}: {entry['pattern']!r}: unknown kinds {sorted(kinds - PROSE - NAMES)}")
        phrases.append(
            Phrase(
                _compile(entry["pattern"]),
                entry["write"],
                kinds,
                tuple(_compile(pattern) for pattern in entry.get("allow", ())),
                tuple(entry.get("allow_paths", ())),
            )
        )
    return tuple(phrases)


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which a space stands for any whitespace, bounded by words."""
    spaced = pattern.replace(" ?", r"\s*").replace(" ", r"\s+")
    return re.compile(f"{_START}(?:{spaced}){_END}", re.IGNORECASE | re.MULTILINE)


@cache
def _compile_any(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Compile a pattern that matches where one of the patterns of phrases does; their bounds are outside."""
    parts = [pattern.removeprefix(_START).removesuffix(_END) for pattern in patterns]
    return re.compile(f"{_START}(?:{'|'.join(parts)}){_END}" if parts else "(?!)", re.IGNORECASE | re.MULTILINE)


def collect_texts(path: Path, root: Path, *, strings: bool = True) -> list[Text]:
    """Return the prose and the defined names of a Python or Markdown file.

    Args:
        path: file that ends in ``.py`` or ``.md``.
        root: folder that ``Text.path`` is relative to.
        strings: include string literals (in tests they quote inputs and other programs).
    """
    name = path.relative_to(root).as_posix()
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return list(collect_markdown(source, name))
    return [*collect_python(source, name, strings=strings), *_comments(source, name)]


def collect_markdown(source: str, path: str) -> Iterator[Text]:
    """Yield the paragraphs of a Markdown file, without fenced code other than transcripts."""
    fence = ""
    start, lines = 1, list[str]()
    for number, line in enumerate([*source.splitlines(), ""], 1):
        marker = re.match(r"\s*(```+|~~~+)(\w*)", line)
        if marker or not line.strip() or (lines and re.match(r"\s*([-*|#]|\d+\.) ?", line)) or fence == "console":
            if lines:
                yield Text(path, start, "markdown", "\n".join(lines))
            lines = []
        if marker:
            fence = "" if fence else marker[2] or "code"
        elif line.strip() and fence in ("", "console") and not (fence and line.startswith("$ ")):
            start = start if lines else number
            lines.append(line)


def collect_python(source: str, path: str, *, strings: bool = True) -> Iterator[Text]:
    """Yield docstrings, messages, help texts and defined names of a Python file."""
    tree = ast.parse(source)
    nodes, docstrings = list(ast.walk(tree)), set[int]()
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(node, path, docstrings)
    for node in nodes:
        if isinstance(node, _NAMING_NODES):
            yield from _names(node, path)
    if strings:
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        kinds = {id(part): kind for call in calls for part, kind in _text_arguments(call)}
        yield from _strings(nodes, path, docstrings, kinds)


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, path: str, docstrings: set[int]
) -> Iterator[Text]:
    """Yield the docstring of a definition, and the ones below the attributes of a class."""
    for position, statement in enumerate(node.body):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text)) as constant) if position == 0 or not isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef
            ):
                docstrings.add(id(constant))
                owner = _owner(node) if position == 0 else "attribute"
                yield Text(path, constant.lineno, "docstring", text, owner)


def _owner(node: ast.AST) -> str:
    match node:
        case ast.Module():
            return "module"
        case ast.ClassDef():
            return "class"
        case ast.FunctionDef(decorator_list=decorators):
            names = {ast.unparse(decorator).split("(")[0].rsplit(".", 1)[-1] for decorator in decorators}
            return "property" if names & {"property", "cached_property", "fixture"} else "function"
    return "function"


def _names(node: ast.AST, path: str) -> Iterator[Text]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            kind = "test" if node.name.startswith("test_") else _KIND_OF_OWNER[_owner(node)]
            yield Text(path, node.lineno, kind, _name_words(node.name), node.name)
        case ast.ClassDef():
            yield Text(path, node.lineno, "class", _name_words(node.name), node.name)
        case ast.arg():
            yield Text(path, node.lineno, "variable", _name_words(node.arg), node.arg)
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield Text(path, node.lineno, "variable", _name_words(name), name)
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
            yield Text(path, node.lineno, "variable", _name_words(name), name)


def _name_words(name: str) -> str:
    return " ".join(word.lower() for word in _NAME_WORD.findall(name))


def _text_arguments(call: ast.Call) -> Iterator[tuple[ast.AST, str]]:
    """Yield the parts of arguments that people read, with their kind."""
    for keyword in call.keywords:
        if keyword.arg in _TEXT_ARGUMENTS:
            kind = "help" if keyword.arg == "help" else "string"
            yield from ((part, kind) for part in ast.walk(keyword.value))
    if _TEXT_CALLS.fullmatch(ast.unparse(call.func).rsplit(".", 1)[-1]):
        yield from ((part, "string") for argument in call.args for part in ast.walk(argument))


def _strings(nodes: Iterable[ast.AST], path: str, docstrings: set[int], kinds: Mapping[int, str]) -> Iterator[Text]:
    """Yield strings in arguments that people read, and all others that look like a sentence.

    Args:
        kinds: ``string`` or ``help`` by the identity of a literal in an argument.
    """
    excluded = set(docstrings)
    for node in nodes:
        match node:
            case ast.JoinedStr(values=values):
                excluded.update(id(value) for value in values)
                text = "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in values)
            case ast.Constant(value=str(text)) if id(node) not in excluded:
                pass
            case _:
                continue
        if id(node) in kinds or _SENTENCE.search(text):
            yield Text(path, node.lineno, kinds.get(id(node), "string"), text)


def _comments(source: str, path: str) -> Iterator[Text]:
    """Yield comments; consecutive comment lines are one text."""
    start, lines = 0, list[str]()
    line, position = 1, 0
    for match in _STRING_OR_COMMENT.finditer(source):
        if not match[0].startswith("#"):
            continue
        line += source.count("\n", position, match.start())
        position = match.start()
        if lines and line != start + len(lines):
            yield Text(path, start, "comment", "\n".join(lines))
            lines = []
        start = start if lines else line
        lines.append(match[0].lstrip("#:! "))
    if lines:
        yield Text(path, start, "comment", "\n".join(lines))


def prose_of(text: Text) -> str:
    """Return the text with inline code, addresses and doctest lines blanked; line breaks stay."""
    prose = "\n".join("" if line.lstrip().startswith((">>> ", "... ")) else line for line in text.text.split("\n"))
    return _LINK_TARGET.sub("] ", _INLINE_LITERAL.sub(" ` ", prose))


def find_violations(texts: Iterable[Text], phrases: Sequence[Phrase]) -> list[Violation]:
    """Return the banned phrases of texts in file order; a name counts once per file."""
    violations, checked = list[Violation](), set[tuple[str, str, str]]()
    contents: dict[str, list[tuple[Text, str]]] = {}
    for text in texts:
        if text.kind in PROSE:
            contents.setdefault(text.kind, []).append((text, prose_of(text)))
            violations += _opening_violations(text)
        elif (text.path, text.kind, text.owner) not in checked:
            checked.add((text.path, text.kind, text.owner))
            contents.setdefault(text.kind, []).append((text, text.text))
    for kind, pairs in contents.items():
        # Most texts have no phrase: one search for all of them is faster than one for each.
        of_kind = [phrase for phrase in phrases if kind in phrase.kinds]
        any_phrase = _compile_any(tuple(phrase.pattern.pattern for phrase in of_kind))
        for text, content in pairs:
            if any_phrase.search(content):
                violations += _phrase_violations(text, content, of_kind)
    return sorted(violations, key=lambda violation: (violation.path, violation.line, violation.phrase))


def _phrase_violations(text: Text, content: str, phrases: Sequence[Phrase]) -> Iterator[Violation]:
    """Yield the banned phrases of a text; of two that overlap, the first of the list counts."""
    spans = list[tuple[int, int]]()
    for phrase in phrases:
        if text.kind not in phrase.kinds or text.path.startswith(phrase.allowed_paths):
            continue
        matches = list(phrase.pattern.finditer(content))
        allowed = [match.span() for rule in phrase.allowed for match in rule.finditer(content)] if matches else []
        for match in matches:
            start, end = match.span()
            is_allowed = any(first <= start and end <= last for first, last in allowed)
            if is_allowed or any(start < last and first < end for first, last in spans):
                continue
            spans.append((start, end))
            words = " ".join(match[0].split()) if text.kind in PROSE else text.owner
            line = text.line + content.count("\n", 0, start)
            yield Violation(text.path, line, text.kind, words, phrase.suggestion)


_QUESTION = re.compile(
    r"((In|Of|By|For|With|From|At|To|On|Under|Until|Since|Between) )?(what|which|whom)\b"
    r"|(What|Whatever|Whether|How|Who|Whose|Whoever|Why|Which|Where|When|None|That)\b"
)
_NO_VERB = re.compile(
    r"(The|An?|All|Each|Every|Any|No|None|One|Two|Both|Some|Such|It|Its|They|Their|Them|That|This|Those|These|There|"
    r"What|Whatever|Whether|How|Who|Whose|Whoever|Where|Which|Why|When|As|At|By|For|From|In|Of|On|To|With|Without|"
    r"Equal|Plain|Real|Whole|Exact|Random|Float|Data|Twice|Only|Same|New|More|Most|Many|Not|Nothing|Nobody|True|False)$"
)
_VERBS_IN_S = frozenset(
    {
        "Pass",
        "Process",
        "Compress",
        "Decompress",
        "Suppress",
        "Express",
        "Access",
        "Address",
        "Assess",
        "Cross",
        "Guess",
        "Bias",
        "Focus",
        "Discuss",
        "Miss",
        "Press",
        "Toss",
        "Bypass",
    }
)
_VERBS_IN_ING_ED = frozenset(
    {"Bring", "Ring", "Ping", "Feed", "Embed", "Seed", "Speed", "Proceed", "Exceed", "Need", "Shed", "Spring"}
)


def _opening_violations(text: Text) -> Iterator[Violation]:
    """Yield the opening of a docstring that states a question, or of a function's that has no imperative verb."""
    if text.kind != "docstring" or not (words := text.text.split()):
        return
    first = words[0].rstrip(":,.;")
    if _QUESTION.match(text.text.lstrip()):
        suggestion = "begin with an imperative verb (function) or a noun phrase (class, attribute, module)"
        yield Violation(text.path, text.line, "opening", f"docstring begins with '{first}'", suggestion)
    elif text.owner == "function" and not text.path.startswith("tests/") and not _may_be_verb(first):
        suggestion = "begin with an imperative verb: Return, Compute, Yield, Raise, ..."
        yield Violation(text.path, text.line, "opening", f"function docstring begins with '{first}'", suggestion)


def _may_be_verb(word: str) -> bool:
    if word in _VERBS_IN_S or word in _VERBS_IN_ING_ED:
        return True
    return not (_NO_VERB.match(word) or re.search(r"(s|ing|ed)$", word) or not word[:1].isalpha() or not word.isalpha())


def count_totals(texts: Iterable[Text], violations: Iterable[Violation]) -> Totals:
    """Count words of prose, names, docstrings and violations."""
    texts, violations = tuple(texts), tuple(violations)
    docstrings = [text for text in texts if text.kind == "docstring"]
    return Totals(
        words=sum(len(_WORD.findall(prose_of(text))) for text in texts if text.kind in PROSE),
        names=len({(text.path, text.owner) for text in texts if text.kind in NAMES}),
        docstrings=len(docstrings),
        question_openings=sum(bool(QUESTION_OPENING.match(text.text.lstrip())) for text in docstrings),
        prose_violations=sum(violation.kind in PROSE for violation in violations),
        name_violations=sum(violation.kind in NAMES for violation in violations),
    )


def find_files(paths: Iterable[Path]) -> list[Path]:
    """Return the Python and Markdown files below paths, sorted."""
    files = set[Path]()
    for path in paths:
        files.update([path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")])
    return sorted(files)


def main(arguments: list[str]) -> int:
    """Print the violations and the totals of the given paths (default: the project)."""
    root = Path(__file__).resolve().parents[2]
    paths = [Path(argument).resolve() for argument in arguments] or [
        root / name for name in ("quantkit", "cli", "models", "assets", "tests", "README.md")
    ]
    phrases = load_phrases()
    lines = []
    for path in paths:
        texts = [
            text
            for file in find_files([path])
            for text in collect_texts(file, root, strings="tests" not in file.relative_to(root).parts)
        ]
        violations = find_violations(texts, phrases)
        for violation in violations:
            print(violation)
        totals = count_totals(texts, violations)
        lines.append(f"{path.relative_to(root)}: {totals}")
        if len(paths) == 1 and violations:
            common = Counter(violation.suggestion for violation in violations).most_common(10)
            lines += [f"  {count:5} x {suggestion}" for suggestion, count in common]
    print(*lines, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
