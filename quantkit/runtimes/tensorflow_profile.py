"""Time of the ops of a TensorFlow session, from its step statistics and the graph after TensorFlow's rewrites."""

from typing import Any

from quantkit.ir.graph import Edge, Graph
from quantkit.runtimes.op_times import Span, exclusive_seconds, fused_nodes, seconds_by_run
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, TRANSFER, OpTime, OpTrace
from quantkit.runtimes.tensorflow_library import SessionLibrary

# Op types without computation: inputs, outputs, and the start of a run.
_NO_OPS = frozenset({"_Arg", "_Retval", "NoOp", "Const"})
_TRANSFERS = frozenset({"_Send", "_Recv", "_HostSend", "_HostRecv"})
# Op types that convert between formats or layouts, without the prefix of oneDNN kernels.
_CONVERSIONS = frozenset(
    {"Bitcast", "Cast", "Dequantize", "QuantizeV2", "Requantize", "RequantizationRange", "InputConversion", "ToTf"}
)
_LAYOUT_SUFFIX = "LayoutOptimizer"
_MKL = ("_MklNative", "_Mkl")
# Element types of quantized values in an attribute: DT_UINT8, DT_INT8, DT_QINT8, DT_QUINT8, DT_QINT32.
_QUANTIZED_DTYPES = frozenset({4, 6, 11, 12, 13})


class TensorflowProfiler:
    """Profile of one session.

    Args:
        tf: library of the session.
        graph: graph of the session.
    """

    def __init__(self, tf: SessionLibrary, graph: Graph) -> None:
        self._tf = tf
        self._graph = graph
        self._runs: list[Any] = []
        self._executed: dict[str, Any] = {}

    def call(self, function: Any, arrays: list[Any]) -> Any:
        """Call a function of the session with a trace; the first call also records the executed graph."""
        metadata = self._tf.RunMetadata()
        options = self._tf.RunOptions(
            trace_level=self._tf.RunOptions.SOFTWARE_TRACE, output_partition_graphs=not self._executed
        )
        results = function(*arrays, options=options, run_metadata=metadata)
        if not self._executed:
            self._executed = {node.name: node for graph in metadata.partition_graphs for node in graph.node}
        self._runs.append([stats for device in metadata.step_stats.dev_stats for stats in device.node_stats])
        return results

    def read(self) -> OpTrace:
        """Return the time of the ops that ran."""
        runs = [[stats for stats in run if stats.node_name in self._executed] for run in self._runs]
        spans = [[_span(stats) for stats in run] for run in runs]
        seconds = seconds_by_run(
            zip((stats.node_name for stats in run), exclusive_seconds(times), strict=True)
            for run, times in zip(runs, spans, strict=True)
        )
        nodes = ((self._executed[name], values) for name, values in seconds.items())
        return OpTrace(
            tuple(self._op_time(node, values) for node, values in nodes if node.op not in _NO_OPS),
            tuple(_duration(times) for times in spans),
        )

    def _op_time(self, node: Any, seconds: tuple[float, ...]) -> OpTime:
        op = _plain_op(node.op)
        is_int8 = op.startswith("Quantized") or _has_quantized_dtype(node)
        precision = INT8 if is_int8 else FLOAT
        if op in _CONVERSIONS or op in _TRANSFERS or node.name.endswith(_LAYOUT_SUFFIX):
            precision = TRANSFER if op in _TRANSFERS else CONVERSION
        sources = (Edge.parse(name.removeprefix("^")).node for name in node.input)
        producers = [name for name in sources if name in self._executed and self._executed[name].op not in _NO_OPS]
        return OpTime(
            node.name,
            op,
            precision,
            seconds,
            kernel=node.op,
            is_reference=op.startswith("Quantized") and not node.op.startswith(_MKL),
            device=node.device.rpartition("/")[2].removeprefix("device:"),
            sources=fused_nodes(self._graph, node.name, self._executed.keys() - {node.name}),
            producers=tuple(dict.fromkeys(producers)),
        )


def _plain_op(op: str) -> str:
    """Return an op type without the prefix of oneDNN kernels.

    >>> _plain_op("_MklNativeFusedConv2D"), _plain_op("_MklQuantizeV2"), _plain_op("Relu")
    ('FusedConv2D', 'QuantizeV2', 'Relu')
    """
    for prefix in _MKL:
        if op.startswith(prefix):
            return op.removeprefix(prefix)
    return op


def _has_quantized_dtype(node: Any) -> bool:
    return any(node.attr[name].type in _QUANTIZED_DTYPES for name in ("T", "Tinput", "T1") if name in node.attr)


def _span(stats: Any) -> Span:
    return Span(stats.all_start_micros / 1e6, (stats.all_start_micros + stats.all_end_rel_micros) / 1e6)


def _duration(spans: list[Span]) -> float:
    return max(span.end for span in spans) - min(span.start for span in spans) if spans else 0.0
