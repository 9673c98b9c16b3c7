from pathlib import Path

import pytest

from quantkit.data.choices import (
    Flags,
    choose_ends,
    choose_labels,
    choose_preprocessing,
    matching_card,
    needs_tensorflow,
)
from quantkit.data.labels import LABEL_MAP_FILE, WORDS_FILE, Order
from quantkit.errors import UsageError
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.runtimes.session import TensorInfo
from quantkit.zoo import find_card, list_cards

RELEASE, SLIM, DIGITS = (find_card(name) for name in ("inception_v3", "inception_v3_2016", "digits"))


def placeholder(name: str, shape: tuple[int | None, ...] | None, dtype: DType = DType.FLOAT) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(shape)})


def reading(name: str, op: str, *sources: str) -> Node:
    return Node(name, op, tuple(Edge(source) for source in sources))


def tensor(name: str, *shape: int | None, dtype: DType = DType.FLOAT) -> TensorInfo:
    return TensorInfo(name, dtype, Shape(shape))


def ends(graph: Graph, input_layer: str = "", output_layer: str = "", card: object = None) -> tuple[str, str]:
    chosen = choose_ends(graph, card, list_cards(), input_layer, output_layer)  # type: ignore[arg-type]
    return str(chosen.inputs[0]), str(chosen.outputs[0])


RELEASE_LIKE = Graph.of(
    [
        constant("DecodeJpeg/contents", b""),
        reading("DecodeJpeg", "DecodeJpeg", "DecodeJpeg/contents"),
        reading("Mul", "Mul", "DecodeJpeg"),
        reading("softmax", "Softmax", "Mul"),
        reading("aux", "Relu", "Mul"),
    ]
)


def test_the_release_is_fed_at_mul() -> None:
    assert ends(RELEASE_LIKE) == ends(RELEASE_LIKE, card=RELEASE) == ("Mul", "softmax")


def test_what_the_caller_says_wins() -> None:
    assert ends(RELEASE_LIKE, "DecodeJpeg:0", "aux:0") == ("DecodeJpeg", "aux")


def test_the_first_placeholder_for_pictures_is_fed() -> None:
    nodes = [
        placeholder("training", (), DType.BOOL),
        placeholder("vector", (None, 10)),
        placeholder("picture", (None, 8, 8, 3)),
        placeholder("mask", (None, 8, 8, 1)),
        reading("out", "Relu", "picture"),
    ]
    assert ends(Graph.of(nodes, (), ["out"])) == ("picture", "out")
    loss = reading("loss", "AddN", "out", "training", "vector", "mask")
    with pytest.raises(UsageError, match="loss need training, vector, mask besides picture"):
        ends(Graph.of([*nodes, loss], (), ["loss"]))


def test_a_cards_output_is_known_among_several() -> None:
    name = SLIM.outputs[0].name
    graph = Graph.of([placeholder("input", None), reading("other", "Relu", "input"), reading(name, "Reshape", "input")])
    assert ends(graph) == ("input", name)


def test_no_input_and_no_single_output_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no placeholder.*\(flag do not\)") as caught:
        ends(Graph.of([placeholder("flag", (), DType.BOOL), reading("out", "Not", "flag")]))
    assert "--input-layer" in caught.value.hint
    two = Graph.of([placeholder("input", None), reading("a", "Relu", "input"), reading("b", "Relu", "input")])
    with pytest.raises(UsageError, match=r"2 outputs \(a, b\)"):
        ends(two)


def test_an_unknown_layer_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="not in the graph") as caught:
        ends(RELEASE_LIKE, output_layer="softmx")
    assert "softmax" in caught.value.hint


def test_encoded_pictures_need_tensorflow() -> None:
    assert needs_tensorflow(RELEASE_LIKE.with_endpoints(["DecodeJpeg/contents"], ["softmax"]))
    assert not needs_tensorflow(RELEASE_LIKE.with_endpoints(["DecodeJpeg:0"], ["softmax"]))


