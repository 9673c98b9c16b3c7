"""The contract of every engine.

A runtime says whether it can be used here, and opens a session on a graph; a session takes arrays by
input name and gives arrays by output name. Engines are imported inside `open` only.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from quantkit.errors import UnavailableError, UsageError, did_you_mean
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array, DType, Shape


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that goes into or comes out of a session.

    Attributes:
        name: as `str` of its edge: ``softmax``, ``split:1``.
        dtype: element type.
        shape: sizes as far as they are known.
    """

    name: str
    dtype: DType
    shape: Shape


@dataclass(frozen=True)
class Availability:
    """Whether an engine can be used here, and its version, or why not and what to do."""

    ok: bool
    detail: str

    @classmethod
    def yes(cls, version: str) -> Self:
        return cls(True, version)

    @classmethod
    def no(cls, reason: str) -> Self:
        return cls(False, reason)


@dataclass(frozen=True)
class Engine:
    """Which engine a session runs in.

    Attributes:
        name: the word for it on the command line.
        version: of the installed package.
        device: where it runs, in the engine's words: ``CPU``, ``/device:GPU:0``, ``CUDAExecutionProvider``.

    >>> str(Engine("onnxruntime", "1.20.0"))
    'onnxruntime 1.20.0'
    """

    name: str
    version: str
    device: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Skipped:
    """An engine that ``auto`` passed over, and why."""

    runtime: str
    reason: str

    def __str__(self) -> str:
        return f"{self.runtime}: {self.reason}"


# Arithmetic that an engine may be allowed: the words of `SessionOptions.precision`.
PRECISIONS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class SessionOptions:
    """How a session runs.

    Attributes:
        intra_op: threads inside one operation; None: the engine's default.
        inter_op: operations run side by side; None: the engine's default.
        device: ``cpu``, ``gpu`` or ``gpu:N``.
        precision: arithmetic the engine may use where it has a choice: ``float32`` (the default: as the
            graph says), ``bfloat16`` or ``float16``.
        log_placement: note on which device each operation was put (`Session.placement`).
    """

    intra_op: int | None = None
    inter_op: int | None = None
    device: str = "cpu"
    precision: str = "float32"
    log_placement: bool = False


class Session(Protocol):
    """A graph that is ready to run; a context manager that closes itself.

    Attributes:
        skipped: engines that ``auto`` tried first, with reasons.
    """

    skipped: tuple[Skipped, ...]

    @property
    def runtime(self) -> Engine: ...

    @property
    def placement(self) -> tuple[str, ...]:
        """Where each operation runs, a line for each; known after the first run, if options asked for it."""
        ...

    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...

    @property
    def outputs(self) -> tuple[TensorInfo, ...]: ...

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the outputs.

        Args:
            feeds: an array for every input, by name.

        Returns:
            An array that the caller may keep for every output, by name.

        Raises:
            UsageError: a feed is missing, unknown, or of the wrong type or shape, or the session is closed.
            UnavailableError: the engine has no kernel for an op.
            GraphError: an op refuses what reaches it.
        """
        ...

    def close(self) -> None:
        """Give back what the engine holds; a second time does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Runtime(Protocol):
    """An engine."""

    @property
    def name(self) -> str:
        """The word for it on the command line."""
        ...

    def available(self) -> Availability:
        """Whether it is installed and runs here; cheap, imports nothing heavy."""
        ...

    def open(self, model: Graph | Path, options: SessionOptions = SessionOptions()) -> Session:
        """Make a session.

        Args:
            model: a graph, or a file in a format of the engine's own (``.onnx``, ``.xml``, ``.tflite``).
            options: threads, device and precision.

        Raises:
            UnavailableError: not installed, or the engine can not run this model or device here.
        """
        ...


