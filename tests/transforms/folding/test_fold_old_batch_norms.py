from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from layered_graphs import check_promises, layered_graphs
from work import check_work_is_linear

from quantkit.formats import graphdef
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import CACHE_LIMIT_BYTES, DType, Tensor
from quantkit.ir.text import from_text
from quantkit.transforms.cleanup.remove_nodes import remove_nodes
from quantkit.transforms.cleanup.strip_unused_nodes import strip_unused_nodes
from quantkit.transforms.folding.fold_old_batch_norms import fold_old_batch_norms

NORMS = ("BatchNormWithGlobalNormalization", "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")


@given(layered_graphs())
def test_outputs_stay_equal_and_fold_is_idempotent(graph: Graph) -> None:
    check_promises(fold_old_batch_norms, graph)


@given(layered_graphs())
def test_every_norm_is_folded_or_skipped(graph: Graph) -> None:
    outcome = fold_old_batch_norms.outcome(graph)
    remaining = [node.name for node in outcome.graph.nodes.values() if node.op in NORMS]
    assert remaining == [skip.node for skip in outcome.skips]


@pytest.mark.parametrize("is_scaled", [True, False])
def test_weights_and_bias_equal_classic_tool_bitwise(is_scaled: bool) -> None:
    graph = from_text(
        f"""
        outputs: b
        x = Placeholder[1x5x5x3]()
        w = Const[3x3x3x5]()
        mean = Const[5]()
        variance = Const([0.1, 1.0, 2.5, 1e-05, 30.0])
        beta = Const[5]()
        gamma = Const[5]()
        a = Conv2D(x, w)
        b = BatchNormWithGlobalNormalization(a, mean, variance, beta, gamma,
            variance_epsilon=0.001, scale_after_normalization={str(is_scaled).lower()})
    """.replace(",\n            ", ", ")
    )
    mean, variance, beta, gamma = (graph[name].value.array for name in ("mean", "variance", "beta", "gamma"))
    scale = np.float32(1) / np.sqrt(variance + np.float32(0.001))
    scale = scale * gamma if is_scaled else scale
    after = fold_old_batch_norms(graph)
    assert np.array_equal(after["w"].value.array, graph["w"].value.array * scale)
    assert np.array_equal(after["a_bn_offset"].value.array, (-mean * scale) + beta)
    assert after["w"].value.array.dtype == after["a_bn_offset"].value.array.dtype == np.float32
    assert list(after.nodes) == ["x", "w", "a", "a_bn_offset", "b"]


def towers(count: int) -> Graph:
    """Return a chain of convolutions with bias and norm; all norms share their statistics."""
    nodes = [
        Node("r0", "Placeholder"),
        constant("one", np.ones(2, np.float32)),
        constant("zero", np.zeros(2, np.float32)),
    ]
    weights = Tensor.of(np.ones((1, 1, 2, 2), np.float32))
    statistics = tuple(map(Edge, ("one", "zero", "zero", "one")))
    for n in range(count):
        nodes += [
            constant(f"w{n}", weights),
            Node(f"a{n}", "Conv2D", (Edge(f"r{n}"), Edge(f"w{n}"))),
            Node(f"b{n}", "BiasAdd", (Edge(f"a{n}"), Edge("zero"))),
            Node(f"c{n}", "FusedBatchNorm", (Edge(f"b{n}"), *statistics), attrs={"is_training": False, "epsilon": 0.0}),
            Node(f"r{n + 1}", "Relu", (Edge(f"c{n}"),)),
        ]
    return Graph.of(nodes, ["r0"], [f"r{count}"])


def test_fold_old_batch_norms_runs_in_linear_time() -> None:
    def work(count: int) -> Callable[[], object]:
        graph = towers(count)
        return lambda: fold_old_batch_norms(graph)

    check_work_is_linear(work, 20)


def test_products_of_large_weights_are_computed_on_access() -> None:
    reads = []

    def load() -> np.ndarray:
        reads.append(1)
        return np.ones((1, 1, 2, CACHE_LIMIT_BYTES), np.float32)

    count = CACHE_LIMIT_BYTES
    statistics = [constant(name, np.ones(count, np.float32)) for name in ("gamma", "beta", "mean", "variance")]
    graph = Graph.of(
        [
            Node("x", "Placeholder"),
            constant("w", Tensor(DType.FLOAT, (1, 1, 2, count), load)),
            *statistics,
            Node("a", "Conv2D", (Edge("x"), Edge("w"))),
            Node(
                "b",
                "FusedBatchNormV3",
                (Edge("a"), *(Edge(node.name) for node in statistics)),
                attrs={"is_training": False, "epsilon": 3.0},
            ),
        ],
        ["x"],
        ["b"],
    )
    folded = fold_old_batch_norms(graph)
    assert not reads
    assert np.array_equal(folded["w"].value.array, np.full((1, 1, 2, count), 0.5, np.float32))


def test_norms_of_digits_model_fold_completely() -> None:
    path = Path(__file__).parents[3] / "models" / "digits.pb"
    network = strip_unused_nodes(graphdef.decode(path.read_bytes()).with_endpoints(None, ["softmax"]))
    outcome = fold_old_batch_norms.outcome(remove_nodes(network, op=("Identity", "CheckNumerics")))
    assert not outcome.skips
    assert len(outcome.changes) == sum(network.op_counts.get(op, 0) for op in NORMS) > 0
    assert not set(NORMS) & set(outcome.graph.op_counts)
