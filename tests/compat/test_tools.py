"""TensorFlow's tools under their original names, with the flags of existing scripts."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from quantkit.convert.to_onnx import to_onnx_graph
from quantkit.formats import load, save
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

main = import_module("quantkit.cli").main
FLOAT = {"T": DType.FLOAT}
LAYER = {"strides": (1, 1, 1, 1), "padding": b"SAME", **FLOAT}
GRAPH = Graph.of(
    [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, 4, 4, 3))}),
        constant("w", np.ones((3, 3, 3, 2), np.float32)),
        Node("conv", "Conv2D", (Edge("x"), Edge("w")), attrs=LAYER),
        Node("same", "Identity", (Edge("conv"),), attrs=FLOAT),
        Node("y", "Relu", (Edge("same"),), attrs=FLOAT),
    ],
    ["x"],
    ["y"],
)
RunCommand = Callable[..., str]


@pytest.fixture
def run_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Run a command in a folder with ``graph.pb``, check its exit code, and return its output."""
    save(GRAPH, tmp_path / "graph.pb")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> str:
        assert main(list(arguments)) == code
        captured = capsys.readouterr()
        return captured.err if code > 1 else captured.out

    return run


def test_transform_graph(run_command: RunCommand) -> None:
    recipe = "--transforms=remove_nodes(op=Identity) sort_by_execution_order"
    run_command("transform_graph", "--in_graph=graph.pb", "--out_graph=o.pbtxt", "--inputs=x", "--outputs=y", recipe)
    run_command("transform_graph", "--in_graph=graph.pb", "--out_graph=o.pb", "--output_as_text=true", recipe)
    assert Path("o.pb").read_text() == Path("o.pbtxt").read_text()
    assert "same" not in load("o.pb")


def test_summarize_graph(run_command: RunCommand) -> None:
    text = run_command("summarize_graph", "--in_graph=graph.pb", "--print_structure=true")
    assert text.startswith("Found 1 possible inputs: (name=x, type=float(1), shape=[?,4,4,3])")
    assert "conv (Conv2D): [x, w]" in text


def test_compare_graphs(run_command: RunCommand) -> None:
    save(
        GRAPH.with_nodes(node.with_(op="Relu6") if node.name == "y" else node for node in GRAPH.nodes.values()), "b.pb"
    )
    assert run_command("compare_graphs", "graph.pb", "graph.pb") == "Graphs are equal.\n"
    assert "op 'Relu' that is not expected 'Relu6'" in run_command("compare_graphs", "graph.pb", "b.pb", code=1)
    save(GRAPH.with_nodes([GRAPH["x"]]), "x.pb")
    assert run_command("compare_graphs", "graph.pb", "x.pb", code=1) == "Found unexpected node 'w'\n"
    assert run_command("compare", "--structure", "graph.pb", "x.pb", "--show=2", code=1).splitlines() == [
        "Found unexpected node 'w'",
        "Found unexpected node 'conv'",
        "2 more (--verbose lists them)",
    ]
    assert len(run_command("compare", "--structure", "graph.pb", "x.pb", "-v", code=1).splitlines()) == 4
    assert "gone.pb does not exist" in run_command("compare_graphs", "graph.pb", "gone.pb", code=3)


