"""Command line: exit codes, messages, flags in both spellings, stdout and stderr."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main

from quantkit.formats import load, save
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape

FLOAT = {"T": DType.FLOAT}
GRAPH = Graph.of(
    [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 3))}),
        Node("same", "Identity", (Edge("x"),), attrs=FLOAT),
        constant("w", np.eye(3, dtype=np.float32)),
        Node("y", "MatMul", (Edge("same"), Edge("w")), attrs=FLOAT),
        Node("left", "Relu", (Edge("y"),), attrs=FLOAT),
    ],
    ["x"],
    ["y"],
)


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    save(GRAPH, tmp_path / "graph.pb")
    return tmp_path / "graph.pb"


def test_no_command_prints_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in import_module("quantkit.cli._app").ALL:
        assert f"  {name}" in text


@pytest.mark.parametrize("name", import_module("quantkit.cli._app").ALL)
def test_every_command_has_help_for_every_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "examples:" in capsys.readouterr().out
    app = import_module("quantkit.cli._app")
    parser = app.make_parser(name, import_module(f"quantkit.cli.{name}"))
    for leaf in app._leaves(parser):
        for action in leaf._actions:
            assert action.help, f"{name}: {action.option_strings or action.dest} has no help"


@pytest.mark.parametrize("name", import_module("quantkit.cli._app").ALL)
def test_help_takes_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == 0
    text = capsys.readouterr().out
    assert main([name, "--help"]) == 0
    assert text == capsys.readouterr().out
    assert text.startswith(f"usage: quantkit {name} ")


# Commands that take a MODEL, except the TensorFlow tools.
MODEL_COMMANDS = ("transform", "quantize", "classify", "evaluate", "compare", "benchmark", "summarize")
MODEL_FLAGS = {
    *("--inputs", "--outputs", "--signature", "--tags", "--checkpoint", "--random-weights", "--offline", "--plugin"),
    *("--json", "--quiet", "--verbose", "--debug"),
}


@pytest.mark.parametrize("name", MODEL_COMMANDS)
def test_model_commands_share_their_flags(name: str) -> None:
    parser = import_module("quantkit.cli._app").make_parser(name, import_module(f"quantkit.cli.{name}"))
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert flags >= MODEL_FLAGS


def test_every_command_loads_plugins(graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("1 / 0\n")
    assert main(["summarize", str(graph_file), "--plugin", str(tmp_path / "mine.py")]) == 2
    assert f"{tmp_path / 'mine.py'}, line 1: ZeroDivisionError" in capsys.readouterr().err


def test_control_characters_of_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "evil\x1b[2J\x9b1m"
    nodes = [GRAPH["x"].with_(name=name), Node("same", "Relu", (Edge(name),))]
    save(Graph.of(nodes, [name], ["same"], dialect="onnx"), tmp_path / "graph.onnx")
    assert main(["summarize", str(tmp_path / "graph.onnx")]) == 0
    text = capsys.readouterr().out
    assert r"evil\x1b[2J\x9b1m" in text
    assert "\x1b" not in text
    assert main(["summarize", str(tmp_path / "graph.onnx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"][0]["name"] == name


@pytest.mark.parametrize("name", import_module("quantkit.cli._app").ALL)
def test_examples_parse(name: str) -> None:
    import shlex

    command = import_module(f"quantkit.cli.{name}")
    app = import_module("quantkit.cli._app")
    assert command.EXAMPLES
    for line in command.EXAMPLES:
        arguments = shlex.split(line)
        assert arguments[:2] == ["quantkit", name]
        parser = app.make_parser(name, command)
        parser.parse_args(app._kebab(arguments[2:], parser))


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (["transfrom"], 2, "'transfrom' is not a command", "did you mean 'transform'"),
        (
            ["quantize", "G", "images", "-o", "O"],
            2,
            "unrecognized arguments: images",
            "data is a flag: --calibration images",
        ),
        (["optimize", "G", "images", "-o", "O"], 2, "are required: --data", "data is a flag: --data DATA"),
        (["optimize", "G", "--data", "images"], 2, "are required: -o/--output", "optimize --help lists the flags"),
        (["transform", "--in_grph=x"], 2, "unrecognized arguments", "did you mean '--in-graph'"),
        (["transform", "--out_graph=o.pb"], 2, "in_graph graph can't be empty.", "--in_graph=FILE"),
        (["transform", "G"], 2, "out_graph graph can't be empty.", "--out_graph=FILE"),
        (["transform", "G", "-o", "O"], 2, "You must specify at least one transform.", ""),
        (["transform", "G", "-o", "O", "--recipe", "nope"], 2, "no recipe is named 'nope'", "inference"),
        (["transform", "G", "-o", "O", "--transforms", "inference"], 2, "is a recipe", "--recipe inference"),
        (
            ["transform", "G", "-o", "O", "--transforms", "fold_pads(ignore_error=true)"],
            2,
            "no option",
            "ignore_errors",
        ),
        (["transform", "nothing.pb", "-o", "O", "--recipe", "deploy"], 3, "nothing.pb does not exist", ""),
        (
            ["transform", "inceptoin_v3", "-o", "O", "--recipe", "deploy"],
            2,
            "neither a file nor the name",
            "inception_v3",
        ),
        (["transform", "G", "-o", "O", "--transforms", "fold_constant"], 2, "not recognized", "fold_constants"),
        (["transform", "G", "-o", "O", "--transforms", "a(b=“c”)"], 2, "Looking for a value", "typographic"),
        (["transform", "G", "-o", "O", "--transforms", "fold_constants", "--outputs", "why"], 2, "output 'why'", ""),
        (["transform", "G", "-o", "O", "--transforms", "fold_constants", "--inputs", "xx"], 2, "input 'xx'", ""),
        (
            ["transform", "G", "-o", "no/O.pb", "--transforms", "fold_constants"],
            2,
            "no is not a folder",
            "create the folder",
        ),
        (["summarize"], 2, "no model is given", ""),
        (["compare", "G", "G", "--min-sqnr", "nan"], 2, "'nan' is not a finite number", ""),
        (["models", "lst"], 2, "invalid choice: 'lst'", "did you mean 'list'"),
        (["quantize", "G", "-o", "O", "--target", "onx"], 2, "'onx' is not a target", "did you mean 'onnx'"),
        (["transforms", "show", "fold_batchnorms"], 2, "not recognized", "fold_batch_norms"),
        (["classify", "--model", "digits", "missing.png"], 3, "missing.png", ""),
    ],
)
def test_errors_have_message_hint_and_exit_code(
    arguments: list[str],
    code: int,
    message: str,
    hint: str,
    graph_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(graph_file.parent)
    os.rename("graph.pb", "G.pb")
    assert main([argument if argument != "G" else "G.pb" for argument in arguments]) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert hint in err.partition("hint: ")[2]
    assert os.listdir() == ["G.pb"], "nothing may be left behind"


def test_call_of_the_2016_tool(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = graph_file.parent / "out.pb"
    arguments = [
        "transform",
        f"--in_graph={graph_file}",
        f"--out_graph={out}",
        "--inputs=x",
        "--outputs=y",
        "--transforms=\n  strip_unused_nodes\n  remove_nodes(op=Identity, op=CheckNumerics)\n",
    ]
    assert main(arguments) == 0
    assert sorted(load(out).nodes) == ["w", "x", "y"]
    captured = capsys.readouterr()
    assert "5 -> 3 nodes" in captured.out
    assert "Applying strip_unused_nodes" in captured.err


@pytest.mark.parametrize(("flags", "is_listed"), [((), False), (("-v",), True), (("-v", "-q"), False)])
def test_transforms_are_listed_with_verbose(
    graph_file: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], is_listed: bool
) -> None:
    out = graph_file.parent / "out.pb"
    assert main(["transform", str(graph_file), "-o", str(out), "--transforms=remove_device", *flags]) == 0
    assert ("Applying remove_device" in capsys.readouterr().err) == is_listed


def test_output_as_text(graph_file: Path) -> None:
    out = graph_file.parent / "out.txt"
    arguments = ["transform", f"--in_graph={graph_file}", f"--out_graph={out}", "--transforms=remove_device"]
    arguments[-1] = "--transforms=sort_by_execution_order"
    assert main([*arguments, "--output_as_text"]) == 0
    assert out.read_text().startswith("node {")
    assert main([*arguments, "--output_as_text=false"]) == 0
    assert not out.read_bytes().startswith(b"node {")
    assert main([*arguments, "--output_as_text=maybe"]) == 2


def test_json_is_one_document_with_the_same_content(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = graph_file.parent / "out.pb"
    assert (
        main(["transform", str(graph_file), "-o", str(out), "--recipe", "inference", "--outputs=y", "--json", "-q"])
        == 0
    )
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["schema"] == "quantkit.transform/1"
    assert (document["nodes_before"], document["nodes_after"]) == (5, 3)
    assert document["op_counts"] == {"Const": 1, "MatMul": 1, "Placeholder": 1}
    assert captured.err == ""


def test_explain_prints_changes_and_skips(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = graph_file.parent / "out.pb"
    arguments = ["transform", str(graph_file), "-o", str(out), "--outputs", "same", "--explain", "--transforms"]
    assert main([*arguments, "remove_nodes(op=Identity)"]) == 0
    assert "skipped  same: the node is a graph input or output" in capsys.readouterr().out


def test_verify_with_the_reference_runtime(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = graph_file.parent / "out.pb"
    arguments = ["transform", str(graph_file), "-o", str(out), "--recipe=inference", "--outputs=y", "--verify"]
    assert main([*arguments, "--runtime", "reference"]) == 0
    assert "verified: y: equal" in capsys.readouterr().out


def test_summarize(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summarize", str(graph_file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"] == [{"name": "x", "op": "Placeholder", "dtype": "float", "shape": [1, 3]}]
    assert document["macs"] == 9
    assert document["parameters"] == 9
    assert main(["summarize", f"--in_graph={graph_file}"]) == 0
    assert "1 no-op node can be removed" in capsys.readouterr().out
    assert main(["transform", str(graph_file), "-o", str(graph_file), "--recipe=inference", "--outputs=y"]) == 0
    capsys.readouterr()
    assert main(["summarize", str(graph_file)]) == 0
    assert "--calibration DATA: int8 is smaller" in capsys.readouterr().out


def test_transforms_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transforms", "list"]) == 0
    assert "fold_constants" in capsys.readouterr().out
    assert main(["transforms", "show", "remove_nodes"]) == 0
    text = capsys.readouterr().out
    assert "op=str, may be repeated; required" in text
    assert "max_inputs=int; default 1" in text


def test_random_weights_print_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summarize", "mobilenet_v1", "--random-weights"]) == 0
    text = capsys.readouterr().out
    assert "predictions are not" in text
    assert "568.7 million" in text


def test_closed_pipe_is_not_an_error(graph_file: Path) -> None:
    command = f'"{sys.executable}" -m quantkit transforms list | head -1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_interrupt_exits_with_130_and_writes_no_file(
    graph_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quantkit.formats.files.graphdef.write", interrupt)
    out = graph_file.parent / "out.pb"
    assert main(["transform", str(graph_file), "-o", str(out), "--recipe", "deploy"]) == 130
    assert "interrupted" in capsys.readouterr().err
    assert os.listdir(graph_file.parent) == ["graph.pb"]


def test_full_disk(graph_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("quantkit.formats.files.graphdef.write", full)
    out = graph_file.parent / "out.pb"
    assert main(["transform", str(graph_file), "-o", str(out), "--recipe", "deploy"]) == 3
    assert "the disk is full" in capsys.readouterr().err
    assert os.listdir(graph_file.parent) == ["graph.pb"]


def test_bug_is_reported_and_debug_prints_the_traceback(
    graph_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("quantkit.summary.summary.infer_shapes", broken)
    assert main(["summarize", str(graph_file)]) == 70
    err = capsys.readouterr().err
    assert "a bug: ZeroDivisionError: oops" in err
    assert "Traceback" not in err
    assert main(["summarize", str(graph_file), "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["transforms", "show", "fold_constants"], ["models", "list", "--json"], ["--help"]]
)
def test_closed_pipe_is_not_a_failed_check(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        command = [sys.executable, "-m", "quantkit", *arguments]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PLUGIN = """
from quantkit.rewriting import Graph, constant, transform

