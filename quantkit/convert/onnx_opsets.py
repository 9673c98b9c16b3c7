"""Opset of ONNX graphs: the present opset with the same outputs.

An op type whose definition changed gets its new form: attributes become inputs, Upsample becomes Resize, a Softmax
over several axes is computed on a matrix.
"""

from collections.abc import Callable, Mapping

import numpy as np

from quantkit.errors import UnavailableError, one_line
from quantkit.formats import onnx
from quantkit.formats.metadata import text_of, with_text
from quantkit.formats.onnx.schema import parse_message
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array, Tensor
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.table import CONTROL_FLOW, find_ops
from quantkit.runtimes.availability import find_package, require

# Least version of IR for the opset.
_IR_VERSION = 7
# Opset of the new forms: the first one with scales per channel.
TARGET_OPSET = 13
_CONTROL_FLOW = find_ops(CONTROL_FLOW, "onnx")
# Ops that compute on a matrix before opset 13, and along one axis since.
_MATRIX_OPS = frozenset({"Softmax", "LogSoftmax", "Hardmax"})


def raise_opset(graph: Graph) -> Graph:
    """Return the graph in opset 13, or unchanged if its opset is that or later.

    Raises:
        UnavailableError: the opset is older than 7, or a node with subgraphs or a node of a removed op type is in an
            opset before 13.
    """
    opset = onnx.opsets(graph).get("", TARGET_OPSET)
    if opset >= TARGET_OPSET:
        return graph
    if opset < 7:
        raise UnavailableError(
            f"opset {opset} is not supported, only 7 and later", hint="export the model again with a later opset"
        )
    conversion = _Conversion(graph)
    nodes = [new for node in graph.nodes.values() for new in conversion.convert(node)]
    model = parse_message("ModelProto", graph.extra)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = TARGET_OPSET
    if not model.opset_import:
        model.opset_import.add(domain="", version=TARGET_OPSET)
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return graph.with_nodes(nodes).with_(extra=bytes(model.SerializeToString(deterministic=True)))


def change_opset(graph: Graph, version: int) -> Graph:
    """Return an ONNX graph in another version of the standard operator set, with the same outputs.

    Raises:
        UnavailableError: the package onnx is not installed, or cannot convert an op to this version.
        GraphError: the graph exceeds 2 GiB.
    """
    if onnx.opsets(graph).get("") == version:
        return graph
    require(find_package("onnx", "onnx", "onnx", extra="onnx"))
    from onnx import load_from_string, version_converter

    try:
        model = version_converter.convert_version(load_from_string(onnx.encode(graph)), version)
    except Exception as error:  # the package raises errors of many types
        reason = one_line(str(error))
        raise UnavailableError(
            f"the package onnx cannot convert the graph to opset {version}: {reason}", hint="choose another opset"
        ) from None
    return with_text(onnx.decode(model.SerializeToString()), text_of(graph))


