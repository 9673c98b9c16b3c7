"""Operations and bytes of a layer, and their rates compared with the measured peaks of the machine (roofline)."""

from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Self

from quantkit.benchmark.profiling.layer_names import LayerNames
from quantkit.ir.graph import Edge
from quantkit.runtimes.session import INT8

# Thresholds of xprof: a layer is bound by one resource if it uses most of that one, and less of the other.
HIGH, LOW = 0.7, 0.5
COMPUTE_BOUND, MEMORY_BOUND = "compute", "memory"


@dataclass(frozen=True)
class LayerWork:
    """Operations and bytes of one call of a layer.

    Attributes:
        operations: additions and multiplications; 0 for layers without MACs.
        num_bytes: size of the inputs, weights and outputs, each counted once.
    """

    operations: int
    num_bytes: int

    @classmethod
    def of(cls, layers: LayerNames, layer: str, precision: str) -> Self | None:
        """Return the work of a layer whose tensors have 1 byte per element in int8, else 4; None for unknown shapes."""
        members = frozenset(layers.members(layer))
        graph = layers.graph
        inputs = {edge for name in members for edge in graph[name].inputs if edge.node not in members}
        outputs = {
            edge
            for name in members
            for edge, uses in ((Edge(name), graph.uses.get(Edge(name), ())),)
            if not uses or any(use.node.name not in members for use in uses)
        }
        sizes = [_num_elements(layers, edge) for edge in inputs | outputs]
        if None in sizes:
            return None
        width = 1 if precision == INT8 else 4
        return cls(2 * sum(layers.macs[name] for name in members), width * sum(size or 0 for size in sizes))

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the work as JSON values, with its rates if the runtime's clock resolves the time."""
        if seconds <= 0:
            return asdict(self)
        rates = {"operations_per_second": self.operations / seconds, "bytes_per_second": self.num_bytes / seconds}
        return asdict(self) | rates


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of the machine.

    Attributes:
        float_operations, int8_operations: operations per second of a large matrix product in the runtime; None if it
            was not measured.
        num_bytes: bytes per second that a copy of large arrays reads and writes.
    """

    float_operations: float | None
    int8_operations: float | None
    num_bytes: float

    def operations(self, precision: str) -> float | None:
        """Return the peak of a precision in operations per second."""
        return self.int8_operations if precision == INT8 else self.float_operations

    def bound(self, work: LayerWork, seconds: float, precision: str) -> str:
        """Return the resource that limits a layer: `COMPUTE_BOUND`, `MEMORY_BOUND`, or empty for neither."""
        peak = self.operations(precision)
        if seconds <= 0:
            return ""
        compute = work.operations / seconds / peak if peak else 0.0
        memory = work.num_bytes / seconds / self.num_bytes
        if compute > HIGH and memory < LOW:
            return COMPUTE_BOUND
        return MEMORY_BOUND if memory > HIGH and compute < LOW else ""

    def to_json(self) -> dict[str, Any]:
        """Return the peaks as JSON values."""
        return {
            "float_operations_per_second": self.float_operations,
            "int8_operations_per_second": self.int8_operations,
            "bytes_per_second": self.num_bytes,
        }


def _num_elements(layers: LayerNames, edge: Edge) -> int | None:
    tensor = layers.graph.constant_of(edge)
    if tensor is not None:
        return prod(tensor.shape)
    shape = layers.shapes.get(edge)
    return prod(shape.sizes) if shape is not None and shape.is_known else None