@transform
def double_weights(graph: Graph) -> Graph:
    \"\"\"Double the weights.\"\"\"
    return graph.with_nodes([constant("w", 2 * n.value.array) if n.name == "w" else n for n in graph.nodes.values()])
"""


@pytest.mark.parametrize("recipe", ["deploy", "double_weights"])
@pytest.mark.parametrize(
    "redirection", [">&$CLOSED", "2>&$CLOSED", ">&$CLOSED 2>&1", "2>/dev/full", ">&-", "2>&-", "<&- >&- 2>&-"]
)
def test_lost_messages_change_neither_the_work_nor_the_exit_code(
    recipe: str, redirection: str, graph_file: Path
) -> None:
    plugin, out = graph_file.with_name("mine.py"), graph_file.with_name("out.pb")
    plugin.write_text(PLUGIN)
    flag = "--recipe" if recipe == "deploy" else "--transforms"
    arguments = f"transform {graph_file} -o {out} {flag} {recipe} --plugin {plugin} --verify --runtime reference"
    reader, writer = os.pipe()
    os.close(reader)
    redirection = redirection.replace("$CLOSED", str(writer))
    line = f"exec '{sys.executable}' -m quantkit {arguments} {redirection}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, pass_fds=[writer], check=False)
    os.close(writer)
    assert done.returncode == (0 if recipe == "deploy" else 1)
    assert out.exists() == (recipe == "deploy")


def test_messages_do_not_reach_stdout_when_stderr_is_closed(graph_file: Path) -> None:
    line = f"exec '{sys.executable}' -m quantkit summarize {graph_file.with_name('no.pb')} 2>&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (3, b"")


WAITING_PLUGIN = """
import time
from pathlib import Path
from quantkit.formats import write_whole
from quantkit.formats.temporary import temporary_folder
from quantkit.rewriting import Graph, transform

