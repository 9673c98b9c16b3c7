"""What a graph is, before anything is done to it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from quantkit.formats import onnx
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.model import as_model
from quantkit.ops.macs import multiply_adds
from quantkit.ops.memory import Peak, peak_memory
from quantkit.ops.onnx import shapes as onnx_ops
from quantkit.ops.shape_inference import infer_shapes

BATCH_NORMS = frozenset({"BatchNormWithGlobalNormalization", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
PASSING = frozenset({"Identity", "CheckNumerics", "StopGradient"})
CLASSIC_EIGHT_BIT = frozenset({"QuantizedConv2D", "QuantizedMatMul"})
ALREADY = "it is in 8 bits already"
ONNX_EIGHT_BIT = frozenset({"QuantizeLinear", "QLinearConv", "ConvInteger", "MatMulInteger"})

# What an ONNX file says of a value.
_Stated = tuple[DType | None, Shape]


@dataclass(frozen=True)
class End:
    """An input or output: its edge, element type where known, and shape as far as known."""

    name: str
    op: str
    dtype: DType | None
    shape: Shape

    def to_json(self) -> dict[str, Any]:
        dims = self.shape.dims
        return {
            "name": self.name,
            "op": self.op,
            "dtype": self.dtype.value if self.dtype else None,
            "shape": None if dims is None else list(dims),
        }


@dataclass(frozen=True)
class Summary:
    """Facts about a graph.

    Attributes:
        num_nodes: nodes of the main graph.
        inputs, outputs: its ends.
        op_counts: nodes of each op, most first.
        num_parameters: elements of all constants that are numbers, as the classic tool counts them.
        num_bytes: bytes of all constants.
        num_controls: control edges.
        multiply_adds: of one run with the inputs' shapes (unknown batch: 1); None where a shape is unknown.
        peak: the most that tensors take in such a run beside the constants, about; None where it is not known.
        producer: GraphDef version of the program that wrote it.
        next_step: what to do with it, and why.
    """

    num_nodes: int
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    op_counts: Mapping[str, int]
    num_parameters: int
    num_bytes: int
    num_controls: int
    multiply_adds: int | None
    producer: int
    next_step: str
    peak: Peak | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": self.num_nodes,
            "inputs": [end.to_json() for end in self.inputs],
            "outputs": [end.to_json() for end in self.outputs],
            "op_counts": dict(self.op_counts),
            "parameters": self.num_parameters,
            "constant_bytes": self.num_bytes,
            "control_edges": self.num_controls,
            "multiply_adds": self.multiply_adds,
            "activation_peak_bytes": self.peak.num_bytes if self.peak else None,
            "activation_peak_node": self.peak.node if self.peak else None,
            "tensors_of_unknown_size": self.peak.num_unknown if self.peak else None,
            "producer": self.producer,
            "next_step": self.next_step,
        }

    def __str__(self) -> str:
        return "\n".join(f"{label:<14} {text}" for label, text in (*self.rows, ("next", self.next_step)))

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What there is to say, each with its label; the next step is not among them."""
        adds = (
            "unknown (a shape is not static, or there are loops or calls)"
            if self.multiply_adds is None
            else f"{self.multiply_adds / 1e6:,.1f} million"
        )
        return (
            ("inputs", ", ".join(map(_end_text, self.inputs)) or "none found"),
            ("outputs", ", ".join(map(_end_text, self.outputs)) or "none found"),
            ("nodes", f"{self.num_nodes:,}, {self.num_controls} control edges"),
            ("ops", ", ".join(f"{count} {op}" for op, count in self.op_counts.items())),
            ("parameters", f"{self.num_parameters:,}, {self.num_bytes / 1e6:,.2f} MB of constants"),
            ("multiply-adds", adds),
            ("memory", self._memory),
        )

    @property
    def _memory(self) -> str:
        if self.peak is None:
            return "unknown: no shape is static"
        activations = self.peak.num_bytes / 1e6
        total = self.num_bytes / 1e6 + activations
        unknown = self.peak.num_unknown
        how = "at least" if unknown else "about"
        text = f"{how} {total:,.2f} MB: the constants, and {activations:,.2f} MB of tensors at {self.peak.node}"
        return text + (f"; {unknown} of unknown size are not counted" if unknown else "")


