"""Measure the run time of transforms on graphs of 1,000 to 100,000 nodes: per transform, and of the whole process.

    python tests/bench/measure_scaling.py [--sizes 1000 3000 10000 30000 50000 100000] [--runs 5]

Writes `scaling.json` (every run) and draws `scaling.svg` (the medians).
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

SIZES = (1_000, 3_000, 10_000, 30_000, 50_000, 100_000)
RECIPES = {
    "merge, fold, strip": "merge_duplicate_nodes fold_constants strip_unused_nodes",
    "inference": "inference",
}
WORKER = "--in-this-process"
WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT, TOP = 860, 520, 70, 50, 250, 40
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#8d6a9f", "#e08e45", "#4c4c4c", "#7a9e9f", "#b5651d")


def measure_here(source: Path, target: Path, recipe: str) -> dict[str, Any]:
    """Load, transform and save in this process."""
    from quantkit import formats
    from quantkit.recipes import run
    from quantkit.recipes.named import RECIPES, find_recipe
    from quantkit.recipes.recipe import parse

    start = perf_counter()
    graph = formats.load(source, ["x"], ["y"])
    loaded = perf_counter()
    after, trace = run(find_recipe(recipe) if recipe in RECIPES else parse(recipe), graph)
    transformed = perf_counter()
    formats.save(after, target)
    steps: dict[str, float] = {}
    for record in trace.records:
        steps[record.step.name] = steps.get(record.step.name, 0.0) + record.seconds
    return {
        "seconds": {"load": loaded - start, **steps, "save": perf_counter() - transformed},
        "nodes_after": len(after),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def measure(source: Path, recipe: str) -> dict[str, Any]:
    """Measure a recipe in its own process, including the start of the process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, WORKER, str(source), str(Path(folder) / "out.pb"), recipe]
        start = perf_counter()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        whole = perf_counter() - start
    document: dict[str, Any] = json.loads(done.stdout)
    return {**document, "whole_seconds": whole}


def medians(rows: Sequence[Mapping[str, Any]], recipe: str) -> dict[str, list[tuple[int, float]]]:
    """Return the points (number of nodes, seconds) of each line of the plot."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["recipe"] == recipe:
            runs = row["runs"]
            lines.setdefault("whole process", []).append((row["nodes"], median(run["whole_seconds"] for run in runs)))
            for name in runs[0]["seconds"]:
                lines.setdefault(name, []).append((row["nodes"], median(run["seconds"][name] for run in runs)))
    return lines


def draw(lines: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    """Return an SVG plot of seconds over nodes; a straight line through the origin is linear run time."""
    most_nodes = max(nodes for points in lines.values() for nodes, _ in points)
    most_seconds = max(seconds for points in lines.values() for _, seconds in points)
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def position(nodes: float, seconds: float) -> tuple[float, float]:
        return LEFT + across * nodes / most_nodes, HEIGHT - BOTTOM - up * seconds / most_seconds

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{title}</text>',
    ]
    for part in range(6):
        x, y = position(most_nodes * part / 5, most_seconds * part / 5)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{most_seconds * part / 5:.1f} s</text>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{most_nodes * part / 5:,.0f}</text>'
        )
    parts.append(f'<text x="{LEFT + across / 2}" y="{HEIGHT - 10}" text-anchor="middle">nodes</text>')
    ordered = sorted(lines.items(), key=lambda line: -line[1][-1][1])
    for number, (name, points) in enumerate(ordered):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (position(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        row = TOP + 10 + 20 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{row}" fill="{colour}">{name}: {points[-1][1]:.2f} s</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Measure, write and draw."""
    if sys.argv[1:2] == [WORKER]:
        source, target, recipe = sys.argv[2:]
        print(json.dumps(measure_here(Path(source), Path(target), recipe)))
        return
    from many_nodes import many_nodes

    from quantkit import formats
    from quantkit.benchmark.host.machine import this_machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--target", type=Path, default=HERE, help="where to write the two files")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            path = Path(folder) / f"{size}.pb"
            formats.save(many_nodes(size), path)
            for recipe in RECIPES.values():
                runs = [measure(path, recipe) for _ in range(options.runs)]
                rows.append({"recipe": recipe, "nodes": size, "file_bytes": path.stat().st_size, "runs": runs})
                whole = median(run["whole_seconds"] for run in runs)
                print(f"{size:>7,} nodes, {recipe}: {whole:.2f} s", file=sys.stderr)
    document = {"schema": "quantkit.scaling/1", "machine": this_machine().to_json(), "rows": rows}
    (options.target / "scaling.json").write_text(json.dumps(document, indent=1) + "\n")
    title = "Seconds of the recipe inference, in all and step by step"
    (options.target / "scaling.svg").write_text(draw(medians(rows, RECIPES["inference"]), title))


if __name__ == "__main__":
    main()
