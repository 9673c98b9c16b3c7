"""Cases of the differential test against the original tool: golden graphs, quirks, and random graphs."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
from classic_cases import ClassicCase, unique
from classic_layer_quirks import QUIRKS as LAYER_QUIRKS
from classic_pieces import pieces
from classic_quirks import QUIRKS
from golden_cases import FOLDER, Case, golden_cases

from quantkit.compat.transforms import CLASSIC
from quantkit.errors import QuantkitError
from quantkit.ir.graph import Graph, Node, Versions, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.recipes.example import runnable

CHANNELS = 4
SIZES = (1, 6, 6, CHANNELS)
# Golden graphs that TensorFlow's import rejects: their text form omits required attributes.
NOT_IMPORTED = frozenset({"fold_constants/random_and_unknown"})
# Recipes of one transform for random graphs.
SINGLE = (
    "strip_unused_nodes",
    'strip_unused_nodes(type=int32,shape="1,2")',
    "remove_nodes(op=Identity)",
    "remove_nodes(op=Identity,op=CheckNumerics,op=Relu)",
    "remove_nodes(op=BiasAdd,op=Mul,max_inputs=2)",
    "remove_attribute(attribute_name=T)",
    "remove_attribute(attribute_name=padding,op_name=Conv2D)",
    "rename_attribute(old_attribute_name=T,new_attribute_name=U)",
    "rename_op(old_op_name=Relu,new_op_name=Relu6)",
    "remove_device",
    'set_device(device="/cpu:0")',
    'set_device(device="/cpu:0",if_default=true)',
    "remove_control_dependencies",
    "sort_by_execution_order",
    "obfuscate_names",
    "add_default_attributes",
    "backport_concatv2",
    "merge_duplicate_nodes",
    "fold_constants",
    "fold_constants(exclude_op=Rsqrt)",
    "fold_batch_norms",
    "fold_old_batch_norms",
    "quantize_weights(minimum_size=8)",
    "round_weights(num_steps=5)",
    "quantize_nodes",
    "quantize_nodes(input_min=-1,input_max=1)",
    "quantize_nodes(fallback_min=-6,fallback_max=6,ignore_op=Relu)",
)
RECIPES = (
    "strip_unused_nodes remove_nodes(op=Identity,op=CheckNumerics) fold_constants(ignore_errors=true) "
    "fold_batch_norms(ignore_errors=true) fold_old_batch_norms",
    "add_default_attributes strip_unused_nodes remove_nodes(op=Identity,op=CheckNumerics) "
    "fold_constants(ignore_errors=true) fold_batch_norms(ignore_errors=true) fold_old_batch_norms "
    "quantize_weights(minimum_size=8) quantize_nodes(ignore_errors=true) strip_unused_nodes sort_by_execution_order",
    "backport_concatv2 quantize_weights(minimum_size=8) quantize_nodes(ignore_errors=true) strip_unused_nodes",
    "merge_duplicate_nodes fold_constants(ignore_errors=true) obfuscate_names sort_by_execution_order",
    "remove_device remove_control_dependencies merge_duplicate_nodes strip_unused_nodes round_weights(num_steps=9)",
)


@cache
def classic_cases() -> tuple[ClassicCase, ...]:
    """Return all cases in a fixed order."""
    return tuple(unique([*_golden(), *_quirks(), *pieces(), *_random()]))


def _golden() -> Iterator[ClassicCase]:
    """Yield the golden cases with transforms of the original only."""
    for path in golden_cases():
        case = Case.read(path)
        recipe = " ".join(case.sections["recipe"]).replace(", ", ",").replace(" = ", "=")
        try:
            graph = runnable(case.before)
        except QuantkitError:
            continue
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        if graph.dialect == "tensorflow" and path.parent.name in CLASSIC and name not in NOT_IMPORTED:
            inputs, outputs = (",".join(map(str, edges)) for edges in (graph.inputs, graph.outputs))
            yield ClassicCase(f"golden/{name}", graph, inputs, outputs, recipe)


def _quirks() -> Iterator[ClassicCase]:
    for make in (*QUIRKS, *LAYER_QUIRKS):
        yield from make().cases


def _random() -> Iterator[ClassicCase]:
    for number, recipe in enumerate((*SINGLE, *RECIPES)):
        for seed in range(6 if recipe in SINGLE else 10):
            graph, inputs, outputs = random_graph(1000 * number + seed, is_plain="fold_constants" in recipe)
            yield ClassicCase(
                f"random/{recipe.split('(')[0].split()[0]}/{number}/{seed}", graph, inputs, outputs, recipe
            )


def random_graph(seed: int, *, is_plain: bool = False) -> tuple[Graph, str, str]:
    """Return a random network, and the values of ``--inputs`` and ``--outputs``.

    Args:
        seed: seed of the random numbers.
        is_plain: valid for TensorFlow's import: control inputs come last, constants have no inputs.
    """
    builder = _Builder(Random(seed), is_plain)
    for _ in range(builder.random.randrange(4, 14)):
        builder.random.choice(LAYERS)(builder)
    return builder.graph()


class _Builder:
    """Builder of a random graph whose tensors all have the same shape."""

    def __init__(self, random: Random, is_plain: bool) -> None:
        self.random = random
        self.is_plain = is_plain
        self.nodes: list[Node] = []
        self.tensors = ["x"]
        self.constants: dict[tuple[int, ...], list[str]] = {}
        self.add("x", "Placeholder", (), dtype=DType.FLOAT, shape=Shape(SIZES), T=None)

    def add(self, name: str, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Add a node, with a random control input, input spelling and device."""
        random = self.random
        written = [f"{text}:0" if ":" not in text and random.random() < 0.1 else text for text in inputs]
        if self.nodes and op not in ("Const", "Placeholder") and random.random() < 0.08:
            index = len(written) if self.is_plain else random.randrange(len(written) + 1)
            written.insert(index, f"^{random.choice(self.nodes).name}")
        attributes = {key: value for key, value in {"T": DType.FLOAT, **attrs}.items() if value is not None}
        device = random.choice(["/cpu:0", "/gpu:1"]) if random.random() < 0.05 else ""
        self.nodes.append(Node.of_written(name, op, written, attributes, device))
        return name

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{len(self.nodes)}"

    def const(self, *sizes: int, reuse: float = 0.15, positive: bool = False) -> str:
        candidates = self.constants.setdefault((*sizes, positive), [])
        if candidates and self.random.random() < reuse:
            return self.random.choice(candidates)
        count = int(np.prod(sizes))
        values = [self.random.randrange(1 if positive else -16, 17) / 8 for _ in range(count)]
        name = self.fresh("c")
        self.nodes.append(constant(name, np.array(values, np.float32).reshape(sizes)))
        if self.random.random() < 0.05 and not self.is_plain:
            self.nodes[-1] = self.nodes[-1].with_(controls=("x",))
        candidates.append(name)
        return name

    def integers(self, *values: int, scalar: bool = False) -> str:
        name = self.fresh("i")
        self.nodes.append(constant(name, np.array(values[0] if scalar else values, np.int32)))
        return name

    def any(self) -> str:
        """Return a random tensor, most often the last one."""
        return self.tensors[-1] if self.random.random() < 0.7 else self.random.choice(self.tensors)

    def push(self, name: str) -> str:
        self.tensors.append(name)
        return name

    def graph(self) -> tuple[Graph, str, str]:
        random = self.random
        nodes = list(self.nodes)
        if random.random() < 0.3:
            random.shuffle(nodes)
        outputs = [self.tensors[-1]]
        if random.random() < 0.3 and len(self.tensors) > 2:
            outputs.insert(0, random.choice(self.tensors[1:]))
        outputs = [
            f"{name}:0" if ":" not in name and random.random() < 0.1 else name for name in dict.fromkeys(outputs)
        ]
        inputs = "x:0" if random.random() < 0.1 else "x"
        return Graph.of(nodes, versions=Versions(21)), inputs, ",".join(outputs)


