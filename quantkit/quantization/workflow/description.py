"""Metadata of a quantized file: the facts about the model that its graph does not hold."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any

from quantkit.arguments import expand_user
from quantkit.benchmark.sampling.candidate import digest
from quantkit.data import Preprocessing
from quantkit.data.inference import infer_preprocessing
from quantkit.data.inputs import takes_images
from quantkit.data.labels import Labels, read_labels
from quantkit.data.preprocessing import Origin
from quantkit.distribution import installed_version
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.ir.graph import Graph
from quantkit.model import Model
from quantkit.model.model import tensor_info
from quantkit.quantization.portability import certify
from quantkit.quantization.ranges import graph_digest
from quantkit.quantization.report import AccuracyReport, Latency, QuantizationReport
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.planning import with_digest
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo.cards import ModelCard

RECEIPT_SCHEMA = "quantkit.file_receipt/1"


def describe_model(model: Model, graph: Graph, preprocessing: Preprocessing | str, options: Options) -> dict[str, Any]:
    """Return the metadata of a file: preprocessing of images and class labels, where they are known.

    Args:
        model: float model.
        graph: prepared float graph.
        preprocessing: preprocessing of the calibration, if it is known.
        options: options of the caller.

    Raises:
        InputError: the label file is broken, or its labels belong to another model.
    """
    inputs, outputs = ([tensor_info(graph, edge) for edge in edges] for edges in (graph.inputs, graph.outputs))
    if not isinstance(preprocessing, Preprocessing) and len(inputs) == 1 and takes_images(inputs[0]):
        preprocessing = infer_preprocessing(inputs[0], model.find_basis(inputs, outputs), options.preprocessing)
        if preprocessing.origin is Origin.ASSUMED:
            preprocessing = ""
    labels = choose_labels(model, model.find_card(inputs, outputs), outputs, options)
    return {
        **({"preprocessing": preprocessing.to_json()} if isinstance(preprocessing, Preprocessing) else {}),
        **({"labels": labels.to_json()} if labels.are_known else {}),
    }


def make_receipt(model: Model, conversion: Conversion, report: QuantizationReport, options: Options) -> dict[str, Any]:
    """Return the receipt of the quantized file, without its digests: how the file was made.

    Speed-ups, processor and metrics other than counts are a part only if the caller requires a number of runs: the file
    is otherwise the same on every machine.

    Args:
        model: float model.
        conversion: conversion of the file.
        report: report about the file; with a latency if that is measured already.
        options: options of the caller.
    """
    plan, ranges, accuracy = with_digest(conversion.plan, conversion.graph), conversion.ranges, report.accuracy
    runtime = accuracy.runtime
    return {
        "schema": RECEIPT_SCHEMA,
        "versions": {"quantkit": installed_version(), **({} if runtime is None else {runtime.name: runtime.version})},
        "source": {"file": None if model.path is None else digest(model.path)[0], "graph": graph_digest(model.graph)},
        "calibration": {"data": ranges.provenance.data, "samples": ranges.provenance.count},
        "scheme": plan.scheme.to_json(),
        "plan": _digest(plan.text),
        "ranges": _digest(ranges.text),
        "accuracy": _describe_accuracy(
            accuracy,
            "calibration" if options.held_out is None else "held-out data",
            has_measurements=bool(options.runs),
        ),
        "speed_ups": _describe_speedups(report.latency) if options.runs else None,
        "portability": None if report.portability is None else report.portability.to_json(),
    }


def replace_plan(receipt: Mapping[str, Any], conversion: Conversion) -> dict[str, Any]:
    """Return the receipt of a file with other float layers: its accuracy and speed-ups are not measured.

    Args:
        receipt: receipt of the file whose conversion was changed.
        conversion: changed conversion.
    """
    certificate = certify(conversion.quantized) if receipt["portability"] else None
    portability = None if certificate is None else certificate.to_json()
    plan = _digest(with_digest(conversion.plan, conversion.graph).text)
    return {**receipt, "plan": plan, "accuracy": None, "speed_ups": None, "portability": portability}


def _describe_accuracy(accuracy: AccuracyReport, samples: str, *, has_measurements: bool) -> dict[str, Any] | None:
    """Return the metrics with their intervals; None without a measurement.

    Args:
        accuracy: measured accuracy.
        samples: origin of the samples, without a path.
        has_measurements: include metrics whose digits depend on the machine: SQNR, equal values and tasks.
    """
    metrics, sqnr = accuracy.metrics, accuracy.sqnr if has_measurements else None
    if metrics is None:
        return None
    classes = metrics.classes if isinstance(metrics, OutputSqnr) else {"": metrics}
    return {
        "on": samples,
        "samples": metrics.samples,
        "top1": {name: each.top1.to_json() for name, each in classes.items() if each.top1 is not None},
        "float_top1": None if accuracy.float_top1 is None else accuracy.float_top1.to_json(),
        "agreement": {name: each.agreement.to_json() for name, each in classes.items() if each.agreement is not None},
        "sqnr": {} if sqnr is None else {name: round(db, 1) for name, db in sqnr.sqnr.items() if isfinite(db)},
        "equal": {} if sqnr is None else dict(sqnr.equal),
        "task": {sqnr.metric: sqnr.score} if sqnr is not None and sqnr.metric else {},
    }


def _describe_speedups(latency: Latency) -> dict[str, Any] | None:
    """Return the speed-up in each runtime and the processor; None without a measurement."""
    if latency.benchmark is None or not latency.runtimes:
        return None
    machine = latency.benchmark.measurements[0].context.machine
    return {
        "machine": {"cpu": machine.cpu, "physical_cores": machine.physical_cores, "isa": list(machine.isa)},
        "runtimes": {str(each.runtime): each.speedup.to_json() for each in latency.runtimes},
    }


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def choose_labels(model: Model, card: ModelCard | None, outputs: Sequence[TensorInfo], options: Options) -> Labels:
    """Return the labels of the caller, else those of the model; may be empty.

    Raises:
        InputError: the label file is broken, or its labels belong to another model.
    """
    dims = outputs[0].shape.dims
    num_classes = dims[-1] if dims else None
    if options.labels is None:
        return model.find_labels(card, num_classes)
    labels = read_labels(expand_user(options.labels))
    if len(outputs) == 1 and num_classes is not None and len(dims or ()) == 2:
        labels.check(num_classes)
    return labels
