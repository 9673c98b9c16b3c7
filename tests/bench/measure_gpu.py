"""Measure float32, float16 and int8 files on an NVIDIA GPU in ONNX Runtime, in under ten minutes, without TensorFlow.

    python tests/bench/measure_gpu.py BUILD [NETWORK ...] [--runtime RUNTIME ...] [--batch SAMPLES]
        [--time-budget 540] [--device gpu|cpu] [--save FILE]

BUILD has the files that `measure_tensorrt.py` has written on another machine: the ONNX files NETWORK.float32.onnx,
NETWORK.float16.onnx, NETWORK.gpu.onnx and NETWORK.half.onnx, and NETWORK.samples.npz. NETWORK.modelopt.onnx, if
it is there, is the int8 file of NVIDIA's tool:

    python -m modelopt.onnx.quantization --onnx_path=NETWORK.float32.onnx --output_path=NETWORK.modelopt.onnx

NETWORK.unpadded.onnx, if it is there, is NETWORK.half.onnx with `activations = "qint8 symmetric"` in the scheme.

The rows of a network are float32, float16 and int8 in the CUDA provider, which computes int8 layers in float, and
float32, float16 and the int8 files, with float16 for their float layers, in the TensorRT provider; ``native`` is
TensorRT by its Python API. Runs of the rows alternate.
``milliseconds`` has the medians of the copies to the GPU, of the run between them, and of the copies back. ``sqnr``
compares the outputs with those of the CPU. With ``--runtime``, the rows of other runtimes in FILE stay.
``--batch`` repeats the sample in networks with a dynamic first size, whose rows are added to those of FILE.
``--device cpu`` tries the script on a machine without a GPU: its times are those of the CPU, without copies.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from quantkit.benchmark.host.machine import this_machine
from quantkit.ir.tensor import Array
from quantkit.runtimes import open_session
from quantkit.runtimes.session import SessionOptions

WARMUP, ROUNDS = 10, 50
# Parts of a run: copies to the GPU, the model, copies from the GPU.
PARTS = ("upload", "infer", "download")
# For each row: the kind of file, the runtime, and True with float16 for float layers.
ROWS: Mapping[str, tuple[str, str, bool]] = {
    "float32 CUDA": ("float32", "onnxruntime", False),
    "float16 CUDA": ("float16", "onnxruntime", False),
    "int8 CUDA": ("gpu", "onnxruntime", False),
    "float32": ("float32", "tensorrt", False),
    "float16": ("float32", "tensorrt", True),
    "int8": ("gpu", "tensorrt", True),
    "int8 float16 file": ("half", "tensorrt", True),
    "int8 Model-Optimizer": ("modelopt", "tensorrt", True),
    "float32 native": ("float32", "tensorrt_native", False),
    "float16 native": ("float16", "tensorrt_native", False),
    "int8 native": ("gpu", "tensorrt_native", False),
    "int8 float16 file native": ("half", "tensorrt_native", False),
    "int8 float16 file without Pads native": ("unpadded", "tensorrt_native", False),
    "int8 Model-Optimizer native": ("modelopt", "tensorrt_native", False),
}


class Row:
    """Open session, and the parts of its runs."""

    def __init__(
        self, path: Path, runtime: str, feeds: Mapping[str, Array], *, device: str, has_half: bool, batch: int
    ) -> None:
        start = perf_counter()
        options = SessionOptions(device=device, precision="float16" if has_half and device == "gpu" else "float32")
        self.session = open_session(path, runtime if device == "gpu" else "onnxruntime", options)
        self.feeds = {info.name: feeds[info.name] for info in self.session.inputs}
        if batch > 1:
            assert all((info.shape.dims or (1,))[0] is None for info in self.session.inputs), "the batch size is fixed"
            self.feeds = {name: np.repeat(array, batch, axis=0) for name, array in self.feeds.items()}
        self.outputs = list(self.session.run(self.feeds).values())
        self.build_seconds = perf_counter() - start
        self.parts: list[Mapping[str, float]] = []

    def run(self) -> None:
        """Run once; the CPU has no copies."""
        start = perf_counter()
        parts = self.session.time_parts(self.feeds, perf_counter)
        if not parts:
            self.session.run(self.feeds)
        self.parts.append(parts or {"infer": perf_counter() - start})

    def to_json(self, expected: list[Array]) -> dict[str, Any]:
        """Return the figures of the runs after the warm-up."""
        samples = {name: [1e3 * parts.get(name, 0.0) for parts in self.parts[WARMUP:]] for name in PARTS}
        noise = [((exact - other) ** 2).sum() for exact, other in zip(expected, self.outputs, strict=True)]
        ratios = [(exact**2).sum() / max(each, 1e-30) for exact, each in zip(expected, noise, strict=True)]
        return {
            "runtime": str(self.session.runtime),
            "milliseconds": {name: round(median(values), 4) for name, values in samples.items()},
            "build_seconds": round(self.build_seconds, 1),
            "sqnr": round(float(10 * np.log10(max(min(ratios), 1e-30))), 1),
            "samples": [round(value, 4) for value in samples["infer"]],
        }


def read_feeds(build: Path, name: str) -> dict[str, Array]:
    """Return the first sample of a network."""
    with np.load(build / f"{name}.samples.npz") as arrays:
        first = arrays.files[0].partition("/")[0]
        return {key.partition("/")[2]: arrays[key] for key in arrays.files if key.startswith(f"{first}/")}


def measure(name: str, options: argparse.Namespace, deadline: float, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a network; a row without a file or without time has a reason."""
    build, device, batch = options.build, options.device, options.batch
    feeds = read_feeds(build, name)
    cells: dict[str, Any] = {}
    rows: dict[str, Row] = {}
    for label, (kind, runtime, has_half) in ROWS.items():
        path = build / f"{name}.{kind}.onnx"
        if runtime not in (options.runtime or [runtime]):
            cells[label] = saved.get(label, {"skipped": f"the runtime {runtime} was not measured"})
        elif not path.exists():
            cells[label] = {"skipped": f"there is no {path.name}"}
        elif perf_counter() > deadline:
            cells[label] = {"skipped": "time budget exhausted"}
        else:
            try:
                rows[label] = Row(path, runtime, feeds, device=device, has_half=has_half, batch=batch)
            except Exception as error:  # the other rows are measured
                cells[label] = {"error": str(error).splitlines()[0][:300]}
    for _ in range(WARMUP + ROUNDS):
        for row in rows.values():
            row.run()
    exact = Row(build / f"{name}.float32.onnx", "onnxruntime", feeds, device="cpu", has_half=False, batch=batch)
    cells |= {label: row.to_json(exact.outputs) for label, row in rows.items()}
    return {"name": name, "samples": batch, "rows": {label: cells[label] for label in ROWS}}


