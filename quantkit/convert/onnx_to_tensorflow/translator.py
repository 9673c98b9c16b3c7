"""State of a conversion from ONNX to TensorFlow: new nodes, and the layouts in which each value exists.

The first op that requires NHWC transposes an image. The image stays NHWC until an op or a graph output requires
ONNX's layout.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from quantkit.convert.handlers import Handlers, NodeConversionError
from quantkit.convert.layouts import TO_NCHW, TO_NHWC, transpose_tensor
from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.functions import Function, Library
from quantkit.ir.graph import Attr, Edge, Graph, Node, Versions, constant
from quantkit.ir.names import unused_name
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.onnx.kernels import evaluate
from quantkit.ops.onnx.types import infer_types
from quantkit.ops.shape_inference import UNKNOWN, infer
from quantkit.ops.shape_rules import Sizes
from quantkit.ops.size_inference import as_tensor

PLAIN, NHWC = "plain", "nhwc"
# A GraphDef version that supports every op of the conversion and deprecates none of them.
VERSIONS = Versions(producer=1087)

# Maximum number of nodes between a constant and an input that must be constant.
MAX_FOLDED_NODES = 8


class OnnxConversionError(NodeConversionError):
    """Error for ONNX nodes that cannot be converted to TensorFlow."""

    dialect = "TensorFlow"

    def choose_hint(self) -> str:
        return "use transforms and runtimes for ONNX graphs, which do not convert the model"


HANDLERS: Handlers["OnnxTranslator"] = Handlers(OnnxConversionError)
converts = HANDLERS.rule


@dataclass
class OnnxTranslator:
    """State of one conversion.

    Attributes:
        graph: ONNX graph.
        shapes: shape by ONNX edge, in ONNX's layout.
        nodes: TensorFlow nodes by name.
        values: TensorFlow edge by ONNX edge and layout.
        types: element type by TensorFlow edge.
        names: TensorFlow name by ONNX value name.
        functions: TensorFlow functions of the branches.
        failures: op type and reason by the name of each node that cannot be converted.
        scope: beginning of the names of these functions; empty in the outermost graph.
    """

    graph: Graph
    scope: str = ""
    shapes: Mapping[Edge, Shape] = field(init=False)
    onnx_types: Mapping[Edge, DType] = field(init=False)
    _sizes: Mapping[Edge, Sizes] = field(init=False)
    nodes: dict[str, Node] = field(default_factory=dict)
    values: dict[tuple[Edge, str], Edge] = field(default_factory=dict)
    types: dict[Edge, DType] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    _reserved: set[str] = field(default_factory=set)  # the values of `names`
    functions: dict[str, Function[Graph]] = field(default_factory=dict)
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _multiple_outputs: set[str] = field(default_factory=set)  # nodes with graph outputs of several names
    _known_shapes: dict[Edge, Shape] = field(init=False)

    def __post_init__(self) -> None:
        self._known_shapes = {edge: shape for edge, (_, shape) in onnx.value_infos(self.graph).items()}
        self.shapes, self._sizes = infer(self.graph, self._known_shapes)
        self.onnx_types = infer_types(self.graph)
        for edge in self.graph.inputs:  # first, to keep the names of inputs and outputs
            self.name(edge.node)
        for edge in self.graph.outputs:
            if self._output_name(edge) is not None and edge.port:
                self._multiple_outputs.add(edge.node)

    def translate(self) -> Graph:
        graph = self.graph
        for edge in graph.inputs:
            self._add_input(edge)
        needed = graph.reachable()
        for name in graph.order:
            node = graph[name]
            if name not in needed or node.is_constant or name in graph.input_names or name == onnx.ABSENT.name:
                continue
            if self.constant_of(Edge(name)) is None:
                self._convert(node)
        if self.failures:
            raise OnnxConversionError(self.failures)
        outputs = [self._add_output(edge) for edge in graph.outputs]
        inputs = [self.values[edge, PLAIN] for edge in graph.inputs]
        if not self.scope:
            self._separate_outputs(outputs)
        library = Library[Graph]().with_(*self.functions.values())
        return Graph.of(self.nodes.values(), inputs, outputs, versions=VERSIONS, library=library)

    def _convert(self, node: Node) -> None:
        """Convert a node, or add the reasons why that is not possible to `failures`."""
        failures = HANDLERS.convert(self, node)
        if failures is not None:
            self.failures |= failures
            self._failed.add(node.name)

    def _add_input(self, edge: Edge) -> None:
        node = self.graph[edge.node]
        dtype = node.attrs.get("dtype")
        if node.op != "Placeholder" or not isinstance(dtype, DType):
            raise conversion_error(node, "the element type of the input is unknown")
        placeholder = self.add_node(self.name(edge.node), "Placeholder", [], dtype=dtype, shape=self.shape(edge))
        self.values[edge, PLAIN], self.types[placeholder] = placeholder, dtype

    def _add_output(self, edge: Edge) -> Edge:
        """Return the value of a graph output under the name of the output."""
        value = self.plain(edge)
        name = self._output_name(edge)
        if name is None or value == Edge(name):
            return value
        return self.add_node(name, "Identity", [value], T=self.types[value])

    def _separate_outputs(self, outputs: Iterable[Edge]) -> None:
        """Add an Identity op for each output that other nodes consume; it takes the name of the output.

        A GraphDef has no names of outputs: programs find them as the nodes without consumers. Outputs that are inputs,
        and those of a node with several outputs under its own name, keep their node.
        """
        consumed = {edge.node for node in self.nodes.values() for edge in node.inputs}
        fixed = {edge.node for edge in outputs if edge.port}
        moved: dict[str, str] = {}
        for edge in outputs:
            if edge.node in consumed - fixed and self.nodes[edge.node].op != "Placeholder":
                moved[edge.node] = unused_name(self.nodes, f"{edge.node}/value", moved.values())

        def rename(node: Node) -> Node:
            inputs = tuple(Edge(moved.get(edge.node, edge.node), edge.port) for edge in node.inputs)
            controls = tuple(moved.get(name, name) for name in node.controls)
            return node.with_(name=moved.get(node.name, node.name), inputs=inputs, controls=controls)

        if moved:
            self.nodes = {node.name: node for node in map(rename, self.nodes.values())}
        for name, value in moved.items():
            self.nodes[name] = Node(name, "Identity", (Edge(value),), attrs={"T": self.types[Edge(name)]})

    # Names

    def _output_name(self, edge: Edge) -> str | None:
        """Return the TensorFlow name of a graph output; None for a further output of a node without an own name."""
        name = onnx.value_name(self.graph[edge.node], edge.port)
        return None if edge.port and name == str(edge) else self.name(name)

    def name(self, value: str) -> str:
        """Return the TensorFlow name of a value; characters that TensorFlow rejects are replaced."""
        if value not in self.names:
            tensorflow_name = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", re.sub(r":0$", "", value))
            tensorflow_name = re.sub(r"^[^A-Za-z0-9.]+", "", tensorflow_name) or "value"
            self.names[value] = unused_name(self.nodes, tensorflow_name, self._reserved)
            self._reserved.add(self.names[value])
        return self.names[value]

    def function_name(self, node: Node, role: str) -> str:
        """Return the name of the function of a subgraph; nodes of different subgraphs may have the same name."""
        return f"{self.scope}{self.name(node.name)}/{role}".replace("/", "_")

    # Facts about the ONNX graph

    def add_shapes(self, shapes: Mapping[Edge, Shape]) -> None:
        """Add shapes that the inference has no rule for, and infer the others again."""
        if any(self.shape(edge) != shape for edge, shape in shapes.items()):
            self._known_shapes |= shapes
            self.shapes, self._sizes = infer(self.graph, self._known_shapes)

    def shape(self, edge: Edge) -> Shape:
        """Return the shape in ONNX's layout."""
        return self.shapes.get(edge, UNKNOWN)

    def rank(self, edge: Edge) -> int | None:
        return 4 if self.is_nhwc(edge) else self.shape(edge).rank

    def has_input(self, node: Node, slot: int) -> bool:
        """Return True if an optional input is present."""
        return slot < len(node.inputs) and node.inputs[slot].node != onnx.ABSENT.name

    def constant(self, node: Node, slot: int) -> Array:
        """Return the array of an input that is constant, or is computed from constants.

        Raises:
            UnavailableError: the input is not constant.
        """
        array = self.fold(node.inputs[slot]) if self.has_input(node, slot) else None
        if array is None:
            raise conversion_error(node, f"input {slot} must be constant")
        return array

    def fold(self, edge: Edge, depth: int = MAX_FOLDED_NODES) -> Array | None:
        """Return the value of an edge that a few nodes compute from constants and static sizes; else None."""
        tensor = self.constant_of(edge)
        if tensor is not None:
            return tensor.array
        node = self.graph[edge.node]
        if depth == 0 or not node.inputs or node.name in self.graph.input_names:
            return None
        inputs = [None if source.node == onnx.ABSENT.name else self.fold(source, depth - 1) for source in node.inputs]
        if any(array is None for array, source in zip(inputs, node.inputs, strict=True) if source.node):
            return None
        try:
            return evaluate(node, inputs, is_folded=True)[edge.port]
        except (QuantkitError, LookupError, ValueError, TypeError, ArithmeticError, AttributeError):
            return None

    def weights(self, node: Node) -> Tensor | None:
        """Return the second input of a layer if it is constant, or computed from constants such as float16 weights."""
        tensor = self.constant_of(node.inputs[1])
        array = None if tensor is not None else self.fold(node.inputs[1])
        return tensor if array is None else Tensor.of(array)

    def constant_of(self, edge: Edge) -> Tensor | None:
        """Return the tensor of a constant, or of integers that are computed from static shapes; else None."""
        tensor = self.graph.constant_of(edge)
        sizes = self._sizes.get(edge) if tensor is None and edge.node not in self.graph.input_names else None
        return tensor if sizes is None else as_tensor(sizes, self.onnx_types.get(edge, DType.INT64))

    def sizes(self, edge: Edge) -> list[int | None] | None:
        """Return integers that are computed from shapes as a flat list, with None for unknown ones."""
        tensor = self.constant_of(edge)
        sizes = self._sizes.get(edge) if tensor is None else tensor.array
        return None if sizes is None else [None if size is None else int(size) for size in sizes.reshape(-1)]

    def dtype(self, edge: Edge) -> DType:
        """Return the element type of a value, as the new graph has it."""
        return self.types[self.values[edge, NHWC] if self.is_nhwc(edge) else self.plain(edge)]

    def integers(self, node: Node, name: str, slot: int) -> list[int] | None:
        """Return the integers of an attribute, or of the constant input that replaces it in later opsets."""
        values = node.attrs.get(name)
        if values is None and self.has_input(node, slot):
            values = self.constant(node, slot).reshape(-1)
        return None if values is None else [int(value) for value in values]

    def is_nhwc(self, edge: Edge) -> bool:
        """Return True if a value exists as NHWC."""
        return (edge, NHWC) in self.values

    # Values

    def plain(self, edge: Edge) -> Edge:
        """Return the value in ONNX's layout."""
        if (edge, PLAIN) not in self.values:
            tensor = self.constant_of(edge)
            if tensor is not None:
                self.values[edge, PLAIN] = self.add_constant(self.name(str(edge)), tensor)
            elif (source := self.values.get((edge, NHWC))) is not None:
                is_output = edge in self.graph.outputs and not edge.port and self.name(edge.node) not in self.nodes
                name = self.name(edge.node) if is_output else f"{source.node}/nchw"
                self.values[edge, PLAIN] = self.transpose(name, source, TO_NCHW)
            elif edge.node in self._failed:
                raise OnnxConversionError({})
            else:
                raise conversion_error(self.graph[edge.node], f"output {edge.port} is not supported")
        return self.values[edge, PLAIN]

    def nhwc(self, edge: Edge) -> Edge:
        """Return a value of rank 4 as NHWC."""
        if (edge, NHWC) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, NHWC] = self.add_constant(
                    f"{self.name(edge.node)}/nhwc", transpose_tensor(tensor, TO_NHWC)
                )
            else:
                source = self.plain(edge)
                self.values[edge, NHWC] = self.transpose(f"{source.node}/nhwc", source, TO_NHWC)
        return self.values[edge, NHWC]

    def in_layout(self, edge: Edge, layout: str) -> Edge:
        return self.nhwc(edge) if layout == NHWC else self.plain(edge)

    def transpose(self, name: str, source: Edge, order: Sequence[int]) -> Edge:
        permutation = self.add_integers(f"{name}/order", order)
        return self.add_node(name, "Transpose", [source, permutation], T=self.types[source], Tperm=DType.INT32)

    def add_constant(self, name: str, tensor: Tensor) -> Edge:
        """Add a constant with this name, or the next free one."""
        name = unused_name(self.nodes, name)
        self.nodes[name] = constant(name, tensor)
        self.types[Edge(name)] = tensor.dtype
        return Edge(name)

    def add_integers(self, name: str, values: Iterable[int]) -> Edge:
        """Add an int32 constant for shapes and axes."""
        return self.add_constant(name, Tensor.of(np.array(list(values), np.int32)))

    def add_integer(self, name: str, value: int) -> Edge:
        """Add an int32 scalar."""
        return self.add_constant(name, Tensor.of(np.array(value, np.int32)))

    def add_array(self, node: Node, suffix: str, values: npt.ArrayLike, dtype: DType = DType.INT64) -> Edge:
        """Add a constant of the conversion of ``node``, with an unused name."""
        name = f"{self.name(node.name)}/{suffix}"
        return self.add_constant(name, Tensor.of(np.array(values, dtype.numpy), dtype))

    def add_cast(self, node: Node, suffix: str, edge: Edge, dtype: DType) -> Edge:
        """Return a value in another type."""
        if self.types[edge] is dtype:
            return edge
        cast = self.add_node(f"{self.name(node.name)}/{suffix}", "Cast", [edge], SrcT=self.types[edge], DstT=dtype)
        self.types[cast] = dtype
        return cast

    def add_node(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """Add a node with one output of the type of its first input."""
        name = unused_name(self.nodes, name)
        self.nodes[name] = Node(name, op, tuple(inputs), attrs=attrs)
        self.types[Edge(name)] = self.types[inputs[0]] if inputs else DType.FLOAT
        return Edge(name)

    def emit(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """Add the producer of the first output of ``node``; keep the node's name if possible."""
        edge = Edge(node.name)
        is_own = layout == PLAIN or edge not in self.graph.outputs
        name = self.name(node.name) if is_own else f"{self.name(node.name)}/nhwc"
        if node.name in self._multiple_outputs:
            name = f"{name}/outputs"  # each graph output becomes an Identity with its name
        self.values[edge, layout] = self.add_node(name, op, inputs, **attrs)
        return self.values[edge, layout]

    def emit_bool(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> None:
        """Add a node as `emit`, whose output is boolean."""
        self.types[self.emit(node, op, inputs, layout, **attrs)] = DType.BOOL

    def emit_typed(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """Add a node as `emit`, with the type of its first input as attribute T."""
        return self.emit(node, op, inputs, layout, T=self.types[inputs[0]], **attrs)

    def add_intermediate(self, node: Node, suffix: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """Add an intermediate node of the conversion of ``node``."""
        return self.add_node(f"{self.name(node.name)}/{suffix}", op, inputs, T=self.types[inputs[0]], **attrs)

    def reshape(self, node: Node, suffix: str, edge: Edge, dims: Sequence[int]) -> Edge:
        """Add a Reshape to constant sizes in the conversion of ``node``."""
        shape = self.add_array(node, f"{suffix}/shape", dims, DType.INT32)
        return self.add_intermediate(node, suffix, "Reshape", [edge, shape], Tshape=DType.INT32)

    def condition(self, node: Node, slot: int) -> Edge:
        """Return a condition as a scalar: TensorFlow takes any other tensor with an element for true."""
        edge = self.plain(node.inputs[slot])
        is_scalar = self.shape(node.inputs[slot]).dims == ()
        return edge if is_scalar else self.reshape(node, "condition", edge, [])


def conversion_error(node: Node, reason: str) -> OnnxConversionError:
    """Return the error for a node that cannot be converted."""
    return OnnxConversionError({node.name: (node.op, reason)})
