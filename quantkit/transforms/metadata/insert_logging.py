"""Print what flows through a graph, while it runs."""

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
    """Let nodes print their values on stderr whenever they run, through Print nodes that their readers read.

    Before:  x -> Relu -> Neg
    After:   x -> Relu -> Print -> Neg

    Options:
        op: node types to log, e.g. ``insert_logging(op=RequantizationRange, show_name=true)``; all when left out.
        prefix: log only nodes whose names begin like that.
        message: what to print before the values.
        show_name: print ``;<node>__print__;`` first.
        show_op: print ``;<type>;`` first.
        first_n: print no more often than that (-1: always).
        summarize: print no more than so many elements of each tensor (1024).

    The Print is called ``<node>__print__``; it shows all tensors of the node that are read.

    Skips when nobody reads the node, as with most outputs of a graph, when it is a Print or has one already, when
    it is a function, a Switch or NextIteration, and when it makes references or handles to what readers change.

    Raises:
        GraphError: the type of a node that is to be logged is not known, or it has no such output as is read.

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
    instead: dict[Edge, Edge] = {}
    skips: list[Skip] = []
    for node in graph.nodes.values():
        if (op and node.op not in op) or (prefix and not node.name.startswith(prefix)):
            continue
        read = [Edge(node.name, port) for port in sorted(ports.get(node.name, ()))]
        reason = _reason_to_stay(graph, node, read)
        if not reason:
            text = f";{node.op};" * show_op + f";{node.name}{SUFFIX};" * show_name + message
            prints[node.name] = _print(node, read).with_attrs(
                message=text.encode(), first_n=first_n, summarize=summarize
            )
            instead[read[0]] = Edge(prints[node.name].name)
        elif op or prefix or read:
            skips.append(Skip(reason, node.name))
    nodes: list[Node] = []
    for node in graph.nodes.values():
        inputs = tuple(instead.get(edge, edge) for edge in node.inputs)
        nodes.append(node if inputs == node.inputs else node.with_(inputs=inputs))
        if node.name in prints:
            nodes.append(prints[node.name])
    changes = tuple(f"{name} ({graph[name].op})" for name in prints)
    return Outcome(graph.with_nodes(nodes) if changes else graph, changes, tuple(skips))


def _reason_to_stay(graph: Graph, node: Node, read: list[Edge]) -> str:
    if not read:
        return "nobody reads it, so nobody would run its Print"
    if node.op == "Print" or f"{node.name}{SUFFIX}" in graph:
        return "it is printed already"
    if node.op in SWITCHES:
        return "only one of its outputs is ever there, and a Print waits for all"
    if node.op in NEXT_ITERATIONS:
        return "a loop goes on from it, with nothing between"
    if node.op in graph.library:
        return f"{node.op} is a function: write it out with inline_functions first"
    definition = find_op(node.op)
    if definition is None:
        raise GraphError(
            f"Op type not registered '{node.op}' in binary (node {node.name!r})",
            hint=did_you_mean(node.op, op_names()) or "a custom op: leave it out by naming the ops to log",
        )
    if any(arg.is_ref for arg in definition.outputs):
        return f"{node.op} makes a reference, which a Print would not pass on"
    dtypes = output_dtypes(node)
    if any(edge.port >= len(dtypes) for edge in read):
        raise GraphError(
            f"Couldn't understand output number in {next(edge for edge in read if edge.port >= len(dtypes))}",
            hint=f"{node.name} ({node.op}) has {len(dtypes)} outputs",
        )
    found = [dtypes[edge.port] for edge in read]
    if None in found:
        return "the element type of what it makes is not known: run add_default_attributes first"
    return "it makes a handle, which has no values" if {*found} & {DType.RESOURCE, DType.VARIANT} else ""


def _print(node: Node, read: list[Edge]) -> Node:
    """A Print that passes the first of the tensors on and shows them all."""
    dtypes = output_dtypes(node)
    types = tuple(dtype for edge in read if (dtype := dtypes[edge.port]) is not None)
    attrs: dict[str, Attr] = {"T": types[0], "U": types}
    return Node(f"{node.name}{SUFFIX}", "Print", (read[0], *read), attrs=attrs, device=node.device)
