"""Verdicts of profiles: reference kernels, a float island, too many threads, each on a real network.

    python tests/bench/measure_verdict.py FLOAT.pb EIGHTBIT.pb RANGES.json [--layer NAME] [--out FILE]

Profiles the classic eightbit graph in TensorFlow; the ONNX model with one layer in float, in ONNX Runtime and OpenVINO;
the float graph with two threads on one CPU; and, where control groups of version 1 may be created, the int8 model with
a quota of half the CPUs. Each verdict must name the cause, with its measured time. The island is
quantized from the ranges, without data. Writes `verdict.json`. Takes 3 minutes.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import quantkit as qk
from quantkit.benchmark import profile_layers
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.results.reason import Reason
from quantkit.formats.temporary import temporary_folder
from quantkit.ops.macs import count_macs
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization import annotate

HERE = Path(__file__).parent
GROUPS = Path("/sys/fs/cgroup/cpu")


def write_island(float_model: str, ranges: Path, layer: str, folder: Path) -> tuple[str, Path]:
    """Write the int8 ONNX model with one layer in float; return the name of the layer, and the file."""
    island_layer = layer or largest_layer(float_model)
    path = folder / "island.onnx"
    result = qk.quantize(
        float_model, ranges=ranges, target="onnx", scheme={"target": "onnx", "keep_float": [island_layer]}, runs=0
    )
    result.save(path)
    return island_layer, path


def largest_layer(float_model: str) -> str:
    """Return the layer with most MACs."""
    graph = qk.transform(float_model, "inference").graph
    shapes = infer_shapes(graph)
    patterns = annotate(graph, qk.Scheme(target="onnx")).patterns
    return max((pattern.layer for pattern in patterns), key=lambda layer: count_macs(graph[layer], shapes) or 0)


def row(case: str, kind: str, layer: str, reasons: Sequence[Reason]) -> dict[str, Any]:
    """Return the reasons of a profile, and whether the expected one is among them with its cost."""
    reason = next((each for each in reasons if each.kind == kind), None)
    is_named = reason is not None and layer.rpartition("/")[0] in reason.text
    print(f"{'right' if is_named else 'WRONG'}  {case}: {reason or [each.kind for each in reasons]}", flush=True)
    return {
        "case": case,
        "expected": kind,
        "layer": layer,
        "is_named": is_named,
        "rank": None if reason is None else list(reasons).index(reason) + 1,
        "reasons": [each.to_json() for each in reasons],
    }


def can_limit_cpus() -> bool:
    return os.access(GROUPS, os.W_OK) and (GROUPS / "cpu.cfs_quota_us").exists()


@contextmanager
def cpu_limit(cpus: float) -> Iterator[None]:
    """Run this process and its children with a quota, in a control group of their own."""
    group = GROUPS / f"quantkit-{os.getpid()}"
    group.mkdir()
    period = int((group / "cpu.cfs_period_us").read_text())
    (group / "cpu.cfs_quota_us").write_text(str(int(cpus * period)))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def main() -> None:
    """Profile all cases and write `verdict.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("float_graph", help="frozen float graph")
    parser.add_argument("eightbit_graph", help="graph of the target eightbit")
    parser.add_argument("ranges", type=Path, help="ranges of the target onnx")
    parser.add_argument("--layer", default="", help="layer that stays in float (default: the one with most MACs)")
    parser.add_argument("--out", type=Path, default=HERE / "verdict.json")
    options = parser.parse_args()
    reference = profile_layers([options.float_graph, options.eightbit_graph], runtime="tensorflow", peaks=False)
    rows = [row("classic eightbit graph", "reference kernels", "", reference.reasons)]
    with temporary_folder() as folder:
        layer, island = write_island(options.float_graph, options.ranges, options.layer, folder)
        for runtime in ("onnxruntime", "openvino"):
            profile = profile_layers([options.float_graph, island], runtime=runtime, peaks=False)
            rows.append(row(f"one float layer in {runtime}", "float fallbacks", layer, profile.reasons))
        if can_limit_cpus():
            with cpu_limit(len(os.sched_getaffinity(0)) / 2):
                limited = profile_layers([options.float_graph, island], runtime="onnxruntime", peaks=False)
            rows.append(row("quota of half the CPUs", "cpu quota", "", limited.reasons))
    cpus = [min(os.sched_getaffinity(0))]
    many = profile_layers([options.float_graph], runtime="onnxruntime", peaks=False, cpus=cpus, intra_op=2)
    rows.append(row("two threads on one CPU", "oversubscription", "", many.reasons))
    document = {"schema": "quantkit.bench.verdict/1", "machine": this_machine().to_json(), "rows": rows}
    options.out.write_text(json.dumps(document, indent=1))
    print(f"{sum(each['is_named'] for each in rows)} of {len(rows)} verdicts name the cause")


if __name__ == "__main__":
    main()
