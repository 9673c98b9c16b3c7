"""Inputs of unknown rank, scalars, inputs without a batch axis, and strings, in every command that takes data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main
from records import example, write_records

import quantkit as qk
from quantkit.errors import GraphError, UsageError
from quantkit.ir.graph import Edge, Graph, Node, Versions, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ir.text import from_text
from quantkit.quantization.ranges import Range
from quantkit.quantization.significant_bits import round_range

RANDOM = np.random.default_rng(5)
ROWS: Array = RANDOM.normal(size=(8, 16)).astype(np.float32)
WEIGHTS: Array = RANDOM.normal(size=(16, 8)).astype(np.float32)
FLOAT = {"T": DType.FLOAT}

pytestmark = pytest.mark.engine


def placeholder(name: str, dims: tuple[int | None, ...] | None, dtype: DType = DType.FLOAT) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(dims)})


def network(*nodes: Node, vector: str) -> Graph:
    """Return a dense layer on the nodes that compute its input."""
    inputs = [node.name for node in nodes if node.op == "Placeholder"]
    tail = [
        constant("sizes", np.array([-1, 16], np.int32)),
        Node("rows", "Reshape", (Edge(vector), Edge("sizes")), attrs={**FLOAT, "Tshape": DType.INT32}),
        constant("weights", WEIGHTS),
        Node("product", "MatMul", (Edge("rows"), Edge("weights")), attrs=FLOAT),
        Node("y", "Relu", (Edge("product"),), attrs=FLOAT),
    ]
    return Graph.of([*nodes, *tail], inputs, ["y"], versions=Versions(producer=27))


DECODE = Node("decoded", "DecodeRaw", (Edge("audio"),), attrs={"out_type": DType.FLOAT, "little_endian": True})
SCALED = Node("scaled", "Mul", (Edge("x"), Edge("gain")), attrs=FLOAT)
BYTES = np.array([row.tobytes() for row in ROWS], dtype="V64")
# Graph and data, by the kind of its inputs.
CASES: Mapping[str, tuple[Graph, Mapping[str, Array]]] = {
    "unknown rank": (network(placeholder("x", None), vector="x"), {"x": ROWS}),
    "no batch axis": (network(placeholder("x", (16,)), vector="x"), {"x": ROWS}),
    "scalar": (
        network(placeholder("x", (None, 16)), placeholder("gain", ()), SCALED, vector="scaled"),
        {"x": ROWS, "gain": np.linspace(0.5, 1, 8).astype(np.float32)},
    ),
    "one scalar for all samples": (
        network(placeholder("x", (None, 16)), placeholder("gain", ()), SCALED, vector="scaled"),
        {"x": ROWS, "gain": np.array(0.5, np.float32)},
    ),
    "string": (network(placeholder("audio", (), DType.STRING), DECODE, vector="decoded"), {"audio": BYTES}),
    "strings": (network(placeholder("audio", (None,), DType.STRING), DECODE, vector="decoded"), {"audio": BYTES}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["onnx", "tensorflow", "eightbit", "litert"])
def test_every_target_calibrates_on_the_samples(name: str, target: str) -> None:
    graph, data = CASES[name]
    if target != "onnx":
        pytest.importorskip("tensorflow", reason="pip install tensorflow")
    if "string" in name and target in ("onnx", "litert"):
        pytest.skip("the format has no decoder of raw bytes")
    result = qk.quantize(graph, dict(data), target=target, runs=0)
    assert result.ranges.provenance.count == len(ROWS)
    assert result.report.census.num_patterns == 1
    accuracy = result.report.accuracy
    assert accuracy.failures == ()
    assert accuracy.sqnr is not None
    assert accuracy.sqnr.worst > 25


@pytest.mark.parametrize("name", CASES)
def test_commands_take_the_samples(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    graph, data = CASES[name]
    source, samples = str(tmp_path / "float.pb"), str(tmp_path / "data.npz")
    qk.save(graph, source)
    np.savez(samples, **data)  # type: ignore[arg-type]
    copy = str(tmp_path / "copy.pb")
    assert main(["transform", source, "-o", copy, "--recipe", "inference", "--verify", "--data", samples]) == 0
    assert main(["evaluate", copy, "--reference", source, "--data", samples, "--min-agreement", "1"]) == 0
    assert main(["compare", copy, source, "--data", samples]) == 0


def test_byte_strings_of_records_are_fed(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    graph, _ = CASES["string"]
    records = [example(audio=[row.tobytes()], label=[b"a"], rate=np.ones(1, np.float32)) for row in ROWS]
    data: Any = write_records(tmp_path / "audio.tfrecord", records)
    result = qk.quantize(graph, data, target="eightbit", runs=0)
    assert result.ranges[Edge("decoded")] == round_range(Range(float(ROWS.min()), float(ROWS.max())))


def test_benchmark_takes_data_and_sizes(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    graph, data = CASES["string"]
    qk.save(graph, tmp_path / "audio.pb")
    np.savez(tmp_path / "audio.npz", **data)  # type: ignore[arg-type]
    common = {"runs": 4, "processes": 1, "warmup": 0}
    for samples in (str(tmp_path / "audio.npz"), dict(data)):
        result = qk.benchmark([tmp_path / "audio.pb"], "tensorflow", data=samples, **common)  # type: ignore[arg-type]
        assert result.measurements[0].context.inputs == {"audio": "string scalar"}
    qk.save(CASES["unknown rank"][0], tmp_path / "x.pb")
    result = qk.benchmark([tmp_path / "x.pb"], "tensorflow", input_shapes={"x": (3, 16)}, **common)  # type: ignore[arg-type]
    assert result.measurements[0].context.inputs == {"x": "float 3x16"}


def test_chosen_sizes_are_those_of_the_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qk.save(CASES["unknown rank"][0], tmp_path / "x.pb")
    output = str(tmp_path / "sized.pb")
    command = ["transform", str(tmp_path / "x.pb"), "-o", output, "--recipe", "inference", "--input-shape"]
    assert main([*command, "x:4x16"]) == 0
    assert qk.load(output).graph["x"].attrs["shape"] == Shape((4, 16))
    assert "--input-shape x:4x16" in " ".join(qk.load(tmp_path / "x.pb", input_shapes={"x": (4, 16)}).flags)
    assert main([*command, "y:4x16"]) == 2
    assert "names 'y', which is not an input" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"has the shape 1x16, and --input-shape is 2x16"):
        qk.load(network(placeholder("x", (1, 16)), vector="x"), input_shapes={"x": (2, 16)})


def test_an_input_may_be_an_output(tmp_path: Path) -> None:
    graph = network(placeholder("x", (None, 16)), vector="x")
    graph = graph.with_endpoints(None, ["y", "x"])
    result = qk.quantize(graph, {"x": ROWS}, runtime="reference", runs=0)
    assert [str(edge) for edge in result.model.graph.outputs] == ["y", "x"]


def test_a_model_without_inputs_cannot_be_calibrated() -> None:
    graph = from_text("inputs:\noutputs: y\na = Const[2x3]()\nw = Const[3x4]()\ny = MatMul(a, w)")
    with pytest.raises(GraphError, match="no inputs to calibrate"):
        qk.quantize(graph, np.zeros((2, 3), np.float32), runtime="reference", runs=0)
