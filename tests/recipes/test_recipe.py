"""Running recipes: order, records, ignored errors, checks, files and names."""

from pathlib import Path

import numpy as np
import pytest

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.errors import CheckError, GraphError, InputError, RecipeError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.recipes import Recipe, parse, rewrite, run
from quantkit.recipes.named import RECIPES, find_recipe
from quantkit.recipes.verify import Verifier
from quantkit.runtimes import open_session
from quantkit.transforms.registry import REGISTRY
from quantkit.transforms.registry import transform as register

FLOAT = {"T": DType.FLOAT}
GRAPH = Graph.of(
    [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 3))}),
        Node("same", "Identity", (Edge("x"),), attrs=FLOAT),
        constant("two", np.float32(2)),
        constant("three", np.float32(3)),
        Node("five", "Add", (Edge("two"), Edge("three")), attrs=FLOAT),
        Node("y", "Mul", (Edge("same"), Edge("five")), attrs=FLOAT),
        Node("unused", "Relu", (Edge("y"),), attrs=FLOAT),
    ],
    ["x"],
    ["y"],
)


def test_run_returns_the_graph_and_a_record_of_each_step() -> None:
    graph, trace = run(parse("strip_unused_nodes remove_nodes(op=Identity) fold_constants"), GRAPH)
    assert sorted(graph.nodes) == ["five/_0__cf__0", "x", "y"]
    assert [record.nodes for record in trace.records] == [(7, 6), (6, 5), (5, 3)]
    assert "same (Identity)" in trace.records[1].changes
    assert trace.to_json()["steps"][2]["transform"] == "fold_constants"
    assert len(GRAPH) == 7


def test_errors_name_the_transform_and_may_be_ignored() -> None:
    broken = Graph.of([*GRAPH.nodes.values(), Node("odd", "NoSuchOp", (Edge("x"),))], ["x"], ["y"])
    with pytest.raises(GraphError, match=r"add_default_attributes: Op type not registered 'NoSuchOp'.*'odd'"):
        run(parse("add_default_attributes"), broken)
    graph, trace = run(parse("add_default_attributes(ignore_errors=true) strip_unused_nodes"), broken)
    assert "NoSuchOp" in trace.records[0].ignored
    assert "odd" not in graph


def test_rewrite() -> None:
    assert "same" not in rewrite(GRAPH, "remove_nodes(op=Identity)")


def test_rewrite_takes_names_and_files(tmp_path: Path) -> None:
    assert "same" not in rewrite(GRAPH, "deploy")
    path = tmp_path / "mine.toml"
    path.write_text('outputs = ["same"]\n[[step]]\ntransform = "strip_unused_nodes"\n')
    assert [str(edge) for edge in rewrite(GRAPH, str(path)).outputs] == ["same"]


@pytest.mark.parametrize("name", RECIPES)
def test_named_recipes_round_trip_and_run(name: str) -> None:
    recipe = find_recipe(name)
    assert parse(str(recipe)) == recipe
    graph, _ = run(recipe, GRAPH)
    assert "y" in graph


def test_recipes_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[step]]\ntransform = "remove_nodes"\nop = ["Identity", "CheckNumerics"]\nmax_inputs = 1\n'
        '[[step]]\ntransform = "fold_constants"\nclear_output_shapes = true\n'
    )
    recipe = find_recipe(str(path))
    assert str(recipe) == (
        "remove_nodes(op=Identity, op=CheckNumerics, max_inputs=1) fold_constants(clear_output_shapes=true)"
    )


