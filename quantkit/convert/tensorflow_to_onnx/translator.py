"""State of a conversion from TensorFlow to ONNX: new nodes, and the layouts in which each value exists.

The first op that requires NCHW transposes an image. The image stays NCHW until an op or a graph output requires
TensorFlow's layout. Constants are transposed when the file is written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from quantkit.convert.handlers import Handlers, NodeConversionError
from quantkit.convert.layouts import TO_NCHW, TO_NHWC, transpose_tensor
from quantkit.formats import onnx
from quantkit.ir.graph import Attr, Edge, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.onnx.types import NUMBERS
from quantkit.ops.shape_inference import UNKNOWN, infer
from quantkit.ops.shape_rules import Sizes
from quantkit.ops.size_inference import as_tensor
from quantkit.ops.tensorflow.signatures import output_dtype

NCHW, PLAIN = "nchw", "plain"

# Beginning of the reason of a loop that fills a list, whose elements have an unknown shape, in another order.
LIST_ORDER = "the loop does not write element i of the list"
# Hints by op type or beginning of the reason.
_HINTS: Mapping[str, str] = {
    "BatchNormWithGlobalNormalization": "run the transform fold_old_batch_norms first, or the recipe inference",
    LIST_ORDER: "give the list an element_shape in TensorFlow, or use --runtime tensorflow or --target tensorflow",
}
_HINT = "run the recipe inference, which removes training ops, or use --runtime tensorflow or --target tensorflow"


class ConversionError(NodeConversionError):
    """Error for TensorFlow nodes that cannot be converted to ONNX."""

    dialect = "ONNX"

    def choose_hint(self) -> str:
        causes = [cause for failure in self.failures.values() for cause in failure]
        return next((_HINTS[key] for key in _HINTS if any(cause.startswith(key) for cause in causes)), _HINT)


HANDLERS: Handlers["Translator"] = Handlers(ConversionError)
converts = HANDLERS.rule


@dataclass(frozen=True)
class Translation:
    """Result of a conversion.

    Attributes:
        graph: graph of dialect ``onnx``; names and layouts of inputs and outputs are those of the TensorFlow graph.
        edges: ONNX edge by TensorFlow edge; the NCHW edge if both layouts exist.
        layouts: ONNX edges with the values of each TensorFlow edge, one for each layout.
        nodes: names of the ONNX nodes that compute each TensorFlow node.
    """

    graph: Graph
    edges: Mapping[Edge, Edge]
    layouts: Mapping[Edge, tuple[Edge, ...]]
    nodes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class LoweredGraph:
    """TensorFlow graph without functions, for a `Translator`.

    Attributes:
        graph: graph; a loop or a condition is one node.
        regions: loops, conditions and recurrent layers by the name of their node.
        known_shapes: shapes of their outputs.
    """

    graph: Graph
    regions: Mapping[str, object] = field(default_factory=dict)
    known_shapes: Mapping[Edge, Shape] = field(default_factory=dict)


@dataclass
class Translator:
    """State of one conversion.

    Attributes:
        lowered: TensorFlow graph with its loops and conditions.
        graph: graph of ``lowered``.
        regions: regions of ``lowered``.
        shapes: shape by TensorFlow edge, in TensorFlow's layout.
        nodes: ONNX nodes by name.
        values: ONNX edge by TensorFlow edge and layout.
        absorbed: names of TensorFlow nodes that are part of another node's conversion.
        failures: op type and reason by the name of each node that cannot be converted.
        failed: names of these nodes, and of the nodes that need their outputs.
        added: names of the ONNX nodes of the conversion of each TensorFlow node.
    """

    lowered: LoweredGraph
    graph: Graph = field(init=False)
    regions: Mapping[str, object] = field(init=False)
    shapes: Mapping[Edge, Shape] = field(init=False)
    _sizes: Mapping[Edge, Sizes] = field(init=False)
    nodes: dict[str, Node] = field(default_factory=dict)
    values: dict[tuple[Edge, str], Edge] = field(default_factory=dict)
    absorbed: set[str] = field(default_factory=set)
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    added: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.graph = self.lowered.graph
        self.regions = self.lowered.regions
        self.shapes, self._sizes = infer(self.graph, self.lowered.known_shapes)

    def translate(self) -> Translation:
        graph = self.graph
        for edge in graph.inputs:
            self._add_input(edge)
        # ONNX has no control dependencies. The shape input of a transposed convolution becomes padding.
        needed = graph.with_nodes(map(_with_onnx_inputs, graph.nodes.values())).reachable()
        for name in graph.order:
            node = graph[name]
            if name not in needed or name in self.absorbed or self._is_input(node):
                continue
            if self.constant_of(Edge(name)) is None:
                self._convert(node)
        if self.failures:
            raise ConversionError(self.failures)
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
        layouts: dict[Edge, tuple[Edge, ...]] = {}
        for (edge, _), value in self.values.items():
            layouts[edge] = (*layouts.get(edge, ()), value)
        edges = {edge: self.values.get((edge, NCHW), values[0]) for edge, values in layouts.items()}
        return Translation(converted, edges, layouts, self.added)

    def _convert(self, node: Node) -> None:
        """Convert a node, or add the reasons why that is not possible to `failures`."""
        num_nodes = len(self.nodes)
        failures = HANDLERS.convert(self, node)
        self.added[node.name] = tuple(islice(self.nodes, num_nodes, None))
        if failures is not None:
            self.failures |= failures
            self.failed.add(node.name)

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
        tensor = self.constant_of(node.inputs[slot]) if slot < len(node.inputs) else None
        if tensor is None:
            raise conversion_error(node, f"input {slot} must be constant")
        return tensor.array

    def constant_of(self, edge: Edge) -> Tensor | None:
        """Return the tensor of a constant, or of integers that are computed from static shapes; else None."""
        tensor = self.graph.constant_of(edge)
        sizes = self._sizes.get(edge) if tensor is None and edge.node not in self.graph.input_names else None
        return tensor if sizes is None else as_tensor(sizes, self.dtype(edge))

    def sizes(self, edge: Edge) -> list[int | None] | None:
        """Return integers that are computed from shapes as a flat list, with None for unknown ones."""
        tensor = self.constant_of(edge)
        sizes = self._sizes.get(edge) if tensor is None else tensor.array
        return None if sizes is None else [None if size is None else int(size) for size in sizes.reshape(-1)]

    def is_nchw(self, edge: Edge) -> bool:
        """Return True if a value exists as NCHW."""
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
            tensor = self.constant_of(edge)
            if tensor is not None:
                self.values[edge, PLAIN] = self.add_constant(edge.node, tensor)
            else:
                name = str(edge) if edge in self.graph.outputs else self._unused_name(f"{edge}/nhwc")
                source = self.values.get((edge, NCHW))
                if source is None and edge.node in self.failed:
                    raise ConversionError({})
                if source is None:
                    raise conversion_error(self.graph[edge.node], f"output {edge.port} is not supported")
                self.values[edge, PLAIN] = self.add_node(name, "Transpose", [source], perm=TO_NHWC)
        return self.values[edge, PLAIN]

    def nchw(self, edge: Edge) -> Edge:
        """Return a value of rank 4 as NCHW."""
        if (edge, NCHW) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                name = self._unused_name(f"{edge.node}/nchw")
                self.values[edge, NCHW] = self.add_constant(name, transpose_tensor(tensor, TO_NCHW))
            else:
                source = self.plain(edge)
                name = self._unused_name(f"{edge}/nchw")
                self.values[edge, NCHW] = self.add_node(name, "Transpose", [source], perm=TO_NCHW)
        return self.values[edge, NCHW]

    def _unused_name(self, name: str) -> str:
        """Return a name that no node has, in either graph."""
        while name in self.nodes or name in self.graph:
            name += "_"
        return name

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
        return self.add_node(self._unused_name(f"{node.name}/{suffix}"), op, inputs, **attrs)

    def add_array(self, node: Node, suffix: str, values: npt.ArrayLike, dtype: DType = DType.INT64) -> Edge:
        """Add a constant of the conversion of ``node``, with an unused name."""
        name = self._unused_name(f"{node.name}/{suffix}")
        return self.add_constant(name, Tensor.of(np.array(values, dtype.numpy), dtype))

    def add_cast(self, node: Node, suffix: str, edge: Edge, dtype: DType) -> Edge:
        """Add a Cast of the conversion of ``node``."""
        return self.add_intermediate(node, suffix, "Cast", [edge], to=NUMBERS[dtype])

    def int64_input(self, node: Node, slot: int) -> Edge:
        """Return an input with integers, as int64."""
        edge = node.inputs[slot]
        constant = self.constant_of(edge)
        if constant is not None:
            return self.add_array(node, f"{slot}/long", constant.array)
        value = self.plain(edge)
        return value if self.dtype(edge) is DType.INT64 else self.add_cast(node, f"{slot}/long", value, DType.INT64)

    def emit_as(self, node: Node, port: int, edge: Edge, dtype: DType) -> None:
        """Add a Cast whose result is an output of ``node``."""
        output = Edge(node.name, port)
        self.values[output, PLAIN] = self.add_node(str(output), "Cast", [edge], to=NUMBERS[dtype])

    def emit(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """Add the producer of the first output of ``node``; keep the node's name if possible."""
        edge = Edge(node.name)
        is_own = layout == PLAIN or edge not in self.graph.outputs
        name = node.name if is_own else self._unused_name(f"{node.name}/nchw")
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


