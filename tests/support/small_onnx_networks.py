"""Small ONNX networks of a few nodes, quantized for the target ``onnx`` and run in ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Graph
from quantkit.quantization import Plan, Scheme, annotate, calibrate, convert, prepare

pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IMAGE, ROWS = (1, 8, 12, 12), (1, 6, 16)


class Network:
    """ONNX model under construction: nodes with constants as NumPy arrays."""

    def __init__(self, *dims: int | str, opset: int = OPSET, domains: tuple[str, ...] = ()) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs = {"x": dims}
        self.opset = opset
        self.domains = domains
        self.random = np.random.default_rng(len(dims))

    def add(self, op: str, *inputs: Any, name: str = "", outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        """Add a node; return its output name, or their list."""
        name = name or f"{op.lower()}_{len(self.nodes)}"
        names = [name] if outputs == 1 else [f"{name}_{index}" for index in range(outputs)]
        inputs = tuple(value if isinstance(value, str) else self.constant(value) for value in inputs)
        self.nodes.append(helper.make_node(op, inputs, names, name=f"node_{name}", domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weights(self, *shape: int) -> np.ndarray:
        values: np.ndarray = self.random.normal(0, 1, shape) / np.sqrt(np.prod(shape[1:]))
        return values.astype(np.float32)

    def conv(self, source: str, channels: int = 8, size: int = 3, **attrs: Any) -> str:
        kernel = self.weights(channels, 8 // attrs.get("group", 1), *(size,) * (len(self.inputs["x"]) - 2))
        pads = [size // 2] * 2 * (len(self.inputs["x"]) - 2)
        return str(self.add("Conv", source, kernel, self.weights(channels), pads=pads, **attrs))

    def model(self, *outputs: str) -> Any:
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in self.inputs.items()]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "network", infos, results, self.constants)
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in self.domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="test", doc_string="network")
        return onnx.shape_inference.infer_shapes(model)


def load(model: Any) -> Graph:
    return onnx_format.decode(model.SerializeToString())


def samples(network: Network, count: int = 8) -> list[np.ndarray]:
    dims = [size if isinstance(size, int) else 1 for size in network.inputs["x"]]
    generator = np.random.default_rng(7)
    return [generator.normal(0, 1, dims).astype(np.float32) for _ in range(count)]


def quantize(graph: Graph, data: list[np.ndarray], **fields: Any) -> tuple[Plan, Graph]:
    scheme = Scheme.for_target("onnx", **fields)
    prepared = prepare(graph, scheme)
    plan = annotate(prepared, scheme)
    return plan, convert(prepared, plan, calibrate(prepared, plan, data, runtime="onnxruntime"))


def run(data: bytes, feeds: dict[str, np.ndarray], optimized: Path | None = None) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def sqnr(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the signal-to-quantization-noise ratio in dB."""
    return float(10 * np.log10((expected**2).mean() / max(((expected - actual) ** 2).mean(), 1e-20)))
