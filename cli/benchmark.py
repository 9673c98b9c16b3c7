"""``quantkit benchmark``: models and engines measured side by side."""

import json
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantkit.benchmark import Benchmark, Interrupted, benchmark
from quantkit.benchmark.comparison import Comparison
from quantkit.benchmark.rounds import Progress
from quantkit.errors import CheckError, QuantkitError, UsageError
from quantkit.formats.files import check_target, write_whole

from ._app import INTERRUPTED
from ._arguments import (
    add_endpoints,
    add_offline,
    add_random_weights,
    add_threads,
    parse_natural,
    parse_positive,
    parse_precisions,
    parse_ratio,
    parse_seconds,
)
from ._render import console, emit, log

EXAMPLES = (
    "quantkit benchmark digits",
    "quantkit benchmark digits@tensorflow digits@reference --save digits.json",
    "quantkit benchmark digits@openvino --precision float32,bfloat16",
    "quantkit benchmark graph.pb folded.pb --runtime tensorflow --intra-op 1 --inter-op 2 --fail-below 1.0",
)
# The flag of each environment variable that an OpenMP runtime reads as it loads.
VARIABLES = {
    "kmp_affinity": "KMP_AFFINITY",
    "kmp_blocktime": "KMP_BLOCKTIME",
    "kmp_settings": "KMP_SETTINGS",
    "omp_num_threads": "OMP_NUM_THREADS",
}


def add_arguments(parser: ArgumentParser) -> None:
    """What to measure, how it runs, how much of it, and what becomes of the numbers."""
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="model file or name of a card; FILE@RUNTIME chooses its engine"
    )
    parser.add_argument("--runtime", default="auto", help="engine of models that name none: auto, or a name (auto)")
    add_endpoints(parser)
    parser.add_argument("--batch", type=parse_positive, help="size of a first dimension that a model leaves open (1)")
    add_threads(parser)
    parser.add_argument(
        "--precision",
        type=parse_precisions,
        default=("float32",),
        help="arithmetic the engine may use; several, as float32,bfloat16, give each model a row for each (float32)",
    )
    parser.add_argument("--cpus", type=_numbers, default=(), help="processors to bind to, as 0,1 or 0-3 (all)")
    parser.add_argument("--device", default="cpu", help="cpu, gpu or gpu:N (cpu)")
    parser.add_argument("--kmp-affinity", help="set KMP_AFFINITY before the engine loads")
    parser.add_argument("--kmp-blocktime", help="set KMP_BLOCKTIME: milliseconds that idle OpenMP threads spin")
    parser.add_argument("--kmp-settings", help="set KMP_SETTINGS: with 1, OpenMP prints its settings")
    parser.add_argument("--omp-num-threads", help="set OMP_NUM_THREADS before the engine loads")
    parser.add_argument(
        "--runs", type=parse_positive, help="timed calls of each model (about two seconds, at least 60)"
    )
    parser.add_argument("--warmup", type=parse_natural, help="calls before them (until the times stand still)")
    parser.add_argument("--seed", type=int, default=0, help="of the data and of the order of the rounds (0)")
    parser.add_argument("--time-budget", type=parse_seconds, default=600.0, help="for everything, as 90s or 10m (10m)")
    parser.add_argument("--log-placement", action="store_true", help="tell on which device operations ran")
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="write everything, raw samples included")
    parser.add_argument("--fail-below", type=parse_ratio, metavar="RATIO", help="exit 1 if a speed-up is below this")
    add_random_weights(parser)
    add_offline(parser)


def run(args: Namespace) -> int:
    """Measure, print, save, check."""
    if args.save is not None:
        check_target(args.save)
    if args.fail_below is not None and len(args.models) == 1:
        raise UsageError("--fail-below compares with the first model, and only one is named", hint="name two or more")
    try:
        measured = _measure(args)
    except Interrupted as interrupted:
        _deliver(args, interrupted.benchmark)
        return INTERRUPTED
    _deliver(args, measured)
    _check(args, measured)
    return _exit_code(measured)


