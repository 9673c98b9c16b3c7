"""One network in several formats: the same layers in int8, and the same quantize/dequantize boundaries."""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantkit as qk
from quantkit.convert.onnx_to_tensorflow import as_tensorflow
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.ops.roles import find_roles
from quantkit.quantization import Scheme
from quantkit.quantization.precision.decision import Decision
from quantkit.quantization.report.census import census
from quantkit.quantization.targets import targets
from quantkit.quantization.workflow.options import Options
from quantkit.quantization.workflow.planning import choose_plan, convert_uncalibrated
from quantkit.quantization.workflow.preparation import load_float_model, prepare_float_graph

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from onnx_networks import FOLDER

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Keras' own
# Names of op types with the same role in both dialects.
ROLES = {"Conv": "Conv2D", "DepthwiseConv2dNative": "Conv2D", "Gemm": "MatMul", "BatchMatMulV2": "MatMul"}


def roles_of_decisions(graph: Graph, decisions: Iterable[Decision]) -> list[tuple[str, str, str]]:
    """Return op type, precision and source of the decision about each layer, in execution order."""
    layers = find_roles(graph).layer_ops
    return [
        (ROLES.get(graph[each.unit].op, graph[each.unit].op), each.precision, each.source)
        for each in decisions
        if graph[each.unit].op in layers
    ]


def decide(source: Any, target: str) -> dict[str, Any]:
    """Return the number of int8 layers, float layers, quantized edges and boundaries of a model for a target."""
    options = Options(source, target=target)
    scheme = Scheme.for_target(target)
    float_model = prepare_float_graph(load_float_model(options), options, scheme, None)
    graph = float_model.graph
    plan = choose_plan(options, graph, float_model.scheme)
    boundaries = census(graph, plan, convert_uncalibrated(graph, plan)).boundaries
    layers = find_roles(graph).layer_ops

    def count(names: Any) -> Counter[str]:
        return Counter(ROLES.get(graph[name].op, graph[name].op) for name in names if graph[name].op in layers)

    return {
        "int8": count(pattern.layer for pattern in plan.patterns),
        "residuals": sum(bool(pattern.add) for pattern in plan.patterns),
        "activations": sum(bool(pattern.activation) for pattern in plan.patterns),
        "float": count(plan.float_fallbacks),
        "decisions": Counter(roles_of_decisions(graph, plan.decisions)),
        "specs": Counter(map(str, plan.activations.values())),
        "boundaries": boundaries,
    }


@pytest.mark.parametrize("target", ["onnx", "tensorflow", "litert", "eightbit", "tensorrt"])
def test_formats_of_the_bundled_network(target: str, tmp_path: Path) -> None:
    for name in ("digits.onnx", "digits.pb"):
        qk.transform("digits", "inference", output=tmp_path / name)
    expected = decide("digits", target)
    # A product with 10 outputs is too small for a GPU.
    assert expected["int8"].total() == (20 if target == "tensorrt" else 21)
    assert decide(tmp_path / "digits.onnx", target) == expected
    assert decide(tmp_path / "digits.pb", target) == expected


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return a network with batch norms, depthwise layers and a residual in four formats."""
    keras = pytest.importorskip("keras", reason="pip install keras")
    folder = tmp_path_factory.mktemp("keras")
    keras.utils.set_random_seed(0)
    image = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(16, 3, 2, padding="same", use_bias=False)(image)
    x = shortcut = keras.layers.ReLU(6.0)(keras.layers.BatchNormalization()(x))
    x = keras.layers.DepthwiseConv2D(3, padding="same")(x)
    x = keras.layers.Conv2D(16, 1)(keras.layers.ReLU()(x))
    x = keras.layers.Add()([x, shortcut])
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(16, 3, activation="silu")(x))
    model = keras.Model(image, keras.layers.Dense(5)(x))
    model.save(folder / "network.keras")
    model.export(str(folder / "saved_model"), verbose=False)
    qk.save(folder / "network.keras", folder / "network.pb")
    qk.save(folder / "network.keras", folder / "network.onnx")
    return [folder / name for name in ("network.keras", "saved_model", "network.pb", "network.onnx")]


@pytest.mark.engine
@pytest.mark.parametrize("target", ["onnx", "tensorflow", "litert", "eightbit", "tensorrt"])
def test_formats_of_a_keras_network(target: str, keras_files: list[Path]) -> None:
    expected = decide(keras_files[0], target)
    assert expected["int8"].total() >= 4
    assert [decide(path, target) for path in keras_files[1:]] == [expected] * 3


@pytest.mark.engine
def test_outputs_of_quantized_formats_agree(keras_files: list[Path]) -> None:
    """The measured decisions, too, are the same: observer, scales, float layers and bias correction."""
    images: Array = np.random.default_rng(0).normal(size=(16, 16, 16, 3)).astype(np.float32)
    results = [qk.quantize(path, images, runs=0) for path in keras_files]
    decisions = [roles_of_decisions(each.conversion.graph, each.decisions) for each in results]
    assert len(decisions[0]) >= 5
    assert decisions[1:] == [decisions[0]] * 3
    (names,) = {tuple(sorted(result.model.graph.op_counts.items())) for result in results}
    assert dict(names)["QuantizeLinear"] > 4
    errors = [result.report.accuracy.sqnr.worst for result in results if result.report.accuracy.sqnr is not None]
    np.testing.assert_allclose(errors, errors[0], atol=0.5)
    assert len(errors) == 4


@pytest.mark.models
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the networks of ../shared/onnx_models are not here")
@pytest.mark.parametrize("name", ["sediment_unet", "super_resolution_10", "ultraface_rfb320", "yunet_n_320"])
def test_formats_of_trained_networks(name: str, tmp_path: Path) -> None:
    path = FOLDER / f"{name}.onnx"
    qk.save(as_tensorflow(qk.load(path).graph), tmp_path / "network.pb")
    for target in targets():
        assert decide(tmp_path / "network.pb", target) == decide(path, target), target
