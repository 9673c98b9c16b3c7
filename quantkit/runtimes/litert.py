"""LiteRT: ``.tflite`` files, and TensorFlow graphs through TensorFlow's converter."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quantkit.errors import GraphError, InputError, QuantkitError, UnavailableError
from quantkit.formats.kinds import KINDS, kind_of
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import (
    Availability,
    Engine,
    FunctionSession,
    Session,
    SessionOptions,
    TensorInfo,
    gpu_index,
    installed,
    require,
)
from quantkit.runtimes.tensorflow_library import quiet

_SHORT_WORDS = {"float32": "float", "float64": "double", "float16": "half"}


class LiteRt:
    """The runtime ``litert``."""

    name = "litert"

    def available(self) -> Availability:
        return installed("LiteRT", "ai_edge_litert", "ai-edge-litert", extra="litert")

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        """Open a ``.tflite`` file, or a frozen TensorFlow graph.

        Inputs and outputs have the types of the file, codes where it takes or gives codes, and the names of its
        signature, or else of its tensors. The threads are one pool of ``intra_op`` times ``inter_op``.

        Raises:
            UnavailableError: not installed, no such device or precision, or an op without a kernel.
            InputError: the file is missing or broken.
            GraphError: LiteRT or TensorFlow refuses the graph.
        """
        require(self.available())
        if gpu_index(options.device) is not None:
            raise UnavailableError(
                "LiteRT's Python package computes on the processor only", hint="use --device cpu, or another --runtime"
            )
        if options.precision != "float32":
            raise UnavailableError(
                f"LiteRT computes in the model's own types, not in {options.precision}",
                hint="use --precision float32, or --runtime openvino",
            )
        source = _source(model)
        name = model.name if isinstance(model, Path) else "the graph"
        with quiet():
            from ai_edge_litert.interpreter import Interpreter

            try:
                interpreter = Interpreter(**source, num_threads=_threads(options))
                interpreter.allocate_tensors()
            except Exception as error:
                raise _explained(error, name, is_file=isinstance(model, Path)) from error
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        names = _signature(interpreter)
        lines = _placement(interpreter) if options.log_placement else ()
        return FunctionSession(
            Engine(self.name, self.available().detail, "CPU"),
            tuple(_info(details, names) for details in inputs),
            tuple(_info(details, names) for details in outputs),
            _Steps(interpreter, name).compute,
            placement=lambda: lines,
        )


RUNTIME = LiteRt()


class _Steps:
    """The runs of a session: memory is laid out anew when a size changes."""

    def __init__(self, interpreter: Any, model: str) -> None:
        self._interpreter = interpreter
        self._model = model
        self._inputs = [details["index"] for details in interpreter.get_input_details()]
        self._outputs = [details["index"] for details in interpreter.get_output_details()]
        self._shapes = [tuple(details["shape"]) for details in interpreter.get_input_details()]

    def compute(self, arrays: list[Array]) -> Sequence[Array]:
        try:
            self._resize([array.shape for array in arrays])
            for index, array in zip(self._inputs, arrays, strict=True):
                self._interpreter.set_tensor(index, array)
            self._interpreter.invoke()
            return [np.asarray(self._interpreter.get_tensor(index)) for index in self._outputs]
        except (RuntimeError, ValueError) as error:
            raise _explained(error, self._model, is_file=False) from error

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        self._shapes = []  # unknown, should the layout fail
        for index, shape in zip(self._inputs, shapes, strict=True):
            self._interpreter.resize_tensor_input(index, shape)
        self._interpreter.allocate_tensors()
        self._shapes = shapes


def _source(model: Graph | Path) -> Mapping[str, Any]:
    if isinstance(model, Graph):
        from quantkit.convert.to_litert import to_litert

        return {"model_content": to_litert(model)}
    kind = kind_of(model)
    if kind != "tflite":
        raise UnavailableError(f"LiteRT can not read {model.name}, which is {KINDS[kind]}")
    return {"model_path": str(model)}


def _threads(options: SessionOptions) -> int:
    """As many as there are processors where nothing is said, as in the other engines: its own default is one."""
    if options.intra_op is None and options.inter_op is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return (options.intra_op or 1) * (options.inter_op or 1)


def _signature(interpreter: Any) -> dict[int, str]:
    """Names that the model's only signature gives its tensors, by index."""
    keys = list(interpreter.get_signature_list())
    if len(keys) != 1:
        return {}
    runner = interpreter.get_signature_runner(keys[0])
    found = {**runner.get_input_details(), **runner.get_output_details()}
    return {details["index"]: name for name, details in found.items()}


def _info(details: Mapping[str, Any], names: Mapping[int, str]) -> TensorInfo:
    name = names.get(details["index"]) or details["name"].removesuffix(":0")
    word = np.dtype(details["dtype"]).name
    try:
        dtype = DType(_SHORT_WORDS.get(word, word))
    except ValueError:
        raise UnavailableError(f"{name!r} has elements of type {word}, which no session takes or gives") from None
    sizes = details["shape_signature"]
    return TensorInfo(name, dtype, Shape(tuple(None if size < 0 else int(size) for size in sizes)))


def _placement(interpreter: Any) -> tuple[str, ...]:
    if not hasattr(interpreter, "_get_ops_details"):
        return ("this version of LiteRT does not say; it computes on the CPU",)
    return tuple(f"{details['index']} ({details['op_name']}): CPU" for details in interpreter._get_ops_details())


def _explained(error: Exception, model: str, *, is_file: bool) -> QuantkitError:
    """What a LiteRT error says, in a sentence; its text begins with places in LiteRT's source."""
    text = str(error)
    missing = re.search(r"unresolved custom op: (?:Flex)?(\w+)|\(Flex(\w+)\)", text)
    if missing:
        return UnavailableError(
            f"LiteRT has no {missing[1] or missing[2]}, which {model} uses",
            hint="another --runtime may have a kernel: quantkit doctor lists what is installed",
        )
    lines = [re.sub(r"^\S+\.(?:cc|h):\d+\s+", "", line.strip()) for line in text.splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    if is_file:
        return InputError(f"LiteRT can not read {model}: {reason}", hint="fetch or convert it once more")
    return GraphError(f"LiteRT refuses {model}: {reason}", hint="try --runtime tensorflow")
