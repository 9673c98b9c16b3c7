"""Elements that are gathered and scattered in LiteRT, as in ONNX Runtime."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.convert.litert_scatters import replace_scatters
from quantkit.convert.onnx_to_tensorflow import convert
from quantkit.convert.to_litert import save_litert
from quantkit.formats import onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ir.text import from_text
from quantkit.runtimes import find_runtime, open_session

NUM_ROWS = 3
REDUCTIONS = ("none", "add", "mul", "min", "max")


def scatters(dtype: DType, axis: int) -> Graph:
    """Return an ONNX graph that gathers and scatters with each reduction; the first axis is dynamic."""
    inputs = {"x": dtype, "indices": DType.INT64, "updates": dtype}
    sizes = {"x": (None, 5, 4), "indices": (None, 2, 3), "updates": (None, 2, 3)}
    nodes = [
        Node(name, "Placeholder", attrs={"dtype": kind, "shape": Shape(sizes[name])}) for name, kind in inputs.items()
    ]
    edges = tuple(Edge(name) for name in inputs)
    attrs = {"axis": axis}
    nodes += [
        Node("gather", "GatherElements", edges[:2], attrs=attrs),
        *(Node(name, "ScatterElements", edges, attrs={**attrs, "reduction": name.encode()}) for name in REDUCTIONS),
    ]
    outputs = ["gather", *REDUCTIONS]
    infos = {name: (dtype, Shape(None)) for name in outputs}
    return Graph.of(nodes, list(inputs), outputs, dialect="onnx", extra=onnx.header(infos, opset=18))


def samples(dtype: DType, axis: int) -> dict[str, Array]:
    """Return inputs with negative and infinite values, and indices from both ends without repetitions."""
    random = np.random.default_rng(0)
    x = random.integers(-9, 9, (NUM_ROWS, 5, 4)).astype(dtype.numpy)
    updates = random.integers(-9, 0, (NUM_ROWS, 2, 3)).astype(dtype.numpy)
    if dtype.is_float:
        x[:, ::2] = -np.inf
    indices = np.argsort(random.random((NUM_ROWS, 5, 4)), axis)[:, :2, :3]
    indices = np.where(indices % 2, indices - x.shape[axis], indices)
    return {"x": x, "indices": indices, "updates": updates}


@pytest.mark.engine
@pytest.mark.skipif(
    not all(find_runtime(name).available().ok for name in ("litert", "onnxruntime", "tensorflow")),
    reason="LiteRT, ONNX Runtime or TensorFlow is not installed",
)
@pytest.mark.parametrize(("dtype", "axis"), [(DType.FLOAT, 1), (DType.FLOAT, -1), (DType.INT32, 1)])
def test_elements_are_those_of_onnxruntime(dtype: DType, axis: int, tmp_path: Path) -> None:
    graph, feeds = scatters(dtype, axis), samples(dtype, axis)
    save_litert(convert(graph), tmp_path / "a.tflite")
    results = []
    for model, runtime in ((graph, "onnxruntime"), (graph, "reference"), (tmp_path / "a.tflite", "litert")):
        with open_session(model, runtime) as session:
            results.append(session.run(feeds))
    assert not any(np.isnan(array).any() for array in results[0].values())
    for values in results[1:]:
        for name in ("gather", *REDUCTIONS):
            np.testing.assert_array_equal(values[name], results[0][name], err_msg=name)


@pytest.mark.parametrize(
    ("op", "coordinates", "counts"), [("Add", 2, 0), ("Update", 2, 1), ("Max", 1, 1), ("Max", 2, 0)]
)
def test_only_maxima_along_several_axes_stay(op: str, coordinates: int, counts: int) -> None:
    graph = replace_scatters(
        from_text(f"""
            inputs: x, i, u
            outputs: y
            x = Placeholder[4x5](dtype=float)
            i = Placeholder[3x{coordinates}](dtype=int32)
            u = Placeholder[?](dtype=float)
            y = TensorScatter{op}(x, i, u, T=float, Tindices=int32)
        """)
    )
    verify(graph)
    assert graph.op_counts.get("SelectV2", 0) == counts
    assert (f"TensorScatter{op}" in graph.op_counts) == (op == "Max" and coordinates == 2)
