"""Run random and adversarial int8 layers in the kernels of several instruction sets, and compare with exact sums.

    python tests/bench/measure_saturation.py BUILD [--models 400] [--emulated 60] [--save FILE]

Each of the ONNX models in BUILD has 50 layers with one input: convolutions (1x1, 3x3, depthwise, grouped, of few or
many channels, with strides and dilations, of one dimension) and matrix products. The weights of a safe layer are random
ones that `pair_sums` limits, weights of the production path, or pairs at the limit. An unsafe layer is a safe one in
which one pair of one output channel exceeds the limit, some of them by 1. The inputs are the largest quantized value
everywhere, random extremes, the extremes by channel, and random values.

The exact sums are those of ONNX Runtime's float kernels without optimizations: all are integers below 2^24. OpenVINO
runs the layers with float outputs: native, and held to AVX-512, AVX2 and SSE 4.1. ONNX Runtime runs them native and, a
sample, on an emulated Haswell (`qemu-user`): matrix products with outputs of 32 bits, convolutions with outputs of 8
bits, in which a saturated sum shows only if it changes the rounded value.
No certified layer may differ from the exact sums, and the certificate must name every unsafe layer.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
NAMES = [f"layer_{index}" for index in range(50)]
# Fraction of the layers with an unsafe pair.
UNSAFE = 0.2
QEMU = "qemu-x86_64"
Array = npt.NDArray[Any]
Run = Callable[[Array], list[Array]]


# For each arm: the runtime, the environment variables of its process, and its emulator.
ARMS: Mapping[str, tuple[str, Mapping[str, str], tuple[str, ...]]] = {
    "openvino native": ("openvino", {}, ()),
    "openvino avx512": ("openvino", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, ()),
    "openvino avx2": ("openvino", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, ()),
    "openvino sse41": ("openvino", {"ONEDNN_MAX_CPU_ISA": "SSE41"}, ()),
    "onnxruntime native": ("onnxruntime", {}, ()),
    "onnxruntime Haswell": ("onnxruntime", {}, (QEMU, "-cpu", "Haswell")),
}


# --------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Kind:
    """Shapes of the layers of a model.

    Attributes:
        op: ONNX op type.
        weights: shape of the weights.
        image: shape of the input without the batch.
        pair_axes: dimensions of the positions and channels, see `quantkit.quantization.spec`.
        attributes: attributes of the layers.
    """

    op: str
    weights: tuple[int, ...]
    image: tuple[int, ...]
    pair_axes: tuple[int, ...]
    attributes: Mapping[str, Any]


def draw_kind(name: str, random: np.random.Generator) -> Kind:
    """Return random shapes of a kind of layer."""

    def draw(low: int, high: int) -> int:
        return int(random.integers(low, high))

    outputs, channels, pads = draw(4, 33), draw(2, 49), [draw(0, 2)] * 4
    if name in ("matmul", "gemm"):
        channels = draw(2, 800)
        if name == "matmul":
            return Kind("MatMul", (channels, outputs), (channels,), (0,), {})
        return gemm((outputs, channels))
    height, width, group = 1, 1, 1
    attributes: dict[str, Any] = {}
    if name == "1x1":
        channels = draw(2, 600)
    elif name == "3x3":
        height = width = 3
        attributes = {"pads": pads}
    elif name == "few channels":
        channels, height, width = draw(1, 5), draw(1, 8), draw(1, 8)
        outputs = draw(1, 33)
        attributes = {"strides": [draw(1, 3)] * 2}
    elif name == "many channels":
        channels, height, width = draw(20, 110), draw(1, 4), draw(1, 4)
    elif name == "strided":
        height = width = draw(2, 6)
        attributes = {"strides": [draw(1, 4)] * 2, "dilations": [draw(1, 3)] * 2}
    elif name == "depthwise":
        channels = group = outputs = draw(2, 40)
        height, width = draw(1, 6), draw(1, 6)
    elif name == "grouped":
        group = draw(2, 9)
        channels, outputs = group * draw(1, 20), group * draw(1, 9)
        height, width = draw(1, 4), draw(1, 4)
    elif name == "1d":
        channels = draw(1, 49)
        size = draw(1, 10)
        return Kind("Conv", (outputs, channels, size), (channels, 12), (2, 1), {})
    shape = (outputs, channels // group, height, width)
    is_depthwise = 1 < group == channels == outputs
    return Kind("Conv", shape, (channels, 12, 12), () if is_depthwise else (2, 3, 1), {"group": group, **attributes})


def gemm(shape: tuple[int, ...]) -> Kind:
    """Return a product with transposed weights."""
    return Kind("Gemm", shape, shape[1:], (1,), {"transB": 1})


KINDS = ("1x1", "3x3", "few channels", "many channels", "strided", "depthwise", "grouped", "1d", "matmul", "gemm")


def draw_levels(kind: Kind, random: np.random.Generator) -> tuple[Array, bool]:
    """Return quantized weights, and True if one pair exceeds the limit."""
    from quantkit.quantization.pair_sums import limit_pair_sums

    real = random.choice((-1, 1), kind.weights) * random.gamma(random.uniform(0.2, 4), 1, kind.weights)
    if not kind.pair_axes:
        return np.where(random.random(kind.weights) < 0.5, 127, -127).astype(np.int8), False
    manner = random.choice(("random", "production", "limit"))
    if manner == "production":
        levels = quantize_weights(real.astype(np.float32), kind)
    else:
        if manner == "limit":
            real = random.choice((-127, -64, 0, 1, 64, 65, 127), kind.weights) * random.choice((1, 1, -1))
        levels = np.clip(np.rint(real * 127 / np.abs(real).max()), -127, 127).astype(np.int8)
        levels = limit_pair_sums(levels, kind.pair_axes)
    if random.random() >= UNSAFE or levels[0].size < 2:
        return levels, False
    return exceed_limit(levels, kind, random), True


def quantize_weights(weights: Array, kind: Kind) -> Array:
    """Quantize weights as `quantkit.quantize` does."""
    from quantkit.ir.tensor import DType
    from quantkit.quantization.parameters import QuantizationParameters
    from quantkit.quantization.spec import Spec

    outputs = next(axis for axis in range(weights.ndim) if axis not in kind.pair_axes)
    spec = Spec(DType.QINT8, symmetric=True, per_channel=True, axes=(outputs,), pair_axes=kind.pair_axes)
    return QuantizationParameters.of_weights(spec, weights).quantize(weights)


def exceed_limit(levels: Array, kind: Kind, random: np.random.Generator) -> Array:
    """Return the weights with one pair of one output channel whose sum is 129 to 254."""
    order = (*(axis for axis in range(levels.ndim) if axis not in kind.pair_axes), *kind.pair_axes)
    moved = levels.transpose(order).copy()
    rows = moved.reshape(moved.shape[0], -1)
    total = int(random.choice((129, 130, 160, 254)))
    first = int(random.integers(total - 127, 128))
    pair = 2 * int(random.integers(0, rows.shape[1] // 2))
    sign = int(random.choice((1, -1)))
    rows[random.integers(0, len(rows)), pair : pair + 2] = (sign * first, sign * (total - first))
    return rows.reshape(moved.shape).transpose(np.argsort(order))


def draw_images(kind: Kind, random: np.random.Generator) -> Array:
    """Return quantized images, (n, c, ...) uint8."""
    shape = kind.image
    by_channel = np.where(np.arange(shape[0]) % 2, 0, 255).reshape(-1, *[1] * (len(shape) - 1))
    images = [
        np.full(shape, 255),
        random.choice((0, 255), shape),
        random.choice((254, 255), shape),
        np.broadcast_to(by_channel, shape),
        np.broadcast_to(255 - by_channel, shape),
        random.integers(0, 256, shape),
    ]
    return np.stack(images).astype(np.uint8)


def write_model(number: int, build: Path) -> None:
    """Write the models, the input and the exact outputs of a number."""
    random = np.random.default_rng(number)
    name = KINDS[number % len(KINDS)]
    kind = draw_kind(name, random)
    images, zero = draw_images(kind, random), int(random.choice((0, 128, 7)))
    values = images.astype(np.float32) - zero
    drawn = [draw_levels(kind, random) for _ in NAMES]
    weights = {layer: levels for layer, (levels, _) in zip(NAMES, drawn, strict=True)}
    path = build / f"{number:04}.openvino.onnx"
    save_float_outputs(path, kind, images, zero, weights)
    exact = dict(zip(NAMES, open_onnxruntime(path, optimized=False)(values), strict=True))
    # The outputs of each channel use the 8 bits of a convolution in ONNX Runtime.
    rest = tuple(axis for axis in range(images.ndim) if axis != 1)
    scales = {layer: np.float32(127) / np.abs(sums).max(rest, initial=1) for layer, sums in exact.items()}
    save_integer_outputs(build / f"{number:04}.onnxruntime.onnx", kind, images, zero, weights, scales)
    rounded = exact
    if kind.op == "Conv":
        shape = [-1 if axis == 1 else 1 for axis in range(images.ndim)]
        steps = {layer: np.rint(sums * scales[layer].reshape(shape)) for layer, sums in exact.items()}
        rounded = {layer: np.clip(step + 128, 0, 255) for layer, step in steps.items()}
    for runtime, source, outputs in (("openvino", values, exact), ("onnxruntime", images, rounded)):
        np.savez(build / f"{number:04}.{runtime}.npz", x=source, **outputs)
    unsafe = [layer for layer, (_, is_unsafe) in zip(NAMES, drawn, strict=True) if is_unsafe]
    (build / f"{number:04}.json").write_text(json.dumps({"kind": name, "unsafe": unsafe}))


def save_float_outputs(path: Path, kind: Kind, images: Array, zero: int, weights: Mapping[str, Array]) -> None:
    """Write the layers with QuantizeLinear and DequantizeLinear; the outputs are the sums in float."""
    from onnx import helper

    constants: dict[str, Array | np.generic] = {"one": np.float32(1), "zero": np.uint8(zero), "none": np.int8(0)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["x_levels"]),
        helper.make_node("DequantizeLinear", ["x_levels", "one", "zero"], ["x_values"]),
    ]
    for layer, levels in weights.items():
        constants[f"{layer}_levels"] = levels
        inputs = [f"{layer}_levels", "one", "none"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{layer}_values"]))
        nodes.append(helper.make_node(kind.op, ["x_values", f"{layer}_values"], [layer], layer, **kind.attributes))
    save(path, nodes, images.astype(np.float32), np.float32, constants)


def save_integer_outputs(
    path: Path, kind: Kind, images: Array, zero: int, weights: Mapping[str, Array], scales: Mapping[str, Array]
) -> None:
    """Write the layers as ops on integers; the outputs of products are the sums, those of convolutions have 8 bits."""
    from onnx import helper

    constants: dict[str, Array | np.generic] = {
        "one": np.float32(1),
        "zero": np.uint8(zero),
        "none": np.int8(0),
        "middle": np.uint8(128),
    }
    nodes = []
    for layer, levels in weights.items():
        constants[f"{layer}_levels"] = np.ascontiguousarray(levels.T) if kind.op == "Gemm" else levels
        if kind.op == "Conv":
            constants[f"{layer}_scale"] = scales[layer]
            inputs = ["x", "one", "zero", f"{layer}_levels", f"{layer}_scale", "none", "one", "middle"]
            nodes.append(helper.make_node("QLinearConv", inputs, [layer], layer, **kind.attributes))
        else:
            inputs = ["x", f"{layer}_levels", "zero", "none"]
            nodes.append(helper.make_node("MatMulInteger", inputs, [layer], layer))
    save(path, nodes, images, np.uint8 if kind.op == "Conv" else np.int32, constants)


def save(path: Path, nodes: list[Any], x: Array, output_type: type, constants: Mapping[str, Array]) -> None:
    """Write an ONNX model with the input ``x`` and the outputs of all layers."""
    import onnx
    from onnx import helper, numpy_helper

    def describe(name: str, dtype: Any, shape: tuple[int, ...] | None) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    ends = [describe(layer, output_type, None) for layer in NAMES]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "layers", [describe("x", x.dtype, x.shape)], ends, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


# --------------------------------------------------------------------------------------------- runs


def open_onnxruntime(path: Path, *, optimized: bool = True) -> Run:
    """Return a function that runs a model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda values: list(session.run(None, {name: values}))


