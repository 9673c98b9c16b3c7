"""A frozen graph of fused oneDNN ops, which plain TensorFlow runs in 8 bits.

oneDNN's codes have a scale and no zero point: x ~= code * scale, codes 0...255. Where negative numbers occur they are
shifted by a whole number of steps, and the shift is taken out again through the bias, which is exact:

    x = (code - zero) * scale        sum(x * w) + b  ==  scale * sum(code * w) + (b - zero * scale * sum(w))

The shift of what a layer makes is added to its bias in the same way, and the requantizing Relu then clips at the lowest
number of the range instead of at 0. Only padding must see the code of 0 itself: shifted tensors are padded before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import free_name
from quantkit.ir.tensor import Array, DType, Shape, Tensor
from quantkit.ops.inference import UNKNOWN, infer_shapes
from quantkit.ops.layers import broadcast_channels, find_layer
from quantkit.quantization.grid import Grid
from quantkit.quantization.plan import CONCATS, Plan, Unit
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import AFFINE, Spec
from quantkit.quantization.targets.tensorflow_streams import side_by_side

TOP = 255
RELU6_TOP = 6.0
_AGAIN = "the plan was made for another graph: annotate once more"
_SUM = "QuantizedConv2DWithBiasSumAndReluAndRequantize"
_CODES = DType.QUINT8
_WEIGHTS = DType.QINT8

Pads = tuple[tuple[int, int], ...]


def convert(graph: Graph, plan: Plan, ranges: Ranges, *, streams: bool = True) -> Graph:
    """The graph in fused 8-bit ops; tensors that are kept in float, and the graph's ends, keep their names.

    A unit whose form has no 8-bit kernel stays float; `float_reasons` names it.

    Args:
        graph: the float graph.
        plan: of `annotate` on this graph, for the target ``tensorflow``.
        ranges: of `collect` with this plan.
        streams: whether nodes are ordered for two threads that run side by side (intra-op 1, inter-op 2), the
            fastest setting for small 8-bit layers.

    Raises:
        GraphError: the plan was made for another graph, or its weights are not symmetric qint8.
        InputError: a range is missing.
    """
    work = _converted(graph, plan, ranges)
    made = work.graph()
    return side_by_side(made, work.sizes()) if streams else made


def float_reasons(graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[str, str]:
    """Why planned units and carried nodes stay float nevertheless, by node: no kernel has their form."""
    return _converted(graph, plan, ranges).reasons


def grids(graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, Grid]:
    """The codes of each quantized edge: quint8, shifted where negative numbers occur."""
    return {edge: _grid(graph, plan, ranges, edge) for edge in plan.activations}


def codes_name(edge: Edge) -> str:
    """The node that holds the codes of a float graph's edge."""
    return f"{edge.node}/codes" + (f"_{edge.port}" if edge.port else "")


def _grid(graph: Graph, plan: Plan, ranges: Ranges, edge: Edge) -> Grid:
    source = graph.nodes.get(edge.node)
    if source is not None and _casts_bytes(source) and plan.group_of(edge) == {edge}:
        return Grid(AFFINE, np.float32(1), np.int32(0))  # type: ignore[arg-type]
    return Grid.of_range(AFFINE, ranges[edge])


def _casts_bytes(node: Node) -> bool:
    return node.op == "Cast" and node.attrs.get("SrcT") is DType.UINT8


class _Coded(NamedTuple):
    """Where the codes of a tensor are, and what they mean."""

    edge: Edge
    scale: float
    zero: int

    @property
    def high(self) -> float:
        """What a kernel that knows no shift takes for the greatest number."""
        return float(np.float32(self.scale) * np.float32(TOP))


@dataclass(frozen=True)
class _Weights:
    """A layer's constants as the kernels read them.

    Attributes:
        codes: int8, of the layer's weights' shape.
        scale: (c_out,) or () float32.
        bias: (c_out,) float64, as in the float graph.
        sums: (c_out,) float64: what each channel's weights sum to.
    """

    codes: Array
    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float64]
    sums: npt.NDArray[np.float64]


def _converted(graph: Graph, plan: Plan, ranges: Ranges) -> "_Conversion":
    plan.require(ranges)
    work = _Conversion(graph, plan, ranges)
    last = {unit.name: unit for unit in plan.units}
    carried = frozenset(plan.carried)
    needed = graph.reachable()
    for name in graph.order:
        if name not in needed:
            continue
        if name in last:
            work.add_unit(last[name])
        elif name in carried:
            work.add_carried(graph[name])
        elif name not in plan.unit_of:
            work.keep(graph[name])
    for edge in graph.outputs:
        work.float_of(edge)
    return work


