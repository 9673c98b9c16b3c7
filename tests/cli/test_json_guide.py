"""Each key of each JSON document is in the guide, with its type."""

import json
import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quantkit.benchmark import diagnosis
from quantkit.runtimes import find_runtime

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "assets" / "guides" / "json.md"
HELD_OUT = str(ROOT / "assets" / "digits_heldout.npz")
DIGIT = str(ROOT / "assets" / "digit_3.png")
SCALARS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
MODEL = ("--input_layer=Mul", "--output_layer=softmax")
SIZES = ("--input_width=16", "--input_height=16", "--input_mean=128", "--input_std=128")
EVALUATE = ("evaluate", "digits@reference", "--reference", "d.pb@reference", "--data", HELD_OUT, "--limit", "3")
# Commands by the title of their section; each may use the files of the earlier ones.
COMMANDS = [
    ("transform", ("transform", "digits", "-o", "d.pb", "--recipe", "inference", "--verify", "--runtime", "reference")),
    ("transform", ("transform_graph", "--in_graph=d.pb", "--out_graph=e.pb", "--transforms=strip_unused_nodes")),
    ("quantize", ("quantize", "digits", "-o", "d.onnx", "--calibration", HELD_OUT, "--limit", "8", "--runs", "0")),
    ("receipt", ("receipt", "d.onnx")),
    ("evaluate", EVALUATE),
    ("evaluate", (*EVALUATE, "--task", "embedding")),
    ("run", ("run", "digits@reference", "--data", HELD_OUT, "--limit", "3", "-o", "results")),
    ("compare", ("compare", "digits", "d.pb", "--data", HELD_OUT, "--limit", "2", "--runtime", "reference")),
    ("compare", ("compare", "digits", "d.pb", "--structure")),
    ("compare", ("compare_graphs", "d.pb", "e.pb")),
    ("classify", ("classify", "--model", "digits", DIGIT, "--runtime", "reference")),
    ("classify", ("label_image", "--graph=d.pb", f"--image={DIGIT}", *MODEL, *SIZES)),
    (
        "benchmark",
        ("benchmark", "d.pb@reference", "digits@reference", "--runs", "3", "--warmup", "1", "--processes", "1"),
    ),
    ("benchmark", ("benchmark", "d.pb@reference", "--runs", "3", "--warmup", "1", "--save", "s.json")),
    ("benchmark", ("benchmark", "d.pb@reference", "--runs", "3", "--warmup", "1", "--baseline", "s.json")),
    (
        "benchmark",
        ("benchmark", "digits@reference", "--precision", "float32,bfloat16", "--runs", "1", "--processes", "1"),
    ),
    ("benchmark --sweep", ("benchmark", "d.pb@reference", "--sweep", "--time-budget", "2s")),
    ("summarize", ("summarize", "digits")),
    ("summarize", ("summarize_graph", "--in_graph=d.pb")),
    ("data pack", ("data", "pack", HELD_OUT, "-o", "shards", "--workers", "1")),
    ("data verify", ("data", "verify", "shards")),
    ("models", ("models", "list")),
    ("models", ("models", "show", "inception_v3")),
    ("models", ("models", "path", "digits")),
    ("models", ("models", "fetch", "digits")),
    ("transforms", ("transforms", "list")),
    ("transforms", ("transforms", "show", "fold_batch_norms")),
    ("transforms", ("transforms", "check", "remove_nodes")),
]
RUNTIME_COMMANDS = [
    (
        "quantize",
        (
            *("quantize", "digits", "-o", "e.onnx", "--calibration", HELD_OUT),
            *("--limit", "8", "--runs", "1", "--runtime", "onnxruntime"),
        ),
    ),
    ("receipt", ("receipt", "e.onnx")),
    (
        "quantize",
        (
            *("quantize", "digits", "-o", "f.onnx", "--calibration", HELD_OUT),
            *("--limit", "40", "--max-drop", "0.0", "--runs", "0"),
        ),
    ),
    (
        "optimize",
        ("optimize", "digits", "-o", "best", "--data", HELD_OUT, "--time-budget", "2s", "--runtimes", "onnxruntime"),
    ),
    ("doctor", ("doctor",)),
    ("profile", ("benchmark", "d.pb@onnxruntime", "--profile", "--runs", "3")),
    ("data profile", ("data", "profile", "pipeline.py:numbers", "--seconds", "0.1")),
    ("data optimize", ("data", "optimize", "pipeline.py:numbers", "--time-budget", "0.2")),
    ("benchmark_model", ("benchmark_model", "--graph=d.pb", *MODEL, "--input_layer_shape=1,16,16,1", "--num_runs=1")),
]


