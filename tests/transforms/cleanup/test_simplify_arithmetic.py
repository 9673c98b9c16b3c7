"""Tests of simplify_arithmetic: single identities, then random expressions."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewritten_graphs import check_exact_transform, check_linear_work, compute_outputs, placeholder

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType
from quantkit.ir.text import from_text
from quantkit.recipes.example import runnable
from quantkit.runtimes import find_runtime
from quantkit.transforms.cleanup.simplify_arithmetic import simplify_arithmetic

HEAD = "inputs: x, s, b\noutputs: y\nx = Placeholder[2x3]()\ns = Placeholder[?x3]()\nb = Placeholder[bool 2x3]()\n"

# A convolution along the rows, as Keras computes it.
LAYER = (
    "n = Const[int32]([1, 1, 2, 3])\nr = Reshape(x, n)\nw = Const[1x1x3x4]()\n"
    "a = Conv2D(r, w, padding=SAME, strides=[1, 1, 1, 1])\nc = Squeeze(a, squeeze_dims=[-3])\n"
)


def graph_of(lines: str) -> Graph:
    """Return a graph of three Placeholders and the lines, with an Identity of the last line as output."""
    last = lines.strip().splitlines()[-1].split(" = ")[0]
    return runnable(from_text(f"{HEAD}{lines}\ny = Identity({last})"))


def ops_after(lines: str, **options: bool) -> list[str]:
    """Return the op types between inputs and output after the transform, except constants."""
    after = simplify_arithmetic(graph_of(lines), **options)
    inner = after.reachable() - {"x", "s", "b", "y"}
    return [node.op for node in after.nodes.values() if node.name in inner and not node.is_constant]


@pytest.mark.parametrize(
    ("lines", "ops"),
    [
        ("one = Const(1.0)\na = Mul(x, one)", []),
        ("one = Const(1.0)\na = Mul(one, s)", []),
        ("one = Const([1.0, 1.0, 1.0])\na = RealDiv(s, one)", []),
        ("one = Const(1.0)\na = RealDiv(one, x)", ["RealDiv"]),
        ("one = Const([[[1.0]]])\na = Mul(x, one)", ["Mul"]),
        ("one = Const[7x1x1](1.0)\na = Mul(x, one)".replace("[7x1x1](1.0)", "([[[1.0]], [[1.0]]])"), ["Mul"]),
        ("zero = Const(0.0)\na = Sub(x, zero)", []),
        ("zero = Const(-0.0)\na = Sub(x, zero)", ["Sub"]),
        ("zero = Const(-0.0)\na = AddV2(x, zero)", []),
        ("zero = Const(0.0)\na = AddV2(x, zero)", ["AddV2"]),
        ("zero = Const(0.0)\np = Exp(x)\na = AddV2(p, zero)", ["Exp"]),
        ("zero = Const(0.0)\na = Sub(zero, x)", ["Sub"]),
        ("zero = Const([-0.0, -0.0, -0.0])\na = BiasAdd(x, zero)", []),
        ("one = Const(1.0)\na = Pow(x, one)", []),
        ("a = Neg(x)\nc = Neg(a)", []),
        ("two = Const(2.0)\na = Mul(x, two)\nc = Neg(a)", ["Mul"]),
        ("two = Const(2.0)\na = Neg(x)\nc = Mul(a, two)", ["Mul"]),
        ("two = Const(2.0)\nfive = Const(5.0)\na = Mul(x, two)\nc = Mul(five, a)", ["Mul"]),
        ("two = Const(2.0)\nfive = Const(1e+30)\na = Mul(x, two)\nc = Mul(five, a)", ["Mul", "Mul"]),
        ("two = Const(2.0)\nfive = Const(5.0)\na = AddV2(x, two)\nc = AddV2(five, a)", ["AddV2"]),
        ("two = Const(2.0)\nfive = Const(-5.0)\na = AddV2(x, two)\nc = AddV2(five, a)", ["AddV2", "AddV2"]),
        ("two = Const(2.0)\na = Mul(x, two)\nc = Mul(a, two)\nd = Sub(c, a)", ["Mul", "Mul", "Sub"]),
        ("a = Cast(x, SrcT=float, DstT=float)", []),
        ("a = Cast(x, SrcT=float, DstT=double)\nc = Cast(a, SrcT=double, DstT=float)", []),
        ("a = Cast(x, SrcT=float, DstT=half)\nc = Cast(a, SrcT=half, DstT=float)", ["Cast", "Cast"]),
        ("a = Cast(x, SrcT=float, DstT=double)\nc = Cast(a, SrcT=double, DstT=half)", ["Cast"]),
        ("a = Relu(x)\nc = Relu(a)", ["Relu"]),
        ("a = Relu6(x)\nc = Relu(a)", ["Relu6"]),
        ("a = Relu(x)\nc = Relu6(a)", ["Relu6"]),
        ("a = Maximum(x, x)", []),
        ("t = Const[bool](true)\na = LogicalAnd(b, t)", []),
        ("t = Const[bool](true)\na = LogicalOr(b, t)", []),
        ("t = Const[bool](false)\na = LogicalAnd(b, t)", []),
        ("a = LogicalNot(b)\nc = LogicalNot(a)", []),
        ("t = Const[bool](true)\na = Neg(x)\nc = SelectV2(t, x, a)", []),
        ("t = Const[bool](false)\na = Const(7.0)\nc = SelectV2(t, a, x)", []),
        ("t = Const[bool](true)\na = Const(7.0)\nc = SelectV2(t, a, x)", ["SelectV2"]),
        ("p = Const[int32]([0, 1])\na = Transpose(x, p, Tperm=int32)", []),
        ("p = Const[int32]([1, 0])\na = Transpose(x, p, Tperm=int32)\nc = Transpose(a, p, Tperm=int32)", []),
        ("n = Const[int32]([3, 2])\nm = Const[int32]([2, 3])\na = Reshape(x, n)\nc = Reshape(a, m)", []),
        ("n = Const[int32]([3, 2])\nm = Const[int32]([6])\na = Reshape(x, n)\nc = Reshape(a, m)", ["Reshape"]),
        ("n = Const[int32]([-1, 3])\na = Reshape(s, n)", []),
        ("i = Const[int32](1)\na = ExpandDims(s, i)\nc = Squeeze(a, squeeze_dims=[1])", []),
        ("i = Const[int32](-1)\na = ExpandDims(s, i)\nc = Squeeze(a, squeeze_dims=[-1])", []),
        ("i = Const[int32](0)\na = ExpandDims(s, i)\nc = Squeeze(a, squeeze_dims=[-3])", []),
        (
            f"{LAYER}q = Const([0.5, -1.0, 2.0, 1.0])\nd = Sub(q, c)\ne = Relu(d)\n"
            "i = Const[int32](-3)\nf = ExpandDims(e, i)",
            ["Reshape", "Conv2D", "Sub", "Relu"],
        ),
        (f"{LAYER}d = Const([[[2.0], [3.0]]])\ne = Mul(c, d)", ["Reshape", "Conv2D", "Squeeze", "Mul"]),
        ("i = Const[int32](0)\na = ConcatV2(x, i)", []),
        ("a = AddN(x)", []),
        ("a = Unpack(x, num=2)\nc = Pack(a, a:1)", []),
        ("a = Unpack(x, num=2)\nc = Pack(a:1, a)", ["Unpack", "Pack"]),
        ("e = Neg(s)\na = Pack(s, e)\nc = Unpack(a, num=2)\nd = Sub(c, c:1)", ["Neg", "Sub"]),
        ("i = Const[int32](1)\na = Split(i, x, num_split=3)\nc = ConcatV2(a, a:1, a:2, i)", []),
        ("i = Const[int32](1)\na = Split(i, x, num_split=3)\nc = ConcatV2(a, a:2, a:1, i)", ["Split", "ConcatV2"]),
        ("n = Const[int32 0]()\na = Sum(x, n)", []),
        (
            "n = Const[int32]([1])\nm = Const[int32]([-1])\na = Max(x, n, keep_dims=true)\n"
            "c = Max(a, m, keep_dims=true)",
            ["Max"],
        ),
        ("n = Const[int32]([[0, 0], [0, 0]])\na = Pad(x, n)", []),
        ("n = Const[int32]([1, 1])\na = Tile(x, n)", []),
        ("n = Const[int32]([2, 3])\na = BroadcastTo(x, n)", []),
        ("n = Const[int32]([0, 0])\nm = Const[int32]([2, -1])\na = Slice(x, n, m, Index=int32)", []),
        ("n = Const[int32]([0, 0])\nm = Const[int32]([1, -1])\na = Slice(x, n, m, Index=int32)", ["Slice"]),
        ("a = Shape(x)", []),
        ("a = Shape(s)", ["Shape"]),
        ("a = Rank(s)", []),
        ("a = Size(x)", []),
        (
            "h = Shape(s)\ni = Const[int32]([1])\nj = Const[int32]([2])\n"
            "a = StridedSlice(h, i, j, i, shrink_axis_mask=1, T=int32, Index=int32)",
            [],
        ),
        (
            "h = Shape(s)\ni = Const[int32]([0])\nj = Const[int32]([1])\nthree = Const[int32](3)\n"
            "one = Const[int32](1)\n"
            "n = StridedSlice(h, i, j, j, shrink_axis_mask=1, T=int32, Index=int32)\n"
            "p = Pack(n, one, three, T=int32)\na = Reshape(s, p)",
            ["Reshape"],
        ),
    ],
)
def test_identity_is_applied(lines: str, ops: list[str]) -> None:
    before, after = graph_of(lines), simplify_arithmetic(graph_of(lines))
    assert ops_after(lines) == ops
    assert simplify_arithmetic.outcome(after).changes == ()
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(2, 3)).astype(np.float32),
        "s": random.normal(size=(4, 3)).astype(np.float32),
        "b": random.random((2, 3)) < 0.5,
    }
    expected, actual = (run(graph, feeds) for graph in (before, after))
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=3e-7)


def run(graph: Graph, feeds: dict[str, Array]) -> Array:
    with find_runtime("reference").open(graph) as session:
        return session.run(feeds)["y"]


def test_signed_zeros_option_allows_removal_of_zero_summand() -> None:
    lines = "zero = Const(0.0)\na = AddV2(x, zero)"
    outcome = simplify_arithmetic.outcome(graph_of(lines))
    assert [str(skip) for skip in outcome.skips] == [
        "a: x may be -0, which becomes 0 here; use signed_zeros=false if -0 and 0 are equivalent"
    ]
    assert ops_after(lines, signed_zeros=False) == []


def test_endpoints_and_control_dependencies_stay() -> None:
    graph = graph_of("one = Const(1.0)\na = Mul(x, one)\nc = Neg(a)\nd = Neg(x, ^a)\ne = AddV2(c, d)")
    after = simplify_arithmetic(graph)
    assert (after["a"].op, after["d"].controls) == ("Identity", ("a",))
    assert after["c"].inputs == (Edge("a"),)
    with_inputs = graph.with_endpoints(["x", "a", "one"], ["y"])
    assert simplify_arithmetic(with_inputs) == with_inputs
    with_output = simplify_arithmetic(graph.with_endpoints(["x"], ["a"]))
    assert (with_output["a"].op, with_output.outputs) == ("Identity", (Edge("a"),))


def test_invalid_nodes_stay() -> None:
    nodes = [placeholder((2, 3)), constant("c", np.float32(1))]
    invalid = [
        Node(f"n{number}", op, tuple(Edge("c") for _ in range(count)))
        for number, (op, count) in enumerate(
            (op, count)
            for op in (
                "Mul",
                "Neg",
                "Cast",
                "Select",
                "Transpose",
                "ConcatV2",
                "Pack",
                "Unpack",
                "Slice",
                "StridedSlice",
            )
            for count in range(3)
        )
    ]
    graph = Graph.of([*nodes, *invalid], ["x"], ["x"])
    assert len(simplify_arithmetic(graph)) > 0


UNARY = ("Neg", "Relu", "Abs", "Transpose", "Mul", "AddV2", "Reshape", "Cast", "Square")


@st.composite
def expressions(draw: st.DrawFn) -> Graph:
    """Generate long expressions with many inverse pairs of ops."""
    nodes = [
        placeholder((2, 2)),
        constant("swap", np.array([1, 0], np.int32)),
        constant("shape", np.array([2, 2], np.int32)),
        constant("c0", np.float32(1)),
        constant("c1", np.float32(0)),
        constant("c2", np.array([0.5, -3], np.float32)),
        constant("c3", np.float32(-0.0)),
    ]
    edges = ["x"]
    for number in range(draw(st.integers(1, 20))):
        op = draw(st.sampled_from(UNARY))
        source = draw(st.sampled_from(edges[-3:]))
        other = {"Transpose": "swap", "Reshape": "shape"}.get(op)
        if op in ("Mul", "AddV2"):
            other = draw(st.sampled_from([*edges[-2:], "c0", "c1", "c2", "c3"]))
        inputs = [Edge(source), *([Edge(other)] if other else [])]
        if op in ("Mul", "AddV2") and draw(st.booleans()):
            inputs.reverse()
        attrs = {"SrcT": DType.FLOAT, "DstT": DType.FLOAT} if op == "Cast" else {"T": DType.FLOAT}
        nodes.append(Node(f"n{number}", op, tuple(inputs), attrs=attrs))
        edges.append(f"n{number}")
    outputs = draw(st.lists(st.sampled_from(edges), min_size=1, max_size=2, unique=True))
    return Graph.of(nodes, ["x"], outputs)


@given(expressions(), st.booleans())
def test_outputs_of_random_expressions_stay(graph: Graph, signed_zeros: bool) -> None:
    check_exact_transform(simplify_arithmetic, graph, signed_zeros=signed_zeros)


@given(expressions())
def test_outputs_are_bit_exact_without_merged_constants(graph: Graph) -> None:
    outcome = simplify_arithmetic.outcome(graph)
    if not any(re.search("factor|summand", change) for change in outcome.changes):
        expected, actual = compute_outputs(graph), compute_outputs(outcome.graph)
        assert all(values.tobytes() == actual[name].tobytes() for name, values in expected.items())


@pytest.mark.parametrize("op", ["Mul", "AddV2", "Neg", "Transpose", "Reshape"])
def test_simplify_arithmetic_runs_in_linear_time(op: str) -> None:
    def chain(count: int) -> Graph:
        other = {"Transpose": "swap", "Reshape": "shape", "Mul": "c", "AddV2": "c"}.get(op)
        nodes = [
            placeholder((2, 2)),
            constant("swap", np.array([1, 0], np.int32)),
            constant("shape", np.array([4], np.int32)),
            constant("c", np.float32(1.5)),
        ]
        for number in range(count):
            source = f"n{number - 1}" if number else "x"
            nodes.append(Node(f"n{number}", op, (Edge(source), *([Edge(other)] if other else []))))
        return Graph.of(nodes, ["x"], [f"n{count - 1}"])

    check_linear_work(simplify_arithmetic, chain)
