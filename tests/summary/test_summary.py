import re

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.ops.memory import Peak
from quantkit.summary import summarize


def layer(*batch: int | None) -> Graph:
    place = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((*batch, 3))})
    weights = constant("w", np.ones((3, 5), np.float32))
    passing = Node("same", "Identity", (Edge("x"),), attrs={"T": DType.FLOAT})
    product = Node("y", "MatMul", (Edge("same"), Edge("w")), attrs={"T": DType.FLOAT})
    return Graph.of([place, weights, passing, product], ["x"], ["y"])


def test_an_open_batch_is_shown_open_and_counted_as_one() -> None:
    found = summarize(layer(None))
    assert [end.shape for end in (*found.inputs, *found.outputs)] == [Shape((None, 3)), Shape((None, 5))]
    assert found.multiply_adds == 15
    assert summarize(layer(2)).multiply_adds == 30


def test_the_next_command_can_be_pasted() -> None:
    assert "quantkit transform 'my model.pb' -o OUT.pb" in str(summarize(layer(1), name="my model.pb"))


def test_a_model_may_be_named() -> None:
    assert "quantkit transform digits -o OUT.pb" in str(summarize("digits"))


def test_what_a_loop_multiplies_is_not_known() -> None:
    graph = layer(1)
    loop = Node("loop", "StatelessWhile", (Edge("y"),))
    assert summarize(Graph.of([*graph.nodes.values(), loop], ["x"], ["loop"])).multiply_adds is None


def test_memory_counts_what_lives_at_once() -> None:
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[?x256]()
        w = Const[256x1024]()
        wide = MatMul(x, w, T=float)
        same = Identity(wide, T=float)
        flat = LogSoftmax(same, T=float)
        v = Const[1024x2]()
        y = MatMul(flat, v, T=float)
        """
    )
    found = summarize(graph)
    # The two wide tensors together: the Identity shares its input's memory, and x is gone by then.
    assert found.peak == Peak(2 * 4 * 1024, "flat")
    assert "about 1.06 MB: the constants, and 0.01 MB of tensors at flat" in str(found)
    assert found.to_json()["activation_peak_bytes"] == 8192


def test_what_is_of_unknown_size_is_not_counted_and_said() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2x3]()\nn = NoSuchOp(x)\nw = Const[3x4]()\nm = MatMul(x, w, T=float)\n"
        "y = Add(m, n, T=float)"
    )
    peak = summarize(graph).peak
    assert peak is not None
    assert (peak.num_bytes, peak.num_unknown) == (2 * 3 * 4 + 2 * 4 * 4, 2)
    assert re.search("at least .* 2 of unknown size are not counted", str(summarize(graph)))
    assert summarize(from_text("inputs: x\noutputs: x\nx = Placeholder[<*>]()")).peak is None


def test_an_output_lives_to_the_end() -> None:
    graph = from_text(
        "inputs: x\noutputs: a, c\nx = Placeholder[4]()\na = Neg(x, T=float)\nb = Neg(a, T=float)\nc = Neg(b, T=float)"
    )
    # b is written over a no sooner than c over b.
    assert summarize(graph).peak == Peak(2 * 16, "b")


def test_what_works_element_by_element_writes_over_what_nobody_else_reads() -> None:
    chain = "x = Placeholder[4]()\na = Neg(x, T=float)\nb = Neg(a, T=float)\nc = Add(b, <*>, T=float)"
    text = f"inputs: x\noutputs: c\n{chain}"
    assert summarize(from_text(text.replace("<*>", "b"))).peak == Peak(16, "x")
    assert summarize(from_text(text.replace("<*>", "a"))).peak == Peak(2 * 16, "b")


def test_what_is_computed_from_constants_alone_is_computed_once() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[1x4]()\nw = Const[4x4]()\ntwo = Const(2.0)\n"
        "twice = Mul(w, two, T=float)\ny = MatMul(x, twice, T=float)"
    )
    assert summarize(graph).peak == Peak(2 * 16, "y")


def test_memory_of_an_onnx_model() -> None:
    graph = from_text(
        """
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[1x8x4x4](dtype=float)
        scale = Constant(0.5)
        zero = Constant[uint8](3)
        codes = QuantizeLinear(x, scale, zero)
        y = DequantizeLinear(codes, scale, zero)
        """
    )
    assert summarize(graph).peak == Peak(128 * 4 + 128, "codes")


def test_a_constant_that_is_handed_on_takes_its_memory_once() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[1x4]()\nw = Const[4x4]()\nread = Identity(w, T=float)\n"
        "y = MatMul(x, read, T=float)"
    )
    assert summarize(graph).peak == Peak(2 * 16, "y")
