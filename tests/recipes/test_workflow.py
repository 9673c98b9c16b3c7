"""`quantkit.transform`: the same files and documents as the command, from every kind of model and recipe."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main
from plugin_distribution import forget_plugins, write_distribution

import quantkit as qk
from quantkit.errors import CheckError, InputError, RecipeError, UsageError
from quantkit.formats import graphdef
from quantkit.ir.text import from_text
from quantkit.recipes import Recipe, Step, as_recipe, parse
from quantkit.recipes.named import RECIPE_REGISTRY, RECIPES, find_recipe
from quantkit.recipes.trace import Trace

GRAPH = from_text(
    """
    inputs: x
    outputs: y
    x = Placeholder[?x3]()
    same = Identity(x, T=float)
    two = Const(2.0)
    y = Mul(same, two, T=float)
    """
)
PLUGIN = """
from quantkit.rewriting import Graph, constant, transform

@transform
def scale_wrongly(graph: Graph) -> Graph:
    return graph.with_nodes(constant("two", 2.01) if node.name == "two" else node for node in graph.nodes.values())
"""


def comparable(document: Any) -> Any:
    """Return a document without the times and the path of the output."""
    if isinstance(document, dict):
        return {key: comparable(value) for key, value in document.items() if key not in ("seconds", "output")}
    return [comparable(value) for value in document] if isinstance(document, list) else document


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command and return its JSON document."""
    assert main(["transform", *arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(
    ("suffix", "flags", "options"),
    [
        (".pb", ["--recipe", "inference"], {"recipe": "inference"}),
        (
            ".pb",
            ["--recipe", "inference", "--verify", "--runtime", "reference", "--explain", "--seed", "3"],
            {"recipe": "inference", "verify": True, "runtime": "reference", "seed": 3},
        ),
        (".onnx", ["--recipe", "deploy"], {"recipe": "deploy"}),
        (".pbtxt", ["--recipe", "mobile", "--inputs", "Mul"], {"recipe": "mobile", "inputs": ["Mul"]}),
        (
            ".pb",
            [
                *("--transforms", "fold_old_batch_norms rename_op(old_op_name=Relu, new_op_name=Tanh)"),
                *("--on-mismatch", "skip", "--runtime", "reference", "--data", "DATA"),
            ],
            {
                "recipe": "fold_old_batch_norms rename_op(old_op_name=Relu, new_op_name=Tanh)",
                "on_mismatch": "skip",
                "runtime": "reference",
                "data": "DATA",
            },
        ),
    ],
    ids=["recipe", "verify", "onnx", "inputs", "skip"],
)
def test_function_equals_command(
    suffix: str, flags: list[str], options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(Path(__file__).parents[2] / "assets" / "digits_heldout.npz")
    flags = [data if flag == "DATA" else flag for flag in flags]
    options = {key: data if value == "DATA" else value for key, value in options.items()}
    first, second = tmp_path / f"function{suffix}", tmp_path / f"command{suffix}"
    document = command(capsys, "digits", "-o", str(second), "--trace", str(tmp_path / "command.json"), *flags)
    model = qk.transform("digits", **options, output=first, trace=tmp_path / "function.json")
    assert model.trace is not None
    assert first.read_bytes() == second.read_bytes()
    assert comparable(model.trace.to_json()) == comparable(document)
    traces = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("function", "command")]
    assert comparable(traces[0]) == comparable(traces[1])
    assert document["num_bytes"] == second.stat().st_size


def test_model_in_and_model_out(tmp_path: Path) -> None:
    model = qk.load("digits")
    folded = qk.transform(model, "inference")
    assert (folded.name, folded.card, folded.path) == (model.name, model.card, model.path)
    assert len(folded.graph) < len(model.graph)
    assert model.trace is None
    assert folded.trace is not None
    assert folded.trace.before is model.graph
    folded.save(tmp_path / "saved.pb")
    qk.transform("digits", "inference", output=tmp_path / "written.pb")
    assert (tmp_path / "saved.pb").read_bytes() == (tmp_path / "written.pb").read_bytes()


def test_recipe_of_every_kind(tmp_path: Path) -> None:
    text = "strip_unused_nodes remove_nodes(op=Identity)"
    path = tmp_path / "mine.toml"
    path.write_text(
        'purpose = "mine"\n[[step]]\ntransform = "strip_unused_nodes"\n'
        '[[step]]\ntransform = "remove_nodes"\nop = "Identity"\n'
    )
    recipes = [
        text,
        parse(text),
        path,
        str(path),
        ["strip_unused_nodes", "remove_nodes(op=Identity)"],
        [Step("strip_unused_nodes"), Step("remove_nodes", {"op": ("Identity",)})],
    ]
    for recipe in recipes:
        assert as_recipe(recipe) == parse(text)
        assert "same" not in qk.transform(GRAPH, recipe).graph
    assert as_recipe(path).purpose == "mine"
    assert as_recipe("deploy") is RECIPES["deploy"]
    with pytest.raises(UsageError, match="an int is not a recipe"):
        as_recipe(3)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="no transform and no recipe is named 'inferense'"):
        as_recipe("inferense")


def test_graphs_and_messages_are_models() -> None:
    for value in (GRAPH, graphdef.encode(GRAPH)):
        model = qk.transform(value, "remove_nodes(op=Identity)", outputs=["y"])
        assert list(model.graph.op_counts) == ["Const", "Mul", "Placeholder"]
    with pytest.raises(UsageError):
        qk.transform(3, "inference")


def test_wrong_arguments_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="verfy"):
        qk.transform(GRAPH, "inference", verfy=True)  # type: ignore[call-arg]
    with pytest.raises(RecipeError, match="You must specify at least one transform"):
        qk.transform(GRAPH)
    with pytest.raises(UsageError, match="a trace cannot be written to trace.txt"):
        qk.transform(GRAPH, "inference", trace=tmp_path / "trace.txt")
    with pytest.raises(UsageError, match="evaluate_with is 'torch'"):
        qk.transform(GRAPH, "inference", evaluate_with="torch")  # type: ignore[arg-type]
    with pytest.raises(InputError):
        qk.transform(GRAPH, "inference", data=tmp_path / "missing.npz")


