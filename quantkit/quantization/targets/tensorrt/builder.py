"""Check of a file by the builder of TensorRT-RTX, which needs no GPU.

The builder writes the compiled program as text: the type of each tensor, the inputs of each kernel, and the names
of the ONNX nodes that a kernel computes. The text is not documented, so that the version is pinned.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from quantkit.errors import UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.quantization.portability import LAYER_OPS
from quantkit.quantization.targets.finding import Build
from quantkit.quantization.targets.tensorrt.check import find_int8_layers

PACKAGE, VERSION = "tensorrt_rtx", "1.7.1.116"
TITLE = f"TensorRT-RTX {VERSION}"
# Kinds of kernels that multiply two tensors.
KERNELS = "corrltn|deconvolution|fully_connected|runtime_fusion"
_TENSOR = re.compile(r' name="([^"]*)"[^\n]* type=int8 ')
_KERNEL = re.compile(rf'^  (?:{KERNELS})={{ name=.*? input(?:_args)?={{([^}}]*)}}.*? layers="([^"]*)"', re.M | re.S)


def check_build(graph: Graph) -> Build:
    """Parse and build a quantized ONNX graph; unknown sizes become 1.

    Raises:
        UnavailableError: TensorRT-RTX is not installed, or has another version.
    """
    program, problem = _build(onnx.encode(onnx.with_node_names(graph)))
    layers = {node.name for node in graph.nodes.values() if node.op in LAYER_OPS}
    kernels = frozenset(find_int8_kernels(program.decode("latin-1")))
    return Build(TITLE, problem, find_int8_layers(graph), kernels & layers, len(layers))


def find_int8_kernels(text: str) -> Iterator[str]:
    """Yield the ONNX nodes of the kernels whose first two inputs are int8, from the text of a program."""
    tensors = set(_TENSOR.findall(text))
    for inputs, layers in _KERNEL.findall(text):
        if all(name in tensors for name in re.findall('"([^"]*)"', inputs)[:2]):
            yield from re.findall(r"\[ONNX Layer: ([^\x1f]*)\]", layers)


def _build(model: bytes) -> tuple[bytes, str]:
    """Return the compiled program of an ONNX model and the message of the builder, one of which is empty."""
    trt = _module()
    messages: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                messages.append(message)

    def first_line(message: str) -> str:
        return next(iter(message.strip().splitlines()), "no reason is given")

    builder = trt.Builder(logger := Logger())
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model):
        error = parser.get_error(0)
        return b"", f"{error.node_name()}: {first_line(error.desc())}"
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for tensor in (network.get_input(index) for index in range(network.num_inputs)):
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *[[max(size, 1) for size in tensor.shape]] * 3)
    config.add_optimization_profile(profile)
    messages.clear()  # without a driver, the first message is an error
    program = builder.build_serialized_network(network, config)
    return (b"", first_line(messages[-1] if messages else "")) if program is None else (bytes(program), "")


def _module() -> Any:
    """Return the imported package.

    Raises:
        UnavailableError: the package is not installed, or has another version.
    """
    hint = f"pip install tensorrt-rtx=={VERSION} (x86-64, with the licence of NVIDIA)"
    if find_spec(PACKAGE) is None:
        raise UnavailableError("--check-build needs TensorRT-RTX, which is not installed", hint=hint)
    import tensorrt_rtx

    if tensorrt_rtx.__version__ != VERSION:
        raise UnavailableError(f"--check-build needs {TITLE}, not {tensorrt_rtx.__version__}", hint=hint)
    return tensorrt_rtx
