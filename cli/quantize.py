"""``quantkit quantize``: calibrate, convert to 8 bits, and say what came of it."""

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from quantkit import formats
from quantkit.data import KINDS
from quantkit.errors import CheckError, UsageError
from quantkit.model import RANDOM_WEIGHTS_NOTE, Model
from quantkit.quantization import Scheme
from quantkit.quantization.census import FLOAT, census
from quantkit.quantization.fallback import Fallback
from quantkit.quantization.targets import find_target, targets

from ._answers import Answers
from ._arguments import (
    add_endpoints,
    add_normalization,
    add_offline,
    add_size,
    parse_fraction,
    parse_natural,
    parse_positive,
    parse_seconds,
)
from ._calibration import chosen_pictures, chosen_ranges, float_answers
from ._conversion import Conversion
from ._fallback import layers_to_keep
from ._judging import compared, racing, timed
from ._next import Next
from ._preparation import float_graph
from ._render import emit, log
from ._scheme import chosen_plan, chosen_scheme, save_plan
from ._verdict import Verdict

EXAMPLES = (
    "quantkit quantize digits -o digits.int8.onnx --calibration assets/digits_heldout.npz --target onnx",
    "quantkit quantize graph.pb -o fast.pb --calibration pictures/ --target tensorflow --save-ranges graph.ranges.json",
    "quantkit quantize digits -o digits.small.onnx --weights-only",
    "quantkit quantize graph.pb -o again.onnx --ranges graph.ranges.json --scheme scheme.toml",
)
PICTURES = 100
# Enough to tell twice as fast from as fast; quantkit benchmark measures more closely.
RUNS = 12


