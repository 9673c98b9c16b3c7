"""Time of the ops of a network of OpenVINO, and the nodes that OpenVINO fused into them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quantkit.ir.graph import Graph
from quantkit.runtimes.op_times import seconds_by_run
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, OpTime, OpTrace

# Ops that convert between formats or layouts.
_CONVERSIONS = frozenset({"Convert", "FakeQuantize", "Reorder"})
# ONNX ops that OpenVINO may compute in an op of another type.
_QUANTIZE_OPS = frozenset({"QuantizeLinear", "DequantizeLinear"})
# End of the name of the product in a Gemm or Conv with a bias, whose own name is that of the sum.
_PRODUCT = "/WithoutBiases"


class OpenvinoProfiler:
    """Profile of one compiled network.

    Args:
        compiled: network that was compiled with the option ``PERF_COUNT``.
        model: graph of the network, or its file.
    """

    def __init__(self, compiled: Any, model: Graph | Path) -> None:
        self._compiled = compiled
        self._ops = {name: node.op for name, node in model.nodes.items()} if isinstance(model, Graph) else {}
        self._runs: list[list[tuple[str, float]]] = []
        self._run_seconds: list[float] = []

    def add_run(self, nodes: Iterable[Any], seconds: float) -> None:
        """Add the times of the nodes of one run, and its duration in seconds."""
        self._run_seconds.append(seconds)
        self._runs.append([(node.node_name, node.real_time.total_seconds()) for node in nodes])

    def read(self) -> OpTrace:
        """Return the time of the ops that ran."""
        ops = self._compiled.get_runtime_model().get_ordered_ops()
        seconds = seconds_by_run(self._runs)
        times = [(op, seconds.get(op.get_friendly_name(), ())) for op in ops]
        ops_that_ran = tuple(self._op_time(op, values) for op, values in times if any(values))
        return OpTrace(ops_that_ran, tuple(self._run_seconds))

    def _op_time(self, op: Any, seconds: tuple[float, ...]) -> OpTime:
        facts = {key: value.astype(str) for key, value in op.get_rt_info().items()}
        op_type, kernel = facts["layerType"], facts["primitiveType"]
        sources = find_sources(facts.get("originalLayersNames", ""))
        precision = INT8 if kernel.lower().endswith(("i8", "u8")) else FLOAT
        source_ops = {self._ops[source] for source in sources if source in self._ops}
        if op_type in _CONVERSIONS or (source_ops and source_ops <= _QUANTIZE_OPS):
            precision = CONVERSION
        producers = (port.get_source_output().get_node() for port in op.inputs())
        return OpTime(
            op.get_friendly_name(),
            op_type,
            precision,
            seconds,
            kernel=kernel,
            is_reference=kernel.startswith("ref"),
            sources=sources,
            producers=tuple(node.get_friendly_name() for node in producers),
        )


def find_sources(names: str) -> tuple[str, ...]:
    """Return the names of the nodes of the file in an op: a sum may be in another op than its product."""
    return tuple(dict.fromkeys(name.removesuffix(_PRODUCT) for name in names.split(",") if name))