def summarize(model: Any, *, name: str = "") -> Summary:
    """The facts about a graph.

    Args:
        model: the graph to look at, or what `quantkit.load` makes one of.
        name: how the next command calls it; empty: as it is named here, or MODEL.

    Raises:
        GraphError: the graph is not well formed.
        InputError: the file is missing or broken.
    """
    graph = as_model(model).graph
    name = name or (os.fspath(model) if isinstance(model, str | os.PathLike) else "MODEL")
    is_onnx = graph.dialect == onnx.DIALECT
    stated = onnx.value_infos(graph) if is_onnx else {}
    known_shapes = {edge: shape for edge, (_, shape) in stated.items()}
    shapes, of_one = infer_shapes(graph, known_shapes), infer_shapes(with_batch_one(graph), known_shapes)
    count = onnx_ops.multiply_adds if is_onnx else multiply_adds
    counted = [count(node, of_one) for node in graph.nodes.values()]
    known = [count for count in counted if count is not None]
    constants = [value for node in graph.nodes.values() if isinstance(value := node.attrs.get("value"), Tensor)]
    return Summary(
        num_nodes=len(graph),
        inputs=tuple(_end(graph, edge, shapes, stated) for edge in graph.inputs),
        outputs=tuple(_end(graph, edge, shapes, stated) for edge in graph.outputs),
        op_counts=graph.op_counts,
        num_parameters=sum(one.num_elements for one in constants if one.dtype is not DType.STRING),
        num_bytes=sum(one.num_bytes for one in constants),
        num_controls=sum(len(node.controls) for node in graph.nodes.values()),
        multiply_adds=sum(known) if len(known) == len(counted) else None,
        producer=graph.versions.producer,
        next_step=_next_step(graph, name),
        peak=peak_memory(graph, of_one, {edge: dtype for edge, (dtype, _) in stated.items()}),
    )


def with_batch_one(graph: Graph) -> Graph:
    """The graph with 1 for an unknown batch: multiply-adds are those of one example."""
    nodes = []
    for node in graph.nodes.values():
        shape = node.attrs.get("shape")
        if node.op == "Placeholder" and isinstance(shape, Shape) and shape.dims and shape.dims[0] is None:
            node = node.with_attrs(shape=Shape((1, *shape.dims[1:])))
        nodes.append(node)
    return graph.with_nodes(nodes)


def _end(graph: Graph, edge: Edge, shapes: Mapping[Edge, Shape], stated: Mapping[Edge, _Stated]) -> End:
    node, shape = graph[edge.node], shapes.get(edge, Shape(None))
    if edge in stated:
        return End(onnx.value_name(node, edge.port), node.op, stated[edge][0], shape)
    dtype = next((node.attrs[key] for key in ("dtype", "T", "DstT", "out_type") if key in node.attrs), None)
    return End(str(edge), node.op, dtype if isinstance(dtype, DType) else None, shape)


def _end_text(end: End) -> str:
    dtype = end.dtype.value if end.dtype else "?"
    return f"{end.name} ({end.op}, {dtype}, {end.shape})"


def is_eight_bit(graph: Graph) -> bool:
    """Whether layers of the graph compute on 8-bit codes."""
    return any(op in ONNX_EIGHT_BIT or op.lstrip("_").startswith("Quantized") for op in graph.op_counts)


def _next_step(graph: Graph, name: str) -> str:
    counts, name = graph.op_counts, quote(name)
    if graph.dialect == onnx.DIALECT:
        return _next_step_of_onnx(graph, name)
    if CLASSIC_EIGHT_BIT & counts.keys():
        return f"quantkit benchmark {name}: classic 8-bit ops run on slow kernels on x86; compare with the float graph"
    if is_eight_bit(graph):
        return f"quantkit benchmark {name}: {ALREADY}"
    norms = sum(counts.get(op, 0) for op in BATCH_NORMS)
    passing = sum(node.op in PASSING for node in graph.nodes.values() if node.name not in graph.endpoint_names)
    if norms or passing:
        what = " and ".join(
            f"{count} {kind}{'s' * (count > 1)}"
            for count, kind in ((norms, "batch norm"), (passing, "passing node"))
            if count
        )
        return f"quantkit transform {name} -o OUT.pb --recipe inference: {what} can go"
    return f"quantkit benchmark {name}: nothing is left to fold"


def _next_step_of_onnx(graph: Graph, name: str) -> str:
    passing = sum(
        node.op in ("Identity", "Dropout") for node in graph.nodes.values() if node.name not in graph.endpoint_names
    )
    if is_eight_bit(graph):
        return f"quantkit benchmark {name}: {ALREADY}"
    if passing:
        recipe = "remove_nodes(op=Identity, op=Dropout, max_inputs=3) merge_duplicate_nodes strip_unused_nodes"
        what = f"{passing} passing node{'s' * (passing > 1)}"
        return f"quantkit transform {name} -o OUT.onnx --transforms '{recipe}': {what} can go"
    return f"quantkit quantize {name} -o OUT.onnx --calibration PICTURES: 8 bits make it smaller and faster"
