"""The tables of the README, made of the committed measurements; ``python tests/support/readme_table.py`` does it."""

import json
import re
from pathlib import Path

from quantkit.bench import Benchmark
from quantkit.bench.comparison import Comparison

ROOT = Path(__file__).parent.parent.parent
TABLE = re.compile(r"(<!-- (tests/bench/\w+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The text with every marked table made anew."""
    return TABLE.sub(lambda found: found[1] + table(ROOT / found[2]) + found[3], text)


def table(path: Path) -> str:
    """A Markdown table of a saved benchmark, and a line that names the machine."""
    benchmark = Benchmark.from_json(json.loads(path.read_text()))
    lines = ["| model | engine | median | 95 % interval | times as fast | size |", "|---|---|---|---|---|---|"]
    for row, comparison in zip(benchmark.rows, benchmark.comparisons, strict=True):
        measurement = row.measurement
        if measurement is None:
            continue
        context, summary = measurement.context, measurement.summary
        ratio = (
            f"{comparison.ratio:.2f} ({comparison.low:.2f} to {comparison.high:.2f})"
            if isinstance(comparison, Comparison)
            else "1"
        )
        cells = (
            row.label,
            f"{context.runtime} {context.version}",
            f"{summary.median * 1e3:.1f} ms",
            f"{summary.low * 1e3:.1f} to {summary.high * 1e3:.1f}",
            ratio,
            f"{context.num_bytes / 1e6:.1f} MB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    machine = benchmark.measurements[0].context.machine.sentence
    lines.append(f"Batch 1; {machine}. Raw samples: [`tests/bench/{path.name}`](tests/bench/{path.name}).")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
