"""TensorFlow with its own trace of each run: which node ran when, for how long, and what memory it asked for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.runtimes.availability import require
from quantkit.runtimes.session import SessionOptions
from quantkit.runtimes.tensorflow import RUNTIME
from quantkit.runtimes.tensorflow_library import explained, import_graph, module, quiet, reason, tensor

_LABEL_OP = re.compile(r" = ([\w>]+)\(")


@dataclass(frozen=True)
class NodeRun:
    """A node in one run.

    Attributes:
        name: of the node; TensorFlow may have put others into it.
        op: what ran in its name.
        start: seconds since the first node started.
        seconds: from its start to its end.
        num_bytes: what it asked of the allocators.
        shapes: of its outputs, as ``1x149x149x32``.
    """

    name: str
    op: str
    start: float
    seconds: float
    num_bytes: int
    shapes: tuple[str, ...]


class TracedSession:
    """A graph in TensorFlow, whose runs may be traced; a context manager that closes itself.

    Raises:
        UnavailableError: TensorFlow is not installed, or lacks an op.
        GraphError: TensorFlow refuses the graph.
    """

    def __init__(self, graph: Graph, options: SessionOptions = SessionOptions()) -> None:
        require(RUNTIME.available())
        tf = module()
        self._tf = tf
        self._ops = {node.name: node.op for node in graph.nodes.values()}
        with quiet():
            imported = import_graph(graph)
            config = tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=options.intra_op or 0, inter_op_parallelism_threads=options.inter_op or 0
            )
            self._session = tf.compat.v1.Session(graph=imported, config=config)
        self._feeds = {str(edge): tensor(imported, edge) for edge in graph.inputs}
        self._fetches = [tensor(imported, edge) for edge in graph.outputs]

    def run(self, feeds: Mapping[str, Array]) -> None:
        """Compute the outputs, as fast as it goes."""
        self._run(feeds)

    def traced(self, feeds: Mapping[str, Array]) -> tuple[NodeRun, ...]:
        """Compute them, and tell of each node in the order in which they started."""
        v1 = self._tf.compat.v1
        metadata = v1.RunMetadata()
        self._run(feeds, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE), run_metadata=metadata)
        stats = [one for device in metadata.step_stats.dev_stats for one in _of_nodes(device)]
        first = min((one.all_start_micros for one in stats), default=0)
        return tuple(sorted((self._told(one, first) for one in stats), key=lambda one: one.start))

    def _told(self, stats: Any, first: int) -> NodeRun:
        label = _LABEL_OP.search(stats.timeline_label)
        shapes = [
            "x".join(str(dim.size) for dim in one.tensor_description.shape.dim) or "scalar" for one in stats.output
        ]
        return NodeRun(
            stats.node_name,
            label[1] if label else self._ops.get(stats.node_name, "unknown"),
            (stats.all_start_micros - first) / 1e6,
            stats.all_end_rel_micros / 1e6,
            sum(one.total_bytes for one in stats.memory),
            tuple(shapes),
        )

    def _run(self, feeds: Mapping[str, Array], **how: Any) -> None:
        try:
            self._session.run(self._fetches, {self._feeds[name]: value for name, value in feeds.items()}, **how)
        except self._tf.errors.OpError as error:
            raise explained(error, self._ops) from error
        except (TypeError, ValueError) as error:
            raise UsageError(reason(error), hint="feed what the input takes") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self._session.close()


def benchmark_entry(name: str, runs: int, seconds: float) -> bytes:
    """A run of that many times and seconds in all, as the files of TensorFlow's benchmarks hold it."""
    from tensorflow.core.util import test_log_pb2

    entry = test_log_pb2.BenchmarkEntry(name=name, iters=runs, wall_time=seconds / runs)
    return bytes(test_log_pb2.BenchmarkEntries(entry=[entry]).SerializeToString())


def _of_nodes(device: Any) -> Sequence[Any]:
    """What a device tells of nodes; its streams tell the same once more."""
    return () if "stream" in device.device or "memcpy" in device.device else tuple(device.node_stats)
