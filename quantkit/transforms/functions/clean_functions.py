"""Optimize the functions of a graph: loop bodies, loop conditions, branches, and calls that stay."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from quantkit.errors import QuantkitError, RecipeError, did_you_mean
from quantkit.ir.functions import Function
from quantkit.ir.graph import SWITCHES, Graph, Node
from quantkit.ir.rewrite import Outcome, Skip
from quantkit.ir.tensor import Tensor
from quantkit.ops.kernels import Evaluate
from quantkit.transforms.cleanup.merge_duplicate_nodes import merge_duplicate_nodes
from quantkit.transforms.cleanup.remove_dead_branches import remove_dead_branches
from quantkit.transforms.cleanup.remove_nodes import remove_nodes
from quantkit.transforms.cleanup.simplify_arithmetic import simplify_arithmetic
from quantkit.transforms.folding.fold_batch_norms import fold_batch_norms
from quantkit.transforms.folding.fold_biases import fold_biases
from quantkit.transforms.folding.fold_clamps import fold_clamps
from quantkit.transforms.folding.fold_constants import evaluate_with_kernels, fold_constants
from quantkit.transforms.folding.fold_old_batch_norms import fold_old_batch_norms
from quantkit.transforms.folding.fold_pads import fold_pads
from quantkit.transforms.functions._bodies import rewrite_function
from quantkit.transforms.functions._call_sites import reachable_functions
from quantkit.transforms.functions._effects import Effects
from quantkit.transforms.functions._signatures import SignatureOptimizer
from quantkit.transforms.registry import Transform, transform

# Transforms in the order in which they run; all are exact.
STEPS: Mapping[str, Transform] = {
    step.name: step
    for step in (
        *(remove_dead_branches, remove_nodes, fold_constants, simplify_arithmetic),
        *(fold_batch_norms, fold_old_batch_norms, fold_pads, fold_clamps, fold_biases, merge_duplicate_nodes),
    )
}
IDENTITY_OPS = ("Identity", "IdentityN", "StopGradient", "PreventGradient")
# Each round may enable further rewrites in the next one; functions of real models need fewer rounds.
MAX_ROUNDS = 16


@transform(services=("evaluate",))
def clean_functions(
    graph: Graph,
    *,
    transform: tuple[str, ...] = (),
    op: tuple[str, ...] = IDENTITY_OPS,
    evaluate: Evaluate = evaluate_with_kernels,
) -> Outcome:
    """Apply transforms to the functions of a graph, and narrow their arguments and results.

    The functions are loop bodies and conditions, branches, and calls that could not be inlined. The
    transforms below rewrite each function body until nothing changes. If a function has one caller:
    constant arguments and constant loop variables move into the function if they can be folded there,
    loop variables that are always equal become one, and unused arguments and results are removed. The
    iteration counter and the limit of TensorFlow's own loops stay.

    Before:  y = While(x, w = Const)     body(a, w): s = Identity(w), r = Mul(a, Mul(s, 2.0)), results r, w
    After:   y = While(x)                body(a): r = Mul(a, Const), result r

    Options:
        transform: transforms to run: remove_dead_branches, remove_nodes, fold_constants,
            simplify_arithmetic, fold_batch_norms, fold_old_batch_norms, fold_pads, fold_clamps,
            fold_biases, merge_duplicate_nodes (default: all).
        op: op types for remove_nodes (default: Identity, IdentityN, StopGradient, PreventGradient).

    Run it after inline_functions and remove_unused_functions: a function with several callers keeps its
    arguments and results. Stateful nodes stay, in their order; control dependencies on stateless nodes
    are removed.

    Skips functions that cannot be loaded and generic functions. Skips signature changes of functions
    with several callers or a gradient, and of calls that are graph outputs. Skips large constants with
    other consumers.

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
    steps = _select_steps(transform, op, evaluate)
    optimizer = SignatureOptimizer()
    with_all = _optimize(graph, steps, optimizer)
    unfolded = _find_unfolded(with_all.graph, optimizer.moved)
    if not unfolded:
        return with_all
    # A constant that is not folded stays an argument: converters expect the weights of recurrent layers there.
    without_unfolded = _optimize(graph, steps, SignatureOptimizer(unfolded))
    useful = {id(value) for name, value in optimizer.moved if _differs(name, with_all.graph, without_unfolded.graph)}
    if useful.isdisjoint(unfolded):
        return without_unfolded
    return with_all if useful >= unfolded else _optimize(graph, steps, SignatureOptimizer(unfolded - useful))


Step = Callable[[Graph], Outcome]
Steps = tuple[Step, ...]