@transform
def wait(graph: Graph) -> Graph:
    \"\"\"Wait while a file is written.\"\"\"
    def write(file):
        Path("started").touch()
        time.sleep(60)

    with temporary_folder():
        write_whole(Path("other.pb"), write)
    return graph
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_leaves_no_temporary_files(number: signal.Signals, graph_file: Path) -> None:
    folder = graph_file.parent
    (folder / "mine.py").write_text(WAITING_PLUGIN)
    (folder / "tmp").mkdir()
    arguments = ["transform", "graph.pb", "-o", "out.pb", "--transforms", "wait", "--plugin", "mine.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "quantkit", *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # nohup ignores SIGHUP, and children inherit this
    )
    try:
        deadline = time.monotonic() + 60
        while not (folder / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list((folder / "tmp").iterdir())
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    finally:
        process.kill()
        process.wait()
    files = {path.name for path in folder.iterdir()} - {"__pycache__"}
    assert files == {"graph.pb", "mine.py", "tmp", "started"}
    assert not list((folder / "tmp").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("summarize PIPE.pb", "is a pipe or device"),
        ("classify PIPE.png --model digits", "is a pipe or device"),
        ("evaluate digits --data PIPE.npy", "is a pipe or device"),
        ("evaluate digits --data PIPE.txt", "is a pipe or device"),
        ("quantize digits -o a.onnx --ranges PIPE.json", "is a pipe or device"),
        ("transform digits -o a.pb --recipe PIPE.toml", "is a pipe or device"),
        ("transform digits -o a.pb --transforms freeze_requantization_ranges(min_max_log_file=PIPE.txt)", "is a pipe"),
        ("benchmark digits --baseline PIPE.json", "is a pipe or device"),
        ("summarize /proc/cpuinfo", "has no size"),
        ("evaluate digits --data LONG", "does not exist"),
        ("classify LONG --model digits", "does not exist"),
        ("transform digits -o LONG.pb --recipe inference", "too long"),
        ("evaluate digits --data ~nouser/data", "does not exist"),
        ("evaluate digits --data loop", "does not exist"),
        ("evaluate digits --data x.npy --labels loop", "does not exist"),
        ("data pack loop -o out", "does not exist"),
        ("data profile loop.py:make", "is not a Python file"),
    ],
)
def test_unusual_paths_are_input_errors(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for loop in ("loop", "loop.py"):
        os.symlink(loop, loop)
    for suffix in (".pb", ".png", ".npy", ".txt", ".json", ".toml"):
        os.mkfifo(f"PIPE{suffix}")
    assert main(arguments.replace("LONG", "a" * 5000).split()) == 3
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "benchmark digits --data x.npy --save x.npy",
        "benchmark digits --html page.svg --save page.svg",
        "benchmark digits --sweep --resume state.json --save state.json",
        "benchmark model.pb --sweep --resume model.pb",
        "data optimize pipe.py:make -o pipe.py",
        "monitor --html job.py -- python job.py",
        "monitor --html pipe.py --pipeline pipe.py:make -- python job.py",
        "quantize digits -o a.onnx --ranges ranges.json --save-plan ranges.json",
        "transform digits -o recipe.toml --recipe recipe.toml",
    ],
)
def test_outputs_overwrite_neither_each_other_nor_an_input(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("x.npy", "page.svg", "state.json", "model.pb", "pipe.py", "job.py", "ranges.json", "recipe.toml")
    for name in names:
        Path(name).write_text("precious")
    assert main(arguments.split()) == 2
    assert re.search("would overwrite|name one file", capsys.readouterr().err)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "precious")


