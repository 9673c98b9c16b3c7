"""Measure float32, float16 and int8 files on an NVIDIA GPU in ONNX Runtime, in under ten minutes, without TensorFlow.

    python tests/bench/measure_gpu.py BUILD [NETWORK ...] [--time-budget 540] [--device gpu|cpu] [--save FILE]

BUILD has the files that `measure_tensorrt.py` has written on another machine: the ONNX files NETWORK.float32.onnx and
NETWORK.gpu.onnx, and NETWORK.samples.npz. NETWORK.modelopt.onnx, if it is there, is the int8 file of NVIDIA's tool:

    python -m modelopt.onnx.quantization --onnx_path=NETWORK.float32.onnx --output_path=NETWORK.modelopt.onnx

The rows of a network are float32 in the CUDA provider, and float32, float16 and both int8 files, with float16 for their
float layers, in the TensorRT provider. Runs of the rows alternate. ``milliseconds`` is the median with the inputs and
outputs in the memory of the GPU, ``transfer`` the additional time with both on the host. ``sqnr`` compares the outputs
with those of the CPU. ``--device cpu`` tries the script on a machine without a GPU: its times are those of the CPU.
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
import onnxruntime as ort

from quantkit.benchmark.host.machine import this_machine
from quantkit.ir.tensor import Array
from quantkit.runtimes.onnxruntime import CUDA, TENSORRT, _providers

WARMUP, ROUNDS = 10, 50
# For each row: the kind of file, the execution provider, and True with float16 for float layers.
ROWS: Mapping[str, tuple[str, str, bool]] = {
    "float32 CUDA": ("float32", CUDA, False),
    "float32": ("float32", TENSORRT, False),
    "float16": ("float32", TENSORRT, True),
    "int8": ("gpu", TENSORRT, True),
    "int8 Model-Optimizer": ("modelopt", TENSORRT, True),
}


class Row:
    """Open session with its inputs on the host and on the device."""

    def __init__(self, path: Path, provider: str, feeds: Mapping[str, Array], *, device: str, has_half: bool) -> None:
        start = perf_counter()
        providers = ["CPUExecutionProvider"]
        if device == "gpu":
            providers = _providers(ort, 0, provider, has_half=has_half)
        self.session = ort.InferenceSession(str(path), providers=providers)
        if device == "gpu" and self.session.get_providers()[0] != provider:
            raise RuntimeError(f"{provider} could not be started")
        self.feeds = {info.name: feeds[info.name] for info in self.session.get_inputs()}
        self.binding, memory = self.session.io_binding(), "cuda" if device == "gpu" else "cpu"
        for name, array in self.feeds.items():
            self.binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, memory, 0))
        for info in self.session.get_outputs():
            self.binding.bind_output(info.name, memory)
        self.outputs = self.session.run(None, self.feeds)
        self.build_seconds = perf_counter() - start
        self.times: dict[str, list[float]] = {"device": [], "host": []}

    def run(self) -> None:
        """Run once on the device and once from the host."""
        start = perf_counter()
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()
        middle = perf_counter()
        self.session.run(None, self.feeds)
        self.times["device"].append(middle - start)
        self.times["host"].append(perf_counter() - middle)

    def to_json(self, expected: list[Array]) -> dict[str, Any]:
        """Return the figures of the runs after the warm-up."""
        device, host = (1e3 * median(self.times[key][WARMUP:]) for key in ("device", "host"))
        noise = [((exact - other) ** 2).sum() for exact, other in zip(expected, self.outputs, strict=True)]
        ratios = [(exact**2).sum() / max(each, 1e-30) for exact, each in zip(expected, noise, strict=True)]
        return {
            "milliseconds": round(device, 4),
            "transfer": round(host - device, 4),
            "build_seconds": round(self.build_seconds, 1),
            "sqnr": round(float(10 * np.log10(max(min(ratios), 1e-30))), 1),
            "samples": [round(1e3 * seconds, 4) for seconds in self.times["device"][WARMUP:]],
        }


def read_feeds(build: Path, name: str) -> dict[str, Array]:
    """Return the first sample of a network."""
    with np.load(build / f"{name}.samples.npz") as arrays:
        first = arrays.files[0].partition("/")[0]
        return {key.partition("/")[2]: arrays[key] for key in arrays.files if key.startswith(f"{first}/")}


def measure(name: str, build: Path, device: str, deadline: float) -> dict[str, Any]:
    """Return the row of a network; a row without a file or without time has a reason."""
    feeds = read_feeds(build, name)
    cells: dict[str, Any] = {}
    rows: dict[str, Row] = {}
    for label, (kind, provider, has_half) in ROWS.items():
        path = build / f"{name}.{kind}.onnx"
        if not path.exists():
            cells[label] = {"skipped": f"there is no {path.name}"}
        elif perf_counter() > deadline:
            cells[label] = {"skipped": "time budget exhausted"}
        else:
            try:
                rows[label] = Row(path, provider, feeds, device=device, has_half=has_half)
            except Exception as error:  # the other rows are measured
                cells[label] = {"error": str(error).splitlines()[0][:300]}
    for _ in range(WARMUP + ROUNDS):
        for row in rows.values():
            row.run()
    expected = ort.InferenceSession(str(build / f"{name}.float32.onnx"), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    cells |= {label: row.to_json(expected) for label, row in rows.items()}
    return {"name": name, "rows": {label: cells[label] for label in ROWS}}


def main() -> None:
    """Measure the networks and write `gpu.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the files")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="networks (default: all with an int8 file)")
    parser.add_argument("--time-budget", type=float, default=540.0, help="seconds for all networks (default: 540)")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="device (default: gpu)")
    parser.add_argument("--save", type=Path, default=Path(__file__).with_name("gpu.json"), help="file to write")
    options = parser.parse_args()
    ort.set_default_logger_severity(3)
    deadline = perf_counter() + options.time_budget
    files = sorted(options.build.glob("*.gpu.onnx"), key=lambda path: path.stat().st_size)
    names = options.networks or [path.name.removesuffix(".gpu.onnx") for path in files]
    rows: list[dict[str, Any]] = []
    for name in (each for each in names if (options.build / f"{each}.float32.onnx").exists()):
        rows.append(measure(name, options.build, options.device, deadline))
        print(
            json.dumps({**rows[-1], "rows": {key: {**cell, "samples": None} for key, cell in rows[-1]["rows"].items()}})
        )
        document = {"schema": "quantkit.bench.gpu/1", "device": options.device, "version": ort.__version__}
        document |= {"machine": this_machine().to_json(), "rows": rows}
        options.save.write_text(json.dumps(document, indent=1) + "\n")
    assert "tensorflow" not in sys.modules


if __name__ == "__main__":
    main()
