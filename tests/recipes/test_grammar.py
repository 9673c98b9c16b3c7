"""Transforms strings: grammar, errors and the marked column."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.errors import RecipeError
from quantkit.recipes import Step, parse
from quantkit.recipes.grammar import parse_steps

CLASSIC = """
  add_default_attributes
  strip_unused_nodes(type=float, shape="1,299,299,3")
  remove_nodes(op=Identity, op=CheckNumerics)
  fold_constants(ignore_errors=true)sort_by_execution_order"""


def test_transforms_string() -> None:
    steps = parse(CLASSIC).steps
    assert [step.name for step in steps] == [
        "add_default_attributes",
        "strip_unused_nodes",
        "remove_nodes",
        "fold_constants",
        "sort_by_execution_order",
    ]
    assert steps[1].options == {"type": ("float",), "shape": ("1,299,299,3",)}
    assert steps[2].options == {"op": ("Identity", "CheckNumerics")}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a", {}),
        ("a()", {}),
        ("a(b=c)", {"b": ("c",)}),
        ("a( b = c , d=e )", {"b": ("c",), "d": ("e",)}),
        ("a(b=c d=e)", {"b": ("c",), "d": ("e",)}),
        ('a(b="x, (y) z")', {"b": ("x, (y) z",)}),
        ('a(b="")', {"b": ("",)}),
        ('a(b="q\\"q")', {"b": ('q\\"q',)}),
        ("a(b=-1.5/x_)", {"b": ("-1.5/x_",)}),
        ("a(b=c,\n  b=d)", {"b": ("c", "d")}),
    ],
)
def test_options(text: str, options: dict[str, tuple[str, ...]]) -> None:
    assert parse_steps(text) == (Step("a", options),)


@pytest.mark.parametrize(
    ("text", "message", "column", "hint"),
    [
        ("a, b", "Looking for transform name, but found , b", 2, "separated by spaces"),
        ("a(b=c", "never closed", 2, ""),
        ("a(b=c,", "never closed", 2, ""),
        ("a(b)", "Looking for =, but found )", 4, ""),
        ("a(b=)", "Looking for a value, but found )", 5, ""),
        ("a(=c)", "Looking for parameter name, but found =c)", 3, ""),
        ("a(b='c')", "Looking for a value, but found 'c')", 5, "must be double"),
        ("a(b=c')", "Looking for parameter name, but found ')", 6, "must be double"),
        ('a(b="c', "quote opened here is never closed", 5, ""),
        ("a(b=“c”)", "Looking for a value", 5, "typographic"),
        ("a(b=c:0)", "Looking for parameter name, but found :0)", 6, "double quotes"),
        ("a\\\n b", "Looking for transform name", 2, ""),
    ],
)
def test_error_marks_the_column(text: str, message: str, column: int, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_steps(text)
    assert message in caught.value.message
    assert f"column {column})" in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2
    shown, pointer = caught.value.message.splitlines()[-2:]
    assert shown[pointer.index("^")] == text.splitlines()[0][column - 1]


def test_error_marks_the_column_on_later_lines() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_steps("first\n  second(x=1)\n  third(y:2)")
    lines = caught.value.message.splitlines()
    assert "line 3, column 10" in lines[0]
    assert lines[1][lines[2].index("^")] == ":"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "at least one transform", "transforms list"),
        (" \n ", "at least one transform", "transforms list"),
        ("remove_node(op=Identity)", "Transform 'remove_node' not recognized", "did you mean 'remove_nodes'"),
        ("remove_nodes(ops=Identity)", "has no option 'ops'", "did you mean 'op'?"),
        ("remove_nodes", "at least one 'op'", "transforms show remove_nodes"),
        ("remove_nodes(op=A, max_inputs=two)", "Couldn't interpret the max_inputs argument as a number:two", ""),
        ("fold_constants(clear_output_shapes=yes)", "as a boolean:yes", "expected true, false"),
        ("strip_unused_nodes(type=float, type=int32)", "Expected a single 'type' parameter, but found 2", "once"),
        ("fold_constants(ignore_errors=1)", "ignore_errors should be true or false, found 1", ""),
    ],
)
def test_unknown_names_are_rejected_before_the_run(text: str, message: str, hint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("text", "column", "mark"),
    [
        ("fold_constants remove_node(op=Identity)", 16, "r"),
        ("remove_nodes(op=A, ops=Identity)", 20, "o"),
        ("remove_nodes(op=A,\n  max_inputs=two)", 3, "m"),
        ("strip_unused_nodes(type=float, shape=1, type=int32)", 41, "t"),
        ("fold_constants(ignore_errors=1)", 16, "i"),
        ("fold_constants remove_nodes", 16, "r"),
    ],
)
def test_error_marks_unknown_names(text: str, column: int, mark: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    first, *_, shown, pointer = caught.value.message.splitlines()
    assert f"column {column})" in first
    assert shown[pointer.index("^")] == mark


texts = st.text("abcdefgXYZ_019", min_size=1, max_size=8)
values = st.one_of(st.text("abc-./_019", min_size=1), st.text("ab ,()='\n\u00e9", max_size=6))
steps = st.builds(Step, texts, st.dictionaries(texts, st.lists(values, min_size=1, max_size=3).map(tuple), max_size=3))


@given(st.lists(steps, min_size=1, max_size=4).map(tuple))
def test_text_round_trips(recipe: tuple[Step, ...]) -> None:
    assert parse_steps(" ".join(map(str, recipe))) == recipe


@given(st.text("ab(=,)\"' \n\\:", max_size=30))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        parse_steps(text)
    except RecipeError as error:
        assert "column" in error.message  # noqa: PT017
