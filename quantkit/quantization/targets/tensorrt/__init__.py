"""Target "tensorrt": ONNX models with signed QuantizeLinear and DequantizeLinear pairs, placed by TensorRT's rules.

Values and weights are symmetric int8, biases are float. Activations are fused with the layer before them, and a
residual with the layer whose product it is added to: values inside such a kernel are not quantized. Small layers, the
products of attention and normalizations stay float.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.capabilities import FileChecks
from quantkit.quantization.targets.finding import Build, Finding
from quantkit.quantization.targets.onnx import OnnxTarget, lower_for, native
from quantkit.quantization.targets.onnx.attention import find_attention
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes
from quantkit.quantization.targets.tensorrt.builder import check_build
from quantkit.quantization.targets.tensorrt.check import examine
from quantkit.quantization.targets.tensorrt.rules import find_small_size
from quantkit.quantization.targets.tensorrt.zero_points import find_affine_edges, find_padded_layers, fold_zero_points

FUSED_OPS = find_ops(Fact.ACTIVATION | Fact.GATE, "onnx") - find_ops(Fact.FUSED, "onnx")
FUSED = "TensorRT fuses a float activation with the layer before it"


class TensorRTTarget(OnnxTarget, FileChecks):
    """ONNX models with signed QuantizeLinear and DequantizeLinear pairs for NVIDIA GPUs."""

    name = "tensorrt"
    runtimes: tuple[str, ...] = ("tensorrt", "tensorrt_native", "onnxruntime")
    defaults: Mapping[str, Any] = MappingProxyType(
        {"activations": "qint8 symmetric", "runtime": "tensorrt", "float_outputs": True}
    )
    fixed = ("activations.dtype", "signed_activations", "runtime")

    def prepare(self, graph: Graph, runtime: str) -> Graph:
        return lower_for(graph, runtime)

    def refinable_layers(self, graph: Graph, plan: Plan) -> Collection[str]:
        return find_padded_layers(graph, plan)

    def find_tables(self, graph: Graph, plan: Plan) -> Collection[str]:
        return ()  # TensorRT reads int8 only after a QuantizeLinear

    def slow_nodes(self, graph: Graph, runtime: str) -> Mapping[str, str]:
        return {node.name: FUSED for node in graph.nodes.values() if node.op in FUSED_OPS} | find_attention(graph)

    def missing_kernel(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
        return find_small_size(graph, node, infer_shapes(graph))

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        return fold_zero_points(native.convert(graph, plan, ranges, keeps_biases=True))

    def edge_formats(self, graph: Graph, plan: Plan) -> Mapping[Edge, Spec]:
        # The kernel of a layer adds a residual to its product before it is rounded.
        products = {pattern.inner for pattern in plan.patterns} - {
            edge for each in plan.patterns for edge in each.inputs
        }
        return {edge: spec for edge, spec in find_affine_edges(graph, plan).items() if edge not in products}

    def examine(self, graph: Graph) -> tuple[Finding, ...]:
        return examine(graph)

    def check_build(self, graph: Graph) -> Build:
        return check_build(graph)


TARGET = TensorRTTarget()
