"""Quantization parameters of oneDNN's kernels: quint8 activations with a shifted zero point, qint8 weights."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.spec import AFFINE

MAX_VALUE = 255
ACTIVATION_TYPE = DType.QUINT8
WEIGHTS_TYPE = DType.QINT8


class QuantizedTensor(NamedTuple):
    """Edge of quantized values, with their scale and zero point."""

    edge: Edge
    scale: float
    zero: int

    @property
    def max_unshifted(self) -> float:
        """Largest real value as kernels without a zero point compute it."""
        return float(np.float32(self.scale) * np.float32(MAX_VALUE))

    @property
    def mode(self) -> bytes:
        """Attribute ``mode`` of QuantizeV2 and Dequantize."""
        return b"MIN_FIRST" if self.zero else b"SCALED"


def edge_parameters(graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
    """Return the parameters of each quantized edge: quint8, shifted where negative values occur."""
    return {edge: _parameters_of(graph, plan, ranges, edge) for edge in plan.activations}


def quantized_name(edge: Edge) -> str:
    """Return the name of the node with the quantized values of a float edge."""
    return f"{edge.node}/codes" + (f"_{edge.port}" if edge.port else "")


def requantized_name(name: str) -> str:
    """Return the name of the node with the values of a pass-through node in its planned range."""
    return f"{name}/recoded"


def _parameters_of(graph: Graph, plan: Plan, ranges: Ranges, edge: Edge) -> QuantizationParameters:
    source = graph.nodes.get(edge.node)
    if source is not None and casts_uint8(source) and plan.group_of(edge) == {edge}:
        return QuantizationParameters(AFFINE, np.float32(1), np.int32(0))  # type: ignore[arg-type]
    return QuantizationParameters.of_range(AFFINE, ranges[edge])


def casts_uint8(node: Node) -> bool:
    """Return True if a node casts uint8 values, which are quantized values with scale 1."""
    return node.op == "Cast" and node.attrs.get("SrcT") is DType.UINT8
