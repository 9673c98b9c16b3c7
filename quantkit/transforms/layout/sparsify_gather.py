"""Columns of mostly zeros, read through a table of what is not zero.

gather(w, ids)  ==  expand_dims(lookup(table of the nonzero w, ids), -1)      w: (n, 1)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import Outcome, Skip, free_name
from quantkit.ir.tensor import Array, DType
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.transforms.registry import transform

GATHERS = ("Gather", "GatherV2")
VARIABLES = ("Variable", "VariableV2")
NOT_A_COLUMN = "Transform only applicable to subgraph with 'Const' with tensor of shape [N, 1]. But instead get shape"

# (what a checkpoint's files begin with, name of a variable, the slice of it or nothing) -> its values
ReadVariable = Callable[[str, str, str], Array]


@transform(services=("read_variable",))
def sparsify_gather(
    graph: Graph,
    *,
    input_checkpoint: str = "",
    group_init_node: str = "group_deps",
    read_variable: ReadVariable | None = None,
) -> Outcome:
    """Read columns of weights through hash tables that hold only what is not zero.

    The weights of wide linear models are columns of millions of numbers, most of them zero where training pressed for
    it. A table takes as much memory as there are others.

    Before:  Gather(Identity(w), ids)
    After:   ExpandDims(LookupTableFind(HashTable of w, ids, default 0), -1)

    Options:
        input_checkpoint: what the files of a checkpoint begin with, for weights that are variables.
        group_init_node: a node that fills all tables when it is run (``group_deps``); lookups fill theirs, too.

    Several gathers of one column share its table. Ids that are not in the column read zero.

    Skips when the weights are neither constant nor in the checkpoint, are not one column of float32, when the
    gather is along another axis than the first, and when weights or gather are inputs of the graph.

    Raises:
        GraphError: a variable has no RestoreV2 entry in the graph, or group_init_node is no NoOp.
        RecipeError: there is nothing that could read the checkpoint.

    Example:
        sparsify_gather
        inputs: ids
        outputs: y
        ids = Placeholder[int64 3]()
        w = Const([[0.0], [1.5], [0.0], [0.0], [-2.0], [0.0], [0.0], [0.0]])
        read = Identity(w, T=float)
        y = Gather(read, ids, Tparams=float, Tindices=int64)
    """
    skips: list[Skip] = []
    found: dict[str, list[Gather]] = {}
    for node in graph.nodes.values():
        if node.op in GATHERS:
            gather = _understood(graph, node, has_checkpoint=bool(input_checkpoint))
            if isinstance(gather, Skip):
                skips.append(Skip(gather.reason, node.name))
            else:
                found.setdefault(gather.weights.name, []).append(gather)
    draft = Draft(graph)
    changes: list[str] = []
    inits: list[str] = []
    for name, gathers in found.items():
        column = _column(graph, graph[name], input_checkpoint, read_variable)
        reason = _reason_against(column)
        if reason:
            skips += [Skip(reason, gather.node.name) for gather in gathers]
            continue
        table, init = _table(graph, draft, name, column)
        inits.append(init)
        for gather in gathers:
            draft.replace(gather.node.name, *_lookup(graph, gather, table, init))
            changes.append(f"{gather.node.name} ({gather.node.op}): {np.count_nonzero(column)} of {len(column)} values")
    if not changes:
        return Outcome(graph, (), tuple(skips))
    _group(graph, draft, group_init_node, inits)
    return Outcome(_without_unread(draft.graph(), graph, found), tuple(changes), tuple(skips))


@dataclass(frozen=True)
class Gather:
    """A gather of a column of weights.

    Attributes:
        node: the gather.
        passing: the Identity between, or nothing.
        weights: the constant or variable.
    """

    node: Node
    passing: Node | None
    weights: Node


def _understood(graph: Graph, node: Node, *, has_checkpoint: bool) -> Gather | Skip:
    if node.name in graph.input_names:
        return Skip("it is an input of the graph")
    passing = None
    weights = graph[node.inputs[0].node]
    if weights.op == "Identity" and weights.name not in graph.input_names:
        passing, weights = weights, graph[weights.inputs[0].node]
    if weights.name in graph.input_names:
        return Skip(f"{weights.name} is an input of the graph")
    if weights.op not in ("Const", *VARIABLES):
        return Skip(f"{weights.name} ({weights.op}), which it reads, is neither a constant nor a variable")
    if weights.op in VARIABLES and not has_checkpoint:
        return Skip(f"{weights.name} is a variable: name a checkpoint, sparsify_gather(input_checkpoint=PREFIX)")
    dtype = weights.attrs.get("dtype")
    if dtype is not DType.FLOAT:
        return Skip(
            f"{weights.name} is of {dtype.value if isinstance(dtype, DType) else 'no known type'}, not of float"
        )
    if node.op == "GatherV2":
        axis = graph.constant_of(node.inputs[2])
        if axis is None or node.inputs[2].node in graph.input_names or node.attrs.get("batch_dims", 0):
            return Skip("its axis is not constant, or it gathers in batches")
        if int(axis.array.reshape(())) != 0:
            found = int(axis.array.reshape(()))
            return Skip(f"Transform only applicable to subgraph with GatherV2 over axis 0. Found axis {found}.")
    return Gather(node, passing, weights)


def _column(graph: Graph, weights: Node, checkpoint: str, read: ReadVariable | None) -> Array:
    """The values of a constant, or of a variable in the checkpoint."""
    if weights.op == "Const":
        return weights.value.array
    if read is None:
        raise RecipeError(
            "sparsify_gather: there is nothing that could read input_checkpoint",
            hint="give run() the service read_variable of quantkit.model.importers.checkpoint",
        )
    return read(checkpoint, *_restored(graph, weights))


def _restored(graph: Graph, variable: Node) -> tuple[str, str]:
    """Name and slice of a variable, as the graph would restore it."""
    for use in graph.node_uses.get(variable.name, ()):
        if use.node.op != "Assign" or use.slot != 0 or len(use.node.inputs) < 2:
            continue
        edge = use.node.inputs[1]
        source = graph.nodes.get(edge.node)
        while source is not None and source.op == "Identity":
            edge = source.inputs[0]
            source = graph.nodes.get(edge.node)
        if source is not None and source.op == "RestoreV2":
            names, slices = (graph.constant_of(one) for one in source.inputs[1:3])
            if names is not None and slices is not None and edge.port < names.num_elements:
                texts = (one.array.reshape(-1)[edge.port] for one in (names, slices))
                name, part = (text.decode() if isinstance(text, bytes) else str(text) for text in texts)
                return name, part
    raise GraphError(
        f"Unable to find RestoreV2 entry for variable: {variable.name}",
        hint="the graph must hold the nodes that a tf.train.Saver added; or freeze it first",
    )


def _reason_against(column: Array) -> str:
    if column.ndim != 2 or column.shape[1] != 1:
        return f"{NOT_A_COLUMN} [{','.join(map(str, column.shape))}]."
    return ""


def _table(graph: Graph, draft: Draft, weights: str, column: Array) -> tuple[str, str]:
    """Put a table in front of the weights: names of the table and of what fills it."""
    flat = column[:, 0]
    ids = np.flatnonzero(flat) if flat.any() else np.zeros(min(1, len(flat)), np.int64)
    parts = ("indices", "values", "HashTable", "InitializeTable")
    names = {part: free_name(graph, f"{weights}/{part}") for part in parts}
    edges = tuple(Edge(names[part]) for part in ("HashTable", "indices", "values"))
    draft.before(
        weights,
        constant(names["indices"], ids.astype(np.int64)),
        constant(names["values"], flat[ids]),
        Node(names["HashTable"], "HashTable", attrs={"key_dtype": DType.INT64, "value_dtype": DType.FLOAT}),
        Node(names["InitializeTable"], "InitializeTable", edges, attrs={"Tkey": DType.INT64, "Tval": DType.FLOAT}),
    )
    return names["HashTable"], names["InitializeTable"]


def _lookup(graph: Graph, gather: Gather, table: str, init: str) -> list[Node]:
    """What takes the place of a gather; it waits for the table to be filled, which is done once."""
    root = gather.node
    nodes: list[Node] = []
    ids = root.inputs[1]
    declared = root.attrs.get("Tindices") or output_dtypes(graph[ids.node])[ids.port : ids.port + 1]
    if declared in (DType.INT32, (DType.INT32,)):
        attrs: dict[str, Attr] = {"SrcT": DType.INT32, "DstT": DType.INT64}
        nodes.append(Node(free_name(graph, f"{root.name}/Cast"), "Cast", (ids,), attrs=attrs, device=root.device))
        ids = Edge(nodes[-1].name)
    default = constant(free_name(graph, f"{root.name}/Const"), np.float32(0))
    axis = constant(free_name(graph, f"{root.name}/ExpandDims/Const"), np.int32(-1))
    find = Node(
        free_name(graph, f"{root.name}/LookupTableFind"),
        "LookupTableFind",
        (Edge(table), ids, Edge(default.name)),
        (init,),
        {"Tin": DType.INT64, "Tout": DType.FLOAT},
    )
    before = (root, gather.weights, *([gather.passing] if gather.passing else []))
    waits = tuple(dict.fromkeys(name for node in before for name in node.controls))
    edges = (Edge(find.name), Edge(axis.name))
    made = Node(root.name, "ExpandDims", edges, waits, {"T": DType.FLOAT, "Tdim": DType.INT32}, root.device)
    return [*nodes, default, find, axis, made]


def _group(graph: Graph, draft: Draft, name: str, inits: list[str]) -> None:
    """Let the node that fills all tables wait for those that fill one."""
    if name not in graph:
        draft.append(Node(name, "NoOp", (), tuple(inits)))
        return
    group = graph[name]
    if group.op != "NoOp":
        raise GraphError(
            f"{name}, which would fill all tables, is a {group.op}", hint="name another with group_init_node=NAME"
        )
    draft.replace(name, group.with_(controls=(*group.controls, *inits)))


def _without_unread(made: Graph, before: Graph, found: dict[str, list[Gather]]) -> Graph:
    """The graph without weights, and Identities of them, whose last reader is gone."""
    gone: set[str] = set()
    passing = [gather.passing.name for gathers in found.values() for gather in gathers if gather.passing]
    axes = [edge.node for gathers in found.values() for gather in gathers for edge in gather.node.inputs[2:]]
    for name in dict.fromkeys((*passing, *axes, *found)):
        if name not in before.endpoint_names and all(use.node.name in gone for use in made.node_uses.get(name, ())):
            gone.add(name)
    return made.with_nodes(node for node in made.nodes.values() if node.name not in gone)