def add_arguments(parser: ArgumentParser) -> None:
    """What to quantize, with which data, into what, and how it is judged."""
    parser.add_argument("model", metavar="MODEL", help="model file, SavedModel folder, or name of a card")
    parser.add_argument("-o", "--output", required=True, help="file to write")
    parser.add_argument("--calibration", help=f"pictures: {KINDS}")
    parser.add_argument("--target", choices=sorted(targets()), help="form of the 8-bit graph (the scheme's, or onnx)")
    parser.add_argument("--scheme", help="TOML file: what becomes 8 bits, and how (what suits the target)")
    parser.add_argument(
        "--weights-only", action="store_true", help="store weights in 8 bits and compute in float; takes no pictures"
    )
    parser.add_argument(
        "--pixels",
        action="store_true",
        help="let the result take uint8 pixels: what prepares them goes into its layers",
    )
    parser.add_argument("--observer", help="how ranges are chosen, such as min_max or percentile(99.9) (the scheme's)")
    parser.add_argument("--reduce-range", action="store_true", help="7-bit weights, for processors without VNNI (auto)")
    parser.add_argument("--ranges", help="ranges of an earlier calibration, instead of --calibration")
    parser.add_argument("--save-ranges", help="file to write the ranges to")
    parser.add_argument("--plan", help="such a file, perhaps edited, instead of deciding anew; it holds its scheme")
    parser.add_argument("--save-plan", help="file to write to what becomes 8 bits, and why the rest does not")
    parser.add_argument(
        "--limit", type=parse_positive, default=PICTURES, help=f"pictures to calibrate with ({PICTURES})"
    )
    parser.add_argument(
        "--held-out", help="other pictures to compare with float on (those of --calibration; for --max-drop the next)"
    )
    parser.add_argument("--labels", help="what the numbers mean: a list, or a file of the 2015 pair (the model's own)")
    parser.add_argument(
        "--recipe", help="prepare the float graph with this recipe (the card's, or inference; rewrites)"
    )
    add_endpoints(parser)
    add_size(parser)
    add_normalization(parser)
    parser.add_argument("--runtime", default="auto", help="engine that calibrates (the fastest that can)")
    parser.add_argument(
        "--runs", type=parse_natural, default=RUNS, help=f"timed calls for the speed-up; 0: none ({RUNS})"
    )
    parser.add_argument(
        "--max-drop",
        type=parse_fraction,
        help="keep layers in float until no more is lost than this part, e.g. 0.01: of top-1 where pictures have "
        "labels, else of the agreement with float",
    )
    parser.add_argument(
        "--fallback",
        choices=(FLOAT, "bfloat16"),
        default=FLOAT,
        help="what --max-drop keeps layers in: bfloat16 for --target tensorflow, where the processor has it (float)",
    )
    parser.add_argument("--time-budget", type=parse_seconds, default=600.0, help="for --max-drop, as 90s or 10m (10m)")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Prepare, calibrate, convert, judge."""
    scheme, output = chosen_scheme(args), Path(args.output).expanduser()
    _check_output(scheme, output)
    _check_ranges(args, scheme)
    _check_fallback(args, scheme)
    data, held_out = chosen_pictures(args)
    model, graph = float_graph(args, scheme, data or held_out)
    if model.has_random_weights:
        log(args, f"{model.name}: {RANDOM_WEIGHTS_NOTE}")
    plan = chosen_plan(args, graph, scheme)
    ranges, answers = chosen_ranges(args, model, graph, plan, data, output)
    if held_out is not None:
        answers = float_answers(args, model, graph, held_out)
    conversion = Conversion(graph, plan, ranges, args.fallback)
    found = None if args.max_drop is None else layers_to_keep(args, conversion, answers, output)
    if found is not None:
        conversion = conversion.keeping(found.keep_float)
        save_plan(args, graph, conversion.plan)
    verdict = _delivered(args, model, conversion, answers, found, output)
    emit(args, "quantkit.quantize/1", verdict.to_json(), verdict.print)
    if found is not None and not found.is_reached:
        raise CheckError(
            f"the drop is {found.loss.drop:.4f}, and --max-drop is {args.max_drop:g}",
            hint="give --time-budget more, or quantize fewer layers with keep_float in a --scheme",
        )
    return 0


def _check_output(scheme: Scheme, output: Path) -> None:
    formats.check_target(output)
    suffixes = find_target(scheme.target).suffixes
    if output.suffix.lower() not in suffixes:
        others = [f"--target {one.name}" for one in targets().values() if output.suffix.lower() in one.suffixes]
        raise UsageError(
            f"{output.name} can not hold the target {scheme.target}",
            hint=f"name a file that ends in {' or '.join(suffixes)}"
            + (f", or give {' or '.join(others)}" if others else ""),
        )


def _check_ranges(args: Namespace, scheme: Scheme) -> None:
    """See that there is something to choose ranges by, where there are ranges to choose.

    Raises:
        UsageError: there is nothing, or there is something where nothing is needed.
    """
    if args.ranges and args.calibration:
        raise UsageError("--ranges and --calibration both say where ranges come from", hint="give one of them")
    if scheme.weights_only:
        for flag in ("calibration", "ranges", "save_ranges", "max_drop"):
            if getattr(args, flag) is not None:
                raise UsageError(
                    f"--{flag.replace('_', '-')} is about ranges, and weights alone have none",
                    hint="leave it out; --held-out PICTURES compares the answers with float",
                )
    elif not args.ranges and not args.calibration:
        raise UsageError(
            "there are no pictures to calibrate with",
            hint="give --calibration PICTURES, or --ranges FILE; --weights-only needs none",
        )


def _check_fallback(args: Namespace, scheme: Scheme) -> None:
    if args.max_drop is not None and args.ranges and not args.held_out:
        raise UsageError("--max-drop needs pictures to measure the drop with", hint="give --held-out PICTURES")
    if args.fallback != FLOAT and scheme.target != "tensorflow":
        raise UsageError(
            f"--fallback {args.fallback} is for --target tensorflow",
            hint=f"engines of {scheme.target} files choose it as they load: quantkit benchmark --precision bfloat16",
        )


def _delivered(
    args: Namespace, model: Model, conversion: Conversion, answers: Answers, found: Fallback | None, output: Path
) -> Verdict:
    """Write the 8-bit graph, and judge it."""
    graph, plan, ranges = conversion.graph, conversion.plan, conversion.ranges
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        # What has to be checked first is written elsewhere first: it opens while the check runs.
        file = Path(folder) / output.name if conversion.is_checked else output
        conversion.write(file)
        with racing(conversion, file, args.runs, Path(folder)) as finish:
            if conversion.is_checked:
                conversion.check()
                conversion.write(output)
            verdict = Verdict(
                model.name,
                output,
                plan,
                ranges,
                census(graph, plan, ranges, conversion.quantized),
                float_bytes=sum(node.value.num_bytes for node in graph.nodes.values() if node.is_constant),
                fallback=found,
                kept_in=args.fallback,
                next=Next.after(args, model.name, output),
            )
            return timed(compared(verdict, conversion, answers), finish)
