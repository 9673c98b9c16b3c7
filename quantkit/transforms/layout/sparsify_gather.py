"""Replace gathers from sparse columns of weights by lookups in hash tables of the nonzero weights.

gather(w, ids)  ==  expand_dims(lookup(table of nonzero w, ids), -1)      w: (n, 1)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.draft import Draft
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.rewrite import NewNodes, Outcome, Skip, free_name
from quantkit.ir.tensor import Array, DType
from quantkit.ops.table import Fact, find_ops
from quantkit.ops.tensorflow.signatures import output_dtype
from quantkit.transforms.registry import transform

GATHERS = find_ops(Fact.GATHER, "tensorflow")
VARIABLES = ("Variable", "VariableV2")
NOT_A_COLUMN = "Transform only applicable to subgraph with 'Const' with tensor of shape [N, 1]. But instead get shape"

# (checkpoint prefix, variable name, slice specification or empty) -> values
ReadVariable = Callable[[str, str, str], Array]


@transform(services=("read_variable",))
def sparsify_gather(
    graph: Graph,
    *,
    input_checkpoint: str = "",
    group_init_node: str = "group_deps",
    read_variable: ReadVariable | None = None,
) -> Outcome:
    """Replace gathers from columns of weights by lookups in hash tables of the nonzero weights.

    The weights of wide linear models are columns of millions of numbers, most of which are zero
    after training with sparse regularization. The memory of a table is proportional to its nonzero
    weights.

    Before:  Gather(Identity(w), ids)
    After:   ExpandDims(LookupTableFind(HashTable of w, ids, default 0), -1)

    Options:
        input_checkpoint: prefix of the checkpoint files, for weights that are variables.
        group_init_node: node that initializes all tables (default: ``group_deps``); a lookup
            initializes its own table, too.

    Several gathers from one column share a table. Ids outside the column give zero.

    Skips if the weights are neither constant nor in the checkpoint, or are not one column of
    float32, if the axis of the gather is not 0, and if weights or gather are graph inputs.

    Raises:
        GraphError: a variable has no RestoreV2 entry in the graph, or group_init_node is not a
            NoOp.
        RecipeError: input_checkpoint is given without the service ``read_variable``.

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
    gathers_by_weights: dict[str, list[Gather]] = {}
    for node in graph.nodes.values():
        if node.op in GATHERS:
            gather = _match_gather(graph, node, has_checkpoint=bool(input_checkpoint))
            if isinstance(gather, Skip):
                skips.append(Skip(gather.reason, node.name))
            else:
                gathers_by_weights.setdefault(gather.weights.name, []).append(gather)
    draft = Draft(graph)
    changes: list[str] = []
    inits: list[str] = []
    for name, gathers in gathers_by_weights.items():
        column = _column(graph, graph[name], input_checkpoint, read_variable)
        reason = _reason_against(column)
        if reason:
            skips += [Skip(reason, gather.node.name) for gather in gathers]
            continue
        table, init = _add_table(graph, draft, name, column)
        inits.append(init)
        for gather in gathers:
            draft.replace(gather.node.name, *_lookup(graph, gather, table, init))
            changes.append(f"{gather.node.name} ({gather.node.op}): {np.count_nonzero(column)} of {len(column)} values")
    if not changes:
        return Outcome(graph, (), tuple(skips))
    _add_group(graph, draft, group_init_node, inits)
    return Outcome(_remove_unused(draft.graph(), graph, gathers_by_weights), tuple(changes), tuple(skips))


@dataclass(frozen=True)
class Gather:
    """Gather from a column of weights.

    Attributes:
        node: Gather or GatherV2.
        identity: Identity between weights and gather, if any.
        weights: constant or variable.
    """

    node: Node
    identity: Node | None
    weights: Node


def _match_gather(graph: Graph, node: Node, *, has_checkpoint: bool) -> Gather | Skip:
    if node.name in graph.input_names:
        return Skip("the node is a graph input")
    identity = None
    weights = graph[node.inputs[0].node]
    if weights.op == "Identity" and weights.name not in graph.input_names:
        identity, weights = weights, graph[weights.inputs[0].node]
    if weights.name in graph.input_names:
        return Skip(f"{weights.name} is a graph input")
    if weights.op not in ("Const", *VARIABLES):
        return Skip(f"the input {weights.name} ({weights.op}) is neither a constant nor a variable")
    if weights.op in VARIABLES and not has_checkpoint:
        return Skip(f"{weights.name} is a variable: use sparsify_gather(input_checkpoint=PREFIX)")
    dtype = weights.attrs.get("dtype")
    if dtype is not DType.FLOAT:
        return Skip(
            f"the type of {weights.name} is {dtype.value if isinstance(dtype, DType) else 'unknown'}, not float"
        )
    if node.op == "GatherV2":
        axis = graph.constant_of(node.inputs[2])
        if axis is None or node.inputs[2].node in graph.input_names or node.attrs.get("batch_dims", 0):
            return Skip("the axis is not constant, or batch_dims is not 0")
        if int(axis.array.reshape(())) != 0:
            number = int(axis.array.reshape(()))
            return Skip(f"Transform only applicable to subgraph with GatherV2 over axis 0. Found axis {number}.")
    return Gather(node, identity, weights)


