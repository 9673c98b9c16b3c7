"""Contract of a target: the form of a quantized model, and all that depends on the form."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quantkit import formats
from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Array, Shape
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme, parse_field
from quantkit.quantization.spec import Spec
from quantkit.quantization.targets.finding import Build, Finding
from quantkit.quantization.weights import store_weights
from quantkit.runtimes.session import SessionOptions

FLOAT, BFLOAT16 = "float", "bfloat16"
DIALECTS = ("tensorflow", "onnx")


class Target(ABC):
    """Form of a quantized model: its ops, its file, its runtimes, and the scheme that suits them.

    A subclass sets the attributes and defines `convert`; every other method has a default. One
    object of the subclass is registered, see `quantkit.quantization.targets`.

    Attributes:
        name: value of ``--target``.
        title: noun phrase for help texts and reports.
        dialect: dialect of the float graph and of the quantized graph: ``tensorflow`` or ``onnx``.
        suffixes: suffixes of the files, the usual one first.
        writes_folders: True if `write` also writes SavedModel folders.
        runtimes: names of the runtimes that run the files, fastest first.
        keeps_endpoints: True if the file itself names the model's inputs and outputs.
        defaults: values of scheme fields that differ from those of `Scheme`; a number format is a
            `Spec` or its text, such as ``qint8 affine``.
        fixed: scheme fields that the kernels or the file format prescribe.
        can_split_patterns: True if `Scheme.split_patterns` is supported.
        has_classic_sums: True if biases and residuals are added by QuantizedBiasAdd and QuantizedAdd.
        layer_recipe: transforms applied before folding; they turn composite layers into one op.
        rewrite_recipe: transforms applied after folding; exact in float, they make int8 faster.
        multiplies_u8_by_s8: True if a runtime multiplies u8 activations by s8 weights. Without VNNI
            such products saturate in int16, so that weights need a reduced range.
        has_host_check: True if `check` compares the kernels of this host with float.
        fallback_precisions: precisions that float fallbacks can be stored in.
        runs_bfloat16: True if a runtime computes float ops in bfloat16 where the processor can.
        runs_float16: True if all runtimes compute float ops of float16 graphs.
        writes_float16: True if float ops may be converted to float16 in the file.
        thread_advice: thread settings to use; ``{cores}`` stands for the number of cores,
            ``{runtimes}`` for the titles of `runtimes`.
        weights_only_arithmetic: arithmetic of a model whose weights alone are quantized.
        bias_spec: number format of biases; None for the int32 sums of the products.
        slow_reason: cause of a latency above that of float; empty if the model can be faster.
        faster_target: name of a target that is faster on the same runtime, or empty.
        quantizes_all_consumers: True if float consumers of an edge with a float producer also take the quantized
            values.
        gpu_advice: sentence of the report about NVIDIA GPUs; empty if the runtimes have no GPU form of the file.
        adds_before_rounding: True if the kernel of a layer adds a residual to its product before it is rounded.
    """

    name: str
    title: str
    dialect: str
    suffixes: tuple[str, ...]
    writes_folders: bool = False
    runtimes: tuple[str, ...]
    keeps_endpoints: bool = False
    defaults: Mapping[str, Any] = MappingProxyType({})
    fixed: tuple[str, ...] = ()
    can_split_patterns: bool = False
    has_classic_sums: bool = False
    layer_recipe: str = "flatten_atrous_conv flatten_products simplify_arithmetic"
    rewrite_recipe: str = (
        "pool_after_projection fold_pads fold_clamps remove_nodes(op=EnsureShape) fold_constants(copies=true)"
    )
    multiplies_u8_by_s8: bool = False
    has_host_check: bool = False
    fallback_precisions: tuple[str, ...] = (FLOAT,)
    runs_bfloat16: bool = False
    runs_float16: bool = False
    writes_float16: bool = False
    thread_advice: str = "keep the default thread settings of {runtimes}"
    weights_only_arithmetic: str = "all arithmetic is in float"
    bias_spec: Spec | None = None
    slow_reason: str = ""
    faster_target: str = ""
    quantizes_all_consumers: bool = False
    gpu_advice: str = ""
    adds_before_rounding: bool = False

    def prepare(self, graph: Graph, runtime: str) -> Graph:
        """Return an equal float graph in the form that `convert` takes, before it is annotated.

        Args:
            graph: float graph.
            runtime: name of the runtime; ``auto`` for the form that serves all `runtimes`.

        Raises:
            UnavailableError: the graph has no such form.
        """
        return graph

    def suit_scheme(self, scheme: Scheme, runtime: str) -> Scheme:
        """Return a scheme with the options that suit the kernels of a runtime.

        Args:
            scheme: scheme of the caller.
            runtime: name of the runtime; ``auto`` for the form that serves all `runtimes`.
        """
        return scheme

    def refine_scheme(self, scheme: Scheme) -> Scheme:
        """Return a scheme with more precise values, whose files take more time, or the same one."""
        return scheme

    def fuse_for(self, graph: Graph, runtime: str) -> Graph:
        """Return an equal float graph with ops that only one runtime has.

        Args:
            graph: float graph of `prepare`.
            runtime: name of the runtime; ``auto`` for the form that serves all `runtimes`.
        """
        return graph

    def slow_nodes(self, graph: Graph, runtime: str) -> Mapping[str, str]:
        """Return the nodes that a runtime computes faster in float than in int8, with the reason.

        Args:
            graph: float graph of `prepare`.
            runtime: name of the runtime; ``auto`` for the form that serves all `runtimes`.
        """
        return {}

    @abstractmethod
    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        """Return the quantized graph, in the target's dialect.

        Args:
            graph: the float graph that was annotated.
            plan: a plan of ``graph`` for this target.
            ranges: ranges of every edge of the plan, shared within its groups.

        Raises:
            InputError: a range is missing.
            GraphError: the plan does not fit the graph.
            UnavailableError: an op has no form in this target.
        """

    def store_weights(self, graph: Graph, plan: Plan) -> Graph:
        """Return the float graph with int8 weights, for a plan of `Scheme.weights_only`.

        Raises:
            UnavailableError: the weights cannot be stored in this target.
        """
        return store_weights(graph, plan)

    def narrow_floats(self, graph: Graph) -> Graph:
        """Return a quantized graph whose float ops compute in float16, if `writes_float16` is set."""
        return graph

    def write(self, graph: Graph, path: Path, *, weights_only: bool = False) -> None:
        """Write a graph of `convert` or `store_weights`; the file appears complete or not at all.

        Args:
            graph: quantized graph.
            path: file with one of `suffixes`, or a folder, see `is_folder`.
            weights_only: True if the graph comes from `store_weights`.

        Raises:
            UsageError: the folder does not exist, or the suffix is that of another format.
            InputError: the file cannot be written.
        """
        if self.is_folder(path):
            formats.save_saved_model(graph, path)
        else:
            formats.save(graph, path)

    def is_folder(self, path: Path) -> bool:
        """Return True if `write` writes a SavedModel: the path has no suffix, or is a folder."""
        return self.writes_folders and (not path.suffix or path.is_dir())

    def warnings(self, graph: Graph, plan: Plan) -> tuple[str, ...]:
        """Return the reasons, known before calibration, why the quantized model may lose its accuracy.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
        """
        return ()

    def check_form(self, graph: Graph) -> None:  # noqa: B027 (the files of most targets hold every graph of `convert`)
        """Check that `write` can write a graph, at a small part of its costs.

        Args:
            graph: graph of `convert` or `store_weights`; its ranges may be uncalibrated.

        Raises:
            UnavailableError: an op has no form in the file format.
        """

    def check_installation(self, *, weights_only: bool) -> None:  # noqa: B027 (most targets need no package)
        """Check that the packages that `write` and `check` need are installed.

        Args:
            weights_only: True for a plan of `Scheme.weights_only`.

        Raises:
            UnavailableError: a package is not installed; the hint is the command that installs it.
        """

    def edge_formats(self, graph: Graph, plan: Plan) -> Mapping[Edge, Spec]:
        """Return the number format of each quantized edge, which may depend on its consumers.

        Args:
            graph: float graph.
            plan: plan of ``graph`` with the number formats of the scheme.
        """
        return plan.activations

    def edge_parameters(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
        """Return the quantization parameters of each edge that `convert` quantizes.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
            ranges: ranges of every edge of the plan, shared within its groups.
        """
        return {edge: QuantizationParameters.of_range(spec, ranges[edge]) for edge, spec in plan.activations.items()}

    def range_edge(self, plan: Plan, edge: Edge) -> Edge:
        """Return the edge whose range determines the quantization parameters of an edge of the plan."""
        return edge

    def unrounded_edges(self, graph: Graph, plan: Plan, runtime: str) -> frozenset[Edge]:
        """Return the quantized edges whose values a runtime clamps, but does not round.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
            runtime: name of one of `runtimes`; empty for no particular one.
        """
        return frozenset()

    def missing_kernel(self, graph: Graph, node: Node, shapes: Mapping[Edge, Shape]) -> str:
        """Return the reason why no int8 kernel computes a node.

        Args:
            graph: float graph.
            node: node of ``graph``.
            shapes: shapes of its edges; some may be unknown.

        Returns:
            The reason, or an empty string.
        """
        return ""

    def missing_kernels(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[str, str]:
        """Return the int8 layers of a plan without an int8 kernel for its ranges, with the reason of each."""
        return {}

    def check(  # noqa: B027 (most targets need no check)
        self,
        graph: Graph,
        plan: Plan,
        ranges: Ranges,
        quantized: Graph,
        feeds: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        """Compare the kernels of this host with float, where `has_host_check` is set.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
            ranges: ranges of every edge of the plan.
            quantized: graph of `convert`.
            feeds: one run's arrays of the calibration data, by input name; empty without data.

        Raises:
            CheckError: a kernel computes wrong values; the message names its node.
            UnavailableError: no runtime here can run the graph.
        """

    def examine(self, graph: Graph) -> tuple[Finding, ...]:
        """Return the faults of a quantized file, of any tool, in the runtimes of the target, the gravest first.

        Args:
            graph: graph of the file.

        Raises:
            UsageError: the target has no check of files.
        """
        raise UsageError(f"the target {self.name!r} has no check of files", hint="use --for tensorrt")

    def check_build(self, graph: Graph) -> Build:
        """Build a quantized file with the compiler of the target's runtimes, and return its int8 layers.

        Args:
            graph: graph of the file.

        Raises:
            UnavailableError: the compiler is not installed.
            UsageError: the target has no compiler.
        """
        raise UsageError(f"the target {self.name!r} has no compiler", hint="use --for tensorrt")

    def session_options(self, cores: int) -> SessionOptions:
        """Return the session options that make the quantized graph fast on a number of cores."""
        return SessionOptions()

    def count_boundaries(self, graph: Graph, plan: Plan, fallbacks: Collection[str], quantized: Graph) -> int:
        """Return the number of quantize/dequantize boundaries that one run crosses.

        The default counts in the plan, for targets whose runtime fuses or inserts the conversions.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
            fallbacks: names of the nodes that stay float.
            quantized: graph of `convert`.
        """
        computed = {*plan.pattern_of, *plan.pass_through}.difference(fallbacks)
        count = sum(Edge(pattern.name) not in plan.activations for pattern in plan.patterns)
        for edge in plan.activations:
            consumers = {use.node.name for use in graph.uses.get(edge, ())}
            if edge.node in computed:
                count += bool(consumers.intersection(fallbacks)) or edge in graph.outputs
            else:
                count += bool(consumers & computed)
        return count

    def check_scheme(self, scheme: Scheme) -> None:
        """Check that the target supports a scheme.

        Raises:
            UsageError: a field has a value that the target does not support.
        """
        standard = {field.name: field.default for field in fields(Scheme)}
        for name in self.fixed:
            required = parse_field(name, self.defaults.get(name, standard[name]))
            value = getattr(scheme, name)
            if value != required:
                requirement = f"requires {name} = {str(required)!r}, not" if required else f"takes no {name}:"
                raise UsageError(
                    f"the target {self.name!r} {requirement} {str(value)!r}",
                    hint=f"leave {name} out, as Scheme.for_target({self.name!r}) does, or choose another target",
                )
        if "weights" not in self.fixed and not (scheme.weights.symmetric and scheme.weights.is_signed):
            raise UsageError(
                f"the target {self.name!r} requires symmetric qint8 weights, not {str(scheme.weights)!r}",
                hint='write for example weights = "qint8 symmetric per_channel"',
            )
        if scheme.split_patterns and not self.can_split_patterns:
            raise UsageError(
                f"the target {self.name!r} does not support split_patterns", hint="leave split_patterns out"
            )


def count_conversion_nodes(quantized: Graph) -> int:
    """Return the number of QuantizeV2 and Dequantize nodes whose input is not a constant."""
    return sum(
        node.op in ("QuantizeV2", "Dequantize") and quantized.constant_of(node.inputs[0]) is None
        for node in quantized.nodes.values()
    )