@dataclass
class _Conversion:
    """The graph while it grows, in execution order."""

    source: Graph
    plan: Plan
    ranges: Ranges
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = infer_shapes(self.source)
        self.grids = grids(self.source, self.plan, self.ranges)
        self.nodes: dict[str, Node] = {}
        self.coded: dict[Edge, _Coded] = {}
        self.scalars: dict[float, Edge] = {}

    def graph(self) -> Graph:
        made = Graph.of(
            [node.with_(controls=self._controls(node)) for node in self.nodes.values()],
            self.source.inputs,
            self.source.outputs,
            versions=self.source.versions,
            library=self.source.library,
            extra=self.source.extra,
        )
        ordered = keep_summands(made)
        needed = ordered.reachable() | ordered.input_names
        return ordered.with_nodes(node for node in ordered.nodes.values() if node.name in needed)

    def sizes(self) -> dict[str, Shape]:
        """Shapes of the nodes that hold codes."""
        return {coded.edge.node: self.shapes.get(edge, UNKNOWN) for edge, coded in self.coded.items()}

    def _controls(self, node: Node) -> tuple[str, ...]:
        """Those that are still there: inside a unit nothing can be waited for."""
        return tuple(name for name in node.controls if name in self.nodes)

    # Nodes

    def add(self, name: str, op: str, inputs: Sequence[Edge], **attrs: Attr) -> Edge:
        """A new node; its first output."""
        free = self._free(name)
        self.nodes[free] = Node(free, op, tuple(inputs), attrs=attrs)
        return Edge(free)

    def constant(self, name: str, values: npt.ArrayLike, dtype: DType | None = None) -> Edge:
        free = self._free(name)
        self.nodes[free] = constant(free, values, dtype)
        return Edge(free)

    def _free(self, name: str) -> str:
        """The wanted name, or that with a number where it is taken."""
        names = chain([name], (f"{name}_{number}" for number in count(1)))
        return next(free for free in names if free not in self.nodes and free not in self.source)

    def scalar(self, value: float) -> Edge:
        """A float constant; equal ones are one node."""
        if value not in self.scalars:
            self.scalars[value] = self.constant(f"quantized/range_{len(self.scalars)}", np.float32(value))
        return self.scalars[value]

    def span(self, *coded: _Coded) -> list[Edge]:
        """The least and the greatest number of codes, as kernels take them."""
        return [edge for one in coded for edge in (self.scalar(0.0), self.scalar(one.high))]

    def keep(self, node: Node) -> None:
        """Take a node over in float."""
        for edge in node.inputs:
            self.float_of(edge)
        self.nodes[node.name] = node

    def keep_unit(self, unit: Unit, reason: str) -> None:
        self.reasons[unit.layer] = reason
        for name in unit.nodes:
            for edge in self.source[name].inputs:
                if edge.node not in self.nodes and self.source[edge.node].is_constant:
                    self.keep(self.source[edge.node])
            self.keep(self.source[name])

    # Codes and numbers

    def grid_of(self, edge: Edge) -> _Coded | None:
        """What codes of an edge mean, with nowhere to find them; None: it has none."""
        grid = self.grids.get(edge)
        return None if grid is None else _Coded(Edge(""), float(grid.scale), int(grid.zero_point))

    def codes_of(self, edge: Edge) -> _Coded:
        """The codes of an edge; they are computed where it is float."""
        if edge not in self.coded:
            wanted = self.grid_of(edge)
            if wanted is None:
                raise GraphError(f"the plan reads codes of {str(edge)!r} and gives it none", hint=_AGAIN)
            self.coded[edge] = self._quantized(codes_name(edge), edge, wanted)
        return self.coded[edge]

    def _quantized(self, name: str, edge: Edge, wanted: _Coded) -> _Coded:
        source = self.source.nodes.get(edge.node)
        if source is not None and _casts_bytes(source) and (wanted.scale, wanted.zero) == (1.0, 0):
            made = self.add(name, "Bitcast", source.inputs, T=DType.UINT8, type=_CODES)
            return wanted._replace(edge=made)
        ends = self._float_ends(wanted)
        mode = b"MIN_FIRST" if wanted.zero else b"SCALED"
        made = self.add(name, "QuantizeV2", (edge, *ends), T=_CODES, mode=mode, ensure_minimum_range=0.0)
        return wanted._replace(edge=made)

    def _float_ends(self, coded: _Coded) -> tuple[Edge, Edge]:
        """The numbers that the lowest and the highest code stand for."""
        step = np.float32(coded.scale)
        return self.scalar(float(-coded.zero * step)), self.scalar(float((TOP - coded.zero) * step))

    def float_of(self, edge: Edge) -> None:
        """See that an edge of the float graph is there in float, under its name."""
        if edge.node in self.nodes:
            return
        coded = self.coded.get(edge)
        if coded is None:
            if self.source[edge.node].is_constant:
                self.nodes[edge.node] = self.source[edge.node]
                return
            raise GraphError(f"{str(edge)!r} is inside a unit and read from outside it", hint=_AGAIN)
        mode = b"MIN_FIRST" if coded.zero else b"SCALED"
        ends = self._float_ends(coded)
        node = Node(edge.node, "Dequantize", (coded.edge, *ends), attrs={"T": _CODES, "mode": mode})
        self.nodes[edge.node] = node.with_attrs(dtype=DType.FLOAT)

    def recoded(self, name: str, coded: _Coded, wanted: _Coded) -> _Coded:
        """The same numbers in other codes."""
        if (coded.scale, coded.zero) == (wanted.scale, wanted.zero):
            return coded
        mode = b"MIN_FIRST" if coded.zero else b"SCALED"
        numbers = self.add(
            f"{name}/float",
            "Dequantize",
            (coded.edge, *self._float_ends(coded)),
            T=_CODES,
            mode=mode,
            dtype=DType.FLOAT,
        )
        return self._quantized(f"{name}/recoded", numbers, wanted)

    # Carried nodes

    def add_carried(self, node: Node) -> None:
        output = Edge(node.name)
        wanted = self.grid_of(output)
        if wanted is None:
            raise GraphError(f"the plan carries {node.name!r} and gives it no codes", hint=_AGAIN)
        if node.op in CONCATS:
            self.coded[output] = self._concat(node, wanted)
            return
        made = self._moved(node, self.codes_of(node.inputs[0]))
        if made is None:
            self.reasons[node.name] = "its size is not known, so no pool computes it"
            self.keep(node)
        else:
            self.coded[output] = self.recoded(node.name, made, wanted)

    def _concat(self, node: Node, wanted: _Coded) -> _Coded:
        slot = 0 if node.op == "Concat" else len(node.inputs) - 1
        parts = [edge for place, edge in enumerate(node.inputs) if place != slot]
        axis = self.source.constant_of(node.inputs[slot])
        if axis is None:
            raise GraphError(f"{node.name!r} joins along a computed dimension", hint="run fold_constants first")
        rank = next((shape.rank for edge in parts if (shape := self.shapes.get(edge, UNKNOWN)).is_known), None)
        place = int(axis.array.reshape(-1)[0])
        if place < 0 and rank is None:
            raise GraphError(f"{node.name!r} joins along dimension {place} of an unknown number", hint="give its shape")
        place = place + (rank or 0) if place < 0 else place
        coded = [self.recoded(f"{node.name}/{at}", self.codes_of(edge), wanted) for at, edge in enumerate(parts)]
        # The plain op: it copies bytes twice as fast as QuantizedConcatV2, which minds ranges that are all one here.
        inputs = [*(one.edge for one in coded), self.constant(f"{node.name}/axis", np.int32(place))]
        name = codes_name(Edge(node.name))
        made = self.add(name, "ConcatV2", inputs, N=len(coded), T=_CODES, Tidx=DType.INT32)
        return wanted._replace(edge=made)

    def _moved(self, node: Node, coded: _Coded) -> _Coded | None:
        """What a carried node of one data input makes of its codes; None: it can not."""
        name = codes_name(Edge(node.name))
        if node.op in ("MaxPool", "AvgPool"):
            window = {key: node.attrs[key] for key in ("ksize", "strides", "padding")}
            made = self.add(name, f"Quantized{node.op}", (coded.edge, *self.span(coded)), T=_CODES, **window)
        elif node.op == "Mean":
            return self._spatial_mean(node, name, coded)
        elif node.op in ("Relu", "Relu6"):
            made = self._clipped(name, node.op, coded)
        else:
            made = self._on_bytes(name, node, coded)
        return coded._replace(edge=made)

    def _spatial_mean(self, node: Node, name: str, coded: _Coded) -> _Coded | None:
        dims = self.shapes.get(node.inputs[0], UNKNOWN).dims
        if dims is None or None in dims[1:]:
            return None
        window: dict[str, Attr] = {"ksize": (1, dims[1], dims[2], 1), "strides": (1, 1, 1, 1), "padding": b"VALID"}
        inputs = (coded.edge, *self.span(coded))
        if node.attrs.get("keep_dims"):
            return coded._replace(edge=self.add(name, "QuantizedAvgPool", inputs, T=_CODES, **window))
        made = self.add(f"{name}/pool", "QuantizedAvgPool", inputs, T=_CODES, **window)
        shape = self.constant(f"{name}/shape", np.array([-1, dims[3]], np.int32))
        flat = Node(name, "Reshape", (made, shape), attrs={"Tshape": DType.INT32})
        return coded._replace(edge=self._on_bytes(name, flat, coded._replace(edge=made)))

    def _clipped(self, name: str, op: str, coded: _Coded) -> Edge:
        """Codes after a Relu or Relu6, where their range does not clip by itself."""
        low, high = self._float_ends(coded)
        above = op == "Relu6" and (TOP - coded.zero) * coded.scale > RELU6_TOP * (1 + 1e-6)
        if not above and not coded.zero:
            return coded.edge
        kernel = "QuantizedRelu6" if above else "QuantizedRelu"
        return self.add(name, kernel, (coded.edge, low, high), Tinput=_CODES, out_type=_CODES)

    def _on_bytes(self, name: str, node: Node, coded: _Coded) -> Edge:
        """Codes moved by an op that has no kernel for codes and one for bytes."""
        bytes_ = self.add(f"{name}/bytes", "Bitcast", (coded.edge,), T=_CODES, type=DType.UINT8)
        for edge in node.inputs[1:]:
            if edge.node not in self.nodes:
                self.float_of(edge)
        attrs = {key: value for key, value in node.attrs.items() if not key.startswith("_")}
        inputs = [bytes_, *node.inputs[1:]]
        op = node.op
        if op == "Pad":
            op = "PadV2"
            inputs.append(self.constant(f"{name}/zero", np.uint8(coded.zero)))
        moved = self.add(f"{name}/moved", op, inputs, **{**attrs, "T": DType.UINT8})
        return self.add(name, "Bitcast", (moved,), T=DType.UINT8, type=_CODES)

    # Units

    def add_unit(self, unit: Unit) -> None:
        layer = self.source[unit.layer]
        output = self.grid_of(unit.output)
        weights = self._weights(unit, layer)
        coded, pads, reason = self._padded(unit, layer, weights.codes.shape)
        if coded is None or pads is None:
            self.keep_unit(unit, reason)
        elif layer.op == "MatMul":
            self._dense(unit, coded, weights, output)
        elif output is None or (unit.add and layer.op != "Conv2D"):
            self._convolution_to_float(unit, coded, pads, weights)
        else:
            self._convolution(unit, coded, pads, weights, output)

    def _weights(self, unit: Unit, layer: Node) -> _Weights:
        spec = self.plan.weights[unit.weights]
        facts = find_layer(layer)
        found = self.source.constant_of(Edge(unit.weights))
        if facts is None or found is None:
            raise GraphError(f"the plan's unit {unit.layer!r} is no layer of constant weights", hint=_AGAIN)
        if spec.dtype is not _WEIGHTS or not spec.symmetric:
            raise GraphError(
                f"oneDNN reads weights as symmetric qint8, and the plan gives {unit.weights!r} {spec}",
                hint="use the scheme of the target tensorflow",
            )
        values = found.array.astype(np.float32)
        if layer.op == "MatMul" and layer.attrs.get("transpose_b"):
            values = np.ascontiguousarray(values.T)
            spec = Spec(spec.dtype, True, spec.per_channel, spec.half_range, (1,) if spec.per_channel else ())
            axes: tuple[int, ...] = (1,)
        else:
            axes = facts.weights_axes
        grid = Grid.of_weights(spec, values)
        codes = grid.encode(values)
        rest = tuple(axis for axis in range(values.ndim) if axis not in axes)
        sums = codes.sum(rest, dtype=np.int64).reshape(-1) * grid.scale.astype(np.float64)
        return _Weights(codes, grid.scale, self._bias(unit, layer, len(sums)), sums)

    def _bias(self, unit: Unit, layer: Node, num_channels: int) -> npt.NDArray[np.float64]:
        made = np.zeros(num_channels)
        facts = find_layer(layer)
        if unit.bias and facts is not None:
            node = self.source[unit.bias]
            value = next(found for edge in node.inputs if (found := self.source.constant_of(edge)) is not None)
            made = made + _channels(value, facts.rank, facts.axis, num_channels, unit.bias)
        return made

    def _padded(
        self, unit: Unit, layer: Node, kernel: tuple[int, ...]
    ) -> tuple[_Coded | None, dict[str, Attr] | None, str]:
        """The codes a layer reads, and its padding attributes; or nothing, and why."""
        if layer.op == "MatMul":
            return self.codes_of(unit.input), {}, ""
        read, outside = self._pad_before(unit, layer)
        coded = self.codes_of(read)
        same = self._same_pads(layer, read, kernel)
        if layer.attrs["padding"] == b"SAME" and not coded.zero:
            return coded, {"padding": b"SAME", "padding_list": ()}, ""
        pads = outside or (same if layer.attrs["padding"] == b"SAME" else _explicit(layer))
        if pads is None:
            return None, None, "its padding depends on a size that is not known, and its input has a shifted 0"
        if not any(map(any, pads)):
            return coded, {"padding": b"VALID", "padding_list": ()}, ""
        if not coded.zero and pads == same:
            return coded, {"padding": b"SAME", "padding_list": ()}, ""
        # TensorFlow infers a wrong shape for a depthwise convolution with listed paddings.
        if not coded.zero and layer.op == "Conv2D":
            listed = (0, 0, *(size for pair in pads for size in pair), 0, 0)
            return coded, {"padding": b"VALID", "padding_list": listed}, ""
        return self._padded_codes(unit, read, coded, pads), {"padding": b"VALID", "padding_list": ()}, ""

    def _padded_codes(self, unit: Unit, read: Edge, coded: _Coded, pads: Pads) -> _Coded:
        name = f"{unit.name}/padded"
        sizes = self.constant(f"{name}/sizes", np.array([(0, 0), *pads, (0, 0)], np.int32))
        node = Node(name, "Pad", (read, sizes), attrs={"Tpaddings": DType.INT32})
        return coded._replace(edge=self._on_bytes(name, node, coded))

    def _pad_before(self, unit: Unit, layer: Node) -> tuple[Edge, Pads | None]:
        """What a layer reads behind a Pad that it can do itself, and that padding."""
        pad = self.source[unit.input.node]
        if pad.op != "Pad" or pad.name not in self.plan.carried or layer.attrs["padding"] != b"VALID":
            return unit.input, None
        sizes = self.source.constant_of(pad.inputs[1])
        if sizes is None or sizes.shape != (4, 2) or sizes.array[[0, 3]].any() or self.codes_of(pad.inputs[0]).zero:
            return unit.input, None
        return pad.inputs[0], _pairs(sizes.array[1:3])

    def _same_pads(self, layer: Node, read: Edge, kernel: tuple[int, ...]) -> Pads | None:
        """What SAME padding would add to the rows and the columns; None: not known."""
        dims = self.shapes.get(read, UNKNOWN).dims or (None,) * 4
        strides, dilations = _numbers(layer, "strides"), _numbers(layer, "dilations")
        found = [_same(dims[at], kernel[at - 1], strides[at], dilations[at]) for at in (1, 2)]
        return None if None in found else tuple(pair for pair in found if pair is not None)

    def _layer_inputs(
        self, unit: Unit, coded: _Coded, weights: _Weights, bias: npt.NDArray[np.float64]
    ) -> tuple[list[Edge], list[Edge]]:
        """Input, weights and bias; the ranges of input and weights."""
        shifted = bias - coded.zero * coded.scale * weights.sums
        reach = (weights.scale * np.float32(127)).astype(np.float32)
        data = [
            coded.edge,
            self.constant(f"{unit.name}/weights", weights.codes, _WEIGHTS),
            self.constant(f"{unit.name}/bias", shifted.astype(np.float32)),
        ]
        ends = [self.constant(f"{unit.name}/weights_min", -reach), self.constant(f"{unit.name}/weights_max", reach)]
        return data, [*self.span(coded), *ends]

    def _convolution(self, unit: Unit, coded: _Coded, pads: dict[str, Attr], weights: _Weights, output: _Coded) -> None:
        layer = self.source[unit.layer]
        bias = weights.bias + output.zero * output.scale
        attrs: dict[str, Attr] = {
            "Tinput": _CODES,
            "Tfilter": _WEIGHTS,
            "Tbias": DType.FLOAT,
            "out_type": _CODES,
            "strides": layer.attrs["strides"],
            "dilations": _numbers(layer, "dilations"),
            **pads,
        }
        tail: list[Edge] = []
        op = "QuantizedDepthwiseConv2D" if layer.op == "DepthwiseConv2dNative" else "QuantizedConv2D"
        form = "WithBiasAndReluAndRequantize"
        if unit.summand is not None:
            summand = self.codes_of(unit.summand)
            bias = bias - summand.zero * summand.scale
            form = "WithBiasSumAndReluAndRequantize"
            attrs["Tsummand"] = _CODES
            tail = [summand.edge, *self.span(summand)]
        data, spans = self._layer_inputs(unit, coded, weights, bias)
        clips = bool(unit.activation) and self._needs_clip(unit, output)
        name = codes_name(unit.output)
        made = self.add(
            f"{name}/unclipped" if clips else name, f"{op}{form}", [*data, *spans, *self.span(output), *tail], **attrs
        )
        if clips:
            made = self._clipped(name, self.source[unit.activation].op, output._replace(edge=made))
        self.coded[unit.output] = output._replace(edge=made)

    def _needs_clip(self, unit: Unit, output: _Coded) -> bool:
        """Whether the activation clips inside the range of its result: others share that range."""
        above = self.source[unit.activation].op == "Relu6" and output.high > RELU6_TOP * (1 + 1e-6)
        return bool(output.zero) or above

    def _convolution_to_float(self, unit: Unit, coded: _Coded, pads: dict[str, Attr], weights: _Weights) -> None:
        """A convolution whose sums are wanted in float: 32-bit codes, all channels in one step.

        The kernel writes every channel in steps of the widest channel's, whatever ranges it reports.
        """
        layer = self.source[unit.layer]
        kind = "QuantizedDepthwiseConv2D" if layer.op == "DepthwiseConv2dNative" else "QuantizedConv2D"
        data, spans = self._layer_inputs(unit, coded, weights, weights.bias)
        name = codes_name(Edge(unit.layer))
        attrs: dict[str, Attr] = {"Tinput": _CODES, "Tfilter": _WEIGHTS, "out_type": DType.QINT32, **pads}
        if kind == "QuantizedConv2D":
            attrs["Tbias"] = DType.FLOAT
        made = self.add(
            name,
            f"{kind}WithBias",
            [*data, *spans],
            strides=layer.attrs["strides"],
            dilations=_numbers(layer, "dilations"),
            **attrs,
        )
        step = coded.scale * float(weights.scale.max())
        self._numbers_of(unit, name, made, step)

    def _numbers_of(self, unit: Unit, name: str, sums: Edge, step: float) -> None:
        """The rest of a unit in float, after 32-bit codes that are multiples of a step."""
        whole = self.add(f"{name}/bits", "Bitcast", (sums,), T=DType.QINT32, type=DType.INT32)
        numbers = self.add(f"{name}/numbers", "Cast", (whole,), SrcT=DType.INT32, DstT=DType.FLOAT)
        last = unit.bias or unit.layer
        self.nodes[last] = Node(last, "Mul", (numbers, self.scalar(step)), attrs={"T": DType.FLOAT})
        for tail in (unit.add, unit.activation):
            if tail:
                self.keep(self.source[tail])

    def _dense(self, unit: Unit, coded: _Coded, weights: _Weights, output: _Coded | None) -> None:
        """A matrix product; its result is float where nothing reads codes of it, or a residual follows."""
        to_codes = output is not None and not unit.add
        bias = weights.bias
        if output is not None and to_codes:
            bias = bias + output.zero * output.scale
        data, spans = self._layer_inputs(unit, coded, weights, bias)
        name = codes_name(unit.output) if to_codes else unit.bias or unit.layer
        clips = bool(to_codes and output is not None and unit.activation and self._needs_clip(unit, output))
        attrs: dict[str, Attr] = {
            "T1": _CODES,
            "T2": _WEIGHTS,
            "Tbias": DType.FLOAT,
            "U": DType.FLOAT,
            "Tdevice_inputs": (_CODES, _WEIGHTS, DType.FLOAT),
            "input_quant_mode": b"SCALED",
            "output_quant_mode": b"SCALED",
            "is_weight_const": True,
            "is_bias_const": True,
            "transpose_a": False,
            "transpose_b": False,
        }
        if output is not None and to_codes:
            attrs |= {
                "Tout": _CODES,
                "Thost_inputs": (DType.FLOAT,) * 6,
                "Tdevice_outputs": (_CODES,),
                "Thost_outputs": (DType.FLOAT,) * 2,
                "fused_ops": (b"BiasAdd", b"Relu", b"Requantize"),
            }
            inputs = [*data, *spans, *self.span(output)]
            made = self.add(f"{name}/unclipped" if clips else name, "_QuantizedMatMul", inputs, **attrs)
            if clips:
                made = self._clipped(name, self.source[unit.activation].op, output._replace(edge=made))
            self.coded[unit.output] = output._replace(edge=made)
            return
        attrs |= {
            "Tout": DType.FLOAT,
            "Thost_inputs": (DType.FLOAT,) * 4,
            "Tdevice_outputs": (DType.FLOAT,),
            "Thost_outputs": (),
            "fused_ops": (b"BiasAdd", b"Dequantize"),
        }
        self.nodes[name] = Node(name, "_QuantizedMatMul", (*data, *spans), attrs=attrs)
        for tail in (unit.add, unit.activation):
            if tail:
                self.keep(self.source[tail])


