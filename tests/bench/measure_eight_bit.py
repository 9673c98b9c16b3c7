"""Our 8-bit models beside those of other quantizers: the same graph, pictures and machine, in turn.

    python tests/bench/measure_eight_bit.py PEERS.py BUILD [--rounds 3]

PEERS.py sets up other tools and measures (``setup`` and ``quantize`` must have run in BUILD); this script quantizes
with every target of ours, lets PEERS.py measure all of them side by side, and writes `eight_bit.json`: one row for
each model (milliseconds, agreement and KL with the float model, megabytes) and, for each file of ours, seconds and
peak memory of the whole ``quantkit quantize``.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from quantkit.benchmark.machine import this_machine

HERE = Path(__file__).parent
# File, and the engine and threads (intra, inter) that run it best.
OURS = {
    "quantkit onnx in OpenVINO": ("quantkit.onnx", "openvino:2,1"),
    "quantkit onnx --uint8-input in OpenVINO": ("quantkit_pixels.onnx", "openvino:2,1"),
    "quantkit onnx in ONNX Runtime": ("quantkit.onnx", "onnxruntime:2,1"),
    "quantkit tensorflow in TensorFlow": ("quantkit_fused.pb", "tensorflow:1,2"),
    "quantkit tensorflow --uint8-input in TensorFlow": ("quantkit_fused_pixels.pb", "tensorflow:1,2"),
    "quantkit litert in LiteRT": ("quantkit.tflite", "litert:2,1"),
}
# What makes each file.
FLAGS = {
    "quantkit.onnx": ("--target=onnx",),
    "quantkit_pixels.onnx": ("--target=onnx", "--uint8-input"),
    "quantkit_fused.pb": ("--target=tensorflow",),
    "quantkit_fused_pixels.pb": ("--target=tensorflow", "--uint8-input"),
    "quantkit.tflite": ("--target=litert",),
}


def quantize(build: Path, file: str) -> dict[str, Any]:
    """Seconds and peak bytes of the whole process that makes one of our models."""
    command = ["quantkit", "quantize", str(build / "std" / "classify_image_graph_def.pb"), "--inputs=Mul"]
    command += ["--outputs=softmax", "-o", str(build / file), f"--calibration={build / 'calibration.npy'}"]
    command += [*FLAGS[file], "-q"]
    timed = ["/usr/bin/time", "-f", "%e %M", *command]
    done = subprocess.run(timed, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds, kilobytes = done.stderr.split()[-2:]
    return {
        "target": " ".join(FLAGS[file]).removeprefix("--target="),
        "seconds": float(seconds),
        "peak_bytes": int(kilobytes) * 1024,
    }


def measure(peers: Path, build: Path, rounds: int) -> list[dict[str, Any]]:
    """The rows of PEERS.py for its models and ours."""
    runner = f"{sys.executable} {HERE / 'run_model.py'}"
    also = [f"--also={name}={runner} {build / file}@{engine}" for name, (file, engine) in OURS.items()]
    command = [str(build / "venv" / "tf" / "bin" / "python"), str(peers), "measure", str(build), f"--rounds={rounds}"]
    done = subprocess.run([*command, *also], check=True, stdout=subprocess.PIPE, text=True)
    sizes = {name: (build / file).stat().st_size for name, (file, _) in OURS.items()}
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