def test_sizes_may_be_written_as_numbers(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[step]]\ntransform = "strip_unused_nodes"\nshape = [1, 299, 299, 3]\n')
    assert str(find_recipe(str(path))) == 'strip_unused_nodes(shape="1,299,299,3")'


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("[[step", InputError, "is not a TOML"),
        ("a = 1", RecipeError, "contains no steps"),
        ("[[step]]\nop = 'x'", RecipeError, "step 1 names no transform"),
        ("[[step]]\ntransform = 'nope'", RecipeError, "step 1: Transform 'nope' not recognized"),
        ("[[step]]\ntransform = 'fold_pads'\n[[step]]\ntransform = 'fold_pads'\nk = 1", RecipeError, "step 2: .*'k'"),
        ("[[step]]\ntransform = 'remove_nodes'\nop = {a = 1}", RecipeError, "step 1: op is neither a value"),
        ("[[step]]\ntransform = 'remove_nodes'\nop = [['a']]", RecipeError, "step 1: op is neither a value"),
    ],
)
def test_broken_recipe_files(tmp_path: Path, content: str, error: type[Exception], message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(error, match=message):
        find_recipe(str(path))


def test_an_unknown_recipe_name() -> None:
    with pytest.raises(RecipeError, match="no recipe is named 'inferense'") as caught:
        find_recipe("inferense")
    assert "inference" in caught.value.hint


@pytest.mark.parametrize("text", ["fold_constants", "remove_nodes(op=Identity) fold_constants"])
def test_transforms_instead_of_a_recipe_get_a_hint(text: str) -> None:
    with pytest.raises(RecipeError, match="no recipe is named") as caught:
        find_recipe(text)
    assert "--transforms" in caught.value.hint


def test_misspelled_recipe_instead_of_transforms_gets_a_hint() -> None:
    with pytest.raises(RecipeError, match="no transform and no recipe is named 'inferense'") as caught:
        rewrite(GRAPH, "inferense")
    assert caught.value.hint == "did you mean 'inference'?"


def verifier() -> Verifier:
    return Verifier(lambda graph: open_session(graph, "reference"))


def test_verify_passes_equal_outputs() -> None:
    _, trace = run(parse("strip_unused_nodes remove_nodes(op=Identity) fold_constants"), GRAPH, check=verifier())
    assert [record.check for record in trace.records] == ["y: equal"] * 3


def test_verify_stops_at_the_first_changed_output() -> None:
    def make_it_wrong(graph: Graph) -> Graph:
        """Scale wrongly."""
        return graph.with_nodes(
            constant("two", np.float32(2.001)) if node.name == "two" else node for node in graph.nodes.values()
        )

    register(make_it_wrong)
    try:
        with pytest.raises(CheckError, match="make_it_wrong changes output 'y' by 0.00") as caught:
            run(parse("strip_unused_nodes make_it_wrong fold_constants"), GRAPH, check=verifier())
        assert caught.value.exit_code == 1
    finally:
        del REGISTRY["make_it_wrong"]


def test_verify_stops_at_nan() -> None:
    def make_it_nan(graph: Graph) -> Graph:
        """Break."""
        nan = constant("two", np.float32(np.nan))
        return graph.with_nodes(nan if node.name == "two" else node for node in graph.nodes.values())

    register(make_it_nan)
    try:
        with pytest.raises(CheckError, match="NaN"):
            run(parse("make_it_nan"), GRAPH, check=verifier())
    finally:
        del REGISTRY["make_it_nan"]


def test_a_recipe_is_a_value() -> None:
    assert parse("fold_constants") == Recipe(parse("fold_constants").steps)


def test_verify_reports_a_changed_input_type() -> None:
    _, trace = run(parse("strip_unused_nodes absorb_preprocessing(mean=128, std=128)"), PIXELS, check=verifier())
    assert trace.records[1].check == "input 'x' is uint8 now: outputs cannot be compared"


PIXELS = Graph.of(
    [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 4, 4, 1))}),
        constant("w", np.ones((2, 2, 1, 3), np.float32)),
        Node("y", "Conv2D", (Edge("x"), Edge("w")), attrs={**FLOAT, "strides": (1, 1, 1, 1), "padding": b"VALID"}),
    ],
    ["x"],
    ["y"],
)
