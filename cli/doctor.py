"""``quantkit doctor``: which runtimes work on this machine, and the fastest settings."""

from argparse import ArgumentParser, Namespace

from quantkit.benchmark.diagnosis import diagnose
from quantkit.quantization.targets.diagnosis import complete_diagnosis

from ._arguments import add_offline
from ._render import emit, show_progress

EXAMPLES = ("quantkit doctor", "quantkit doctor --measure", "quantkit doctor --json")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command."""
    parser.add_argument("model", nargs="?", default="digits", help="model to run in each runtime (default: digits)")
    parser.add_argument("--measure", action="store_true", help="also search for the fastest settings, for two minutes")
    parser.add_argument("--runtime", default="auto", help="runtime for --measure (default: the fastest installed one)")
    add_offline(parser)


def run(args: Namespace) -> int:
    """Examine the machine, print the diagnosis, and check that a runtime works."""
    with show_progress(args) as on_progress:
        diagnosis = diagnose(
            args.model,
            measure_settings=args.measure,
            runtime=args.runtime,
            offline=args.offline,
            on_progress=on_progress,
        )
    diagnosis = complete_diagnosis(diagnosis)
    emit(args, diagnosis)
    diagnosis.check_runtimes()
    return 0
