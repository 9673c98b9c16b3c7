"""The contract of sessions: an opened model takes arrays by input name and returns arrays by output name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self

from quantkit.arguments import public, require_choice, require_positive, without_none
from quantkit.errors import UsageError
from quantkit.ir.tensor import Array, DType, Shape

# Values of `OpTime.precision`.
INT8, FLOAT, CONVERSION, TRANSFER = "int8", "float", "conversion", "transfer"
# Values of `SessionOptions.precision`.
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class TensorInfo:
    """Input or output of a session.

    Attributes:
        name: `str` of the edge: ``softmax``, ``split:1``.
        dtype: element type.
        shape: sizes, None for each dynamic one.
    """

    name: str
    dtype: DType
    shape: Shape


@dataclass(frozen=True)
class RuntimeVersion:
    """Runtime of an open session, with its version and device.

    Attributes:
        name: name on the command line.
        version: version of the installed package.
        device: name of the device in the runtime: ``CPU``, ``/device:GPU:0``, ``CUDAExecutionProvider``.

    >>> str(RuntimeVersion("onnxruntime", "1.20.0"))
    'onnxruntime 1.20.0'
    """

    name: str
    version: str
    device: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class OpTime:
    """Time of one op of a compiled model.

    Attributes:
        name: name of the op in the runtime.
        op: its type in the runtime.
        precision: `INT8`, `FLOAT`, `CONVERSION` between formats or layouts, or `TRANSFER` between devices.
        seconds: duration in each traced run; the time of ops that run in parallel is divided among them.
        kernel: name of the implementation; empty if the runtime does not state it.
        is_reference: True if the runtime is known to use an unoptimized reference implementation.
        device: device or provider that ran the op; empty if the runtime does not state it.
        sources: nodes of the opened graph that the op computes; empty if the runtime added the op.
        producers: names of the ops that compute its inputs.
    """

    name: str
    op: str
    precision: str
    seconds: tuple[float, ...]
    kernel: str = ""
    is_reference: bool = False
    device: str = ""
    sources: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpTrace:
    """Time of the ops of a compiled model in several runs.

    Attributes:
        ops: the ops in execution order; empty if the runtime does not measure them.
        run_seconds: duration of each traced run in the runtime, without the cost of reading the trace; empty if the
            runtime does not measure it.
    """

    ops: tuple[OpTime, ...] = ()
    run_seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class SkippedRuntime:
    """Runtime that ``auto`` skipped, with the reason."""

    runtime: str
    reason: str

    def __str__(self) -> str:
        return f"{self.runtime}: {self.reason}"


@public
@dataclass(frozen=True)
class SessionOptions:
    """Threads, device and precision of a session.

    Attributes:
        intra_op: threads inside one op (default: the default of the runtime).
        inter_op: ops that run in parallel (default: the default of the runtime).
        device: ``cpu``, ``gpu`` or ``gpu:N``.
        precision: arithmetic that the runtime may use (one of `PRECISIONS`); ``float32`` keeps the types of the graph.
        log_placement: record the device of each op in `Session.placement`.
        profile: record the time of each op in `Session.op_trace`, in runtimes that measure it.
        streams: number of threads that may call `Session.run` at the same time.
        spinning: idle threads of the pool spin (default: the default of the runtime).
        reuse_outputs: the outputs of a run are valid until the second run after it begins, so that runtimes need not
            copy them. Only for runs one after the other: with several ``streams``, the order in which runs end is
            unknown.
        isa: instruction set that limits the kernels of oneDNN, ``avx2`` or ``avx512``, in a process that is
            started with the limit; None for no limit.
        optimized: the runtime rewrites the graph; False for the nodes of the graph, in runtimes that can compute them.
        varying_sizes: calls have inputs of different sizes, and ``auto`` avoids runtimes that compile for each size.
    """

    intra_op: int | None = None
    inter_op: int | None = None
    device: str = "cpu"
    precision: str = "float32"
    log_placement: bool = False
    profile: bool = False
    streams: int = 1
    spinning: bool | None = None
    reuse_outputs: bool = False
    optimized: bool = True
    isa: str | None = None
    varying_sizes: bool = False

    @public
    def with_(
        self,
        *,
        precision: str | None = None,
        intra_op: int | None = None,
        inter_op: int | None = None,
        isa: str | None = None,
    ) -> Self:
        """Return a copy with the arguments that are not None.

        Raises:
            UsageError: a number of threads or the precision is not allowed.
        """
        changes = without_none(precision=precision, intra_op=intra_op, inter_op=inter_op, isa=isa)
        require_choice(PRECISIONS, **without_none(precision=precision))
        require_positive(**without_none(intra_op=intra_op, inter_op=inter_op))
        return replace(self, **changes)

    @property
    def gpu_index(self) -> int | None:
        """Index of the GPU; None for the CPU.

        >>> SessionOptions(device="gpu:1").gpu_index
        1

        Raises:
            UsageError: `device` is not one of its values.
        """
        kind, _, number = self.device.partition(":")
        if self.device == "cpu":
            return None
        if kind != "gpu" or not (self.device == "gpu" or number.isdecimal()):
            raise UsageError(f"{self.device!r} is not a device", hint="use cpu, gpu or gpu:N with N from 0")
        return int(number or 0)


class Session(Protocol):
    """Model that is open in a runtime; a context manager that closes itself.

    A class that inherits from this one needs no `placement`, `int8_nodes`, `op_trace` and `time_parts`.

    Attributes:
        skipped: runtimes that ``auto`` skipped before this one.
    """

    skipped: tuple[SkippedRuntime, ...]

    @property
    def runtime(self) -> RuntimeVersion: ...

    @property
    def placement(self) -> tuple[str, ...]:
        """Device of each op, one line per op; filled by the first run if `SessionOptions.log_placement` is set."""
        return ()

    @property
    def int8_nodes(self) -> frozenset[str] | None:
        """Names in the model of the nodes that the runtime computes in int8; None if it does not show them."""
        return None

    @property
    def op_trace(self) -> OpTrace:
        """Time of each op in each run; empty without `SessionOptions.profile`. Reading it ends the recording."""
        return OpTrace()

    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...

    @property
    def outputs(self) -> tuple[TensorInfo, ...]: ...

    def run(self, feeds: Mapping[str, Array] | Array) -> dict[str, Array]:
        """Compute the outputs.

        Args:
            feeds: array of each input by name, or the array of the only input.

        Returns:
            Array of each output by name; the caller owns the arrays.

        Raises:
            UsageError: an array is missing, unknown, or of the wrong type or shape, or the session is closed.
            UnavailableError: the runtime has no kernel for an op.
            GraphError: an op rejects its inputs.
        """
        ...

    def time_parts(self, feeds: Mapping[str, Array], clock: Callable[[], float]) -> Mapping[str, float]:
        """Run once; return the seconds of each part of the run.

        Args:
            feeds: array of each input by name.
            clock: monotonic clock in seconds.

        Returns:
            Seconds of ``upload``, the copies to the device, of ``infer``, and of ``download``, the copies from the
            device; empty on the CPU, and in runtimes that do not separate the copies.
        """
        return {}

    def close(self) -> None:
        """Release the memory of the runtime; a second call has no effect."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
