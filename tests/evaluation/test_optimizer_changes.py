"""Outputs that the optimizer of a runtime changes: wrong fusions, and int8 sums that saturate."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import main
from varying_sizes import FLOAT, NODE, make_model

import quantkit.runtimes
from quantkit.errors import CheckError
from quantkit.evaluation import LayerComparison, compare
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.registry import Registry
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.reference import RUNTIME
from quantkit.runtimes.runtime import Runtime
from quantkit.runtimes.session import RuntimeVersion, Session, SessionOptions

pytest.importorskip("onnx", reason="pip install onnx")
import onnx

RANDOM = np.random.default_rng(3)
DATA: Array = RANDOM.normal(size=(3, 8)).astype(np.float32)
ONNXRUNTIME = ("onnxruntime", "onnxruntime")
SIZE = 12


def chain(outputs: Sequence[str] = ("n11",)) -> Graph:
    """Return a chain of additions n0 to n11, whose constants are c0 to c11."""
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 8))})]
    source = "x"
    for index in range(SIZE):
        nodes += [
            constant(f"c{index}", RANDOM.normal(size=8).astype(np.float32)),
            Node(f"n{index}", "AddV2", (Edge(source), Edge(f"c{index}")), attrs={"T": DType.FLOAT}),
        ]
        source = f"n{index}"
    return Graph.of(nodes, ["x"], outputs)


def use_fusing_runtime(
    monkeypatch: pytest.MonkeyPatch,
    *fusions: range,
    factor: float = -1.0,
    can_omit_optimizer: bool = False,
    fuses_outputs: bool = False,
) -> None:
    """Register a runtime ``fusing`` that multiplies a constant by a factor if it fuses nodes.

    Args:
        monkeypatch: restores the registry.
        fusions: indices of the nodes that are fused.
        factor: factor of the constant of the second node.
        can_omit_optimizer: the fusion can be turned off.
        fuses_outputs: nodes are fused even if their results are outputs.
    """

    def open_model(model: Graph | Path, options: SessionOptions) -> Session:
        assert isinstance(model, Graph)
        for fusion in fusions if options.optimized else ():
            inner = {f"n{index}" for index in fusion[:-1]}
            name = f"c{fusion[1]}"
            if name in model and (fuses_outputs or not inner & model.output_names):
                changed = constant(name, model[name].value.array * np.float32(factor))
                model = model.with_nodes(changed if node.name == name else node for node in model.nodes.values())
        session = RUNTIME.open_model(model, replace(options, optimized=True))
        return FunctionSession(
            RuntimeVersion("fusing", "1.0"),
            session.inputs,
            session.outputs,
            lambda arrays: [*session.run(arrays[0]).values()],
        )

    fusing = replace(RUNTIME, name="fusing", open_model=open_model, can_omit_optimizer=can_omit_optimizer)
    monkeypatch.setattr(quantkit.runtimes, "REGISTRY", Registry("fake_runtime", Runtime, (RUNTIME, fusing)))


def run_chain(graph: Graph, **options: Any) -> LayerComparison:
    return compare(graph, graph, DATA, runtimes=("reference", "fusing"), **options)


@pytest.mark.parametrize("can_omit_optimizer", [False, True])
@pytest.mark.parametrize(("start", "stop"), [(0, 2), (4, 7), (5, 12), (10, 12), (0, 12)])
def test_the_fused_nodes_are_found(
    monkeypatch: pytest.MonkeyPatch, start: int, stop: int, can_omit_optimizer: bool
) -> None:
    use_fusing_runtime(monkeypatch, range(start, stop), can_omit_optimizer=can_omit_optimizer)
    result = run_chain(chain())
    (change,) = result.optimizer_changes
    assert (change.first, change.last, change.outputs) == (f"n{start}", f"n{stop - 1}", ("n11",))
    assert change.ops == ("AddV2", "AddV2")
    assert change.is_only_location
    rows = {row.name: row.sqnr for row in result.rows}
    assert rows.pop("n11") == pytest.approx(change.sqnr)
    assert set(rows.values()) == {inf}
    assert f"changes the result of graph 2 between n{start} (AddV2) and n{stop - 1} (AddV2): n11" in str(result)
    assert str(change) in result._repr_html_()
    with pytest.raises(CheckError, match=r"the optimizer of fusing 1\.0 changes .* which is below 30 dB"):
        result.check(min_sqnr=30)
    result.check(min_sqnr=-30)


def test_first_of_several_fusions_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fusing_runtime(monkeypatch, range(1, 4), range(6, 9))
    (change,) = run_chain(chain()).optimizer_changes
    assert (change.first, change.last, change.is_only_location) == ("n1", "n3", False)
    assert "and at other nodes" in str(change)


def test_outputs_of_one_fusion_are_one_change(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fusing_runtime(monkeypatch, range(2, 5))
    (change,) = run_chain(chain(("n0", "n8", "n11"))).optimizer_changes
    assert (change.first, change.last) == ("n2", "n4")
    assert set(change.outputs) == {"n8", "n11"}
    assert change.is_only_location


def test_nodes_that_are_fused_although_they_are_outputs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fusing_runtime(monkeypatch, range(4, 7), can_omit_optimizer=True, fuses_outputs=True)
    (change,) = run_chain(chain()).optimizer_changes
    assert (change.first, change.last) == ("n4", "n5")


def test_both_versions_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The outputs of one wrong graph in one runtime are equal."""
    use_fusing_runtime(monkeypatch, range(4, 7))
    graph = chain()
    result = compare(graph, graph, DATA, runtimes=("fusing", "fusing"))
    assert all(row.sqnr == inf for row in result.rows)
    assert [change.model for change in result.optimizer_changes] == ["graph 1", "graph 2"]
    with pytest.raises(CheckError):
        result.check(min_sqnr=20)