class _Conversion:
    """Conversion of the nodes of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.opset = onnx.opsets(graph)[""]
        self.shapes = infer_shapes(graph) if self.graph.op_counts.keys() & _MATRIX_OPS else {}
        self.new_nodes: list[Node] = []

    def convert(self, node: Node) -> list[Node]:
        """Return the nodes that replace a node; the last one has its name."""
        if node.op in _CONTROL_FLOW and any(not isinstance(value, int) for value in node.attrs.values()):
            raise UnavailableError(
                f"node {node.name!r} ({node.op}) has subgraphs in opset {self.opset}, which cannot become opset 13",
                hint="export the model again with opset 13 or later",
            )
        rule = _RULES.get(node.op)
        self.new_nodes = []
        try:
            converted = node if rule is None else rule(self, node)
        except (IndexError, ValueError, TypeError):
            return [node]  # the node is invalid: the runtime reports that with more detail
        return [*self.new_nodes, converted]

    def constant(self, node: Node, name: str, values: Array) -> Edge:
        """Add a constant for an input of a node; return its edge."""
        constant = Node(free_name(self.graph, f"{node.name}/{name}"), "Constant", attrs={"value": Tensor.of(values)})
        self.new_nodes.append(constant)
        return Edge(constant.name)

    def add(self, node: Node) -> Edge:
        """Add a node before the converted one; return its edge."""
        node = node.with_(name=free_name(self.graph, node.name))
        self.new_nodes.append(node)
        return Edge(node.name)

    def inputs(self, node: Node, *values: tuple[str, Array | None]) -> tuple[Edge, ...]:
        """Return input 0 of a node and constants, without absent ones at the end."""
        present = list(values)
        while present and present[-1][1] is None:
            present.pop()
        edges = [Edge("") if value is None else self.constant(node, name, value) for name, value in present]
        if Edge("") in edges and "" not in self.graph:
            self.new_nodes.insert(0, onnx.ABSENT)
            self.graph = self.graph.with_nodes([*self.graph.nodes.values(), onnx.ABSENT])
        return (node.inputs[0], *edges)


def _integers(node: Node, name: str) -> Array | None:
    values = node.attrs.get(name)
    return None if values is None else np.array(values, np.int64).reshape(-1)


def _number(node: Node, name: str) -> Array | None:
    value = node.attrs.get(name)
    return None if value is None else np.float32(value)  # type: ignore[return-value]


# Attributes that are inputs from an opset on, in the order of the inputs.
_MOVED: Mapping[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(("Squeeze", "Unsqueeze", "ReduceSum"), (13, ("axes",))),
    "Split": (13, ("split",)),
    "Clip": (11, ("min", "max")),
    "Pad": (11, ("pads", "value")),
    "Slice": (10, ("starts", "ends", "axes")),
    "TopK": (10, ("k",)),
    "Dropout": (12, ("ratio",)),
}
# Attributes that are real numbers; the others are integers.
_NUMBERS = frozenset({"min", "max", "value", "ratio"})


def _move_attributes(conversion: _Conversion, node: Node) -> Node:
    opset, names = _MOVED[node.op]
    values = [(name, (_number if name in _NUMBERS else _integers)(node, name)) for name in names]
    if conversion.opset >= opset or all(value is None for _, value in values):
        return node
    return node.with_attrs(**dict.fromkeys(names)).with_(inputs=conversion.inputs(node, *values))


def _resize(conversion: _Conversion, node: Node) -> Node:
    if node.op == "Resize" and conversion.opset >= 11:
        return node
    scales = node.attrs.get("scales")
    edges = conversion.inputs(node, ("roi", np.zeros(0, np.float32)))
    edge = node.inputs[1] if scales is None else conversion.constant(node, "scales", np.array(scales, np.float32))
    attrs = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    return node.with_(op="Resize", inputs=(*edges, edge)).with_attrs(scales=None, **attrs)


def _softmax(conversion: _Conversion, node: Node) -> Node:
    """Compute on a matrix whose rows are the axes from ``axis`` on."""
    axis = node.attrs.get("axis", 1)
    shape = conversion.shapes.get(node.inputs[0])
    if axis == -1 or (shape is not None and shape.dims is not None and axis == len(shape.dims) - 1):
        return node.with_attrs(axis=-1)
    sizes = conversion.add(Node(f"{node.name}/shape", "Shape", node.inputs))
    matrix = conversion.add(Node(f"{node.name}/matrix", "Flatten", node.inputs, attrs={"axis": axis}))
    rows = node.with_(name=f"{node.name}/rows", inputs=(matrix,)).with_attrs(axis=-1)
    return Node(node.name, "Reshape", (conversion.add(rows), sizes))


_RULES: Mapping[str, Callable[[_Conversion, Node], Node]] = {
    **dict.fromkeys(_MOVED, _move_attributes),
    **dict.fromkeys(("Upsample", "Resize"), _resize),
    **dict.fromkeys(_MATRIX_OPS, _softmax),
    "Scatter": lambda _, node: node.with_(op="ScatterElements"),
    "BatchNormalization": lambda _, node: node.with_attrs(spatial=None),
}
