"""The checks that plugins are held to find what is broken."""

from typing import Any

import pytest

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.errors import RecipeError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.recipes.contract import broken_promises, check_transform
from quantkit.recipes.example import run_example
from quantkit.transforms.registry import find_transform
from quantkit.transforms.registry import transform as register


def good(graph: Graph, *, keep: str = "") -> Graph:
    """Forget where nodes were placed.

    Before:  y = Neg(x) @"/cpu:0"
    After:   y = Neg(x)

    Options:
        keep: a device that stays.

    Skips when no node was placed.

    Example:
        good
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = Neg(x) @"/cpu:0"
    """
    return graph.with_nodes(node if node.device == keep else node.with_(device="") for node in graph.nodes.values())


EXAMPLE = """Do it.

    Example:
        {name}
        inputs: x
        outputs: y
        x = Placeholder[2]()
        two = Const(2.0)
        y = Mul(x, two)
    """


def scaled(graph: Graph, by: float) -> Graph:
    return graph.with_nodes(
        constant(node.name, node.value.array * by) if node.is_constant and node.name == "two" else node
        for node in graph.nodes.values()
    )


def broken(name: str, apply: Any) -> tuple[str, ...]:
    """What breaks the promises about graphs, of a transform that is not documented."""

    def made(graph: Graph) -> Graph:
        return apply(graph)  # type: ignore[no-any-return]

    made.__name__ = name
    made.__doc__ = EXAMPLE.format(name=name)
    found = check_transform(register(made))
    return tuple(promise for promise, reason in list(found.items())[1:] if reason)


def test_a_good_one_keeps_all() -> None:
    assert broken_promises(register(good)) == ()


def test_documentation_and_example_are_missing() -> None:
    def bare(graph: Graph, *, scale: float = 1.0) -> Graph:
        """Do nothing."""
        return graph

    first, second = broken_promises(register(bare))
    assert "no line that begins with 'Before:' or 'After:' or 'Skips '" in first
    assert "bare has no example" in second


def test_what_needs_options_can_not_be_tried_without_an_example() -> None:
    def bare(graph: Graph, *, scale: float) -> Graph:
        """Do nothing."""
        return graph

    assert any("can not be tried without an example" in reason for reason in broken_promises(register(bare)))


def test_options_that_are_not_documented() -> None:
    def odd(graph: Graph, *, scale: float = 1.0) -> Graph:
        return graph

    odd.__doc__ = "Do.\n\nBefore:  a\nAfter:   b\n\nOptions:\n    scal: by how much.\n\nSkips when it is late."
    assert "differ in scal, scale" in broken_promises(register(odd))[0]


def test_an_exact_one_must_keep_the_answers() -> None:
    assert broken("scale_it", lambda graph: scaled(graph, 1.01)) == ("keeps the answers, as far as it says so",)


def test_input_that_is_changed() -> None:
    def changed(graph: Graph) -> Graph:
        for node in graph.nodes.values():
            node.attrs["_seen"] = True  # type: ignore[index]
        return graph

    assert "leaves its input as it is" in broken("change_it", changed)


def test_chance() -> None:
    numbers = iter(range(10**6))

    def random(graph: Graph) -> Graph:
        return graph.with_nodes(node.with_attrs(_number=next(numbers)) for node in graph.nodes.values())

    assert "makes the same graph each time" in broken("draw_lots", random)


def test_names_that_resolve_to_nothing() -> None:
    def torn(graph: Graph) -> Graph:
        return graph.with_nodes([*graph.nodes.values(), Node("odd", "Relu", (Edge("nowhere"),))])

    # The example fails with it.
    assert "makes well-formed graphs" in broken("tear_it", torn)


def test_a_traceback_is_no_answer() -> None:
    assert "refuses graphs in sentences" in broken("crash", lambda graph: {}["x"])


def test_what_no_file_can_hold() -> None:
    def odd(graph: Graph) -> Graph:
        return graph.with_nodes(node.with_(device="\ud800") for node in graph.nodes.values())

    assert "makes graphs that can be saved" in broken("oddly_placed", odd)


def test_examples_that_can_not_be_run() -> None:
    for lines, message in (
        ("fold_constants\n        y = NoSuch(z)", "can not be read: node 'y'"),
        ("fold_constants\n        y = Const(1.0)", "is one of fold_constants"),
        ("odd(a=b)\n        y = Const(1.0)", "can not be read: odd has no option 'a'"),
        ("odd", "odd has no example"),
    ):

        def odd(graph: Graph) -> Graph:
            return graph

        odd.__doc__ = f"Do.\n\n    Example:\n        {lines}\n    "
        with pytest.raises(RecipeError, match="odd") as caught:
            run_example(register(odd))
        assert message in caught.value.message


def test_the_picture_is_what_was_computed() -> None:
    picture = str(run_example(find_transform("remove_nodes")))
    assert "    - same = Identity(x, ^check)" in picture
    assert "    + y = Relu(x)" in picture
    assert run_example(find_transform("fold_clamps")).to_json()["steps"][0]["transform"] == "fold_clamps"


def test_an_example_marks_what_only_moved() -> None:
    text = str(run_example(find_transform("sort_by_execution_order")))
    assert "    - x = Placeholder[2]()" in text
    assert "    + x = Placeholder[2]()" in text
    assert "      c = Relu(b)" in text
