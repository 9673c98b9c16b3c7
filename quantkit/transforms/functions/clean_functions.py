"""Clean the bodies of loops, of branches, and of what else stays a function."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from quantkit.errors import QuantkitError, RecipeError, did_you_mean
from quantkit.ir.functions import Function
from quantkit.ir.graph import SWITCHES, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Tensor
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.cleanup.remove_dead_branches import remove_dead_branches
from quantkit.transforms.cleanup.remove_nodes import remove_nodes
from quantkit.transforms.cleanup.simplify_arithmetic import simplify_arithmetic
from quantkit.transforms.folding.fold_batch_norms import fold_batch_norms
from quantkit.transforms.folding.fold_biases import fold_biases
from quantkit.transforms.folding.fold_clamps import fold_clamps
from quantkit.transforms.folding.fold_constants import Evaluate, evaluate_with_kernels, fold_constants
from quantkit.transforms.folding.fold_old_batch_norms import fold_old_batch_norms
from quantkit.transforms.folding.fold_pads import fold_pads
from quantkit.transforms.functions._bodies import cleaned
from quantkit.transforms.functions._call_sites import needed_functions
from quantkit.transforms.functions._effects import Effects
from quantkit.transforms.functions._signatures import Signatures
from quantkit.transforms.registry import Transform, transform

# In the order in which they run; each keeps all answers as they are.
STEPS: Mapping[str, Transform] = {
    step.name: step
    for step in (
        *(remove_dead_branches, remove_nodes, fold_constants, simplify_arithmetic),
        *(fold_batch_norms, fold_old_batch_norms, fold_pads, fold_clamps, fold_biases, merge_duplicate_nodes),
    )
}
PASSING = ("Identity", "IdentityN", "StopGradient", "PreventGradient")
# What one round leaves, the next one may find; no function that anybody wrote takes so many.
MOST_ROUNDS = 16


@transform(services=("evaluate",))
def clean_functions(
    graph: Graph,
    *,
    transform: tuple[str, ...] = (),
    op: tuple[str, ...] = PASSING,
    evaluate: Evaluate = evaluate_with_kernels,
) -> Outcome:
    """Clean the functions that stay: bodies and conditions of loops, branches, and what could not be inline_calls.

    The transforms named below rewrite each body as a graph of its own, until nothing changes. Where one node alone
    calls a function, constants that it always gives move inside if that changes anything there, those that a loop hands
    from turn to turn among them; variables of a loop that are always equal become one; what nobody needs is neither
    taken nor given any more. The first two variables of loops as TensorFlow writes them, the number of turns and their
    limit, stay.

    Before:  y = While(x, w = Const)     body(a, w): s = Identity(w), r = Mul(a, Mul(s, 2.0)), results r, w
    After:   y = While(x)                body(a): r = Mul(a, Const), result r

    Options:
        transform: what to run, of remove_dead_branches, remove_nodes, fold_constants, simplify_arithmetic,
            fold_batch_norms, fold_old_batch_norms, fold_pads, fold_clamps, fold_biases and merge_duplicate_nodes (all).
        op: what remove_nodes splices out (Identity, IdentityN, StopGradient, PreventGradient).

    Run it after inline_functions and remove_unused_functions: a function that two nodes name keeps what it takes and
    gives. What keeps state stays, and in its order; nobody waits for nodes that only compute.

    Skips when a function can not be opened, or is made for several types; to change what is taken and given, when
    several nodes name the function, it has a gradient, or the call is an output of the graph; to move a constant
    inside that is large and needed elsewhere.

    Example:
        clean_functions
        inputs: x
        outputs: y
        x = Placeholder[]()
        w = Const(3.0)
        loop = StatelessWhile(x, w, T=[float, float], cond=&small, body=&step)
        y = Neg(loop)
        function small(out = s)
        a = _Arg(T=float, index=0)
        w = _Arg(T=float, index=1)
        ten = Const(10.0)
        s = Less(a, ten, T=float)
        end
        function step(next = same, kept = w)
        a = _Arg(T=float, index=0)
        w = _Arg(T=float, index=1)
        two = Const(2.0)
        factor = Mul(w, two, T=float)
        product = Mul(a, factor, T=float)
        same = Identity(product, T=float)
        end
    """
    steps = _chosen(transform, op, evaluate)
    signatures = Signatures()
    everything = _cleaned(graph, steps, signatures)
    left = _unfolded(everything.graph, signatures.moved)
    if not left:
        return everything
    # What does nothing inside may as well be given: weights of recurrent layers, say, which converters look for there.
    little = _cleaned(graph, steps, Signatures(left))
    useful = {id(value) for name, value in signatures.moved if _differs(name, everything.graph, little.graph)}
    if useful.isdisjoint(left):
        return little
    return everything if useful >= left else _cleaned(graph, steps, Signatures(left - useful))


Step = Callable[[Graph], Outcome]
Steps = tuple[Step, ...]


def _chosen(names: tuple[str, ...], op: tuple[str, ...], evaluate: Evaluate) -> Steps:
    """The steps with their options."""
    for name in names:
        if name not in STEPS:
            raise RecipeError(
                f"clean_functions: it does not run {name!r}",
                hint=did_you_mean(name, STEPS) or f"it runs {', '.join(STEPS)}",
            )
    options: Mapping[str, Mapping[str, Any]] = {"remove_nodes": {"op": op}, "fold_constants": {"evaluate": evaluate}}
    return tuple(
        partial(step.outcome, **options.get(name, {})) for name, step in STEPS.items() if not names or name in names
    )


def _without_waits(graph: Graph, effects: Effects) -> Outcome:
    """The graph where nobody waits for nodes that only compute; behind a Switch, they tell which branch is taken."""
    if not SWITCHES.isdisjoint(graph.op_counts):
        return Outcome(graph)
    ordered = effects.ordered(graph)
    changed: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        if node.controls:
            read = {edge.node for edge in node.inputs}
            waits = tuple(one for one in node.controls if one in ordered and one not in read)
            if waits != node.controls:
                changed[name] = node.with_(controls=waits)
    if not changed:
        return Outcome(graph)
    nodes = (changed.get(name, node) for name, node in graph.nodes.items())
    return Outcome(graph.with_nodes(nodes), tuple(f"{name} waits for what can be seen only" for name in changed))


def _run(graph: Graph, steps: Steps) -> Outcome:
    """All steps, until nothing changes."""
    changes: list[str] = []
    skips: list[Skip] = []
    for _ in range(MOST_ROUNDS):
        before = graph
        skips = []
        for step in steps:
            outcome = step(graph)
            graph = outcome.graph
            changes.extend(outcome.changes)
            skips.extend(outcome.skips)
        if graph.nodes == before.nodes:
            break
    return Outcome(graph, tuple(changes), tuple(skips))


def _unfolded(graph: Graph, moved: Sequence[tuple[str, Tensor]]) -> frozenset[int]:
    """The constants, by id, that were moved and are still in a function what they were."""
    nodes = (node for one in needed_functions(graph).values() for node in one.graph.nodes.values()) if moved else ()
    return frozenset(id(value) for _, value in moved) & {id(node.attrs.get("value")) for node in nodes}


def _differs(name: str, one: Graph, other: Graph) -> bool:
    """Whether two bodies of a function hold other nodes, leaving aside where they have constants from."""
    counts = [Counter(graph.library[name].graph.op_counts) for graph in (one, other)]
    for count in counts:
        del count["Const"], count["_Arg"]
    return counts[0] != counts[1]


def _cleaned(graph: Graph, steps: Steps, signatures: Signatures) -> Outcome:
    """The graph with clean functions that take and give what is needed only: the one lets the other do more."""
    changes: list[str] = []
    skips: tuple[Skip, ...] = ()
    done: dict[str, tuple[Function[Graph], tuple[Skip, ...]]] = {}
    stateful: frozenset[str] = frozenset()
    for _ in range(MOST_ROUNDS):
        effects = Effects(graph.library)
        if effects.stateful != stateful:
            stateful = effects.stateful
            done.clear()
        run = partial(_run, steps=(partial(_without_waits, effects=effects), *steps))
        bodies = _clean_bodies(graph, effects, run, done)
        settled = signatures.settle(bodies.graph, effects)
        changes.extend((*bodies.changes, *settled.changes))
        skips = settled.skips
        if settled.graph is graph:
            break
        graph = settled.graph
    closed: dict[str, str] = {}
    needed = needed_functions(graph, closed)
    told = (skip for name in needed for skip in done[name][1])
    return Outcome(graph, tuple(changes), (*told, *skips, *(Skip(reason, name) for name, reason in closed.items())))


def _clean_bodies(
    graph: Graph, effects: Effects, run: Step, done: dict[str, tuple[Function[Graph], tuple[Skip, ...]]]
) -> Outcome:
    """The graph with clean functions, which take and give what they did.

    Args:
        graph: with its library.
        effects: of the functions.
        run: cleans one.
        done: those that are clean, with what was declined there; more come to it.
    """
    library = graph.library
    made: list[Function[Graph]] = []
    changes: list[str] = []
    for name, function in needed_functions(graph).items():
        if name in done and done[name][0] is function:
            continue
        try:
            after, outcome = cleaned(function, library, effects, run)
        except QuantkitError as error:
            after, outcome = function, Outcome(function.graph, (), (Skip(error.message, name),))
        done[name] = (after, outcome.skips)
        changes.extend(outcome.changes)
        made.extend([after] if after is not function else [])
    return Outcome(graph.with_(library=library.with_(*made)) if made else graph, tuple(changes))
