"""Split the first layers into two halves of rows, for two threads.

The first layers form a chain, so that no other node can run in parallel.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.ops.tensorflow.signatures import attribute

CONVOLUTION = "QuantizedConv2DWithBiasAndReluAndRequantize"
CONCAT_ATTRS: Mapping[str, Attr] = {"N": 2, "T": DType.QUINT8, "Tidx": DType.INT32}
# Fraction of the rows that both halves compute, above which a second thread does not help.
MAX_OVERLAP = 0.15
MIN_ROWS = 8
_POOLS = frozenset({"QuantizedMaxPool", "QuantizedAvgPool"})


@dataclass(frozen=True)
class _Link:
    """Layer of the chain, in one dimension.

    Attributes:
        node: convolution or pool.
        rows: number of input rows.
        kernel, stride: window and step along rows.
        pads: ((top, bottom), (left, right)).
    """

    node: Node
    rows: int
    kernel: int
    stride: int
    pads: tuple[tuple[int, int], tuple[int, int]]

    def input_rows(self, first: int, last: int) -> tuple[int, int, int, int]:
        """Return the first and last input row, and the padding before and after, of some output rows."""
        start = first * self.stride - self.pads[0][0]
        end = (last - 1) * self.stride - self.pads[0][0] + self.kernel
        return max(start, 0), min(end, self.rows), max(-start, 0), max(end - self.rows, 0)


def split_rows(graph: Graph, shapes: Mapping[str, Shape]) -> tuple[Graph, Mapping[str, Shape]]:
    """Return the graph with split first layers, if that is faster, and all shapes."""
    chain = _chain(graph, shapes)
    size = _rows_and_columns(shapes, chain[-1].node.name) if chain else None
    if size is None or size[0] < MIN_ROWS:
        return graph, shapes
    middle = (size[0] + 1) // 2
    halves = [_input_rows(chain, 0, middle), _input_rows(chain, middle, size[0])]
    overlap = sum(rows[1] - rows[0] for half in halves for rows in half) / sum(link.rows for link in chain) - 1
    if overlap > MAX_OVERLAP:
        return graph, shapes
    all_shapes = dict(shapes)
    nodes: list[Node] = []
    outputs = [_add_half(graph, chain, rows, number, nodes, all_shapes) for number, rows in enumerate(halves)]
    last = chain[-1].node
    axis = constant(free_name(graph, f"{last.name}/rows"), np.int32(1))
    inputs = (*map(Edge, outputs), Edge(axis.name))
    join = Node(last.name, "ConcatV2", inputs, last.controls, CONCAT_ATTRS)
    replaced = {link.node.name for link in chain}
    if (quantize := _exclusive_quantize(graph, chain)) is not None:
        replaced.add(quantize.name)
    rest = [node for node in graph.nodes.values() if node.name not in replaced]
    return graph.with_nodes([*rest, *nodes, axis, join]), all_shapes


def _chain(graph: Graph, shapes: Mapping[str, Shape]) -> list[_Link]:
    """Return the first layers that have a single consumer each; empty with fewer than two convolutions."""
    first = next((graph[name] for name in graph.order if graph[name].op == CONVOLUTION), None)
    chain: list[_Link] = []
    node = first
    while node is not None and (link := _link(graph, node, shapes)) is not None and not node.controls:
        chain.append(link)
        uses = graph.node_uses.get(node.name, ())
        is_exclusive = len(uses) == 1 and uses[0].slot == 0 and node.name not in graph.endpoint_names
        node = uses[0].node if is_exclusive else None
    return chain if sum(link.node.op == CONVOLUTION for link in chain) > 1 else []


def _exclusive_quantize(graph: Graph, chain: list[_Link]) -> Node | None:
    """Return the QuantizeV2 of the first layer only, which each half can compute for itself, or None."""
    source = graph[chain[0].node.inputs[0].node]
    is_exclusive = len(graph.node_uses.get(source.name, ())) == 1 and source.name not in graph.endpoint_names
    return source if source.op == "QuantizeV2" and is_exclusive and not source.controls else None


def _link(graph: Graph, node: Node, shapes: Mapping[str, Shape]) -> _Link | None:
    input_size, output_size = _rows_and_columns(shapes, node.inputs[0].node), _rows_and_columns(shapes, node.name)
    if node.op not in {CONVOLUTION, *_POOLS} or input_size is None or output_size is None:
        return None
    padding_list: tuple[int, ...] = ()
    if node.op in _POOLS:
        kernel = attribute(node, "ksize")[1:3]
    else:
        weights = graph.constant_of(node.inputs[1])
        if weights is None or set(attribute(node, "dilations")) != {1}:
            return None
        kernel, padding_list = weights.shape[:2], attribute(node, "padding_list")
    strides = attribute(node, "strides")[1:3]
    if node.attrs["padding"] == b"VALID":
        padding_list = padding_list or (0,) * 8
        pads = ((padding_list[2], padding_list[3]), (padding_list[4], padding_list[5]))
    elif node.op == CONVOLUTION:
        rows, columns = (
            max((output_size[axis] - 1) * strides[axis] + kernel[axis] - input_size[axis], 0) for axis in (0, 1)
        )
        pads = ((rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
    else:
        return None
    return _Link(node, input_size[0], kernel[0], strides[0], pads)


def _rows_and_columns(shapes: Mapping[str, Shape], name: str) -> tuple[int, int] | None:
    dims = shapes.get(name, UNKNOWN).dims
    if dims is None or len(dims) != 4 or dims[1] is None or dims[2] is None:
        return None
    return dims[1], dims[2]


def _input_rows(chain: list[_Link], first: int, last: int) -> list[tuple[int, int, int, int]]:
    """Return the input rows and padding of each layer, for some output rows of the last one."""
    ranges = []
    for link in reversed(chain):
        ranges.append(link.input_rows(first, last))
        first, last = ranges[-1][:2]
    return ranges[::-1]


def _add_half(
    graph: Graph,
    chain: list[_Link],
    ranges: list[tuple[int, int, int, int]],
    number: int,
    nodes: list[Node],
    shapes: dict[str, Shape],
) -> str:
    """Add the nodes of one half; return the name of the last one."""
    prefix = free_name(graph, f"half_{number}")
    first, last = ranges[0][:2]
    begin = constant(f"{prefix}/begin", np.array([0, first, 0, 0], np.int32))
    size = constant(f"{prefix}/size", np.array([-1, last - first, -1, -1], np.int32))
    nodes += [begin, size]

    def slice_rows(source: Edge, dtype: DType) -> Edge:
        inputs = (source, Edge(begin.name), Edge(size.name))
        nodes.append(Node(f"{prefix}/rows", "Slice", inputs, attrs={"T": dtype, "Index": DType.INT32}))
        return Edge(nodes[-1].name)

    name = f"{prefix}/codes"
    source = chain[0].node.inputs[0]
    if (quantize := _exclusive_quantize(graph, chain)) is not None:
        part = slice_rows(quantize.inputs[0], DType.FLOAT)
        nodes.append(quantize.with_(name=name, inputs=(part, *quantize.inputs[1:])))
        dims = shapes.get(source.node, UNKNOWN).dims or ()
        shapes[name] = Shape((*dims[:1], last - first, *dims[2:]))
    else:
        nodes.append(Node(f"{prefix}/bytes", "Bitcast", (source,), attrs={"T": DType.QUINT8, "type": DType.UINT8}))
        part = slice_rows(Edge(nodes[-1].name), DType.UINT8)
        nodes.append(Node(name, "Bitcast", (part,), attrs={"T": DType.UINT8, "type": DType.QUINT8}))
    for link, rows in zip(chain, ranges, strict=True):
        node = link.node.with_(name=f"{prefix}/{link.node.name}").with_input(0, name)
        if node.op == CONVOLUTION:
            padding_list = (0, 0, *rows[2:], *link.pads[1], 0, 0)
            node = node.with_attrs(padding=b"VALID", padding_list=padding_list if any(padding_list) else ())
        nodes.append(node)
        name = node.name
        dims = shapes[link.node.name].dims or ()
        num_rows = (rows[1] - rows[0] + sum(rows[2:]) - link.kernel) // link.stride + 1
        shapes[name] = Shape((dims[0], num_rows, *dims[2:]))
    return name
