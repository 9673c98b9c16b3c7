"""Remove dropout and other ops that only training needs."""

from collections.abc import Sequence

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.transforms.cleanup._dropout import DropoutMatcher
from quantkit.transforms.cleanup._identities import remove_new_identities
from quantkit.transforms.functions._bodies import rewrite_functions
from quantkit.transforms.onnx import _identities as onnx_identities
from quantkit.transforms.registry import transform

# Ops that forward their first input, with an effect that inference does not need.
TRAINING_IDENTITIES = "StopGradient|PreventGradient|Print|PlaceholderWithDefault"
# Ops without data consumers: assertions, prints and summaries.
MONITORING = frozenset(
    {"Assert", "PrintV2", "ScalarSummary", "HistogramSummary", "ImageSummary", "AudioSummary", "TensorSummary"}
    | {"AudioSummaryV2", "TensorSummaryV2", "MergeSummary", "WriteScalarSummary", "WriteHistogramSummary"}
    | {"WriteImageSummary", "WriteAudioSummary", "WriteSummary", "WriteGraphSummary", "WriteRawProtoSummary"}
)
RANDOM = ("Random", "StatelessRandom", "TruncatedNormal", "StatelessTruncatedNormal", "Multinomial")
SEEDS = frozenset({"StatelessRandomGetKeyCounter", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg"})


@transform(exact=False, dialects=("tensorflow", "onnx"))
def remove_dropout(graph: Graph) -> Outcome:
    """Remove dropout, pass-through training ops, assertions and summaries.

    The outputs of a training graph change: they become those of inference. They stay equal if the
    dropout rate is 0.

    Before:  y = Mul(RealDiv(x, keep), Floor(Add(RandomUniform(shape), keep)))
    After:   y = x

    Options: none.

    Matches the dropout of all versions of tf.nn.dropout and Keras: with Floor, Select or a numeric
    mask, and a rate that is constant or computed from a graph input. Also removes StopGradient,
    PreventGradient and Print, replaces a PlaceholderWithDefault that is not a graph input by its
    default, and removes assertions and summaries with the control dependencies on them. Functions are
    rewritten too: bodies of loops and branches. In ONNX graphs, removes Dropout whose training mode
    is off and whose mask is not used.

    Skips dropout without scaling of the kept elements, other random ops, and BatchNorm in training
    mode.

    Example:
        remove_dropout
        inputs: x
        outputs: y
        x = Placeholder[2]()
        size = Const[int32]([2])
        rate = Const(0.5)
        factor = Const(2.0)
        zero = Const(0.0)
        scaled = Mul(x, factor)
        random = RandomUniform(size, T=int32, dtype=float)
        stays = GreaterEqual(random, rate)
        dropped = SelectV2(stays, scaled, zero)
        y = Neg(dropped)

    Example:
        remove_dropout
        inputs: x
        outputs: y
        x = Placeholder[2]()
        stop = StopGradient(x)
        y = Neg(stop)

    Example:
        remove_dropout
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2]()
        a = Neg(x)
        y = Dropout(a)
    """
    if graph.dialect == onnx_identities.DIALECT:
        return onnx_identities.remove_dropout(graph)
    main = _remove_from_graph(graph)
    functions = rewrite_functions(main.graph, _remove_from_graph)
    return Outcome(functions.graph, (*main.changes, *functions.changes), (*main.skips, *functions.skips))


def _remove_from_graph(graph: Graph) -> Outcome:
    outcome = apply_rules(graph, _dropout_rule, _pass_through_rule)
    without_dropout = remove_new_identities(graph, outcome.graph) if outcome.changes else outcome.graph
    names = _find_monitoring(without_dropout)
    changes = (*outcome.changes, *(f"{name} ({without_dropout[name].op}) removed" for name in names))
    after = _remove_with_controls(without_dropout, names) if names else without_dropout
    return Outcome(after, changes, (*outcome.skips, *_remaining_training_ops(after)))


def _replace_dropout(graph: Graph, root: Node) -> Sequence[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    source = DropoutMatcher(graph).find_input(root)
    return _identity(root, source) if isinstance(source, Edge) else source


def _replace_pass_through(graph: Graph, root: Node) -> Sequence[Node] | None:
    return None if root.name in graph.input_names or not root.inputs else _identity(root, root.inputs[0])


_dropout_rule = Rule(op("Mul|Select|SelectV2|Div|RealDiv"), _replace_dropout, ("root",))
_pass_through_rule = Rule(op(TRAINING_IDENTITIES), _replace_pass_through, ("root",))


def _identity(root: Node, source: Edge) -> list[Node]:
    return [Node(root.name, "Identity", (source,), root.controls, {}, root.device).with_attrs(T=output_dtypes(root)[0])]


def _find_monitoring(graph: Graph) -> list[str]:
    """Return monitoring ops without other consumers, and NoOps that depend on such ops alone, in file order."""
    names: set[str] = set()
    for name in reversed(graph.order):
        consumers = [use.node.name for use in graph.node_uses.get(name, ()) if use.slot >= 0]
        if graph[name].op in MONITORING and name not in graph.endpoint_names and names.issuperset(consumers):
            names.add(name)
    if names:
        for name in graph.order:
            controls = graph[name].controls
            is_barrier = graph[name].op == "NoOp" and controls and name not in graph.endpoint_names
            if is_barrier and names.issuperset(controls):
                names.add(name)
    return [name for name in graph.nodes if name in names]


def _remove_with_controls(graph: Graph, names: Sequence[str]) -> Graph:
    """Remove nodes; control dependencies on a node become those of the node."""
    draft = Draft(graph)
    for name in names:
        draft.remove(name)
        draft.redirect_controls(name, *graph[name].controls)
    return draft.graph()


def _remaining_training_ops(graph: Graph) -> tuple[Skip, ...]:
    """Return a skip per random op and training BatchNorm that an output needs."""
    needed = graph.reachable() if graph.outputs else set(graph.nodes)
    skips: list[Skip] = []
    for name, node in graph.nodes.items():
        if name not in needed:
            continue
        if node.op.startswith(RANDOM) and node.op not in SEEDS:
            skips.append(Skip(f"{node.op} returns random values and is not part of a known dropout pattern", name))
        elif node.op.startswith("FusedBatchNorm") and node.attrs.get("is_training", True) and "Grad" not in node.op:
            skips.append(Skip("BatchNorm is in training mode: it normalizes with batch statistics", name))
    return tuple(skips)
