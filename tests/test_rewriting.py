"""Public surface for rules and transforms of users."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal

import pytest

import quantkit.rewriting
from quantkit.errors import RecipeError
from quantkit.recipes import parse, run
from quantkit.rewriting import Graph, Node, Skip, any_, const, constant, from_text, op, rule, to_text, transform
from quantkit.transforms.plugins import find_transform
from quantkit.transforms.registry import REGISTRY

PRODUCTS = from_text(
    """
    inputs: x
    outputs: y, z
    x = Placeholder[2x3]()
    w = Const([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    factor = Const(0.5)
    a = MatMul(x, w)
    y = Mul(a, factor)
    b = MatMul(x, w)
    c = Mul(b, factor)
    z = Add(b, c)
    """
)


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


@pytest.fixture(autouse=True)
def _restore_registry() -> Iterator[None]:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def define_fold_factor() -> Any:
    @transform
    @rule(op("Mul")(op("MatMul", "layer")(any_("x"), const("weights")), const("factor")))
    def fold_factor(graph: Graph, root: Node, layer: Node, weights: Node, factor: Node) -> list[Node] | Skip:
        """Fold a factor into the weights before it: (x * W) * s == x * (W * s)."""
        if graph.is_shared(layer):
            return Skip(f"{layer.name} has several consumers")
        scaled = constant(f"{root.name}/weights", weights.value.array * factor.value.array)
        return [scaled, layer.with_(name=root.name).with_input(1, scaled.name)]

    return fold_factor


def test_names_are_documented() -> None:
    assert quantkit.rewriting.__all__ == sorted(quantkit.rewriting.__all__)
    for name in quantkit.rewriting.__all__:
        assert getattr(quantkit.rewriting, name).__doc__ or name == "Array"


def test_rule_is_a_transform() -> None:
    define_fold_factor()
    after, trace = run(parse("fold_factor strip_unused_nodes"), PRODUCTS)
    assert [(node.name, node.op) for node in after.nodes.values() if node.op == "MatMul"] == [
        ("y", "MatMul"),
        ("b", "MatMul"),
    ]
    assert after["y/weights"].value.array.tolist() == [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0]]
    assert [str(skip) for skip in trace.records[0].skips] == ["c: b has several consumers"]
    assert trace.records[0].changes == ("y (Mul -> MatMul) with y/weights (Const)",)


def test_rule_keeps_its_name_and_documentation() -> None:
    fold_factor = define_fold_factor()
    assert find_transform("fold_factor") is fold_factor
    assert fold_factor.doc.startswith("Fold a factor into the weights")
    assert fold_factor.options == {}
    assert not fold_factor.is_built_in
    assert fold_factor.location[0] == __file__


def test_options_may_be_choices() -> None:
    @transform
    def set_side(
        graph: Graph,
        *,
        to: Literal["cpu", "gpu"],
        sides: tuple[Side, ...] = (),
        bits: Literal[8, 16] | None = None,
    ) -> Graph:
        """Record the options in the device of each node."""
        text = f"{to} {[side.name for side in sides]} {bits}"
        return graph.with_nodes(node.with_(device=text) for node in graph.nodes.values())

    recipe = parse("set_side(to=gpu, sides=right, sides=left, bits=16)")
    assert run(recipe, PRODUCTS)[0]["x"].device == "gpu ['RIGHT', 'LEFT'] 16"
    assert {name: option.type_text for name, option in set_side.options.items()} == {
        "to": "cpu|gpu",
        "sides": "left|right",
        "bits": "8|16",
    }
    with pytest.raises(RecipeError, match="set_side: 'GPU' is not a value of to") as caught:
        parse("set_side(to=GPU)")
    assert caught.value.hint == "did you mean 'gpu'?"
    with pytest.raises(RecipeError, match="set_side: '4' is not a value of bits") as caught:
        set_side(PRODUCTS, to="cpu", bits=4)
    assert caught.value.hint == "write bits=8 or bits=16"


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (list[int], "list[int]"),
        (dict, "dict"),
        (tuple[int, int], "tuple[int, int]"),
        (tuple[tuple[int, ...], ...], "tuple[tuple[int, ...], ...]"),
        (int | str, "int | str"),
        (Literal["a", 1], "Literal"),
        (Node, "Node"),
    ],
)
def test_unsupported_hint_is_an_error_at_registration(hint: Any, text: str) -> None:
    def wrong(graph: Graph, *, value: Any = None) -> Graph:
        return graph

    wrong.__annotations__["value"] = hint
    with pytest.raises(RecipeError, match="transform 'wrong': parameter 'value' has the type hint") as caught:
        transform(wrong)
    assert text in caught.value.message
    assert "tuple[T, ...]" in caught.value.hint
    assert "@transform(services=('value',))" in caught.value.hint
    assert "wrong" not in REGISTRY


def test_missing_hint_is_an_error_at_registration() -> None:
    def wrong(graph, *, scale=1.0):  # type: ignore[no-untyped-def]
        return graph

    with pytest.raises(RecipeError, match="parameter 'scale' has no type hint"):
        transform(wrong)


def test_service_is_not_an_option() -> None:
    @transform(services=("log",))
    def append_names(graph: Graph, *, log: Any = None) -> Graph:
        """Append the node names to a list of the caller."""
        log.extend(graph.nodes)
        return graph

    names: list[str] = []
    run(parse("append_names"), PRODUCTS, services={"log": names, "other": None})
    assert names == list(PRODUCTS.nodes)
    with pytest.raises(RecipeError, match="append_names has no option 'log'"):
        parse("append_names(log=x)")


def test_text_notation_round_trips() -> None:
    assert from_text(to_text(PRODUCTS)) == PRODUCTS
