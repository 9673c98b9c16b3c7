from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.errors import UsageError
from quantkit.formats import load
from quantkit.formats.graphdef import decode, encode
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph, Node
from quantkit.ir.tensor import Tensor
from quantkit.runtimes import open_session
from quantkit.zoo.architectures import ARCHITECTURES, MARK, is_random, random_graph
from quantkit.zoo.cards import find_card

# Op counts and number of constant elements: of the Inceptions from published summaries of the
# released files, of the MobileNets from the parameters that Keras counts in its versions, with 1001
# classes.
RELEASED = {
    "inception_v3": (
        "489 Const, 99 CheckNumerics, 99 Identity, 94 BatchNormWithGlobalNormalization, 94 Conv2D, 94 Relu, 11 Concat, "
        "9 AvgPool, 5 MaxPool, 1 BiasAdd, 1 Cast, 1 DecodeJpeg, 1 ExpandDims, 1 MatMul, 1 Mul, 1 Reshape, "
        "1 ResizeBilinear, 1 Softmax, 1 Sub",
        23_885_411,
    ),
    "inception_v3_2016": (
        "489 Const, 379 Identity, 188 Add, 188 Mul, 95 Conv2D, 94 Relu, 94 Rsqrt, 94 Sub, 15 ConcatV2, 10 AvgPool, "
        "4 MaxPool, 2 Reshape, 1 BiasAdd, 1 Placeholder, 1 Softmax, 1 Squeeze",
        23_853_946,
    ),
    "mobilenet_v1": (
        "139 Const, 138 Identity, 27 FusedBatchNorm, 27 Relu6, 15 Conv2D, 13 DepthwiseConv2dNative, 2 Reshape, "
        "1 AvgPool, 1 BiasAdd, 1 Placeholder, 1 Softmax, 1 Squeeze",
        4_254_893,
    ),
    "mobilenet_v2": (
        "350 Identity, 264 Const, 52 FusedBatchNorm, 36 Conv2D, 35 Relu6, 17 DepthwiseConv2dNative, 10 Add, 2 Reshape, "
        "1 AvgPool, 1 BiasAdd, 1 Placeholder, 1 Softmax, 1 Squeeze",
        3_540_269,
    ),
}


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def constants(graph: Graph) -> dict[str, Tensor]:
    return {node.name: node.value for node in graph.nodes.values() if node.is_constant}


def test_counts_are_those_of_the_release(name: str) -> None:
    graph = random_graph(name)
    ops, numbers = RELEASED[name]
    assert ", ".join(f"{count} {op}" for op, count in graph.op_counts.items()) == ops
    assert sum(tensor.num_elements for tensor in constants(graph).values()) == numbers


def test_graph_is_valid_and_in_execution_order(name: str) -> None:
    graph = random_graph(name)
    verify(graph)
    visited: set[str] = set()
    for node in graph.nodes.values():
        assert visited.issuperset(edge.node for edge in node.inputs)
        assert visited.issuperset(node.controls)
        visited.add(node.name)
    assert graph.reachable(stop_at_inputs=False) == visited


def nodes_with_controls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if node.controls]


def test_endpoints_are_those_of_the_card(name: str) -> None:
    graph, card = random_graph(name), find_card(name)
    assert [str(edge) for edge in graph.inputs] == [tensor.name for tensor in card.inputs]
    assert [str(edge) for edge in graph.outputs] == [tensor.name for tensor in card.outputs]


def test_release_of_2015_has_its_version_and_control_dependencies() -> None:
    graph = random_graph("inception_v3")
    assert len(graph) == 1004
    assert graph.versions.producer == 8
    assert len(nodes_with_controls(graph)) == 99


@pytest.mark.models
def test_release_of_2015_node_for_node(standin: Path) -> None:
    expected, graph = load(standin / "classify_image_graph_def.pb"), random_graph("inception_v3")
    assert list(map(outline, graph.nodes.values())) == list(map(outline, expected.nodes.values()))
    for node in expected.nodes.values():
        if node.is_constant and not node.value.dtype.is_float:
            assert graph[node.name].value == node.value
    assert graph.versions == expected.versions


def outline(node: Node) -> tuple[Any, ...]:
    """Return a node without the values of its constant and without the mark."""
    attrs = {
        key: (value.dtype, value.shape) if isinstance(value, Tensor) else value
        for key, value in node.attrs.items()
        if key != MARK
    }
    return node.name, node.op, node.inputs, node.controls, node.device, attrs


def test_parameters_are_computed_on_access_with_their_shapes() -> None:
    for tensor in constants(random_graph("mobilenet_v1")).values():
        array = tensor.array
        assert array.shape == tensor.shape
        assert array.dtype == tensor.dtype.numpy
        assert np.isfinite(array).all()


def test_seed_determines_the_parameters() -> None:
    kernel = "MobilenetV1/Conv2d_5_pointwise/weights"
    first, same, other = (constants(random_graph("mobilenet_v1", seed))[kernel] for seed in (1, 1, 2))
    assert first == same
    assert first != other
    assert not np.array_equal(first.array[..., 0], first.array[..., 1])


def test_channels_differ_in_scale() -> None:
    kernel = constants(random_graph("inception_v3"))["mixed_4/conv/conv2d_params"].array
    deviations = kernel.std((0, 1, 2))
    assert deviations.max() > 3 * deviations.min()


def test_mark_is_kept_in_files_and_absent_in_trained_graphs() -> None:
    graph = random_graph("mobilenet_v2", seed=7)
    assert is_random(graph)
    again = decode(encode(graph))
    assert is_random(again)
    assert again["MobilenetV2/Predictions/Reshape_1"].attrs[MARK] == 7
    assert not is_random(Graph.of([Node("x", "Placeholder")]))


def test_unknown_architecture_is_rejected_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="digit") as caught:
        random_graph("digit")
    assert "inception_v3" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        random_graph("inception_v4")
    assert caught.value.hint.startswith("did you mean 'inception_v3'")


@pytest.mark.engine
def test_outputs_in_tensorflow_are_finite_and_varied(name: str) -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    card = find_card(name)
    (entry,) = card.inputs
    coarse = np.random.default_rng(0).uniform(-1, 1, (1, 10, 10, 3)).repeat(32, 1).repeat(32, 2)
    image = coarse[:, : entry.shape[1], : entry.shape[2]].astype(np.float32)
    with open_session(random_graph(name), "tensorflow") as session:
        (scores,) = session.run({entry.name: image}).values()
    assert scores.shape == (1, card.num_classes)
    assert scores.sum() == pytest.approx(1, abs=1e-4)
    # A dead or exploding network would predict all classes equally, or one with certainty.
    assert 2 / card.num_classes < scores.max() < 0.5
