"""``quantkit transform``: the classic Graph Transform Tool call, and its short form."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit import formats
from quantkit.errors import RecipeError, UsageError
from quantkit.ir.graph import Graph
from quantkit.loading import MEANINGLESS, Model
from quantkit.recipe import Recipe, Record, Trace, parse
from quantkit.recipe import run as run_recipe
from quantkit.recipe.named import NAMED, find_recipe

from ._loading import named_model
from ._render import emit, log

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = (
    "quantkit transform digits -o digits_folded.pb --recipe inference --explain",
    "quantkit transform --in_graph=graph.pb --out_graph=small.pb --inputs=Mul --outputs=softmax "
    "--transforms='strip_unused_nodes fold_constants quantize_weights'",
)
# Lines of changes that --explain prints for one step before it only counts them; --verbose prints all.
SHOWN_CHANGES = 8


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of the classic tool, and ours."""
    parser.add_argument("model", nargs="?", help="model file, SavedModel folder, or name of a card (short form)")
    parser.add_argument("-o", "--output", help="file to write (short form)")
    parser.add_argument("--in-graph", help="GraphDef file to read, binary or text")
    parser.add_argument("--out-graph", help="GraphDef file to write")
    parser.add_argument("--inputs", help="names of what is fed, separated by commas")
    parser.add_argument("--outputs", help="names of what is asked for, separated by commas")
    parser.add_argument("--transforms", help="transforms with their options, in order")
    parser.add_argument(
        "--recipe", help=f"a named recipe ({', '.join(NAMED)}) or a .toml file, instead of --transforms"
    )
    parser.add_argument(
        "--output-as-text", nargs="?", const="true", default="false", help="write protobuf's text form (false)"
    )
    parser.add_argument(
        "--classic",
        action="store_true",
        help="do exactly what the original transform_graph did, its defects included",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print what each transform matched and declined, and why"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run seeded inputs before and after each transform; stop where answers change",
    )
    parser.add_argument("--runtime", help="engine that --verify runs (tensorflow where installed, else reference)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs that --verify runs (0)")
    parser.add_argument(
        "--evaluate-with", choices=("numpy", "tensorflow"), default="numpy", help="what computes constants (numpy)"
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="build a card's architecture with random parameters"
    )
    parser.add_argument("--offline", action="store_true", help="never fetch a model")


def run(args: Namespace) -> int:
    """Read, transform, write, and say what happened."""
    source, target = _ends(args)
    as_text = True if _is_true(args.output_as_text) else None
    recipe = _recipe(args)
    ends = _classic_ends(args) if args.classic else None
    inputs, outputs = (None, None) if ends else (_names(args.inputs), _names(args.outputs))
    model = named_model(args, source, inputs=inputs, outputs=outputs, random_weights=args.random_weights)
    if model.graph is None:
        raise UsageError(
            f"{source} is in an engine's own format, which transforms do not rewrite",
            hint="name the frozen graph that it was made of",
        )
    formats.check_target(target, model.graph)
    recipe = _fitted(recipe, model)
    graph, trace = run_recipe(
        recipe,
        model.graph,
        services=_services(args),
        check=_check(args),
        on_step=lambda step: log(args, f"Applying {step.name}"),
        classic=args.classic,
        ends=ends,
    )
    formats.save(graph, target, as_text=as_text)
    for record in trace.records:
        if record.ignored:
            log(args, f"{record.step.name}: Ignoring error {record.ignored}")
    emit(
        args,
        "quantkit.transform/1",
        _document(model, graph, target, recipe, trace),
        _text(args, model, graph, target, trace),
    )
    return 0


def _ends(args: Namespace) -> tuple[str, Path]:
    """What is read and where it goes, from either form of the command line."""
    sources = [word for word in (args.in_graph, args.model) if word]
    targets = [word for word in (args.out_graph, args.output) if word]
    for found, classic, short in ((sources, "in_graph", "MODEL"), (targets, "out_graph", "-o OUT")):
        if not found:
            raise UsageError(
                f"{classic} graph can't be empty.", hint=f"give --{classic}=FILE, or the short form {short}"
            )
        if len(found) > 1:
            raise UsageError(f"--{classic} and {short} name two files", hint="give one of them")
    return str(Path(sources[0]).expanduser()), Path(targets[0]).expanduser()