def open_openvino(path: Path) -> Run:
    """Return a function that runs a model in OpenVINO."""
    import openvino

    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    facts = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    int8 = [each for each in facts if each["runtimePrecision"].astype(str) in ("i8", "u8")]
    layers = [each for each in int8 if "layer_" in each["originalLayersNames"].astype(str)]
    if len(layers) < len(NAMES):
        print(f"{path.name}: only {len(layers)} of {len(NAMES)} layers are int8", file=sys.stderr)
    return lambda values: list(compiled(values).to_tuple())


def run_layers(runtime: str, build: Path, numbers: list[int]) -> dict[str, list[str]]:
    """Return the layers of each model whose outputs differ from the exact ones."""
    differing = {}
    for number in numbers:
        stem = f"{number:04}.{runtime}"
        run = (open_onnxruntime if runtime == "onnxruntime" else open_openvino)(build / f"{stem}.onnx")
        with np.load(build / f"{stem}.npz") as arrays:
            pairs = zip(NAMES, run(arrays["x"]), strict=True)
            differing[stem] = [layer for layer, outputs in pairs if not np.array_equal(outputs, arrays[layer])]
    return differing


def measure(name: str, build: Path, numbers: list[int], certificates: Mapping[str, set[str]]) -> dict[str, Any]:
    """Return the figures of an arm, whose layers run in a process of its own.

    Args:
        name: key of `ARMS`.
        build: folder of the models.
        numbers: integers in the names of the models.
        certificates: unsafe layers of each model.
    """
    runtime, environment, emulator = ARMS[name]
    command = [*emulator, sys.executable, __file__, str(build), "--arm", runtime, "--numbers", *map(str, numbers)]
    result = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True)
    differing = {stem: set(layers) for stem, layers in json.loads(result.stdout).items()}
    unsafe = sum(len(certificates[stem]) for stem in differing)
    wrong = [f"{stem}/{layer}" for stem, layers in differing.items() for layer in layers - certificates[stem]]
    return {
        "certified": len(differing) * len(NAMES) - unsafe,
        "certified_that_differ": sorted(wrong),
        "unsafe": unsafe,
        "unsafe_that_saturate": sum(len(layers & certificates[stem]) for stem, layers in differing.items()),
    }


