"""Remove dropout and what else only training needs."""

from collections.abc import Sequence

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import op
from quantkit.ir.rewrite import Outcome, Rule, Skip, apply_rules
from quantkit.ops.tensorflow.signatures import output_dtypes
from quantkit.transforms.cleanup._dropout import Dropout
from quantkit.transforms.cleanup._identities import spliced
from quantkit.transforms.functions._bodies import in_functions
from quantkit.transforms.registry import transform

# They hand their first input on, and do something that only training or its author needs.
PASSING = "StopGradient|PreventGradient|Print|PlaceholderWithDefault"
# They compute nothing for others, who at most wait for them.
WATCHING = frozenset(
    {"Assert", "PrintV2", "ScalarSummary", "HistogramSummary", "ImageSummary", "AudioSummary", "TensorSummary"}
    | {"AudioSummaryV2", "TensorSummaryV2", "MergeSummary", "WriteScalarSummary", "WriteHistogramSummary"}
    | {"WriteImageSummary", "WriteAudioSummary", "WriteSummary", "WriteGraphSummary", "WriteRawProtoSummary"}
)
RANDOM = ("Random", "StatelessRandom", "TruncatedNormal", "StatelessTruncatedNormal", "Multinomial")
SEEDS = frozenset({"StatelessRandomGetKeyCounter", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg"})


@transform(exact=False)
def remove_dropout(graph: Graph) -> Outcome:
    """Let tensors pass where training would drop elements of them at random.

    On purpose, a training graph answers otherwise afterwards: as it would for inference. Where the rate of dropout is
    0, and for all that is removed besides, answers stay as they are.

    Before:  y = Mul(RealDiv(x, keep), Floor(Add(RandomUniform(shape), keep)))
    After:   y = x

    Options: none.

    Knows dropout as tf.nn.dropout and Keras have written it: by Floor, Select or a mask of numbers, with the rate a
    constant or computed from an input that is fed. Besides, it reads past StopGradient, PreventGradient and Print, puts
    the default in the place of a PlaceholderWithDefault that is no input of the graph, and removes assertions and
    summaries, with the waiting for them. In functions, too: in the bodies of loops and branches.

    Skips when elements are dropped but the others not scaled up for it. It names the random numbers that are left,
    and batch norms that are still in training mode.

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
    """
    outcome = _without_dropout(graph)
    bodies = in_functions(outcome.graph, _without_dropout)
    return Outcome(bodies.graph, (*outcome.changes, *bodies.changes), (*outcome.skips, *bodies.skips))


def _without_dropout(graph: Graph) -> Outcome:
    outcome = apply_rules(graph, Rule(op("Mul|Select|SelectV2|Div|RealDiv"), _let_pass, ("root",)), _passed_on)
    made = spliced(graph, outcome.graph) if outcome.changes else outcome.graph
    gone = _watchers(made)
    changes = (*outcome.changes, *(f"{name} ({made[name].op}) goes" for name in gone))
    after = _without(made, gone) if gone else made
    return Outcome(after, changes, (*outcome.skips, *_left(after)))


def _let_pass(graph: Graph, root: Node) -> Sequence[Node] | Skip | None:
    if root.name in graph.input_names:
        return None
    found = Dropout(graph).source(root)
    return _identity(root, found) if isinstance(found, Edge) else found


def _pass_on(graph: Graph, root: Node) -> Sequence[Node] | None:
    return None if root.name in graph.input_names or not root.inputs else _identity(root, root.inputs[0])


_passed_on = Rule(op(PASSING), _pass_on, ("root",))


def _identity(root: Node, source: Edge) -> list[Node]:
    return [Node(root.name, "Identity", (source,), root.controls, {}, root.device).with_attrs(T=output_dtypes(root)[0])]


def _watchers(graph: Graph) -> list[str]:
    """Nodes that only watch, in file order, and those that only wait for such nodes."""
    gone: set[str] = set()
    for name in reversed(graph.order):
        readers = [use.node.name for use in graph.node_uses.get(name, ()) if use.slot >= 0]
        if graph[name].op in WATCHING and name not in graph.endpoint_names and gone.issuperset(readers):
            gone.add(name)
    if gone:
        for name in graph.order:
            node = graph[name]
            if (
                node.op == "NoOp"
                and node.controls
                and name not in graph.endpoint_names
                and gone.issuperset(node.controls)
            ):
                gone.add(name)
    return [name for name in graph.nodes if name in gone]


def _without(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph without nodes; who waited for them waits for what they waited for."""
    draft = Draft(graph)
    for name in names:
        draft.remove(name)
        draft.redirect_controls(name, *graph[name].controls)
    return draft.graph()


def _left(graph: Graph) -> tuple[Skip, ...]:
    """What still belongs to training, where an output needs it."""
    needed = graph.reachable() if graph.outputs else set(graph.nodes)
    found: list[Skip] = []
    for name, node in graph.nodes.items():
        if name not in needed:
            continue
        if node.op.startswith(RANDOM) and node.op not in SEEDS:
            found.append(
                Skip(f"{node.op} gives other numbers each time, and belongs to no dropout that is known", name)
            )
        elif node.op.startswith("FusedBatchNorm") and node.attrs.get("is_training", True) and "Grad" not in node.op:
            found.append(Skip("it still normalizes by the statistics of each batch", name))
    return tuple(found)
