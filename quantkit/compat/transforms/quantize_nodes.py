"""The original's quantization of graphs with 8-bit ops."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from quantkit.compat.transforms.defaults import op_of
from quantkit.compat.transforms.flatten_atrous_conv import copy_attribute
from quantkit.compat.transforms.matching import (
    ANY,
    CONST,
    ClassicMatch,
    ClassicPattern,
    pattern,
    rename_inputs,
    replace_matches,
)
from quantkit.compat.transforms.merge_duplicate_nodes import merge
from quantkit.compat.transforms.nodes import NodeDef, constant, node_of, split
from quantkit.compat.transforms.table import ClassicContext, check_inputs, classic_transform
from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Node
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import input_dtypes, output_dtypes
from quantkit.transforms.precision._quantized_ops import QUANTIZED_OPS, QuantizedOp

FAKE_QUANT = "FakeQuantWithMinMaxVars"
HOISTED_DEPTHS = (3, 2, 1)
RENAMED = "__RENAMED_PLACEHOLDER__"
EIGHT_BIT: dict[str, Attr] = {"T": DType.QUINT8, "mode": b"MIN_FIRST"}

OptionalRange = tuple[float, float] | None


REDUNDANT_REQUANTIZE = pattern(
    "Requantize",
    pattern(
        "QuantizeV2",
        pattern(
            "Dequantize",
            pattern(
                "Requantize",
                ANY,
                ANY,
                ANY,
                pattern("RequantizationRange"),
                pattern("RequantizationRange"),
            ),
            pattern("Requantize"),
            pattern("Requantize"),
        ),
        CONST,
        CONST,
    ),
    pattern("QuantizeV2"),
    pattern("QuantizeV2"),
    CONST,
    CONST,
)
ROUND_TRIP = pattern("QuantizeV2", pattern("Dequantize"), pattern("Min"), pattern("Max"))


@classic_transform(exact=False)
def quantize_nodes(nodes: Sequence[NodeDef], context: ClassicContext) -> list[NodeDef]:
    """Replace float ops by 8-bit ops between QuantizeV2 and Dequantize, and drop adjacent pairs."""
    ignored = set(context.values("ignore_op"))
    ops = {name: op for name, op in QUANTIZED_OPS.items() if name not in ignored}
    result = _quantize_placeholders(nodes, _parse_range(context, "input"))
    check_inputs(result)
    for depth in HOISTED_DEPTHS:
        result = _hoist_fake_quants(result, depth)
    check_inputs(result)
    outputs = {node_of(name) for name in context.outputs}
    steps: tuple[Callable[[list[NodeDef]], list[NodeDef]], ...] = (
        _requantize_fake_quants,
        lambda nodes: _quantize_ops(nodes, ops, _parse_range(context, "fallback")),
        lambda nodes: replace_matches(nodes, REDUNDANT_REQUANTIZE, _merge_requantize),
        lambda nodes: merge(nodes, {*context.inputs, *context.outputs}),
        lambda nodes: _remove_round_trips(nodes, outputs),
    )
    for step in steps:
        result = step(result)
        check_inputs(result)
    return result


def _parse_range(context: ClassicContext, name: str) -> OptionalRange:
    low, high = f"{name}_min", f"{name}_max"
    if not context.values(low) and not context.values(high):
        return None
    if not context.values(low) or not context.values(high):
        raise GraphError(f"You must pass both {low} and {high} into quantize_nodes")
    return context.float32(low, 0.0), context.float32(high, 0.0)


def _range_constants(
    prefix: str, bounds: tuple[float, float], suffixes: tuple[str, str] = ("min", "max")
) -> list[NodeDef]:
    return [
        constant(f"{prefix}{suffix}", np.asarray(bound, np.float32))
        for suffix, bound in zip(suffixes, bounds, strict=True)
    ]


def _dequantize(name: str, source: str) -> NodeDef:
    return NodeDef(name, "Dequantize", _quantized_tensor(source), EIGHT_BIT)


def _quantized_tensor(name: str) -> tuple[str, str, str]:
    """Return the input texts of a quantized tensor: values, minimum and maximum."""
    return f"{name}:0", f"{name}:1", f"{name}:2"


def _quantize_placeholders(nodes: Sequence[NodeDef], bounds: OptionalRange) -> list[NodeDef]:
    """Change every placeholder to quint8, of any type before, and dequantize for its consumers."""
    if bounds is None:
        return list(nodes)
    result: list[NodeDef] = []
    to_dequantize: dict[str, str] = {}
    to_placeholder: dict[str, str] = {}
    for node in nodes:
        if node.op != "Placeholder":
            result.append(node)
            continue
        constants = _range_constants(f"{node.name}_eightbit/", bounds)
        dequantize = NodeDef(
            f"{node.name}_eightbit/dequantize",
            "Dequantize",
            (f"{node.name}{RENAMED}", *(bound.name for bound in constants)),
            EIGHT_BIT,
        )
        to_dequantize[node.name] = dequantize.name
        to_placeholder[f"{node.name}{RENAMED}"] = node.name
        result += [node.with_attrs(dtype=DType.QUINT8), *constants, dequantize]
    return rename_inputs(rename_inputs(result, to_dequantize), to_placeholder)


def _hoist_fake_quants(nodes: Sequence[NodeDef], depth: int) -> list[NodeDef]:
    """Move fake quantizations before a chain of single-input nodes, regardless of their ops."""
    chain = ANY
    for _ in range(depth):
        chain = pattern("*", chain)

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        fake_quant, low, high = match.node, match.inputs[1].node, match.inputs[2].node
        upstream: list[NodeDef] = []
        inner = match
        for _ in range(depth + 1):
            inner = inner.inputs[0]
            upstream.append(inner.node)
        first = upstream[-2]
        hoisted = fake_quant.with_(name=f"{fake_quant.name}_hoisted", inputs=(first.inputs[0], *fake_quant.inputs[1:]))
        upstream[-2] = first.with_(inputs=(hoisted.name, *first.inputs[1:]))
        upstream[0] = upstream[0].with_(name=fake_quant.name)
        return [hoisted, low, high, *upstream]

    return replace_matches(nodes, pattern(FAKE_QUANT, chain, CONST, CONST), replace)


def _requantize_fake_quants(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        fake_quant = match.node
        source, low, high = (inner.node for inner in match.inputs)
        prefix = f"{fake_quant.name}_eightbit"
        wide = NodeDef(
            f"{prefix}/quantize",
            "QuantizeV2",
            (fake_quant.inputs[0], low.name, high.name),
            {"T": DType.QINT32, "mode": b"MIN_FIRST"},
        )
        narrow = _requantize(f"{prefix}/requantize", wide.name, (low.name, high.name))
        return [source, low, high, wide, narrow, _dequantize(fake_quant.name, narrow.name)]

    return replace_matches(nodes, pattern(FAKE_QUANT, ANY, CONST, CONST), replace)


def _requantize(name: str, wide: str, bounds: Sequence[str]) -> NodeDef:
    attrs: dict[str, Attr] = {"Tinput": DType.QINT32, "out_type": DType.QUINT8}
    return NodeDef(name, "Requantize", (*_quantized_tensor(wide), *bounds), attrs)


def _quantize_ops(nodes: Sequence[NodeDef], ops: Mapping[str, QuantizedOp], fallback: OptionalRange) -> list[NodeDef]:
    """Replace each float op by an 8-bit op between QuantizeV2 and Dequantize."""

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        node = match.node
        quantized_op = ops[node.op]
        if not _is_float(node, quantized_op):
            return match.nodes
        result: list[NodeDef] = []
        quantized_inputs: dict[int, str] = {}
        for index, text in enumerate(node.inputs):
            if index not in quantized_op.raw:
                parts = _quantize_input(f"{node.name}_eightbit/{_name_part(text)}", text)
                result += parts
                quantized_inputs[index] = parts[-1].name
        main = _quantize_op(node, quantized_op, quantized_inputs)
        result.append(main)
        narrow = main.name
        if quantized_op.wide_attr:
            bounds = _requantization_bounds(main.name, fallback)
            names = [f"{bounds[0].name}:{port}" for port in (0, 1)]
            if fallback:
                names = [bound.name for bound in bounds]
            result += [*bounds, _requantize(f"{main.name}/requantize", main.name, names)]
            narrow = result[-1].name
        return [*result, _dequantize(node.name, narrow)]

    return replace_matches(nodes, ClassicPattern("|".join(ops)), replace)


def _is_float(node: NodeDef, quantized_op: QuantizedOp) -> bool:
    op = op_of(node)
    for arg in (*op.inputs, *op.outputs):
        for key in (arg.number_attr, arg.type_attr):
            if key and key not in node.attrs:
                where = f"[[{{{{node {node.name}}}}}]]"
                hint = "run add_default_attributes first"
                raise GraphError(f"No attr named '{key}' in NodeDef:\n\t {where}", hint)
    typed = Node(node.name, node.op, attrs=node.attrs)
    dtypes = [
        dtype
        for index, dtype in enumerate(input_dtypes(typed))
        if index < len(node.inputs) and index not in quantized_op.raw
    ]
    return all(dtype is DType.FLOAT for dtype in (*dtypes, *output_dtypes(typed)))


def _name_part(text: str) -> str:
    """Return an input text in a form that is valid in a node name."""
    prefix, node, suffix = split(text)
    return f"{'__hat__' if prefix else ''}{node}{suffix.replace(':', '__port__')}"


def _quantize_input(prefix: str, text: str) -> list[NodeDef]:
    """Return the nodes that compute a tensor's range and quantize it; the last is QuantizeV2."""
    dependency = (f"^{node_of(text)}",)
    shape = constant(f"{prefix}/reshape_dims", np.array([-1], np.int32))
    axis = constant(f"{prefix}/reduction_dims", np.array([0], np.int32))
    shape, axis = shape.with_(inputs=dependency), axis.with_(inputs=dependency)
    attrs: dict[str, Attr] = {"T": DType.FLOAT}
    flat = NodeDef(f"{prefix}/reshape", "Reshape", (text, shape.name), attrs)
    bounds = [
        NodeDef(f"{prefix}/{op.lower()}", op, (flat.name, axis.name), {**attrs, "keep_dims": False})
        for op in ("Min", "Max")
    ]
    inputs = (text, *(bound.name for bound in bounds))
    quantize = NodeDef(f"{prefix}/quantize", "QuantizeV2", inputs, EIGHT_BIT)
    return [shape, axis, flat, *bounds, quantize]


