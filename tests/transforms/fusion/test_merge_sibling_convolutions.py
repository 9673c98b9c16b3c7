"""Siblings in random graphs: outputs, remaining siblings, lazy weights, run time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import CONVOLUTION, check_exact_transform, check_linear_work, placeholder

from quantkit.errors import RecipeError
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Tensor
from quantkit.transforms.fusion.merge_sibling_convolutions import merge_sibling_convolutions


@st.composite
def blocks(draw: st.DrawFn) -> Graph:
    """Return convolutions with biases and activations, and concats over all dimensions."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes = [placeholder((1, 4, 4, 3)), *(constant(f"axis{axis}", np.int32(axis)) for axis in (1, 3, -1))]
    channels = {"x": 3}

    def draw_source() -> str:
        return draw(st.sampled_from([*list(channels)[:2], *channels]))

    for number in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["Conv2D"] * 4 + ["Concat", "ConcatV2", "Neg"]))
        name = f"n{number}"
        source = draw_source()
        attrs: dict[str, Attr] = {"T": DType.FLOAT}
        if kind == "Neg":
            nodes.append(Node(name, kind, (Edge(source),), attrs=attrs))
            channels[name] = channels[source]
        elif kind == "Conv2D":
            channels[name] = _add_branch(draw, random, nodes, name, source, channels[source])
        else:
            axis = draw(st.sampled_from([1, 3, -1, -1]))
            parts = [source, *(draw_source() for _ in range(draw(st.integers(1, 3))))]
            is_rows = axis == 1
            parts = [part for part in parts if channels[part] == channels[source]] if is_rows else parts
            if len(parts) < 2 or is_rows:
                continue
            edges = [*map(Edge, parts), Edge(f"axis{axis}")]
            edges = [edges[-1], *edges[:-1]] if kind == "Concat" else edges
            nodes.append(Node(name, kind, tuple(edges), attrs={**attrs, "N": len(parts), "Tidx": DType.INT32}))
            channels[name] = sum(channels[part] for part in parts)
    names = list(channels)[1:] or ["x"]
    return Graph.of(nodes, ["x"], dict.fromkeys([names[-1], *draw(st.lists(st.sampled_from(names), max_size=3))]))


def _add_branch(
    draw: st.DrawFn, random: np.random.Generator, nodes: list[Node], name: str, source: str, c_in: int
) -> int:
    """Add a convolution with an optional bias and activation, the last node named ``name``."""
    c_out = draw(st.integers(1, 3))
    size = draw(st.sampled_from([1, 1, 1, 3]))
    tails = [[], ["BiasAdd"], ["BiasAdd", "Relu"], ["AddV2"], ["AddV2", "Relu"], ["Relu"], ["Relu6"]]
    steps = ["Conv2D", *draw(st.sampled_from(tails))]
    before = source
    for number, step in enumerate(steps):
        step_name = name if number == len(steps) - 1 else f"{name}/{step}"
        edges = [Edge(before)]
        if step in ("Conv2D", "BiasAdd", "AddV2"):
            shape = (size, size, c_in, c_out) if step == "Conv2D" else (c_out,)
            nodes.append(constant(f"{name}/{step}/values", random.uniform(-1, 1, shape).astype(np.float32)))
            edges.insert(0 if step == "AddV2" else 1, Edge(nodes[-1].name))
        attrs = {"T": DType.FLOAT, **(CONVOLUTION if step == "Conv2D" else {})}
        nodes.append(Node(step_name, step, tuple(edges), attrs=attrs))
        before = step_name
    return c_out


@given(blocks(), st.sampled_from([0.0, 1.0, 3.0]), st.booleans())
def test_outputs_of_siblings_stay_equal(graph: Graph, gain: float, across: bool) -> None:
    check_exact_transform(merge_sibling_convolutions, graph, gain=gain, across_activations=across)


@given(blocks())
def test_gain_zero_across_activations_merges_all_siblings(graph: Graph) -> None:
    outcome = merge_sibling_convolutions.outcome(graph, gain=0, across_activations=True)
    keys = set()
    for node in outcome.graph.nodes.values():
        if node.op == "Conv2D":
            uses = outcome.graph.node_uses.get(node.name, ())
            has_one_use = len(uses) == 1 and node.name not in outcome.graph.endpoint_names
            has_bias = has_one_use and uses[0].node.op in ("BiasAdd", "AddV2")
            key = (node.inputs[0], outcome.graph[node.inputs[1].node].value.shape[:2], has_bias)
            assert key not in keys
            keys.add(key)


def siblings(count: int, weights: Tensor) -> Graph:
    """Return a chain of pairs of convolutions."""
    nodes = [placeholder((1, 4, 4, 8)), constant("w", weights)]
    source = "x"
    for number in range(count):
        pair = (f"a{number}", f"b{number}")
        nodes.extend(Node(name, "Conv2D", (Edge(source), Edge("w")), attrs=CONVOLUTION) for name in pair)
        nodes.append(Node(f"c{number}", "Add", (Edge(f"a{number}"), Edge(f"b{number}")), attrs={"T": DType.FLOAT}))
        source = nodes[-1].name
    return Graph.of(nodes, ["x"], [source])


def test_weights_are_loaded_with_merged_weights() -> None:
    reads = []

    def load() -> Array:
        reads.append(1)
        return np.ones((1, 1, 8, 8), np.float32)

    merged = merge_sibling_convolutions(siblings(1, Tensor(DType.FLOAT, (1, 1, 8, 8), load)), gain=0)
    assert not reads
    assert merged["a0/merged/weights"].value.array.shape == (1, 1, 8, 16)


def test_merge_sibling_convolutions_runs_in_linear_time() -> None:
    weights = Tensor.of(np.ones((1, 1, 8, 8), np.float32))
    check_linear_work(merge_sibling_convolutions, lambda count: siblings(count, weights), gain=0)


def test_negative_gain_is_rejected() -> None:
    with pytest.raises(RecipeError, match="gain must not be negative"):
        merge_sibling_convolutions(siblings(1, Tensor.of([1.0])), gain=-1)
