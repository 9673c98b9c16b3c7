"""The numpy engine: always there, slow, and readable enough to be believed.

It runs TensorFlow graphs node after node with the kernels of `quantkit.ops.kernels`, those of a function where it is
function_names, and drops every array after its last reader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quantkit.errors import GraphError, UnavailableError, did_you_mean
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ops.kernels import evaluate, has_kernel
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.runtimes.session import (
    Availability,
    Engine,
    FunctionSession,
    Session,
    SessionOptions,
    TensorInfo,
    gpu_index,
)


class Reference:
    """The runtime ``reference``."""

    name = "reference"

    def available(self) -> Availability:
        return Availability.yes(f"NumPy {np.__version__}")

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        """Open a frozen TensorFlow graph; inputs and outputs may be any of its tensors.

        NumPy's own threads are set before it loads (OMP_NUM_THREADS), so the options' are not heeded.

        Raises:
            UnavailableError: an op without kernel, which is named; a device or precision it does not have.
            GraphError: an end that is no tensor of the graph, or a placeholder that is not fed.
        """
        if not isinstance(model, Graph) or model.dialect != "tensorflow":
            what = model.name if isinstance(model, Path) else f"one of {model.dialect}"
            raise UnavailableError(f"the numpy engine runs frozen TensorFlow graphs, not {what}")
        if gpu_index(options.device) is not None:
            raise UnavailableError("the numpy engine runs on the processor", hint="use --device cpu")
        if options.precision != "float32":
            raise UnavailableError(
                f"the numpy engine has no {options.precision} arithmetic of its own", hint="use --precision float32"
            )
        shapes = infer_shapes(model)
        outputs = tuple(dict.fromkeys(model.outputs))
        program = _Program.of(model, outputs)
        lines = tuple(f"{step.node.name} ({step.node.op}): CPU" for step in program.steps)
        return FunctionSession(
            Engine(self.name, np.__version__, "CPU"),
            tuple(_info(model, edge, shapes) for edge in model.inputs),
            tuple(_info(model, edge, shapes) for edge in outputs),
            program.run,
            placement=lambda: lines if options.log_placement else (),
        )


CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# More levels of calls than that are a function that calls itself.
DEEPEST_CALLS = 64


@dataclass(frozen=True)
class _Step:
    """One node, the edges that nobody reads after it, and the program of the function it calls, if it calls one."""

    node: Node
    last_read: tuple[Edge, ...]
    called: "_Program | None"


@dataclass(frozen=True)
class _Program:
    """What runs, in order.

    Attributes:
        inputs: edges that are fed.
        outputs: edges that are asked for.
        constants: edges that no feed changes.
        steps: the other nodes.
    """

    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    constants: Mapping[Edge, Array]
    steps: tuple[_Step, ...]

    @classmethod
    def of(cls, graph: Graph, outputs: tuple[Edge, ...], controls: Sequence[str] = (), depth: int = 0) -> "_Program":
        needed = _needed(graph, outputs, controls)
        nodes = [graph[name] for name in graph.order if name in needed]
        _refuse_what_can_not_run(nodes)
        constants = {Edge(node.name): evaluate(node, ())[0] for node in nodes if node.is_constant}
        steps: list[_Step] = []
        kept = {*outputs, *constants}
        for node in reversed([node for node in nodes if not node.is_constant]):
            last_read = tuple(edge for edge in dict.fromkeys(node.inputs) if edge not in kept)
            kept.update(last_read)
            steps.append(_Step(node, last_read, _called(graph, node, depth)))
        return cls(graph.inputs, outputs, constants, tuple(reversed(steps)))

    def run(self, feeds: Sequence[Array]) -> list[Array]:
        """The outputs for one array per input, as copies that the caller may change."""
        fed = {edge: _as_bytes(array) for edge, array in zip(self.inputs, feeds, strict=True)}
        arrays = {**self.constants, **fed}
        for step in self.steps:
            given = [arrays[edge] for edge in step.node.inputs]
            made = step.called.run(given) if step.called else evaluate(step.node, given)
            for port, array in enumerate(made):
                # A node that is needed for one port keeps what is fed for another.
                arrays.setdefault(Edge(step.node.name, port), array)
            for edge in step.last_read:
                del arrays[edge]
        return [arrays[edge].copy() for edge in self.outputs]


def _called(graph: Graph, node: Node, depth: int) -> _Program | None:
    """The program of the function that a node calls; None: it calls none."""
    name = node.attrs.get("f")
    if node.op not in CALLS or not isinstance(name, FunctionName):
        return None
    if name.name not in graph.library:
        raise GraphError(f"node {node.name!r} calls {name.name!r}, which is not in the library of the graph")
    if depth == DEEPEST_CALLS:
        raise UnavailableError(f"node {node.name!r}: the numpy engine runs no functions that call themselves")
    function = graph.library[name.name]
    body = function.graph.with_(library=graph.library)
    return _Program.of(body, body.outputs, tuple(function.controls.values()), depth + 1)


def _needed(graph: Graph, outputs: tuple[Edge, ...], controls: Sequence[str]) -> set[str]:
    """Nodes that must run: what the outputs need, up to the edges that are fed, and some that run in any case."""
    fed, fed_nodes = set(graph.inputs), graph.input_names
    needed: set[str] = set()
    stack = [*controls, *(edge.node for edge in outputs if edge not in fed)]
    while stack:
        name = stack.pop()
        if name in needed:
            continue
        if name not in graph:
            raise GraphError(
                f"{name!r}, which is read or asked for, is not in the graph", did_you_mean(name, graph.nodes)
            )
        needed.add(name)
        stack.extend(edge.node for edge in graph[name].inputs if edge not in fed)
        stack.extend(control for control in graph[name].controls if control not in fed_nodes)
    return needed


def _refuse_what_can_not_run(nodes: Sequence[Node]) -> None:
    """Say at once what would be missing half way."""
    for node in nodes:
        if node.op == "Placeholder":
            raise GraphError(
                f"the placeholder {node.name!r} is needed but not fed", hint=f"add it to --inputs: --inputs={node.name}"
            )
    missing = [node for node in nodes if not has_kernel(node.op) and node.op not in CALLS]
    if missing:
        first = missing[0]
        others = sorted({node.op for node in missing} - {first.op})
        also = f", nor for {', '.join(others)}" if others else ""
        raise UnavailableError(
            f"node {first.name!r}: the numpy engine has no kernel for {first.op}{also}",
            hint="run the graph in TensorFlow (--runtime tensorflow), or feed a tensor behind the node",
        )


def _info(graph: Graph, edge: Edge, shapes: Mapping[Edge, Shape]) -> TensorInfo:
    if edge.node not in graph:
        raise GraphError(
            f"{str(edge)!r}, an input or output, is not in the graph", hint=did_you_mean(edge.node, graph.nodes)
        )
    return TensorInfo(str(edge), _dtype(graph[edge.node], edge), shapes.get(edge, UNKNOWN))


def _dtype(node: Node, edge: Edge) -> DType:
    dtypes = output_dtypes(node)
    if edge.port >= len(dtypes):
        raise GraphError(f"{str(edge)!r} is no tensor: node {node.name!r} ({node.op}) has {len(dtypes)} outputs")
    dtype = dtypes[edge.port]
    if dtype is None:
        raise GraphError(
            f"the element type of {str(edge)!r} is not known: node {node.name!r} ({node.op}) does not say it",
            hint="add_default_attributes may help, or the file is damaged",
        )
    return dtype


def _as_bytes(array: Array) -> Array:
    """Strings as the kernels take them: objects of bytes."""
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(object) if array.dtype.kind == "S" else array


RUNTIME = Reference()
