"""Target "tensorrt": ONNX models with signed QuantizeLinear and DequantizeLinear pairs, placed by TensorRT's rules.

Values and weights are symmetric int8, biases are float. Activations are fused with the layer before them, and a
residual with the layer whose product it is added to: values inside such a kernel are not quantized. Small layers, the
products of attention and normalizations stay float.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import log10
from types import MappingProxyType
from typing import Any

from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Shape
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.finding import Build, Finding
from quantkit.quantization.targets.onnx import OnnxTarget, native
from quantkit.quantization.targets.onnx.attention import find_attention
from quantkit.quantization.targets.onnx.stated_shapes import infer_shapes
from quantkit.quantization.targets.tensorrt.builder import check_build
from quantkit.quantization.targets.tensorrt.check import examine, find_int8_layers
from quantkit.quantization.targets.tensorrt.rules import find_small_size
from quantkit.quantization.targets.tensorrt.zero_points import AFFINE, find_affine_edges, fold_zero_points
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import SessionOptions
from quantkit.transforms.precision.convert_precision import convert_precision

FUSED_OPS = find_ops(Fact.ACTIVATION | Fact.GATE, "onnx") - find_ops(Fact.FUSED, "onnx")
# Levels of int8 values above 0 with a zero point, and without one.
UNSIGNED_LEVELS, SIGNED_LEVELS = 255, 127
FUSED = "TensorRT fuses a float activation with the layer before it"


class TensorRTTarget(OnnxTarget):
    """ONNX models with signed QuantizeLinear and DequantizeLinear pairs for NVIDIA GPUs."""

    name = "tensorrt"
    title = "ONNX model with signed QuantizeLinear and DequantizeLinear for NVIDIA GPUs"
    runtimes: tuple[str, ...] = ("tensorrt", "tensorrt_native", "onnxruntime")
    defaults: Mapping[str, Any] = MappingProxyType(
        {"activations": "qint8 symmetric", "runtime": "tensorrt", "float_outputs": True}
    )
    fixed = ("signed_activations", "runtime")
    multiplies_u8_by_s8 = False
    runs_bfloat16 = False
    writes_float16 = True
    gpu_advice = ""
    slow_reason = "the file is for NVIDIA GPUs: a CPU only shows its accuracy"
    faster_target = "onnx"
    adds_before_rounding = True

    def suit_scheme(self, scheme: Scheme, runtime: str) -> Scheme:
        return scheme

    def check_scheme(self, scheme: Scheme) -> None:
        super().check_scheme(scheme)
        if scheme.activations not in (AFFINE, replace(AFFINE, symmetric=True)):
            raise UsageError(
                f"the target {self.name!r} requires int8 activations, not {str(scheme.activations)!r}",
                hint=f"write 'qint8 symmetric', or '{AFFINE}' for zero points before padded convolutions, too",
            )

    def refine_scheme(self, scheme: Scheme) -> Scheme:
        return scheme.with_(activations=AFFINE)

    def fuse_for(self, graph: Graph, runtime: str) -> Graph:
        return graph

    def slow_nodes(self, graph: Graph, runtime: str) -> Mapping[str, str]:
        return {node.name: FUSED for node in graph.nodes.values() if node.op in FUSED_OPS} | find_attention(graph)

    def missing_kernel(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
        return find_small_size(graph, node, infer_shapes(graph))

    def warnings(self, graph: Graph, plan: Plan) -> tuple[str, ...]:
        edges = plan.nonnegative_edges(graph) & plan.activations.keys()
        count = sum(plan.activations[edge].symmetric for edge in edges)
        if not count:
            return ()
        return (
            f"{count} tensors without negative values have half of the levels, as padded convolutions take no zero "
            f"points: their steps are {UNSIGNED_LEVELS} / {SIGNED_LEVELS} times as large, a loss of "
            f"{20 * log10(UNSIGNED_LEVELS / SIGNED_LEVELS):.2f} dB each. Activations {str(AFFINE)!r} in a scheme add "
            "Pad ops before such convolutions",
        )

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        return fold_zero_points(native.convert(graph, plan, ranges, keeps_biases=True))

    def edge_formats(self, graph: Graph, plan: Plan) -> Mapping[Edge, Spec]:
        return find_affine_edges(graph, plan)

    def narrow_floats(self, graph: Graph) -> Graph:
        # The sums of an int8 layer contain its zero point until its bias is added, which float16 would round.
        layers = find_int8_layers(graph)
        sums = {node.name for layer in layers for node in graph.consumers(layer) if node.op == "Add"}
        return convert_precision(graph, to="float16", weights_only=False, keep=tuple(sorted(layers | sums)))

    def examine(self, graph: Graph) -> tuple[Finding, ...]:
        return examine(graph)

    def check_build(self, graph: Graph) -> Build:
        return check_build(graph)

    def session_options(self, cores: int) -> SessionOptions:
        is_installed = any(find_runtime(name).available().ok for name in self.runtimes[:-1])
        return SessionOptions(device="gpu" if is_installed else "cpu")


TARGET = TensorRTTarget()
