"""``quantkit transform``: the classic Graph Transform Tool call, and its short form."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit import formats
from quantkit.dialects.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import RecipeError, UsageError
from quantkit.ir.graph import Graph
from quantkit.model.loading import MEANINGLESS, Model
from quantkit.model.saving import KINDS, Target
from quantkit.recipe import Recipe, Record, Trace, parse
from quantkit.recipe import run as run_recipe
from quantkit.recipe.named import NAMED, find_recipe
from quantkit.recipe.trace import STOP
from quantkit.transforms.registry import REGISTRY, find, names_for

from ._arguments import add_saved_model
from ._loading import add_plugins, load_plugins, named_model
from ._render import emit, log
from ._verification import add_verification, verifier

if TYPE_CHECKING:
    from rich.console import Console

    from quantkit.recipe.verify import Verifier

EXAMPLES = (
    "quantkit transform digits -o digits_folded.pb --recipe inference --explain",
    "quantkit transform --in_graph=graph.pb --out_graph=small.pb --inputs=Mul --outputs=softmax "
    "--transforms='strip_unused_nodes fold_constants quantize_weights'",
    "quantkit transform exported/ -o model.onnx --signature serving_default",
)
# Lines of changes that --explain prints for one step before it only counts them; --verbose prints all.
SHOWN_CHANGES = 8
# What makes the constants that the outputs need take less room.
SHRINKING = frozenset({"convert_precision", "extract_subgraph", "quantize_nodes", "quantize_weights"})


def add_arguments(parser: ArgumentParser) -> None:
    """The flags of the classic tool, and ours."""
    parser.add_argument("model", nargs="?", help="model file, SavedModel folder, or name of a card (short form)")
    parser.add_argument(
        "-o",
        "--output",
        help="what to write: .pb, .pbtxt, .onnx, .tflite, or a SavedModel folder: NEW/ or an empty one (short form)",
    )
    parser.add_argument("--in-graph", help="GraphDef file to read, binary or text")
    parser.add_argument("--out-graph", help="GraphDef file to write")
    parser.add_argument("--format", choices=KINDS, help="what to write, whatever the ending is (what the ending says)")
    parser.add_argument(
        "--checkpoint", help="prefix of the files that hold the variables of a graph that is not frozen"
    )
    add_saved_model(parser)
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
    add_verification(parser)
    parser.add_argument(
        "--trace", help="file to write what happened to: .json, or .html, a page that shows the graph before and after"
    )
    add_plugins(parser)
    parser.add_argument(
        "--evaluate-with", choices=("numpy", "tensorflow"), default="numpy", help="what computes constants (numpy)"
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="build a card's architecture with random parameters"
    )
    parser.add_argument("--offline", action="store_true", help="never fetch a model")


def run(args: Namespace) -> int:
    """Read, transform, write, and say what happened."""
    source, path = _ends(args)
    target = Target.of(path, args.format, as_text=_is_true(args.output_as_text))
    trace_file = _trace_file(args)
    load_plugins(args)
    recipe = _recipe(args, converts=_converts(args, source, target))
    ends = _classic_ends(args) if args.classic else None
    inputs, outputs = (None, None) if ends else _named_ends(args, recipe)
    model = named_model(args, source, inputs=inputs, outputs=outputs, random_weights=args.random_weights)
    before = model.rewritable if target.kind == "onnx" else as_tensorflow(model.rewritable)
    model = replace(model, graph=before)
    recipe = _fitted(_known(args, recipe, before), model)
    target.check(before, may_shrink=_may_shrink(recipe))
    check = verifier(args, model)
    graph, trace = run_recipe(
        recipe,
        before,
        services=_services(args),
        check=check,
        on_mismatch=args.on_mismatch or STOP,
        on_step=lambda step: log(args, f"Applying {step.name}"),
        classic=args.classic,
        ends=ends,
    )
    num_bytes = target.write(graph)
    for record in trace.records:
        if record.ignored:
            log(args, f"{record.step.name}: Ignoring error {record.ignored}")
        if record.undone:
            log(args, f"{record.step.name}: undone: {record.undone}")
    if trace_file:
        _write_trace(trace_file, model, recipe, graph, trace)
    emit(
        args,
        "quantkit.transform/1",
        {**_document(model, graph, recipe, trace, check), "output": str(target.path), "num_bytes": num_bytes},
        _text(args, model, graph, (target.path, num_bytes), trace, check),
    )
    return 0


def _ends(args: Namespace) -> tuple[str, str]:
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
    return str(Path(sources[0]).expanduser()), targets[0]


def _converts(args: Namespace, source: str, target: Target) -> bool:
    """Whether writing what was read is work enough: it is frozen, or becomes another format."""
    is_graphdef = Path(source).suffix in ("", ".pb", ".pbtxt") and not Path(source).is_dir()
    return bool(not is_graphdef or args.checkpoint or not target.kind.startswith("graphdef"))


def _known(args: Namespace, recipe: Recipe, graph: Graph) -> Recipe:
    """A named recipe without the steps that do not know such graphs; one that was written out stays as it is."""
    known = names_for(graph.dialect)
    left_out = [step.name for step in recipe.steps if step.name not in known]
    if args.recipe not in NAMED or not left_out:
        return recipe
    log(args, f"left out of {args.recipe}: {', '.join(left_out)}: they do not rewrite graphs of {graph.dialect}")
    return Recipe(tuple(step for step in recipe.steps if step.name in known))


def _may_shrink(recipe: Recipe) -> bool:
    """Whether weights may take less room afterwards; what plugins do is not known."""
    names = {step.name for step in recipe.steps if step.name in REGISTRY}
    return any(name in SHRINKING or not find(name).function.__module__.startswith("quantkit.") for name in names)


def _recipe(args: Namespace, *, converts: bool) -> Recipe:
    if args.transforms is not None and args.recipe:
        raise UsageError("--transforms and --recipe name two recipes", hint="give one of them")
    if converts and args.transforms is None and not args.recipe:
        return Recipe(())
    if not args.transforms and not args.recipe:
        raise RecipeError(
            "You must specify at least one transform.",
            hint="--recipe inference is a good first recipe; quantkit transforms list names all for --transforms",
        )
    if args.recipe:
        return find_recipe(args.recipe)
    try:
        recipe = parse(args.transforms, classic=args.classic)
    except RecipeError as error:
        if args.classic:
            error.message = f"Failed to parse --transform argument, error was {error.message}"
        raise
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


def _named_ends(args: Namespace, recipe: Recipe) -> tuple[list[str] | None, list[str] | None]:
    """Inputs and outputs as the command line names them, or else the recipe's file; None: nobody does."""
    inputs, outputs = (
        list(names) or None if text is None else [name.strip() for name in text.split(",") if name.strip()]
        for text, names in ((args.inputs, recipe.inputs), (args.outputs, recipe.outputs))
    )
    return inputs, outputs


