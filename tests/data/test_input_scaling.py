"""Range of input values that a graph expects, concluded from its own scaling of pixels."""

import pytest

from quantkit.data.inference import infer_preprocessing
from quantkit.data.input_scaling import find_input_scaling
from quantkit.data.preprocessing import Origin, Preprocessing
from quantkit.ir.graph import Edge
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.runtimes.session import TensorInfo

TEMPLATE = """
inputs: x
outputs: y
x = Placeholder[1x8x8x3]()
{nodes}
w = Const[3x3x3x4]()
y = Conv2D(last, w, padding=VALID, strides=[1, 1, 1, 1])
"""
RAW, UP_TO_ONE, SIGNED = (0.0, 255.0), (0.0, 1.0), (-1.0, 1.0)


def expected_range(nodes: str, dialect: str = "tensorflow") -> tuple[float, float] | None:
    graph = from_text(f"dialect: {dialect}\n" * (dialect != "tensorflow") + TEMPLATE.format(nodes=nodes))
    scaling = find_input_scaling(graph, Edge("x"))
    return None if scaling is None else (scaling.low, scaling.high)


@pytest.mark.parametrize(
    ("nodes", "bounds"),
    [
        ("s = Const(0.00392157)\nlast = Mul(x, s)", RAW),
        ("s = Const(255.0)\nlast = RealDiv(x, s)", RAW),
        ("s = Const(0.00784314)\na = Mul(x, s)\no = Const(-1.0)\nlast = AddV2(o, a)", RAW),
        ("o = Const(128.0)\na = Sub(x, o)\ns = Const(0.0078125)\nlast = Mul(s, a)", RAW),
        ("o = Const([123.68, 116.78, 103.94])\nlast = Sub(x, o)", RAW),
        ("s = Const(2.0)\na = Mul(x, s)\no = Const(1.0)\nlast = Sub(a, o)", UP_TO_ONE),
        ("s = Const(255.0)\nlast = Mul(x, s)", UP_TO_ONE),
        (
            "o = Const([0.485, 0.456, 0.406])\na = Sub(x, o)\ns = Const([0.229, 0.224, 0.225])\nlast = RealDiv(a, s)",
            UP_TO_ONE,
        ),
        ("s = Const(0.5)\na = Mul(x, s)\no = Const(0.5)\nlast = AddV2(a, o)", SIGNED),
        ("s = Const(127.5)\na = AddV2(x, one)\none = Const(1.0)\nlast = Mul(a, s)", SIGNED),
        # The constant is computed, and ops that keep the values are between.
        ("i = Const(255)\nc = Cast(i, SrcT=int32, DstT=float)\np = Identity(x)\nlast = RealDiv(p, c)", RAW),
        ("s = Const(0.00392157)\na = Mul(x, s)\np = Const([[0, 0], [1, 1], [1, 1], [0, 0]])\nlast = Pad(a, p)", RAW),
        ("last = Identity(x)", None),
        ("s = Const(1.0)\nlast = Mul(x, s)", None),
        ("s = Const[1x8x8x1]()\nlast = Mul(x, s)", None),
        ("last = Mul(x, x)", None),
    ],
)
def test_affine_ops_imply_a_range(nodes: str, bounds: tuple[float, float] | None) -> None:
    assert expected_range(nodes) == bounds


@pytest.mark.parametrize(
    ("mean", "variance", "bounds"),
    [
        ("[120.0, 110.0, 100.0]", "[4000.0, 3800.0, 4100.0]", RAW),
        ("[0.48, 0.46, 0.41]", "[0.07, 0.07, 0.08]", UP_TO_ONE),
        ("[0.13, 0.13, 0.13]", "[0.095, 0.095, 0.095]", UP_TO_ONE),
        ("[-0.05, -0.1, -0.2]", "[0.25, 0.25, 0.25]", SIGNED),
        ("[-0.74, -0.74, -0.74]", "[0.38, 0.38, 0.38]", SIGNED),
        ("[0.0, 0.0, 0.0]", "[1.0, 1.0, 1.0]", None),  # not trained
    ],
)
@pytest.mark.parametrize("op", ["FusedBatchNormV3", "BatchNormalization"])
def test_a_batch_norm_of_the_input_implies_a_range(
    op: str, mean: str, variance: str, bounds: tuple[float, float] | None
) -> None:
    constants = f"g = Const([2.0, 0.5, 1.0])\nb = Const([3.0, 0.0, -1.0])\nm = Const({mean})\nv = Const({variance})"
    nodes = f"{constants}\nlast = {op}(x, g, b, m, v, epsilon=0.001)"
    assert expected_range(nodes) == bounds


@pytest.mark.parametrize(
    ("nodes", "bounds"),
    [
        ("s = Constant(1.0)\nz = Constant[quint8]()\nq = QuantizeLinear(x, s)\nlast = DequantizeLinear(q, s)", RAW),
        ("s = Constant(0.00390625)\nq = QuantizeLinear(x, s)\nlast = DequantizeLinear(q, s)", UP_TO_ONE),
        ("d = Constant(255.0)\na = Div(x, d)\ns = Constant(0.0039)\nlast = QuantizeLinear(a, s)", RAW),
    ],
)
def test_a_quantized_input_states_its_range(nodes: str, bounds: tuple[float, float]) -> None:
    assert expected_range(nodes, "onnx") == bounds


def test_the_ops_between_input_and_scaling_may_be_branches() -> None:
    """Networks of torchvision scale each channel of a copy."""
    channels = [f"c{k} = Gather(x, i{k})\ni{k} = Const({k})" for k in range(3)]
    nodes = "\n".join(channels) + "\ns = Const(0.458)\no = Const(-0.03)\na = Mul(c0, s)\nlast = AddV2(a, o)"
    assert expected_range(nodes) is None, (
        "normalized values become -1 to 1: the graph does not state their normalization"
    )


def test_pixels_are_prepared_for_the_range_that_the_graph_expects() -> None:
    info = TensorInfo("x", DType.FLOAT, Shape((None, 8, 8, 3)))
    graph = from_text(TEMPLATE.format(nodes="s = Const(0.00392157)\nlast = Mul(x, s)"))
    scaling = find_input_scaling(graph, Edge("x"))
    assert str(scaling) == "the graph expects values from 0 to 255: 'last' (Mul) scales them"
    preprocessing = infer_preprocessing(info, scaling)
    assert (preprocessing.mean, preprocessing.std, preprocessing.origin) == (0, 1, Origin.GRAPH)
    assert str(preprocessing).endswith("(x - 0) / 1")
    assert infer_preprocessing(info).origin is Origin.ASSUMED
    assert "assumed" in infer_preprocessing(info).description
    assert Preprocessing.from_json(preprocessing.to_json()).origin is Origin.GRAPH
