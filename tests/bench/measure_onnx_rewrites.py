"""Rewrite large ONNX files with `transform --recipe inference`, onnxslim and ONNX Runtime's offline optimizer.

    python tests/bench/measure_onnx_rewrites.py BUILD [FILE.onnx ...] [--runs 7] [--save FILE]

Without files, two files of about 100 MB are exported to the folder BUILD: a ResNet-50 of Keras with its batch norms,
and a BERT of keras-hub (random weights: the packages have no others). The tools run in turn, each in a process of its
own, as their users call them. The rows of `onnx_rewrites.json` have the wall and CPU times and the peak memory of all
processes, the nodes of each result without constants, its size, and the largest change of an output for seeded inputs
in ONNX Runtime, relative to the largest absolute output.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from zoo_graphs import randomize_statistics  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit import formats  # noqa: E402
from quantkit.benchmark.host.machine import this_machine  # noqa: E402
from quantkit.convert.to_onnx import to_onnx_graph  # noqa: E402
from quantkit.ir.tensor import Array  # noqa: E402

SOURCE_OPS = ("Constant", "Placeholder", "Absent")
OPTIMIZE = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.optimized_model_filepath = sys.argv[2]
options.log_severity_level = 4
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""
QUANTKIT = str(Path(sys.executable).parent / "quantkit")


def quantkit_command(source: Path, output: Path) -> list[str]:
    return [QUANTKIT, "transform", str(source), "-o", str(output), "--recipe", "inference", "-q"]


def onnxslim_command(source: Path, output: Path) -> list[str]:
    return [sys.executable, "-m", "onnxslim", str(source), str(output)]


def onnxruntime_command(source: Path, output: Path) -> list[str]:
    return [sys.executable, "-c", OPTIMIZE, str(source), str(output)]


TOOLS: Mapping[str, Callable[[Path, Path], list[str]]] = {
    "quantkit": quantkit_command,
    "onnxslim": onnxslim_command,
    "onnxruntime": onnxruntime_command,
}


def resnet() -> Any:
    import keras

    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    randomize_statistics(keras, model)
    return model


def bert() -> Any:
    import keras_hub  # type: ignore[import-not-found]

    model = keras_hub.models.BertBackbone(
        vocabulary_size=12_000,
        num_layers=6,
        num_heads=8,
        hidden_dim=512,
        intermediate_dim=2048,
        max_sequence_length=128,
    )
    random = np.random.default_rng(0)
    for variable in model.weights:  # a trained network has no zero biases
        if variable.path.endswith(("bias", "beta")):
            variable.assign(random.uniform(-0.2, 0.2, variable.shape))
    return model


NETWORKS: Mapping[str, Callable[[], Any]] = {"resnet50": resnet, "bert": bert}


def export(name: str, build: Path) -> Path:
    """Return the ONNX file of a network, which is written if it does not exist."""
    path = build / f"{name}.onnx"
    if not path.exists():
        formats.save(to_onnx_graph(qk.load(NETWORKS[name]()).graph), path)
    return path


def run_process(command: list[str]) -> dict[str, float]:
    """Return seconds and peak memory of a process.

    Raises:
        RuntimeError: the process failed; with its last message.
    """
    # The peak memory of a child of this process would contain the memory of this process at the fork.
    timed = ["/usr/bin/time", "-f", "%e %U %S %M", *command]
    process = subprocess.run(timed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    *messages, times = process.stderr.strip().splitlines()
    if process.returncode:
        raise RuntimeError(messages[-1] if messages else "no message")
    seconds, user, system, kilobytes = map(float, times.split())
    return {"seconds": seconds, "cpu_seconds": round(user + system, 2), "peak_bytes": kilobytes * 1024}


def count_nodes(path: Path) -> int:
    """Return the number of nodes that compute."""
    return sum(node.op not in SOURCE_OPS for node in formats.load(path).nodes.values())


def seeded_inputs(path: Path) -> dict[str, Array]:
    """Return seeded inputs: 0 and 1 for integers, ones for masks, noise for others."""
    random, feeds = np.random.default_rng(0), {}
    with qk.open_session(path, "onnxruntime") as session:
        for info in session.inputs:
            first, *rest = info.shape.dims or (1,)
            dims = (first or 1, *(size or 16 for size in rest))
            dtype = info.dtype.numpy
            values = (
                np.ones(dims) if "mask" in info.name else random.integers(0, 2, dims) if dtype.kind in "iub" else None
            )
            feeds[info.name] = (random.normal(size=dims) if values is None else values).astype(dtype)
    return feeds


def run_model(path: Path, feeds: Mapping[str, Array]) -> list[Array]:
    with qk.open_session(path, "onnxruntime") as session:
        return list(session.run(feeds).values())


def measure(source: Path, build: Path, runs: int) -> dict[str, Any]:
    """Return the row of one file."""
    outputs = {tool: build / f"{source.stem}.{tool}.onnx" for tool in TOOLS}
    samples: dict[str, list[dict[str, float]]] = {tool: [] for tool in TOOLS}
    errors: dict[str, str] = {}
    for number in range(runs + 1):
        for tool, command in TOOLS.items():
            if tool in errors:
                continue
            try:
                sample = run_process(command(source, outputs[tool]))
            except RuntimeError as error:
                errors[tool] = str(error)
                continue
            if number:
                samples[tool].append(sample)
    feeds = seeded_inputs(source)
    expected = run_model(source, feeds)
    cells: dict[str, Any] = {}
    for tool in TOOLS:
        if tool in errors:
            cells[tool] = {"error": errors[tool]}
            continue
        actual = run_model(outputs[tool], feeds)
        cells[tool] = {
            "seconds": round(statistics.median(sample["seconds"] for sample in samples[tool]), 3),
            "cpu_seconds": round(statistics.median(sample["cpu_seconds"] for sample in samples[tool]), 3),
            "peak_bytes": int(max(sample["peak_bytes"] for sample in samples[tool])),
            "nodes": count_nodes(outputs[tool]),
            "bytes": outputs[tool].stat().st_size,
            "error": max(
                float(np.abs(values - others).max() / np.abs(values).max())
                for values, others in zip(expected, actual, strict=True)
            ),
            "runs": samples[tool],
        }
    return {"file": source.name, "bytes": source.stat().st_size, "nodes": count_nodes(source), "tools": cells}


def describe(row: Mapping[str, Any]) -> str:
    """Return the lines of a file in the table."""
    lines = [f"{row['file']}: {row['bytes'] / 1e6:.0f} MB, {row['nodes']} nodes"]
    for tool, cell in row["tools"].items():
        if "seconds" not in cell:
            lines.append(f"  {tool:<12}{cell['error']}")
            continue
        memory = f"{cell['peak_bytes'] / 1e6:.0f} MB of memory"
        lines.append(
            f"  {tool:<12}{cell['seconds']:.2f} s ({cell['cpu_seconds']:.2f} s of CPU time), {memory}, "
            f"{cell['nodes']} nodes, largest change {cell['error']:.1e}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all files, print the table, and write `onnx_rewrites.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the files that are exported and written")
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE.onnx", help="files to rewrite (default: two exports)"
    )
    parser.add_argument("--runs", type=int, default=7, help="runs of each tool after the first one (default: 7)")
    parser.add_argument("--save", type=Path, default=HERE / "onnx_rewrites.json", help="file to write")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    rows = []
    for path in options.files or (export(name, options.build) for name in NETWORKS):
        rows.append(measure(path, options.build, options.runs))
        print(describe(rows[-1]), flush=True)
    document = {"schema": "quantkit.onnx_rewrites/1", "machine": this_machine().to_json(), "rows": rows}
    options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
