"""Summary of a model: inputs and outputs, op counts, size, MACs, memory, and the next step."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.arguments import public, without_none
from quantkit.errors import CheckError, QuantkitError, UsageError
from quantkit.facts import RANDOM_WEIGHTS_NOTE, PlainReport
from quantkit.formats import onnx
from quantkit.formats.sizes import count_file_bytes
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.model import Model, as_model
from quantkit.model.model import tensor_info
from quantkit.ops.memory import Peak, peak_memory
from quantkit.ops.semantics import is_quantized
from quantkit.ops.shape_inference import infer_shapes
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.bodies import count_macs_of_run
from quantkit.quantization.portability import Portability, certify
from quantkit.quantization.targets import find_target, targets
from quantkit.quantization.targets.capabilities import FileChecks
from quantkit.quantization.targets.finding import EFFECTS, SLOW, Build, Finding
from quantkit.quantization.workflow.estimate import QuantizationEstimate, estimate_quantization
from quantkit.quantization.workflow.options import DEFAULT_TARGET
from quantkit.recipes import Recipe, parse, run
from quantkit.recipes.named import find_recipe
from quantkit.recipes.workflow import fit_recipe
from quantkit.summary.compressibility import Compressibility, measure_compressibility

BATCH_NORMS = find_ops(Fact.BATCH_NORM, "tensorflow")
NO_OPS = frozenset({"Identity", "CheckNumerics", "StopGradient"})
ONNX_NO_OPS = frozenset({"Identity", "Dropout"})
ONNX_RECIPE = "remove_nodes(op=Identity, op=Dropout, max_inputs=3) merge_duplicate_nodes strip_unused_nodes"
CLASSIC_QUANTIZED_OPS = frozenset({"QuantizedConv2D", "QuantizedMatMul"})


@dataclass(frozen=True)
class Endpoint:
    """Input or output of a graph.

    Attributes:
        name: name of the edge.
        op: op type of its producer.
        dtype: element type; None if it is not known.
        shape: shape with None for each unknown dimension.
    """

    name: str
    op: str
    dtype: DType | None
    shape: Shape

    def to_json(self) -> dict[str, Any]:
        """Return the endpoint as plain values."""
        dims = self.shape.dims
        return {
            "name": self.name,
            "op": self.op,
            "dtype": self.dtype.value if self.dtype else None,
            "shape": None if dims is None else list(dims),
        }

    def __str__(self) -> str:
        return f"{self.name} ({self.op}, {self.dtype.value if self.dtype else '?'}, {self.shape})"


@dataclass(frozen=True, repr=False)
class Summary(PlainReport):
    """Facts about a model.

    Attributes:
        model: name of the model.
        num_nodes: number of nodes in the main graph.
        inputs, outputs: inputs and outputs of the graph.
        op_counts: number of nodes by op type, most frequent first.
        num_parameters: number of elements in all constants that are not strings, like the classic tool.
        constant_bytes: size of all constants in bytes.
        num_control_dependencies: number of control dependencies.
        macs: multiply-accumulate operations of one example; None if a shape is unknown.
        peak: peak activation memory of one example; None if no shape is known.
        producer: GraphDef version of the program that wrote the file.
        next_step: suggested command, and the reason.
        estimate: int8 part of the model after quantization.
        compressibility: zeros and distinct values of sparse or clustered weights; None for other models.
        file_bytes: size of the model file, with its weights in other files; None for folders and objects.
        has_random_weights: True if the predictions are meaningless.
        portability: certificate of an int8 model for processors without VNNI; None for other models.
        findings: faults of a quantized file in the runtimes of a target; None without a target.
        build: compilation of the file; None without one.
    """

    model: str
    num_nodes: int
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    op_counts: Mapping[str, int]
    num_parameters: int
    constant_bytes: int
    num_control_dependencies: int
    macs: int | None
    peak: Peak | None
    producer: int
    next_step: str
    estimate: QuantizationEstimate
    compressibility: Compressibility | None = None
    file_bytes: int | None = None
    has_random_weights: bool = False
    portability: Portability | None = None
    findings: tuple[Finding, ...] | None = None
    build: Build | None = None

    def check(self) -> None:
        """Check that the runtimes of the target take the file, and compute the right values.

        Raises:
            CheckError: a node is refused or has wrong values; the message names the first one.
        """
        grave = [finding for finding in self.findings or () if finding.effect != SLOW]
        if grave:
            more = f", and {len(grave) - 1} more nodes" if len(grave) > 1 else ""
            reason = f"{grave[0].node} ({grave[0].op}): {grave[0].reason}"
            raise CheckError(f"{self.model}: {reason}{more}", hint=grave[0].fix)
        if self.build is not None and self.build.problem:
            raise CheckError(f"{self.model} is {self.build}", hint="report the message with the file")

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit summarize --json``."""
        return {
            "schema": "quantkit.summarize/2",
            "model": self.model,
            "random_weights": self.has_random_weights,
            "file_bytes": self.file_bytes,
            "nodes": self.num_nodes,
            "inputs": [endpoint.to_json() for endpoint in self.inputs],
            "outputs": [endpoint.to_json() for endpoint in self.outputs],
            "op_counts": dict(self.op_counts),
            "parameters": self.num_parameters,
            "constant_bytes": self.constant_bytes,
            "control_dependencies": self.num_control_dependencies,
            "macs": self.macs,
            "peak_activation_bytes": self.peak.num_bytes if self.peak else None,
            "peak_activation_node": self.peak.node if self.peak else None,
            "tensors_of_unknown_size": self.peak.num_unknown if self.peak else None,
            "producer": self.producer,
            "next_step": self.next_step,
            "int8_outlook": self.estimate.to_json(),
            "compressibility": self.compressibility.to_json() if self.compressibility else None,
            "portability": self.portability.to_json() if self.portability else None,
            "findings": None if self.findings is None else [finding.to_json() for finding in self.findings],
            "build": self.build.to_json() if self.build else None,
        }

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each fact."""
        unknown = "unknown: a shape is not static, or there are loops or calls"
        rows = [("file", f"{self.file_bytes / 1e6:,.2f} MB")] if self.file_bytes else []
        rows += [
            ("inputs", ", ".join(map(str, self.inputs)) or "not found"),
            ("outputs", ", ".join(map(str, self.outputs)) or "not found"),
            ("nodes", f"{self.num_nodes:,}, {self.num_control_dependencies} control dependencies"),
            ("ops", ", ".join(f"{count} {op}" for op, count in self.op_counts.items())),
            ("parameters", f"{self.num_parameters:,}, {self.constant_bytes / 1e6:,.2f} MB of constants"),
            *([("weights", str(self.compressibility))] if self.compressibility else []),
            ("MACs", unknown if self.macs is None else f"{self.macs / 1e6:,.1f} million"),
            ("memory", self._memory),
            ("8-bit outlook", str(self.estimate)),
            *([("processors", str(self.portability))] if self.portability else []),
            *self._finding_rows,
            *([("build", str(self.build))] if self.build else []),
            ("next", self.next_step),
        ]
        rows += [("note", RANDOM_WEIGHTS_NOTE)] if self.has_random_weights else []
        return tuple(rows)

    @property
    def _finding_rows(self) -> list[tuple[str, str]]:
        """Label and text of the findings, one row for each rule."""
        if self.findings is None:
            return []
        rows = []
        for effect in EFFECTS:
            findings = [each for each in self.findings if each.effect == effect]
            for kind in dict.fromkeys(each.kind for each in findings):
                first, *others = (each for each in findings if each.kind == kind)
                rows.append((effect, str(first) + (f" ({len(others)} more in --json)" if others else "")))
        return rows or [("findings", "none")]

    @property
    def _memory(self) -> str:
        if self.peak is None:
            return "unknown: no shape is static"
        activations = self.peak.num_bytes / 1e6
        total = self.constant_bytes / 1e6 + activations
        unknown = self.peak.num_unknown
        bound = "at least" if unknown else "about"
        text = f"{bound} {total:,.2f} MB: constants, and {activations:,.2f} MB of activations at {self.peak.node}"
        return text + (f"; {unknown} tensors of unknown size not counted" if unknown else "")

    def __repr__(self) -> str:
        return f"Summary({self.model!r}, {self.num_nodes} nodes, {self.num_parameters:,} parameters)"

    def __str__(self) -> str:
        return "\n".join(f"{label:<14} {text}" for label, text in self.rows)


@public
def summarize(
    model: Any,
    *,
    inputs: Iterable[str] | None = None,
    outputs: Iterable[str] | None = None,
    target: str | None = None,
    check_build: bool = False,
) -> Summary:
    """Summarize a model.

    Args:
        model: a `Model`, a `Graph`, a file, or the name of a model card.
        inputs, outputs: names of inputs and outputs (default: from the model card, else inferred).
        target: examine a quantized file of any tool for the runtimes of this target; `Summary.check` raises for faults.
        check_build: build the file with the compiler of the target, which is optional.

    Raises:
        GraphError: the graph is not well formed.
        InputError: the file is missing or broken.
        UsageError: quantkit does not read the format, or the target has no check of files.
        UnavailableError: the compiler is not installed.
    """
    if check_build and target is None:
        raise UsageError("--check-build needs a target", hint="add --for tensorrt")
    checks = None if target is None else _find_checks(target)
    loaded = as_model(model, **without_none(inputs=inputs, outputs=outputs))
    if target is not None and isinstance(loaded.runnable, Path) and not loaded.has_readable_graph:
        kind = formats.KINDS[formats.kind_of(loaded.runnable)]
        raise UsageError(
            f"{loaded.name} is {kind}, which the runtimes of {target!r} do not read: --for examines ONNX files and "
            "TensorFlow graphs",
            hint=f"quantize the float model that it was converted from: quantkit quantize MODEL --target {target}",
        )
    graph, path = loaded.graph, loaded.path
    is_onnx = graph.dialect == onnx.DIALECT
    stated = onnx.value_infos(graph) if is_onnx else {}
    stated_shapes = {edge: shape for edge, (_, shape) in stated.items()}
    shapes = infer_shapes(graph, stated_shapes)
    example_shapes = infer_shapes(_with_batch_one(graph), stated_shapes)
    macs = [count_macs_of_run(graph, node, example_shapes) for node in graph.nodes.values()]
    known_macs = [count for count in macs if count is not None]
    constants = [value for node in graph.nodes.values() if isinstance(value := node.attrs.get("value"), Tensor)]
    estimate = estimate_quantization(loaded)
    file_bytes = count_file_bytes(path) if path is not None and path.is_file() else None
    return Summary(
        model=loaded.name,
        num_nodes=len(graph),
        inputs=tuple(_endpoint(graph, edge, shapes, stated) for edge in graph.inputs),
        outputs=tuple(_endpoint(graph, edge, shapes, stated) for edge in graph.outputs),
        op_counts=graph.op_counts,
        num_parameters=sum(value.num_elements for value in constants if value.dtype is not DType.STRING),
        constant_bytes=sum(value.num_bytes for value in constants),
        num_control_dependencies=sum(len(node.controls) for node in graph.nodes.values()),
        macs=sum(known_macs) if len(known_macs) == len(macs) else None,
        peak=peak_memory(graph, example_shapes, {edge: dtype for edge, (dtype, _) in stated.items()}),
        producer=graph.versions.producer,
        next_step=recommend_command(loaded, estimate),
        estimate=estimate,
        compressibility=measure_compressibility(graph),
        file_bytes=file_bytes,
        has_random_weights=loaded.has_random_weights,
        portability=certify(graph),
        findings=None if checks is None else checks.examine(graph),
        build=checks.check_build(graph) if checks is not None and check_build else None,
    )


def _find_checks(name: str) -> FileChecks:
    """Return the target of a name, which examines files.

    Raises:
        UsageError: there is no such target, or it has no check of files.
    """
    target = find_target(name)
    if not isinstance(target, FileChecks):
        names = [other.name for other in targets().values() if isinstance(other, FileChecks)]
        raise UsageError(f"the target {name!r} has no check of files", hint=f"use --for {' or '.join(names)}")
    return target


def _endpoint(
    graph: Graph,
    edge: Edge,
    shapes: Mapping[Edge, Shape],
    stated: Mapping[Edge, tuple[DType | None, Shape]],
) -> Endpoint:
    """Return the facts about an input or output; those stated in an ONNX file come first."""
    node, shape = graph[edge.node], shapes.get(edge, Shape(None))
    if edge in stated:
        return Endpoint(onnx.value_name(node, edge.port), node.op, stated[edge][0], shape)
    dtype = next((node.attrs[key] for key in ("dtype", "T", "DstT", "out_type") if key in node.attrs), None)
    return Endpoint(str(edge), node.op, dtype if isinstance(dtype, DType) else None, shape)


def _with_batch_one(graph: Graph) -> Graph:
    """Return a graph whose inputs have batch size 1 instead of a dynamic batch."""
    nodes = []
    for node in graph.nodes.values():
        shape = node.attrs.get("shape")
        if node.op == "Placeholder" and isinstance(shape, Shape) and shape.dims and shape.dims[0] is None:
            node = node.with_attrs(shape=Shape((1, *shape.dims[1:])))
        nodes.append(node)
    return graph.with_nodes(nodes)


def recommend_command(model: Model, estimate: QuantizationEstimate) -> str:
    """Return the command to run next, and the reason.

    Args:
        model: model whose graph can be read.
        estimate: estimate of its quantization.
    """
    graph = model.graph
    is_onnx = graph.dialect == onnx.DIALECT
    if not graph.inputs:
        reason = "the graph has no placeholder; name the tensor that takes the data"
        return f"{_command(model, 'summarize', '--inputs', 'NODE')}: {reason}"
    if not is_onnx and CLASSIC_QUANTIZED_OPS & graph.op_counts.keys():
        reason = "classic 8-bit ops have slow kernels on x86; compare with the float graph"
        return f"{_benchmark(model)}: {reason}"
    if is_quantized(graph):
        return f"{_benchmark(model)}: the model is already quantized"
    if removable := _describe_removable(graph):
        recipe = parse(ONNX_RECIPE) if is_onnx else find_recipe("inference")
        if _shrinks(model, recipe):
            arguments = ("OUT.onnx", "--transforms", ONNX_RECIPE) if is_onnx else ("OUT.pb", "--recipe", "inference")
            return f"{_command(model, 'transform', '-o', *arguments)}: {removable} can be removed"
    if estimate.num_int8:
        data = "DATA" if model.preprocessing is None else "IMAGES"
        target = find_target(estimate.target)
        flags = () if target.name == DEFAULT_TARGET else ("--target", target.name)
        command = _command(model, "quantize", "-o", f"OUT{target.suffixes[0]}", *flags, "--calibration", data)
        return f"{command}: int8 is smaller; the report states whether it is faster"
    reason = "no target has an int8 form of the graph" if estimate.problem else "no layer can be int8"
    return f"{_benchmark(model)}: no node can be folded or removed, and {reason}"


def _command(model: Model, command: str, *arguments: str) -> str:
    """Return a command line that loads the model as it was loaded."""
    is_named = (model.path or model.card) and model.trace is None
    name = model.name if is_named else "MODEL"
    return shlex.join(("quantkit", command, name, *(model.flags if is_named else ()), *arguments))


def _benchmark(model: Model) -> str:
    """Return the command that measures a model; random data needs all sizes but the batch."""
    needs_data = any(
        info.shape.dims is None or None in info.shape.dims[1:] or info.dtype is DType.STRING
        for info in (tensor_info(model.graph, edge) for edge in model.graph.inputs)
    )
    return _command(model, "benchmark", *(("--data", "DATA") if needs_data else ()))


def _describe_removable(graph: Graph) -> str:
    """Return number and kind of the nodes that inference does not need; empty if there are no such nodes."""
    is_onnx = graph.dialect == onnx.DIALECT
    no_op_types = ONNX_NO_OPS if is_onnx else NO_OPS
    no_ops = sum(node.op in no_op_types for node in graph.nodes.values() if node.name not in graph.endpoint_names)
    batch_norms = 0 if is_onnx else sum(graph.op_counts.get(op, 0) for op in BATCH_NORMS)
    return " and ".join(
        f"{count} {noun}{'s' * (count > 1)}"
        for count, noun in ((batch_norms, "batch norm"), (no_ops, "no-op node"))
        if count
    )


def _shrinks(model: Model, recipe: Recipe) -> bool:
    """Return True if a recipe can be applied to a model and removes nodes."""
    try:
        graph, _ = run(fit_recipe(recipe, model, model.graph), model.graph)
    except QuantkitError:
        return False
    return len(graph) < len(model.graph)