def translate_all(graphs: Iterable[LoweredGraph]) -> list[Graph]:
    """Convert the subgraphs of a node.

    Raises:
        ConversionError: nodes are not supported; the error names those of all subgraphs.
    """
    converted: list[Graph] = []
    failures: dict[str, tuple[str, str]] = {}
    for graph in graphs:
        try:
            converted.append(Translator(graph).translate().graph)
        except ConversionError as error:
            failures |= error.failures
    if failures:
        raise ConversionError(failures)
    return converted


def _with_onnx_inputs(node: Node) -> Node:
    """Remove control dependencies and the shape input of a transposed convolution."""
    return node.with_(inputs=node.inputs[1:] if node.op == "Conv2DBackpropInput" else node.inputs, controls=())


def dtype_of(graph: Mapping[str, Node], edge: Edge) -> DType:
    """Return the element type of a value of a TensorFlow graph.

    Raises:
        UnavailableError: the type is unknown.
    """
    node = graph[edge.node]
    dtype = output_dtype(node, edge.port)
    if dtype is None:
        attr = node.attrs.get("T", node.attrs.get("dtype"))
        if isinstance(attr, tuple) and edge.port < len(attr):
            attr = attr[edge.port]
        dtype = attr if isinstance(attr, DType) else None
    if dtype is None:
        raise conversion_error(node, "the element type is unknown")
    return dtype


def conversion_error(node: Node, reason: str) -> ConversionError:
    """Return the error for a node that cannot be converted."""
    return ConversionError({node.name: (node.op, reason)})


def is_channels_first(node: Node) -> bool:
    """Return True if the data format of a node is NCHW."""
    return bool(node.attrs.get("data_format", b"NHWC") == b"NCHW")


def common_layout(translator: Translator, edges: Sequence[Edge]) -> str:
    """Return the layout of the inputs of an elementwise op: NCHW if an input exists as NCHW and all can be NCHW."""
    images = [edge for edge in edges if translator.is_nchw(edge)]
    others = [edge for edge in edges if edge not in images and translator.constant_of(edge) is None]
    is_compatible = all(translator.rank(edge) == 4 for edge in others)
    return NCHW if images and is_compatible else PLAIN
