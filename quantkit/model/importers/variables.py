"""Importers of SavedModels and checkpoints, whose variables become constants.

Graphs without variables are read without TensorFlow; TensorFlow reads the values of variables.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from quantkit import formats
from quantkit.errors import InputError, QuantkitError, UsageError
from quantkit.formats import graphdef, saved_model
from quantkit.formats.files import NOT_OUTPUTS, infer_endpoints
from quantkit.formats.kinds import checkpoint_prefix
from quantkit.formats.saved_model import Signature
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType
from quantkit.model.importers import tables
from quantkit.ops.tensorflow.signatures import find_op, output_dtypes
from quantkit.transforms._names import name_outputs
from quantkit.transforms.folding.fold_constants import fold_constants
from quantkit.transforms.functions.inline_functions import inline_functions
from quantkit.transforms.functions.remove_unused_functions import remove_unused_functions

EdgeNames = Iterable[Edge | str] | None

# Ops with which the clustering wrappers of TF-MOT compute weights from centroids, in every run.
CLUSTERING_OPS = frozenset({"ArgMin", "GatherV2", "IdentityN"})
# Maximum number of candidate outputs in an error message.
SHOWN = 6


def read_saved_model(
    folder: Path,
    signature: str | None = None,
    tags: Iterable[str] | None = None,
    inputs: EdgeNames = None,
    outputs: EdgeNames = None,
) -> tuple[Graph, Signature]:
    """Read a SavedModel as a frozen graph with a signature.

    Args:
        folder: folder of the SavedModel.
        signature: name of the signature; if None ``serving_default``, or the only one.
        tags: tags of one of its graphs; if None those of serving, or of the only graph.
        inputs: names of the inputs in the graph or the signature; if None the signature's.
        outputs: names of the outputs, likewise.

    Raises:
        InputError: the SavedModel is broken or has no signature, its variables cannot be read or
            are larger than a graph may be, or an output depends on a table.
        UsageError: the signature or tag does not exist, or an input or output is not in the graph.
    """
    outputs = None if outputs is None else list(outputs)
    try:
        meta = saved_model.choose(formats.meta_graphs(folder), tags)
        selected = meta.signature(signature)
    except UsageError as error:
        raise UsageError(f"{folder}: {error.message}", error.hint) from None
    graph = _decode(meta, folder)
    if selected is None:
        if meta.has_objects:
            raise InputError(f"{folder} has no signatures", hint="export it with one: model.export(FOLDER)")
        graph, selected = infer_endpoints(graph), Signature()
    else:
        graph = graph.with_endpoints(*(_in_file_order(graph, edges) for edges in (selected.inputs, selected.outputs)))
    if meta.has_objects:
        graph, selected = _inline(graph, folder, meta, selected)
    graph = graph.with_endpoints(_resolve(graph, inputs, selected.inputs), _resolve(graph, outputs, selected.outputs))
    if meta.has_objects:
        graph, selected = _name_outputs(graph, selected, outputs)
    tables.check(graph, str(folder))
    return _fill(graph, folder / "variables" / "variables", meta.restore), selected


def _name_outputs(graph: Graph, signature: Signature, outputs: EdgeNames) -> tuple[Graph, Signature]:
    """Give the outputs of a function, Identity nodes without a name of their own, the names of its signature.

    An output keeps the name in the graph by which a caller chose it.
    """
    edges = {edge: name for name, edge in signature.outputs.items() if outputs is None or name in outputs}
    names = [edges.get(edge, edge.node) if graph[edge.node].op == "Identity" else edge.node for edge in graph.outputs]
    renamed = name_outputs(graph, names)
    return renamed, signature.following(graph, renamed)


def _inline(graph: Graph, folder: Path, meta: saved_model.MetaGraph, signature: Signature) -> tuple[Graph, Signature]:
    """Inline the functions of a SavedModel of TensorFlow 2, and freeze its variables."""
    _check_size(graph, folder)
    if not _has_variables(graph):
        return _inline_functions(graph, graph, signature)
    from quantkit.model.importers import freeze

    try:
        frozen = tables.remove_lookup_controls(freeze.freeze_saved_model(folder, meta.tags, signature.name))
    except InputError as error:
        # The slot variables of a Keras 2 optimizer, for example, need the class of that optimizer, and the
        # graph does not. TensorFlow itself reports broken files, and may abort at a second attempt.
        if not isinstance(error.__cause__, AttributeError | KeyError | TypeError):
            raise
        with suppress(InputError):
            whole = freeze.freeze_meta_graph(folder, meta.tags, signature.outputs.values())
            return _inline_functions(graph, whole.with_endpoints(graph.inputs, graph.outputs), signature)
        raise error
    if frozen.op_counts.keys() >= CLUSTERING_OPS:
        frozen = fold_constants(frozen)
    return frozen, _signature_of_function(graph, signature, frozen)


def _inline_functions(graph: Graph, frozen: Graph, signature: Signature) -> tuple[Graph, Signature]:
    """Return a frozen graph with its functions inlined, and the signature of the inlined graph."""
    inlined = remove_unused_functions(inline_functions(_prune(frozen)))
    return tables.remove_lookup_controls(inlined), signature.following(graph, inlined)


def _signature_of_function(graph: Graph, signature: Signature, function: Graph) -> Signature:
    """Return a signature with the inputs and outputs of the function that it calls."""
    calls = {edge.node for edge in signature.outputs.values()}
    arguments = {edge: index for name in calls for index, edge in enumerate(graph[name].inputs)}
    inputs = {name: arguments[edge] for name, edge in signature.inputs.items() if edge in arguments}
    outputs = {name: edge.port for name, edge in signature.outputs.items()}
    if len(calls) != 1 or len(inputs) != len(function.inputs) or len(outputs) != len(function.outputs):
        return Signature(signature.name)  # TensorFlow did not write it
    return Signature(
        signature.name,
        {name: function.inputs[index] for name, index in inputs.items()},
        {name: function.outputs[port] for name, port in outputs.items()},
    )


def _resolve(graph: Graph, names: EdgeNames, signature: Mapping[str, Edge]) -> EdgeNames:
    """Replace the names of a signature by its edges."""
    if names is None:
        return None
    return [signature.get(name, name) if isinstance(name, str) and name not in graph.nodes else name for name in names]


def read_checkpoint(path: Path, inputs: EdgeNames = None, outputs: EdgeNames = None) -> Graph:
    """Read a checkpoint that was saved with its graph as a frozen graph.

    Args:
        path: prefix of the files of the checkpoint, or one of them.
        inputs: names of the inputs; if None the placeholders.
        outputs: names of the outputs; if None the only node that may be an output.

    Raises:
        InputError: the checkpoint has no graph or cannot be read, or an output depends on a table.
        UsageError: several nodes may be the output, or an input or output is not in the graph.
    """
    prefix = checkpoint_prefix(path) or path
    meta = prefix.with_name(f"{prefix.name}.meta")
    if not meta.is_file():
        raise InputError(
            f"{prefix} is a checkpoint without its graph: there is no {meta.name}",
            hint="name the graph as well: quantkit transform --in-graph GRAPH.pb --checkpoint PREFIX",
        )
    (meta_graph,) = formats.meta_graphs(meta)
    graph = infer_endpoints(_decode(meta_graph, meta)).with_endpoints(inputs, outputs)
    return fill_variables(graph, prefix, outputs, meta_graph.restore)


def fill_variables(graph: Graph, checkpoint: Path, outputs: EdgeNames = None, restore: str = "") -> Graph:
    """Replace the variables of a graph by the values of a checkpoint.

    Args:
        graph: graph with variables.
        checkpoint: prefix of the files of the checkpoint, or one of them.
        outputs: outputs that the caller chose; if None the only node that may be an output.
        restore: node that restores all variables; if empty the default name of savers.

    Raises:
        InputError: the checkpoint does not exist or lacks a variable, or an output depends on a
            table.
        UsageError: several nodes may be the output.
    """
    prefix = checkpoint_prefix(checkpoint)
    if prefix is None:
        raise InputError(
            f"there is no checkpoint {checkpoint}",
            hint=f"name the prefix of its files: {checkpoint.name}.index must exist",
        )
    graph = graph if outputs is not None else _infer_output(graph)
    tables.check(graph, str(prefix))
    return _fill(graph, prefix, restore)


def _fill(whole: Graph, prefix: Path, restore: str) -> Graph:
    graph = _prune(whole)
    if not saved_model.VARIABLES & graph.op_counts.keys():
        return graph
    _check_size(graph, prefix)
    from quantkit.model.importers import checkpoint, freeze

    entries = checkpoint.restored_entries(whole, restore or checkpoint.RESTORE)
    return freeze.freeze_variables(graph, checkpoint.Checkpoint.open(str(prefix)), entries)


def _prune(graph: Graph) -> Graph:
    """Remove the nodes that only training, saving and other signatures depend on."""
    names = graph.reachable(stop_at_inputs=False) | (graph.input_names & graph.nodes.keys())
    return graph.with_nodes(node for node in graph.nodes.values() if node.name in names)


def _has_variables(graph: Graph) -> bool:
    """Return True if the outputs depend on variables, or a function creates some."""
    ops = {graph[name].op for name in graph.reachable()}
    for function in graph.library.values():
        ops.update(function.graph.op_counts)
    return bool(ops & saved_model.VARIABLES)


def _check_size(graph: Graph, path: Path) -> None:
    graphdef.check_num_bytes(f"the variables of {path}", saved_model.num_variable_bytes(graph))


def _decode(meta: saved_model.MetaGraph, path: Path) -> Graph:
    try:
        return meta.read()
    except QuantkitError as error:
        raise type(error)(f"{path}: {error.message}", error.hint) from None


def _in_file_order(graph: Graph, edges: Mapping[str, Edge]) -> list[Edge]:
    """Sort the edges of an unordered signature by the position of their nodes in the file."""
    positions = {name: position for position, name in enumerate(graph.nodes)}
    return sorted(edges.values(), key=lambda edge: (positions.get(edge.node, 0), edge))


def _infer_output(graph: Graph) -> Graph:
    """Choose the only candidate: a training graph has many other nodes without consumers."""
    candidates = [name for name, node in graph.nodes.items() if name not in graph.node_uses and _may_be_output(node)]
    if len(candidates) == 1:
        return graph.with_endpoints(None, candidates)
    shown = ", ".join(candidates[:SHOWN]) + (", ..." if len(candidates) > SHOWN else "")
    raise UsageError(
        f"{len(candidates)} nodes may be the output: {shown}" if candidates else "no node looks like the output",
        hint="name the output with --outputs",
    )


def _may_be_output(node: Node) -> bool:
    definition = find_op(node.op)
    if node.op in NOT_OUTPUTS or definition is None or definition.is_stateful or not definition.outputs:
        return False
    return not definition.outputs[0].is_ref and output_dtypes(node)[0] not in (DType.STRING, DType.RESOURCE)