def _recipe(args: Namespace) -> Recipe:
    if args.transforms is not None and args.recipe:
        raise UsageError("--transforms and --recipe name two recipes", hint="give one of them")
    if not args.transforms and not args.recipe:
        raise RecipeError(
            "You must specify at least one transform.",
            hint="--recipe inference is a good first recipe; quantkit transforms list names all for --transforms",
        )
    if args.recipe:
        return find_recipe(args.recipe)
    recipe = parse(args.transforms, classic=args.classic)
    if not recipe.steps:
        raise RecipeError("You must specify at least one transform.", hint="quantkit transforms list names them all")
    return recipe


def _classic_ends(args: Namespace) -> tuple[list[str], list[str]]:
    """The names as they are written: the original trimmed nothing, looked nothing up, and guessed nothing."""
    inputs, outputs = (text.split(",") if text else [] for text in (args.inputs, args.outputs))
    return inputs, outputs


def _fitted(recipe: Recipe, model: Model) -> Recipe:
    """The recipe with the card's input shape where a named recipe cuts the graph at an input in its middle."""
    graph = model.graph
    if model.card is None or graph is None or len(model.card.inputs) != 1:
        return recipe
    card_input = model.card.inputs[0]
    if graph.inputs != graph.with_ends([card_input.name], None).inputs:
        return recipe
    shape = {"type": (card_input.dtype.value,), "shape": (",".join(map(str, card_input.shape)),)}
    return Recipe(
        tuple(
            type(step)(step.name, {**shape, **step.options}) if step.name == "strip_unused_nodes" else step
            for step in recipe.steps
        )
    )


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _is_true(word: str) -> bool:
    if word.lower() not in ("true", "false", "1", "0"):
        raise UsageError(f"--output_as_text is true or false, not {word!r}")
    return word.lower() in ("true", "1")


def _services(args: Namespace) -> dict[str, Any]:
    if args.evaluate_with == "numpy":
        return {}
    from quantkit.runtimes.evaluate import evaluate_with_tensorflow

    return {"evaluate": evaluate_with_tensorflow()}


def _check(args: Namespace) -> Any:
    if not args.verify:
        return None
    from quantkit.recipe.verify import Verifier
    from quantkit.runtimes import AUTO, find_runtime, open_session

    # The engine the graph was made for; the others would compare their own converters, too.
    runtime = args.runtime or ("tensorflow" if find_runtime("tensorflow").available().ok else "reference")
    if runtime != AUTO:
        find_runtime(runtime)  # a misspelled one is refused before any work
    return Verifier(lambda graph: open_session(graph, runtime), seed=args.seed)


def _document(model: Model, graph: Graph, target: Path, recipe: Recipe, trace: Trace) -> dict[str, Any]:
    before = model.graph
    return {
        "model": model.name,
        "random_weights": model.has_random_weights,
        "output": str(target),
        "num_bytes": target.stat().st_size,
        "recipe": str(recipe),
        "nodes_before": len(before) if before else 0,
        "nodes_after": len(graph),
        "op_counts": dict(graph.op_counts),
        "inputs": [str(edge) for edge in graph.inputs],
        "outputs": [str(edge) for edge in graph.outputs],
        "steps": trace.to_json(),
    }


def _text(args: Namespace, model: Model, graph: Graph, target: Path, trace: Trace) -> Any:
    def text(console: "Console") -> None:
        if args.explain or args.verify:
            for record in trace.records:
                _print_record(console, record, args)
        before = len(model.graph) if model.graph else 0
        size = (
            f"{target.stat().st_size / 1e6:.1f} MB" if target.stat().st_size > 1e5 else f"{target.stat().st_size} bytes"
        )
        console.print(f"{target}: {before} -> {len(graph)} nodes, {size}", markup=False)
        if model.has_random_weights:
            console.print(MEANINGLESS, markup=False)

    return text


def _print_record(console: "Console", record: Record, args: Namespace) -> None:
    before, after = record.nodes
    line = f"{record.step}: {before} -> {after} nodes, {record.seconds * 1e3:.0f} ms"
    console.print(line + (f"; verified: {record.check}" if record.check else ""), markup=False)
    if not args.explain:
        return
    shown = record.changes if args.verbose else record.changes[:SHOWN_CHANGES]
    for change in shown:
        console.print(f"    did  {change}", markup=False)
    if len(record.changes) > len(shown):
        console.print(f"    did  {len(record.changes) - len(shown)} more (--verbose lists them)", markup=False)
    for skip in record.skips:
        console.print(f"    left {skip}", markup=False)
