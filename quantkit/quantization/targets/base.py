"""Contract of a target: the form of a quantized model, and all that depends on the form."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quantkit import formats
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.plan import Plan
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.scheme import Scheme
from quantkit.runtimes import find_runtime
from quantkit.runtimes.session import SessionOptions

FLOAT, BFLOAT16 = "float", "bfloat16"
DIALECTS = ("tensorflow", "onnx")


class Target(ABC):
    """Form of a quantized model: its ops, its file, its runtimes, and the scheme that suits them.

    A subclass sets the attributes and defines `convert`; every other method has a default. One
    object of the subclass is registered, see `quantkit.quantization.targets`. The classes of
    `quantkit.quantization.targets.capabilities` have the methods that few targets need.

    Attributes:
        name: value of ``--target``.
        dialect: dialect of the float graph and of the quantized graph: ``tensorflow`` or ``onnx``.
        suffixes: suffixes of the files, the usual one first; with ``.pb``, `write` also writes SavedModel folders.
        runtimes: names of the runtimes that run the files, fastest first.
        defaults: values of scheme fields that differ from those of `Scheme`; a number format is a
            `Spec` or its text, such as ``qint8 affine``.
        fixed: scheme fields that the kernels or the file format prescribe; ``activations.dtype`` for the type alone.
    """

    name: str
    dialect: str
    suffixes: tuple[str, ...]
    runtimes: tuple[str, ...]
    defaults: Mapping[str, Any] = MappingProxyType({})
    fixed: tuple[str, ...] = ()

    def prepare(self, graph: Graph, runtime: str) -> Graph:
        """Return an equal float graph in the form that `convert` takes, before it is annotated.

        Args:
            graph: float graph.
            runtime: name of the runtime; ``auto`` for the form that serves all `runtimes`.

        Raises:
            UnavailableError: the graph has no such form.
        """
        return graph

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

    def edge_parameters(self, graph: Graph, plan: Plan, ranges: Ranges) -> Mapping[Edge, QuantizationParameters]:
        """Return the quantization parameters of each edge that `convert` quantizes.

        Args:
            graph: float graph.
            plan: plan of ``graph``.
            ranges: ranges of every edge of the plan, shared within its groups.
        """
        return {edge: QuantizationParameters.of_range(spec, ranges[edge]) for edge, spec in plan.activations.items()}

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

    def write(self, graph: Graph, path: Path, *, weights_only: bool = False) -> None:
        """Write a graph of `convert`, or one with int8 weights; the file appears complete or not at all.

        Args:
            graph: quantized graph.
            path: file with one of `suffixes`, or a folder, see `is_folder`.
            weights_only: True if only the weights are quantized.

        Raises:
            UsageError: the folder does not exist, or the suffix is that of another format.
            InputError: the file cannot be written.
        """
        if is_folder(self, path):
            formats.save_saved_model(graph, path)
        else:
            formats.save(graph, path)

    def session_options(self, cores: int) -> SessionOptions:
        """Return the session options that make the quantized graph fast on a number of cores."""
        return SessionOptions(
            device="gpu" if needs_gpu(self) and find_runtime(self.runtimes[0]).available().ok else "cpu"
        )


def is_folder(target: Target, path: Path) -> bool:
    """Return True if a target writes a SavedModel: the path has no suffix, or is a folder."""
    return ".pb" in target.suffixes and (not path.suffix or path.is_dir())


def names_endpoints(target: Target) -> bool:
    """Return True if the files of a target name the model's inputs and outputs: a GraphDef does not."""
    return ".pb" not in target.suffixes


def needs_gpu(target: Target) -> bool:
    """Return True if the fastest runtime of a target runs on GPUs alone."""
    return runs_on_gpus_alone(target.runtimes[0])


def runs_on_gpus_alone(runtime: str) -> bool:
    """Return True if a runtime has no kernels for CPUs."""
    return find_runtime(runtime).devices == ("gpu",)


def is_litert(target: Target) -> bool:
    """Return True for LiteRT files."""
    return ".tflite" in target.suffixes


def splits_patterns(target: Target) -> bool:
    """Return True if a layer, its bias and its activation are separate int8 ops, see `Scheme.split_patterns`."""
    return bool(target.defaults.get("split_patterns"))


def multiplies_u8_by_s8(target: Target) -> bool:
    """Return True if kernels multiply u8 activations by s8 weights.

    Without VNNI such products saturate in int16, so that the weights are limited.
    """
    scheme = Scheme.for_target(target.name)
    return (scheme.activations.dtype, scheme.weights.dtype) == (DType.QUINT8, DType.QINT8)


def stores_bfloat16(target: Target) -> bool:
    """Return True if float ops can be bfloat16 in the files of a target."""
    return target.dialect == "tensorflow" and runs_bfloat16(target)


def runs_bfloat16(target: Target) -> bool:
    """Return True if a runtime computes the float ops of a target's files in bfloat16 where the processor can."""
    return not splits_patterns(target) and any(BFLOAT16 in find_runtime(name).precisions for name in target.runtimes)


def keeps_float16(target: Target) -> bool:
    """Return True if the float16 ops of a model stay float16 in the files of a target."""
    return not splits_patterns(target) and (
        target.dialect == "onnx" or "float16" in find_runtime(target.runtimes[0]).precisions
    )