def find_unsafe(path: Path) -> set[str]:
    """Return the layers that the certificate of a model names."""
    from quantkit import formats
    from quantkit.quantization.portability import certify

    certificate = certify(formats.load(path))
    assert certificate is not None
    assert certificate.num_layers == len(NAMES)
    return {layer.layer for layer in certificate.unsafe}


def main() -> None:
    """Write the models, run them in all arms, and write `saturation.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("--models", type=int, default=400, help="models of 50 layers (default: 400)")
    parser.add_argument("--emulated", type=int, default=60, help="models that run emulated (default: 60)")
    parser.add_argument("--save", type=Path, default=HERE / "saturation.json", help="file to write")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--numbers", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(run_layers(options.arm, options.build, options.numbers)))
        return
    from quantkit.benchmark.host.machine import this_machine

    options.build.mkdir(parents=True, exist_ok=True)
    certificates: dict[str, set[str]] = {}
    kinds = dict.fromkeys(KINDS, 0)
    constructed, missed = 0, []
    numbers = list(range(options.models))
    for number in numbers:
        write_model(number, options.build)
        facts = json.loads((options.build / f"{number:04}.json").read_text())
        kinds[facts["kind"]] += len(NAMES)
        constructed += len(facts["unsafe"])
        for runtime in ("openvino", "onnxruntime"):
            stem = f"{number:04}.{runtime}"
            certificates[stem] = find_unsafe(options.build / f"{stem}.onnx")
            missed += [f"{stem}/{layer}" for layer in facts["unsafe"] if layer not in certificates[stem]]
    arms: dict[str, Any] = {}
    for name, (_, _, emulator) in ARMS.items():
        if emulator and not shutil.which(emulator[0]):
            arms[name] = {"error": f"{emulator[0]} is not installed"}
            continue
        arms[name] = measure(name, options.build, numbers[: options.emulated] if emulator else numbers, certificates)
        print(name, {key: len(value) if isinstance(value, list) else value for key, value in arms[name].items()})
    document = {
        "schema": "quantkit.bench.saturation/1",
        "machine": this_machine().to_json(),
        "layers": kinds,
        "constructed_unsafe": constructed,
        "unsafe_not_named": missed,
        "arms": arms,
    }
    options.save.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{constructed} unsafe layers, {len(missed)} not named")


if __name__ == "__main__":
    main()
