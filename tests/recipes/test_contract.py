"""Contract checks of transforms: each promise is exercised, not exercised or broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import main

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.errors import GraphError
from quantkit.recipes.contract import PromiseCheck, Status, broken_promises, check_transform
from quantkit.recipes.example import run_examples
from quantkit.rewriting import Edge, Graph, Node, Skip, any_, apply_rules, const, constant, op, rule, transform
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.registry import Transform

PROMISES = 9
EXAMPLE = """Do it.

    Example:
        {name}
        inputs: x
        outputs: y
        x = Placeholder[2]()
        two = Const(2.0)
        y = Mul(x, two)
    """


def drop_devices(graph: Graph, *, keep: str = "") -> Graph:
    """Remove the device strings of nodes.

    Before:  y = Neg(x) @"/cpu:0"
    After:   y = Neg(x)

    Options:
        keep: device string that stays.

    Skips nodes without a device string.

    Example:
        drop_devices
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x) @"/cpu:0"
    """
    return graph.with_nodes(node if node.device == keep else node.with_(device="") for node in graph.nodes.values())


def scale(graph: Graph, factor: float) -> Graph:
    return graph.with_nodes(
        constant(node.name, node.value.array * factor) if node.is_constant and node.name == "two" else node
        for node in graph.nodes.values()
    )


def register(name: str, function: Callable[[Graph], Any]) -> Transform:
    """Register a function that has an example but no documentation."""

    def apply(graph: Graph) -> Graph:
        return function(graph)  # type: ignore[no-any-return]

    apply.__name__ = name
    apply.__doc__ = EXAMPLE.format(name=name)
    return transform(apply)


def statuses(definition: Transform) -> dict[str, Status]:
    return {check.promise: check.status for check in check_transform(definition)}


def broken(definition: Transform) -> tuple[str, ...]:
    """Return the broken promises except that of the documentation."""
    checks = check_transform(definition)
    return tuple(check.promise for check in checks[1:] if check.status is Status.BROKEN)


def test_all_promises_of_a_correct_transform_are_exercised() -> None:
    checks = check_transform(transform(drop_devices))
    assert [check.status for check in checks] == [Status.EXERCISED] * (PROMISES - 1) + [Status.NOT_APPLICABLE]
    assert broken_promises(find_transform("drop_devices")) == ()


def test_missing_documentation_and_example_are_broken_promises() -> None:
    @transform
    def keep_graph(graph: Graph, *, factor: float = 1.0) -> Graph:
        """Return the graph."""
        return graph

    documentation, example, *others = check_transform(keep_graph)
    assert documentation.status is example.status is Status.BROKEN
    assert "no line that begins with 'Before:' or 'After:' or 'Skips '" in documentation.reason
    assert example.reason == "keep_graph has no example"
    assert len(broken_promises(keep_graph)) == 7
    assert [check.promise for check in others if check.status is Status.EXERCISED] == ["reports errors as messages"]
    assert others[-1] == PromiseCheck("matches with every rule", Status.NOT_APPLICABLE)


def test_transform_without_a_rewrite_is_not_exercised() -> None:
    checks = {check.promise: check for check in check_transform(register("keep_graph", lambda graph: graph))}
    for promise in ("does not change its input", "is deterministic", "returns well-formed graphs"):
        assert checks[promise] == PromiseCheck(
            promise,
            Status.NOT_EXERCISED,
            "the transform rewrites none of the graphs",
            "add a section 'Example:' to the docstring with a graph that the transform rewrites",
        )


def test_required_options_need_an_example() -> None:
    @transform
    def scale_all(graph: Graph, *, factor: float) -> Graph:
        """Return the graph."""
        return graph

    checks = check_transform(scale_all)
    assert checks[-1].status is Status.NOT_EXERCISED
    reasons = {check.reason for check in checks if check.status is Status.NOT_EXERCISED}
    assert reasons == {"a transform with required options cannot be tried without an example"}


def test_undocumented_options_are_named() -> None:
    def scale_all(graph: Graph, *, factor: float = 1.0) -> Graph:
        return graph

    scale_all.__doc__ = "Do.\n\nBefore:  a\nAfter:   b\n\nOptions:\n    facto: factor.\n\nSkips when it is late."
    assert "differ in facto, factor" in broken_promises(transform(scale_all))[0]


def test_exact_transform_must_keep_the_outputs() -> None:
    assert broken(register("scale_a_little", lambda graph: scale(graph, 1.01))) == (
        "keeps the model outputs up to rounding",
    )


def test_renamed_outputs_are_not_compared() -> None:
    def rename(graph: Graph) -> Graph:
        nodes = [node.with_(name="renamed") if node.name == "y" else node for node in graph.nodes.values()]
        return Graph.of(nodes, graph.inputs, [Edge("renamed") if edge.node == "y" else edge for edge in graph.outputs])

    checks = {check.promise: check for check in check_transform(register("rename_y", rename))}
    outputs = checks["keeps the model outputs up to rounding"]
    assert (outputs.status, outputs.reason) == (Status.NOT_EXERCISED, "the transform renames the outputs")


def test_changed_input_is_found() -> None:
    def change(graph: Graph) -> Graph:
        for node in graph.nodes.values():
            node.attrs["_seen"] = True  # type: ignore[index]
        return graph

    assert "does not change its input" in broken(register("change_input", change))


def test_random_results_are_found() -> None:
    numbers = iter(range(10**6))

    def number(graph: Graph) -> Graph:
        return graph.with_nodes(node.with_attrs(_number=next(numbers)) for node in graph.nodes.values())

    assert "is deterministic" in broken(register("number_nodes", number))


def test_dangling_inputs_are_found() -> None:
    def add(graph: Graph) -> Graph:
        return graph.with_nodes([*graph.nodes.values(), Node("odd", "Relu", (Edge("nowhere"),))])

    # The example fails as well.
    assert "returns well-formed graphs" in broken(register("add_dangling", add))


def test_exceptions_are_found() -> None:
    assert "reports errors as messages" in broken(register("crash", lambda graph: graph["no such node"]))


def test_unsaveable_graphs_are_found() -> None:
    def set_device(graph: Graph) -> Graph:
        return graph.with_nodes(node.with_(device="\ud800") for node in graph.nodes.values())

    assert "returns graphs that can be saved" in broken(register("set_odd_device", set_device))


@rule(op("Neg")(op("Neg", "inner")(any_("x"))))
def fold_negations(graph: Graph, root: Node, inner: Node) -> list[Node] | Skip:
    return [root.with_(op="Identity", inputs=inner.inputs)]


@rule(op("Mul", "root")(any_(), const("factor")))
def fold_ones(graph: Graph, root: Node, factor: Node) -> list[Node] | None:
    return [root.with_(op="Identity", inputs=root.inputs[:1])] if (factor.value.array == 1).all() else None


def test_every_rule_must_match() -> None:
    def fold_both(graph: Graph) -> Any:
        return apply_rules(graph, fold_negations, fold_ones)

    fold_both.__doc__ = EXAMPLE.format(name="fold_both").replace("two = Const(2.0)", "two = Const(1.0)")
    rules = check_transform(transform(fold_both))[-1]
    assert rules.promise == "matches with every rule"
    assert rules.status is Status.NOT_EXERCISED
    assert rules.reason == "no graph matches fold_negations: Neg(Neg(any))"
    second = "\n    Example:\n        fold_both\n        inputs: x\n        outputs: y\n        x = Placeholder[2]()\n"
    fold_both.__doc__ += second + "        n = Neg(x)\n        y = Neg(n)\n    "
    assert statuses(transform(fold_both))["matches with every rule"] is Status.EXERCISED


def test_rules_of_called_transforms_do_not_count() -> None:
    called = transform(fold_negations)

    def call_another(graph: Graph) -> Graph:
        return called(graph)

    call_another.__doc__ = EXAMPLE.format(name="call_another")
    assert statuses(transform(call_another))["matches with every rule"] is Status.NOT_APPLICABLE
    assert statuses(called)["matches with every rule"] is Status.NOT_EXERCISED


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("fold_constants\n        y = NoSuch(z)", "cannot be read: node 'y'"),
        ("fold_constants\n        y = Const(1.0)", "applies only fold_constants"),
        ("odd(a=b)\n        y = Const(1.0)", "cannot be read: odd has no option 'a'"),
        ("odd", "cannot be read: "),
    ],
)
def test_unreadable_examples(lines: str, message: str) -> None:
    def odd(graph: Graph) -> Graph:
        return graph

    odd.__doc__ = f"Do.\n\n    Example:\n        {lines}\n    "
    if message == "cannot be read: ":
        assert [check.status for check in check_transform(transform(odd))][1] is Status.BROKEN
        return
    with pytest.raises(GraphError, match="odd") as caught:
        run_examples(transform(odd))
    assert message in caught.value.message


def test_example_text_is_computed() -> None:
    example, _ = run_examples(find_transform("remove_nodes"))
    assert "    - same = Identity(x, ^check)" in str(example)
    assert "    + y = Relu(x)" in str(example)
    first, second = run_examples(find_transform("fold_clamps"))
    assert first.to_json()["steps"][0]["transform"] == "fold_clamps"
    assert "    + z = Relu6(x)" in str(second).replace(", T=float)", ")")


def test_example_marks_moved_lines() -> None:
    text = str(run_examples(find_transform("sort_by_execution_order"))[0])
    assert "    - x = Placeholder[2]()" in text
    assert "    + x = Placeholder[2]()" in text
    assert "      c = Relu(b)" in text


RULE_FILE = '''
from quantkit.rewriting import Graph, Node, any_, op, rule, transform

@transform
@rule(op("Neg")(op("Neg", "inner")(any_("x"))))
def fold_negations(graph: Graph, root: Node, inner: Node) -> list[Node]:
    """Fold two negations.

    Before:  x -> Neg -> Neg
    After:   x -> Identity

    Skips when: never.

    Example:
        fold_negations
        inputs: x
        outputs: y
        x = Placeholder[2]()
        n = Neg(x)
        y = Neg(n)
    """
    return [root.with_(op="Identity", inputs=inner.inputs)]
'''


def test_show_of_a_broken_example_has_the_exit_code_of_a_broken_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RULE_FILE.replace("n = Neg(x)", "n = Neg(missing)"))
    assert main(["transforms", "show", "fold_negations", "--plugin", str(path)]) == 3
    assert "the example of fold_negations cannot be read: node 'n'" in capsys.readouterr().err


def test_command_fails_unless_all_promises_are_exercised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RULE_FILE)
    assert main(["transforms", "check", "--plugin", str(path)]) == 0
    assert capsys.readouterr().out.count("  exercised      ") == PROMISES
    path.write_text(RULE_FILE.replace("y = Neg(n)", "y = Exp(n)"))
    assert main(["transforms", "check", "--plugin", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    promises = {check["promise"]: check for check in json.loads(out)["transforms"][0]["promises"]}
    assert promises["has examples that it rewrites"]["status"] == "broken"
    assert promises["matches with every rule"]["status"] == "not exercised"
    assert "fold_negations breaks the promise 'has examples that it rewrites'" in err
    assert main(["transforms", "check", "extract_subgraph"]) == 1
    out, err = capsys.readouterr()
    assert "  not exercised  keeps most of the signal of the model outputs" in out
    assert "extract_subgraph does not exercise the promise 'keeps most of the signal" in err
    assert "hint: add an example in which it keeps the names of the outputs" in err
