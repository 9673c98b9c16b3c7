"""The part of a session that all runtimes have in common: checks of the arrays, names, closing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from quantkit.errors import GraphError, UsageError, did_you_mean
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes.session import OpTrace, RuntimeVersion, SkippedRuntime, TensorInfo


class FunctionSession:
    """Session around one function of a runtime.

    Args:
        runtime: runtime and version.
        inputs: inputs in the order of the arguments of ``compute``.
        outputs: outputs in the order of the results of ``compute``.
        compute: function from checked input arrays to new output arrays, which the caller may change.
        release: function that `close` calls once.
        placement: function that returns the lines of `Session.placement`.
        op_trace: function that returns the value of `Session.op_trace`.
        int8_nodes: function that returns the value of `Session.int8_nodes`, while the session is open.
        time_parts: function from input arrays and a clock to the value of `Session.time_parts`; None without parts.

    Attributes:
        explain: function that returns an error in place of the runtime's own one for such feeds; None for the own one.
    """

    def __init__(
        self,
        runtime: RuntimeVersion,
        inputs: tuple[TensorInfo, ...],
        outputs: tuple[TensorInfo, ...],
        compute: Callable[[list[Array]], Sequence[Array]],
        *,
        release: Callable[[], None] = lambda: None,
        placement: Callable[[], tuple[str, ...]] = tuple,
        op_trace: Callable[[], OpTrace] = OpTrace,
        int8_nodes: Callable[[], frozenset[str] | None] = lambda: None,
        time_parts: Callable[[list[Array], Callable[[], float]], Mapping[str, float]] | None = None,
    ) -> None:
        self.runtime = runtime
        self.inputs = inputs
        self.outputs = outputs
        self.skipped: tuple[SkippedRuntime, ...] = ()
        self.explain: Callable[[Mapping[str, Array]], GraphError | None] = lambda feeds: None
        self._compute: Callable[[list[Array]], Sequence[Array]] | None = compute
        self._release = release
        self._placement = placement
        self._op_trace = op_trace
        self._int8_nodes = int8_nodes
        self._time_parts = time_parts

    @property
    def placement(self) -> tuple[str, ...]:
        return self._placement()

    @property
    def int8_nodes(self) -> frozenset[str] | None:
        return self._int8_nodes()

    @property
    def op_trace(self) -> OpTrace:
        return self._op_trace()

    def run(self, feeds: Mapping[str, Array] | Array) -> dict[str, Array]:
        if self._compute is None:
            raise UsageError("the session is closed", hint="open a new one: open_session(model)")
        arrays = {name: as_array(value) for name, value in self._by_name(feeds).items()}
        check_feeds(self.inputs, arrays)
        try:
            results = self._compute([arrays[info.name] for info in self.inputs])
        except GraphError as error:
            explanation = self.explain(arrays)
            if explanation is None:
                raise
            raise explanation from error
        return {info.name: array for info, array in zip(self.outputs, results, strict=True)}

    def time_parts(self, feeds: Mapping[str, Array], clock: Callable[[], float]) -> Mapping[str, float]:
        return {} if self._time_parts is None else self._time_parts([feeds[info.name] for info in self.inputs], clock)

    def close(self) -> None:
        if self._compute is not None:
            self._placement = lambda lines=self._placement(): lines  # type: ignore[misc]
            self._int8_nodes = lambda: None
            self._compute = None
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _by_name(self, feeds: Mapping[str, Array] | Array) -> Mapping[str, Array]:
        """Return the arrays by input name.

        Raises:
            UsageError: an array without a name, and the model has not exactly one input.
        """
        if isinstance(feeds, Mapping):
            return feeds
        if len(self.inputs) == 1:
            return {self.inputs[0].name: feeds}
        names = [info.name for info in self.inputs]
        raise UsageError(
            f"the model has {len(names)} inputs: {', '.join(names)}" if names else "the model has no inputs",
            hint=f"pass a dict of input name to array: {{{', '.join(f'{name!r}: array' for name in names)}}}",
        )


def as_array(value: Any) -> Array:
    """Return an array; bytes become an object array, because NumPy strings drop trailing zero bytes."""
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def check_feeds(inputs: tuple[TensorInfo, ...], feeds: Mapping[str, Array]) -> None:
    """Check names, element types and shapes of the input arrays.

    Raises:
        UsageError: names the input, its type or shape, and that of the array.
    """
    infos = {info.name: info for info in inputs}
    for name in feeds:
        if name not in infos:
            raise UsageError(
                f"{name!r} is not an input of this session",
                hint=did_you_mean(name, infos) or f"the inputs are {', '.join(infos)}",
            )
    for name, info in infos.items():
        if name not in feeds:
            raise UsageError(
                f"no array for input {name!r}", hint=f"pass a {info.dtype.value} array of shape {info.shape}"
            )
        _check_dtype(info, feeds[name])
        _check_shape(info, feeds[name])


def _check_dtype(info: TensorInfo, array: Array) -> None:
    if info.dtype is DType.STRING:
        if array.dtype.kind not in "OSU":
            raise UsageError(
                f"input {info.name!r} takes strings, not {array.dtype.name}", hint="pass bytes, or an array of bytes"
            )
    elif array.dtype != info.dtype.numpy:
        raise UsageError(
            f"input {info.name!r} takes {info.dtype.value}, not {array.dtype.name}",
            hint=f"convert it first: array.astype('{info.dtype.numpy.name}')",
        )


def _check_shape(info: TensorInfo, array: Array) -> None:
    dims = info.shape.dims
    if dims is None:
        return
    if len(dims) != array.ndim or any(
        expected not in (None, size) for expected, size in zip(dims, array.shape, strict=True)
    ):
        raise UsageError(
            f"input {info.name!r} takes shape {info.shape}, not {Shape(array.shape)}",
            hint="add or remove a batch dimension, or resize the data",
        )
