"""Measure the int8 models of quantkit next to those of other quantizers: same graph, images and machine.

    python tests/bench/measure_eight_bit.py PEERS.py BUILD [--rounds 3]

PEERS.py sets up and measures the other tools (run its ``setup`` and ``quantize`` in BUILD first). This script quantizes
with every target, lets PEERS.py measure all models in alternation, and writes `eight_bit.json`: one row for each model
(milliseconds, agreement and KL divergence with the float model, megabytes), and run time and peak memory of each
``quantkit quantize``, with the latency of its report and without.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from quantkit.benchmark.host.machine import this_machine

HERE = Path(__file__).parent
# File, and the runtime and threads (intra-op, inter-op) with the lowest latency.
MODELS = {
    "quantkit onnx in OpenVINO": ("quantkit.onnx", "openvino:2,1"),
    "quantkit onnx --uint8-input in OpenVINO": ("quantkit_pixels.onnx", "openvino:2,1"),
    "quantkit onnx in ONNX Runtime": ("quantkit.onnx", "onnxruntime:2,1"),
    "quantkit tensorflow in TensorFlow": ("quantkit_fused.pb", "tensorflow:1,2"),
    "quantkit tensorflow --uint8-input in TensorFlow": ("quantkit_fused_pixels.pb", "tensorflow:1,2"),
    "quantkit litert in LiteRT": ("quantkit.tflite", "litert:2,1"),
}
# Flags of `quantkit quantize` for each file.
FLAGS = {
    "quantkit.onnx": ("--target=onnx",),
    "quantkit_pixels.onnx": ("--target=onnx", "--uint8-input"),
    "quantkit_fused.pb": ("--target=tensorflow",),
    "quantkit_fused_pixels.pb": ("--target=tensorflow", "--uint8-input"),
    "quantkit.tflite": ("--target=litert",),
}


def quantize(build: Path, file: str) -> dict[str, Any]:
    """Return run time in seconds and peak memory in bytes of one quantization, whole process."""
    command = ["quantkit", "quantize", str(build / "std" / "classify_image_graph_def.pb"), "--inputs=Mul"]
    command += ["--outputs=softmax", "-o", str(build / file), f"--calibration={build / 'calibration.npy'}"]
    command += [*FLAGS[file], "-q"]
    seconds_without_latency, _ = run([*command, "--runs=0"])
    seconds, peak_bytes = run(command)
    return {
        "target": " ".join(FLAGS[file]).removeprefix("--target="),
        "seconds": seconds,
        "seconds_without_latency": seconds_without_latency,
        "peak_bytes": peak_bytes,
    }


def run(command: list[str]) -> tuple[float, int]:
    """Run a command; return its run time in seconds and its peak memory in bytes."""
    timed = ["/usr/bin/time", "-f", "%e %M", *command]
    done = subprocess.run(timed, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds, kilobytes = done.stderr.split()[-2:]
    return float(seconds), int(kilobytes) * 1024


def measure(peers: Path, build: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of PEERS.py for its models and those of quantkit."""
    runner = f"{sys.executable} {HERE / 'run_model.py'}"
    also = [f"--also={name}={runner} {build / file}@{settings}" for name, (file, settings) in MODELS.items()]
    command = [str(build / "venv" / "tf" / "bin" / "python"), str(peers), "measure", str(build), f"--rounds={rounds}"]
    done = subprocess.run([*command, *also], check=True, stdout=subprocess.PIPE, text=True)
    sizes = {name: (build / file).stat().st_size for name, (file, _) in MODELS.items()}
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row | ({"megabytes": round(sizes[row["name"]] / 1e6, 1)} if row["name"] in sizes else {}) for row in rows]


def main() -> None:
    """Quantize, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # An installed package has compiled modules, an editable installation need not have them.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    folders = [str(HERE.parents[1] / name) for name in ("quantkit", "cli")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], check=True)
    quantized = [quantize(options.build, file) for file in FLAGS]
    document = {
        "schema": "quantkit.eight_bit/1",
        "machine": this_machine().to_json(),
        "quantize": quantized,
        "rows": measure(options.peers, options.build, options.rounds),
    }
    (HERE / "eight_bit.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