def _select_steps(names: tuple[str, ...], op: tuple[str, ...], evaluate: Evaluate) -> Steps:
    """Return the selected steps with their options."""
    for name in names:
        if name not in STEPS:
            raise RecipeError(
                f"clean_functions: transform {name!r} is not supported",
                hint=did_you_mean(name, STEPS) or f"supported: {', '.join(STEPS)}",
            )
    options: Mapping[str, Mapping[str, Any]] = {"remove_nodes": {"op": op}, "fold_constants": {"evaluate": evaluate}}
    return tuple(
        partial(step.outcome, **options.get(name, {})) for name, step in STEPS.items() if not names or name in names
    )


def _remove_stateless_controls(graph: Graph, effects: Effects) -> Outcome:
    """Remove control dependencies on stateless nodes.

    In graphs with Switches they stay: they assign nodes to branches.
    """
    if not SWITCHES.isdisjoint(graph.op_counts):
        return Outcome(graph)
    stateful = effects.find_stateful(graph)
    changed: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        if node.controls:
            producers = {edge.node for edge in node.inputs}
            controls = tuple(control for control in node.controls if control in stateful and control not in producers)
            if controls != node.controls:
                changed[name] = node.with_(controls=controls)
    if not changed:
        return Outcome(graph)
    nodes = (changed.get(name, node) for name, node in graph.nodes.items())
    changes = tuple(f"{name} without control dependencies on stateless nodes" for name in changed)
    return Outcome(graph.with_nodes(nodes), changes)


def _run_steps(graph: Graph, steps: Steps) -> Outcome:
    """Run all steps until nothing changes."""
    changes: list[str] = []
    skips: list[Skip] = []
    for _ in range(MAX_ROUNDS):
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


def _find_unfolded(graph: Graph, moved: Sequence[tuple[str, Tensor]]) -> frozenset[int]:
    """Return the ids of the moved constants that are still unchanged in a function."""
    functions = reachable_functions(graph).values() if moved else ()
    nodes = (node for function in functions for node in function.graph.nodes.values())
    return frozenset(id(value) for _, value in moved) & {id(node.attrs.get("value")) for node in nodes}


def _differs(name: str, first: Graph, second: Graph) -> bool:
    """Return True if two versions of a function have different op counts, except constants and arguments."""
    counts = [Counter(graph.library[name].graph.op_counts) for graph in (first, second)]
    for count in counts:
        del count["Const"], count["_Arg"]
    return counts[0] != counts[1]


def _optimize(graph: Graph, steps: Steps, optimizer: SignatureOptimizer) -> Outcome:
    """Rewrite bodies and narrow signatures alternately until nothing changes: each enables the other."""
    changes: list[str] = []
    skips: tuple[Skip, ...] = ()
    done: dict[str, tuple[Function[Graph], tuple[Skip, ...]]] = {}
    stateful: frozenset[str] = frozenset()
    for _ in range(MAX_ROUNDS):
        effects = Effects(graph.library)
        if effects.stateful != stateful:
            stateful = effects.stateful
            done.clear()
        run = partial(_run_steps, steps=(partial(_remove_stateless_controls, effects=effects), *steps))
        bodies = _rewrite_bodies(graph, effects, run, done)
        signatures = optimizer.optimize(bodies.graph, effects)
        changes.extend((*bodies.changes, *signatures.changes))
        skips = signatures.skips
        if signatures.graph is graph:
            break
        graph = signatures.graph
    errors: dict[str, str] = {}
    functions = reachable_functions(graph, errors)
    body_skips = (skip for name in functions for skip in done[name][1])
    load_skips = (Skip(message, name) for name, message in errors.items())
    return Outcome(graph, tuple(changes), (*body_skips, *skips, *load_skips))


def _rewrite_bodies(
    graph: Graph, effects: Effects, run: Step, done: dict[str, tuple[Function[Graph], tuple[Skip, ...]]]
) -> Outcome:
    """Rewrite the bodies of the functions; arguments and results stay.

    Args:
        graph: graph with its library.
        effects: side effects of the functions.
        run: transform of a body.
        done: rewritten functions with their skips; receives the functions of this call.
    """
    library = graph.library
    rewritten: list[Function[Graph]] = []
    changes: list[str] = []
    for name, function in reachable_functions(graph).items():
        if name in done and done[name][0] is function:
            continue
        try:
            after, outcome = rewrite_function(function, library, effects, run)
        except QuantkitError as error:
            after, outcome = function, Outcome(function.graph, (), (Skip(error.message, name),))
        done[name] = (after, outcome.skips)
        changes.extend(outcome.changes)
        rewritten.extend([after] if after is not function else [])
    return Outcome(graph.with_(library=library.with_(*rewritten)) if rewritten else graph, tuple(changes))