def _conv(builder: _Builder) -> None:
    size = builder.random.choice([1, 1, 2, 3])
    weights = builder.const(size, size, CHANNELS, CHANNELS)
    builder.push(builder.add(builder.fresh("conv"), "Conv2D", (builder.any(), weights), **_layer(builder)))


def _layer(builder: _Builder) -> dict[str, Any]:
    attrs: dict[str, Any] = {"strides": (1, 1, 1, 1), "padding": b"SAME"}
    if builder.random.random() < 0.7:
        attrs["data_format"] = b"NHWC"
    return attrs


def _depthwise(builder: _Builder) -> None:
    weights = builder.const(3, 3, CHANNELS, 1)
    name = builder.fresh("depthwise")
    builder.push(builder.add(name, "DepthwiseConv2dNative", (builder.any(), weights), **_layer(builder)))


def _factor(builder: _Builder) -> None:
    sizes = builder.random.choice([(CHANNELS,), (CHANNELS,), (CHANNELS,), (CHANNELS,), ()])
    scale = _expression(builder) if builder.random.random() < 0.3 else builder.const(*sizes)
    pair = [builder.any(), scale]
    if builder.random.random() < 0.1:
        pair.reverse()
    builder.push(builder.add(builder.fresh("mul"), "Mul", pair))


def _expression(builder: _Builder) -> str:
    summed = builder.add(
        builder.fresh("sum"), "Add", (builder.const(CHANNELS, positive=True), builder.const(CHANNELS, positive=True))
    )
    root = builder.add(builder.fresh("rsqrt"), "Rsqrt", (summed,))
    return builder.add(builder.fresh("product"), "Mul", (root, builder.const(CHANNELS)))