def main() -> None:
    """Measure the networks and write `gpu.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the files")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="networks (default: all with an int8 file)")
    parser.add_argument("--runtime", action="append", help="runtime, several times for several (default: all)")
    parser.add_argument("--batch", type=int, default=1, metavar="SAMPLES", help="samples in a call (default: 1)")
    parser.add_argument("--time-budget", type=float, default=540.0, help="seconds for all networks (default: 540)")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="device (default: gpu)")
    parser.add_argument("--save", type=Path, default=Path(__file__).with_name("gpu.json"), help="file to write")
    options = parser.parse_args()
    deadline = perf_counter() + options.time_budget
    files = sorted(options.build.glob("*.gpu.onnx"), key=lambda path: path.stat().st_size)
    names = options.networks or [path.name.removesuffix(".gpu.onnx") for path in files]
    saved = json.loads(options.save.read_text())["rows"] if options.save.exists() else []
    machine = this_machine().to_json()
    gpu = next(iter(machine["gpus"]), None)
    rows = {(row["name"], row["samples"], row["gpu"]): row for row in saved}
    for name in (each for each in names if (options.build / f"{each}.float32.onnx").exists()):
        key = name, options.batch, gpu
        saved_row = rows.get(key, {"rows": {}})
        row = measure(name, options, deadline, saved_row["rows"])
        rows[key] = row = {**saved_row, **row, "gpu": gpu, "rows": {**saved_row["rows"], **row["rows"]}}
        print(json.dumps({**row, "rows": {label: {**cell, "samples": None} for label, cell in row["rows"].items()}}))
        document = {"schema": "quantkit.bench.gpu/5", "device": options.device, "machine": machine}
        document["rows"] = [*rows.values()]
        options.save.write_text(json.dumps(document, indent=1) + "\n")
    assert "tensorflow" not in sys.modules


if __name__ == "__main__":
    main()