def test_plugins_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN)
    options: dict[str, Any] = {"plugins": [tmp_path / "mine.py"], "runtime": "reference"}
    with pytest.raises(CheckError, match="scale_wrongly changes output 'y'"):
        qk.transform(GRAPH, "scale_wrongly", verify=True, **options)
    assert qk.transform(GRAPH, "scale_wrongly", **options).graph["two"].value.array == np.float32(2.01)
    messages: list[str] = []
    model = qk.transform(GRAPH, "scale_wrongly", on_mismatch="skip", on_message=messages.append, **options)
    assert model.graph["two"].value.array == 2
    assert model.trace is not None
    assert model.trace.records[0].undone.startswith("scale_wrongly changes output 'y'")
    assert messages[-1].startswith("scale_wrongly: undone: scale_wrongly changes output 'y'")


def test_data_may_be_arrays() -> None:
    values = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    for data in (values, {"x": values}, iter([values])):
        model = qk.transform(GRAPH, "remove_nodes(op=Identity)", data=data, runtime="reference")
        assert model.trace is not None
        assert model.trace.records[0].check == "y: equal"
        assert model.trace.verification is not None
        assert model.trace.verification["data"] == "given"


def test_trace_prints_well() -> None:
    trace = qk.transform(GRAPH, "remove_nodes(op=Identity)", verify=True, runtime="reference").trace
    assert isinstance(trace, Trace)
    first, change, last = str(trace).splitlines()
    assert first.startswith("remove_nodes(op=Identity): 4 -> 3 nodes")
    assert change == "    changed  same (Identity)"
    assert last.startswith("verified on inputs of seed 0")
    assert repr(trace) == "Trace(1 steps, 4 -> 3 nodes)"
    assert change in trace._repr_html_()


def test_trace_of_ignored_undone_and_function_steps(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from quantkit.rewriting import Graph, transform\n\n"
        "@transform\ndef drop_functions(graph: Graph) -> Graph:\n"
        "    from quantkit.ir.functions import Library\n    return graph.with_(library=Library())\n\n"
        "@transform\ndef fail(graph: Graph) -> Graph:\n    raise ValueError('no')\n"
    )
    before = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2]()\ny = Neg(x, T=float)\n"
        "function f(r = n)\na = _Arg(T=float, index=0)\nn = Neg(a, T=float)\nend"
    )
    recipe = "drop_functions fail(ignore_errors=true) rename_op(old_op_name=Neg, new_op_name=Abs)"
    model = qk.transform(
        before,
        recipe,
        plugins=[tmp_path / "mine.py"],
        on_mismatch="skip",
        runtime="reference",
        trace=tmp_path / "trace.html",
    )
    assert model.trace is not None
    dropped, failed, renamed = model.trace.records
    assert dropped.changes == ("function f removed",)
    assert "ValueError: no" in failed.ignored
    assert "changes output 'y'" in renamed.undone
    assert str(failed).endswith(f"; ignored error: {failed.ignored}")
    page = (tmp_path / "trace.html").read_text()
    assert "undone: rename_op changes output" in page
    assert "function f removed" in page
    model.trace.save(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    assert list(document["before"]["functions"]) == ["f"]
    assert document["after"]["functions"] == {}


@pytest.mark.parametrize(
    "source",
    [
        "from quantkit.recipes import parse\nFAST = parse('strip_unused_nodes fold_constants')",
        "FAST = 'strip_unused_nodes fold_constants'",
        "from pathlib import Path\nFAST = Path(__file__).with_suffix('.toml')",
    ],
    ids=["recipe", "text", "file"],
)
def test_distributions_register_recipes(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(tmp_path, "fast_recipes", source, {"quantkit.recipes": {"fast": "fast_recipes:FAST"}})
    (tmp_path / "fast_recipes.toml").write_text(
        '[[step]]\ntransform = "strip_unused_nodes"\n[[step]]\ntransform = "fold_constants"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(RECIPE_REGISTRY)
    try:
        recipe = find_recipe("fast")
        assert recipe == Recipe(parse("strip_unused_nodes fold_constants").steps)
        assert (recipe.name, recipe.purpose) == ("fast", "recipe of the package fast_recipes")
        assert qk.transform(GRAPH, "fast").graph.op_counts == GRAPH.op_counts
    finally:
        sys.modules.pop("fast_recipes", None)
        monkeypatch.undo()
        forget_plugins(RECIPE_REGISTRY)


def test_broken_recipe_of_a_distribution_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(tmp_path, "odd_recipes", "ODD = 3", {"quantkit.recipes": {"odd": "odd_recipes:ODD"}})
    monkeypatch.syspath_prepend(tmp_path)
    forget_plugins(RECIPE_REGISTRY)
    try:
        with pytest.raises(RecipeError, match="no recipe is named 'odd'") as caught:
            find_recipe("odd")
        assert "the value is of type int, not Recipe, str or Path" in caught.value.hint
        assert find_recipe("deploy").purpose
    finally:
        sys.modules.pop("odd_recipes", None)
        monkeypatch.undo()
        forget_plugins(RECIPE_REGISTRY)