@pytest.mark.parametrize("factor", [1, 1 + 1e-6])
def test_rounding_is_not_reported(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    use_fusing_runtime(monkeypatch, range(4, 7), factor=factor)
    assert run_chain(chain(), min_sqnr=60).optimizer_changes == ()


NORM = {"two": 2.0, "eps": 1e-5, "s": RANDOM.normal(size=8), "t": RANDOM.normal(size=8)}


def write_norm(path: Path, subtraction: Sequence[str], division: Sequence[str], more: str = "") -> Path:
    """Write a layer norm, and a second output of its inputs."""
    nodes = [
        NODE("ReduceMean", ["x"], ["mu"], axes=[-1]),
        NODE("Sub", subtraction, ["c"]),
        NODE("Pow", ["c", "two"], ["sq"]),
        NODE("ReduceMean", ["sq"], ["v"], axes=[-1]),
        NODE("Add", ["v", "eps"], ["ve"]),
        NODE("Sqrt", ["ve"], ["sd"]),
        NODE("Div", division, ["n"]),
        NODE("Mul", ["n", "s"], ["m"]),
        NODE("Add", ["m", "t"], ["y"]),
        *([NODE("Mul", ["x", "s"], [more])] if more else []),
    ]
    outputs = [(name, FLOAT, [4, 8]) for name in ("y", more) if name]
    onnx.save(make_model(nodes, [("x", FLOAT, [4, 8])], outputs, NORM), path)
    return path


def quantize(source: str, result: str, scale: str, zero: str) -> list[onnx.NodeProto]:
    return [
        NODE("QuantizeLinear", [source, scale, zero], [f"{result}_q"]),
        NODE("DequantizeLinear", [f"{result}_q", scale, zero], [result]),
    ]


def write_int8(path: Path, op: str, weight: int, *, is_output_quantized: bool = True) -> Path:
    """Write an int8 layer, in which 2 * 255 * 127 exceeds int16 on processors without VNNI."""
    size = (4, 16, 3, 3) if op == "Conv" else (144, 4)
    sizes = ([1, 16, 8, 8], [1, 4, 6, 6]) if op == "Conv" else ([2, 144], [2, 4])
    signs = RANDOM.choice([1, 1, 1, -1], size)
    constants = {
        "w": (weight * signs).astype(np.int8),
        "sw": 1 / 127,
        "zw": np.int8(0),
        "sx": 1 / 255,
        "zx": np.uint8(0),
        "sy": 144 / 255,
    }
    nodes = [
        *quantize("x", "xd", "sx", "zx"),
        NODE("DequantizeLinear", ["w", "sw", "zw"], ["wd"]),
        NODE(op, ["xd", "wd"], ["c" if is_output_quantized else "y"]),
        *(quantize("c", "y", "sy", "zx") if is_output_quantized else []),
    ]
    onnx.save(make_model(nodes, [("x", FLOAT, sizes[0])], [("y", FLOAT, sizes[1])], constants), path)
    return path


def require_change(path: Path, feeds: Array) -> None:
    """Skip the test if ONNX Runtime computes a model correctly here."""
    outputs = [
        open_session(path, "onnxruntime", SessionOptions(optimized=is_optimized)).run({"x": feeds})["y"]
        for is_optimized in (False, True)
    ]
    if np.abs(outputs[0] - outputs[1]).max() < 0.05 * np.abs(outputs[0]).max():
        pytest.skip("this ONNX Runtime computes the model correctly on this processor")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("subtraction", "division"), [(("mu", "x"), ("c", "sd")), (("x", "mu"), ("sd", "c")), (("mu", "x"), ("sd", "c"))]
)
@pytest.mark.parametrize("more", ["", "z"])
def test_a_norm_that_is_fused_wrongly_is_found(
    tmp_path: Path, subtraction: Sequence[str], division: Sequence[str], more: str
) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    path = write_norm(tmp_path / "norm.onnx", subtraction, division, more)
    data = RANDOM.normal(size=(4, 4, 8)).astype(np.float32)
    require_change(path, data[0])
    result = compare(path, path, list(data), runtimes=("reference", "onnxruntime"))
    (change,) = result.optimizer_changes
    assert (change.first, change.last, change.ops) == ("mu", "y", ("ReduceMean", "Add"))
    assert change.outputs == ("y",)
    sqnr = {row.name: row.sqnr for row in result.rows}
    assert sqnr.pop("y") < 10
    assert min(sqnr.values()) > 80


