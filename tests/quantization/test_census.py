from quantkit.ir.text import from_text
from quantkit.quantization import Ranges, Scheme, annotate
from quantkit.quantization.census import census

TEXT = """
inputs: x
outputs: y
x = Placeholder[<?x4>]()
w = Const[4x6]()
v = Const[6x3]()
m = MatMul(x, w, T=float)
r = Relu(m, T=float)
y = MatMul(r, v, T=float)
"""


def test_work_is_counted_for_one_example_where_their_number_is_open() -> None:
    graph = from_text(TEXT)
    plan = annotate(graph, Scheme(keep_float=("y",)))
    counted = census(graph, plan, Ranges({}), graph.with_(dialect="onnx"))
    assert (counted.eight_bit_adds, counted.float_adds) == (24, 18)
    assert counted.table == {"MatMul": (1, 1), "Relu": (1, 0)}
    assert [(one.name, one.reason) for one in counted.left_overs] == [("y", "the scheme keeps it in float")]
    assert counted.conversions == 2


def test_work_that_is_not_known_is_named() -> None:
    """A product of two computed matrices, one of a size that nothing tells."""
    graph = from_text("""
    inputs: x
    outputs: y
    x = Placeholder[<?x4>]()
    w = Const[4x6]()
    m = MatMul(x, w, T=float)
    axis = Const[int32]([0])
    places = Where(m, T=float)
    kept = GatherNd(m, places, Tindices=int64, Tparams=float)
    column = ExpandDims(kept, axis, T=float, Tdim=int32)
    y = BatchMatMulV2(column, column, T=float, adj_x=true)
    """)
    plan = annotate(graph, Scheme())
    counted = census(graph, plan, Ranges({}), graph.with_(dialect="onnx"))
    assert dict(counted.unknown) == {"BatchMatMulV2": 1}
    assert counted.to_json()["unknown_multiply_adds"] == {"BatchMatMulV2": 1}
    assert counted.share == 1


def test_borders_to_float_count_where_a_converter_makes_the_conversions() -> None:
    graph = from_text(TEXT)
    plan = annotate(graph, Scheme.for_target("litert", keep_float=("y",)))
    assert census(graph, plan, Ranges({}), graph).conversions == 2
