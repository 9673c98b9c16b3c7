"""State of a conversion from TensorFlow to ONNX: new nodes, and the layouts in which each value exists.

The first op that requires NCHW transposes an image. The image stays NCHW until an op or a graph output requires
TensorFlow's layout. Constants are transposed when the file is written.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.shape_inference import UNKNOWN, infer_shapes
from quantkit.ops.tensorflow.signatures import output_dtypes

TO_NCHW, TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
NCHW, PLAIN = "nchw", "plain"

Handler = Callable[["Translator", Node], None]
HANDLERS: dict[str, Handler] = {}


@dataclass(frozen=True)
class Translation:
    """Result of a conversion.

    Attributes:
        graph: graph of dialect ``onnx``; names and layouts of inputs and outputs are those of the TensorFlow graph.
        edges: ONNX edge by TensorFlow edge; the NCHW edge if both layouts exist.
    """

    graph: Graph
    edges: Mapping[Edge, Edge]


@dataclass(frozen=True)
class Loop:
    """One while loop.

    Attributes:
        node: node that takes the initial condition, the initial values of the variables, and the captured values.
        body: body; its inputs are the variables, then the captured values, and its outputs are the condition, then
            the new values of the variables.
        num_variables: number of variables.
        exits: Exit nodes as Identity nodes of the outputs of ``node``.
        condition: nodes of the initial condition.
    """

    node: Node
    body: Graph
    num_variables: int
    exits: Mapping[str, Node]
    condition: tuple[Node, ...]


@dataclass
class Translator:
    """State of one conversion.

    Attributes:
        graph: TensorFlow graph.
        shapes: shape by TensorFlow edge, in TensorFlow's layout.
        nodes: ONNX nodes by name.
        values: ONNX edge by TensorFlow edge and layout.
        absorbed: names of TensorFlow nodes that are part of another node's conversion.
        loops: while loops by the name of their node.
        known_shapes: shapes of the outputs of the loops.
    """

    graph: Graph
    shapes: Mapping[Edge, Shape] = field(init=False)
    nodes: dict[str, Node] = field(default_factory=dict)
    values: dict[tuple[Edge, str], Edge] = field(default_factory=dict)
    absorbed: set[str] = field(default_factory=set)
    loops: Mapping[str, Loop] = field(default_factory=dict)
    known_shapes: Mapping[Edge, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = infer_shapes(self.graph, self.known_shapes)

    def translate(self) -> Translation:
        graph = self.graph
        for edge in graph.inputs:
            self._add_input(edge)
        # ONNX has no control dependencies. The shape input of a transposed convolution becomes padding.
        needed = graph.with_nodes(map(_with_onnx_inputs, graph.nodes.values())).reachable()
        for name in graph.order:
            node = graph[name]
            if name not in needed or name in self.absorbed or node.op == "Const" or self._is_input(node):
                continue
            handler = HANDLERS.get(node.op)
            if handler is None:
                raise conversion_error(node, "the op is not supported")
            try:
                handler(self, node)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise conversion_error(node, f"the node is invalid ({error})") from error
        outputs = [self._add_output(edge) for edge in graph.outputs]
        infos = {str(edge): (self.dtype(edge), self.shape(edge)) for edge in graph.outputs}
        nodes = self._used_nodes()
        converted = Graph.of(
            [*([onnx.ABSENT] if any(Edge("") in node.inputs for node in nodes) else []), *nodes],
            [Edge(str(edge)) for edge in graph.inputs],
            outputs,
            dialect=onnx.DIALECT,
            extra=onnx.header(infos),
        )
        edges = {edge: value for (edge, layout), value in self.values.items() if layout == PLAIN}
        edges |= {edge: value for (edge, layout), value in self.values.items() if layout == NCHW}
        return Translation(converted, edges)

    def _used_nodes(self) -> list[Node]:
        """Return the nodes without unused constants and unused casts of constants.

        A constant can be unused because its consumers use it in another layout.
        """
        num_uses = Counter(edge.node for node in self.nodes.values() for edge in node.inputs)
        num_uses.update(str(edge) for edge in (*self.graph.outputs, *self.graph.inputs))
        unused_casts = [node for node in self.nodes.values() if node.op == "Cast" and not num_uses[node.name]]
        unused = {node.name for node in unused_casts}
        for node in unused_casts:
            num_uses.subtract(edge.node for edge in node.inputs)
        unused |= {node.name for node in self.nodes.values() if node.op == "Constant" and not num_uses[node.name]}
        return [node for node in self.nodes.values() if node.name not in unused]

    def _is_input(self, node: Node) -> bool:
        return node.name in self.graph.input_names and Edge(node.name) in self.graph.inputs

    def _add_input(self, edge: Edge) -> None:
        name = str(edge)
        shape = self.shape(edge)
        self.nodes[name] = Node(name, "Placeholder", attrs={"dtype": self.dtype(edge), "shape": shape})
        self.values[edge, PLAIN] = Edge(name)

    def _add_output(self, edge: Edge) -> Edge:
        """Return the value of a graph output under the name of the output."""
        value = self.plain(edge)
        if onnx.value_name(self.nodes[value.node], value.port) == str(edge):
            return value
        return self.add_node(str(edge), "Identity", [value])

    # Facts about the TensorFlow graph

    def shape(self, edge: Edge) -> Shape:
        """Return the shape in TensorFlow's layout."""
        return self.shapes.get(edge, UNKNOWN)

    def rank(self, edge: Edge) -> int | None:
        return self.shape(edge).rank

    def dtype(self, edge: Edge) -> DType:
        """Return the element type of a value.

        Raises:
            UnavailableError: the type is unknown.
        """
        return dtype_of(self.graph, edge)

    def constant(self, node: Node, slot: int) -> Array:
        """Return the array of a constant input.

        Raises:
            UnavailableError: the input is not constant.
        """
        tensor = self.graph.constant_of(node.inputs[slot]) if slot < len(node.inputs) else None
        if tensor is None:
            raise conversion_error(node, f"input {slot} must be constant")
        return tensor.array

    def is_nchw(self, edge: Edge) -> bool:
        """Return whether a value exists as NCHW."""
        return (edge, NCHW) in self.values

    def single_consumer(self, edge: Edge) -> tuple[Node, int] | None:
        """Return the only consumer and its input index; None for graph outputs or several consumers."""
        uses = self.graph.uses.get(edge, ())
        if len(uses) != 1 or edge in self.graph.outputs or edge.node in self.graph.input_names:
            return None
        return uses[0].node, uses[0].slot

    # Values

    def plain(self, edge: Edge) -> Edge:
        """Return the value in TensorFlow's layout."""
        if (edge, PLAIN) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, PLAIN] = self.add_constant(edge.node, tensor)
            else:
                name = str(edge) if edge in self.graph.outputs else f"{edge}/nhwc"
                source = self.values.get((edge, NCHW))
                if source is None:
                    raise conversion_error(self.graph[edge.node], f"output {edge.port} is not supported")
                self.values[edge, PLAIN] = self.add_node(name, "Transpose", [source], perm=TO_NHWC)
        return self.values[edge, PLAIN]

    def nchw(self, edge: Edge) -> Edge:
        """Return a value of rank 4 as NCHW."""
        if (edge, NCHW) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, NCHW] = self.add_constant(f"{edge.node}/nchw", transpose_tensor(tensor, TO_NCHW))
            else:
                source = self.plain(edge)
                self.values[edge, NCHW] = self.add_node(f"{edge}/nchw", "Transpose", [source], perm=TO_NCHW)
        return self.values[edge, NCHW]

    def add_constant(self, name: str, tensor: Tensor) -> Edge:
        """Return a constant; add it if no node has the name."""
        if name not in self.nodes:
            self.nodes[name] = Node(name, "Constant", attrs={"value": tensor})
        return Edge(name)

    def add_integers(self, name: str, values: Iterable[int]) -> Edge:
        """Add an int64 constant for shapes and axes."""
        while name in self.graph:
            name += "/long"  # TensorFlow's int32 constant may be converted as well
        return self.add_constant(name, Tensor.of(np.array(list(values), np.int64)))

    def add_node(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """Add a node with one output."""
        self.nodes[name] = Node(name, op, tuple(inputs), attrs=attrs)
        return Edge(name)

    def add_intermediate(self, node: Node, suffix: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """Add an intermediate node of the conversion of ``node``, with an unused name."""
        name = f"{node.name}/{suffix}"
        while name in self.nodes or name in self.graph:
            name += "_"
        return self.add_node(name, op, inputs, **attrs)

    def emit(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """Add the producer of the first output of ``node``; keep the node's name if possible."""
        edge = Edge(node.name)
        name = node.name if layout == PLAIN or edge not in self.graph.outputs else f"{node.name}/nchw"
        self.values[edge, layout] = self.add_node(name, op, inputs, **attrs)
        return self.values[edge, layout]

    def in_layout(self, edge: Edge, layout: str) -> Edge:
        return self.nchw(edge) if layout == NCHW else self.plain(edge)

    def image_input(self, node: Node, edge: Edge) -> Edge:
        """Return an image input of a node as NCHW."""
        return self.plain(edge) if is_channels_first(node) else self.nchw(edge)

    def image_layout(self, node: Node) -> str:
        """Return the layout of an image output: PLAIN if the TensorFlow node uses NCHW, else NCHW."""
        return PLAIN if is_channels_first(node) else NCHW


def _with_onnx_inputs(node: Node) -> Node:
    """Remove control dependencies and the shape input of a transposed convolution."""
    return node.with_(inputs=node.inputs[1:] if node.op == "Conv2DBackpropInput" else node.inputs, controls=())


# Hints for ops that a transform folds into their layers.
_FOLDING_HINTS: Mapping[str, str] = {
    "BatchNormWithGlobalNormalization": "run the transform fold_old_batch_norms first, or the recipe inference",
}


def dtype_of(graph: Graph, edge: Edge) -> DType:
    """Return the element type of a value of a TensorFlow graph.

    Raises:
        UnavailableError: the type is unknown.
    """
    node = graph[edge.node]
    dtypes = output_dtypes(node)
    dtype = dtypes[edge.port] if edge.port < len(dtypes) else None
    if dtype is None:
        attr = node.attrs.get("T", node.attrs.get("dtype"))
        dtype = attr if isinstance(attr, DType) else None
    if dtype is None:
        raise conversion_error(node, "the element type is unknown")
    return dtype


def conversion_error(node: Node, reason: str) -> UnavailableError:
    """Return the error for a node that cannot be converted."""
    return UnavailableError(
        f"node {node.name!r} ({node.op}) cannot be converted to ONNX: {reason}",
        hint=_FOLDING_HINTS.get(node.op)
        or "run the recipe inference, which removes training ops, or use --runtime tensorflow or --target tensorflow",
    )


def is_channels_first(node: Node) -> bool:
    """Return whether the data format of a node is NCHW."""
    return node.attrs.get("data_format", b"NHWC") == b"NCHW"


def transpose_tensor(tensor: Tensor, permutation: Sequence[int], shape: Sequence[int] | None = None) -> Tensor:
    """Return a lazily transposed tensor, reshaped to ``shape`` if given."""
    dims = tuple(shape) if shape is not None else tuple(tensor.shape[axis] for axis in permutation)
    return Tensor(tensor.dtype, dims, partial(_transpose_array, tensor, tuple(permutation), dims))


def _transpose_array(tensor: Tensor, permutation: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(tensor.array.transpose(permutation)).reshape(shape)


def converts(ops: str) -> Callable[[Handler], Handler]:
    """Register a handler for op types separated by spaces."""

    def register(handler: Handler) -> Handler:
        for op in ops.split():
            assert op not in HANDLERS, f"op type {op!r} already has a handler"
            HANDLERS[op] = handler
        return handler

    return register


def common_layout(translator: Translator, edges: Sequence[Edge]) -> str:
    """Return the layout of the inputs of an elementwise op: NCHW if an input exists as NCHW and all can be NCHW."""
    images = [edge for edge in edges if translator.is_nchw(edge)]
    others = [edge for edge in edges if edge not in images and translator.graph.constant_of(edge) is None]
    is_compatible = all(translator.rank(edge) == 4 for edge in others)
    return NCHW if images and is_compatible else PLAIN
