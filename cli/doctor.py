"""``quantkit doctor``: what this machine and installation can run, and what thread settings do here."""

from argparse import ArgumentParser, Namespace
from typing import Any

from quantkit.benchmark import Benchmark
from quantkit.benchmark.diagnosis import Diagnosis, diagnose, sweep, sweep_verdict
from quantkit.benchmark.rounds import Schedule
from quantkit.errors import UnavailableError

from ._render import emit
from .benchmark import shown_progress

EXAMPLES = ("quantkit doctor", "quantkit doctor --measure", "quantkit doctor --json")
# A sweep has many settings: fewer rounds each than a benchmark, still enough for an interval.
SWEEP = Schedule(runs=40, rounds=10, time_budget=300.0)


def add_arguments(parser: ArgumentParser) -> None:
    """What is run, and whether settings are measured."""
    parser.add_argument("model", nargs="?", default="digits", help="what is run to find out (digits, bundled)")
    parser.add_argument("--measure", action="store_true", help="measure what thread settings do, interleaved")
    parser.add_argument("--runtime", default="tensorflow", help="engine whose threads --measure sets (tensorflow)")
    parser.add_argument("--offline", action="store_true", help="never fetch a model")


def run(args: Namespace) -> int:
    """Look, run, perhaps measure, and say."""
    with shown_progress(args) as progress:
        found = diagnose(args.model, offline=args.offline, progress=progress)
        measured = None
        if args.measure:
            measured = sweep(args.model, args.runtime, found.machine, SWEEP, offline=args.offline, progress=progress)
    document: dict[str, Any] = found.to_json()
    if measured is not None:
        document["measured"] = measured.to_json() | {"verdict": sweep_verdict(measured)}
    emit(
        args,
        "quantkit.doctor/1",
        document,
        lambda page: page.print(_text(found, measured), markup=False, soft_wrap=True),
    )
    if not found.can_run:
        raise UnavailableError("no runtime works here", hint="pip install 'quantkit[all]'")
    return 0


def _text(found: Diagnosis, measured: Benchmark | None) -> str:
    return str(found) if measured is None else f"{found}\n\n{measured}\n{sweep_verdict(measured)}"
