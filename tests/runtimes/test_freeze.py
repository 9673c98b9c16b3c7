from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import InputError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Shape
from quantkit.runtimes import open_session, tensorflow
from quantkit.runtimes.freeze import freeze_object

ANSWER = tensorflow.RUNTIME.available()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not ANSWER.ok, reason=ANSWER.detail),
    pytest.mark.filterwarnings("ignore"),  # Keras' own
]
X = np.linspace(-1, 1, 2 * 8 * 8 * 3, dtype=np.float32).reshape(2, 8, 8, 3)


@pytest.fixture(scope="module")
def model() -> Any:
    """A network with variables that are trained, that only move, and a layer that only training has."""
    layers = tensorflow.module().keras.layers
    made = tensorflow.module().keras.Sequential(
        [
            layers.Input((8, 8, 3)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.5),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, activation="softmax"),
        ]
    )
    made.layers[1].set_weights([np.float32([0.5, 1, 2, 1]), *np.float32([[0.1] * 4, [0.2] * 4, [1, 2, 3, 4]])])
    return made


def answers(graph: Graph) -> np.ndarray:
    with open_session(graph, "tensorflow") as session:
        (values,) = session.run({session.inputs[0].name: X}).values()
    return values


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("model.keras", lambda model, path: model.save(path)),
        ("model.h5", lambda model, path: model.save(path)),
        ("saved", lambda model, path: model.export(path, verbose=False)),
    ],
)
def test_a_frozen_model_gives_the_models_answers(
    name: str, write: Callable[[Any, Path], None], model: Any, tmp_path: Path
) -> None:
    write(model, tmp_path / name)
    graph = qk.load(tmp_path / name)
    assert not {"VarHandleOp", "ReadVariableOp"} & graph.op_counts.keys()
    (place,) = graph.inputs
    assert graph[place.node].attrs["shape"] == Shape((None, 8, 8, 3))
    np.testing.assert_allclose(answers(graph), model(X, training=False), rtol=1e-5, atol=1e-7)


def test_a_model_in_memory_is_the_same(model: Any) -> None:
    np.testing.assert_allclose(answers(freeze_object(model)), model(X, training=False), rtol=1e-5, atol=1e-7)
    with pytest.raises(InputError, match="a list is no model"):
        freeze_object([])
