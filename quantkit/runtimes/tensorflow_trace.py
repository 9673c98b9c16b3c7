"""TensorFlow sessions with a trace of each run: start, duration and memory of each node."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.runtimes.session import SessionOptions
from quantkit.runtimes.tensorflow_library import (
    describe_error,
    find_tensor,
    import_graph,
    import_tensorflow,
    suppress_log,
    translate_error,
)

_LABEL_OP = re.compile(r" = ([\w>]+)\(")


@dataclass(frozen=True)
class NodeRun:
    """Run of one node.

    Attributes:
        name: name of the node; TensorFlow may have fused other nodes into it.
        op: op type that ran.
        start: seconds after the start of the first node.
        seconds: duration.
        num_bytes: allocated memory.
        shapes: shapes of the outputs, as ``1x149x149x32``.
    """

    name: str
    op: str
    start: float
    seconds: float
    num_bytes: int
    shapes: tuple[str, ...]


class TracedSession:
    """TensorFlow session that can trace its runs; a context manager that closes itself.

    Raises:
        UnavailableError: TensorFlow is not installed, or an op is not in this TensorFlow.
        GraphError: TensorFlow rejects the graph.
    """

    def __init__(self, graph: Graph, options: SessionOptions = SessionOptions()) -> None:
        tf = import_tensorflow()
        self._tf = tf
        self._ops = {node.name: node.op for node in graph.nodes.values()}
        with suppress_log():
            imported = import_graph(graph)
            config = tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=options.intra_op or 0, inter_op_parallelism_threads=options.inter_op or 0
            )
            self._session = tf.compat.v1.Session(graph=imported, config=config)
        self._feeds = {str(edge): find_tensor(imported, edge) for edge in graph.inputs}
        self._fetches = [find_tensor(imported, edge) for edge in graph.outputs]

    def run(self, feeds: Mapping[str, Array]) -> None:
        """Compute the outputs without a trace."""
        self._run(feeds)

    def trace(self, feeds: Mapping[str, Array]) -> tuple[NodeRun, ...]:
        """Compute the outputs and return the runs of the nodes in the order of their start."""
        v1 = self._tf.compat.v1
        metadata = v1.RunMetadata()
        self._run(feeds, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=metadata)
        node_stats = [stats for device in metadata.step_stats.dev_stats for stats in _node_stats(device)]
        first = min((stats.all_start_micros for stats in node_stats), default=0)
        return tuple(sorted((self._node_run(stats, first) for stats in node_stats), key=lambda run: run.start))

    def _node_run(self, stats: Any, first: int) -> NodeRun:
        label = _LABEL_OP.search(stats.timeline_label)
        shapes = [
            "x".join(str(dim.size) for dim in output.tensor_description.shape.dim) or "scalar"
            for output in stats.output
        ]
        return NodeRun(
            stats.node_name,
            label[1] if label else self._ops.get(stats.node_name, "unknown"),
            (stats.all_start_micros - first) / 1e6,
            stats.all_end_rel_micros / 1e6,
            sum(memory.total_bytes for memory in stats.memory),
            tuple(shapes),
        )

    def _run(self, feeds: Mapping[str, Array], **arguments: Any) -> None:
        try:
            self._session.run(self._fetches, {self._feeds[name]: value for name, value in feeds.items()}, **arguments)
        except self._tf.errors.OpError as error:
            raise translate_error(error, self._ops) from error
        except (TypeError, ValueError) as error:
            raise UsageError(describe_error(error), hint="pass arrays of the type and shape of the inputs") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._session.close()


def benchmark_entry(name: str, runs: int, seconds: float) -> bytes:
    """Serialize a result in the file format of TensorFlow's benchmarks.

    Args:
        name: name of the benchmark.
        runs: number of runs.
        seconds: duration of all runs.
    """
    from tensorflow.core.util import test_log_pb2

    entry = test_log_pb2.BenchmarkEntry(name=name, iters=runs, wall_time=seconds / runs)
    return bytes(test_log_pb2.BenchmarkEntries(entry=[entry]).SerializeToString())


def _node_stats(device: Any) -> Sequence[Any]:
    """Return the statistics of the nodes on a device; empty for GPU streams, which repeat those of the device."""
    return () if "stream" in device.device or "memcpy" in device.device else tuple(device.node_stats)