def _measure(args: Namespace) -> Benchmark:
    with shown_progress(args) as progress:
        return benchmark(
            args.models,
            args.runtime,
            intra_op=args.intra_op,
            inter_op=args.inter_op,
            device=args.device,
            precision=args.precision,
            cpus=args.cpus,
            environment={
                name: getattr(args, flag) for flag, name in VARIABLES.items() if getattr(args, flag) is not None
            },
            batch=args.batch,
            inputs=args.inputs,
            outputs=args.outputs,
            runs=args.runs,
            warmup=args.warmup,
            seed=args.seed,
            time_budget=args.time_budget,
            log_placement=args.log_placement,
            random_weights=args.random_weights,
            offline=args.offline,
            progress=progress,
        )


@contextmanager
def shown_progress(args: Namespace) -> Iterator[Progress]:
    """A bar on stderr; lines where stderr is no terminal and ``--verbose`` asks for them."""
    from rich.progress import Progress as Bar

    if not sys.stderr.isatty() or args.quiet:
        yield (lambda message, share: log(args, message)) if args.verbose else (lambda message, share: None)
        return
    with Bar(console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda message, share: bar.update(task, description=message, completed=share)


def _deliver(args: Namespace, measured: Benchmark) -> None:
    if args.save is not None:
        text = json.dumps(measured.to_json(), indent=1).encode()
        write_whole(args.save, lambda file: file.write(text))
    for row in measured.rows:
        if row.said.strip() and (args.verbose or args.kmp_settings is not None):
            log(args, f"{row.label} in {row.runtime} said:\n{row.said.rstrip()}")
    placement = _placement_lines(measured, args.verbose) if args.log_placement else []
    text_lines = "\n".join([str(measured), *placement])
    emit(
        args,
        "quantkit.benchmark/1",
        measured.to_json(),
        lambda page: page.print(text_lines, markup=False, soft_wrap=True),
    )


def _placement_lines(measured: Benchmark, is_verbose: bool) -> list[str]:
    """Operations by device; all of them with ``--verbose``."""
    lines = []
    for row in measured.rows:
        if row.measurement is None:
            continue
        placement = row.measurement.context.placement
        where = f"{row.label} in {row.measurement.context.runtime}"
        counts = Counter(line.rpartition(": ")[2] for line in placement)
        lines.append(f"placement: {where}: " + ", ".join(f"{count} on {device}" for device, count in counts.items()))
        if is_verbose:
            lines.extend(f"  {line}" for line in placement)
    return lines


def _check(args: Namespace, measured: Benchmark) -> None:
    """Hold every speed-up to ``--fail-below``.

    Raises:
        CheckError: one is smaller, or could not be measured.
    """
    if args.fail_below is None or not measured.measurements:
        return
    rows = list(zip(measured.rows, measured.comparisons, strict=True))
    for row, comparison in rows[1:]:
        if not isinstance(comparison, Comparison):
            raise CheckError(
                f"{row.label} in {row.runtime} has no speed-up to hold to {args.fail_below:g}",
                hint="its row says why; leave --fail-below out, or measure what runs here",
            )
        if comparison.ratio < args.fail_below:
            raise CheckError(
                f"{row.label} in {row.runtime} is {comparison.ratio:.2f}x as fast as the first "
                f"({comparison.low:.2f} to {comparison.high:.2f}), below {args.fail_below:g}",
                hint="--runs 300 narrows the interval; quantkit doctor --measure tries settings of threads",
            )


def _exit_code(measured: Benchmark) -> int:
    """What could not run is told by its row if anything could; a broken model is an error all the same."""
    if not measured.measurements:
        first = measured.failures[0]
        error = QuantkitError(f"no candidate could be measured: {first.reason}", first.hint)
        error.exit_code = first.exit_code
        raise error
    return next((failure.exit_code for failure in measured.failures if failure.exit_code in (2, 3)), 0)


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers and ranges: ``0,2-3`` is 0, 2 and 3."""
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not ends:
            raise ArgumentTypeError(f"{part!r} is not a processor's number, nor a range of them such as 0-3")
        found.extend(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return tuple(found)
