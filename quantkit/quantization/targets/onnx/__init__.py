"""Target "onnx": ONNX models with QuantizeLinear and DequantizeLinear pairs."""

from collections.abc import Collection, Mapping
from math import inf, prod
from typing import TypeGuard

import numpy as np

from quantkit.convert.onnx_opsets import raise_opset
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Tensor
from quantkit.ops.roles.onnx import GATE_OPS
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.targets.base import Target
from quantkit.quantization.targets.capabilities import RuntimeRules
from quantkit.quantization.targets.onnx import native
from quantkit.quantization.targets.onnx.attention import find_attention
from quantkit.quantization.targets.onnx.blocks import fuse_views, move_channels_last
from quantkit.quantization.targets.onnx.channel_shuffles import replace_shuffles
from quantkit.quantization.targets.onnx.concatenation import concatenate_integers
from quantkit.quantization.targets.onnx.extremes import separate_extremes
from quantkit.quantization.targets.onnx.first_layers import find_slow_layers
from quantkit.quantization.targets.onnx.flat_norms import flatten_norms
from quantkit.quantization.targets.onnx.fused_gates import DOMAIN, fuse_gates
from quantkit.quantization.targets.onnx.hidden_sizes import hide_sizes
from quantkit.quantization.targets.onnx.lowering import lower_layers, restore_layers
from quantkit.quantization.targets.onnx.merged_branches import merge_branches
from quantkit.quantization.targets.onnx.output_layout import transpose_outputs
from quantkit.quantization.targets.onnx.pair_softmax import replace_pair_softmax
from quantkit.quantization.targets.onnx.product_chains import separate_products
from quantkit.quantization.targets.onnx.shared_biases import copy_biases
from quantkit.quantization.targets.onnx.upsampling import gather_rows
from quantkit.quantization.targets.workarounds import (
    CHANNEL_SHUFFLE,
    EXTREME,
    FLAT_NORM,
    HIDDEN_SIZE,
    OUTPUT_LAYOUT,
    PAIR_SOFTMAX,
    PRODUCT_CHAIN,
    SHARED_BIAS,
    UPSAMPLING,
    is_needed,
)
from quantkit.runtimes import AUTO, find_runtime

REWRITES = {
    OUTPUT_LAYOUT: transpose_outputs,
    PAIR_SOFTMAX: replace_pair_softmax,
    CHANNEL_SHUFFLE: replace_shuffles,
    PRODUCT_CHAIN: separate_products,
    EXTREME: separate_extremes,
    FLAT_NORM: flatten_norms,
    HIDDEN_SIZE: hide_sizes,  # after the row that adds a Shape
    UPSAMPLING: gather_rows,
    SHARED_BIAS: copy_biases,
}
# Rewrites also of files for all runtimes, which otherwise keep the ops that another runtime computes faster.
PORTABLE = (CHANNEL_SHUFFLE, PRODUCT_CHAIN, EXTREME, HIDDEN_SIZE, FLAT_NORM, SHARED_BIAS)
# Number of input channels from which files for all runtimes split a transposed convolution. ONNX Runtime has no int8
# kernel of one: with 24 channels the whole one is as fast there as its parts, with 32 and 64 slower. OpenVINO has one,
# and computes kernels larger than the stride up to twice as fast whole: these stay in files for all runtimes.
LEAST_SPLIT = 32
# Number of values from which a table is stored in int8: a smaller one saves less than 100 kB, for four more nodes.
LEAST_TABLE = 1 << 15
FLOAT_GATE = "the runtime fuses a float SiLU or HardSwish with the convolution before it"


class OnnxTarget(Target, RuntimeRules):
    """ONNX models with QuantizeLinear and DequantizeLinear pairs."""

    name = "onnx"
    dialect = "onnx"
    suffixes = (".onnx",)
    runtimes: tuple[str, ...] = ("openvino", "onnxruntime")

    def prepare(self, graph: Graph, runtime: str) -> Graph:
        graph = fuse_views(lower_for(graph, runtime))
        has_ops = runtime != AUTO and DOMAIN in find_runtime(runtime).op_domains
        return fuse_gates(move_channels_last(graph)) if has_ops else graph

    def slow_nodes(self, graph: Graph, runtime: str) -> Mapping[str, str]:
        if runtime != AUTO and find_runtime(runtime).fuses_float_ops:
            gates = {node.name: FLOAT_GATE for node in graph.nodes.values() if node.op in GATE_OPS}
            return gates | find_attention(graph)
        return find_slow_layers(graph) | find_attention(graph)

    def find_tables(self, graph: Graph, plan: Plan) -> Collection[str]:
        # A table that is also the weights of a layer is stored once, with their scales.
        shapes = [sorted(graph[name].value.shape) for name in plan.weights]
        tables = {
            node.name: node.inputs[0]
            for node in graph.nodes.values()
            if node.op == "Gather" and not node.attrs.get("axis") and node.name not in plan.pass_through
        }
        return [
            name
            for name, edge in tables.items()
            if _is_large(table := graph.constant_of(edge))
            and sorted(table.shape) not in shapes
            and edge.node not in graph.endpoint_names
            # Another consumer would keep the float table in the file.
            and all(tables.get(use.node.name) == edge for use in graph.node_uses.get(edge.node, ()))
        ]

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        quantized, runtime = concatenate_integers(native.convert(graph, plan, ranges)), plan.scheme.runtime
        quantized = merge_branches(restore_layers(quantized))
        for name, rewrite in REWRITES.items():
            if is_needed(name, runtime) and (runtime is not None or name in PORTABLE):
                quantized = rewrite(quantized)
        return quantized

    def edge_parameters(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
        return native.edge_parameters(graph, plan, ranges)


def lower_for(graph: Graph, runtime: str) -> Graph:
    """Return a float graph of a later opset, without layers that a runtime has no int8 kernel for."""
    if runtime == AUTO:
        return lower_layers(raise_opset(graph), least_split=LEAST_SPLIT, least_overlap=inf)
    least = inf if find_runtime(runtime).transposes_convolutions else 0
    return lower_layers(raise_opset(graph), least_split=least, least_overlap=least)


def _is_large(table: Tensor | None) -> TypeGuard[Tensor]:
    return (
        table is not None
        and table.dtype is DType.FLOAT
        and len(table.shape) == 2
        and prod(table.shape) >= LEAST_TABLE
        and bool(np.isfinite(table.array).all())
    )


TARGET = OnnxTarget()
