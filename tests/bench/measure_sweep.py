"""Sweep the settings of float and int8 networks in TensorFlow, ONNX Runtime and OpenVINO.

    python tests/bench/measure_sweep.py FLOAT.pb INT8.pb INT8.onnx [--time-budget 5m]

Sweeps the float graph in all three runtimes, the int8 graph in TensorFlow, and the int8 ONNX model in ONNX Runtime and
OpenVINO. Writes `sweep.json` after each. A finished sweep in this file is not repeated.
"""

import argparse
import json
from pathlib import Path

import quantkit as qk

HERE = Path(__file__).parent


def main() -> None:
    """Run all sweeps and write `sweep.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("float_graph", help="frozen float graph")
    parser.add_argument("int8_graph", help="int8 graph of the target tensorflow")
    parser.add_argument("int8_onnx", help="int8 model of the target onnx")
    parser.add_argument("--time-budget", default="5m", help="time limit of each sweep (default: 5m)")
    parser.add_argument("--out", type=Path, default=HERE / "sweep.json")
    options = parser.parse_args()
    runs = {f"float {name}": (options.float_graph, name) for name in ("tensorflow", "onnxruntime", "openvino")}
    runs["int8 tensorflow"] = (options.int8_graph, "tensorflow")
    runs |= {f"int8 {name}": (options.int8_onnx, name) for name in ("onnxruntime", "openvino")}
    document = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name, (model, runtime) in runs.items():
        if name not in document:
            result = qk.sweep(model, runtime=runtime, time_budget=options.time_budget)
            document[name] = result.to_json()
            options.out.write_text(json.dumps(document, indent=1))
            print(f"{name}: {result.models[0].verdict}", flush=True)


if __name__ == "__main__":
    main()
