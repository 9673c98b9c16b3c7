from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.errors import GraphError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Shape
from quantkit.model.importers.freeze import freeze_object
from quantkit.recipes import rewrite
from quantkit.runtimes import open_session, tensorflow

TENSORFLOW = tensorflow.RUNTIME.available()
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not TENSORFLOW.ok, reason=TENSORFLOW.detail),
    pytest.mark.filterwarnings("ignore"),  # Keras' own
]
X = np.linspace(-1, 1, 2 * 8 * 8 * 3, dtype=np.float32).reshape(2, 8, 8, 3)


@pytest.fixture(scope="module")
def model() -> Any:
    """Build a network with trained variables, moving averages, and a layer for training only."""
    layers = tensorflow.import_tensorflow().keras.layers
    model = tensorflow.import_tensorflow().keras.Sequential(
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
    model.layers[1].set_weights(
        [np.array([0.5, 1, 2, 1], np.float32), *np.array([[0.1] * 4, [0.2] * 4, [1, 2, 3, 4]], np.float32)]
    )
    return model


def run_graph(graph: Graph) -> np.ndarray:
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
def test_a_frozen_model_has_the_outputs_of_the_model(
    name: str, write: Callable[[Any, Path], None], model: Any, tmp_path: Path
) -> None:
    write(model, tmp_path / name)
    graph = qk.load(tmp_path / name).graph
    assert not {"VarHandleOp", "ReadVariableOp"} & graph.op_counts.keys()
    (path,) = graph.inputs
    assert graph[path.node].attrs["shape"] == Shape((None, 8, 8, 3))
    np.testing.assert_allclose(run_graph(graph), model(X, training=False), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["model.keras", "saved"])
def test_recurrent_layers_with_dropout_are_frozen_without_it(name: str, tmp_path: Path) -> None:
    tf = tensorflow.import_tensorflow()
    layers = tf.keras.layers
    lstm = layers.LSTM(3, dropout=0.2, recurrent_dropout=0.3, return_sequences=True)
    model = tf.keras.Sequential([layers.Input((4, 2)), layers.Bidirectional(lstm), layers.GRU(3, dropout=0.1)])
    if name == "saved":
        model.export(tmp_path / name, verbose=False)
    else:
        model.save(tmp_path / name)
    x = np.linspace(-1, 1, 3 * 4 * 2, dtype=np.float32).reshape(3, 4, 2)
    graph = qk.load(tmp_path / name).graph
    for version in (graph, rewrite(graph, "inference")):
        with open_session(version, "tensorflow") as session:
            (outputs,) = session.run({session.inputs[0].name: x}).values()
        np.testing.assert_allclose(outputs, model(x, training=False), rtol=1e-5, atol=1e-7)


def test_a_model_whose_outputs_depend_on_assignments_is_rejected() -> None:
    tf = tensorflow.import_tensorflow()
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((4, 2), batch_size=1), layers.LSTM(3, stateful=True, name="memory")])
    with pytest.raises(GraphError, match="depend on the variable '.*memory/rnn_state', which every run changes"):
        freeze_object(model)


def test_a_model_in_memory_is_the_same(model: Any) -> None:
    np.testing.assert_allclose(run_graph(freeze_object(model)), model(X, training=False), rtol=1e-5, atol=1e-7)
    with pytest.raises(UsageError, match="a list is not a model"):
        freeze_object([])
