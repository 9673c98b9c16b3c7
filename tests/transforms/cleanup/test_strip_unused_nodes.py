"""Cutting a graph down to what its outputs need."""

import pytest

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.transforms.registry import find_transform

strip_unused_nodes = find_transform("strip_unused_nodes")


def graph(inputs: tuple[str, ...] = ("mul",), outputs: tuple[str, ...] = ("end",)) -> Graph:
    return Graph.of(
        [
            Node("file", "Const"),
            Node("decode", "DecodeJpeg", (Edge("file"),)),
            Node("mul", "Mul", (Edge("decode"), Edge("file"))),
            Node("guard", "Assert", (Edge("mul"),)),
            Node("end", "Relu", (Edge("mul"),), controls=("guard",)),
            Node("after", "Softmax", (Edge("end"),)),
            Node("fed", "Placeholder", attrs={"dtype": DType.INT32}),
        ],
        inputs,
        outputs,
    )


def test_the_input_becomes_a_placeholder() -> None:
    made = strip_unused_nodes(graph(), type="float", shape="1,299,299,3")
    assert list(made.nodes) == ["mul", "guard", "end"]
    assert made["mul"] == Node("mul", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 299, 299, 3))})


def test_negative_sizes_are_unknown() -> None:
    assert strip_unused_nodes(graph(), shape="-1, 3")["mul"].attrs["shape"] == Shape((None, 3))


def test_without_options_it_is_what_the_graph_computed() -> None:
    before = from_text("""
        inputs: half
        outputs: y
        x = Placeholder[?x3]()
        half = Cast(x, SrcT=float, DstT=half)
        y = Relu(half)
    """)
    assert strip_unused_nodes(before)["half"].attrs == {"dtype": DType.HALF, "shape": Shape((None, 3))}


def test_where_the_graph_tells_nothing_it_is_a_float_of_any_shape() -> None:
    assert strip_unused_nodes(graph())["mul"].attrs == {"dtype": DType.FLOAT, "shape": Shape(None)}


def test_inputs_stay_although_nothing_needs_them_and_placeholders_stay_as_they_are() -> None:
    made = strip_unused_nodes(graph(("mul", "fed")), type="half", shape="2")
    assert made["fed"].attrs == {"dtype": DType.INT32}


def test_own_types_and_shapes() -> None:
    made = strip_unused_nodes(
        graph(("mul", "decode")), name=("decode",), type_for_name=("uint8",), shape_for_name=("-1,-1,3",), shape="1"
    )
    assert made["decode"].attrs == {"dtype": DType.UINT8, "shape": Shape((None, None, 3))}
    assert made["mul"].attrs["shape"] == Shape((1,))


def test_ports_in_names_are_understood() -> None:
    assert list(strip_unused_nodes(graph(("mul:0",), ("end:0",))).nodes) == ["mul", "guard", "end"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "DT_INT32"}, "Couldn't understand type argument 'DT_INT32'"),
        ({"shape": "1,x"}, "Couldn't parse as shape: '1,x'"),
        ({"shape": ""}, "Specified shape is empty."),
        ({"name": ("mul",)}, "You must pass a 'type_for_name' arg for every 'name'"),
        ({"name": ("mul",), "type_for_name": ("int32",)}, "You must pass a 'shape_for_name' arg for every 'name'"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    for one in (graph(), graph(("fed",))):
        with pytest.raises(RecipeError, match=message.replace("'", ".")):
            strip_unused_nodes(one, **options)


def test_a_type_for_what_is_no_input_is_told() -> None:
    options = {"name": ("mull",), "type_for_name": ("int32",), "shape_for_name": ("1",)}
    (skip,) = strip_unused_nodes.outcome(graph(), **options).skips
    assert str(skip) == "mull: it is no input, so that it gets no type and no shape"


def test_an_output_that_is_missing() -> None:
    with pytest.raises(GraphError, match="Input node ent not found in graph") as caught:
        strip_unused_nodes(graph(outputs=("ent",)))
    assert "end" in caught.value.hint
