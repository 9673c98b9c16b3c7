"""Check files of the target tensorrt for 20 networks with the builder of TensorRT-RTX, and their SQNR on the CPU.

    python tests/bench/measure_tensorrt.py BUILD [NETWORK ...] [MODE]

The modes are --reuse, --observers, --tensors and --held-out.
The networks are those of `support/portable_networks.py`. Each is quantized on the same samples: ``cpu`` for the target
``onnx``, ``gpu`` for ``tensorrt``, and ``half`` is ``gpu`` with float16 for the float layers. The SQNR to the float
model is that of ONNX Runtime on the CPU; ``paired_loss_db`` compares the samples in pairs.
``pads`` is the number of Pad ops for zero points of inputs of padded convolutions.
With --observers, the first samples are quantized without trials instead: with the ranges of each observer, and in each
number format: ``cpu`` is the target ``onnx``, ``padded`` has zero points of all tensors, with Pad ops before padded
convolutions (activations ``qint8 affine`` in the scheme).
With --tensors, ``edges`` compares the SQNR of each tensor that both targets quantize, without trials: the loss of the
target ``tensorrt``, the same with zero points of all tensors, and the calculated loss of the number format, 20 log10 of
the ratio of the steps for the range of the ``onnx`` file. ``exceeding`` has the measured and the calculated loss of
each symmetric tensor with negative values that loses more. ``kernels`` counts those of both compiled files.
With --held-out, the files in BUILD are compared on samples that no calibration saw, before a final Softmax or
Sigmoid: ``held_out`` has their number, the SQNR and the mean loss of a sample.

With TensorRT-RTX 1.7.1.116, the float file and the files of the target are compiled: the report counts the planned int8
layers that are int8 kernels, and the layers about which `summarize --for tensorrt` and the compiled program agree. No
figure needs a GPU or a quiet machine. `measure_gpu.py` needs the folder BUILD on a machine with a GPU.
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np  # noqa: E402
from measure_portability import Outputs, sqnr  # type: ignore[import-not-found]  # noqa: E402
from onnx_networks import Feeds  # noqa: E402
from portable_networks import NAMES, SavedNetwork, load_saved, save_networks, unseen_samples  # noqa: E402

import quantkit as qk  # noqa: E402
from quantkit import formats  # noqa: E402
from quantkit.benchmark.statistics.student import quantile  # noqa: E402
from quantkit.errors import UnavailableError, UsageError  # noqa: E402
from quantkit.ir.graph import Edge, Graph  # noqa: E402
from quantkit.quantization import Scheme, annotate, calibrate, prepare  # noqa: E402
from quantkit.quantization.annotation import in_target_dialect  # noqa: E402
from quantkit.quantization.calibration import open_calibration_session  # noqa: E402
from quantkit.quantization.calibration.observation import tensor_name  # noqa: E402
from quantkit.quantization.parameters import QuantizationParameters  # noqa: E402
from quantkit.quantization.precision.error import tap_outputs  # noqa: E402
from quantkit.quantization.ranges import Range  # noqa: E402
from quantkit.quantization.targets import find_target  # noqa: E402
from quantkit.quantization.targets.advice import SIGNED_LEVELS, UNSIGNED_LEVELS  # noqa: E402
from quantkit.quantization.targets.finding import Build, Finding  # noqa: E402
from quantkit.quantization.targets.tensorrt.builder import PACKAGE  # noqa: E402
from quantkit.quantization.targets.tensorrt.zero_points import AFFINE  # noqa: E402
from quantkit.quantization.workflow.conversion import Conversion  # noqa: E402
from quantkit.quantization.workflow.options import FLOAT16  # noqa: E402
from quantkit.quantization.workflow.result import QuantizationResult  # noqa: E402
from quantkit.runtimes.tensorrt import Network  # noqa: E402
from quantkit.transforms.precision.convert_precision import narrow_ops  # noqa: E402

TARGET = "tensorrt"
# Targets of the files by kind.
KINDS = {"cpu": "onnx", "gpu": TARGET}
OBSERVERS = ("mean_squared_error", "entropy", "min_max")
# Samples of the comparison of observers.
NUM_OBSERVED = 8
# Networks that choose the observer; the others confirm the choice.
CHOOSING = NAMES[::2]
# Largest loss of a tensor with signed values in dB.
MAX_LOSS = 0.1


def rename_feeds(sample: Feeds, names: list[str]) -> Feeds:
    """Return the arrays of a sample by the names of a graph, whose inputs may be converted or fewer."""
    if sample.keys() >= set(names):
        return {name: sample[name] for name in names}
    return dict(zip(names, sample.values(), strict=True))


def run_model(path: Path, network: SavedNetwork, *, is_tapped: bool = False) -> Outputs:
    """Return the outputs of each sample in ONNX Runtime on the CPU, or those before a final Softmax or Sigmoid."""
    tapped = tap_outputs(qk.transform(path, "remove_nodes(op=Identity)").graph) if is_tapped else path
    with qk.open_session(tapped, "onnxruntime") as session:
        names = [info.name for info in session.inputs]
        return [session.run(rename_feeds(sample, names)) for sample in network.samples]


def quantize(network: SavedNetwork, target: str, path: Path) -> QuantizationResult:
    """Write the file of a target."""
    return qk.quantize(network.path, network.samples, target=target, output=path, **network.options(target))


def calibrate_for(network: SavedNetwork, target: str = TARGET, **fields: str) -> Conversion:
    """Return the conversion of a network for a target, without trials of alternatives.

    Args:
        network: float model with samples.
        target: name of the target.
        **fields: fields of the scheme.
    """
    scheme = Scheme.for_target(target, keep_float=network.keep_float, **fields)
    graph = prepare(qk.transform(qk.load(network.path), "inference").graph, scheme)
    plan = annotate(graph, scheme, float_nodes=find_target(target).slow_nodes(graph, "auto"))
    names = [str(edge) for edge in graph.inputs]
    ranges = calibrate(graph, plan, [rename_feeds(sample, names) for sample in network.samples])
    return Conversion(graph, plan, ranges.merge_groups(plan.groups))


def compare_edges(network: SavedNetwork, cpu: Conversion, gpu: Conversion, padded: Conversion) -> dict[str, Any]:
    """Return the losses of each edge that both targets quantize in dB: ``measured``, ``padded`` and ``calculated``.

    The edges with negative values are ``signed``, those of symmetric values without a zero point ``symmetric``. The
    values are those of the float model for the samples of the calibration, rounded with the parameters of each file.
    ``exceeding`` has the names of symmetric signed edges with a larger loss than the calculated one.

    Args:
        network: float model with samples.
        cpu: conversion for the target ``onnx``.
        gpu: conversion for ``tensorrt``.
        padded: the same with zero points of all tensors.
    """
    parameters = [each.target.edge_parameters(each.graph, each.plan, each.ranges) for each in (cpu, gpu, padded)]
    edges = set.intersection(*map(set, parameters))
    powers = measure_edges(network, gpu, edges & {*gpu.plan.edges}, parameters)
    powers |= measure_edges(network, cpu, edges & {*cpu.plan.edges} - powers.keys(), parameters)
    losses: dict[str, Any] = {"exceeding": {}}
    for edge in (edge for edge in gpu.plan.activations if edge in powers and powers[edge].all()):
        spec, affine = gpu.plan.activations[edge], parameters[0][edge]
        low, high = (np.array(affine.spec.limits) - affine.zero_point) * affine.scale
        step = QuantizationParameters.of_range(spec, Range(float(low), float(high))).scale
        kind = "symmetric" if spec.symmetric else "affine"
        kind += " signed" if gpu.ranges.extremes.get(edge, gpu.ranges[edge]).low < 0 else " unsigned"
        first, second, third = 10 * np.log10(powers[edge])
        calculated = 20 * np.log10(step / affine.scale)
        loss = {"measured": second - first, "padded": third - first, "calculated": calculated}
        rows = losses.setdefault(kind, {key: [] for key in loss})
        for key, value in loss.items():
            rows[key].append(round(float(value), 3))
        if kind == "symmetric signed" and loss["measured"] - loss["calculated"] > MAX_LOSS:
            losses["exceeding"][str(edge)] = [rows[key][-1] for key in ("measured", "calculated")]
    return losses


def measure_edges(
    network: SavedNetwork, source: Conversion, edges: set[Edge], parameters: list[Any]
) -> dict[Edge, Any]:
    """Return the power of the errors of the values of edges with each of the parameters, (3,)."""
    graph, powers = source.graph, {edge: np.zeros(len(parameters)) for edge in edges}
    with open_calibration_session(graph, source.plan, "auto") as session:
        names = [info.name for info in session.inputs]
        for sample in network.samples:
            feeds = rename_feeds(sample, names)
            values = {**feeds, **session.run(feeds)}
            for edge, sums in powers.items():
                exact = values[tensor_name(graph, edge)]
                errors = [(exact - each[edge].fake_quantize(exact)).astype(np.float64) for each in parameters]
                sums += [float((error**2).sum()) for error in errors]
    return powers


def compare_formats(network: SavedNetwork, build: Path, name: str) -> dict[str, Any]:
    """Return the figures of the first samples without trials, by observer and by format."""
    network = replace(network, samples=network.samples[:NUM_OBSERVED])
    expected, path = run_model(network.path, network), build / f"{name}.tried.onnx"

    def loss(conversion: Conversion) -> float:
        conversion.write(path)
        return float(sqnr(expected, run_model(path, network)))

    others = {observer: loss(calibrate_for(network, observer=observer)) for observer in OBSERVERS[1:]}
    shapes = {edge: array.shape for edge, array in network.samples[0].items()}
    values = {"cpu": loss(calibrate_for(network, "onnx")), "gpu": loss(calibrate_for(network))}
    values["padded"] = loss(calibrate_for(network, activations=str(AFFINE)))
    padded = compile_graph(qk.load(path).graph, shapes)
    return {
        "observers": {OBSERVERS[0]: values["gpu"], **others},
        "formats": values,
        "padded": build_of(padded),
    }


def compile_graph(graph: Graph, samples: dict[str, tuple[int, ...]]) -> Build:
    """Compile a graph with the sizes of a sample."""
    shapes = {name: shape for name, shape in samples.items() if name in {str(edge) for edge in graph.inputs}}
    build: Build = find_target(TARGET).check_build(qk.load(graph, input_shapes=shapes).graph)
    return build


def compare_tensors(network: SavedNetwork) -> dict[str, Any]:
    """Return the losses of the tensors of all samples, and the number of kernels without and with zero points."""
    shapes = {edge: array.shape for edge, array in network.samples[0].items()}
    gpu, padded = calibrate_for(network), calibrate_for(network, activations=str(AFFINE))
    return {
        "edges": compare_edges(network, calibrate_for(network, "onnx"), gpu, padded),
        "kernels": [count_kernels(each.quantized, shapes) for each in (gpu, padded)],
    }


def count_kernels(graph: Graph, samples: dict[str, tuple[int, ...]]) -> int:
    """Return the number of kernels of the compiled program with the sizes of a sample."""
    shapes = {name: shape for name, shape in samples.items() if name in {str(edge) for edge in graph.inputs}}
    model = formats.onnx.encode(formats.onnx.with_node_names(qk.load(graph, input_shapes=shapes).graph))
    text = Network(import_module(PACKAGE), model).build({}).decode("latin-1")
    parts = re.findall(r"^  (\w+)={ (.*?)(?=^  \w+={ |\Z)", text, re.M | re.S)
    return sum(kind not in ("tensor", "signal", "wait") and "layers=" in facts for kind, facts in parts)


def measure(
    name: str,
    build: Path,
    row: dict[str, Any],
    *,
    reuse: bool,
    observers: bool,
    tensors: bool,
    held_out: bool,
) -> dict[str, Any]:
    """Return the new row of a network."""
    network = load_saved(name, build)
    if held_out:
        return {**row, "name": name, "held_out": compare_held_out(network, build, name)}
    row = {**row, "name": name, "samples": len(network.samples)}
    try:
        if tensors:
            return {**row, **compare_tensors(network)}
        if observers:
            return {**row, **compare_formats(network, build, name)}
    except UsageError as error:  # states whose first dimension is not that of the samples
        return {**row, "not_observed": error.message}
    shapes = {edge: array.shape for edge, array in network.samples[0].items()}
    expected = run_model(network.path, network)

    def outputs_of(kind: str) -> Outputs:
        return run_model(build / f"{name}.{kind}.onnx", network)

    if not reuse:
        results = {kind: quantize(network, KINDS[kind], build / f"{name}.{kind}.onnx") for kind in KINDS}
        replace(results["gpu"].conversion, float_parts=FLOAT16).write(build / f"{name}.half.onnx")
    outputs = {kind: outputs_of(kind) for kind in (*KINDS, "half")}
    row["pads"] = sum(
        node.op == "Pad" and name.endswith("/padded")
        for name, node in qk.load(build / f"{row['name']}.gpu.onnx").graph.nodes.items()
    )
    row["sqnr"] = {kind: float(sqnr(expected, values)) for kind, values in outputs.items()}
    row["paired_loss_db"] = compare_samples(expected, outputs)
    row["findings"] = {
        kind: dict(Counter(f"{finding.effect}: {finding.kind}" for finding in find_findings(build, name, kind)))
        for kind in row["sqnr"]
    }
    try:
        source = in_target_dialect(qk.load(network.path).graph, TARGET)
        formats.save(source, build / f"{name}.float32.onnx")
        formats.save(narrow_ops(source, "float16", ()), build / f"{name}.float16.onnx")
        row["float"] = compile_graph(source, shapes).problem or "built"
        for key, kind in (("build", "gpu"), ("half", "half")):
            result = compile_graph(qk.load(build / f"{name}.{kind}.onnx").graph, shapes)
            row[key] = build_of(result)
    except UnavailableError as error:
        row["float"] = error.message
    return row


def compare_samples(expected: Outputs, outputs: dict[str, Outputs]) -> list[float]:
    """Return the mean loss of a sample from ``cpu`` to ``gpu`` in dB, and half of its 95 % interval.

    The SQNR of all samples is that of the few with most noise; the pairs show whether a difference is one of the form.
    """
    samples = [
        [sqnr([exact], [values]) for exact, values in zip(expected, outputs[kind], strict=True)] for kind in KINDS
    ]
    return [*summarize_mean(np.subtract(samples[0], samples[1]))]


def compare_held_out(network: SavedNetwork, build: Path, name: str) -> dict[str, Any]:
    """Return the SQNR of both targets on held-out samples, and the mean loss of a sample from ``cpu`` to ``gpu``.

    A probability near 1 has almost no error, so that 10 of 468 photographs make two thirds of that of Inception v3: the
    outputs are those before a final Softmax or Sigmoid, as in the error model of `quantize`.
    """
    evaluated = replace(network, samples=unseen_samples(name, build))
    expected = run_model(build / f"{name}.float32.onnx", evaluated, is_tapped=True)
    outputs = {kind: run_model(build / f"{name}.{kind}.onnx", evaluated, is_tapped=True) for kind in KINDS}
    return {
        "samples": len(evaluated.samples),
        "sqnr": {kind: float(sqnr(expected, values)) for kind, values in outputs.items()},
        "paired_loss_db": compare_samples(expected, outputs),
    }


def summarize_mean(values: Any) -> tuple[float, float]:
    """Return the mean of values, and half of its 95 % interval."""
    deviation = quantile(0.95, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return round(float(np.mean(values)), 2), round(float(deviation), 2)


def build_of(result: Build) -> dict[str, Any]:
    """Return the facts of a build, and the number of layers about which checker and builder agree."""
    return {**result.to_json(), "agreed": result.num_layers - len(result.planned ^ result.kernels)}


def find_findings(build: Path, name: str, kind: str) -> tuple[Finding, ...]:
    """Return the findings of `summarize --for tensorrt`."""
    findings: tuple[Finding, ...] = find_target(TARGET).examine(qk.load(build / f"{name}.{kind}.onnx").graph)
    return findings


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of the networks whose float file is compiled, and the differences of the SQNR."""
    built = [row for row in rows if row.get("float") == "built"]
    pairs = {row["name"]: row["sqnr"] for row in rows if "sqnr" in row}
    losses = {name: round(pair["cpu"] - pair["gpu"], 2) for name, pair in pairs.items()}
    edges = [row["edges"] for row in rows if "edges" in row]
    observed = {row["name"]: row["observers"] for row in rows if "observers" in row}
    return {
        "networks": len(rows),
        "float_built": len(built),
        **{
            f"{key}_file": summarize_builds([row[key] for row in built if key in row])
            for key in ("build", "half", "padded")
        },
        "half_of_the_levels_db": round(20 * float(np.log10(UNSIGNED_LEVELS / SIGNED_LEVELS)), 2),
        "loss_db": losses,
        "pads": {row["name"]: row["pads"] for row in rows if row.get("pads")},
        "within_half_a_db": sum(loss <= 0.5 for loss in losses.values()),
        "significant_loss_db": {
            row["name"]: row["paired_loss_db"][0]
            for row in rows
            if "paired_loss_db" in row and row["paired_loss_db"][0] - row["paired_loss_db"][1] > 0
        },
        "held_out": summarize_held_out({row["name"]: row["held_out"] for row in rows if "held_out" in row}),
        "kernels": {row["name"]: row["kernels"] for row in rows if "kernels" in row},
        "median_loss_db": round(float(np.median([*losses.values()] or [0.0])), 2),
        "half_loss_db": {name: round(pair["gpu"] - pair["half"], 2) for name, pair in pairs.items()},
        "tensors": {
            kind: summarize_losses([each[kind] for each in edges if kind in each])
            for kind in dict.fromkeys(kind for each in edges for kind in each if kind != "exceeding")
        },
        "untried_loss_db": {
            row["name"]: {kind: round(row["formats"]["cpu"] - row["formats"][kind], 2) for kind in ("gpu", "padded")}
            for row in rows
            if "formats" in row
        },
        "observers": {
            f"{part}: {observer}": mean_of([observed[name][observer] for name in names if name in observed])
            for part, names in (("choosing", CHOOSING), ("confirming", set(NAMES) - set(CHOOSING)))
            for observer in OBSERVERS
            if observed.keys() & set(names)
        },
    }


