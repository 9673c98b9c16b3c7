"""Whole-process wall time and peak memory of the main recipe on a file, in turn with and without its 8-bit steps.

    python tests/bench/measure_transform.py classify_image_graph_def.pb [--runs 7]

Writes `transform.json`: every run's seconds and peak bytes, the file's size, and the machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from quantkit.benchmark.host.machine import this_machine

HERE = Path(__file__).parent
PREPARE = (
    'add_default_attributes strip_unused_nodes(type=float, shape="1,299,299,3") '
    "remove_nodes(op=Identity, op=CheckNumerics) fold_constants(ignore_errors=true) "
    "fold_batch_norms fold_old_batch_norms"
)
RECIPES = {
    "folded": f"{PREPARE} strip_unused_nodes sort_by_execution_order",
    "folded and 8-bit": f"{PREPARE} quantize_weights quantize_nodes strip_unused_nodes sort_by_execution_order",
}


def run(source: Path, target: Path, recipe: str) -> dict[str, float]:
    """One process, timed from outside by the system's own accounting."""
    quantkit = str(Path(sys.executable).parent / "quantkit")
    command = [quantkit, "transform", f"--in_graph={source}", f"--out_graph={target}", "--inputs=Mul"]
    command += ["--outputs=softmax", f"--transforms={recipe}", "-q"]
    timed = ["/usr/bin/time", "-f", "%e %M", *command]
    done = subprocess.run(timed, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds, kilobytes = done.stderr.split()[-2:]
    return {"seconds": float(seconds), "peak_bytes": int(kilobytes) * 1024}


def main() -> None:
    """Measure all recipes and write `transform.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    runs_by_recipe: dict[str, list[dict[str, float]]] = {name: [] for name in RECIPES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.runs + 1):
            for name, recipe in RECIPES.items():
                runs_by_recipe[name].append(run(options.source, Path(folder) / "out.pb", recipe))
    document = {
        "schema": "quantkit.transform_process/1",
        "machine": this_machine().to_json(),
        "file_bytes": options.source.stat().st_size,
        "rows": [{"recipe": name, "runs": runs[1:]} for name, runs in runs_by_recipe.items()],
    }
    (HERE / "transform.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
