"""Check of a file by the builder of TensorRT-RTX, which needs no GPU.

The builder writes the compiled program as text: the type of each tensor, the inputs of each kernel, and the names
of the ONNX nodes that a kernel computes. The text is not documented, so that the version is pinned.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from quantkit.errors import GraphError, UnavailableError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.quantization.portability import LAYER_OPS
from quantkit.quantization.targets.finding import Build
from quantkit.quantization.targets.tensorrt.check import find_int8_layers
from quantkit.runtimes.tensorrt import Network

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
    program, problem = b"", ""
    try:
        network = Network(_module(), onnx.encode(onnx.with_node_names(graph)))
        dynamic = {info.name: info.shape.dims or () for info in network.inputs if not info.shape.is_known}
        program = network.build({name: [[max(size or 1, 1) for size in dims]] * 3 for name, dims in dynamic.items()})
    except GraphError as error:
        problem = error.message
    layers = {node.name for node in graph.nodes.values() if node.op in LAYER_OPS}
    kernels = frozenset(find_int8_kernels(program.decode("latin-1")))
    return Build(TITLE, problem, find_int8_layers(graph), kernels & layers, len(layers))


def find_int8_kernels(text: str) -> Iterator[str]:
    """Yield the ONNX nodes of the kernels whose first two inputs are int8, from the text of a program."""
    tensors = set(_TENSOR.findall(text))
    for inputs, layers in _KERNEL.findall(text):
        if all(name in tensors for name in re.findall('"([^"]*)"', inputs)[:2]):
            yield from re.findall(r"\[ONNX Layer: ([^\x1f]*)\]", layers)


def _module() -> Any:
    """Return the imported package.

    Raises:
        UnavailableError: the package is not installed, or has another version.
    """
    hint = f"pip install tensorrt-rtx=={VERSION} (x86-64, with the licence of NVIDIA)"
    if find_spec(PACKAGE) is None:
        raise UnavailableError("--check-build needs TensorRT-RTX, which is not installed", hint=hint)
    module = import_module(PACKAGE)
    if module.__version__ != VERSION:
        raise UnavailableError(f"--check-build needs {TITLE}, not {module.__version__}", hint=hint)
    return module
