import numpy as np
import pytest

from quantkit.ir.graph import Graph
from quantkit.model.loading import load
from quantkit.ops.kernels import KERNELS
from quantkit.quantization import Range, Ranges, Scheme, annotate, calibrate, quantize
from quantkit.recipe import parse, run
from quantkit.runtimes import open_session

FOLD = (
    'strip_unused_nodes(type=float, shape="1,16,16,1") remove_nodes(op=Identity, op=CheckNumerics) fold_old_batch_norms'
)
SCHEME = Scheme.for_target("eightbit")


@pytest.fixture(scope="module")
def digits() -> Graph:
    recipe = parse(FOLD)
    return run(recipe, load("digits", ["Mul"], ["softmax"]))[0]


def test_no_range_is_found_while_it_runs(digits: Graph) -> None:
    ranges = Ranges(dict.fromkeys(annotate(digits, SCHEME).activations, Range(-1.0, 3.0)))
    graph = quantize(digits, ranges, "eightbit", scheme=SCHEME)
    assert not {"RequantizationRange", "Min", "Max", "Conv2D", "Relu"} & set(graph.op_counts)
    assert graph.op_counts["QuantizedConv2D"] == 20
    assert graph.op_counts["Softmax"] == 1
    assert set(graph.op_counts) <= {*KERNELS, "Placeholder", "Const"}


def test_what_the_scheme_keeps_stays_float(digits: Graph) -> None:
    scheme = Scheme.for_target("eightbit", keep_float=("MatMul",))
    ranges = Ranges(dict.fromkeys(annotate(digits, scheme).activations, Range(-1.0, 3.0)))
    assert quantize(digits, ranges, "eightbit", scheme=scheme).op_counts["MatMul"] == 1


def test_single_layers_that_the_scheme_keeps_stay_float(digits: Graph) -> None:
    layers = [name for name, node in digits.nodes.items() if node.op == "Conv2D"][:3]
    scheme = Scheme.for_target("eightbit", keep_float=tuple(layers))
    ranges = Ranges(dict.fromkeys(annotate(digits, scheme).activations, Range(-1.0, 3.0)))
    made = quantize(digits, ranges, "eightbit", scheme=scheme)
    assert [name for name, node in made.nodes.items() if node.op == "Conv2D"] == layers
    assert made.op_counts["QuantizedConv2D"] == 17
    assert set(made.op_counts) <= {*KERNELS, "Placeholder", "Const"}


def test_answers_stay(digits: Graph) -> None:
    pictures = np.random.default_rng(0).uniform(-1, 1, (12, 16, 16, 1)).astype(np.float32)
    ranges = calibrate(digits, [pictures], scheme=SCHEME, runtime="reference")
    answers = []
    for graph in (digits, quantize(digits, ranges, "eightbit", scheme=SCHEME)):
        with open_session(graph, "reference") as session:
            answers.append(np.concatenate([session.run({"Mul": one[None]})["softmax"] for one in pictures]))
    assert (answers[0].argmax(1) == answers[1].argmax(1)).mean() >= 0.75
    assert np.abs(answers[0] - answers[1]).mean() < 0.05
