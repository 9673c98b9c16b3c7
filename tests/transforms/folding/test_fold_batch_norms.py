import numpy as np
import pytest
from hypothesis import given
from layered_graphs import check_promises, layered_graphs

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Tensor
from quantkit.ir.text import from_text
from quantkit.transforms.folding.fold_batch_norms import fold_batch_norms


@given(layered_graphs())
def test_outputs_stay_equal_and_fold_is_idempotent(graph: Graph) -> None:
    check_promises(fold_batch_norms, graph)


@given(layered_graphs())
def test_every_factor_after_layer_is_folded_or_skipped(graph: Graph) -> None:
    outcome = fold_batch_norms.outcome(graph)
    skipped = {skip.node for skip in outcome.skips}
    for node in outcome.graph.nodes.values():
        sources = [outcome.graph[edge.node] for edge in node.inputs]
        is_factor = node.op in ("Mul", "RealDiv") and any(source.is_constant for source in sources)
        if is_factor and any(source.op in ("Conv2D", "DepthwiseConv2dNative") for source in sources):
            assert node.name in skipped


def test_folded_weights_equal_classic_tool_bitwise() -> None:
    graph = from_text("""
        outputs: b
        x = Placeholder[1x5x5x2]()
        w = Const[3x3x2x3]()
        s = Const[6]()
        a = DepthwiseConv2dNative(x, w)
        b = Mul(a, s)
    """)
    flat, scale = graph["w"].value.array.reshape(-1), graph["s"].value.array
    classic = np.array([weight * scale[index % 6] for index, weight in enumerate(flat)], dtype=np.float32)
    assert np.array_equal(fold_batch_norms(graph)["w"].value.array.reshape(-1), classic)


def large_layer(weights: Tensor) -> Graph:
    return Graph.of(
        [
            Node("x", "Placeholder", attrs={"dtype": DType.FLOAT}),
            constant("w", weights),
            constant("s", np.arange(64, dtype=np.float32)),
            Node("a", "MatMul", (Edge("x"), Edge("w"))),
            Node("b", "Mul", (Edge("a"), Edge("s"))),
        ],
        ["x"],
        ["b"],
    )


def test_large_weights_are_loaded_with_product() -> None:
    reads = []

    def load() -> np.ndarray:
        reads.append(1)
        return np.ones((1024, 64), np.float32)

    folded = fold_batch_norms(large_layer(Tensor(DType.FLOAT, (1024, 64), load)))
    assert not reads
    assert np.array_equal(folded["w"].value.array[5], np.arange(64))
    assert len(reads) == 1


def test_unknown_attributes_controls_and_devices_stay() -> None:
    graph = from_text("""
        outputs: b
        x = Placeholder[1x2]()
        w = Const[2x2](^x, _note=kept) @"/cpu:0"
        a = MatMul(x, w, _note=kept) @"/cpu:1"
        b = Mul(a, s)
        s = Const(2.0)
    """)
    after = fold_batch_norms(graph)
    assert (after["w"].attrs["_note"], after["w"].controls, after["w"].device) == (b"kept", ("x",), "/cpu:0")
    assert (after["b"].op, after["b"].attrs["_note"], after["b"].device) == ("MatMul", b"kept", "/cpu:1")
    assert list(after.nodes) == ["x", "w", "b"]


def test_long_chain_of_factors_folds_into_one_layer() -> None:
    factors = [Node(f"m{n}", "Mul", (Edge(f"m{n - 1}" if n else "a"), Edge("s"))) for n in range(3000)]
    graph = large_layer(Tensor.of(np.ones((2, 64), np.float32)))
    layer = [graph[name] for name in ("x", "w", "a")]
    after = fold_batch_norms(Graph.of([*layer, constant("s", np.float32(1.0)), *factors], ["x"], ["m2999"]))
    assert list(after.nodes) == ["x", "w", "m2999"]
    assert np.array_equal(after["w"].value.array, graph["w"].value.array)


def test_factor_far_from_layer_stays() -> None:
    identities = [Node(f"i{n}", "Identity", (Edge(f"i{n - 1}" if n else "a"),)) for n in range(2000)]
    graph = large_layer(Tensor.of(np.ones((2, 64), np.float32)))
    root = graph["b"].with_input(0, "i1999")
    nodes = [*(node for node in graph.nodes.values() if node.name != "b"), *identities, root]
    deep = graph.with_nodes(nodes)
    assert fold_batch_norms(deep) == deep


@pytest.mark.parametrize("dtype", [DType.DOUBLE, DType.HALF, DType.BFLOAT16])
def test_other_float_types_are_scaled_in_their_type(dtype: DType) -> None:
    name = dtype.value
    graph = from_text(f"""
        outputs: b
        x = Placeholder[{name} 1x2]()
        w = Const[{name} 2x2]()
        s = Const[{name}]([0.5, 4.0])
        a = MatMul(x, w, T={name})
        b = Mul(a, s, T={name})
    """)
    weights = fold_batch_norms(graph)["w"].value
    assert weights.dtype is dtype
    assert np.array_equal(weights.array, graph["w"].value.array * graph["s"].value.array)


def test_factor_of_other_type_than_layer_is_skipped() -> None:
    graph = from_text("""
        outputs: b
        x = Placeholder[1x2]()
        w = Const[2x2]()
        s = Const[double]([0.5, 4.0])
        a = MatMul(x, w)
        b = Mul(a, s)
    """)
    assert [str(skip) for skip in fold_batch_norms.outcome(graph).skips] == [
        "b: s (double 2) is not one factor per channel of a"
    ]
