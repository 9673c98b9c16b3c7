"""Endpoints of image classifiers."""

from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import UsageError
from quantkit.formats import infer_endpoints, save
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.model import load
from quantkit.model.endpoints import choose_image_endpoints, find_endpoints, takes_encoded_images
from quantkit.zoo.cards import find_card, list_cards

RELEASE, SLIM = (find_card(name) for name in ("inception_v3", "inception_v3_2016"))


def placeholder(name: str, shape: tuple[int | None, ...] | None, dtype: DType = DType.FLOAT) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(shape)})


def node(name: str, op: str, *sources: str) -> Node:
    return Node(name, op, tuple(Edge(source) for source in sources))


def endpoints(graph: Graph, input_layer: str = "", output_layer: str = "", card: object = None) -> tuple[str, str]:
    restricted = choose_image_endpoints(graph, card, list_cards(), input_layer, output_layer)  # type: ignore[arg-type]
    return str(restricted.inputs[0]), str(restricted.outputs[0])


RELEASE_LIKE = Graph.of(
    [
        constant("DecodeJpeg/contents", b""),
        node("DecodeJpeg", "DecodeJpeg", "DecodeJpeg/contents"),
        node("Mul", "Mul", "DecodeJpeg"),
        node("softmax", "Softmax", "Mul"),
        node("aux", "Relu", "Mul"),
    ]
)


def test_input_of_the_release_is_mul() -> None:
    assert endpoints(RELEASE_LIKE) == endpoints(RELEASE_LIKE, card=RELEASE) == ("Mul", "softmax")


def test_a_loaded_graph_without_placeholders_has_the_endpoints_of_its_card(tmp_path: Path) -> None:
    """All commands load models in this way: decoded images are the input for every one of them."""
    loaded = load(RELEASE_LIKE.with_(outputs=(Edge("softmax"),)))
    save(RELEASE_LIKE, tmp_path / "release.pb")
    for model in (loaded, load(tmp_path / "release.pb")):
        assert tuple(map(str, model.graph.inputs)) == ("Mul",)
        assert Edge("softmax") in model.graph.outputs
    pixels = load(tmp_path / "release.pb", inputs=["DecodeJpeg"])
    assert tuple(map(str, pixels.graph.inputs)) == ("DecodeJpeg",)


def test_a_graph_with_other_classes_or_unconnected_nodes_does_not_match_a_card() -> None:
    logits = constant("logits", np.zeros((1, 7), np.float32))
    graph = Graph.of([logits, node("Mul", "Mul", "logits", "logits"), node("softmax", "Softmax", "Mul")])
    assert not find_endpoints(graph, list_cards()).inputs
    unrelated = Graph.of([logits, node("Mul", "Mul", "logits"), node("softmax", "Softmax", "logits")])
    assert not find_endpoints(unrelated, list_cards()).inputs


def test_inner_nodes_and_counters_of_loops_are_not_outputs() -> None:
    frame = {"frame_name": b"loop"}
    counter = [
        constant("zero", np.int32(0)),
        Node("index", "Enter", (Edge("zero"),), attrs={**frame, "T": DType.INT32}),
        Node("count", "Exit", (Edge("index"),), attrs={"T": DType.INT32}),
    ]
    state = [
        placeholder("x", (1,)),
        Node("enter", "Enter", (Edge("x"),), attrs={**frame, "T": DType.FLOAT}),
        node("unused", "Neg", "enter"),
        Node("exit", "Exit", (Edge("enter"),), attrs={"T": DType.FLOAT}),
    ]
    assert infer_endpoints(Graph.of([*state, *counter])).outputs == (Edge("exit"),)
    assert infer_endpoints(Graph.of([*state, *counter, node("y", "Neg", "exit")])).outputs == (Edge("y"),)
    assert infer_endpoints(Graph.of(counter)).outputs == (Edge("count"),)
    part = Graph.of([*state[1:], node("y", "Neg", "exit")])
    assert infer_endpoints(part).outputs == (Edge("unused"), Edge("y"))


def test_placeholders_with_a_default_are_inputs_only_without_others() -> None:
    training = Node("training", "PlaceholderWithDefault", (Edge("no"),), attrs={"shape": Shape(())})
    image = Node("image", "PlaceholderWithDefault", (Edge("zeros"),), attrs={"shape": Shape((None, 8, 8, 3))})
    constants = [constant("no", False), constant("zeros", np.zeros((1, 8, 8, 3), np.float32))]
    graph = Graph.of([*constants, training, image, node("out", "Switch", "image", "training")])
    assert tuple(map(str, infer_endpoints(graph).inputs)) == ("image",)
    other = Graph.of([*graph.nodes.values(), placeholder("x", (1,)), node("both", "Concat", "x", "out")])
    assert tuple(map(str, infer_endpoints(other).inputs)) == ("x",)


def test_the_choice_of_the_caller_comes_first() -> None:
    assert endpoints(RELEASE_LIKE, "DecodeJpeg:0", "aux:0") == ("DecodeJpeg", "aux")


def test_the_first_placeholder_for_images_is_the_input() -> None:
    nodes = [
        placeholder("training", (), DType.BOOL),
        placeholder("vector", (None, 10)),
        placeholder("image", (None, 8, 8, 3)),
        placeholder("mask", (None, 8, 8, 1)),
        node("out", "Relu", "image"),
    ]
    assert endpoints(Graph.of(nodes, (), ["out"])) == ("image", "out")
    loss = node("loss", "AddN", "out", "training", "vector", "mask")
    with pytest.raises(UsageError, match="'loss' depends on training, vector, mask and 'image'") as caught:
        endpoints(Graph.of([*nodes, loss], (), ["loss"]))
    assert "quantkit run MODEL --data ARRAYS.npz" in caught.value.hint


def test_output_of_a_card_is_chosen_among_several() -> None:
    name = SLIM.outputs[0].name
    graph = Graph.of([placeholder("input", None), node("other", "Relu", "input"), node(name, "Reshape", "input")])
    assert endpoints(graph) == ("input", name)


def test_graph_without_input_or_single_output_is_rejected() -> None:
    with pytest.raises(UsageError, match=r"no placeholder.*\(flag do not\)") as caught:
        endpoints(Graph.of([placeholder("flag", (), DType.BOOL), node("out", "Not", "flag")]))
    assert "--input-layer" in caught.value.hint
    two = Graph.of([placeholder("input", None), node("a", "Relu", "input"), node("b", "Relu", "input")])
    with pytest.raises(UsageError, match=r"2 outputs \(a, b\)"):
        endpoints(two)


def test_an_unknown_layer_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="not in the graph") as caught:
        endpoints(RELEASE_LIKE, output_layer="softmx")
    assert "softmax" in caught.value.hint


def test_encoded_images_are_recognized() -> None:
    assert takes_encoded_images(RELEASE_LIKE.with_endpoints(["DecodeJpeg/contents"], ["softmax"]))
    assert not takes_encoded_images(RELEASE_LIKE.with_endpoints(["DecodeJpeg:0"], ["softmax"]))