def _column(graph: Graph, weights: Node, checkpoint: str, read: ReadVariable | None) -> Array:
    """Return the values of a constant, or of a variable in the checkpoint."""
    if weights.op == "Const":
        return weights.value.array
    if read is None:
        raise RecipeError(
            "sparsify_gather: cannot read input_checkpoint without the service read_variable",
            hint="pass read_variable of quantkit.model.importers.checkpoint to run()",
        )
    return read(checkpoint, *_find_checkpoint_entry(graph, weights))


def _find_checkpoint_entry(graph: Graph, variable: Node) -> tuple[str, str]:
    """Return name and slice of a variable in the checkpoint, from the RestoreV2 that restores it.

    Raises:
        GraphError: no RestoreV2 restores the variable.
    """
    for use in graph.node_uses.get(variable.name, ()):
        if use.node.op != "Assign" or use.slot != 0 or len(use.node.inputs) < 2:
            continue
        edge = use.node.inputs[1]
        source = graph.nodes.get(edge.node)
        while source is not None and source.op == "Identity":
            edge = source.inputs[0]
            source = graph.nodes.get(edge.node)
        if source is not None and source.op == "RestoreV2":
            names, slices = (graph.constant_of(operand) for operand in source.inputs[1:3])
            if names is not None and slices is not None and edge.port < names.num_elements:
                texts = (tensor.array.reshape(-1)[edge.port] for tensor in (names, slices))
                name, part = (text.decode() if isinstance(text, bytes) else str(text) for text in texts)
                return name, part
    raise GraphError(
        f"Unable to find RestoreV2 entry for variable: {variable.name}",
        hint="the graph must contain the nodes of tf.train.Saver; or freeze it first",
    )


def _reason_against(column: Array) -> str:
    if column.ndim != 2 or column.shape[1] != 1:
        return f"{NOT_A_COLUMN} [{','.join(map(str, column.shape))}]."
    return ""


def _add_table(graph: Graph, draft: Draft, weights: str, column: Array) -> tuple[str, str]:
    """Insert a table before the weights, and return the names of the table and of its initializer."""
    flat = column[:, 0]
    ids = np.flatnonzero(flat) if flat.any() else np.zeros(min(1, len(flat)), np.int64)
    nodes = NewNodes(graph, weights)
    indices, values = nodes.constant("indices", ids.astype(np.int64)), nodes.constant("values", flat[ids])
    table = nodes.add("HashTable", "HashTable", key_dtype=DType.INT64, value_dtype=DType.FLOAT)
    init = nodes.add("InitializeTable", "InitializeTable", table, indices, values, Tkey=DType.INT64, Tval=DType.FLOAT)
    draft.before(weights, *nodes)
    return table.node, init.node


def _lookup(graph: Graph, gather: Gather, table: str, init: str) -> list[Node]:
    """Return the replacement of a gather, with a control dependency on the table's initializer."""
    root = gather.node
    nodes: list[Node] = []
    ids = root.inputs[1]
    if (root.attrs.get("Tindices") or output_dtype(graph[ids.node], ids.port)) is DType.INT32:
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
    before = (root, gather.weights, *([gather.identity] if gather.identity else []))
    controls = tuple(dict.fromkeys(name for node in before for name in node.controls))
    edges = (Edge(find.name), Edge(axis.name))
    result = Node(root.name, "ExpandDims", edges, controls, {"T": DType.FLOAT, "Tdim": DType.INT32}, root.device)
    return [*nodes, default, find, axis, result]


def _add_group(graph: Graph, draft: Draft, name: str, inits: list[str]) -> None:
    """Add the initializers to the control dependencies of the node that initializes all tables.

    Raises:
        GraphError: the node exists and is not a NoOp.
    """
    if name not in graph:
        draft.append(Node(name, "NoOp", (), tuple(inits)))
        return
    group = graph[name]
    if group.op != "NoOp":
        raise GraphError(
            f"group_init_node {name!r} is {group.op}, not NoOp", hint="choose another name: group_init_node=NAME"
        )
    draft.replace(name, group.with_(controls=(*group.controls, *inits)))


def _remove_unused(after: Graph, before: Graph, gathers_by_weights: dict[str, list[Gather]]) -> Graph:
    """Remove weights, their Identity nodes and axes that have become unused."""
    gathers = [gather for group in gathers_by_weights.values() for gather in group]
    identities = [gather.identity.name for gather in gathers if gather.identity]
    axes = [edge.node for gather in gathers for edge in gather.node.inputs[2:]]
    removed: set[str] = set()
    for name in dict.fromkeys((*identities, *axes, *gathers_by_weights)):
        uses = after.node_uses.get(name, ())
        if name not in before.endpoint_names and all(use.node.name in removed for use in uses):
            removed.add(name)
    return after.with_nodes(node for node in after.nodes.values() if node.name not in removed)