def _channels(value: Tensor, rank: int, axis: int, num_channels: int, name: str) -> Array:
    found = broadcast_channels(value, rank=rank, axis=axis, num_channels=num_channels)
    if found is None:
        raise GraphError(f"{name!r} adds no bias per channel, as the plan says", hint=_AGAIN)
    return found


def _numbers(layer: Node, name: str) -> tuple[int, ...]:
    value = layer.attrs.get(name)
    return value if isinstance(value, tuple) and value else (1, 1, 1, 1)


def _explicit(layer: Node) -> Pads:
    """Paddings that a layer names itself; VALID: none."""
    if layer.attrs["padding"] != b"EXPLICIT":
        return ((0, 0), (0, 0))
    return _pairs(np.reshape(np.array(layer.attrs["explicit_paddings"]), (4, 2))[1:3])


def _pairs(values: Array) -> Pads:
    return tuple((int(before), int(after)) for before, after in values)


def _same(size: int | None, kernel: int, stride: int, dilation: int) -> tuple[int, int] | None:
    """SAME padding of one dimension; None: it depends on a size that is not known."""
    reach = (kernel - 1) * dilation + 1
    if stride == 1 or reach <= 1:
        total = reach - 1
    elif size is None:
        return None
    else:
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    return total // 2, total - total // 2


