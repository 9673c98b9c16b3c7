"""``quantkit transform``: rewrite a graph with a recipe; also the call of the 2016 Graph Transform Tool."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.arguments import expand_user
from quantkit.errors import UsageError
from quantkit.model.options import ShapeOptions
from quantkit.progress import Progress
from quantkit.recipes import transform
from quantkit.recipes.named import find_recipe, parse_transforms
from quantkit.recipes.workflow import TransformOptions, VerificationOptions

from ._arguments import add_boolean, add_model_flags, add_options, options_of, parse_names, parse_tolerance
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit transform digits -o digits_folded.pb --recipe inference --explain",
    "quantkit transform --in_graph=graph.pb --out_graph=small.pb --inputs=Mul --outputs=softmax "
    "--transforms='strip_unused_nodes fold_constants quantize_weights'",
    "quantkit transform exported/ -o model.onnx --signature serving_default",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command, and those of the 2016 tool."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="model file, SavedModel folder, or model card name")
    add_options(parser, TransformOptions, since="output", until="format")
    parser.add_argument("--in-graph", metavar="FILE", help="the same as MODEL, in the call of the 2016 tool")
    parser.add_argument("--out-graph", metavar="FILE", help="the same as --output, with any suffix for a GraphDef")
    add_options(parser, TransformOptions, since="format", until="as_text")
    add_boolean(parser, "--output-as-text", "write the text form of a GraphDef (default: false)")
    add_options(parser, TransformOptions, since="opset", until="trace")
    add_options(parser, TransformOptions, since="recipe", until="output")
    parser.add_argument("--transforms", help="transforms with their options, in order, instead of --recipe")
    parser.add_argument(
        "--classic", action="store_true", help="apply the transforms of the 2016 tool, defects included"
    )
    parser.add_argument(
        "--explain", action="store_true", help="print the changes and skips of each transform, with reasons"
    )
    add_options(parser, TransformOptions, since="trace", until="plugins")
    flags = parser.add_argument_group("verification")
    add_options(flags, VerificationOptions, tolerance={"type": parse_tolerance})
    add_options(parser, ShapeOptions)
    add_model_flags(parser, parse_endpoints=str)


def run(args: Namespace) -> int:
    """Rewrite the model, write it, and print the trace."""
    source, path = _paths(args)
    if args.transforms is not None and args.recipe:
        raise UsageError("--transforms and --recipe name two recipes", hint="give one of them")
    if (args.recipe or "").endswith(".toml"):
        formats.check_distinct({"--output": path, "--trace": args.trace}, {"--recipe": args.recipe})
    with show_progress(args) as show:

        def on_progress(progress: Progress) -> None:
            # The call of the 2016 tool prints each transform, as that tool does.
            if progress.step and (args.verbose or args.in_graph):
                log(args, f"Applying {progress.step}")
            show(progress)

        options: dict[str, Any] = {
            **options_of(transform, args, "model", "recipe", "inputs", "outputs"),
            "output": path,
            "format": args.format or _implied_format(args, path),
            "as_text": args.output_as_text,
            "on_progress": on_progress,
            "on_message": lambda message: log(args, message),
        }
        if args.classic:
            from quantkit.compat import transform_classic

            if options.pop("input_shapes"):
                raise UsageError("--input-shape does not apply to --classic", hint="omit one of them")
            recipe = find_recipe(args.recipe) if args.recipe else args.transforms
            model = transform_classic(source, recipe, args.inputs, args.outputs, **options)
        else:
            inputs, outputs = (text if text is None else parse_names(text) for text in (args.inputs, args.outputs))
            steps = args.transforms if args.transforms is None else parse_transforms(args.transforms)
            recipe = find_recipe(args.recipe) if args.recipe else steps
            model = transform(source, recipe, inputs=inputs, outputs=outputs, **options)
    trace = model.trace
    assert trace is not None
    emit(args, trace, trace.text(explain=args.explain, verbose=args.verbose, quiet=args.quiet))
    return 0


def _paths(args: Namespace) -> tuple[str, str]:
    """Return the input and the output of either form of the command line."""
    sources = [path for path in (args.in_graph, args.model) if path]
    outputs = [path for path in (args.out_graph, args.output) if path]
    for paths, classic, short in ((sources, "in_graph", "MODEL"), (outputs, "out_graph", "-o OUT")):
        if not paths:
            raise UsageError(
                f"{classic} graph can't be empty.", hint=f"give --{classic}=FILE, or the short form {short}"
            )
        if len(paths) > 1:
            raise UsageError(f"--{classic} and {short} name two files", hint="give one of them")
    return str(expand_user(sources[0])), outputs[0]


def _implied_format(args: Namespace, path: str) -> str | None:
    """Return the format of ``--out-graph`` with an unknown suffix, a GraphDef as in the 2016 tool; None otherwise."""
    is_folder = path.endswith("/") or Path(path).is_dir()
    is_known = is_folder or Path(path).suffix.lower() in formats.SUFFIXES
    return "graphdef" if args.out_graph and not is_known else None