def test_cache_of_an_unknown_user_is_an_input_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", "~nouser/cache")
    assert main(["models", "list"]) == 3
    assert "QUANTKIT_CACHE is '~nouser/cache'" in capsys.readouterr().err


def test_full_disk_of_stdout_is_not_a_bug(graph_file: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "wb") as full:
        arguments = [sys.executable, "-m", "quantkit", "summarize", str(graph_file)]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("quantkit: the disk is full: cannot write the output\nhint: ")


def test_unwritable_output_is_rejected_before_the_work(graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out in (graph_file.parent, graph_file.parent / "no" / "out.pb", graph_file.parent / "out.h5"):
        assert main(["transform", "-v", str(graph_file), "-o", str(out), "--recipe", "deploy"]) == 2
        assert "Applying" not in capsys.readouterr().err


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\xfc\\udcff"), ("utf-8", "ü\\udcff")])
def test_characters_that_the_terminal_lacks_are_escaped(
    encoding: str, shown: str, graph_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = graph_file.with_name("ü\udcff.pb")  # a byte that is no UTF-8
    try:
        path.write_bytes(graph_file.read_bytes())
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such name")
    for flag in ([], ["--json"]):
        bare = BytesIO()
        monkeypatch.setattr(sys, "stdout", TextIOWrapper(bare, encoding=encoding, write_through=True))
        assert main(["summarize", str(path), *flag]) == 0
        text = bare.getvalue().decode(encoding)
        if flag:
            assert json.loads(text)["model"] == str(path)
        else:
            assert f"{shown}.pb" in text


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["summarize", "missing.pb", "--json"], "InputError", 3),
        (["summarize", "--jsn", "--json", "x.pb"], "UsageError", 2),
        (["nothing", "--json"], "UsageError", 2),
        (["compare", "digits", "digits", "--limit", "0", "--json"], "UsageError", 2),
        (["transform", "digits", "-o", "out.pb", "--recipe", "unknown", "--json"], "RecipeError", 2),
    ],
)
def test_errors_have_a_json_document(
    arguments: list[str], kind: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert document["schema"] == "quantkit.error/1"
    assert (document["error"], document["exit_code"]) == (kind, code)
    assert f"quantkit: {document['message']}\n" in output.err
    assert document["hint"]


def test_failed_check_prints_only_the_document_of_the_command(capsys: Any) -> None:
    data = str(Path(__file__).parents[2] / "assets")
    arguments = ["evaluate", "digits", "--runtime", "reference", "--data", data, "--limit", "3", "--min-top1", "1"]
    assert main([*arguments, "--json", "-q"]) == 1
    output = capsys.readouterr()
    assert "no sample has a label" in output.err
    assert json.loads(output.out)["schema"] == "quantkit.evaluate/2"