def keep_summands(graph: Graph) -> Graph:
    """Give a residual sum a copy of what it adds where something else may read that later: the sum writes over it.

    `convert` has done so for the graph's own ends. Who asks for further tensors of an 8-bit graph does it again with
    these as outputs: TensorFlow crashes where a sum can not have its summand for itself.
    """
    nodes = dict(graph.nodes)
    for node in graph.nodes.values():
        if node.op != _SUM:
            continue
        slot = len(node.inputs) - 3
        summand = node.inputs[slot]
        if graph[summand.node].op != "Bitcast" and summand.node not in graph.ends:
            others = {use.node.name for use in graph.uses[summand]} - {node.name}
            if not others or others <= _ancestors(graph, node.name):
                continue
        # A pool of one number copies; the mark keeps TensorFlow from making one node of equal copies.
        window: dict[str, Attr] = dict.fromkeys(("ksize", "strides"), (1, 1, 1, 1))
        attrs: dict[str, Attr] = {"T": _CODES, "padding": b"VALID", "_copied_for": node.name.encode(), **window}
        copy = Node(free_name(graph, f"{node.name}/summand"), "QuantizedMaxPool", (summand, *node.inputs[slot + 1 :]))
        nodes[copy.name] = copy.with_(attrs=attrs)
        nodes[node.name] = node.reading(slot, Edge(copy.name))
    return graph.with_nodes(nodes.values())


def _ancestors(graph: Graph, name: str) -> set[str]:
    found: set[str] = set()
    stack = [name]
    while stack:
        for edge in graph[stack.pop()].inputs:
            if edge.node not in found:
                found.add(edge.node)
                stack.append(edge.node)
    return found
