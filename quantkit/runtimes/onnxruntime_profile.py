"""Time of the ops of a session of ONNX Runtime, from its profile and the model that it wrote after its rewrites."""

import json
import re
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.formats import onnx
from quantkit.formats.temporary import PREFIX
from quantkit.ir.graph import Graph, Node
from quantkit.runtimes.op_times import Span, exclusive_seconds, fused_nodes, named_onnx_graph, seconds_by_run
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, TRANSFER, OpTime, OpTrace

# Suffixes that the rewrites append to the name of a node.
_REWRITE_SUFFIX = re.compile(r"(?:_token_\d+|/MatMulAddFusion|_nchwc)+$")
# Ops that convert between formats or layouts, and between the memory of devices.
_CONVERSIONS = frozenset(
    {"Cast", "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear", "ReorderInput", "ReorderOutput"}
)
_TRANSFERS = frozenset({"MemcpyFromHost", "MemcpyToHost"})
# Ops with int8 or int4 weights that compute in float.
_FLOAT_ARITHMETIC = frozenset({"MatMulNBits", "GatherBlockQuantized"})
_SOURCE_OPS = frozenset({"Placeholder", "Constant", onnx.ABSENT.op})
_EVENT_SUFFIX = "_kernel_time"

Event = Mapping[str, Any]


class OnnxRuntimeProfiler:
    """Profile of one session, and the folder with its files.

    Args:
        model: graph, or ONNX file.
        config: options of the session, which receive the names of the files.

    Attributes:
        model: path of the model to open; each node has the name of its first output.
    """

    def __init__(self, model: Graph | Path, config: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)
        folder = Path(self._folder.name)
        self._graph = named_onnx_graph(model)
        self.model = str(folder / "model.onnx")
        formats.save(self._graph, Path(self.model))
        self._optimized = folder / "optimized.onnx"
        config.optimized_model_filepath = str(self._optimized)
        config.enable_profiling = True
        config.profile_file_prefix = str(folder / "profile")
        self._trace: OpTrace | None = None

    def read(self, session: Any) -> OpTrace:
        """Return the trace of a session; the first call ends the recording."""
        if self._trace is None:
            events = json.loads(Path(session.end_profiling()).read_text())
            self._trace = read_trace(events, self._graph, onnx.decode(self._optimized.read_bytes()))
        return self._trace

    def close(self) -> None:
        """Remove the files."""
        self._folder.cleanup()


def read_trace(events: Iterable[Event], graph: Graph, optimized: Graph) -> OpTrace:
    """Return the time of the ops in a profile.

    Args:
        events: events of the profile.
        graph: graph of the session, whose nodes have the names of their first outputs.
        optimized: graph that ONNX Runtime wrote after its rewrites.
    """
    events = list(events)
    executed = {onnx.node_name(node): node for node in _ops(optimized)}
    runs = [event for event in events if event["name"] == "model_run"]
    # Nodes of loop bodies and branches run inside the time of their loop or branch.
    ops = [event for event in events if event.get("cat") == "Node" and _op_name(event) in executed]
    ops.sort(key=_start)
    by_run = [
        ops[bisect_left(ops, _span(run).start, key=_start) : bisect_left(ops, _span(run).end, key=_start)]
        for run in runs
    ]
    seconds = seconds_by_run(
        zip(map(_op_name, run), exclusive_seconds(list(map(_span, run))), strict=True) for run in by_run
    )
    facts = {_op_name(event): event["args"] for run in by_run for event in run}
    sources = _Sources(graph, optimized)
    return OpTrace(
        tuple(_op_time(name, executed[name], facts[name], values, sources) for name, values in seconds.items()),
        tuple(run["dur"] / 1e6 for run in runs),
    )


def _op_time(name: str, node: Node, facts: Event, seconds: tuple[float, ...], sources: "_Sources") -> OpTime:
    op, node_sources = facts["op_name"], sources.find(name, node)
    types = {dtype for shapes in facts.get("input_type_shape", ()) for dtype in shapes}
    is_int8 = bool(types & {"uint8", "int8"}) and op not in _FLOAT_ARITHMETIC
    precision = INT8 if is_int8 else FLOAT
    is_layout_change = op == "Transpose" and not node_sources
    if op in _CONVERSIONS or op in _TRANSFERS or is_layout_change:
        precision = TRANSFER if op in _TRANSFERS else CONVERSION
    return OpTime(
        name,
        op,
        precision,
        seconds,
        kernel=node.op,
        device=facts.get("provider", ""),
        sources=node_sources,
        producers=sources.producers(node),
    )


class _Sources:
    """Nodes of the graph of a session that its optimized nodes compute."""

    def __init__(self, graph: Graph, optimized: Graph) -> None:
        self._graph = graph
        self._optimized = optimized

    @cached_property
    def _boundary(self) -> frozenset[str]:
        # The rewrites for blocked layouts rename the output of a node and keep the beginning of its name.
        names = (source_name(onnx.node_name(node)) for node in _ops(self._optimized))
        return frozenset({*self._optimized.nodes, *names})

    def find(self, name: str, node: Node) -> tuple[str, ...]:
        """Return the nodes that an optimized node computes, by its output and by its name."""
        own = source_name(name)
        fused = fused_nodes(self._graph, node.name, self._boundary - {node.name, own})
        sources = (*fused, own) if own in self._graph and own not in fused else fused
        # A dequantization inside a fused op has the name of its input, which another op computes.
        computed = [source for source in sources if self._graph[source].op != "DequantizeLinear"]
        return tuple(computed) or sources

    def producers(self, node: Node) -> tuple[str, ...]:
        """Return the names of the nodes that compute the inputs of an optimized node."""
        producers = [self._optimized[edge.node] for edge in node.inputs if edge.node in self._optimized]
        return tuple(dict.fromkeys(onnx.node_name(each) for each in producers if each.op not in _SOURCE_OPS))


def _ops(graph: Graph) -> list[Node]:
    """Return the nodes that a session executes."""
    return [node for node in graph.nodes.values() if node.op not in _SOURCE_OPS]


def source_name(name: str) -> str:
    """Return the name of a node before the rewrites."""
    return _REWRITE_SUFFIX.sub("", name)


def _op_name(event: Event) -> str:
    name = str(event["name"])
    return name.removesuffix(_EVENT_SUFFIX) if name.endswith(_EVENT_SUFFIX) else ""


def _start(event: Event) -> float:
    return _span(event).start


def _span(event: Event) -> Span:
    return Span(event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
