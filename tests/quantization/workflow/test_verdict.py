"""Verdict on models of every task: classes only for classifiers, integers by equality, other outputs by SQNR."""

from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.evaluation.classification_metrics import ClassificationMetrics
from quantkit.evaluation.output_sqnr import OutputSqnr
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.quantization.ranges import Provenance
from quantkit.quantization.workflow.doubts import find_doubts
from quantkit.quantization.workflow.float_reference import FloatReference

RANDOM = np.random.default_rng(0)
SIZE = 32


def dense(weights: Array, *tail: Node) -> Graph:
    """Return a graph with one dense layer and the ops after it, of which the last is the output."""
    nodes = (
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((None, weights.shape[0]))}),
        constant("w", weights.astype(np.float32)),
        Node("y", "MatMul", ("x", "w")),
        *tail,
    )
    outputs = [node.name for node in nodes if not node.is_constant][-1:]
    return Graph.of(nodes, ["x"], outputs)


def quantize(graph: Graph, data: Array, **options: Any) -> qk.QuantizationResult:
    return qk.quantize(graph, data.astype(np.float32), runs=0, **options)


@pytest.mark.engine
def test_an_autoencoder_with_an_unchanged_error_does_not_differ() -> None:
    basis = np.linalg.qr(RANDOM.normal(0, 1, (SIZE, SIZE)))[0][:, :8]
    factors = RANDOM.normal(0, 1, (40, 8))
    result = quantize(dense(basis @ basis.T), factors @ basis.T + RANDOM.normal(0, 0.1, (40, SIZE)))
    metrics = result.report.accuracy.metrics
    assert isinstance(metrics, OutputSqnr)
    assert metrics.worst > 20
    assert metrics.reconstruction
    assert result.report.next_step is not None
    assert result.report.next_step.reason == "measure the latency of both models"


@pytest.mark.engine
def test_a_mask_is_compared_by_equal_values() -> None:
    tail = (Node("mask", "Cast", ("y",), attrs={"SrcT": DType.FLOAT, "DstT": DType.INT32}),)
    result = quantize(dense(np.eye(SIZE), *tail), RANDOM.normal(0, 1, (40, SIZE)))
    metrics = result.report.accuracy.metrics
    assert isinstance(metrics, OutputSqnr)
    assert not metrics.sqnr
    assert metrics.equal["mask"] > 0.8
    assert "equal values of mask" in str(result)
    assert "SQNR" not in str(result)


@pytest.mark.engine
def test_logits_are_classes_and_regressions_are_not() -> None:
    data = 10 * np.eye(SIZE)[np.arange(40) % 10] + RANDOM.normal(0, 1, (40, SIZE))
    logits = quantize(dense(np.eye(SIZE)[:, :10] - 0.1), data).report.accuracy.metrics
    assert isinstance(logits, ClassificationMetrics)
    regression = quantize(dense(RANDOM.uniform(0.1, 1, (SIZE, 4))), np.abs(data)).report.accuracy.metrics
    assert isinstance(regression, OutputSqnr)


@pytest.mark.engine
def test_a_low_agreement_is_the_first_reason_of_the_next_step() -> None:
    # One value of the input is so large that the others become 0.
    data = RANDOM.normal(0, 1, (40, SIZE))
    data[:, 0] = 1e5
    weights = 4 * np.eye(SIZE)[:, :10]
    weights[0] = 0
    tail = (Node("scores", "Softmax", ("y",)),)
    result = quantize(dense(weights, *tail), data, observer="min_max")
    quality, step = result.report.accuracy.quality, result.report.next_step
    assert quality is not None
    assert quality.agreement is not None
    assert quality.agreement.value < 0.5
    assert step is not None
    assert f"agreement {100 * quality.agreement.value:.1f} %" in step.reason


@pytest.mark.parametrize(
    ("outputs", "is_constant"),
    [
        (np.eye(4, dtype=np.float32), False),
        (np.tile(np.array([0.1, 0.2, 0.3, 0.4], np.float32), (4, 1)), True),
        (np.tile(np.array([1, 0, 0, 0], np.float32), (4, 1)), True),  # a saturated softmax
        (np.float32(RANDOM.normal(0, 1, (4, 4))), False),
        (np.float32(5 + 1e-5 * RANDOM.normal(0, 1, (4, 4))), True),
    ],
)
def test_outputs_that_barely_vary_are_found(outputs: Array, is_constant: bool) -> None:
    feeds = [{"x": np.array([[number]], np.float32)} for number in range(len(outputs))]
    rows = [{"y": row[None]} for row in outputs]
    reference = FloatReference("4 samples", feeds=feeds, outputs=rows, classes=[(None,)] * len(outputs))
    doubts = find_doubts(qk.load(dense(np.eye(SIZE))), reference, Provenance())
    assert doubts == (("the outputs of the float model barely vary over the 4 samples",) if is_constant else ())
    assert Edge("x") in qk.load(dense(np.eye(SIZE))).graph.inputs
