"""Tests of strip_unused_nodes."""

import pytest

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.transforms.plugins import find_transform

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
            Node("unused", "Placeholder", attrs={"dtype": DType.INT32}),
        ],
        inputs,
        outputs,
    )


def test_input_becomes_placeholder() -> None:
    after = strip_unused_nodes(graph(), type="float", shape="1,299,299,3")
    assert list(after.nodes) == ["mul", "guard", "end"]
    assert after["mul"] == Node("mul", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 299, 299, 3))})


def test_negative_sizes_are_unknown() -> None:
    assert strip_unused_nodes(graph(), shape="-1, 3")["mul"].attrs["shape"] == Shape((None, 3))


def test_default_type_and_shape_are_inferred() -> None:
    before = from_text("""
        inputs: half
        outputs: y
        x = Placeholder[?x3]()
        half = Cast(x, SrcT=float, DstT=half)
        y = Relu(half)
    """)
    assert strip_unused_nodes(before)["half"].attrs == {"dtype": DType.HALF, "shape": Shape((None, 3))}


def test_unknown_type_and_shape_become_float_of_unknown_rank() -> None:
    assert strip_unused_nodes(graph())["mul"].attrs == {"dtype": DType.FLOAT, "shape": Shape(None)}


def test_unused_placeholder_input_stays_unchanged() -> None:
    after = strip_unused_nodes(graph(("mul", "unused")), type="half", shape="2")
    assert after["unused"].attrs == {"dtype": DType.INT32}


def test_type_and_shape_for_one_name() -> None:
    after = strip_unused_nodes(
        graph(("mul", "decode")), name=("decode",), type_for_name=("uint8",), shape_for_name=("-1,-1,3",), shape="1"
    )
    assert after["decode"].attrs == {"dtype": DType.UINT8, "shape": Shape((None, None, 3))}
    assert after["mul"].attrs["shape"] == Shape((1,))


def test_names_with_port_are_accepted() -> None:
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
def test_invalid_options_are_rejected(options: dict[str, object], message: str) -> None:
    for case in (graph(), graph(("unused",))):
        with pytest.raises(RecipeError, match=message.replace("'", ".")):
            strip_unused_nodes(case, **options)


def test_type_for_other_node_is_skipped() -> None:
    options = {"name": ("mull",), "type_for_name": ("int32",), "shape_for_name": ("1",)}
    (skip,) = strip_unused_nodes.outcome(graph(), **options).skips
    assert str(skip) == "mull: the node is not a graph input: type and shape have no effect"


def test_missing_output_is_rejected() -> None:
    with pytest.raises(GraphError, match="Input node ent not found in graph") as caught:
        strip_unused_nodes(graph(outputs=("ent",)))
    assert "end" in caught.value.hint
