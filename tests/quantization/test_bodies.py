"""MACs and float fallbacks of layers in the subgraphs of ONNX graphs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantkit.formats import onnx as onnx_format
from quantkit.ir.graph import Edge, Graph, Node, Opaque
from quantkit.ops.shape_inference import infer_shapes
from quantkit.quantization.bodies import BodyLayers, find_body_layers
from quantkit.summary import summarize

onnx = pytest.importorskip("onnx", reason="pip install onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, *shape: int | str, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def weights(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def product(name: str, source: str, constants: str) -> Any:
    return helper.make_node("MatMul", [source, constants], [name])


def branch(name: str, *nodes: Any, constants: tuple[Any, ...] = ()) -> Any:
    return helper.make_graph(list(nodes), name, [], [info(nodes[-1].output[0], "n", "k")], list(constants))


def read(*nodes: Any, constants: tuple[Any, ...] = ()) -> Graph:
    """Return a graph with the inputs x, (3, 4), flag and limit."""
    inputs = [info("x", 3, 4), info("flag", dtype=BOOL), info("limit", dtype=INT64)]
    graph = helper.make_graph(list(nodes), "g", inputs, [info(nodes[-1].output[0], "n", "k")], list(constants))
    return onnx_format.decode(helper.make_model(graph).SerializeToString())


def layers(graph: Graph) -> BodyLayers:
    return find_body_layers(graph, graph[graph.outputs[0].node], infer_shapes(graph))


def test_if_counts_its_larger_branch_and_inner_subgraphs() -> None:
    inner = branch("inner", product("a", "x", "w"), constants=(weights("w", 4, 2),))
    other = branch("other", helper.make_node("Neg", ["x"], ["b"]))
    nested = helper.make_node("If", ["flag"], ["c"], then_branch=inner, else_branch=other)
    outer = branch("outer", product("d", "x", "v"))
    graph = read(
        helper.make_node("If", ["flag"], ["y"], then_branch=branch("nested", nested), else_branch=outer),
        constants=(weights("v", 4, 5),),
    )
    assert layers(graph) == BodyLayers(("a (MatMul)", "d (MatMul)"), 3 * 4 * 5)
    assert layers(graph).reason == "the layers of its subgraphs stay float: a (MatMul), d (MatMul)"
    assert summarize(graph).macs == 3 * 4 * 5


@pytest.mark.parametrize(("count", "macs"), [(7, 7 * 3 * 4 * 4), (0, 0), (None, None), (2**63 - 1, None)])
def test_loop_counts_all_iterations(count: int | None, macs: int | None) -> None:
    body = helper.make_graph(
        [product("next", "state", "w"), helper.make_node("Identity", ["go"], ["go_on"])],
        "body",
        [info("i", dtype=INT64), info("go", dtype=BOOL), info("state", "n", "k")],
        [info("go_on", dtype=BOOL), info("next", "n", "k")],
        [weights("w", 4, 4)],
    )
    constants = () if count is None else (numpy_helper.from_array(np.int64(count), "count"),)
    graph = read(
        helper.make_node("Loop", ["count" if constants else "limit", "", "x"], ["y"], body=body), constants=constants
    )
    assert layers(graph) == BodyLayers(("next (MatMul)",), macs)


def test_scan_counts_the_steps_of_its_sequence() -> None:
    body = helper.make_graph(
        [helper.make_node("Unsqueeze", ["step", "axis"], ["row"]), product("out", "row", "w")],
        "body",
        [info("step")],
        [info("out")],
        [weights("w", 3, 5), numpy_helper.from_array(np.array([0], np.int64), "axis")],
    )
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_input_axes=[1])
    assert layers(read(node)).macs == 4 * 3 * 5


def test_damaged_subgraphs_have_unknown_macs() -> None:
    graph = Graph.of(
        [Node("x", "Placeholder"), Node("y", "If", (Edge("x"),), attrs={"then_branch": Opaque(b"\xff")})],
        ["x"],
        ["y"],
        dialect="onnx",
    )
    assert layers(graph) == BodyLayers((), None)
    scan = Graph.of([Node("x", "Placeholder"), Node("y", "Scan", (Edge("x"),))], ["x"], ["y"], dialect="onnx")
    assert layers(scan).macs is None


def test_the_names_of_layers_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from quantkit.quantization.bodies import find_body_layers; from test_bodies import *\n"
        "names = [f'w{index}' for index in range(6)]\n"
        "layers = [product(f'layer_{name}', 'x', name) for name in names]\n"
        "then, other = branch('then', *layers), branch('else', *layers)\n"
        "node = helper.make_node('If', ['flag'], ['y'], then_branch=then, else_branch=other)\n"
        "graph = read(node, constants=tuple(weights(name, 4, 2) for name in names))\n"
        "print(find_body_layers(graph, graph['y'], infer_shapes(graph)).names)"
    )
    outputs = set()
    for seed in ("1", "2"):
        path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", program]
        outputs.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(outputs) == 1
    assert b"layer_w5" in outputs.pop()