def _is_true(word: str) -> bool:
    if word.lower() not in ("true", "false", "1", "0"):
        raise UsageError(f"--output_as_text is true or false, not {word!r}")
    return word.lower() in ("true", "1")


def _services(args: Namespace) -> dict[str, Any]:
    from quantkit.runtimes.checkpoint import read_variable

    if args.evaluate_with == "numpy":
        return {"read_variable": read_variable}
    from quantkit.runtimes.evaluate import evaluate_with_tensorflow

    return {"read_variable": read_variable, "evaluate": evaluate_with_tensorflow()}


def _trace_file(args: Namespace) -> Path | None:
    """Where the trace goes; refused before any work where it can not be written."""
    if not args.trace:
        return None
    path = Path(args.trace).expanduser()
    if path.suffix.lower() not in (".json", ".html"):
        raise UsageError(f"--trace {path.name} is no form of a trace", hint="name a file that ends in .json or .html")
    formats.check_target(path)
    return path


def _write_trace(path: Path, model: Model, recipe: Recipe, graph: Graph, trace: Trace) -> None:
    from quantkit.recipe.page import html_page
    from quantkit.recipe.trace_file import trace_document

    before = model.graph or graph
    document = trace_document(model.name, recipe, before, graph, trace)
    if path.suffix.lower() == ".html":
        text = html_page(document, before, graph)
    else:
        text = json.dumps(document, indent=1) + "\n"
    formats.files.write_whole(path, lambda file: file.write(text.encode()))


def _document(model: Model, graph: Graph, recipe: Recipe, trace: Trace, check: "Verifier | None") -> dict[str, Any]:
    before = model.graph
    return {
        "model": model.name,
        "random_weights": model.has_random_weights,
        "recipe": str(recipe),
        "nodes_before": len(before) if before else 0,
        "nodes_after": len(graph),
        "op_counts": dict(graph.op_counts),
        "inputs": [str(edge) for edge in graph.inputs],
        "outputs": [str(edge) for edge in graph.outputs],
        "steps": trace.to_json(),
        "verification": check.to_json() if check else None,
    }


def _text(
    args: Namespace, model: Model, graph: Graph, written: tuple[Path, int], trace: Trace, check: "Verifier | None"
) -> Callable[["Console"], None]:
    def text(console: "Console") -> None:
        if args.explain or check:
            for record in trace.records:
                _print_record(console, record, args)
        if check:
            console.print(f"verified {check.terms}", markup=False)
        before = len(model.graph) if model.graph else 0
        path, num_bytes = written
        size = f"{num_bytes / 1e6:.1f} MB" if num_bytes > 1e5 else f"{num_bytes} bytes"
        console.print(f"{path}: {before} -> {len(graph)} nodes, {size}", markup=False)
        if model.has_random_weights:
            console.print(MEANINGLESS, markup=False)

    return text


def _print_record(console: "Console", record: Record, args: Namespace) -> None:
    before, after = record.nodes
    line = f"{record.step}: {before} -> {after} nodes, {record.seconds * 1e3:.0f} ms"
    line += f"; verified: {record.check}" if record.check else f"; undone: {record.undone}" if record.undone else ""
    console.print(line, markup=False)
    if not args.explain:
        return
    shown = record.changes if args.verbose else record.changes[:SHOWN_CHANGES]
    for change in shown:
        console.print(f"    did  {change}", markup=False)
    if len(record.changes) > len(shown):
        console.print(f"    did  {len(record.changes) - len(shown)} more (--verbose lists them)", markup=False)
    for skip in record.skips:
        console.print(f"    left {skip}", markup=False)
