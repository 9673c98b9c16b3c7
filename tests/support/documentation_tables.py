"""Tables of the README and the guides, generated from the committed measurements.

python tests/support/documentation_tables.py
"""

import json
import os
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantkit.benchmark import Benchmark
from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.results.speedup import Speedup

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "assets" / "guides").glob("*.md")))
TABLE = re.compile(r"(<!-- (tests/bench/\w+\.json) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_tables(page: Path) -> str:
    """Return the text of a page with every marked table generated again."""
    return TABLE.sub(lambda mark: mark[1] + table(ROOT / mark[2], page) + mark[3], page.read_text())


def table(path: Path, page: Path) -> str:
    """Return a Markdown table of committed measurements, with the machine and a link to the raw samples."""
    document = json.loads(path.read_text())
    link = os.path.relpath(path, page.parent)
    return "\n".join(_TABLES[document["schema"]](document, f"[`tests/bench/{path.name}`]({link})")) + "\n"


def process_table(document: dict[str, Any], link: str) -> list[str]:
    """Return wall time and peak memory of the classic command, whole process."""
    lines = ["| recipe | wall time, whole process | peak memory |", "|---|---|---|"]
    for row in document["rows"]:
        seconds = statistics.median(run["seconds"] for run in row["runs"])
        peak = max(run["peak_bytes"] for run in row["runs"])
        lines.append(f"| {row['recipe']} | {seconds:.2f} s | {peak / document['file_bytes']:.1f} times the file |")
    count, size = len(document["rows"][0]["runs"]), f"{document['file_bytes'] / 1e6:.1f} MB"
    return [*lines, "", f"Medians of {count} runs on a file of {size}; {machine(document)}. Measurements: {link}."]


def eight_bit_table(document: dict[str, Any], link: str) -> list[str]:
    """Return the int8 models of quantkit next to those of other tools, the fastest first."""
    lines = ["| model | median | agreement | KL | size |", "|---|---|---|---|---|"]
    for row in sorted(document["rows"], key=lambda row: row.get("median_ms", 0)):
        if row.get("failed"):
            continue
        name = f"**{row['name']}**" if row["name"].startswith("quantkit") else row["name"]
        size = f"{row['megabytes']:.1f} MB" if "megabytes" in row else ""
        lines.append(f"| {name} | {row['median_ms']:.1f} ms | {row['agreement']:.3f} | {abs(row['kl']):.4f} | {size} |")
    seconds = ", ".join(f"{row['seconds']:.0f} s for `{row['target']}`" for row in document["quantize"])
    return [
        *lines,
        "",
        "Batch 1, every runtime with its best thread setting, in alternation; agreement and KL divergence with the "
        "float model on 400 crops. Run time of `quantkit quantize` with 100 images, with the latency of its report: "
        f"{seconds}. "
        f"{machine(document)}. Measurements: {link}.",
    ]


def rewrite_table(document: dict[str, Any], link: str) -> list[str]:
    """Return the speed-up of each rewrite alone in each runtime, with its interval."""
    runtimes = list(dict.fromkeys(f"{row['engine']} {row['version']}" for row in document["rows"]))
    lines = [
        f"| rewrite, network | {' | '.join(runtimes)} | output difference |",
        "|---|" + "---|" * (len(runtimes) + 1),
    ]
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in document["rows"]:
        rows.setdefault((row["rewrite"], row["model"]), {})[f"{row['engine']} {row['version']}"] = row
    for (rewrite, model), by_runtime in sorted(rows.items()):
        cells = [interval(by_runtime[name]["speed_up"]) if name in by_runtime else "" for name in runtimes]
        difference = max(row["difference"] for row in by_runtime.values())
        lines.append(f"| `{rewrite}`, {model} | {' | '.join(cells)} | {difference:.0e} |")
    return [
        *lines,
        "",
        "Speed-up by the rewrite with 95 % intervals, in float, batch 1, random weights, default thread settings. "
        f"{machine(document)}. Raw samples: {link}.",
    ]


def scaling_table(document: dict[str, Any], link: str) -> list[str]:
    """Return the run time of recipes on graphs of several sizes, one column per recipe."""
    recipes = list(dict.fromkeys(row["recipe"] for row in document["rows"]))
    lines = [f"| nodes | {' | '.join(f'`{recipe}`' for recipe in recipes)} |", "|---|" + "---|" * len(recipes)]
    for nodes in dict.fromkeys(row["nodes"] for row in document["rows"]):
        runs = {row["recipe"]: row["runs"] for row in document["rows"] if row["nodes"] == nodes}
        cells = [f"{statistics.median(run['whole_seconds'] for run in runs[recipe]):.2f} s" for recipe in recipes]
        lines.append(f"| {nodes:,} | {' | '.join(cells)} |")
    count = len(document["rows"][0]["runs"])
    plot = link.replace(".json", ".svg")
    return [*lines, "", f"Whole processes, medians of {count} runs; {machine(document)}. Time per transform: {plot}."]


def network_table(document: dict[str, Any], link: str) -> list[str]:
    """Return remaining nodes and speed of many networks next to those of TensorFlow's own tool."""
    lines = [
        "| network | nodes | `inference` | `optimize_for_inference` | nodes run by TensorFlow | speed-up |",
        "|---|" + "---|" * 5,
    ]
    openings = " or ".join(str(count) for count in sorted({len(row["benchmarks"]) for row in document["rows"]}))
    for row in document["rows"]:
        nodes = row["nodes"]
        other = "fails" if row.get("refused") else f"{nodes['optimize_for_inference']:,}"
        tools = [tool for tool in ("quantkit", "optimize_for_inference") if tool in row["nodes_run"]]
        run = " vs ".join(f"{row['nodes_run'][tool]:,}" for tool in tools)
        speed = row["times_as_fast"].get("optimize_for_inference")
        counts = f"{nodes['given']:,} | {nodes['quantkit']:,} | {other} | {run}"
        lines.append(f"| {row['model']} | {counts} | {interval(speed) if speed else ''} |")
    return [
        *lines,
        "",
        "Frozen graphs with random weights; nodes in functions count. Nodes run by TensorFlow are those "
        "without constants after its own optimizer, for both tools. Speed-up over `optimize_for_inference` in "
        "TensorFlow, batch 1: median of "
        f"{openings} processes per graph, with minimum and maximum. {machine(document)}. Raw samples: {link}.",
    ]


def benchmark_table(document: dict[str, Any], link: str) -> list[str]:
    """Return the table of a document that ``quantkit benchmark --save`` has written."""
    benchmark = Benchmark.from_json(document)
    lines = ["| model | runtime | median | 95 % interval | speed-up | size |", "|---|---|---|---|---|---|"]
    for row, speedup in zip(benchmark.rows, benchmark.speedups, strict=True):
        if row.measurement is None:
            continue
        context, summary = row.measurement.context, row.measurement.summary
        cells = (
            row.label,
            f"{context.runtime} {context.version}",
            f"{summary.median * 1e3:.1f} ms",
            f"{summary.low * 1e3:.1f} to {summary.high * 1e3:.1f}",
            interval(vars(speedup)) if isinstance(speedup, Speedup) else "1",
            f"{context.num_bytes / 1e6:.1f} MB",
        )
        lines.append(f"| {' | '.join(cells)} |")
    sentence = benchmark.measurements[0].context.machine.sentence
    return [*lines, "", f"Batch 1; {sentence}. Raw samples: {link}."]


def finetuning_table(document: dict[str, Any], link: str) -> list[str]:
    """Return the accuracy after calibration, and the fractions of its loss that fine-tuning recovers."""
    lines = [
        "| network | model | top-1 | agreement | KL | recovered | time | peak memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rows in document["cases"].items():
        floats = next(iter(rows.values()))["float"]
        lines.append(f"| `{name}` | float | {percent(floats.get('top1'))} | | | | | |")
        for method, row in rows.items():
            label = f"`--finetune {method}`" if method != "calibrated" else method
            cells = (label, *accuracy_cells(row), f"{row['seconds']:.0f} s", f"{row['peak_bytes'] / 1e9:.1f} GB")
            lines.append(f"| | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "Held-out images; the recovered fractions are those of the loss in top-1 and in agreement. Times and memory of "
        f"the whole process, with other load on the machine. {machine(document)}. Measurements: {link}.",
    ]


def accuracy_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return top-1, agreement, KL divergence, and the recovered fractions of a model."""
    accuracy, fractions = row["accuracy"], row.get("recovered", {})
    recovered = ", ".join(f"{100 * fractions[name]:.0f} %" for name in ("top1", "agreement") if name in fractions)
    return percent(accuracy.get("top1")), percent(accuracy["agreement"]), f"{accuracy['kl_divergence']:.4f}", recovered


def percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.1f} %"


def interval(speed_up: Mapping[str, Any]) -> str:
    """Return the text of a ratio with its interval."""
    return f"{speed_up['ratio']:.2f} ({speed_up['low']:.2f} to {speed_up['high']:.2f})"


def machine(document: dict[str, Any]) -> str:
    """Return one line about the machine of a measurement."""
    return Machine.from_json(document["machine"]).sentence


_TABLES = {
    "quantkit.benchmark/1": benchmark_table,
    "quantkit.eight_bit/1": eight_bit_table,
    "quantkit.finetuning/1": finetuning_table,
    "quantkit.rewrites/1": rewrite_table,
    "quantkit.scaling/1": scaling_table,
    "quantkit.zoo/2": network_table,
    "quantkit.transform_process/1": process_table,
}

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_tables(page))
