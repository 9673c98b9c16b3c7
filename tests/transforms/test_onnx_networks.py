"""The recipe inference on real ONNX networks: equal outputs, few nodes, and all names stay."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.formats import load, onnx, save
from quantkit.formats.onnx.schema import parse_message
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Array
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime, open_session
from quantkit.runtimes.random_inputs import random_arrays
from quantkit.runtimes.session import TensorInfo

pytestmark = [
    pytest.mark.models,
    pytest.mark.engine,
    pytest.mark.skipif(not find_runtime("onnxruntime").available().ok, reason="ONNX Runtime is not installed"),
]

NETWORKS = Path(__file__).parents[2].parent / "shared" / "onnx_models"
# Nodes after onnxslim 0.1.98, and after the recipe, without constants and subgraphs.
NODES = {
    "dtln_1": (37, 20),
    "dtln_2": (71, 66),
    "fastestdet": (211, 210),
    "gtcrn_stream": (379, 375),
    "kwt1": (684, 420),
    "pplcnet_orientation": (74, 73),
    "sediment_unet": (27, 27),
    "silero_vad_op15": (52, 52),
    "silero_vad_op18": (4, 4),
    "stories260k": (420, 388),
    "super_resolution_10": (10, 10),
    "ultraface_rfb320": (125, 124),
    "vittrack": (206, 200),
    "xfeat": (76, 76),
    "yolox_nano": (365, 365),
    "yunet_n_320": (109, 109),
}
# Shapes of inputs that no size of 1 fits.
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "silero_vad_op15": {"input": (1, 576), "state": (2, 1, 128)},
    "silero_vad_op18": {"input": (1, 576), "state": (2, 1, 128)},
    "xfeat": {"input": (1, 3, 64, 96)},
    "stories260k": {"tokens": (2, 7)},
}


@pytest.fixture(scope="module")
def networks() -> Mapping[str, Graph]:
    """Return the graphs of all networks."""
    if not NETWORKS.exists():
        pytest.skip("needs ../shared/onnx_models")
    return {path.stem: load(path) for path in sorted(NETWORKS.glob("*.onnx"))}


@pytest.fixture(scope="module")
def rewritten(networks: Mapping[str, Graph]) -> Callable[[str], Graph]:
    """Return the function that rewrites a network once for all tests."""
    return cache(lambda name: rewrite(networks[name], "inference"))


def test_every_network_has_a_limit(networks: Mapping[str, Graph]) -> None:
    assert networks.keys() == NODES.keys()


@pytest.mark.parametrize("name", NODES)
def test_inference_recipe(
    networks: Mapping[str, Graph], rewritten: Callable[[str], Graph], name: str, tmp_path: Path
) -> None:
    before = networks[name]
    save(rewritten(name), tmp_path / "after.onnx")
    after = load(tmp_path / "after.onnx")
    onnxslim, expected_nodes = NODES[name]
    assert num_nodes(after) == expected_nodes <= onnxslim
    assert metadata(after) == metadata(before)
    with open_session(before, "onnxruntime") as session, open_session(after, "onnxruntime") as session_after:
        assert session_after.inputs == session.inputs
        assert session_after.outputs == session.outputs
        feeds = feeds_of(name, session.inputs)
        expected, actual = session.run(feeds), session_after.run(feeds)
    for key, values in expected.items():
        np.testing.assert_allclose(actual[key], values, rtol=1e-5, atol=1e-5 * max(float(np.abs(values).max()), 1e-3))


@pytest.mark.parametrize("name", NODES)
def test_inference_recipe_is_idempotent(rewritten: Callable[[str], Graph], name: str) -> None:
    once = rewritten(name)
    assert rewrite(once, "inference").op_counts == once.op_counts


@pytest.mark.parametrize("name", NODES)
def test_numpy_runtime_agrees_with_onnxruntime(networks: Mapping[str, Graph], name: str) -> None:
    graph = networks[name]
    if "If" in graph.op_counts or name in ("super_resolution_10", "sediment_unet"):
        pytest.skip("subgraphs are not run; large images take seconds")
    with open_session(graph, "onnxruntime") as session, open_session(graph, "reference") as reference:
        feeds = feeds_of(name, session.inputs)
        expected, actual = session.run(feeds), reference.run(feeds)
    # yolox_nano amplifies rounding at one position: 3e-4 and 8e-4 are the errors of the runtimes in double precision.
    for key, values in expected.items():
        np.testing.assert_allclose(actual[key], values, rtol=1e-4, atol=2e-4 * max(float(np.abs(values).max()), 1e-2))


def num_nodes(graph: Graph) -> int:
    return sum(node.op not in ("Placeholder", "Constant", "Absent") for node in graph.nodes.values())


def metadata(graph: Graph) -> Any:
    """Return all fields of the model but its graph and the version of the file format."""
    model = parse_message("ModelProto", graph.extra)
    opsets = onnx.opsets(graph)
    names = [info.name for info in model.graph.output]
    return opsets, names, [*model.metadata_props], model.producer_name, model.doc_string, model.graph.name


def feeds_of(name: str, inputs: Sequence[TensorInfo]) -> Mapping[str, Array]:
    random = np.random.default_rng(0)
    shapes = SHAPES.get(name, {})
    arrays: dict[str, Array] = {"sr": np.array(16000)} if name.startswith("silero") else {}
    for info in inputs:
        if info.name in shapes:
            values = random.uniform(-1, 1, shapes[info.name])
            arrays[info.name] = (np.abs(values) * 8 if info.name == "tokens" else values).astype(info.dtype.numpy)
    return random_arrays(tuple(inputs), feeds=arrays)
