import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quantkit.errors import GraphError
from quantkit.ir.functions import FunctionName
from quantkit.ir.graph import Attr, Edge, Graph, Node, Opaque, constant
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ir.text import from_text, node_text, seeded_tensor, to_text

EVERYTHING = r"""dialect: onnx
inputs: x
outputs: c, "a b:c":2
x = Placeholder[1x?x8x3]()
y = Placeholder[int32 <*>]()
z = Placeholder[half <>]()
w = Const[3x3x3x4]()
h = Const[half 4x8]()
i = Const[int32]([1, 2, 3])
f = Const(2.5)
b = Const[bool]([true, false], ^x)
t = Const[string](["a b", "\x00q\x22"])
e = Const[0x3]()
d = Const[double]([0.1, 1e-300])
q = Const[quint8]([0, 255])
k = Const[complex64](["(1+2j)"])
s = Const([[-inf, nan], [1e-05, 1e+20]])
a = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])
"a b:c" = Relu(a, eps=0.001, l=[], n=-3, name="float", o=Opaque("00ff"), r=<*>, s=<1x?x3>, t=Tensor[2]([1.0, -inf]))
c = Identity("a b:c":2, split:1, ^before) @"/cpu:0"
"""


def test_written_text_is_read_back() -> None:
    assert to_text(from_text(EVERYTHING)) == EVERYTHING


def test_kinds_of_attributes() -> None:
    text = 'a = Op(b=true, n=3, f=1.0, w=SAME, t=int8, q="int8", s=<2x?>, l=[1, 2])'
    assert from_text(text)["a"].attrs == {
        "b": True,
        "n": 3,
        "f": 1.0,
        "w": b"SAME",
        "t": DType.INT8,
        "q": b"int8",
        "s": Shape((2, None)),
        "l": (1, 2),
    }


def test_values_equal_those_of_a_graphdef() -> None:
    value = from_text("a = Op(epsilon=0.001)")["a"].attrs["epsilon"]
    assert value == float(np.float32(0.001))
    assert node_text(Node("a", "Op", attrs={"epsilon": value})) == "a = Op(epsilon=0.001)"


def test_constants_without_values_are_seeded_by_name() -> None:
    graph = from_text("v = Const[2x3]()\nw = Const[2x3]()\nagain = Const[2x3]()")
    assert graph["v"].value == seeded_tensor("v", (2, 3))
    assert graph["v"].value != graph["w"].value
    assert graph["v"].value.dtype is DType.FLOAT


def test_large_constants_have_their_range() -> None:
    node = constant("w", np.linspace(-1, 2, 17, dtype=np.float32))
    assert node_text(node) == "w = Const[17](~ -1..2)"
    with pytest.raises(GraphError, match="this text has only their range"):
        from_text(node_text(node))


def test_comments_and_blank_lines_are_ignored() -> None:
    assert from_text("# story\n\n  a = Op()\n") == Graph.of([Node("a", "Op")])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a =", "an op"),
        ("a = B(x", "','"),
        ("a = B(x) y", "the end of the line"),
        ("= a", "a name"),
        ("a = Const[foo]()", "an element type or a shape"),
        ("a = Const(foo)", "a value"),
        ("a = B(k=)", "an attribute value"),
        ("a = B(x,)", "a name"),
        ("a = B() @cpu", "a quoted text"),
    ],
)
def test_parse_errors_name_the_expected_token(line: str, expected: str) -> None:
    with pytest.raises(GraphError, match=f"line 2: expected {expected}, but found") as caught:
        from_text(f"x = Placeholder()\n{line}")
    assert caught.value.hint


def test_functions_round_trip() -> None:
    text = """inputs: x
outputs: y
x = Placeholder[2]()
y = PartitionedCall(x, Tin=[float], Tout=[float], f=&double)
function double(sum = add, count[int32] = many:1, ^done = "a b")
a = _Arg(T=float, index=0)
add = AddV2(a, a)
many = IdentityN(a, two, T=[float, int32])
two = Const[int32](2)
"a b" = NoOp(^add)
end
function empty()
end
"""
    graph = from_text(text)
    assert to_text(graph) == text
    assert list(graph.nodes) == ["x", "y"]
    double = graph.library["double"]
    assert (double.graph.inputs, double.graph.outputs) == ((Edge("a"),), (Edge("add"), Edge("many", 1)))
    assert double.results == {"sum": DType.FLOAT, "count": DType.INT32}
    assert double.controls == {"done": "a b"}


def test_two_nodes_of_one_name_are_rejected() -> None:
    with pytest.raises(GraphError, match="two nodes are named 'a'"):
        from_text("a = B()\na = C()")


names = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), min_size=1, max_size=6)
floats = st.floats(width=32)
plain: st.SearchStrategy[Attr] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    floats,
    st.binary(max_size=6),
    st.sampled_from(DType),
    st.lists(st.none() | st.integers(0, 9), max_size=3).map(Shape),
    st.just(Shape(None)),
    st.binary(max_size=4).map(Opaque),
    st.builds(FunctionName, names, st.binary(max_size=4)),
    st.lists(floats, min_size=1, max_size=4).map(Tensor.of),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes: list[Node] = []
    for name in draw(st.lists(names, max_size=5, unique=True)):
        if draw(st.booleans()):
            values = draw(st.lists(floats, max_size=4))
            nodes.append(constant(name, np.float32(values)))
        else:
            edges = tuple(Edge(*pair) for pair in draw(st.lists(st.tuples(names, st.integers(0, 3)), max_size=3)))
            attrs = draw(st.dictionaries(st.sampled_from(["T", "alpha", "_list"]), plain | st.lists(plain).map(tuple)))
            controls = tuple(draw(st.lists(names, max_size=2, unique=True)))
            nodes.append(Node(name, "Op", edges, controls, attrs, draw(st.sampled_from(["", "/gpu:0"]))))
    ends = st.lists(names.map(Edge), max_size=2)
    return Graph.of(nodes, draw(ends), draw(ends))


@given(graphs())
@example(Graph.of([Node("a", "Op", attrs={"T": b"A\xb9"})]))
def test_any_graph_round_trips(graph: Graph) -> None:
    text = to_text(graph)
    assert to_text(from_text(text)) == text


def test_scalar_is_written_even_if_it_equals_the_seeded_value() -> None:
    drawn = seeded_tensor("no", (), DType.BOOL)
    graph = Graph.of([constant("no", drawn)])
    assert to_text(graph).strip() == f"no = Const[bool]({str(bool(drawn.array)).lower()})"
    assert from_text(to_text(graph)) == graph