def summarize_held_out(rows: dict[str, Any]) -> dict[str, Any]:
    """Return the losses of the SQNR on held-out samples, and the mean losses of a sample above their interval."""
    losses = {name: round(row["sqnr"]["cpu"] - row["sqnr"]["gpu"], 2) for name, row in rows.items()}
    means = {name: row["paired_loss_db"] for name, row in rows.items()}
    return {
        "loss_db": losses,
        "within_half_a_db": sum(loss <= 0.5 for loss in losses.values()),
        "significant_loss_db": {name: mean for name, mean in means.items() if mean[0] > mean[1]},
        "median_loss_db": round(float(np.median([*losses.values()] or [0.0])), 2),
    }


def mean_of(values: list[float]) -> float:
    """Return the mean of values, rounded."""
    return round(float(np.mean(values)), 2)


def summarize_builds(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the totals of compiled files."""
    whole = [result for result in results if not result["problem"]]
    planned, layers = (sum(result[key] for result in whole) for key in ("planned", "layers"))
    return {
        "int8_built": len(whole),
        "planned_that_are_int8": round(sum(result["int8_kernels"] for result in whole) / max(planned, 1), 4),
        "agreement": round(sum(result["agreed"] for result in whole) / max(layers, 1), 4),
    }


def summarize_losses(losses: list[dict[str, list[float]]]) -> dict[str, float]:
    """Return the number of tensors, and the medians and means of their losses in dB.

    ``within_limit`` counts the tensors without a larger loss, ``padded_within_limit`` the same with zero points, and
    ``exceeding`` is the fraction whose measured loss is above the calculated one by more than that.
    """
    measured, padded, calculated = (
        np.array([loss for each in losses for loss in each[key]]) for key in ("measured", "padded", "calculated")
    )
    return {
        "tensors": len(measured),
        "within_limit": int((measured <= MAX_LOSS).sum()),
        "padded_within_limit": int((padded <= MAX_LOSS).sum()),
        "exceeding": round(float((measured - calculated > MAX_LOSS).mean()), 3),
        "median_db": round(float(np.median(measured)), 2),
        "median_calculated_db": round(float(np.median(calculated)), 2),
        "median_padded_db": round(float(np.median(padded)), 2),
        "mean_db": round(float(np.mean(measured)), 2),
        "mean_padded_db": round(float(np.mean(padded)), 2),
    }


def main() -> None:
    """Measure the networks and write `tensorrt.json`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path, help="folder of the models")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NAMES))
    parser.add_argument("--reuse", action="store_true", help="compare the models in BUILD again without quantizing")
    parser.add_argument("--observers", action="store_true", help="compare observers and number formats instead")
    parser.add_argument("--tensors", action="store_true", help="compare the losses of the tensors instead")
    parser.add_argument("--held-out", action="store_true", help="compare the models in BUILD on held-out samples")
    parser.add_argument("--save", type=Path, default=HERE / "tensorrt.json", help="file to write")
    options = parser.parse_args()
    saved = json.loads(options.save.read_text()) if options.save.exists() else {"rows": []}
    rows = {row["name"]: row for row in saved["rows"]}
    save_networks(options.build)
    for name in options.networks or NAMES:
        modes = {key: getattr(options, key) for key in ("reuse", "observers", "tensors", "held_out")}
        row = measure(name, options.build, rows.get(name, {}), **modes)
        rows[name] = row
        print(json.dumps({key: value for key, value in row.items() if key not in ("edges", "findings")}), flush=True)
        ordered = [rows[each] for each in NAMES if each in rows]
        document = {"schema": "quantkit.bench.tensorrt/3", "summary": summarize(ordered), "rows": ordered}
        text = re.sub(
            r"\[\s+([-\d.,\s]+?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", json.dumps(document, indent=1)
        )
        options.save.write_text(f"{text}\n")
    print(json.dumps(document["summary"], indent=1))


if __name__ == "__main__":
    main()
