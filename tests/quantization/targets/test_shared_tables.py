"""Embeddings whose table is also the weights of the output projection: stored once, in int8."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ir.text import from_text
from quantkit.recipes import rewrite

RANDOM = np.random.default_rng(0)


@pytest.mark.engine
@pytest.mark.parametrize("ids_shape", [(1, 7), (1,)])
@pytest.mark.parametrize("projection", ["transpose", "gemm"])
def test_a_tied_embedding_is_stored_once(projection: str, ids_shape: tuple[int, ...], tmp_path: Path) -> None:
    package = pytest.importorskip("onnx")
    if projection == "gemm" and len(ids_shape) > 1:
        pytest.skip("Gemm takes matrices")
    make, info = package.helper.make_node, package.helper.make_tensor_value_info
    table = RANDOM.standard_normal((1000, 32)).astype(np.float32)
    weights = (RANDOM.standard_normal((32, 32)) * 0.2).astype(np.float32)
    last: list[Any] = [make("Gemm", ["r", "E"], ["y"], transB=1)]
    if projection == "transpose":
        last = [make("Transpose", ["E"], ["t"], perm=[1, 0]), make("MatMul", ["r", "t"], ["y"])]
    graph = package.helper.make_graph(
        [make("Gather", ["E", "ids"], ["e"]), make("MatMul", ["e", "w"], ["h"]), make("Relu", ["h"], ["r"]), *last],
        "g",
        [info("ids", 7, ids_shape)],
        [info("y", 1, None)],
        [package.numpy_helper.from_array(value, name) for name, value in {"E": table, "w": weights}.items()],
    )
    model = package.helper.make_model(graph, opset_imports=[package.helper.make_opsetid("", 17)], ir_version=8)
    package.save(model, tmp_path / "tied.onnx")
    samples = RANDOM.integers(0, 1000, (24, *ids_shape[1:]))
    report = qk.quantize(tmp_path / "tied.onnx", samples, runs=0, output=tmp_path / "q.onnx").report
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 25
    graph = qk.load(tmp_path / "q.onnx").graph
    sizes = [node.value for node in graph.nodes.values() if node.is_constant and node.value.num_elements == table.size]
    assert [value.dtype for value in sizes] == [DType.INT8]
    assert report.num_bytes < 0.5 * report.float_num_bytes


@pytest.mark.engine
def test_large_tables_are_stored_in_int8(tmp_path: Path) -> None:
    package = pytest.importorskip("onnx")
    make, info = package.helper.make_node, package.helper.make_tensor_value_info
    sizes = np.geomspace(0.01, 10, 2000)[:, None]
    arrays = {"E": RANDOM.standard_normal((2000, 32)) * sizes, "P": RANDOM.standard_normal((16, 32))}
    arrays |= {"w": RANDOM.standard_normal((32, 8)), "v": RANDOM.standard_normal((32, 8))}
    nodes = [make("Gather", ["E", "ids"], ["e"]), make("Gather", ["P", "positions"], ["p"]), make("Add", "ep", ["s"])]
    nodes += [make("Gather", ["E", "positions"], ["f"]), make("MatMul", ["f", "v"], ["g"])]
    nodes += [make("MatMul", ["s", "w"], ["h"]), make("Add", ["h", "g"], ["y"])]
    graph = package.helper.make_graph(
        nodes,
        "g",
        [info("ids", 7, (1, 7)), info("positions", 7, (1, 7))],
        [info("y", 1, (1, 7, 8))],
        [package.numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()],
    )
    model = package.helper.make_model(graph, opset_imports=[package.helper.make_opsetid("", 17)], ir_version=8)
    package.save(model, tmp_path / "tables.onnx")
    samples = [
        {"ids": RANDOM.integers(0, 2000, (1, 7)), "positions": np.arange(7, dtype=np.int64)[None]} for _ in range(24)
    ]
    options: dict[str, Any] = {"runs": 0, "output": tmp_path / "q.onnx"}
    result = qk.quantize(tmp_path / "tables.onnx", samples, save_plan=tmp_path / "plan.json", **options)
    decisions = {decision.unit: decision for decision in result.plan.decisions}
    assert {name: decisions[name].precision for name in "efp"} == {"e": "int8", "f": "int8", "p": "float"}
    written = qk.load(tmp_path / "q.onnx").graph
    values = [node.value for node in written.nodes.values() if node.is_constant]
    assert [value.dtype for value in values if value.num_elements == arrays["E"].size] == [DType.INT8]
    assert result.report.accuracy.sqnr is not None
    assert result.report.accuracy.sqnr.worst > 30
    again = qk.quantize(tmp_path / "tables.onnx", samples, plan=tmp_path / "plan.json", **options)
    assert again.plan == result.plan
    assert qk.load(tmp_path / "q.onnx").graph.nodes.keys() == written.nodes.keys()
    # One scale for the whole table would lose the small rows.
    table = next(value.array for value in values if value.num_elements == arrays["E"].size)
    assert np.abs(table).max(axis=1).min() == 127


# Nodes before and after a dense layer t -> r; "u" is the transposed table of the projection.
PROJECTION = "u = Transpose({}, perm=[1, 0])\ny = MatMul(r, u)"
TIED = {
    "columns": ("e = Gather(Et, ids, axis=1)\nt = Transpose(e, perm=[1, 2, 0])", "y = MatMul(r, Et)"),
    "einsum": ("t = Gather(E, ids)", 'y = Einsum(r, E, equation="btd,vd->btv")'),
    "scale": ("g = Gather(E, ids)\ns = Mul(g, scale)\nt = Add(s, p)", PROJECTION.format("E")),
    "twice": ("g = Gather(E, ids)\ni = Gather(E, other)\nt = Add(g, i)", PROJECTION.format("E")),
    "half": ("F = Cast(H, to=1)\nt = Gather(F, ids)", PROJECTION.format("F")),
}


def make_tied(name: str, num_rows: int = 1000) -> Graph:
    table = RANDOM.standard_normal((num_rows, 32)).astype(np.float32)
    arrays = {"E": table, "Et": table.T.copy(), "H": table.astype(np.float16), "other": np.arange(7)[None]}
    arrays |= {"w": (RANDOM.standard_normal((32, 32)) * 0.2).astype(np.float32), "scale": np.array(5.6, np.float32)}
    arrays["p"] = RANDOM.standard_normal((7, 32)).astype(np.float32)
    nodes = "\nh = MatMul(t, w)\nr = Relu(h)\n".join(TIED[name])
    graph = from_text(f"dialect: onnx\ninputs: ids\noutputs: y\nids = Placeholder[1x7](dtype=int64)\n{nodes}")
    used = {edge.node for node in graph.nodes.values() for edge in node.inputs}
    constants = [Node(key, "Constant", attrs={"value": Tensor.of(arrays[key])}) for key in arrays if key in used]
    output = onnx_format.header({"y": (DType.FLOAT, Shape((1, 7, num_rows)))}, opset=17)
    return graph.with_nodes([*constants, *graph.nodes.values()]).with_(extra=output)


@pytest.mark.engine
@pytest.mark.parametrize("name", TIED)
def test_a_table_with_other_uses_is_stored_once(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    samples = RANDOM.integers(0, 1000, (16, 7))
    report = qk.quantize(make_tied(name), samples, runs=0, output=tmp_path / "q.onnx").report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 25
    graph = qk.load(tmp_path / "q.onnx").graph
    tables = [node.value for node in graph.nodes.values() if node.is_constant and node.value.num_elements == 32_000]
    assert [value.dtype for value in tables] == [DType.INT8]


@pytest.mark.parametrize("name", ["scale", "twice"])
def test_transforms_store_a_table_once(name: str) -> None:
    """Folding its transpose would store it twice; the quantization folds it nevertheless."""
    graph = make_tied(name, 9000)
    before, after = (len(onnx_format.encode(each)) for each in (graph, qk.transform(graph, "inference").graph))
    assert after < 1.01 * before
    assert len(onnx_format.encode(rewrite(graph, "fold_constants(copies=true)"))) > 1.9 * before


@pytest.mark.engine
def test_layers_that_share_weights_along_other_axes_are_int8() -> None:
    package = pytest.importorskip("onnx")
    make, info = package.helper.make_node, package.helper.make_tensor_value_info
    weights = (RANDOM.standard_normal((32, 32)) * 0.2).astype(np.float32)
    graph = package.helper.make_graph(
        [make("MatMul", ["x", "w"], ["a"]), make("Relu", ["a"], ["b"]), make("Gemm", ["b", "w"], ["y"], transB=1)],
        "g",
        [info("x", 1, (4, 32))],
        [info("y", 1, (4, 32))],
        [package.numpy_helper.from_array(weights, "w")],
    )
    model = package.helper.make_model(graph, opset_imports=[package.helper.make_opsetid("", 17)], ir_version=8)
    report = qk.quantize(model, RANDOM.standard_normal((16, 4, 32)).astype(np.float32), runs=0).report
    assert report.census.int8_fraction == 1
    assert report.accuracy.sqnr is not None
    assert report.accuracy.sqnr.worst > 25


def table_graph(*, other_use: bool) -> Graph:
    """Return a Gather of a large table and a product, and optionally a second use of the table."""
    package = pytest.importorskip("onnx")
    make, info = package.helper.make_node, package.helper.make_tensor_value_info
    arrays = {"E": RANDOM.standard_normal((2000, 32)), "w": RANDOM.standard_normal((32, 8))}
    nodes = [make("Gather", ["E", "ids"], ["e"]), make("MatMul", ["e", "w"], ["y"])]
    nodes += [make("Mul", ["E", "factor"], ["s"])] if other_use else []
    graph = package.helper.make_graph(
        nodes,
        "g",
        [info("ids", 7, (1, 7)), *([info("factor", 1, (1,))] if other_use else [])],
        [info("y", 1, (1, 7, 8)), *([info("s", 1, (2000, 32))] if other_use else [])],
        [package.numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()],
    )
    model = package.helper.make_model(graph, opset_imports=[package.helper.make_opsetid("", 17)], ir_version=8)
    return onnx_format.decode(model.SerializeToString())


@pytest.mark.engine
@pytest.mark.parametrize(
    ("other_use", "options", "is_stored"),
    [
        (False, {}, True),
        (True, {}, False),
        (False, {"target": "tensorrt"}, False),
    ],
)
def test_tables_with_other_uses_stay_float(other_use: bool, options: dict[str, Any], is_stored: bool) -> None:
    messages: list[str] = []
    factor = {"factor": np.ones(1, np.float32)} if other_use else {}
    samples = [{"ids": RANDOM.integers(0, 2000, (1, 7)), **factor} for _ in range(24)]
    result = qk.quantize(table_graph(other_use=other_use), samples, runs=0, on_message=messages.append, **options)
    assert result.plan.tables == (("e",) if is_stored else ())
    assert any("table of e" in message for message in messages) == is_stored