class FunctionSession:
    """A session made of one function: all that engines share.

    Args:
        runtime: the engine.
        inputs: what is fed, in the order in which ``compute`` takes it.
        outputs: what is computed, in the order in which ``compute`` gives it.
        compute: takes checked arrays and gives new ones, which the caller may keep and change.
        release: called once, by `close`.
        placement: the lines of `Session.placement`.
    """

    def __init__(
        self,
        runtime: Engine,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        compute: Callable[[list[Array]], Sequence[Array]],
        *,
        release: Callable[[], None] = lambda: None,
        placement: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self.runtime = runtime
        self.inputs = inputs
        self.outputs = outputs
        self.skipped: tuple[Skipped, ...] = ()
        self._compute: Callable[[list[Array]], Sequence[Array]] | None = compute
        self._release = release
        self._placement = placement

    @property
    def placement(self) -> tuple[str, ...]:
        return self._placement()

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self._compute is None:
            raise UsageError("this session is closed", hint="open a new one: open_session(model)")
        if not isinstance(feeds, Mapping):
            example = f"{{{self.inputs[0].name!r}: array}}" if self.inputs else "{}"  # type: ignore[unreachable]
            raise UsageError("what is fed says no names of inputs", hint=f"give arrays by name: {example}")
        arrays = {name: as_array(value) for name, value in feeds.items()}
        check_feeds(self.inputs, arrays)
        results = self._compute([arrays[info.name] for info in self.inputs])
        return {info.name: array for info, array in zip(self.outputs, results, strict=True)}

    def close(self) -> None:
        if self._compute is not None:
            self._placement = lambda lines=self._placement(): lines  # type: ignore[misc]
            self._compute = None
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def as_array(value: Any) -> Array:
    """A feed as an array; bytes, whose trailing zeros NumPy's own strings would lose, as an object."""
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def installed(title: str, module: str, *packages: str, extra: str) -> Availability:
    """Find the Python package of a runtime without importing it.

    Args:
        title: name of the runtime in messages.
        module: module that the runtime imports.
        packages: distributions that provide the module, the usual one first.
        extra: extra of quantkit that installs the first of them.
    """
    from importlib.metadata import PackageNotFoundError, version

    if find_spec(module) is None:
        return Availability.no(f"{title} is not installed: pip install 'quantkit[{extra}]'")
    for package in packages:
        try:
            return Availability.yes(version(package))
        except PackageNotFoundError:
            continue
    return Availability.yes("of unknown version")


def require(answer: Availability) -> None:
    """Go on only with an engine that is there.

    Raises:
        UnavailableError: it is not; the hint is the command that installs it.
    """
    if not answer.ok:
        reason, _, command = answer.detail.partition(": ")
        raise UnavailableError(reason, hint=command)


def gpu_index(device: str) -> int | None:
    """The number of the GPU a device word means; None: the processor.

    >>> gpu_index("gpu:1"), gpu_index("gpu"), gpu_index("cpu")
    (1, 0, None)

    Raises:
        UsageError: the word means nothing.
    """
    word, _, number = device.partition(":")
    if device == "cpu":
        return None
    if word != "gpu" or not (device == "gpu" or number.isdecimal()):
        raise UsageError(f"{device!r} is not a device", hint="use cpu, gpu or gpu:N with N from 0")
    return int(number or 0)


def check_feeds(inputs: tuple[TensorInfo, ...], feeds: Mapping[str, Array]) -> None:
    """Compare feeds with what a session takes; every session calls this first.

    Raises:
        UsageError: naming the input, what it takes and what it was given.
    """
    known = {info.name: info for info in inputs}
    for name in feeds:
        if name not in known:
            raise UsageError(
                f"{name!r} is not an input of this session",
                hint=did_you_mean(name, known) or f"its inputs are {', '.join(known)}",
            )
    for name, info in known.items():
        if name not in feeds:
            raise UsageError(f"input {name!r} is not fed", hint=f"it takes {info.dtype.value} of shape {info.shape}")
        array = feeds[name]
        if info.dtype is DType.STRING:
            if array.dtype.kind not in "OSU":
                raise UsageError(
                    f"input {name!r} takes strings, not {array.dtype.name}", hint="feed bytes, or an array of bytes"
                )
        elif array.dtype != info.dtype.numpy:
            raise UsageError(
                f"input {name!r} takes {info.dtype.value}, not {array.dtype.name}",
                hint=f"convert it first: array.astype('{info.dtype.numpy.name}')",
            )
        dims = info.shape.dims
        if dims is not None and (
            len(dims) != array.ndim
            or any(want is not None and want != size for want, size in zip(dims, array.shape, strict=True))
        ):
            raise UsageError(
                f"input {name!r} takes shape {info.shape}, not {Shape(array.shape)}",
                hint="add or remove a batch dimension, or resize the data",
            )