def test_link_with_the_name_of_a_tool_runs_the_tool(run_command: RunCommand, tmp_path: Path) -> None:
    link = tmp_path / "compare_graphs"
    link.symlink_to(Path(sys.executable).parent / "quantkit")
    done = subprocess.run([link, "graph.pb", "graph.pb"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Graphs are equal.\n"), done.stderr


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Write a graph with variables, its checkpoint, its saver and a SavedModel."""
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        with tf.device("/cpu:0"):
            w = v1.get_variable("w", [3, 2], use_resource=False)
        bias = v1.get_local_variable("bias", [2], initializer=v1.ones_initializer(), use_resource=False)
        y = tf.add(tf.matmul(x, w), 1.0, name="y")
        tf.add(y, bias, name="z")
        session.run(v1.global_variables_initializer())
        init = v1.local_variables_initializer()
        saver = v1.train.Saver()
        saver.save(session, str(tmp_path / "model"))
        (tmp_path / "init").write_text(init.name)
        (tmp_path / "saver.pb").write_bytes(saver.as_saver_def().SerializeToString())
        tf.io.write_graph(session.graph_def, str(tmp_path), "trained.pbtxt")
        v1.saved_model.simple_save(session, str(tmp_path / "exported"), {"x": x}, {"y": y})
    return tmp_path


@pytest.mark.engine
def test_freeze_graph(run_command: RunCommand, trained: Path) -> None:
    frozen = ("--output_graph=o.pb", "--output_node_names=y")
    graph = ("--input_graph=trained.pbtxt", "--input_checkpoint=model")
    calls = (
        graph,
        (*graph, "--input_saver=saver.pb", "--input_binary"),
        (*graph, "--variable_names_whitelist=w"),
        ("--input_meta_graph=model.meta", "--input_checkpoint=model", "--input_binary=true"),
        ("--input_saved_model_dir=exported",),
    )
    graphs = []
    for call in calls:
        assert re.match(r"o\.pb: \d+ nodes", run_command("freeze_graph", *call, *frozen))
        graphs.append(load("o.pb"))
        assert (graphs[-1]["w"].op, graphs[-1]["w"].device, "z" in graphs[-1]) == ("Const", "", False)
        save(graphs[0], "first.pb")
        assert run_command("compare_graphs", "o.pb", "first.pb") == "Graphs are equal.\n"
    run_command("freeze_graph", *graph, *frozen, "--clear_devices=false")
    assert load("o.pb")["w/read"].device.lower() == "/device:cpu:0"
    run_command("freeze_graph", *graph, *frozen, "--variable_names_denylist=w")
    assert load("o.pb")["w"].op == "VariableV2"
    run_command(
        "freeze_graph",
        *graph,
        "--output_graph=o.pb",
        "--output_node_names=z",
        f"--initializer_nodes={Path('init').read_text()}",
    )
    assert load("o.pb")["bias"].value.array.tolist() == [1, 1]


@pytest.mark.engine
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--input_graph=trained.pbtxt", "--input_checkpoint=model"], 2, "You need to supply the name of a node"),
        (["--input_graph=trained.pbtxt", "--output_node_names=y"], 2, "no output file is given"),
        (["--output_node_names=y", "--output_graph=o.pb"], 2, "no graph is given"),
        (["--output_node_names=y", "--output_graph=o.pb", "--input_graph=gone.pb"], 3, "gone.pb does not exist"),
        (
            ["--output_node_names=y", "--output_graph=o.pb", "--input_graph=gone.pb", "--initializer_nodes=i"],
            3,
            "gone.pb does not exist",
        ),
        (
            ["--output_node_names=y", "--output_graph=o.pb", "--input_graph=trained.pbtxt", "--input_checkpoint=gone"],
            3,
            "there is no checkpoint gone",
        ),
        (
            [
                *("--output_node_names=y", "--output_graph=o.pb", "--input_graph=trained.pbtxt"),
                *("--input_checkpoint=model", "--initializer_nodes=gone"),
            ],
            3,
            "model cannot be read by TensorFlow: .*gone",
        ),
        (
            [
                "--output_node_names=yy",
                "--output_graph=o.pb",
                "--input_graph=trained.pbtxt",
                "--input_checkpoint=model",
            ],
            2,
            "output 'yy' is not in the graph",
        ),
    ],
)
def test_freeze_graph_rejects_wrong_flags(
    run_command: RunCommand, trained: Path, arguments: list[str], code: int, message: str
) -> None:
    assert re.search(message, run_command("freeze_graph", *arguments, code=code))
    assert not Path("o.pb").exists()


MODEL = ("--graph=graph.pb", "--input_layer=x", "--input_layer_shape=2,4,4,3", "--output_layer=y:0", "-q")


@pytest.mark.engine
def test_benchmark_model(run_command: RunCommand) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    report = ("--benchmark_name=a/b", "--output_prefix=out_")
    text = run_command("benchmark_model", *MODEL, "--num_runs=3", "--show_flops", "--show_sizes", *report)
    assert re.match(r"Average inference timings in us: Warmup: \d+, no stats: \d+, with stats: \d+\n", text)
    for title in ("Run Order", "Top by Computation Time", "Top by Memory Use", "Summary by node type", "Output sizes"):
        assert f" {title} =" in text
    assert "FLOPs estimate: 3.46k\n" in text, "2 * (3 * 3 * 3) MACs for each of 2 * 4 * 4 * 2 outputs"
    assert b"a/b" in Path("out_a__b").read_bytes()
    few = [f"--show_{name}=false" for name in ("run_order", "time", "memory", "type", "summary")]
    assert len(run_command("benchmark_model", *MODEL, "--num_runs=2", *few).splitlines()) == 1
    document = json.loads(run_command("benchmark_model", *MODEL, "--num_runs=2", "--warmup_runs=0", "--json"))
    assert [len(seconds) for seconds in document["seconds"].values()] == [0, 2, 2]


@pytest.mark.engine
def test_benchmark_model_converts_onnx_models(run_command: RunCommand) -> None:
    """Names of ONNX inputs may contain characters that TensorFlow rejects."""
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    renamed = {Edge("x"): Edge("input 1#"), Edge("y"): Edge("y")}
    nodes = [node.with_(name="input 1#") if node.name == "x" else node for node in GRAPH.nodes.values()]
    nodes = [node.with_(inputs=tuple(renamed.get(edge, edge) for edge in node.inputs)) for node in nodes]
    save(to_onnx_graph(Graph.of(nodes, ["input 1#"], ["y"])), Path("graph.onnx"))
    flags = ("--graph=graph.onnx", "--input_layer=input 1#", "--input_layer_shape=2,4,4,3", "--output_layer=y")
    text = run_command("benchmark_model", *flags, "--num_runs=2", "--show_flops", "-q")
    assert "Conv2D" in text
    assert "FLOPs estimate: 3.46k\n" in text


@pytest.mark.engine
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input_layer=x,y"], "There must be the same number of items"),
        (["--input_layer_shape=-1,4,4,3"], "Any unknown sizes in the shapes"),
        (["--input_layer_shape=1,4,4,a"], "invalid literal"),
        (["--input_layer_shape=1,4,4"], "Cannot feed value of shape"),
        (["--input_layer_type=complex"], "is not a type"),
        (["--input_layer_values=1,2"], "gives 2 values for a layer of shape 2,4,4,3"),
        (["--output_layer=yy"], "output 'yy' is not in the graph"),
        (["--graph="], "no graph is given"),
    ],
)
def test_benchmark_model_rejects_wrong_flags(run_command: RunCommand, arguments: list[str], message: str) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    assert message in run_command("benchmark_model", *MODEL, *arguments, code=2)


@pytest.mark.engine
def test_benchmark_model_feeds_the_values_of_the_flags(run_command: RunCommand) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    arguments = ("--input_layer=x,conv", "--input_layer_shape=1,4,4,3:1,4,4,2", "--input_layer_type=float,float")
    assert "Average" in run_command(
        "benchmark_model", *MODEL, *arguments, f"--input_layer_values={','.join('1' * 48)}:{','.join('2' * 32)}"
    )


IMAGE = Path(__file__).parent.parent.parent / "assets" / "digit_7.png"
DIGITS = ("--graph=digits", f"--image={IMAGE}", "--input_layer=Mul", "--output_layer=softmax")


def test_label_image(run_command: RunCommand) -> None:
    Path("labels.txt").write_text("".join(f"the digit {number}\n" for number in range(10)))
    lines = run_command(
        "label_image", *DIGITS, "--labels=labels.txt", "--input_mean=128", "--input_std=128"
    ).splitlines()
    assert len(lines) == 5
    assert re.fullmatch(r"the digit 7 \(7\): (1|0\.\d+)", lines[0])
    # Mean and standard deviation of the first releases, whose graphs begin at Mul, are 128.
    assert run_command("label_image", *DIGITS, "--labels=labels.txt").splitlines() == lines
    rooted = (f"--root_dir={IMAGE.parent}", f"--image={IMAGE.name}", *DIGITS[::2], *DIGITS[3:])
    assert (
        run_command("label_image", "--graph=digits", *rooted[:2], *DIGITS[2:], "--labels=labels.txt").splitlines()
        == lines
    )


def test_label_image_tests_itself_on_its_default_image(run_command: RunCommand) -> None:
    run_command("label_image", *DIGITS, "--self_test=true", code=1)
    assert "grace_hopper.jpg' does not exist" in run_command("label_image", code=3)
