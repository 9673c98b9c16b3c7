"""Run commands on mutated files: exit codes 0 to 4 with one message, within limits of time and memory.

python -m tests.fuzz --mutants 10000 --seed 7
python -m tests.fuzz --seed 7 --only onnx:123 --keep FOLDER
"""

import sys
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path

from .campaign import Result, distribute, run


def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200, help="number of mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutants (default: 0)")
    parser.add_argument("--first", type=int, default=0, help="number of mutants to skip (default: 0)")
    parser.add_argument("--formats", type=lambda text: text.split(","), help="formats (default: all)")
    parser.add_argument("--only", metavar="FORMAT:INDEX", help="run one mutant")
    parser.add_argument("--keep", type=Path, help="folder for the files of the last mutant")
    args = parser.parse_args(arguments)
    if args.only:
        name, index = args.only.split(":")
        jobs = [(name, int(index))]
    else:
        jobs = distribute(args.mutants, args.formats)[args.first :]
    exit_codes: Counter[str] = Counter()
    violations = 0

    def report(result: Result) -> None:
        nonlocal violations
        exit_codes[str(result.code)] += 1
        violations += bool(result.violation)
        if result.violation or args.only:
            print(f"{result.name}:{result.index}: {result.command}\n    {result.violation}", flush=True)
        if sum(exit_codes.values()) % 500 == 0:
            print(f"{sum(exit_codes.values())} mutants, {violations} violations", file=sys.stderr, flush=True)

    run(jobs, args.seed, report, keep=args.keep)
    count = sum(exit_codes.values())
    print(f"{count} mutants of seed {args.seed}: exit codes {dict(exit_codes)}, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
