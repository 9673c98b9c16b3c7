"""The command to run after `summarize`; it was tried on the graph, so that it does not fail."""

import shlex

from quantkit.errors import QuantkitError
from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType
from quantkit.model import Model
from quantkit.model.model import tensor_info
from quantkit.ops.semantics import is_quantized
from quantkit.ops.table import Fact, find_ops
from quantkit.quantization.targets import find_target
from quantkit.quantization.workflow.estimate import QuantizationEstimate
from quantkit.quantization.workflow.options import DEFAULT_TARGET
from quantkit.recipes import Recipe, parse, run
from quantkit.recipes.named import find_recipe
from quantkit.recipes.workflow import fit_recipe

BATCH_NORMS = find_ops(Fact.BATCH_NORM, "tensorflow")
NO_OPS = frozenset({"Identity", "CheckNumerics", "StopGradient"})
ONNX_NO_OPS = frozenset({"Identity", "Dropout"})
ONNX_RECIPE = "remove_nodes(op=Identity, op=Dropout, max_inputs=3) merge_duplicate_nodes strip_unused_nodes"
CLASSIC_QUANTIZED_OPS = frozenset({"QuantizedConv2D", "QuantizedMatMul"})


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
