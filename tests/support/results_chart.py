"""Chart of the README from the committed medians.

python tests/support/results_chart.py
quantkit benchmark tests/bench/eight_bit_latency.json --html assets/latency.svg
"""

import json
import re
from pathlib import Path

from quantkit.benchmark import Benchmark
from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.results.report import BenchmarkRow

BENCH = Path(__file__).parents[1] / "bench"
RUNTIMES = {
    "openvino": "openvino",
    "onnx": "onnxruntime",
    "litert": "litert",
    "tensorflow": "tensorflow",
    "tf": "tensorflow",
}
# Far slower than the others, whose bars would be too short to compare; the table has the row.
OMITTED = "tf eightbit (transform_graph)"


def read_benchmark() -> Benchmark:
    """Return the medians of `eight_bit.json` as a benchmark with one sample for each row."""
    document = json.loads((BENCH / "eight_bit.json").read_text())
    machine = Machine.from_json(document["machine"])
    rows = []
    for row in document["rows"]:
        if row["name"] == OMITTED or row.get("failed"):
            continue
        label, _, runtime = row["name"].partition(" in ")
        title = (runtime or label.split()[0]).lower().split()[0]
        name = next(name for prefix, name in RUNTIMES.items() if title.startswith(prefix))
        label = label if runtime else re.sub(rf"^{title} ", "", label)
        size = int(row.get("megabytes", 0) * 1e6)
        context = MeasurementContext(label, "", size, name, "", machine)
        rows.append(BenchmarkRow(label, name, Measurement((row["median_ms"] / 1e3,), (), context)))
    return Benchmark(tuple(rows))


if __name__ == "__main__":
    read_benchmark().save(BENCH / "eight_bit_latency.json")
