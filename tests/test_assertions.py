"""Tests assert conditions that can be false."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Functions whose results are never empty.
TRUE_FUNCTIONS = ("str", "repr", "json.dumps")


def find_true_assertions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the assertions that hold for every value, and the checks for an error that accept every error."""
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=ast.Constant(value=value)) if value:
                yield node
            case ast.Assert(test=ast.Tuple() | ast.JoinedStr()):
                yield node
            case ast.Assert(test=ast.Call(func=function)) if ast.unparse(function) in TRUE_FUNCTIONS:
                yield node
            case ast.Assert(test=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))) if name[0].isupper():
                yield node
            case ast.Assert(test=test) if any(map(_is_true, ast.walk(test))):
                yield node
            case ast.Call(func=ast.Attribute(attr="raises"), args=[ast.Name(id="Exception" | "BaseException"), *_]):
                yield node


def _is_true(node: ast.AST) -> bool:
    """Return True for a count that is not negative, and for alternatives that cover the other results."""
    match node:
        case ast.Compare(ops=[ast.GtE()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.BoolOp(op=ast.Or(), values=[*_, ast.Compare(ops=[ast.In()], comparators=[ast.Tuple() | ast.Set()])]):
            return True
        case ast.BoolOp(op=ast.Or(), values=[ast.Compare(ops=[ast.Is()]), ast.Call(func=ast.Name(id="isinstance"))]):
            return True
    return False


def test_assertions_can_fail() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in paths
        for node in find_true_assertions(ast.parse(path.read_text()))
    ]
    assert len(paths) > 400
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "assert len(x) >= 0",
        "assert all(time >= 0 for time in times)",
        "assert x in y or name in ('a', 'b')",
        "assert text is None or isinstance(text, bytes)",
        "assert str(x)",
        "assert json.dumps(x)",
        "assert Graph(x)",
        "assert 'a'",
        "assert (x, 'message')",
        "pytest.raises(Exception)",
        "pytest.raises(Exception, match='x')",
    ],
)
def test_assertion_that_cannot_fail_is_found(source: str) -> None:
    assert len(list(find_true_assertions(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", ["assert 0 <= x <= 1", "assert x is None or x > 2", "assert x > 0", "assert f(x)"])
def test_other_assertion_is_not_found(source: str) -> None:
    assert not list(find_true_assertions(ast.parse(source)))
