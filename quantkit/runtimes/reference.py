"""The NumPy runtime: always installed, slow, and simple enough to serve as the reference.

It runs the nodes of a graph in topological order with the kernels of its dialect, `quantkit.ops.kernels` or
`quantkit.ops.onnx.kernels`, those of a function at each call of it, and frees each array after its last consumer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import GraphError, UnavailableError, did_you_mean
from quantkit.formats import onnx
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.limits import current_limits
from quantkit.ops.kernels import evaluate, has_kernel
from quantkit.ops.onnx import kernels as onnx_kernels
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.semantics import CALL_OPS
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.runtimes.availability import Availability, no_telemetry
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.runtime import Runtime
from quantkit.runtimes.session import RuntimeVersion, Session, SessionOptions, TensorInfo

# Functions nested deeper than this are taken to be recursive.
MAX_CALL_DEPTH = 64
_OMITTED = Edge(onnx.ABSENT.name)


def _available() -> Availability:
    return Availability.yes(f"NumPy {np.__version__}")


def _open(model: Graph | Path, options: SessionOptions) -> Session:
    """Open a frozen TensorFlow graph or an ONNX graph; inputs and outputs may be any of its tensors.

    Raises:
        UnavailableError: an op has no kernel.
        GraphError: an input or output is not a tensor of the graph, or a placeholder has no value.
    """
    assert isinstance(model, Graph)
    shapes = infer_shapes(model)
    types = infer_types(model) if model.dialect == onnx.DIALECT else {}
    outputs = tuple(dict.fromkeys(model.outputs))
    program = _ExecutionPlan.of(model, outputs)
    lines = tuple(f"{step.node.name} ({step.node.op}): CPU" for step in program.steps)
    return FunctionSession(
        RuntimeVersion(RUNTIME.name, np.__version__, "CPU"),
        tuple(_info(model, edge, shapes, types) for edge in model.inputs),
        tuple(_info(model, edge, shapes, types) for edge in outputs),
        program.run,
        placement=lambda: lines if options.log_placement else (),
    )


@dataclass(frozen=True)
class _Step:
    """One node, the edges whose last consumer it is, and the program of the function that it calls, if any."""

    node: Node
    released: tuple[Edge, ...]
    function: "_ExecutionPlan | None"


# (node, values of its inputs) -> values of its outputs; None for an omitted input of an ONNX node.
_Evaluate = Callable[[Node, Sequence[Any]], tuple[Array, ...]]


@dataclass(frozen=True)
class _ExecutionPlan:
    """Nodes of a graph in topological order.

    Attributes:
        inputs: input edges.
        outputs: output edges.
        constants: values of constant edges.
        steps: the other nodes.
        evaluate: function that computes a node of the graph's dialect.
    """

    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    constants: Mapping[Edge, Array]
    steps: tuple[_Step, ...]
    evaluate: _Evaluate

    @classmethod
    def of(
        cls, graph: Graph, outputs: tuple[Edge, ...], controls: Sequence[str] = (), depth: int = 0
    ) -> "_ExecutionPlan":
        required = _required_nodes(graph, outputs, controls)
        nodes = [graph[name] for name in graph.order if name in required and name]
        _check_nodes(nodes, onnx_kernels.has_kernel if graph.dialect == onnx.DIALECT else has_kernel)
        # A session may run in another thread, in which these limits are not in effect.
        compute: _Evaluate = partial(evaluate, max_bytes=current_limits().max_constant_bytes)
        if graph.dialect == onnx.DIALECT:
            compute = partial(onnx_kernels.evaluate, opset=onnx.opsets(graph).get("", onnx.OPSET))
        constants = {Edge(node.name): compute(node, ())[0] for node in nodes if node.is_constant}
        steps: list[_Step] = []
        in_use = {*outputs, *constants, _OMITTED}
        for node in reversed([node for node in nodes if not node.is_constant]):
            released = tuple(edge for edge in dict.fromkeys(node.inputs) if edge not in in_use)
            in_use.update(released)
            steps.append(_Step(node, released, _function_program(graph, node, depth)))
        return cls(graph.inputs, outputs, constants, tuple(reversed(steps)), compute)

    def run(self, feeds: Sequence[Array]) -> list[Array]:
        """Return the outputs for one array per input, as copies that the caller may change."""
        values = {edge: _encode_strings(array) for edge, array in zip(self.inputs, feeds, strict=True)}
        arrays: dict[Edge, Any] = {**self.constants, **values, _OMITTED: None}
        for step in self.steps:
            missing = next((edge for edge in step.node.inputs if edge not in arrays), None)
            if missing is not None:
                raise GraphError(f"node {step.node.name!r} consumes {str(missing)!r}, which no node computes")
            inputs = [arrays[edge] for edge in step.node.inputs]
            results = step.function.run(inputs) if step.function else self.evaluate(step.node, inputs)
            for port, array in enumerate(results):
                # Another output of this node may be an input of the graph, whose array is kept.
                arrays.setdefault(Edge(step.node.name, port), array)
            for edge in step.released:
                del arrays[edge]
        return [arrays[edge].copy() for edge in self.outputs]


def _function_program(graph: Graph, node: Node, depth: int) -> _ExecutionPlan | None:
    """Return the program of the function that a node calls; None if the node calls no function."""
    name = node.attrs.get("f")
    if node.op not in CALL_OPS or not isinstance(name, FunctionName):
        return None
    if name.name not in graph.library:
        raise GraphError(f"node {node.name!r} calls {name.name!r}, which is not in the library of the graph")
    if depth == MAX_CALL_DEPTH:
        raise UnavailableError(f"node {node.name!r}: {RUNTIME.title} does not run recursive functions")
    function = graph.library[name.name]
    body = function.graph.with_(library=graph.library)
    return _ExecutionPlan.of(body, body.outputs, tuple(function.controls.values()), depth + 1)


def _required_nodes(graph: Graph, outputs: tuple[Edge, ...], controls: Sequence[str]) -> set[str]:
    """Return the nodes that the outputs and the nodes ``controls`` depend on, up to the inputs."""
    input_edges, input_nodes = set(graph.inputs), graph.input_names
    required: set[str] = set()
    stack = [*controls, *(edge.node for edge in outputs if edge not in input_edges)]
    while stack:
        name = stack.pop()
        if name in required:
            continue
        if name not in graph:
            raise GraphError(
                f"node {name!r}, an input of a node or an output of the graph, is not in the graph",
                hint=did_you_mean(name, graph.nodes),
            )
        required.add(name)
        stack.extend(edge.node for edge in graph[name].inputs if edge not in input_edges)
        stack.extend(control for control in graph[name].controls if control not in input_nodes)
    return required


def _check_nodes(nodes: Sequence[Node], has_kernel: Callable[[str], bool]) -> None:
    """Check that each node has a kernel and each placeholder a value, before the first node runs."""
    for node in nodes:
        if node.op == "Placeholder":
            raise GraphError(
                f"placeholder {node.name!r} is required and is not an input",
                hint=f"add it to --inputs: --inputs={node.name}",
            )
    missing = [node for node in nodes if not has_kernel(node.op) and node.op not in CALL_OPS]
    if missing:
        first = missing[0]
        others = sorted({node.op for node in missing} - {first.op})
        also = f", nor for {', '.join(others)}" if others else ""
        raise UnavailableError(
            f"node {first.name!r}: {RUNTIME.title} has no kernel for {first.op}{also}",
            hint="run the graph in TensorFlow (--runtime tensorflow), or use a tensor after the node as input",
        )


def _info(graph: Graph, edge: Edge, shapes: Mapping[Edge, Shape], onnx_types: Mapping[Edge, DType]) -> TensorInfo:
    if edge.node not in graph:
        raise GraphError(
            f"{str(edge)!r}, an input or output, is not in the graph", hint=did_you_mean(edge.node, graph.nodes)
        )
    shape = shapes.get(edge, UNKNOWN)
    if graph.dialect == onnx.DIALECT:
        return TensorInfo(onnx.value_name(graph[edge.node], edge.port), onnx_types.get(edge, DType.FLOAT), shape)
    return TensorInfo(str(edge), _dtype(graph[edge.node], edge), shape)


def _dtype(node: Node, edge: Edge) -> DType:
    dtypes = output_dtypes(node)
    if edge.port >= len(dtypes):
        raise GraphError(f"{str(edge)!r} is not a tensor: node {node.name!r} ({node.op}) has {len(dtypes)} outputs")
    dtype = dtypes[edge.port]
    if dtype is None:
        raise GraphError(
            f"the element type of {str(edge)!r} is unknown: node {node.name!r} ({node.op}) does not define it",
            hint=f"add the type attribute to the node, for example T=float: {node.op} requires it",
        )
    return dtype


def _encode_strings(array: Array) -> Array:
    """Return strings as object arrays of bytes, the type that kernels take."""
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "S" else array


RUNTIME = Runtime(
    name="reference",
    title="the NumPy runtime",
    available=_available,
    open_model=_open,
    dialects=("tensorflow", "onnx"),
    native_dialect="tensorflow",
    keeps_tensors=True,
    has_threads=False,
    variables={"OMP_NUM_THREADS": "sets the threads of NumPy's matrix products"},
    describe_telemetry=no_telemetry,
    priority=0,
)