def _quantize_op(node: NodeDef, quantized_op: QuantizedOp, quantized_inputs: Mapping[int, str]) -> NodeDef:
    attrs: dict[str, Attr] = {key: copy_attribute(node, key) for key in quantized_op.copied}
    attrs |= dict.fromkeys(quantized_op.type_attrs, DType.QUINT8)
    if quantized_op.wide_attr:
        attrs[quantized_op.wide_attr] = DType.QINT32
    inputs = [
        f"{quantized_inputs[index]}:0" if index in quantized_inputs else text for index, text in enumerate(node.inputs)
    ]
    names = quantized_inputs.values()
    if quantized_op.groups_ranges:
        inputs += [f"{name}:{port}" for port in (1, 2) for name in names]
    else:
        inputs += [f"{name}:{port}" for name in names for port in (1, 2)]
    return NodeDef(f"{node.name}/eightbit", quantized_op.name, tuple(inputs), attrs)


def _requantization_bounds(wide: str, fallback: OptionalRange) -> list[NodeDef]:
    """Return constants for the fallback range, or else a node that computes the range."""
    if fallback:
        return _range_constants(f"{wide}/", fallback, ("fallback_min", "fallback_max"))
    name, inputs = f"{wide}/requant_range", _quantized_tensor(wide)
    return [NodeDef(name, "RequantizationRange", inputs, {"Tinput": DType.QINT32})]


def _merge_requantize(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
    outer = match.node
    source = match.inputs[0].inputs[0].inputs[0].inputs[0].node
    low, high = match.inputs[3].node, match.inputs[4].node
    inputs = (*_quantized_tensor(source.name), low.name, high.name)
    return [source, low, high, outer.with_(inputs=inputs)]


def _remove_round_trips(nodes: Sequence[NodeDef], outputs: set[str]) -> list[NodeDef]:
    """Remove Dequantize followed by QuantizeV2."""
    names: dict[str, str] = {}

    def replace(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        quantize, dequantize = match.node, match.inputs[0].node
        names.update(zip(_quantized_tensor(quantize.name), dequantize.inputs, strict=False))
        return match.nodes if dequantize.name in outside | outputs else []

    return rename_inputs(replace_matches(nodes, ROUND_TRIP, replace, allow_inconsistencies=True), names)
