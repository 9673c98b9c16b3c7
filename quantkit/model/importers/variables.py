"""Graphs that read variables: SavedModels and checkpoints, frozen where they have any.

What has no variables is read without TensorFlow; values of variables TensorFlow reads.
"""

from collections.abc import Iterable, Mapping
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
from quantkit.transforms.functions.inline_functions import inline_functions
from quantkit.transforms.functions.remove_unused_functions import remove_unused_functions

Ends = Iterable[Edge | str] | None

# How many nodes that may be outputs an error names.
SHOWN = 6


def read_saved_model(
    folder: Path,
    signature: str | None = None,
    tags: Iterable[str] | None = None,
    inputs: Ends = None,
    outputs: Ends = None,
) -> tuple[Graph, Signature]:
    """The frozen graph of a SavedModel, and what its callers call inputs and outputs.

    Args:
        folder: of the SavedModel.
        signature: what to take the inputs and outputs of; None: ``serving_default``, or the only one.
        tags: of one of its graphs; None: the one for serving, or the only one.
        inputs: what is fed instead, by its name in the graph or in the signature; None: the signature's.
        outputs: what is asked for instead, likewise; None: the signature's.

    Raises:
        InputError: it is broken, has no signature, its variables can not be read or are larger than a graph may be, or
            an output needs a table.
        UsageError: there is no such signature or tag, or an input or output is not in the graph.
    """
    try:
        meta = saved_model.choose(formats.meta_graphs(folder), tags)
        chosen = meta.signature(signature)
    except UsageError as error:
        raise UsageError(f"{folder}: {error.message}", error.hint) from None
    graph = _decoded(meta, folder)
    if chosen is None:
        if meta.has_objects:
            raise InputError(f"{folder} has no signatures", hint="export it with one: model.export(FOLDER)")
        graph, chosen = infer_endpoints(graph), Signature()
    else:
        graph = graph.with_endpoints(*(_in_file_order(graph, edges) for edges in (chosen.inputs, chosen.outputs)))
    if meta.has_objects:
        graph, chosen = _with_functions_inlined(graph, folder, meta, chosen)
    graph = graph.with_endpoints(_by_name(graph, inputs, chosen.inputs), _by_name(graph, outputs, chosen.outputs))
    tables.check(graph, str(folder))
    return _filled(graph, folder / "variables" / "variables", meta.restore), chosen


def _with_functions_inlined(
    graph: Graph, folder: Path, meta: saved_model.MetaGraph, signature: Signature
) -> tuple[Graph, Signature]:
    """The graph of TensorFlow 2, which saves all that it computes as calls of functions; frozen if it has variables."""
    _check_size(graph, folder)
    if not _has_variables(graph):
        written_out = remove_unused_functions(inline_functions(_needed(graph)))
        return tables.without_waiting(written_out), signature.following(graph, written_out)
    from quantkit.model.importers import freeze

    frozen = tables.without_waiting(freeze.freeze_saved_model(folder, meta.tags, signature.name))
    return frozen, _of_function(graph, signature, frozen)


def _of_function(graph: Graph, signature: Signature, function: Graph) -> Signature:
    """The names of a signature for the ends of the function that it calls."""
    calls = {edge.node for edge in signature.outputs.values()}
    arguments = {edge: place for name in calls for place, edge in enumerate(graph[name].inputs)}
    inputs = {name: arguments[edge] for name, edge in signature.inputs.items() if edge in arguments}
    outputs = {name: edge.port for name, edge in signature.outputs.items()}
    if len(calls) != 1 or len(inputs) != len(function.inputs) or len(outputs) != len(function.outputs):
        return Signature(signature.name)  # not as TensorFlow writes it
    return Signature(
        signature.name,
        {name: function.inputs[place] for name, place in inputs.items()},
        {name: function.outputs[port] for name, port in outputs.items()},
    )


def _by_name(graph: Graph, ends: Ends, names: Mapping[str, Edge]) -> Ends:
    """Ends, of which some may be called as the signature calls them."""
    if ends is None:
        return None
    return [names.get(end, end) if isinstance(end, str) and end not in graph.nodes else end for end in ends]


