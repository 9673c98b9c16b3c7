"""Profile a float and an int8 model in each runtime: names of the original graph, and the sum of the parts.

python tests/bench/measure_profile.py profile.json FLOAT.pb INT8.onnx INT8.pb
"""

import json
import sys
from pathlib import Path
from typing import Any

from quantkit.benchmark import Profile, profile_layers
from quantkit.benchmark.host.machine import this_machine

SCHEMA = "quantkit.bench.profile/1"


def facts(profile: Profile) -> list[dict[str, Any]]:
    """Return coverage, and the sum of the rows over the latency without a trace, of each model."""
    return [
        {**model.to_json(), "sum_over_untraced": model.seconds / model.untraced_seconds} for model in profile.models
    ]


def main() -> None:
    output, float_model, int8_onnx, int8_tensorflow = sys.argv[1:]
    pairs = {"openvino": int8_onnx, "onnxruntime": int8_onnx, "tensorflow": int8_tensorflow}
    rows = []
    for runtime, int8_model in pairs.items():
        rows += facts(profile_layers([float_model, int8_model], peaks=False, runtime=runtime))
        print(*(f"{row['label']} {row['coverage']:.4f} {row['sum_over_untraced']:.3f}" for row in rows[-2:]))
    document = {"schema": SCHEMA, "machine": this_machine().to_json(), "rows": rows}
    Path(output).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
