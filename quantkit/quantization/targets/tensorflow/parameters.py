"""Codes of oneDNN's kernels: which tensors have them, and what they mean."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.spec import AFFINE

TOP = 255
QUANTIZED = DType.QUINT8
WEIGHTS = DType.QINT8


class QuantizedTensor(NamedTuple):
    """Where the codes of a tensor are, and what they mean."""

    edge: Edge
    scale: float
    zero: int

    @property
    def high(self) -> float:
        """What a kernel that knows no shift takes for the greatest number."""
        return float(np.float32(self.scale) * np.float32(TOP))

    @property
    def mode(self) -> bytes:
        """How kernels that make codes, or numbers of them, take their ends."""
        return b"MIN_FIRST" if self.zero else b"SCALED"


def edge_parameters(graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
    """The codes of each quantized edge: quint8, shifted where negative numbers occur."""
    return {edge: _parameters_of(graph, plan, ranges, edge) for edge in plan.activations}


def quantized_name(edge: Edge) -> str:
    """The node that holds the codes of a float graph's edge."""
    return f"{edge.node}/codes" + (f"_{edge.port}" if edge.port else "")


def _parameters_of(graph: Graph, plan: Plan, ranges: Ranges, edge: Edge) -> QuantizationParameters:
    source = graph.nodes.get(edge.node)
    if source is not None and casts_bytes(source) and plan.group_of(edge) == {edge}:
        return QuantizationParameters(AFFINE, np.float32(1), np.int32(0))  # type: ignore[arg-type]
    return QuantizationParameters.of_range(AFFINE, ranges[edge])


def casts_bytes(node: Node) -> bool:
    """Whether a node makes numbers of bytes, which are codes already."""
    return node.op == "Cast" and node.attrs.get("SrcT") is DType.UINT8