@pytest.mark.engine
def test_the_command_fails_for_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    path = write_norm(tmp_path / "norm.onnx", ("mu", "x"), ("c", "sd"))
    data = RANDOM.normal(size=(4, 4, 8)).astype(np.float32)
    require_change(path, data[0])
    np.savez(tmp_path / "x.npz", x=data)
    arguments = ["compare", str(path), str(path), "--data", str(tmp_path / "x.npz")]
    assert main([*arguments, "--min-sqnr", "20"]) == 1
    captured = capsys.readouterr()
    assert "between mu (ReduceMean) and y (Add)" in captured.out
    assert "which is below 20 dB" in captured.err
    assert main([*arguments, "--json"]) == 0
    change = json.loads(capsys.readouterr().out)["optimizer_changes"][0]
    assert (change["first"], change["last"], change["outputs"]) == ("mu", "y", ["y"])
    assert change["runtime"]["name"] == "onnxruntime"


@pytest.mark.engine
@pytest.mark.parametrize(("op", "is_output_quantized"), [("Conv", True), ("MatMul", True), ("MatMul", False)])
def test_int8_sums_that_saturate_are_found(tmp_path: Path, op: str, is_output_quantized: bool) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    path = write_int8(tmp_path / "int8.onnx", op, 127, is_output_quantized=is_output_quantized)
    shape = (1, 16, 8, 8) if op == "Conv" else (2, 144)
    data = RANDOM.uniform(0.9, 1, (2, *shape)).astype(np.float32)
    require_change(path, data[0])
    result = compare(path, path, list(data), runtimes=ONNXRUNTIME)
    assert len(result.optimizer_changes) == 2
    change = result.optimizer_changes[0]
    layer = "y" if not is_output_quantized else "c"
    assert layer in (change.first, change.last)
    with pytest.raises(CheckError, match="int8\\.onnx"):
        result.check(min_sqnr=40)


@pytest.mark.engine
@pytest.mark.parametrize("op", ["Conv", "MatMul"])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_rounding_of_int8_kernels_is_not_reported(tmp_path: Path, op: str, runtime: str) -> None:
    pytest.importorskip(runtime, reason=f"pip install {runtime}")
    path = write_int8(tmp_path / "int8.onnx", op, 60)
    assert compare(path, path, runtimes=(runtime, runtime), limit=2, min_sqnr=40).optimizer_changes == ()


@pytest.mark.engine
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorflow", "litert"])
def test_digits_have_no_changes(runtime: str) -> None:
    if not find_runtime(runtime).available().ok:
        pytest.skip(f"{runtime} is not installed")
    assert compare("digits", "digits", runtimes=(runtime, runtime), limit=1).optimizer_changes == ()
