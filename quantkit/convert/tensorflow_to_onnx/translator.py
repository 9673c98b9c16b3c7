"""What is shared on the way from TensorFlow's ops to ONNX's: nodes made so far, and values in the forms at hand.

Images become NCHW where the first op needs it and stay so: a value is transposed back only for an op, or an
output of the graph, that wants it otherwise. Constants are transposed while they are written.
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
    """An ONNX graph, and where in it the values of the other graph are.

    Attributes:
        graph: of dialect ``onnx``; its inputs and outputs are named, and laid out, like the other graph's.
        edges: ONNX edge by TensorFlow edge; images as NCHW where any op wants them so.
    """

    graph: Graph
    edges: Mapping[Edge, Edge]


@dataclass
class Translator:
    """One conversion: the nodes made so far, and the forms in which each value is at hand."""

    graph: Graph
    shapes: Mapping[Edge, Shape] = field(init=False)
    made: dict[str, Node] = field(default_factory=dict)
    values: dict[tuple[Edge, str], Edge] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    types: dict[Edge, DType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = infer_shapes(self.graph)

    def translation(self) -> Translation:
        graph = self.graph
        for edge in graph.inputs:
            self._feed(edge)
        # An order of execution that data does not impose, ONNX can not say: it has no side effects to put in order.
        # Nor does it say by how many pixels a transposed convolution grows: its padding follows from that.
        needed = graph.with_nodes(map(_as_read, graph.nodes.values())).reachable()
        for name in graph.order:
            node = graph[name]
            if name not in needed or name in self.done or node.op == "Const" or self._is_fed(node):
                continue
            handler = HANDLERS.get(node.op)
            if handler is None:
                raise refusal(node, "no ONNX form of this op is known here")
            try:
                handler(self, node)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise refusal(node, f"it does not fit its op ({error})") from error
        outputs = [self._output(edge) for edge in graph.outputs]
        infos = {str(edge): (self.dtype(edge), self.shape(edge)) for edge in graph.outputs}
        nodes = self._without_plain_weights()
        made = Graph.of(
            [*([onnx.ABSENT] if any(Edge("") in node.inputs for node in nodes) else []), *nodes],
            [Edge(str(edge)) for edge in graph.inputs],
            outputs,
            dialect=onnx.DIALECT,
            extra=onnx.header(infos),
        )
        edges = {edge: value for (edge, layout), value in self.values.items() if layout == PLAIN}
        edges |= {edge: value for (edge, layout), value in self.values.items() if layout == NCHW}
        return Translation(made, edges)

    def _without_plain_weights(self) -> list[Node]:
        """The nodes but for constants, and casts of them, that were made and are read in another form only."""
        reads = Counter(edge.node for node in self.made.values() for edge in node.inputs)
        reads.update(str(edge) for edge in (*self.graph.outputs, *self.graph.inputs))
        idle = [node for node in self.made.values() if node.op == "Cast" and not reads[node.name]]
        gone = {node.name for node in idle}
        for node in idle:
            reads.subtract(edge.node for edge in node.inputs)
        gone |= {node.name for node in self.made.values() if node.op == "Constant" and not reads[node.name]}
        return [node for node in self.made.values() if node.name not in gone]

    def _is_fed(self, node: Node) -> bool:
        return node.name in self.graph.input_names and Edge(node.name) in self.graph.inputs

    def _feed(self, edge: Edge) -> None:
        name = str(edge)
        shape = self.shape(edge)
        self.made[name] = Node(name, "Placeholder", attrs={"dtype": self.dtype(edge), "shape": shape})
        self.values[edge, PLAIN] = Edge(name)

    def _output(self, edge: Edge) -> Edge:
        """The value of an output, under its own name."""
        value = self.plain(edge)
        if onnx.value_name(self.made[value.node], value.port) == str(edge):
            return value
        return self.add(str(edge), "Identity", [value])

    # What is known

    def shape(self, edge: Edge) -> Shape:
        """As TensorFlow lays it out."""
        return self.shapes.get(edge, UNKNOWN)

    def rank(self, edge: Edge) -> int | None:
        return self.shape(edge).rank

    def dtype(self, edge: Edge) -> DType:
        """The element type of a value.

        Raises:
            UnavailableError: nothing is known of it.
        """
        node = self.graph[edge.node]
        known = output_dtypes(node)
        found = known[edge.port] if edge.port < len(known) else None
        if found is None:
            given = node.attrs.get("T", node.attrs.get("dtype"))
            found = given if isinstance(given, DType) else None
        if found is None:
            raise refusal(node, "the type of its elements is not known")
        return found

    def constant(self, node: Node, slot: int) -> Array:
        """The values of a constant input.

        Raises:
            UnavailableError: the input is computed.
        """
        found = self.graph.constant_of(node.inputs[slot]) if slot < len(node.inputs) else None
        if found is None:
            raise refusal(node, f"its input {slot} is computed, and only a constant has an ONNX form here")
        return found.array

    def is_nchw(self, edge: Edge) -> bool:
        """Whether a value is at hand as NCHW."""
        return (edge, NCHW) in self.values

    def sole_reader(self, edge: Edge) -> tuple[Node, int] | None:
        """The only node that reads a value, and in which slot."""
        uses = self.graph.uses.get(edge, ())
        if len(uses) != 1 or edge in self.graph.outputs or edge.node in self.graph.input_names:
            return None
        return uses[0].node, uses[0].slot

    # Values

    def plain(self, edge: Edge) -> Edge:
        """The value laid out as TensorFlow does."""
        if (edge, PLAIN) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, PLAIN] = self.keep(edge.node, tensor)
            else:
                name = str(edge) if edge in self.graph.outputs else f"{edge}/nhwc"
                source = self.values.get((edge, NCHW))
                if source is None:
                    raise refusal(self.graph[edge.node], f"its output {edge.port} has no ONNX form")
                self.values[edge, PLAIN] = self.add(name, "Transpose", [source], perm=TO_NHWC)
        return self.values[edge, PLAIN]

    def nchw(self, edge: Edge) -> Edge:
        """The value, of four dimensions, as NCHW."""
        if (edge, NCHW) not in self.values:
            tensor = self.graph.constant_of(edge)
            if tensor is not None:
                self.values[edge, NCHW] = self.keep(f"{edge.node}/nchw", transposed(tensor, TO_NCHW))
            else:
                source = self.plain(edge)
                self.values[edge, NCHW] = self.add(f"{edge}/nchw", "Transpose", [source], perm=TO_NCHW)
        return self.values[edge, NCHW]

    def keep(self, name: str, tensor: Tensor) -> Edge:
        """A constant; the same one for the same name."""
        if name not in self.made:
            self.made[name] = Node(name, "Constant", attrs={"value": tensor})
        return Edge(name)

    def numbers(self, name: str, values: Iterable[int]) -> Edge:
        """A constant of int64, as ONNX wants shapes and axes."""
        while name in self.graph:
            name += "/long"  # TensorFlow's own, of int32, may be read as well
        return self.keep(name, Tensor.of(np.array(list(values), np.int64)))

    def add(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A node of one output."""
        self.made[name] = Node(name, op, tuple(inputs), attrs=attrs)
        return Edge(name)

    def between(self, node: Node, word: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A node of one output on the way to what ``node`` makes, under a name that no other has."""
        name = f"{node.name}/{word}"
        while name in self.made or name in self.graph:
            name += "_"
        return self.add(name, op, inputs, **attrs)

    def emit(self, node: Node, op: str, inputs: Sequence[Edge], layout: str, **attrs: Attr) -> Edge:
        """The node that makes the first output of ``node``, named like it where the layout is its own."""
        edge = Edge(node.name)
        name = node.name if layout == PLAIN or edge not in self.graph.outputs else f"{node.name}/nchw"
        self.values[edge, layout] = self.add(name, op, inputs, **attrs)
        return self.values[edge, layout]

    def read(self, edge: Edge, layout: str) -> Edge:
        return self.nchw(edge) if layout == NCHW else self.plain(edge)

    def image(self, node: Node, edge: Edge) -> Edge:
        """What a node with a ``data_format`` reads, as NCHW."""
        return self.plain(edge) if is_channels_first(node) else self.nchw(edge)

    def layout(self, node: Node) -> str:
        """The layout of what an op on images makes: that of TensorFlow if the node asks for NCHW itself."""
        return PLAIN if is_channels_first(node) else NCHW


def _as_read(node: Node) -> Node:
    """The node with what its ONNX form reads."""
    return node.with_(inputs=node.inputs[1:] if node.op == "Conv2DBackpropInput" else node.inputs, controls=())


def refusal(node: Node, reason: str) -> UnavailableError:
    """That a node can not be converted."""
    return UnavailableError(
        f"node {node.name!r} ({node.op}) can not be converted to ONNX: {reason}",
        hint="TensorFlow runs it: --runtime tensorflow, or --target tensorflow where it is quantized; the recipe "
        "inference removes what only training needs",
    )


def is_channels_first(node: Node) -> bool:
    """Whether a node asks for NCHW itself."""
    return node.attrs.get("data_format", b"NHWC") == b"NCHW"


def transposed(tensor: Tensor, permutation: Sequence[int], shape: Sequence[int] | None = None) -> Tensor:
    """A tensor with its dimensions in another order (and then in another shape), computed when it is needed."""
    made = tuple(shape) if shape is not None else tuple(tensor.shape[axis] for axis in permutation)
    return Tensor(tensor.dtype, made, partial(_transpose_now, tensor, tuple(permutation), made))


def _transpose_now(tensor: Tensor, permutation: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(tensor.array.transpose(permutation)).reshape(shape)


def converts(ops: str) -> Callable[[Handler], Handler]:
    """Register the only handler for ops, separated by spaces."""

    def register(handler: Handler) -> Handler:
        for op in ops.split():
            assert op not in HANDLERS, f"two handlers convert {op}"
            HANDLERS[op] = handler
        return handler

    return register


def together(translator: Translator, edges: Sequence[Edge]) -> str:
    """The layout in which an op that works element by element reads: NCHW if some image is at hand so."""
    images = [edge for edge in edges if translator.is_nchw(edge)]
    others = [edge for edge in edges if edge not in images and translator.graph.constant_of(edge) is None]
    fits = all(translator.rank(edge) == 4 for edge in others)
    return NCHW if images and fits else PLAIN
