"""The first look at what would become 8 bits."""

from quantkit.ir.text import from_text
from quantkit.quantization.outlook import look_ahead

NETWORK = """
    inputs: prepared
    outputs: y
    raw = Placeholder[2x8x8x3]()
    two = Const(2.0)
    prepared = Mul(raw, two, T=float)
    w = Const[3x3x3x4]()
    conv = Conv2D(prepared, w, T=float, padding=SAME, strides=[1, 1, 1, 1])
    up = Conv2DBackpropInput(sizes, w, conv, T=float, padding=SAME, strides=[1, 1, 1, 1])
    sizes = Const[int32]([2, 8, 8, 3])
    y = Softmax(up, T=float)
"""


def test_layers_are_counted_and_the_rest_has_reasons() -> None:
    found = look_ahead(from_text(NETWORK))
    assert (found.num_eight_bit, found.num_layers) == (1, 2)
    text = str(found)
    assert text.startswith("1 of 2 layers, 50.0% of the multiply-adds; float: ")
    assert "1 Softmax (its small probabilities would all become one code)" in text
    document = found.to_json()
    assert {row["op"] for row in document["float_fallbacks"]} >= {"Softmax", "Conv2DBackpropInput"}


def test_unknown_shapes_leave_the_share_open() -> None:
    conv = "y = Conv2D(x, w, T=float, padding=SAME, strides=[1, 1, 1, 1])"
    text = f"inputs: x\noutputs: y\nx = Placeholder[<*>]()\nw = Const[3x3x3x4]()\n{conv}"
    found = look_ahead(from_text(text))
    assert (found.num_layers, found.share) == (1, None)
    assert str(look_ahead(from_text(text.replace("<*>", "?x8x8x3")))) == "1 of 1 layers, 100.0% of the multiply-adds"


def test_an_input_that_is_one_number_has_no_shape_to_write() -> None:
    text = NETWORK.replace("inputs: prepared", "inputs: prepared, rate").replace(
        "w = Const", "rate = Placeholder[]()\n    w = Const", 1
    )
    assert str(look_ahead(from_text(text))).startswith("1 of 2 layers")


def test_a_graph_that_can_not_be_planned_says_why() -> None:
    found = look_ahead(from_text("dialect: onnx\ninputs: x\noutputs: y\nx = Input()\ny = Relu(x)"))
    assert "no plan: " in str(found)
    assert "layer" in str(look_ahead(from_text("inputs: x\noutputs: y\nx = Placeholder[2]()\ny = Neg(x, T=float)")))


def test_what_is_in_8_bits_already_needs_no_plan() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[2x4]()\ny = QuantizedRelu(x, x, x)")
    assert str(look_ahead(graph)) == "no plan: it is in 8 bits already"


def test_what_comes_before_codes_and_goes_is_not_counted() -> None:
    sized = "sized = EnsureShape(prepared, T=float, shape=<2x8x8x3>)"
    text = NETWORK.replace("conv = Conv2D(prepared", f"{sized}\n    conv = Conv2D(sized")
    assert "EnsureShape" not in {row["op"] for row in look_ahead(from_text(text)).to_json()["float_fallbacks"]}
