"""Add Print ops that log tensors at run time."""

from quantkit.errors import GraphError, did_you_mean
from quantkit.ir.graph import SWITCHES, Attr, Edge, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import DType
from quantkit.ops.tensorflow.signatures import find_op, op_names, output_dtypes
from quantkit.transforms.cleanup._switches import NEXT_ITERATIONS
from quantkit.transforms.registry import transform

SUFFIX = "__print__"


@transform
def insert_logging(
    graph: Graph,
    *,
    op: tuple[str, ...] = (),
    prefix: tuple[str, ...] = (),
    message: str = "",
    show_name: bool = False,
    show_op: bool = False,
    first_n: int = -1,
    summarize: int = 1024,
) -> Outcome:
    """Add Print ops that write the outputs of nodes to stderr in each run.

    Before:  x -> Relu -> Neg
    After:   x -> Relu -> Print -> Neg

    Options:
        op: op types to log, for example ``insert_logging(op=RequantizationRange, show_name=true)``
            (default: all).
        prefix: log only nodes whose name has this prefix.
        message: text before the values.
        show_name: print ``;<node>__print__;`` first.
        show_op: print ``;<op type>;`` first.
        first_n: maximum number of messages (default: -1, no limit).
        summarize: maximum number of printed elements of each tensor (default: 1024).

    The Print is named ``<node>__print__``; it prints all outputs of the node that have consumers.

    Skips nodes without consumers (most graph outputs), Print ops, logged nodes, function calls, Switch
    and NextIteration, and nodes that produce references or handles.

    Raises:
        GraphError: the op type of a logged node is unknown, or a consumer uses an output that it lacks.

    Example:
        insert_logging(op=Relu, show_name=true)
        inputs: x
        outputs: y
        x = Placeholder[2]()
        relu = Relu(x, T=float)
        y = Neg(relu, T=float)
    """
    ports: dict[str, set[int]] = {}
    for edge in graph.uses:
        ports.setdefault(edge.node, set()).add(edge.port)
    prints: dict[str, Node] = {}
    replacements: dict[Edge, Edge] = {}
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if (op and node.op not in op) or (prefix and not node.name.startswith(prefix)):
            continue
        used = [Edge(node.name, port) for port in sorted(ports.get(node.name, ()))]
        reason = _skip_reason(graph, node, used)
        if not reason:
            text = f";{node.op};" * show_op + f";{node.name}{SUFFIX};" * show_name + message
            prints[node.name] = _make_print(node, used).with_attrs(
                message=text.encode(), first_n=first_n, summarize=summarize
            )
            replacements[used[0]] = Edge(prints[node.name].name)
        elif op or prefix or used:
            skips.append(Skip(reason, node.name))
    nodes: list[Node] = []
    for node in graph.nodes.values():
        inputs = tuple(replacements.get(edge, edge) for edge in node.inputs)
        nodes.append(node if inputs == node.inputs else node.with_(inputs=inputs))
        if node.name in prints:
            nodes.append(prints[node.name])
    changes = tuple(f"{name} ({graph[name].op})" for name in prints)
    return Outcome(graph.with_nodes(nodes) if changes else graph, changes, tuple(skips))


def _skip_reason(graph: Graph, node: Node, used: list[Edge]) -> str:
    if not used:
        return "the node has no consumer: its Print would not run"
    if node.op == "Print" or f"{node.name}{SUFFIX}" in graph:
        return "the node is already logged"
    if node.op in SWITCHES:
        return "one output of a Switch is dead, and a Print runs only if all its inputs are live"
    if node.op in NEXT_ITERATIONS:
        return "the consumer of a NextIteration must be its Merge"
    if node.op in graph.library:
        return f"{node.op} is a function: run inline_functions first"
    definition = find_op(node.op)
    if definition is None:
        raise GraphError(
            f"Op type not registered '{node.op}' in binary (node {node.name!r})",
            hint=did_you_mean(node.op, op_names()) or "custom op: select the ops to log with op=",
        )
    if any(arg.is_ref for arg in definition.outputs):
        return f"{node.op} produces a reference, which a Print does not forward"
    dtypes = output_dtypes(node)
    if any(edge.port >= len(dtypes) for edge in used):
        raise GraphError(
            f"Couldn't understand output number in {next(edge for edge in used if edge.port >= len(dtypes))}",
            hint=f"correct the input: {node.name} ({node.op}) has {len(dtypes)} outputs",
        )
    types = [dtypes[edge.port] for edge in used]
    if None in types:
        return "the element type of the output is unknown: run add_default_attributes first"
    return "the output is a handle, which cannot be printed" if {*types} & {DType.RESOURCE, DType.VARIANT} else ""


def _make_print(node: Node, edges: list[Edge]) -> Node:
    """Return a Print that forwards the first edge and prints all edges."""
    dtypes = output_dtypes(node)
    types = tuple(dtype for edge in edges if (dtype := dtypes[edge.port]) is not None)
    attrs: dict[str, Attr] = {"T": types[0], "U": types}
    return Node(f"{node.name}{SUFFIX}", "Print", (edges[0], *edges), attrs=attrs, device=node.device)
