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
    seconds = ", ".join(
        f"{row['seconds_without_latency']:.0f} s for `{row['target']}` ({row['seconds']:.0f} s)"
        for row in document["quantize"]
    )
    return [
        *lines,
        "",
        "Batch 1, every runtime with its best thread setting, in alternation; agreement and KL divergence with the "
        "float model on 400 crops. Run time of `quantkit quantize` with 100 images (and with the latency of its "
        "report): "
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
    columns = (
        *("network", "runtime", "model", "top-1", "agreement", "KL", "recovered", "gain (95 % CI)"),
        *("file and simulation agree", "time", "peak memory"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---|" * (len(columns) - 1)]
    for name, methods in document["cases"].items():
        floats = next(iter(methods.values()))["float"]
        task = quality(floats, *("psnr", "target_correlation", "top1", "task"))
        lines.append(f"| `{name}` | | float | {task} | | | | | | | |")
        for method, row in methods.items():
            label = method if method == "calibrated" else f"`--finetune {method}`"
            cost = (f"{row['seconds']:.0f} s", f"{row['peak_bytes'] / 1e9:.1f} GB")
            for runtime in row["accuracy"]:
                cells = (runtime, label, *accuracy_cells(row, runtime), percent(row["simulation"][runtime]), *cost)
                lines.append(f"| | {' | '.join(cells)} |")
    others = {
        name: row["cpu"]
        for name, methods in document["cases"].items()
        for row in methods.values()
        if row["cpu"] != document["machine"]["cpu"]
    }
    return [
        *lines,
        "",
        "Held-out images; the recovered fractions are those of the loss in top-1 and in agreement. `sediment_unet` and "
        "`super_resolution` have the correlation with the float model instead of the agreement, and the correlation "
        "with the target images or the PSNR instead of top-1; `xfeat` has its correct matches, `ultraface` and "
        "`fastestdet` the F1 of the boxes of the float model, and `stories260k` the most likely tokens of the float "
        "model. The gain is that "
        "of the task's metric over the calibrated file, with the "
        "interval of a bootstrap over the images. Times and memory of the whole process, with other load on the "
        f"machine. {machine(document)}{''.join(f'; `{name}`: {cpu}' for name, cpu in others.items())}. "
        f"Measurements: {link}.",
    ]


def accuracy_cells(row: Mapping[str, Any], runtime: str) -> tuple[str, ...]:
    """Return top-1, agreement, KL divergence, recovered fractions, and the gain of a model in a runtime."""
    accuracy, fractions = row["accuracy"][runtime], row.get("recovered", {}).get(runtime, {})
    tasks, agreements = ("psnr", "top1", "target_correlation", "task"), ("agreement", "correlation")
    shown = [next((name for name in names if name in fractions), "") for names in (tasks, agreements)]
    recovered = ", ".join(f"{100 * fractions[name]:.0f} %" for name in shown if name)
    divergence = f"{accuracy['kl_divergence']:.4f}" if "kl_divergence" in accuracy else ""
    gain = row.get("gain", {}).get(runtime)
    interval = f"{gain['value']:.4f} ({gain['low']:.4f} to {gain['high']:.4f})" if gain else ""
    return quality(accuracy, *tasks), quality(accuracy, *agreements), divergence, recovered, interval


def quality(figures: Mapping[str, float], *names: str) -> str:
    """Return the first of these figures: a PSNR, a correlation, or a fraction of the samples."""
    name = next((name for name in names if name in figures), "")
    if name == "psnr":
        return f"{figures[name]:.2f} dB"
    return f"{figures[name]:.4f}" if "correlation" in name else percent(figures.get(name))


def workers_table(document: dict[str, Any], link: str) -> list[str]:
    """Return speed and efficiency of one and two workers, and the overheads, next to the limits of the machine."""
    lines = ["| workers | images/s with 1 | with 2 | efficiency | from the first opened model | whole call |"]
    lines += ["|---|" + "---|" * 5]
    rounds, efficiency, overhead = document["rounds"], document["efficiency"], document["overhead"]
    limit = statistics.median(row["machine"]["together"] for row in rounds)
    alone = statistics.median(row["machine"]["sum_of_each_alone"] / 2 for row in rounds)
    lines.append(f"| plain loops | {alone:.1f} | {limit:.1f} | {efficiency['machine']:.2f} | | |")
    for cluster in document["clusters"]:
        rates = [statistics.median(row[f"{cluster} {count}"]["rates"]["steady"] for row in rounds) for count in (1, 2)]
        cells = [f"{rate:.1f}" for rate in rates] + [f"{efficiency[cluster][key]:.2f}" for key in _WORKER_RATES]
        lines.append(f"| {'processes' if cluster == 'local' else 'Ray'} | {' | '.join(cells)} |")
    pools = " and ".join(f"{overhead['pool'][cluster]:.1%}" for cluster in document["clusters"])
    before, after = document["evaluate"]["samples_per_second"]
    idle = [f"{fraction:.1%}" for fraction in document["evaluate"]["waiting_fraction"]]
    predictions = " and ".join(
        f"{row['prediction']['simulated_seconds']:.1f} s (measured {row['prediction']['measured_seconds']:.1f} s)"
        for row in rounds
    )
    return [
        *lines,
        "",
        f"- Overhead per image over a plain loop: {overhead['worker']:.1%} in the worker ({overhead['worker_cpu']:.1%} "
        f"of its CPU time), and {pools} between shards ({' and '.join(document['clusters'])}).",
        f"- Prediction of the simulation for 2 workers, from the shards of 1 worker: {predictions}.",
        f"- `evaluate`: {before:.1f} images/s without overlap of input and runtime, {after:.1f} with; the runtime is "
        f"idle for lack of images {idle[0]} and {idle[1]} of the time.",
        "",
        f"`{document['model']}`, {document['samples']:,} images, shards of {document['shard_size']}, one core and one "
        f"thread per worker, medians of the rounds ({len(rounds)}); {machine(document)}. "
        f"Measurements: {link}.",
    ]


def pipelines_table(document: dict[str, Any], link: str) -> list[str]:
    """Return the rates of optimized pipelines next to the original, a hand sweep and AUTOTUNE."""
    lines = [
        "| pipeline | times the original | the best of a hand sweep | AUTOTUNE | rewrites |",
        "|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        ratios = [row[f"ratio_to_{name}"] for name in ("original", "best_of_sweep", "autotune")]
        applied = ", ".join(f"`{name}`" for name in row["applied"])
        lines.append(f"| {row['pipeline']} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} | {applied} |")
    different = sum(row["different_elements"] for row in document["rows"]) + len(document["generated"]["wrong"])
    return [
        *lines,
        "",
        f"Elements per second, medians of pairs in alternation. {different} different elements in these pipelines "
        f"and in {document['generated']['pipelines']} generated ones with all rewrites. "
        f"{machine(document)}. Measurements: {link}.",
    ]


def packing_table(document: dict[str, Any], link: str) -> list[str]:
    """Return the rate of packing next to copies, and the kills with their resumed runs."""
    lines = ["| step | MB/s |", "|---|---|"]
    names = {
        "pack": "`data pack`, images to shards",
        "copy": "`cp -r` of the images",
        "copy_of_shards": "`cp -r` of the shards",
    }
    for key, name in names.items():
        lines.append(f"| {name} | {statistics.median(document['megabytes_per_second'][key]):.1f} |")
    kills = [kill for run in document["runs_with_kills"] for kill in run["kills"]]
    unchanged = sum(kill["shards_kept"] for kill in kills)
    before = sum(kill["shards_before"] for kill in kills)
    identical = all(run["identical"] for run in document["runs_with_kills"])
    return [
        *lines,
        "",
        f"{document['images']:,} images, {document['num_bytes'] / 1e6:.0f} MB in {document['shards']} shards. After "
        f"{len(kills)} kills at random moments, the same command kept {unchanged} of {before} complete shards, and the "
        f"result is {'' if identical else 'not '}byte for byte that of a quiet run. TensorFlow reads "
        f"{document['tensorflow']['equal']:,} of {document['images']:,} images with the bytes of their files. "
        f"`data verify` finds {document['flipped_bits_found']} of {document['flipped_bits']} flipped bits. "
        f"{machine(document)}. Measurements: {link}.",
    ]


def percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.1f} %"


def interval(speed_up: Mapping[str, Any]) -> str:
    """Return the text of a ratio with its interval."""
    return f"{speed_up['ratio']:.2f} ({speed_up['low']:.2f} to {speed_up['high']:.2f})"


def machine(document: dict[str, Any]) -> str:
    """Return one line about the machine of a measurement."""
    return Machine.from_json(document["machine"]).sentence


_WORKER_RATES = ("steady", "open", "whole")
_TABLES = {
    "quantkit.bench_packing/3": packing_table,
    "quantkit.bench_pipelines/2": pipelines_table,
    "quantkit.benchmark/1": benchmark_table,
    "quantkit.eight_bit/1": eight_bit_table,
    "quantkit.finetuning/1": finetuning_table,
    "quantkit.rewrites/1": rewrite_table,
    "quantkit.scaling/1": scaling_table,
    "quantkit.zoo/2": network_table,
    "quantkit.transform_process/1": process_table,
    "quantkit.workers/3": workers_table,
}

if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_tables(page))
