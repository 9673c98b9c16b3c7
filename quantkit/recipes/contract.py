"""What every transform promises, as checks that anybody can run on theirs.

In a test of a plugin:

    from quantkit.recipes.contract import broken_promises
    from my_package import my_transform

    def test_my_transform_keeps_its_promises():
        assert not broken_promises(my_transform)

Each promise is checked on the transform's own example and, with the example's options, on small graphs that hold what
transforms trip over: shared values, control inputs, ports, channels first, unknown sizes, ends in the middle.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from quantkit.errors import CheckError, QuantkitError, RecipeError
from quantkit.formats import graphdef
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text, to_text
from quantkit.recipes.example import read_example, run_example, runnable
from quantkit.recipes.verify import Verifier
from quantkit.runtimes import open_session
from quantkit.transforms.registry import Transform

GRAPHS: Mapping[str, str] = {
    "shared values and a norm": """
        inputs: x
        outputs: y, z
        x = Placeholder[1x4x4x2]()
        w = Const[3x3x2x2]()
        scale = Const([0.5, 2.0])
        conv = Conv2D(x, w)
        again = Conv2D(x, w)
        scaled = Mul(conv, scale)
        y = Relu(scaled)
        sum = Add(conv, again)
        z = Identity(sum)
    """,
    "channels first": """
        inputs: x
        outputs: y
        x = Placeholder[1x2x4x4]()
        w = Const[1x1x2x3]()
        bias = Const([0.5, -1.0, 2.0])
        conv = Conv2D(x, w, data_format=NCHW)
        sum = BiasAdd(conv, bias, data_format=NCHW)
        y = Relu6(sum)
    """,
    "control inputs and ports": """
        inputs: x
        outputs: parts:1, y
        x = Placeholder[4]()
        axis = Const[int32](0)
        check = CheckNumerics(x, message=bad)
        same = Identity(x, ^check)
        parts = Split(axis, same, ^check, num_split=2)
        y = Neg(parts, ^same)
    """,
    "unknown sizes": """
        inputs: x
        outputs: y
        x = Placeholder[?x3]()
        w = Const[3x5]()
        product = MatMul(x, w)
        one = Const(1.0)
        y = Add(product, one)
    """,
    "an end in the middle": """
        inputs: x
        outputs: middle, y
        x = Placeholder[2x3]()
        two = Const(2.0)
        three = Const(3.0)
        five = Add(two, three)
        middle = Mul(x, five)
        unused = Relu(middle)
        y = Softmax(middle)
    """,
}


def broken_promises(transform: Transform) -> tuple[str, ...]:
    """A sentence for each promise that a transform does not keep."""
    found = check_transform(transform)
    return tuple(f"{promise}: {reason}" for promise, reason in found.items() if reason)


def check_transform(transform: Transform) -> Mapping[str, str]:
    """For each promise what breaks it, or nothing."""
    return {promise: _reason(check, transform) for promise, check in PROMISES.items()}


def _reason(check: Callable[[Transform], str], transform: Transform) -> str:
    try:
        return check(transform)
    except Exception as error:  # a graph may hold anything that Python lets in
        return f"what it makes can not be looked at: {type(error).__name__}: {error}"


def _documents_itself(transform: Transform) -> str:
    words = ("Before:", "After:", "Skips ")
    missing = [word for word in words if not re.search(f"^{word}", transform.doc, re.MULTILINE)]
    if missing:
        return f"its docstring has no line that begins with {' or '.join(map(repr, missing))}"
    section = transform.doc.partition("Options:")[2].partition("\n\n")[0]
    documented = set(re.findall(r"^    (\w+): ", section, re.MULTILINE))
    wrong = sorted(documented ^ set(transform.options))
    return f"its section 'Options:' and its signature differ in {', '.join(wrong)}" if wrong else ""


def _has_an_example(transform: Transform) -> str:
    try:
        example = run_example(transform)
    except RecipeError as error:
        return error.message
    is_same = to_text(example.before) == to_text(example.after)
    return "its example changes nothing" if is_same else ""


def _on_each_graph(check: Callable[[Transform, dict[str, Any], str], str]) -> Callable[[Transform], str]:
    """A promise about graphs: kept where each of them gives no reason."""

    def checked(transform: Transform) -> str:
        values, texts = _trials(transform)
        if not texts:
            return "it can not be tried without an example: it has options that must be given"
        for name, text in texts.items():
            if reason := check(transform, values, text):
                return f"{reason} (graph: {name})"
        return ""

    return checked


def _trials(transform: Transform) -> tuple[dict[str, Any], dict[str, str]]:
    """Options, and texts of graphs, to try a transform with; no graphs where only an example could give the options."""
    known = {name: to_text(runnable(from_text(text))) for name, text in GRAPHS.items()}
    try:
        recipe, graph = read_example(transform)
    except RecipeError:
        return {}, {} if any(option.is_required for option in transform.options.values()) else known
    words = next(step.options for step in recipe.steps if step.name == transform.name)
    values = transform.parse_options({key: given for key, given in words.items() if key != "ignore_errors"})
    texts = {"its example": to_text(graph)}
    return values, texts | (known if graph.dialect == "tensorflow" else {})


def _applied(transform: Transform, values: dict[str, Any], graph: Graph) -> Graph | None:
    """The new graph; None where the transform refuses this one with a sentence."""
    try:
        return transform.outcome(graph, **values).graph
    except RecipeError:
        if transform.is_built_in:
            return None
        raise
    except QuantkitError:
        return None


@_on_each_graph
def _fails_in_sentences(transform: Transform, values: dict[str, Any], text: str) -> str:
    try:
        _applied(transform, values, from_text(text))
    except RecipeError as error:
        return error.message
    except Exception as error:
        return f"it raises {type(error).__name__}: {error}"
    return ""


@_on_each_graph
def _leaves_its_input(transform: Transform, values: dict[str, Any], text: str) -> str:
    graph = from_text(text)
    _quietly(transform, values, graph)
    return "" if graph == from_text(text) else "it changes the graph that it is given"


@_on_each_graph
def _is_deterministic(transform: Transform, values: dict[str, Any], text: str) -> str:
    one, other = (_quietly(transform, values, from_text(text)) for _ in range(2))
    return "" if one == other else "it makes another graph each time"


@_on_each_graph
def _makes_graphs(transform: Transform, values: dict[str, Any], text: str) -> str:
    made = _quietly(transform, values, from_text(text))
    try:
        if made is not None:
            verify(made)
    except QuantkitError as error:
        return f"it breaks the graph: {error.message}"
    return ""


@_on_each_graph
def _can_be_saved(transform: Transform, values: dict[str, Any], text: str) -> str:
    made = _quietly(transform, values, from_text(text))
    if made is None or made.dialect != "tensorflow":
        return ""
    try:
        read = graphdef.decode(graphdef.encode(made))
    except QuantkitError as error:
        return f"what it makes can not be saved: {error.message}"
    return "" if read.nodes == made.nodes else "what it makes is another graph once it is saved and read"


@_on_each_graph
def _keeps_the_answers(transform: Transform, values: dict[str, Any], text: str) -> str:
    before = runnable(from_text(text))
    after = _quietly(transform, values, before)
    if after is None or after.outputs != before.outputs or before.dialect != "tensorflow":
        return ""
    check = Verifier(lambda graph: open_session(graph, "reference"))
    try:
        check(before, runnable(after), transform)
    except CheckError as error:
        return "" if "no kernel for" in error.message else error.message
    except QuantkitError:
        return ""  # the graph can not be run before either
    return ""


def _quietly(transform: Transform, values: dict[str, Any], graph: Graph) -> Graph | None:
    """The new graph; None where the transform fails, which breaks another promise."""
    try:
        return _applied(transform, values, graph)
    except Exception:
        return None


PROMISES: Mapping[str, Callable[[Transform], str]] = {
    "documents what it does, its options, and when it declines": _documents_itself,
    "has an example that it changes": _has_an_example,
    "refuses graphs in sentences": _fails_in_sentences,
    "leaves its input as it is": _leaves_its_input,
    "makes the same graph each time": _is_deterministic,
    "makes well-formed graphs": _makes_graphs,
    "makes graphs that can be saved": _can_be_saved,
    "keeps the answers, as far as it says so": _keeps_the_answers,
}
