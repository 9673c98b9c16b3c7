"""The tables of the README, made of the committed measurements; ``python tests/support/readme_table.py`` does it."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

from quantkit.benchmark import Benchmark
from quantkit.benchmark.comparison import Comparison
from quantkit.benchmark.machine import Machine

ROOT = Path(__file__).parent.parent.parent
TABLE = re.compile(r"(<!-- (tests/bench/\w+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """The text with every marked table made anew."""
    return TABLE.sub(lambda found: found[1] + table(ROOT / found[2]) + found[3], text)


def table(path: Path) -> str:
    """A Markdown table of committed measurements, and a line that names the machine."""
    document = json.loads(path.read_text())
    return _TABLES[document["schema"]](document, path)


def whole_processes(document: dict[str, Any], path: Path) -> str:
    """Wall time and peak memory of the classic command, whole process."""
    lines = ["| recipe | wall time, whole process | peak memory |", "|---|---|---|"]
    for row in document["rows"]:
        seconds = statistics.median(run["seconds"] for run in row["runs"])
        peak = max(run["peak_bytes"] for run in row["runs"])
        lines.append(f"| {row['recipe']} | {seconds:.2f} s | {peak / document['file_bytes']:.1f} times the file |")
    machine = Machine.from_json(document["machine"]).sentence
    count, size = len(document["rows"][0]["runs"]), f"{document['file_bytes'] / 1e6:.1f} MB"
    lines += ["", f"Medians of {count} runs on a file of {size}; {machine}."]
    return "\n".join(lines) + "\n"


def side_by_side(document: dict[str, Any], path: Path) -> str:
    """Our 8-bit models beside those of other tools, the fastest first."""
    lines = ["| model | median | agreement | KL | size |", "|---|---|---|---|---|"]
    made = {row["target"]: row for row in document["quantize"]}
    for row in sorted(document["rows"], key=lambda row: row.get("median_ms", 0)):
        if row.get("failed"):
            continue
        name = f"**{row['name']}**" if row["name"].startswith("quantkit") else row["name"]
        size = f"{row['megabytes']:.1f} MB" if "megabytes" in row else ""
        lines.append(f"| {name} | {row['median_ms']:.1f} ms | {row['agreement']:.3f} | {abs(row['kl']):.4f} | {size} |")
    lines.append("")
    took = ", ".join(f"{row['seconds']:.0f} s for `{target}`" for target, row in made.items())
    machine = Machine.from_json(document["machine"]).sentence
    lines.append(
        "Batch 1, every engine at its best thread setting, in turn; agreement and KL with float on 400 crops. "
        f"The whole `quantkit quantize` with 100 pictures, verdict included: {took}. {machine}. "
        f"Numbers: [`tests/bench/{path.name}`](tests/bench/{path.name})."
    )
    return "\n".join(lines) + "\n"


def rewrites(document: dict[str, Any], path: Path) -> str:
    """Each rewrite alone: how many times as fast in each engine, with its interval."""
    engines = list(dict.fromkeys(f"{row['engine']} {row['version']}" for row in document["rows"]))
    lines = [f"| rewrite, on | {' | '.join(engines)} | answers differ by |", "|---|" + "---|" * (len(engines) + 1)]
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        named = found.setdefault((row["rewrite"], row["model"]), {})
        named[f"{row['engine']} {row['version']}"] = row
    for (rewrite, model), of_engine in sorted(found.items()):
        cells = [_speed_up(of_engine[engine]) if engine in of_engine else "" for engine in engines]
        difference = max(row["difference"] for row in of_engine.values())
        lines.append(f"| `{rewrite}`, {model} | {' | '.join(cells)} | {difference:.0e} |")
    machine = Machine.from_json(document["machine"]).sentence
    lines += [
        "",
        "Times as fast as before the rewrite, with 95 % intervals, in float, batch 1, random weights; each engine with "
        f"its own threads. {machine}. Raw samples: [`tests/bench/{path.name}`](tests/bench/{path.name}).",
    ]
    return "\n".join(lines) + "\n"


def growth(document: dict[str, Any], path: Path) -> str:
    """Whole processes on graphs of many sizes, a recipe in a column."""
    recipes = list(dict.fromkeys(row["recipe"] for row in document["rows"]))
    lines = [f"| nodes | {' | '.join(f'`{recipe}`' for recipe in recipes)} |", "|---|" + "---|" * len(recipes)]
    for nodes in dict.fromkeys(row["nodes"] for row in document["rows"]):
        of_size = {row["recipe"]: row["runs"] for row in document["rows"] if row["nodes"] == nodes}
        cells = [f"{statistics.median(run['whole_seconds'] for run in of_size[recipe]):.2f} s" for recipe in recipes]
        lines.append(f"| {nodes:,} | {' | '.join(cells)} |")
    machine = Machine.from_json(document["machine"]).sentence
    lines += ["", f"Whole processes, medians of {len(document['rows'][0]['runs'])} runs; {machine}."]
    lines[-1] += f" Step by step: [`tests/bench/{path.stem}.svg`](tests/bench/{path.stem}.svg)."
    return "\n".join(lines) + "\n"


def networks(document: dict[str, Any], path: Path) -> str:
    """Many networks: nodes that are left, and speed beside what TensorFlow's own tool leaves."""
    lines = [
        "| network | nodes | `inference` | `optimize_for_inference` | TensorFlow runs | times as fast as that |",
        "|---|" + "---|" * 5,
    ]
    openings = " or ".join(str(count) for count in sorted({len(row["benchmarks"]) for row in document["rows"]}))
    for row in document["rows"]:
        nodes, refused = row["nodes"], row.get("refused", {})
        other = "does not run" if refused else f"{nodes['optimize_for_inference']:,}"
        tools = [tool for tool in ("quantkit", "optimize_for_inference") if tool in row["nodes_run"]]
        run = " for ".join(f"{row['nodes_run'][tool]:,}" for tool in tools)
        counts = f"{nodes['given']:,} | {nodes['quantkit']:,} | {other} | {run}"
        lines.append(f"| {row['model']} | {counts} | {_against(row)} |")
    machine = Machine.from_json(document["machine"]).sentence
    lines += [
        "",
        "Frozen graphs, random weights; nodes of functions count. What TensorFlow runs are the nodes, without "
        "constants, that its own optimizer leaves: of ours for those of the other tool. The speed is TensorFlow's, "
        f"batch 1: the median of {openings} openings of each graph, with the least and the most. {machine}. "
        f"Raw samples: [`tests/bench/{path.name}`](tests/bench/{path.name}).",
    ]
    return "\n".join(lines) + "\n"


def _against(row: dict[str, Any]) -> str:
    """Our speed over the other tool's."""
    found = row["times_as_fast"].get("optimize_for_inference")
    return f"{found['ratio']:.2f} ({found['low']:.2f} to {found['high']:.2f})" if found else ""


def _speed_up(row: dict[str, Any]) -> str:
    speed = row["speed_up"]
    return f"{speed['ratio']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})"


def benchmarked(document: dict[str, Any], path: Path) -> str:
    """What `quantkit benchmark --save` wrote."""
    benchmark = Benchmark.from_json(document)
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


_TABLES = {
    "quantkit.benchmark/1": benchmarked,
    "quantkit.eight_bit/1": side_by_side,
    "quantkit.rewrites/1": rewrites,
    "quantkit.scaling/1": growth,
    "quantkit.zoo/2": networks,
    "quantkit.transform_process/1": whole_processes,
}

if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
