import re
import shlex
from pathlib import Path

import numpy as np
from command_line import main

import quantkit as qk
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.ops.memory import Peak
from quantkit.summary import Summary, summarize


def build_layer(*batch: int | None) -> Graph:
    placeholder = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((*batch, 3))})
    weights = constant("w", np.ones((3, 5), np.float32))
    identity = Node("same", "Identity", (Edge("x"),), attrs={"T": DType.FLOAT})
    product = Node("y", "MatMul", (Edge("same"), Edge("w")), attrs={"T": DType.FLOAT})
    return Graph.of([placeholder, weights, identity, product], ["x"], ["y"])


def test_dynamic_batch_counts_as_one_example() -> None:
    summary = summarize(build_layer(None))
    assert [endpoint.shape for endpoint in (*summary.inputs, *summary.outputs)] == [Shape((None, 3)), Shape((None, 5))]
    assert summary.macs == 15
    assert summarize(build_layer(2)).macs == 30


def test_next_command_quotes_the_file_name(tmp_path: Path) -> None:
    qk.save(build_layer(1), tmp_path / "my model.pb")
    assert f"quantkit transform '{tmp_path}/my model.pb' -o OUT.pb" in str(summarize(tmp_path / "my model.pb"))


def test_model_may_be_a_card() -> None:
    assert "quantkit transform digits -o OUT.pb" in str(summarize("digits"))


def test_macs_of_a_loop_are_unknown() -> None:
    graph = build_layer(1)
    loop = Node("loop", "StatelessWhile", (Edge("y"),))
    assert summarize(Graph.of([*graph.nodes.values(), loop], ["x"], ["loop"])).macs is None


def test_memory_is_the_peak_of_live_tensors() -> None:
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
    summary = summarize(graph)
    # The two wide tensors together: the Identity shares its input's memory, and x is gone by then.
    assert summary.peak == Peak(2 * 4 * 1024, "flat")
    assert "about 1.06 MB: constants, and 0.01 MB of activations at flat" in str(summary)
    assert summary.to_json()["peak_activation_bytes"] == 8192


def test_tensors_of_unknown_size_are_reported() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[2x3]()\nn = NoSuchOp(x)\nw = Const[3x4]()\nm = MatMul(x, w, T=float)\n"
        "y = Add(m, n, T=float)"
    )
    peak = summarize(graph).peak
    assert peak is not None
    assert (peak.num_bytes, peak.num_unknown) == (2 * 3 * 4 + 2 * 4 * 4, 2)
    assert re.search("at least .* 2 tensors of unknown size not counted", str(summarize(graph)))
    assert summarize(from_text("inputs: x\noutputs: x\nx = Placeholder[<*>]()")).peak is None


def test_outputs_stay_in_memory_to_the_end() -> None:
    graph = from_text(
        "inputs: x\noutputs: a, c\nx = Placeholder[4]()\na = Neg(x, T=float)\nb = Neg(a, T=float)\nc = Neg(b, T=float)"
    )
    # b cannot reuse the memory of a, which is an output, but c reuses that of b.
    assert summarize(graph).peak == Peak(2 * 16, "b")


def test_elementwise_op_reuses_the_memory_of_its_input() -> None:
    chain = "x = Placeholder[4]()\na = Neg(x, T=float)\nb = Neg(a, T=float)\nc = Add(b, <*>, T=float)"
    text = f"inputs: x\noutputs: c\n{chain}"
    assert summarize(from_text(text.replace("<*>", "b"))).peak == Peak(16, "x")
    assert summarize(from_text(text.replace("<*>", "a"))).peak == Peak(2 * 16, "b")


def test_constant_subgraph_is_computed_once() -> None:
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


def test_identity_of_a_constant_takes_no_memory() -> None:
    graph = from_text(
        "inputs: x\noutputs: y\nx = Placeholder[1x4]()\nw = Const[4x4]()\nread = Identity(w, T=float)\n"
        "y = MatMul(x, read, T=float)"
    )
    assert summarize(graph).peak == Peak(2 * 16, "y")


def test_representation_is_one_short_line() -> None:
    assert repr(summarize("digits")) == "Summary('digits', 235 nodes, 78,836 parameters)"


def command_of(summary: Summary, folder: Path) -> list[str]:
    """Return the arguments of the advised command, with outputs in a folder."""
    return [text.replace("OUT", str(folder / "out")) for text in shlex.split(summary.next_step.rsplit(": ", 1)[0])[1:]]


def test_the_advised_command_loads_the_model_as_it_was_loaded(tmp_path: Path) -> None:
    nodes = build_layer(1).nodes.values()
    other = Node("z", "Identity", (Edge("y"),), attrs={"T": DType.FLOAT})
    unused = Node("unused", "NoSuchOp", (Edge("x"),))
    path = tmp_path / "layer.pb"
    qk.save(Graph.of([*nodes, other, unused], ["x"], ["z", "unused"]), path)
    summary = summarize(path, outputs=["y"])
    assert "--outputs y" in summary.next_step
    assert main(command_of(summary, tmp_path)) == 0
    assert [str(edge) for edge in qk.load(tmp_path / "out.pb").graph.outputs] == ["y"]


def test_a_graph_without_inputs_gets_the_advice_to_name_them() -> None:
    graph = from_text("outputs: y\ntwo = Const(2.0)\ny = Neg(two, T=float)")
    assert summarize(graph).next_step.startswith("quantkit summarize MODEL --inputs NODE: ")


def test_inputs_without_random_values_need_data() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[1x?x3]()\ny = Neg(x, T=float)")
    assert summarize(graph).next_step.startswith("quantkit benchmark MODEL --data DATA: ")
