"""The reference implementation of ONNX, from the package ``onnx``, as a runtime of quantkit."""

from pathlib import Path
from typing import Any

import numpy as np

from quantkit.convert.to_onnx import to_onnx
from quantkit.errors import GraphError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes import Runtime, Session, SessionOptions
from quantkit.runtimes.availability import Availability, find_package
from quantkit.runtimes.function_session import FunctionSession
from quantkit.runtimes.session import RuntimeVersion, TensorInfo


def available() -> Availability:
    return find_package("the ONNX reference", "onnx", "onnx", extra="onnx")


def open_model(model: Graph | Path, options: SessionOptions) -> Session:
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = onnx.load(model) if isinstance(model, Path) else onnx.load_from_string(to_onnx(model))
    evaluator = ReferenceEvaluator(proto)
    inputs = tuple(map(tensor_info, proto.graph.input))
    outputs = tuple(map(tensor_info, proto.graph.output))

    def compute(arrays: list[Array]) -> list[Array]:
        feeds = {info.name: array for info, array in zip(inputs, arrays, strict=True)}
        try:
            results = evaluator.run([info.name for info in outputs], feeds)
        except (RuntimeError, ValueError) as error:
            raise GraphError(f"the ONNX reference rejects the graph: {error}") from error
        return [np.array(result) for result in results]

    lines = tuple(f"{node.name} ({node.op_type}): CPU" for node in proto.graph.node)
    return FunctionSession(
        RuntimeVersion(RUNTIME.name, onnx.__version__, "CPU"),
        inputs,
        outputs,
        compute,
        placement=lambda: lines if options.log_placement else (),
    )


def tensor_info(value: Any) -> TensorInfo:
    """Convert an ONNX ValueInfoProto."""
    from onnx.helper import tensor_dtype_to_np_dtype

    kind = value.type.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    return TensorInfo(value.name, DType.of(tensor_dtype_to_np_dtype(kind.elem_type)), Shape(sizes))


RUNTIME = Runtime(
    name="toy",
    title="the ONNX reference",
    available=available,
    open_model=open_model,
    kinds=("onnx",),
    dialects=("onnx", "tensorflow"),
    native_dialect="onnx",
    keeps_tensors=True,
    has_threads=False,
    priority=-1,
)