@pytest.mark.parametrize(
    ("source", "result", "name"),
    [
        (tensor("Mul", 1, 299, 299, 3), tensor("softmax", None, 1008), "inception_v3"),
        (TensorInfo("Mul", DType.FLOAT, Shape(None)), tensor("softmax", None, 1008), "inception_v3"),
        (tensor("Mul:0", 1, 299, 299, 3), tensor("softmax:0", 1, 1008), "inception_v3"),
        (tensor("DecodeJpeg/contents", dtype=DType.STRING), tensor("softmax", None, 1008), "inception_v3"),
        (tensor("Mul", 1, 16, 16, 1), tensor("softmax", None, 10), "digits"),
        (tensor("input", 1, 299, 299, 3), tensor("InceptionV3/Predictions/Reshape_1", 1, 1001), "inception_v3_2016"),
        (tensor("Mul", 1, 299, 299, 3), tensor("softmax", None, 5), None),
        (tensor("images", 1, 299, 299, 3), tensor("softmax", None, 1008), None),
        (TensorInfo("Mul", DType.FLOAT, Shape(None)), TensorInfo("softmax", DType.FLOAT, Shape(None)), None),
    ],
)
def test_a_file_is_known_by_its_ends(source: TensorInfo, result: TensorInfo, name: str | None) -> None:
    card = matching_card(source, result, list_cards())
    assert (card.name if card else None) == name


def test_preprocessing_of_a_card() -> None:
    said = choose_preprocessing(TensorInfo("Mul", DType.FLOAT, Shape(None)), RELEASE)
    assert (said.height, said.width, said.channels, said.mean, said.std, said.crop) == (299, 299, 3, 128, 128, "none")


def test_the_inputs_own_shape_wins_over_the_card() -> None:
    said = choose_preprocessing(tensor("input", None, 128, 160, 3), SLIM)
    assert (said.height, said.width, said.mean) == (128, 160, 127.5)


def test_flags_win_and_switch_off_cropping() -> None:
    said = choose_preprocessing(TensorInfo("x", DType.FLOAT, Shape(None)), SLIM, Flags(100, 200, 0.0, 255.0))
    assert (said.height, said.width, said.mean, said.std, said.crop) == (100, 200, 0, 255, "none")
    assert choose_preprocessing(tensor("input", 1, 299, 299, 3), SLIM).crop == "central"


def test_a_flag_against_the_inputs_shape_is_refused() -> None:
    with pytest.raises(UsageError, match="--input-width is 224, and input 'Mul' takes a width of 299"):
        choose_preprocessing(tensor("Mul", 1, 299, 299, 3), RELEASE, Flags(width=224))


def test_labels_of_a_card_with_words() -> None:
    labels = choose_labels(DIGITS, None, tensor("softmax", None, 10))
    assert [labels.name(index) for index in range(10)] == list("0123456789")
    assert labels.order is Order.OWN
    labels.check(10)


@pytest.mark.parametrize("card", [RELEASE, None])
def test_the_pair_beside_the_graph_is_found(tmp_path: Path, card: object) -> None:
    (tmp_path / LABEL_MAP_FILE).write_text('entry { target_class: 169 target_class_string: "n02510455" }')
    (tmp_path / WORDS_FILE).write_text("n02510455\tgiant panda\n")
    labels = choose_labels(card, tmp_path / "graph.pb", tensor("softmax", None, 1008))  # type: ignore[arg-type]
    assert labels.name(169) == "giant panda"


def test_without_label_files_there_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTKIT_CACHE", str(tmp_path / "cache"))
    for card in (RELEASE, SLIM, None):
        assert not choose_labels(card, tmp_path / "graph.pb", tensor("softmax", None, 1008)).are_known
        assert not choose_labels(card, None, TensorInfo("softmax", DType.FLOAT, Shape(None))).are_known
