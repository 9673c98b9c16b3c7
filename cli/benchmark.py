"""``quantkit benchmark``: latency of models and runtimes, measured side by side."""

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantkit.arguments import without_none
from quantkit.benchmark import Benchmark, BenchmarkInterrupted, NotMeasuredError, benchmark, profile_layers
from quantkit.benchmark.report_page import save_page, save_page_with_layers
from quantkit.benchmark.sampling.selection import CandidateOptions
from quantkit.benchmark.sweep.workflow import SweepOptions
from quantkit.benchmark.workflow import SamplingArguments
from quantkit.errors import UsageError
from quantkit.formats import check_outputs

from ._app import INTERRUPTED
from ._arguments import (
    add_model_flags,
    add_options,
    options_of,
    parse_interval_width,
    parse_precisions,
    parse_ratio,
)
from ._render import emit, log, show_progress

EXAMPLES = (
    "quantkit benchmark digits",
    "quantkit benchmark digits@tensorflow digits@reference --save digits.json",
    "quantkit benchmark digits.json --html digits.svg",
    "quantkit benchmark digits@tensorflow --baseline digits.json --fail-below 0.97",
    "quantkit benchmark digits@openvino --precision float32,bfloat16",
    "quantkit benchmark digits@onnxruntime --sweep --time-budget 60s",
    "quantkit benchmark digits@onnxruntime digits@openvino --profile",
    "quantkit benchmark graph.pb folded.pb --runtime tensorflow --intra-op 1 --inter-op 2 --fail-below 1.0",
)
# Largest number of a CPU that Linux can have.
MAX_CPU = 8191
# Flags of the environment variables of the same names; OpenMP reads them when the runtime is loaded.
OPENMP_FLAGS = ("kmp_affinity", "kmp_blocktime", "kmp_settings", "omp_num_threads")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="model file or model card; FILE@RUNTIME selects its runtime; a file of --save is shown again",
    )
    add_options(
        parser,
        CandidateOptions,
        first=["runtime"],
        until="environment",
        precision={"type": parse_precisions},
        cpus={"type": parse_cpus},
    )
    _add_environment(parser)
    add_options(parser, SamplingArguments, interval_width={"type": parse_interval_width})
    parser.add_argument(
        "--sweep", action="store_true", help="search for the fastest settings of each model within --time-budget"
    )
    add_options(parser, SweepOptions, first=["resume"], until="models")
    add_options(parser, CandidateOptions, since="log_placement")
    parser.add_argument(
        "--profile", action="store_true", help="measure the time by layer of the first model instead of the latency"
    )
    _add_outputs(parser)
    add_model_flags(parser)


def _add_environment(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--env",
        type=parse_variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable of the processes; may be repeated",
    )
    parser.add_argument("--kmp-affinity", help="set KMP_AFFINITY for the processes")
    parser.add_argument("--kmp-blocktime", help="set KMP_BLOCKTIME: milliseconds that idle OpenMP threads spin")
    parser.add_argument("--kmp-settings", help="set KMP_SETTINGS: with 1, OpenMP prints its settings")
    parser.add_argument("--omp-num-threads", help="set OMP_NUM_THREADS for the processes")


def _add_outputs(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page with charts and layers (.html), or one chart (.svg)",
    )
    parser.add_argument("--save", type=Path, metavar="FILE.json", help="write the result with all samples to this file")
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE.json", help="compare with a benchmark of --save on this machine"
    )
    parser.add_argument("--fail-below", type=parse_ratio, metavar="RATIO", help="exit 1 if a speed-up is below this")


def run(args: Namespace) -> int:
    """Measure, print and save the result, and check the speed-ups."""
    _check_flags(args)
    if args.profile:
        return _run_profile(args)
    return _run_sweep(args) if args.sweep else _run_benchmark(args)


