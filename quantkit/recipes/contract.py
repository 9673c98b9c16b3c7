"""Checks of the promises that every transform makes, for quantkit's own transforms and for those of plugins.

In a test of a plugin:

    from quantkit.recipes.contract import broken_promises
    from my_package import my_transform

    def test_my_transform_keeps_its_promises():
        assert not broken_promises(my_transform)

Each promise is checked on the examples of the transform and, with the options of its first example, on small graphs
with shared constants, control dependencies, several outputs per node, unknown sizes and outputs in the middle. A
promise counts as exercised only if a graph was rewritten for it: a transform that rewrites no graph is not checked.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from quantkit.errors import CheckError, QuantkitError, RecipeError
from quantkit.formats import graphdef, onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.text import from_text, to_text
from quantkit.recipes.example import read_examples, run_examples, runnable
from quantkit.recipes.recipe import IGNORE_ERRORS
from quantkit.recipes.verify import Verifier
from quantkit.runtimes import REFERENCE, open_session
from quantkit.transforms.registry import Transform

# Small graphs with features that rewrites often get wrong.
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
    "control dependencies and several outputs": """
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
    "an output in the middle": """
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


ADD_EXAMPLE = "add a section 'Example:' to the docstring with a graph that the transform rewrites"


class Status(Enum):
    """Result of checking one promise."""

    EXERCISED = "exercised"
    NOT_EXERCISED = "not exercised"
    BROKEN = "broken"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class PromiseCheck:
    """Result of checking one promise of one transform.

    Attributes:
        promise: the promise in one clause.
        status: exercised, not exercised, broken or not applicable.
        reason: reason why the promise is broken or was not exercised; empty if it is kept.
        hint: next step for the author; empty if the promise is kept.
    """

    promise: str
    status: Status
    reason: str = ""
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.promise}: {self.status.value}" + (f": {self.reason}" if self.reason else "")

    def to_json(self) -> dict[str, str]:
        return {
            "promise": self.promise,
            "status": self.status.value,
            "reason": self.reason,
            "hint": self.hint,
        }


@dataclass(frozen=True)
class Trial:
    """A transform applied twice to one graph.

    Attributes:
        name: name of the graph.
        text: the graph as text, before the calls.
        graph: the graph that the transform got.
        results: new graphs of both calls; None if the transform rejected the graph with a message.
        error: message of an exception that is not a QuantkitError; otherwise empty.
        matches: number of matches by rule.
    """

    name: str
    text: str
    graph: Graph
    results: tuple[Graph | None, Graph | None]
    error: str
    matches: Mapping[str, int]

    @property
    def rewritten(self) -> Graph | None:
        """The new graph; None if the transform did not change the graph."""
        after = self.results[0]
        return after if after is not None and _is_rewritten(from_text(self.text), after) else None


@dataclass(frozen=True)
class NotExercised:
    """Reason why a graph does not exercise a promise."""

    reason: str
    hint: str = ADD_EXAMPLE


NO_TRIALS = NotExercised("a transform with required options cannot be tried without an example")
# None if the promise is exercised and kept; the reason if it is broken; NOT_APPLICABLE if no transform of its
# kind can break it.
Finding = str | NotExercised | Literal[Status.NOT_APPLICABLE] | None


def broken_promises(transform: Transform) -> tuple[str, ...]:
    """Return a sentence for each promise that is broken or was not exercised."""
    failures = (Status.BROKEN, Status.NOT_EXERCISED)
    return tuple(str(check) for check in check_transform(transform) if check.status in failures)


def check_transform(transform: Transform) -> tuple[PromiseCheck, ...]:
    """Check all promises of a transform."""
    trials = _run_trials(transform)
    findings: dict[str, Finding] = {
        "documents its effect, its options and its skips": _check_documentation(transform),
        "has examples that it rewrites": _check_examples(transform),
        "reports errors as messages": _check_each(trials, _check_errors),
        "does not change its input": _check_each(trials, _check_input),
        "is deterministic": _check_each(trials, _check_determinism),
        "returns well-formed graphs": _check_each(trials, _check_graph),
        "returns graphs that can be saved": _check_each(trials, _check_saving),
        _outputs_promise(transform): _check_each(trials, lambda trial: _check_outputs(transform, trial)),
        "matches with every rule": _check_rules(trials),
    }
    return tuple(_describe(promise, finding) for promise, finding in findings.items())


def _describe(promise: str, finding: Finding) -> PromiseCheck:
    if finding is None:
        return PromiseCheck(promise, Status.EXERCISED)
    if isinstance(finding, NotExercised):
        return PromiseCheck(promise, Status.NOT_EXERCISED, finding.reason, finding.hint)
    if finding is Status.NOT_APPLICABLE:
        return PromiseCheck(promise, finding)
    return PromiseCheck(promise, Status.BROKEN, finding, "correct the transform, or its documentation")


def _outputs_promise(transform: Transform) -> str:
    if transform.is_exact:
        return "keeps the model outputs up to rounding"
    return "keeps most of the signal of the model outputs"


def _check_documentation(transform: Transform) -> Finding:
    required = ("Before:", "After:", "Skips ")
    missing = [start for start in required if not re.search(f"^{start}", transform.doc, re.MULTILINE)]
    if missing:
        return f"the docstring has no line that begins with {' or '.join(map(repr, missing))}"
    section = transform.doc.partition("Options:")[2].partition("\n\n")[0]
    documented = set(re.findall(r"^    (\w+): ", section, re.MULTILINE))
    wrong = sorted(documented ^ set(transform.options))
    return f"the section 'Options:' and the signature differ in {', '.join(wrong)}" if wrong else None


def _check_examples(transform: Transform) -> Finding:
    try:
        examples = run_examples(transform)
    except QuantkitError as error:
        return error.message
    unchanged = [example for example in examples if not _is_rewritten(example.before, example.after)]
    return f"the example {unchanged[0].recipe} does not change the graph" if unchanged else None


def _is_rewritten(before: Graph, after: Graph) -> bool:
    """Return True if the graphs differ, the order of the nodes included."""
    return after != before or list(after.nodes) != list(before.nodes)


def _run_trials(transform: Transform) -> tuple[Trial, ...]:
    """Apply the transform to its examples and to `GRAPHS`; no trials if only an example could give its options."""
    texts = {name: to_text(runnable(from_text(text))) for name, text in GRAPHS.items()}
    try:
        examples = read_examples(transform)
    except QuantkitError:
        if any(option.is_required for option in transform.options.values()):
            return ()
        return tuple(_run_trial(transform, name, text, {}) for name, text in texts.items())
    trials = []
    for number, (recipe, graph) in enumerate(examples, 1):
        step = next(step for step in recipe.steps if step.name == transform.name)
        values = transform.parse_options({key: texts for key, texts in step.options.items() if key != IGNORE_ERRORS})
        if number == 1:
            trials = [_run_trial(transform, name, text, values) for name, text in texts.items()]
        trials.insert(number - 1, _run_trial(transform, f"example {number}", to_text(graph), values))
    return tuple(trials)


def _run_trial(transform: Transform, name: str, text: str, values: Mapping[str, Any]) -> Trial:
    graph = from_text(text)
    results: list[Graph | None] = []
    matches: Mapping[str, int] = {}
    message = ""
    for argument in (graph, from_text(text)):
        result = None
        try:
            outcome, matches = transform.count_outcome(argument, **values)
            result = outcome.graph
        except RecipeError as error:
            # A plugin's exception is a RecipeError; those of quantkit's own transforms are about options.
            message = "" if transform.is_built_in else error.message
        except QuantkitError:
            message = ""
        except Exception as error:
            message = f"the transform raises {type(error).__name__}: {error}"
        results.append(result)
    return Trial(name, text, graph, (results[0], results[1]), message, matches)


def _check_each(trials: tuple[Trial, ...], check: Callable[[Trial], Finding]) -> Finding:
    """Combine the findings of all trials: broken if one breaks the promise, exercised if one exercises it."""
    if not trials:
        return NO_TRIALS
    findings = []
    for trial in trials:
        try:
            finding = check(trial)
        except Exception as error:  # a graph may hold any Python object
            finding = f"the result cannot be inspected: {type(error).__name__}: {error}"
        if isinstance(finding, str):
            return f"{finding} (graph: {trial.name})"
        findings.append(finding)
    return None if None in findings else findings[0]


def _check_errors(trial: Trial) -> Finding:
    return trial.error or None


def _check_input(trial: Trial) -> Finding:
    if trial.graph != from_text(trial.text):
        return "the transform changes its input graph"
    return _exercised_if_rewritten(trial)


def _check_determinism(trial: Trial) -> Finding:
    first, second = trial.results
    return _exercised_if_rewritten(trial) if first == second else "the results differ from call to call"


def _check_graph(trial: Trial) -> Finding:
    try:
        if trial.results[0] is not None:
            verify(trial.results[0])
    except QuantkitError as error:
        return f"the transform breaks the graph: {error.message}"
    return _exercised_if_rewritten(trial)


def _check_saving(trial: Trial) -> Finding:
    after = trial.rewritten
    if after is None:
        return _exercised_if_rewritten(trial)
    try:
        if after.dialect == onnx.DIALECT:
            saved = onnx.decode(onnx.encode(after))
            is_equal = _saved_fields(saved) == _saved_fields(after)
        else:
            is_equal = graphdef.decode(graphdef.encode(after)).nodes == after.nodes
    except QuantkitError as error:
        return f"the result cannot be saved: {error.message}"
    return None if is_equal else "the result differs after saving and loading"


def _saved_fields(graph: Graph) -> Mapping[str, Any]:
    """Return the fields of an ONNX graph that a file keeps; the order of constants changes."""
    return {node.name: (node.op, node.inputs, node.attrs) for node in graph.nodes.values()}


def _check_outputs(transform: Transform, trial: Trial) -> Finding:
    before, after = runnable(from_text(trial.text)), trial.rewritten
    if after is None:
        return _exercised_if_rewritten(trial)
    if after.outputs != before.outputs:
        return NotExercised(
            "the transform renames the outputs", "add an example in which it keeps the names of the outputs"
        )
    check = Verifier(lambda graph: open_session(graph, REFERENCE))
    try:
        check(before, runnable(after), transform)
    except CheckError as error:
        if "no kernel for" in error.message:
            return NotExercised(error.message, "add an example whose ops the reference runtime computes")
        return error.message
    except QuantkitError as error:
        return NotExercised(
            f"the graph cannot be run: {error.message}", "add an example that the reference runtime runs"
        )
    return None


def _exercised_if_rewritten(trial: Trial) -> Finding:
    return NotExercised("the transform rewrites none of the graphs") if trial.rewritten is None else None


def _check_rules(trials: tuple[Trial, ...]) -> Finding:
    if not trials:
        return NO_TRIALS
    matches: dict[str, int] = {}
    for trial in trials:
        for rule, number in trial.matches.items():
            matches[rule] = matches.get(rule, 0) + number
    if not matches:
        return Status.NOT_APPLICABLE
    unmatched = [rule for rule, number in matches.items() if not number]
    if unmatched:
        return NotExercised(
            f"no graph matches {' or '.join(unmatched)}", "add a section 'Example:' with a graph that the rule matches"
        )
    return None
