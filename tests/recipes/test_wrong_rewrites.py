"""Verification finds wrong rewrites, also where the last op of a network hides them, and accepts correct ones."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from wrong_rewrites import NETWORKS, REWRITES, networks

import quantkit as qk
from quantkit.errors import CheckError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import Tensor
from quantkit.ir.text import from_text
from quantkit.recipes.named import RECIPES
from quantkit.recipes.verify import Verifier, make_verifier
from quantkit.runtimes.random_inputs import find_compared_integers

SHARED = Path(__file__).parents[3] / "shared" / "onnx_models"
# Networks with normalizations, convolutions of sequences, attention, branches and several outputs. Those of
# tests/transforms/test_onnx_networks.py compare the outputs of all networks, without the verification.
TRAINED = ("dtln_2", "gtcrn_stream", "silero_vad_op18", "stories260k", "vittrack", "yunet_n_320")


@dataclass(frozen=True)
class Exact:
    """Claim of a transform that keeps the outputs."""

    name: str
    is_exact: bool = True


@cache
def verifier(name: str) -> tuple[Graph, Verifier]:
    graph = networks()[name]
    return graph, make_verifier(qk.load(graph), graph, runtime="reference")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", REWRITES)
def test_wrong_rewrites_are_found(kind: str, name: str) -> None:
    graph, check = verifier(name)
    wrong = list(REWRITES[kind](graph))
    for index, after in enumerate(wrong):
        with pytest.raises(CheckError, match=rf"{kind} (changes|adds NaN)"):
            pytest.fail(f"{index}: {check(graph, after, Exact(kind))}")
    if not wrong:
        pytest.skip("the network has no such node")


def test_every_kind_of_rewrite_occurs() -> None:
    graphs = networks().values()
    assert len(REWRITES) >= 20
    counts = {kind: sum(len(list(function(graph))) for graph in graphs) for kind, function in REWRITES.items()}
    assert all(counts.values())
    assert sum(counts.values()) >= 60


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("recipe", ["inference", "deploy"])
def test_recipes_keep_the_outputs(recipe: str, name: str) -> None:
    messages: list[str] = []
    model = qk.transform(networks()[name], recipe, runtime="reference", verify=True, on_message=messages.append)
    assert model.trace is not None
    assert all(record.check or record.skips for record in model.trace.records)
    assert not messages


# Networks with one output value after h = Gemm(x, w, b) * g + c, (1, 32).
SINGLE_VALUES = {
    "regression": "y = MatMul(h, v)",
    "binary classifier": "z = MatMul(h, v)\ny = Sigmoid(z)",
    "average": "r = Relu(h)\nz = ReduceMean(r, keepdims=0)\nk = Constant(0.001)\ny = Mul(z, k)",
    "distance": "s = Mul(h, h)\nz = ReduceSum(s, keepdims=0)\ny = Sqrt(z)",
    "index": "z = ArgMax(h, axis=1, keepdims=0)\ny = Cast(z, to=1)",
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", SINGLE_VALUES)
def test_recipes_keep_one_output_value(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    shapes = {"w": (64, 32), "b": (32,), "g": (32,), "c": (32,), "v": (32, 1)}
    constants = [
        Node(key, "Constant", attrs={"value": Tensor.of(random.standard_normal(shape).astype(np.float32))})
        for key, shape in shapes.items()
        if key != "v" or "v)" in SINGLE_VALUES[name]
    ]
    graph = from_text(f"""
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x64]()
        f = Gemm(x, w, b)
        m = Mul(f, g)
        h = Add(m, c)
        {SINGLE_VALUES[name]}
    """)
    graph = graph.with_nodes([*constants, *graph.nodes.values()])
    model = qk.transform(graph, "inference", runtime="reference", verify=True, seed=seed)
    assert model.trace is not None
    assert ("Mul" in model.graph.op_counts) == (name in ("average", "distance"))
    assert any(record.check.startswith("y: ") for record in model.trace.records)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_keep_the_outputs_of_the_bundled_network(recipe: str) -> None:
    model = qk.transform("digits", recipe, runtime="reference", verify=True)
    assert model.trace is not None
    assert any(record.check.startswith("softmax: ") for record in model.trace.records)


@pytest.mark.engine
@pytest.mark.models
@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/onnx_models")
@pytest.mark.parametrize("name", TRAINED)
def test_verification_accepts_the_recipe_for_trained_networks(name: str) -> None:
    messages: list[str] = []
    model = qk.transform(SHARED / f"{name}.onnx", "inference", verify=True, on_message=messages.append)
    assert model.trace is not None
    assert any(record.check for record in model.trace.records)
    assert not messages


@pytest.mark.engine
@pytest.mark.models
@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/onnx_models")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dtln_2", "swapped_channels"),
        ("pplcnet_orientation", "lost_epsilon"),
        ("gtcrn_stream", "transposed_weights"),
        ("vittrack", "wrong_axis"),
        ("xfeat", "lost_epsilon"),
        ("yunet_n_320", "lost_bias_of_a_channel"),
    ],
)
def test_wrong_rewrites_of_trained_networks_are_found(name: str, kind: str) -> None:
    model = qk.load(SHARED / f"{name}.onnx")
    check, wrong = make_verifier(model, model.graph), next(REWRITES[kind](model.graph))
    with pytest.raises(CheckError, match=rf"{kind} (changes|adds NaN)"):
        check(model.graph, wrong, Exact(kind))


BRANCHES = """
    inputs: x, rate
    outputs: y
    x = Placeholder[4x{size}](dtype=float)
    rate = Placeholder[1](dtype=int64)
    fast = Const[int64](16000)
    is_fast = Equal(rate, fast, T=int64)
    two = Const({factor})
    three = Const(3)
    a = Mul(x, two, T=float)
    b = Mul(x, three, T=float)
    y = SelectV2(is_fast, a, b, T=float)
"""


@pytest.mark.parametrize("size", [2, 200])
def test_branches_that_an_integer_input_selects_are_compared(size: int) -> None:
    before, after = (from_text(BRANCHES.format(size=size, factor=factor)) for factor in (2, 2.5))
    assert find_compared_integers(before) == {Edge("rate"): (16000,)}
    check = make_verifier(qk.load(before), before, runtime="reference")
    assert check(before, before, Exact("same"))
    with pytest.raises(CheckError, match="wrong changes"):
        check(before, after, Exact("wrong"))