def read_checkpoint(path: Path, inputs: Ends = None, outputs: Ends = None) -> Graph:
    """The frozen graph of a checkpoint that was saved with its graph.

    Args:
        path: what the checkpoint's files begin with, or one of them.
        inputs: what is fed; None: the placeholders.
        outputs: what is asked for; None: the only node that may be one.

    Raises:
        InputError: it has no graph, can not be read, or an output needs a table.
        UsageError: several nodes may be the output, or an input or output is not in the graph.
    """
    prefix = checkpoint_prefix(path) or path
    meta = prefix.with_name(f"{prefix.name}.meta")
    if not meta.is_file():
        raise InputError(
            f"{prefix} is a checkpoint without its graph: there is no {meta.name}",
            hint="name the graph as well: quantkit transform --in-graph GRAPH.pb --checkpoint PREFIX",
        )
    (found,) = formats.meta_graphs(meta)
    graph = infer_endpoints(_decoded(found, meta)).with_endpoints(inputs, outputs)
    return filled(graph, prefix, outputs, found.restore)


def filled(graph: Graph, checkpoint: Path, outputs: Ends = None, restore: str = "") -> Graph:
    """A graph with the values of a checkpoint in place of its variables.

    Args:
        graph: what reads the variables.
        checkpoint: what the checkpoint's files begin with, or one of them.
        outputs: what the caller asked for; None: the only node that may be an output.
        restore: the node that restores all variables; nothing: what savers call it.

    Raises:
        InputError: there is no such checkpoint, it lacks a variable, or an output needs a table.
        UsageError: several nodes may be the output.
    """
    prefix = checkpoint_prefix(checkpoint)
    if prefix is None:
        raise InputError(
            f"there is no checkpoint {checkpoint}", hint=f"its index would be the file {checkpoint.name}.index"
        )
    graph = graph if outputs is not None else _with_only_output(graph)
    tables.check(graph, str(prefix))
    return _filled(graph, prefix, restore)


def _filled(whole: Graph, prefix: Path, restore: str) -> Graph:
    graph = _needed(whole)
    if not saved_model.VARIABLES & graph.op_counts.keys():
        return graph
    _check_size(graph, prefix)
    from quantkit.model.importers import checkpoint, freeze

    restored = checkpoint.places(whole, restore or checkpoint.RESTORE)
    return freeze.freeze_variables(graph, checkpoint.Checkpoint.open(str(prefix)), restored)


def _needed(graph: Graph) -> Graph:
    """The graph without what only training, saving and other signatures need."""
    names = graph.reachable(stop_at_inputs=False) | (graph.input_names & graph.nodes.keys())
    return graph.with_nodes(node for node in graph.nodes.values() if node.name in names)


def _has_variables(graph: Graph) -> bool:
    """Whether the outputs need variables, or the library makes some."""
    ops = {graph[name].op for name in graph.reachable()}
    for function in graph.library.values():
        ops.update(function.graph.op_counts)
    return bool(ops & saved_model.VARIABLES)


def _check_size(graph: Graph, path: Path) -> None:
    graphdef.check_num_bytes(f"the variables of {path}", saved_model.num_variable_bytes(graph))


def _decoded(meta: saved_model.MetaGraph, path: Path) -> Graph:
    try:
        return meta.read()
    except QuantkitError as error:
        raise type(error)(f"{path}: {error.message}", error.hint) from None


def _in_file_order(graph: Graph, edges: Mapping[str, Edge]) -> list[Edge]:
    """Edges of a signature, which has no order of its own."""
    places = {name: place for place, name in enumerate(graph.nodes)}
    return sorted(edges.values(), key=lambda edge: (places.get(edge.node, 0), edge))


def _with_only_output(graph: Graph) -> Graph:
    """The graph with the one output that it may have: a training graph ends in much else."""
    found = [name for name, node in graph.nodes.items() if name not in graph.node_uses and _may_be_output(node)]
    if len(found) == 1:
        return graph.with_endpoints(None, found)
    shown = ", ".join(found[:SHOWN]) + (", ..." if len(found) > SHOWN else "")
    raise UsageError(
        f"{len(found)} nodes may be the output: {shown}" if found else "no node looks like the output",
        hint="name it with --outputs",
    )


def _may_be_output(node: Node) -> bool:
    definition = find_op(node.op)
    if node.op in NOT_OUTPUTS or definition is None or definition.is_stateful or not definition.outputs:
        return False
    return not definition.outputs[0].is_ref and output_dtypes(node)[0] not in (DType.STRING, DType.RESOURCE)
