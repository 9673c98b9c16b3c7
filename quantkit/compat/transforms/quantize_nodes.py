"""The original's 8-bit graphs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from quantkit.compat.transforms.defaults import op_of
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

FAKE_QUANT = "FakeQuantWithMinMaxVars"
HOISTED_DEPTHS = (3, 2, 1)
RENAMED = "__RENAMED_PLACEHOLDER__"
EIGHT_BIT: dict[str, Attr] = {"T": DType.QUINT8, "mode": b"MIN_FIRST"}

Range = tuple[float, float] | None


@dataclass(frozen=True)
class ClassicQuantizedOp:
    """What a float op becomes.

    Attributes:
        copied: attributes that it keeps.
        types: attributes that say the type of 8-bit inputs.
        wide_type: attribute that says the type of a 32-bit output; nothing: the output has 8 bits.
        raw: inputs that stay as they are.
        ranges_last: whether all minima come before all maxima.
    """

    copied: tuple[str, ...] = ()
    types: tuple[str, ...] = ("T",)
    wide_type: str = ""
    raw: frozenset[int] = frozenset()
    ranges_last: bool = False


OPS: Mapping[str, ClassicQuantizedOp] = {
    "Add": ClassicQuantizedOp((), ("T1", "T2"), "Toutput"),
    "AvgPool": ClassicQuantizedOp(("ksize", "strides", "padding")),
    "BiasAdd": ClassicQuantizedOp((), ("T1", "T2"), "out_type"),
    "Concat": ClassicQuantizedOp(("N",), raw=frozenset({0}), ranges_last=True),
    "Conv2D": ClassicQuantizedOp(("strides", "padding"), ("Tinput", "Tfilter"), "out_type"),
    "MatMul": ClassicQuantizedOp(("transpose_a", "transpose_b"), ("T1", "T2"), "Toutput"),
    "MaxPool": ClassicQuantizedOp(("ksize", "strides", "padding")),
    "Mul": ClassicQuantizedOp((), ("T1", "T2"), "Toutput"),
    "Relu": ClassicQuantizedOp((), ("Tinput",)),
    "Relu6": ClassicQuantizedOp((), ("Tinput",)),
    "ResizeBilinear": ClassicQuantizedOp(("align_corners",), raw=frozenset({1})),
    "Reshape": ClassicQuantizedOp((), raw=frozenset({1})),
}
DETOUR = pattern(
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
    """Float ops become 8-bit ops, each between conversions, of which those that meet are dropped."""
    ignored = set(context.values("ignore_op"))
    ops = {name: op for name, op in OPS.items() if name not in ignored}
    result = _checked(_quantize_placeholders(nodes, _range(context, "input")))
    for depth in HOISTED_DEPTHS:
        result = _hoist(result, depth)
    result = _checked(_checked(result) and _requantize_fake_quants(result))
    fallback = _range(context, "fallback")
    result = _checked(
        replace_matches(result, ClassicPattern("|".join(ops)), _quantizer(ops, fallback))
    )
    result = _checked(replace_matches(result, DETOUR, _merged_requantize))
    result = _checked(merge(result, {*context.inputs, *context.outputs}))
    return _checked(_without_round_trips(result, {node_of(name) for name in context.outputs}))


def _checked(nodes: list[NodeDef]) -> list[NodeDef]:
    check_inputs(nodes)
    return nodes


def _range(context: ClassicContext, name: str) -> Range:
    low, high = f"{name}_min", f"{name}_max"
    if not context.values(low) and not context.values(high):
        return None
    if not context.values(low) or not context.values(high):
        raise GraphError(f"You must pass both {low} and {high} into quantize_nodes")
    return context.float32(low, 0.0), context.float32(high, 0.0)


def _bounds(
    prefix: str, bounds: tuple[float, float], words: tuple[str, str] = ("min", "max")
) -> list[NodeDef]:
    return [
        constant(f"{prefix}{word}", np.asarray(bound, np.float32))
        for word, bound in zip(words, bounds, strict=True)
    ]


def _dequantize(name: str, source: str) -> NodeDef:
    return NodeDef(name, "Dequantize", _ports(source), EIGHT_BIT)


def _ports(name: str) -> tuple[str, str, str]:
    return f"{name}:0", f"{name}:1", f"{name}:2"


def _quantize_placeholders(nodes: Sequence[NodeDef], bounds: Range) -> list[NodeDef]:
    """Every placeholder takes codes, whatever it took before, and is decoded for its readers."""
    if bounds is None:
        return list(nodes)
    result: list[NodeDef] = []
    to_decoded: dict[str, str] = {}
    back: dict[str, str] = {}
    for node in nodes:
        if node.op != "Placeholder":
            result.append(node)
            continue
        ends = _bounds(f"{node.name}_eightbit/", bounds)
        decoded = NodeDef(
            f"{node.name}_eightbit/dequantize",
            "Dequantize",
            (f"{node.name}{RENAMED}", *(end.name for end in ends)),
            EIGHT_BIT,
        )
        to_decoded[node.name] = decoded.name
        back[f"{node.name}{RENAMED}"] = node.name
        result += [node.with_attrs(dtype=DType.QUINT8), *ends, decoded]
    return rename_inputs(rename_inputs(result, to_decoded), back)


def _hoist(nodes: Sequence[NodeDef], depth: int) -> list[NodeDef]:
    """Fake quantizations move before the single-input nodes that they follow, whatever these compute."""
    chain = ANY
    for _ in range(depth):
        chain = pattern("*", chain)

    def make(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        fake, low, high = match.node, match.inputs[1].node, match.inputs[2].node
        passed: list[NodeDef] = []
        inner = match
        for _ in range(depth + 1):
            inner = inner.inputs[0]
            passed.append(inner.node)
        deepest = passed[-2]
        hoisted = fake.with_(
            name=f"{fake.name}_hoisted", inputs=(deepest.inputs[0], *fake.inputs[1:])
        )
        passed[-2] = deepest.with_(inputs=(hoisted.name, *deepest.inputs[1:]))
        passed[0] = passed[0].with_(name=fake.name)
        return [hoisted, low, high, *passed]

    return replace_matches(nodes, pattern(FAKE_QUANT, chain, CONST, CONST), make)


def _requantize_fake_quants(nodes: Sequence[NodeDef]) -> list[NodeDef]:
    def make(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        fake = match.node
        source, low, high = (inner.node for inner in match.inputs)
        prefix = f"{fake.name}_eightbit"
        wide = NodeDef(
            f"{prefix}/quantize",
            "QuantizeV2",
            (fake.inputs[0], low.name, high.name),
            {"T": DType.QINT32, "mode": b"MIN_FIRST"},
        )
        narrow = _requantize(f"{prefix}/requantize", wide.name, (low.name, high.name))
        return [source, low, high, wide, narrow, _dequantize(fake.name, narrow.name)]

    return replace_matches(nodes, pattern(FAKE_QUANT, ANY, CONST, CONST), make)


def _requantize(name: str, wide: str, bounds: Sequence[str]) -> NodeDef:
    attrs: dict[str, Attr] = {"Tinput": DType.QINT32, "out_type": DType.QUINT8}
    return NodeDef(name, "Requantize", (*_ports(wide), *bounds), attrs)


def _quantizer(
    ops: Mapping[str, ClassicQuantizedOp], fallback: Range
) -> Callable[[ClassicMatch, frozenset[str]], list[NodeDef]]:
    def make(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        node = match.node
        into = ops[node.op]
        if not _is_float(node, into):
            return match.nodes
        made: list[NodeDef] = []
        codes: dict[int, str] = {}
        for slot, text in enumerate(node.inputs):
            if slot not in into.raw:
                parts = _quantized_input(f"{node.name}_eightbit/{_in_a_name(text)}", text)
                made += parts
                codes[slot] = parts[-1].name
        main = _quantized(node, into, codes)
        made.append(main)
        narrow = main.name
        if into.wide_type:
            bounds = _requantized_bounds(main.name, fallback)
            names = (
                [bound.name for bound in bounds]
                if fallback
                else [f"{bounds[0].name}:{port}" for port in (0, 1)]
            )
            made += [*bounds, _requantize(f"{main.name}/requantize", main.name, names)]
            narrow = made[-1].name
        return [*made, _dequantize(node.name, narrow)]

    return make


def _is_float(node: NodeDef, into: ClassicQuantizedOp) -> bool:
    op = op_of(node)
    for arg in (*op.inputs, *op.outputs):
        for key in (arg.number_attr, arg.type_attr):
            if key and key not in node.attrs:
                where = f"[[{{{{node {node.name}}}}}]]"
                hint = "run add_default_attributes first"
                raise GraphError(f"No attr named '{key}' in NodeDef:\n\t {where}", hint)
    typed = Node(node.name, node.op, attrs=node.attrs)
    given, made = input_dtypes(typed), output_dtypes(typed)
    numbers = [
        dtype
        for slot, dtype in enumerate(given)
        if slot < len(node.inputs) and slot not in into.raw
    ]
    return all(dtype is DType.FLOAT for dtype in (*numbers, *made))


def _in_a_name(text: str) -> str:
    """An input text as a part of a name."""
    prefix, node, suffix = split(text)
    return f"{'__hat__' if prefix else ''}{node}{suffix.replace(':', '__port__')}"


def _quantized_input(prefix: str, text: str) -> list[NodeDef]:
    """Nodes that measure a tensor and make it codes; the last one does."""
    waits = (f"^{node_of(text)}",)
    flat = constant(f"{prefix}/reshape_dims", np.array([-1], np.int32)).with_(inputs=waits)
    axis = constant(f"{prefix}/reduction_dims", np.array([0], np.int32)).with_(inputs=waits)
    number: dict[str, Attr] = {"T": DType.FLOAT}
    line = NodeDef(f"{prefix}/reshape", "Reshape", (text, flat.name), number)
    ends = [
        NodeDef(
            f"{prefix}/{op.lower()}", op, (line.name, axis.name), {**number, "keep_dims": False}
        )
        for op in ("Min", "Max")
    ]
    codes = NodeDef(
        f"{prefix}/quantize", "QuantizeV2", (text, *(end.name for end in ends)), EIGHT_BIT
    )
    return [flat, axis, line, *ends, codes]


def _quantized(node: NodeDef, into: ClassicQuantizedOp, codes: Mapping[int, str]) -> NodeDef:
    attrs: dict[str, Attr] = {}
    for key in into.copied:
        if key not in node.attrs:
            raise GraphError(
                f"the original crashes here: {node.name} ({node.op}) lacks the attribute {key!r}",
                hint="run add_default_attributes first",
            )
        attrs[key] = node.attrs[key]
    attrs |= dict.fromkeys(into.types, DType.QUINT8)
    if into.wide_type:
        attrs[into.wide_type] = DType.QINT32
    inputs = [
        f"{codes[slot]}:0" if slot in codes else text for slot, text in enumerate(node.inputs)
    ]
    if into.ranges_last:
        inputs += [f"{name}:{port}" for port in (1, 2) for name in codes.values()]
    else:
        inputs += [f"{name}:{port}" for name in codes.values() for port in (1, 2)]
    return NodeDef(f"{node.name}/eightbit", f"Quantized{node.op}", tuple(inputs), attrs)


def _requantized_bounds(wide: str, fallback: Range) -> list[NodeDef]:
    """Constants, or a node that measures."""
    if fallback:
        return _bounds(f"{wide}/", fallback, ("fallback_min", "fallback_max"))
    return [
        NodeDef(
            f"{wide}/requant_range", "RequantizationRange", _ports(wide), {"Tinput": DType.QINT32}
        )
    ]


def _merged_requantize(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
    outer = match.node
    source = match.inputs[0].inputs[0].inputs[0].inputs[0].node
    low, high = match.inputs[3].node, match.inputs[4].node
    return [source, low, high, outer.with_(inputs=(*_ports(source.name), low.name, high.name))]


def _without_round_trips(nodes: Sequence[NodeDef], outputs: set[str]) -> list[NodeDef]:
    names: dict[str, str] = {}

    def make(match: ClassicMatch, outside: frozenset[str]) -> list[NodeDef]:
        codes, decoded = match.node, match.inputs[0].node
        names.update(zip(_ports(codes.name), decoded.inputs, strict=False))
        return match.nodes if decoded.name in outside | outputs else []

    return rename_inputs(
        replace_matches(nodes, ROUND_TRIP, make, allow_inconsistencies=True), names
    )