def _check_flags(args: Namespace) -> None:
    outputs = {"--save": args.save, "--html": args.html, "--resume": args.resume}
    paths = [path for model in args.models for path in (model, model.rpartition("@")[0])]
    inputs = {"--baseline": args.baseline, "--data": args.data}
    check_outputs(outputs, inputs | {f"the model {path}": path for path in paths if path})
    if args.fail_below is not None and len(args.models) == 1 and args.baseline is None:
        hint = "name the reference model first, or pass --baseline"
        raise UsageError("--fail-below needs two models, and one is named", hint=hint)
    if args.profile and args.sweep:
        raise UsageError("--profile and --sweep exclude each other", hint="omit one of them")
    if args.resume is not None and not (args.profile or args.sweep):
        raise UsageError("--resume is an option of --sweep", hint="add --sweep, or omit --resume")


def _run_benchmark(args: Namespace) -> int:
    """Measure the latency, and print and save the result."""
    try:
        with show_progress(args) as on_progress:
            result = benchmark(**_options_of(benchmark, args), workload=args.save is not None, on_progress=on_progress)
    except BenchmarkInterrupted as interrupted:
        _print_result(args, interrupted.benchmark)
        return INTERRUPTED
    except NotMeasuredError as error:
        if args.json or args.verbose or len(set(error.benchmark.failures)) > 1:  # otherwise the error states everything
            _print_result(args, error.benchmark)
        raise
    _print_result(args, result)
    if args.html is not None:
        with show_progress(args) as on_progress:
            options = _options_of(profile_layers, args)
            command_line = args.command_line
            save_page_with_layers(args.html, result, **options, command_line=command_line, on_progress=on_progress)
    if args.fail_below is not None:
        result.check_speedups(args.fail_below)
    result.check_measured()
    return 0


def _run_profile(args: Namespace) -> int:
    """Print the profile."""
    if args.save is not None or args.fail_below is not None or args.baseline is not None:
        raise UsageError("--profile has no samples to save or compare", hint="omit --save, --baseline and --fail-below")
    with show_progress(args) as on_progress:
        result = profile_layers(**_options_of(profile_layers, args), on_progress=on_progress)
    if args.html is not None:
        save_page(args.html, profile=result)
    emit(args, result)
    return 0


def _run_sweep(args: Namespace) -> int:
    """Search for the fastest settings, and print and save the result."""
    from quantkit.benchmark.sweep import sweep

    for name in ("runs", "warmup", "processes", "interval_width", "baseline", "fail_below"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} does not apply to --sweep", hint="omit one of them")
    try:
        with show_progress(args) as on_progress:
            result = sweep(**_options_of(sweep, args), on_progress=on_progress)
    except BenchmarkInterrupted:
        if args.resume is not None:
            log(args, f"finished trials are in {args.resume}: run the same command to resume")
        return INTERRUPTED
    if args.save is not None:
        result.save(args.save)
    emit(args, result)
    return 0


def _options_of(function: Callable[..., Any], args: Namespace) -> dict[str, Any]:
    flags = {name.upper(): getattr(args, name) for name in OPENMP_FLAGS}
    return {**options_of(function, args), "environment": {**dict(args.env), **without_none(**flags)}}


def _print_result(args: Namespace, result: Benchmark) -> None:
    if args.save is not None:
        result.save(args.save)
    for row in result.rows:
        if row.log.strip() and (args.verbose or args.kmp_settings is not None):
            log(args, f"log of {row.label} in {row.runtime}:\n{row.log.rstrip()}")
    placement = result.placement_lines(is_verbose=args.verbose) if args.log_placement else []
    text = "\n".join([str(result), *placement])
    emit(args, result, text)


def parse_variable(text: str) -> tuple[str, str]:
    """Parse an environment variable with its value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ArgumentTypeError(f"{text!r} is not a variable such as OMP_NUM_THREADS=2")
    return name, value


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse numbers and ranges: ``0,2-3`` is 0, 2 and 3."""
    cpus: list[int] = []
    for part in text.split(","):
        limits = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(limits[1]), int(limits[2] or limits[1])) if limits else (1, 0)
        if not first <= last <= MAX_CPU:
            raise ArgumentTypeError(f"{part!r} is not the number of a CPU or a range such as 0-3")
        cpus.extend(range(first, last + 1))
    return tuple(cpus)
