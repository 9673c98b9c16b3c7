"""Check files of the target tensorrt for 20 networks with the builder of TensorRT-RTX, and their SQNR on the CPU.

    python tests/bench/measure_tensorrt.py BUILD [NETWORK ...] [--reuse] [--save FILE]

The networks are those of `support/portable_networks.py`. Each is quantized for the targets ``onnx`` and ``tensorrt`` on
the same samples, and for ``onnx`` with symmetric int8 values and without trials of alternatives: it differs from
``onnx`` by the number of levels and by the trials. The SQNR to the float model is that of ONNX Runtime on the CPU. With
TensorRT-RTX 1.7.1.116, the float file and the file of the target are compiled: the report counts the planned int8
layers that are int8 kernels, and the layers about which `summarize --for tensorrt` and the compiled program agree. No
figure needs a GPU or a quiet machine. `measure_gpu.py` needs the folder BUILD on a machine with a GPU.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

from measure_portability import run_model, sqnr  # type: ignore[import-not-found]  # noqa: E402
from portable_networks import NAMES, SavedNetwork, load_saved, save_networks  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit import formats  # noqa: E402
from quantkit.errors import QuantkitError  # noqa: E402
from quantkit.ir.graph import Graph  # noqa: E402
from quantkit.quantization import Scheme  # noqa: E402
from quantkit.quantization.annotation import in_target_dialect  # noqa: E402
from quantkit.quantization.targets import find_target  # noqa: E402
from quantkit.quantization.targets.finding import Build  # noqa: E402

TARGET = "tensorrt"
# Kinds of files, with the target of each.
KINDS = {"cpu": "onnx", "signed": "onnx", "gpu": TARGET}


def quantize(network: SavedNetwork, kind: str, path: Path) -> None:
    """Write the file of a kind; ``signed`` differs from ``cpu`` only in the type of the values."""
    options = network.options(KINDS[kind])
    if kind == "signed":
        scheme = Scheme.for_target("onnx", activations="qint8 symmetric", keep_float=network.keep_float)
        options = {**options, "scheme": scheme}
    qk.quantize(network.path, network.samples, target=KINDS[kind], output=path, **options)


def compile_graph(graph: Graph, samples: dict[str, tuple[int, ...]]) -> Build:
    """Compile a graph with the sizes of a sample."""
    shapes = {name: shape for name, shape in samples.items() if name in {str(edge) for edge in graph.inputs}}
    return find_target(TARGET).check_build(qk.load(graph, input_shapes=shapes).graph)


def measure(name: str, build: Path, *, reuse: bool) -> dict[str, Any]:
    """Return the row of a network."""
    network = load_saved(name, build)
    shapes = {edge: array.shape for edge, array in network.samples[0].items()}
    expected = run_model(network.path, "onnxruntime", network.samples)
    row: dict[str, Any] = {"name": name, "samples": len(network.samples), "sqnr": {}, "findings": {}}
    for kind in KINDS:
        path = build / f"{name}.{kind}.onnx"
        try:
            if not reuse or not path.exists():
                quantize(network, kind, path)
            row["sqnr"][kind] = sqnr(expected, run_model(path, "onnxruntime", network.samples))
            findings = find_target(TARGET).examine(qk.load(path).graph)
            row["findings"][kind] = dict(Counter(f"{finding.effect}: {finding.kind}" for finding in findings))
        except (QuantkitError, ValueError) as error:
            row["sqnr"][kind] = f"{type(error).__name__}: {error}"[:200]
    try:
        source = in_target_dialect(qk.load(network.path).graph, TARGET)
        formats.save(source, build / f"{name}.float32.onnx")
        row["float"] = compile_graph(source, shapes).problem or "built"
        graph = qk.load(build / f"{name}.gpu.onnx").graph
        result = compile_graph(graph, shapes)
        agreed = result.num_layers - len(result.planned ^ result.kernels)
        row["build"] = {**result.to_json(), "agreed": agreed}
    except QuantkitError as error:
        row["build"] = {"problem": error.message}
    return row


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of the networks whose float file is compiled, and the differences of the SQNR."""
    built = [row for row in rows if row.get("float") == "built"]
    results = [row["build"] for row in built if not row["build"]["problem"]]
    pairs = {row["name"]: row["sqnr"] for row in rows if not any(isinstance(x, str) for x in row["sqnr"].values())}
    losses = {name: round(pair["cpu"] - pair["gpu"], 2) for name, pair in pairs.items()}
    signed = {name: round(pair["signed"] - pair["gpu"], 2) for name, pair in pairs.items()}
    planned, layers = (sum(result[key] for result in results) for key in ("planned", "layers"))
    return {
        "networks": len(rows),
        "float_built": len(built),
        "int8_built": len(results),
        "planned_that_are_int8": round(sum(result["int8_kernels"] for result in results) / max(planned, 1), 4),
        "agreement": round(sum(result["agreed"] for result in results) / max(layers, 1), 4),
        "loss_db": losses,
        "loss_to_signed_db": signed,
    }


def main() -> None:
    """Measure the networks and write `tensorrt.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NAMES))
    parser.add_argument("--reuse", action="store_true", help="compare the models in BUILD again without quantizing")
    parser.add_argument("--save", type=Path, default=HERE / "tensorrt.json", help="file to write")
    options = parser.parse_args()
    saved = json.loads(options.save.read_text()) if options.save.exists() else {"rows": []}
    rows = {row["name"]: row for row in saved["rows"]}
    save_networks(options.build)
    for name in options.networks or NAMES:
        rows[name] = measure(name, options.build, reuse=options.reuse)
        print(json.dumps(rows[name]), flush=True)
        ordered = [rows[each] for each in NAMES if each in rows]
        document = {"schema": "quantkit.bench.tensorrt/1", "summary": summarize(ordered), "rows": ordered}
        options.save.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
