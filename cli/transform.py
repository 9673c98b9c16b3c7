"""``quantkit transform``: the classic Graph Transform Tool call, and its short form."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.errors import UsageError
from quantkit.ir.graph import Graph
from quantkit.model.exporters.files import KINDS, OutputFile
from quantkit.recipes import Recipe, Trace
from quantkit.recipes import run as run_recipe
from quantkit.recipes.named import RECIPES
from quantkit.recipes.trace import STOP

from ._account import Account, trace_path
from ._arguments import add_model_flags
from ._loading import named_model
from ._recipe import chosen_recipe, may_shrink, suited
from ._render import emit, log
from ._verification import add_verification, verifier

EXAMPLES = (
    "quantkit transform digits -o digits_folded.pb --recipe inference --explain",
    "quantkit transform --in_graph=graph.pb --out_graph=small.pb --inputs=Mul --outputs=softmax "
    "--transforms='strip_unused_nodes fold_constants quantize_weights'",
    "quantkit transform exported/ -o model.onnx --signature serving_default",
)


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
    parser.add_argument("--transforms", help="transforms with their options, in order")
    parser.add_argument(
        "--recipe", help=f"a named recipe ({', '.join(RECIPES)}) or a .toml file, instead of --transforms"
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
    parser.add_argument(
        "--evaluate-with", choices=("numpy", "tensorflow"), default="numpy", help="what computes constants (numpy)"
    )
    add_model_flags(parser, parse_endpoints=str)


def run(args: Namespace) -> int:
    """Read, transform, write, and say what happened."""
    source, path = _ends(args)
    target = _target(args, path)
    trace_file = trace_path(args)
    recipe = chosen_recipe(args, converts=_converts(args, source, target))
    ends = _classic_ends(args) if args.classic else None
    inputs, outputs = (None, None) if ends else _named_ends(args, recipe)
    model = named_model(args, source, inputs=inputs, outputs=outputs, random_weights=args.random_weights)
    before = model.graph if target.kind == "onnx" else as_tensorflow(model.graph)
    recipe = suited(args, recipe, model, before)
    target.check(before, may_shrink=may_shrink(recipe))
    check = verifier(args, model, before)
    after, trace = _runner(ends)(
        recipe,
        before,
        services=_services(args),
        check=check,
        on_mismatch=args.on_mismatch or STOP,
        on_step=lambda step: log(args, f"Applying {step.name}"),
    )
    signature = model.signature.following(before, after) if model.signature else None
    account = Account(model, recipe, before, after, trace, check, target.path, target.write(after, signature))
    for record in trace.records:
        if record.ignored:
            log(args, f"{record.step.name}: Ignoring error {record.ignored}")
        if record.undone:
            log(args, f"{record.step.name}: undone: {record.undone}")
    if trace_file:
        account.write_trace(trace_file)
    emit(args, "quantkit.transform/1", account.to_json(), lambda console: account.print(console, args))
    return 0


def _runner(classic_ends: tuple[list[str], list[str]] | None) -> Callable[..., tuple[Graph, Trace]]:
    """The function that runs a recipe: with classic names of inputs and outputs, that of the classic tool."""
    if classic_ends is None:
        return run_recipe
    from quantkit.compat import run_classic

    return partial(run_classic, ends=classic_ends)


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


def _target(args: Namespace, path: str) -> OutputFile:
    """Where the graph goes; as the classic tool had it, ``--out-graph`` takes any name for a GraphDef."""
    ending = Path(path).suffix.lower()
    any_name = args.out_graph and ending not in formats.SUFFIXES and not path.endswith("/") and not Path(path).is_dir()
    kind = args.format or ("graphdef" if any_name else None)
    target = OutputFile.of(path, kind, as_text=_is_true(args.output_as_text))
    if target.is_guess:
        log(args, f"{target.path.name}: {ending} names no format: writing {formats.KINDS[target.kind]}")
    return target


def _converts(args: Namespace, source: str, target: OutputFile) -> bool:
    """Whether writing what was read is work enough: it is frozen, or becomes another format."""
    is_graphdef = Path(source).suffix in ("", ".pb", ".pbtxt") and not Path(source).is_dir()
    return bool(not is_graphdef or args.checkpoint or not target.kind.startswith("graphdef"))


def _classic_ends(args: Namespace) -> tuple[list[str], list[str]]:
    """The names as they are written: the original trimmed nothing, looked nothing up, and guessed nothing."""
    inputs, outputs = (text.split(",") if text else [] for text in (args.inputs, args.outputs))
    return inputs, outputs


def _named_ends(args: Namespace, recipe: Recipe) -> tuple[list[str] | None, list[str] | None]:
    """Inputs and outputs as the command line names them, or else the recipe's file; None: nobody does."""
    inputs, outputs = (
        list(names) or None if text is None else [name.strip() for name in text.split(",") if name.strip()]
        for text, names in ((args.inputs, recipe.inputs), (args.outputs, recipe.outputs))
    )
    return inputs, outputs


def _is_true(word: str) -> bool:
    if word.lower() not in ("true", "false", "1", "0"):
        raise UsageError(
            f"--output_as_text is true or false, not {word!r}", hint="leave it out, or give it without a value"
        )
    return word.lower() in ("true", "1")


def _services(args: Namespace) -> dict[str, Any]:
    from quantkit.model.importers.checkpoint import read_variable

    if args.evaluate_with == "numpy":
        return {"read_variable": read_variable}
    from quantkit.runtimes.tensorflow_constants import evaluate_with_tensorflow

    return {"read_variable": read_variable, "evaluate": evaluate_with_tensorflow()}
