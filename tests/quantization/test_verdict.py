from quantkit.ir.text import from_text
from quantkit.quantization import Ranges, Scheme, annotate
from quantkit.quantization.verdict import census

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