def read_guide() -> dict[str, dict[str, str]]:
    """Return the type of each key of each object of the guide, by the title of its section."""
    objects: dict[str, dict[str, str]] = {}
    for titles, body in re.findall(r"^##+ (.*)\n((?:(?!##).*\n)*)", GUIDE.read_text(), re.MULTILINE):
        keys: dict[str, str] = {}
        for names, kind in re.findall(r"^\| (`.*?`) \| (.*?) \|", body, re.MULTILINE):
            keys |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind)
        objects |= dict.fromkeys(titles.split(", "), keys)
    return objects


OBJECTS = read_guide()


def find_problem(value: Any, kind: str, path: str) -> str:
    """Return the difference between a JSON value and its type in the guide, or an empty string."""
    problems = [_find_problem_of_type(value, part, path) for part in kind.split(" or ")]
    return "" if "" in problems else problems[0]


def _find_problem_of_type(value: Any, kind: str, path: str) -> str:
    if kind in SCALARS:
        return "" if SCALARS[kind](value) else f"{path} is {value!r}, and must be {kind}"
    container, _, item = kind.partition(" of ")
    if item:
        if container not in ("list", "map") or not isinstance(value, list if container == "list" else dict):
            return f"{path} is not a {container}"
        items = value if isinstance(value, list) else value.values()
        return next(filter(None, (find_problem(each, f"{item} or null", f"{path}[]") for each in items)), "")
    if not isinstance(value, dict):
        return f"{path} is not an object"
    if unknown := value.keys() - OBJECTS[kind].keys():
        return f"{path}: {sorted(unknown)} of {kind} not in assets/guides/json.md"
    return next(
        filter(None, (find_problem(each, OBJECTS[kind][key], f"{path}.{key}") for key, each in value.items())), ""
    )


def test_types_of_the_guide_are_defined() -> None:
    kinds = {part for keys in OBJECTS.values() for kind in keys.values() for part in kind.split(" or ")}
    names = {re.sub(r"^((list|map) of )+", "", kind) for kind in kinds}
    assert names <= {*OBJECTS, *SCALARS}
    assert len(OBJECTS) > 30


def test_unknown_keys_and_wrong_types_are_found() -> None:
    document = {"op": "Conv2D", "reason": "r", "nodes": 1}
    assert not find_problem(document, "fallback_group", "x")
    assert "['more']" in find_problem({**document, "more": 1}, "fallback_group", "x")
    assert "x.nodes is 'a', and must be integer" in find_problem({**document, "nodes": "a"}, "fallback_group", "x")
    assert "x[] is 'a'" in find_problem(["a"], "list of number", "x")


def check_commands(commands: list[tuple[str, tuple[str, ...]]], capsys: pytest.CaptureFixture[str]) -> None:
    main = import_module("quantkit.cli").main
    for title, arguments in commands:
        main([*arguments, "--json", "-q"])
        output = capsys.readouterr()
        assert output.out, output.err
        document = json.loads(output.out)
        assert document["schema"].startswith("quantkit.")
        assert not find_problem(document, title, " ".join(arguments[:2]))


def test_each_key_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    check_commands(COMMANDS, capsys)


def test_each_key_of_monitor_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("psutil", reason="pip install psutil")
    arguments = ("monitor", "--pid", str(os.getpid()), "--duration", "0.3", "--interval", "0.1")
    check_commands([("monitor", arguments)], capsys)


@pytest.mark.engine
def test_each_key_of_runtimes_is_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("onnxruntime", "tensorflow"):
        pytest.importorskip(module, reason=f"pip install {module}")
    monkeypatch.chdir(tmp_path)
    # The guide for measurements runs the models in each runtime.
    some = {name: find_runtime(name) for name in ("onnxruntime", "reference")}
    monkeypatch.setattr(diagnosis, "runtimes", lambda: some)
    program = (
        "import tensorflow as tf\ndef numbers():\n    return tf.data.Dataset.range(9).map(lambda x: x * 2).batch(2)\n"
    )
    (tmp_path / "pipeline.py").write_text(program)
    check_commands([COMMANDS[0], *RUNTIME_COMMANDS], capsys)