def _bias(builder: _Builder) -> None:
    op = builder.random.choice(["BiasAdd", "BiasAdd", "Add", "Sub"])
    builder.push(builder.add(builder.fresh("bias"), op, (builder.any(), builder.const(CHANNELS))))


def _norm(builder: _Builder) -> None:
    conv = builder.any()
    if builder.random.random() < 0.8:
        _conv(builder)
        conv = builder.tensors[-1]
    beta, gamma, mean = (builder.const(CHANNELS, reuse=0.03) for _ in range(3))
    variance = builder.const(CHANNELS, reuse=0.03, positive=True)
    name = builder.fresh("norm")
    if builder.random.random() < 0.5 and not builder.is_plain:
        attrs = {"variance_epsilon": 0.001, "scale_after_normalization": builder.random.random() < 0.7}
        builder.add(name, "BatchNormWithGlobalNormalization", (conv, mean, variance, beta, gamma), **attrs)
    else:
        builder.add(name, "FusedBatchNorm", (conv, gamma, beta, mean, variance), epsilon=0.001, is_training=False)
    builder.push(name)


def _unary(builder: _Builder) -> None:
    op = builder.random.choice(["Identity", "Identity", "Relu", "Relu6", "Softmax", "Tanh", "StopGradient"])
    builder.push(builder.add(builder.fresh(op.lower()), op, (builder.any(),)))


def _check_numerics(builder: _Builder) -> None:
    builder.push(builder.add(builder.fresh("check"), "CheckNumerics", (builder.any(),), message=b""))


def _pool(builder: _Builder) -> None:
    op = builder.random.choice(["MaxPool", "AvgPool"])
    attrs = {"ksize": (1, 2, 2, 1), "strides": (1, 1, 1, 1), "padding": b"SAME"}
    builder.push(builder.add(builder.fresh("pool"), op, (builder.any(),), **attrs))


def _binary(builder: _Builder) -> None:
    op = builder.random.choice(["Add", "AddV2", "Mul", "Sub", "Maximum"])
    builder.push(builder.add(builder.fresh("binary"), op, (builder.any(), builder.any())))


def _twin(builder: _Builder) -> None:
    """Add a duplicate of a node with another name."""
    twins = [node for node in builder.nodes if node.op not in ("Placeholder", "NoOp")]
    if twins:
        node = builder.random.choice(twins)
        name = builder.fresh("twin")
        builder.nodes.append(node.with_(name=name))
        if node.name in builder.tensors:
            both = (node.name, name)
            builder.push(builder.add(builder.fresh("both"), "Add", both))


def _split(builder: _Builder) -> None:
    """Add a Split into halves, optional convolutions, and a Concat in reverse order."""
    axis = builder.integers(3, scalar=True)
    split = builder.add(builder.fresh("split"), "Split", (axis, builder.any()), num_split=2)
    halves = [f"{split}:1", f"{split}"]
    if builder.random.random() < 0.5:
        halves = [
            builder.add(
                builder.fresh("conv"), "Conv2D", (half, builder.const(1, 1, 2, 2, reuse=0.02)), **_layer(builder)
            )
            for half in halves
        ]
    last = builder.integers(3, scalar=True)
    if builder.random.random() < 0.7:
        name = builder.add(builder.fresh("join"), "ConcatV2", (*halves, last), N=2, Tidx=DType.INT32)
    else:
        name = builder.add(builder.fresh("join"), "Concat", (last, *halves), N=2)
    builder.push(name)


def _reshape(builder: _Builder) -> None:
    shape = builder.integers(*SIZES)
    if builder.random.random() < 0.5:
        shape = builder.add(builder.fresh("shape"), "Shape", (builder.any(),), out_type=DType.INT32)
    builder.push(builder.add(builder.fresh("reshape"), "Reshape", (builder.any(), shape), Tshape=DType.INT32))


def _fake_quant(builder: _Builder) -> None:
    low, high = builder.const(), builder.const()
    for node_name, value in ((low, -1.5), (high, 2.25)):
        index = next(number for number, node in enumerate(builder.nodes) if node.name == node_name)
        builder.nodes[index] = constant(node_name, np.float32(value))
    name = builder.fresh("fake")
    attrs = {"num_bits": 8, "narrow_range": False, "T": None}
    builder.push(builder.add(name, "FakeQuantWithMinMaxVars", (builder.any(), low, high), **attrs))


def _dead_end(builder: _Builder) -> None:
    builder.add(builder.fresh("dead"), "Relu", (builder.any(),))


def _step(builder: _Builder) -> None:
    builder.nodes.append(Node(builder.fresh("step"), "NoOp", controls=(builder.random.choice(builder.nodes).name,)))


LAYERS: tuple[Callable[[_Builder], None], ...] = (
    *(_conv, _conv, _conv, _depthwise, _factor, _factor, _factor, _bias, _bias, _norm, _norm, _unary, _unary, _unary),
    *(_check_numerics, _pool, _binary, _twin, _twin, _split, _reshape, _fake_quant, _dead_end, _step),
)
