"""`Model`: its card, preprocessing and labels, and the values that `as_model` accepts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.arguments import type_name
from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import UsageError
from quantkit.facts import RANDOM_WEIGHTS_NOTE
from quantkit.ir.graph import Edge, Graph
from quantkit.model import Model, as_model

FOLDED = "strip_unused_nodes fold_constants fold_old_batch_norms fold_batch_norms"
DIGITS_PREPROCESSING = Preprocessing(height=16, width=16, channels=1, mean=128, std=128)


def test_a_card_names_endpoints_preprocessing_and_labels() -> None:
    model = qk.load("digits")
    assert (model.graph.inputs, model.graph.outputs) == ((Edge("Mul"),), (Edge("softmax"),))
    assert model.preprocessing == DIGITS_PREPROCESSING
    assert [model.labels.name(number) for number in range(10)] == list("0123456789")
    assert model.card is not None
    assert model.path is not None


@pytest.mark.parametrize("name", ["digits.pb", "digits.onnx"])
def test_a_transformed_file_is_recognized(name: str, tmp_path: Path) -> None:
    digits = qk.load("digits")
    qk.transform(digits, FOLDED).save(tmp_path / name)
    model = qk.load(tmp_path / name)
    assert model.card is None
    assert model.origin is qk.load("digits").card
    assert model.preprocessing == DIGITS_PREPROCESSING
    assert model.labels.name(7) == "7"


def test_a_model_without_images_has_no_preprocessing() -> None:
    graph = Graph.of([qk.Node("x", "Placeholder"), qk.Node("y", "Relu", (Edge("x"),))], ["x"], ["y"])
    model = as_model(graph)
    assert model.graph is not None
    assert not model.labels.are_known


def test_every_kind_of_value_becomes_a_model(tmp_path: Path) -> None:
    digits = qk.load("digits")
    qk.save(digits, tmp_path / "digits.pb")
    for value in (digits, digits.graph, tmp_path / "digits.pb", str(tmp_path / "digits.pb"), "digits"):
        assert len(as_model(value).graph) > 0
    assert as_model(digits) is digits


@pytest.mark.parametrize("value", [3, None, ["digits"], object(), np.zeros(3)])
def test_another_type_is_a_usage_error(value: Any) -> None:
    with pytest.raises(UsageError, match=f"{type_name(value)} is not a model"):
        as_model(value)


@pytest.mark.parametrize("verb", [qk.transform, qk.save, qk.open_session, qk.summarize, qk.evaluate, qk.compare])
def test_verbs_reject_other_types(verb: Any, tmp_path: Path) -> None:
    arguments = {
        qk.transform: ("inference",),
        qk.save: (tmp_path / "m.pb",),
        qk.evaluate: (Path(__file__).parents[2] / "assets",),
        qk.compare: ("digits",),
    }.get(verb, ())
    with pytest.raises(UsageError, match="an int is not a model"):
        verb(3, *arguments)


def test_endpoints_can_be_replaced() -> None:
    model = as_model(qk.load("digits"), outputs=["softmax/logits"])
    assert model.graph.outputs == (Edge("softmax/logits"),)
    assert as_model("digits", outputs="softmax/logits").graph.outputs == (Edge("softmax/logits"),)
    with pytest.raises(UsageError, match="'nothing' is not in the graph"):
        as_model(qk.load("digits"), inputs=["nothing"])


def test_representations_name_the_model() -> None:
    model = qk.load("digits", random_weights=False)
    assert repr(model) == f"Model('digits', {len(model.graph)} nodes, Mul -> softmax)"
    assert model._repr_html_().startswith("<pre>Model(&#x27;digits&#x27;")
    document = model.to_json()
    assert document["schema"] == "quantkit.model/1"
    assert document["inputs"] == ["Mul"]
    assert document["labels"] == 10


def test_random_weights_are_noted() -> None:
    model = qk.load("mobilenet_v1", random_weights=True)
    assert model.has_random_weights
    assert "random weights" in repr(model)
    assert RANDOM_WEIGHTS_NOTE.startswith("random weights")


def test_sessions_open_on_every_kind_of_value() -> None:
    image = np.zeros((1, 16, 16, 1), np.float32)
    model = qk.load("digits")
    results = []
    for value in (model, model.graph, "digits"):
        with qk.open_session(value, "reference") as session:
            results.append(session.run({"Mul": image})["softmax"] if value is not None else None)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_model_is_a_value() -> None:
    assert Model("m", qk.load("digits").graph) == Model("m", qk.load("digits").graph)
