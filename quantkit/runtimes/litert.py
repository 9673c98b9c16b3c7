"""LiteRT: ``.tflite`` files, and TensorFlow graphs through TensorFlow's converter."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from quantkit.cores import available_cores
from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.availability import Availability, find_package, no_telemetry
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.runtime import Runtime
from quantkit.runtimes.session import RuntimeVersion, Session, SessionOptions, TensorInfo
from quantkit.runtimes.tensorflow_library import suppress_log

MISSING_OP = re.compile(r"unresolved custom op: (?:Flex)?(\w+)|\(Flex(\w+)\)")
_DTYPE_NAMES = {"float32": "float", "float64": "double", "float16": "half"}


def _available() -> Availability:
    return find_package("LiteRT", "ai_edge_litert", "ai-edge-litert", extra="litert")


def _open(model: Graph | Path, options: SessionOptions) -> Session:
    """Open a ``.tflite`` file, or a frozen TensorFlow graph.

    Inputs and outputs have the types of the file: quantized values where its inputs or outputs are quantized. Their
    names are those of the signature, or else of the tensors. One pool of ``intra_op`` times ``inter_op`` threads
    computes each op.

    Raises:
        UnavailableError: an op has no kernel.
        InputError: the file is broken.
        GraphError: LiteRT or TensorFlow rejects the graph.
    """
    name = model.name if isinstance(model, Path) else "the graph"
    source = _source(model)
    with suppress_log():
        from ai_edge_litert.interpreter import Interpreter

        try:
            interpreters = [Interpreter(**source, num_threads=_num_threads(options)) for _ in range(options.streams)]
            resizing = [_ResizingInterpreter(interpreter, name) for interpreter in interpreters]
        except Exception as error:
            raise _translate_error(error, name, is_file=isinstance(model, Path)) from error
    interpreter = interpreters[0]
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    input_names, output_names = _signature(interpreter)
    if isinstance(model, Graph):
        output_names = {}
        for details, edge in zip(outputs, dict.fromkeys(model.outputs), strict=True):
            output_names.setdefault(details["index"], []).append(str(edge))
    lines = _placement(interpreter) if options.log_placement else ()
    return FunctionSession(
        RuntimeVersion(RUNTIME.name, _available().detail, "CPU"),
        tuple(_info(details, input_names) for details in inputs),
        tuple(_info(details, output_names) for details in outputs),
        _compute(resizing),
        placement=lambda: lines,
    )


def _compute(interpreters: "list[_ResizingInterpreter]") -> Callable[[list[Array]], Sequence[Array]]:
    """Return a function that computes in a free interpreter: each computes one call at a time."""
    free: SimpleQueue[_ResizingInterpreter] = SimpleQueue()
    for interpreter in interpreters:
        free.put(interpreter)

    def compute(arrays: list[Array]) -> Sequence[Array]:
        interpreter = free.get()
        try:
            return interpreter.compute(arrays)
        finally:
            free.put(interpreter)

    return compute


class _ResizingInterpreter:
    """Interpreter that allocates its tensors again when the shape of an input changes."""

    def __init__(self, interpreter: Any, model: str) -> None:
        self._interpreter = interpreter
        self._model = model
        self._inputs = [details["index"] for details in interpreter.get_input_details()]
        self._outputs = [details["index"] for details in interpreter.get_output_details()]
        self._shapes = [tuple(details["shape"]) for details in interpreter.get_input_details()]
        try:
            interpreter.allocate_tensors()
        except RuntimeError as error:
            # Before the first call, 1 stands for each unknown size, for which a window may be too large.
            is_dynamic = any((details["shape_signature"] < 0).any() for details in interpreter.get_input_details())
            if not is_dynamic or MISSING_OP.search(str(error)):
                raise
            self._shapes = []

    def compute(self, arrays: list[Array]) -> Sequence[Array]:
        try:
            self._resize([array.shape for array in arrays])
            for index, array in zip(self._inputs, arrays, strict=True):
                self._interpreter.set_tensor(index, array)
            self._interpreter.invoke()
            return [np.asarray(self._interpreter.get_tensor(index)) for index in self._outputs]
        except (RuntimeError, ValueError) as error:
            raise _translate_error(error, self._model, is_file=False) from error

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        self._shapes = []  # unknown if the allocation fails
        for index, shape in zip(self._inputs, shapes, strict=True):
            self._interpreter.resize_tensor_input(index, shape)
        self._interpreter.allocate_tensors()
        self._shapes = shapes


def _source(model: Graph | Path) -> Mapping[str, Any]:
    if isinstance(model, Path):
        return {"model_path": str(model)}
    from quantkit.convert.to_litert import to_litert

    return {"model_content": to_litert(model)}


def _num_threads(options: SessionOptions) -> int:
    """Return the size of the thread pool; default: the number of CPUs, as in the other runtimes (LiteRT's own is 1)."""
    if options.intra_op is None and options.inter_op is None:
        return available_cores()
    return (options.intra_op or 1) * (options.inter_op or 1)


def _native_options(options: SessionOptions, file: str) -> str:
    """Return the options as code that creates an interpreter."""
    return f"interpreter = Interpreter({file}, num_threads={_num_threads(options)})"


def _signature(interpreter: Any) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Return the names of the inputs and outputs in the only signature of the model; empty without exactly one.

    Returns:
        The names by tensor index: equal outputs are one tensor.
    """
    names: tuple[dict[int, list[str]], dict[int, list[str]]] = ({}, {})
    keys = list(interpreter.get_signature_list())
    if len(keys) == 1:
        runner = interpreter.get_signature_runner(keys[0])
        for group, details in zip(names, (runner.get_input_details(), runner.get_output_details()), strict=True):
            for name, each in details.items():
                group.setdefault(each["index"], []).append(name)
    return names


def _info(details: Mapping[str, Any], names: Mapping[int, list[str]]) -> TensorInfo:
    """Convert the description of an input or output, which takes the next name of its tensor."""
    left = names.get(details["index"])
    name = left.pop(0) if left else details["name"].removesuffix(":0")
    numpy_name = np.dtype(details["dtype"]).name
    try:
        dtype = DType(_DTYPE_NAMES.get(numpy_name, numpy_name))
    except ValueError:
        raise UnavailableError(f"{name!r} has the unsupported element type {numpy_name}") from None
    sizes = details["shape_signature"]
    return TensorInfo(name, dtype, Shape(tuple(None if size < 0 else int(size) for size in sizes)))


def _placement(interpreter: Any) -> tuple[str, ...]:
    if not hasattr(interpreter, "_get_ops_details"):
        return ("not reported by this version of LiteRT; all ops run on the CPU",)
    return tuple(f"{details['index']} ({details['op_name']}): CPU" for details in interpreter._get_ops_details())


def _translate_error(error: Exception, model: str, *, is_file: bool) -> QuantkitError:
    """Convert an error, whose text begins with positions in LiteRT's source, to a one-line error."""
    text = str(error)
    missing = MISSING_OP.search(text)
    if missing:
        return UnavailableError(
            f"LiteRT has no {missing[1] or missing[2]}, which {model} uses",
            hint="another --runtime may have a kernel: quantkit doctor lists the installed ones",
        )
    lines = [re.sub(r"^\S+\.(?:cc|h):\d+\s+", "", line.strip()) for line in text.splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if is_file:
        return InputError(f"LiteRT cannot open {model}: {reason}", hint="download or convert it again")
    return GraphError(f"LiteRT rejects {model}: {reason}", hint="try --runtime tensorflow")


RUNTIME = Runtime(
    name="litert",
    title="LiteRT",
    available=_available,
    open_model=_open,
    kinds=("tflite",),
    own_kinds=("tflite",),
    dialects=("tensorflow",),
    native_options=_native_options,
    package="ai_edge_litert",
    describe_telemetry=no_telemetry,
    priority=20,
)
