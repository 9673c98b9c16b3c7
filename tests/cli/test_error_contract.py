"""Errors end with one message and an exit code from 1 to 4, for wrong arguments and damaged files."""

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_cases import CASES

import quantkit as qk
from quantkit.errors import GraphError, InputError
from quantkit.formats import graphdef, save
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.kernels import evaluate
from quantkit.quantization.annotation import annotate
from quantkit.quantization.ranges import Range, Ranges
from quantkit.recipes.trace import Trace
from quantkit.runtimes import open_session

main = next(entry for entry in entry_points(group="console_scripts") if entry.name == "quantkit").load()
GRAPH = CASES["dense"].graph


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(GRAPH, tmp_path / "g.pb")
    plan = annotate(GRAPH)
    Ranges({edge: Range(-1.0, 1.0) for edge in plan.edges}).save(tmp_path / "r.json")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4), np.float32))
    return tmp_path / "g.pb"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Run a command; return its exit code and its message without the hint."""
    code = main([str(argument) for argument in arguments])
    lines = capsys.readouterr().err.splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("quantkit: ")]
    assert len(errors) == 1, lines
    assert all(line.startswith("hint: ") for line in lines[errors[0] + 1 :])
    assert len(lines) - errors[0] <= 2
    return code, lines[errors[0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["benchmark", "G", "--time-budget", "99999999999999999999h"], "up to 8760h"),
        (["benchmark", "G", "--cpus", "0-99999999999"], "not the number of a CPU"),
        (["benchmark", "G", "--seed", "-1"], "--seed: '-1' is not a whole number from 0"),
        (["compare", "G", "G", "--seed", "-1", "--runtime", "reference"], "--seed: '-1' is not a whole number"),
        (["transform", "G", "-o", "OUT", "--recipe", "inference", "--verify", "--seed", "-1"], "'-1' is not a"),
        (["transform", "G", "-o", "~nouser/a.pb", "--recipe", "inference"], "~nouser is not a folder"),
        (
            ["transform", "G", "-o", "OUT", "--recipe", "inference", "--trace", "~nouser/t.json"],
            "~nouser is not a folder",
        ),
        (["quantize", "G", "-o", "~nouser/a.onnx", "--weights-only"], "~nouser is not a folder"),
        (["quantize", "G", "-o", "A.onnx", "--weights-only", "--save-plan", "~nouser/p"], "~nouser is not a folder"),
        (["models", "fetch", "inception_v3", "--url", "http://[::1"], "is not a URL"),
        (["models", "fetch", "inception_v3", "--url", "http://ann:secret@[::1"], "'http://ann:***@[::1'"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replaced = {"G": str(model), "OUT": str(model.with_name("out.pb")), "A.onnx": str(model.with_name("a.onnx"))}
    code, text = run(capsys, *(replaced.get(argument, argument) for argument in arguments))
    assert code == 2
    assert message in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["summarize", "~nouser/g.pb"],
        ["evaluate", "G", "--data", "~nouser/x.npz"],
        ["benchmark", "G", "--custom-op-library", "~nouser/a.so"],
        ["quantize", "G", "-o", "y.onnx", "--calibration", "x.npz", "--custom-op-library", "missing.so"],
        ["run", "G", "--data", "x.npz", "-o", "y.npz", "--custom-op-library", "missing.so"],
    ],
)
def test_missing_inputs_do_not_exist(arguments: list[str], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, *(str(model) if argument == "G" else argument for argument in arguments))
    assert code == 3
    assert "does not exist" in text


def test_a_list_file_may_name_a_path_of_an_unknown_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.txt").write_text("~nouser/a.png 3\n")
    code, text = run(capsys, "evaluate", "digits@reference", "--data", tmp_path / "list.txt")
    assert code == 3
    assert "'~nouser/a.png', which does not exist" in text


def test_without_a_home_folder_the_cache_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantkit.zoo import cache

    monkeypatch.delenv("QUANTKIT_CACHE", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(InputError, match="the cache is ~/.cache/quantkit, the home of an unknown user"):
        cache.cache_folder()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("ranges", "x"), [1.0]),
        (("ranges", "x"), [0.0, "1"]),
        (("ranges", "x"), [0.0, None]),
        (("ranges", "x"), [float("nan"), 1.0]),
        (("ranges", "x"), [0.0, 1e999]),
        (("ranges", "x"), {"low": 0}),
        (("ranges",), []),
        (("means",), {"x": [None]}),
        (("means",), {"x": "12"}),
        (("warnings",), [{}]),
        (("provenance", "count"), "many"),
        (("provenance", "graph"), 7),
        (("provenance",), None),
    ],
)
def test_damaged_ranges(path: tuple[str, ...], value: Any, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model.with_name("r.json")
    document = json.loads(file.read_text())
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    file.write_text(json.dumps(document))
    code, text = run(capsys, "quantize", model, "-o", model.with_name("a.onnx"), "--ranges", file, "--runs", 0)
    assert code == 3
    assert "the ranges are damaged: " in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("patterns", [{"layer": {"a": 1}}]),
        ("patterns", ["product"]),
        ("activations", {"x": 3}),
        ("weights", []),
        ("groups", [[1]]),
        ("pass_through", "product"),
        ("decisions", [{"unit": "product", "precision": "float", "reason": None, "source": "op"}]),
        ("observed", [None]),
    ],
)
def test_damaged_plans(key: str, value: Any, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = annotate(GRAPH).to_json() | {key: value}
    file = model.with_name("p.json")
    file.write_text(json.dumps(document))
    code, text = run(capsys, "quantize", model, "-o", model.with_name("a.onnx"), "--plan", file, "--runs", 0)
    assert code == 3
    assert f"the plan is damaged: {key}" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": "softmax"}, "node 'softmax' of pattern 'sum' does not consume 'sum'"),
        ({"bias": "x"}, "node 'x' of pattern 'sum' does not consume 'sum'"),
        ({"layer": "softmax"}, "the layer 'softmax', which has no weights"),
        ({"layer": ""}, "the layer '', which has no weights"),
        ({"weights": "bias"}, "the weights 'bias' of layer 'sum' have no number format"),
    ],
)
def test_plans_whose_patterns_do_not_fit_the_graph(
    changes: dict[str, str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = model.with_name("a.onnx"), model.with_name("p.json")
    flags = ["--ranges", str(model.with_name("r.json")), "--runs", "0"]
    assert main(["quantize", str(model), "-o", str(out), *flags, "--save-plan", str(plan)]) == 0
    capsys.readouterr()
    document = json.loads(plan.read_text())
    document["patterns"][0] |= changes
    plan.write_text(json.dumps(document))
    code, text = run(capsys, "quantize", model, "-o", out, *flags, "--plan", plan)
    assert code == 3
    assert message in text


def test_a_plan_may_name_only_nodes_of_the_graph(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plan = model.with_name("a.onnx"), model.with_name("p.json")
    flags = ["--ranges", str(model.with_name("r.json")), "--runs", "0"]
    assert main(["quantize", str(model), "-o", str(out), *flags, "--save-plan", str(plan)]) == 0
    capsys.readouterr()
    document = json.loads(plan.read_text())
    document["decisions"][0]["unit"] = "gone"
    plan.write_text(json.dumps(document))
    code, text = run(capsys, "quantize", model, "-o", out, *flags, "--plan", plan)
    assert code == 3
    assert "the plan references node 'gone'" in text


def test_results_of_one_name_are_an_error_of_the_function() -> None:
    function = graphdef.message_class("FunctionDef")()
    function.signature.name = "f"
    function.signature.input_arg.add(name="a", type=1)
    for _ in range(2):
        function.signature.output_arg.add(name="r", type=1)
    function.ret["r"] = "a"
    library = graphdef.message_class("GraphDef")()
    library.library.function.append(function)
    with pytest.raises(GraphError, match="two results of function 'f' have the same name"):
        _ = graphdef.decode(library.SerializeToString()).library["f"]


def test_an_empty_ignore_errors_in_a_recipe_is_an_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model.with_name("r.toml")
    file.write_text('[[step]]\ntransform = "fold_constants"\nignore_errors = []\n')
    code, text = run(capsys, "transform", model, "-o", model.with_name("o.pb"), "--recipe", file)
    assert code == 2
    assert "ignore_errors" in text


@pytest.mark.parametrize("code_point", [0x110000, 0xFFFFFFFF, 0xD800])
@pytest.mark.parametrize("name", ["x", "labels"])
def test_texts_that_are_not_unicode_are_an_error(
    code_point: int, name: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = np.array([code_point] * 6, np.uint32).view("<U2")
    arrays = {"x": np.ones((3, 4), np.float32)} | {name: texts}
    np.savez(model.with_name("bad.npz"), **arrays)
    code, text = run(
        capsys, "evaluate", f"{model}@reference", "--outputs", "softmax", "--data", model.with_name("bad.npz")
    )
    assert code == 3
    assert "not Unicode" in text


def test_a_node_without_a_name_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = graphdef.message_class("GraphDef").FromString(graphdef.encode(GRAPH))
    message.node[0].name = ""
    (tmp_path / "g.pb").write_bytes(message.SerializeToString())
    code, text = run(capsys, "summarize", tmp_path / "g.pb")
    assert code == 3
    assert f"a node ({message.node[0].op}) has no name" in text


def test_a_variant_input_has_no_size(tmp_path: Path) -> None:
    x = Node("x", "Placeholder", attrs={"dtype": DType.VARIANT, "shape": Shape((1, 4))})
    graph = Graph.of([x, Node("y", "Identity", (Edge("x"),), attrs={"T": DType.VARIANT})], ["x"], ["y"])
    save(graph, tmp_path / "g.pb")
    assert "x (Placeholder, variant" in str(qk.summarize(tmp_path / "g.pb"))


def test_a_message_of_several_lines_is_printed_on_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise InputError("the first line:\n\t [[second]]\n", hint="do\nthis")

    monkeypatch.setattr("quantkit.summary.summarize", fail)
    monkeypatch.setattr("quantkit.cli.summarize.summarize", fail, raising=False)
    assert main(["summarize", str(model)]) == 3
    assert capsys.readouterr().err == "quantkit: the first line: [[second]]\nhint: do this\n"


def test_json_documents_hold_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "evil\x9b1m\x7f\u202e\U000e0001"
    x = Node(name, "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 4))})
    save(Graph.of([x, Node("y", "Relu", (Edge(name),))], [name], ["y"], dialect="onnx"), tmp_path / "g.onnx")
    assert main(["summarize", str(tmp_path / "g.onnx"), "--json"]) == 0
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["inputs"][0]["name"] == name


class TestTheSecondOutputFails:
    """The message names the outputs that are already written."""

    def test_of_transform(
        self, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(self: Trace, path: Path) -> None:
            raise InputError(f"cannot write {path}: the disk is full")

        monkeypatch.setattr(Trace, "save", fail)
        out, trace = model.with_name("o.pb"), model.with_name("t.json")
        code, text = run(capsys, "transform", model, "-o", out, "--recipe", "inference", "--trace", trace)
        assert code == 3
        assert text == f"quantkit: cannot write {trace}: the disk is full (already written: {out})"
        assert out.exists()

    def test_of_quantize(
        self, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*arguments: Any, **options: Any) -> None:
            raise InputError("cannot write the model")

        monkeypatch.setattr("quantkit.quantization.workflow.verb._write_and_measure", fail)
        files = [model.with_name(name) for name in ("p.json", "r2.json")]
        flags = ["--save-plan", files[0], "--save-ranges", files[1], "--calibration", model.with_name("x.npz")]
        out = model.with_name("a.onnx")
        code, text = run(capsys, "quantize", model, "-o", out, *flags, "--runtime", "reference", "--runs", 0)
        assert code == 3
        assert text == f"quantkit: cannot write the model (already written: {files[0]}, {files[1]})"

    def test_before_the_first_output(self, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = model.with_name("o.pb")
        flags = ["--recipe", "inference", "--trace", model.parent / "missing" / "t.json"]
        code, text = run(capsys, "transform", model, "-o", out, *flags)
        assert code == 2
        assert "already written" not in text
        assert not out.exists()


@pytest.mark.parametrize("length", [249, 252])
def test_an_output_name_may_have_the_maximum_length(length: int, model: Path) -> None:
    out = model.with_name("a" * (length - 3) + ".pb")
    assert main(["transform", str(model), "-o", str(out), "--recipe", "inference"]) == 0
    assert out.exists()
    assert [path.name for path in model.parent.iterdir() if path.suffix == ".part"] == []


def test_classic_transforms_take_no_input_shape(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["transform", "--classic", str(model), "-o", str(model.with_name("o.pb")), "--inputs=x", "--outputs=y"]
    assert main([*arguments, "--transforms=fold_constants"]) == 0
    capsys.readouterr()
    code, text = run(capsys, *arguments, "--transforms=fold_constants", "--input-shape", "x:1x4")
    assert code == 2
    assert "--input-shape does not apply to --classic" in text


def test_an_edge_that_no_node_computes_is_an_error_of_the_graph() -> None:
    nodes = {**GRAPH.nodes, "softmax": GRAPH["softmax"].with_(inputs=(Edge("sum", 1),))}
    graph = Graph.of(nodes.values(), ["x"], ["softmax"])
    with (
        pytest.raises(GraphError, match="'sum:1', which no node computes"),
        open_session(graph, "reference") as session,
    ):
        session.run({"x": np.ones((3, 4), np.float32)})


def test_an_infinite_range_is_an_error_of_the_graph() -> None:
    node = Node("n", "Range", attrs={"Tidx": DType.FLOAT})
    with pytest.raises(GraphError, match="'n'"):
        evaluate(node, [np.array(limit, np.float32) for limit in (0, np.inf, 1)])
