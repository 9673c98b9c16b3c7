"""What every transform promises on every network: the same answers, the same graph each time, and nothing broken.

`PROMISES` names every transform of the registry; a new one without an entry fails. ``pytest --hypothesis-profile="many
examples"`` looks longer.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, note, settings
from network_graphs import answers, damaged_graphs, network_graphs

from quantkit.convert import convert
from quantkit.errors import QuantkitError, UnavailableError
from quantkit.formats import graphdef, onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.text import to_text
from quantkit.transforms.precision.quantize_nodes import quantize_nodes
from quantkit.transforms.registry import REGISTRY

OURS = sorted(name for name, one in REGISTRY.items() if one.function.__module__.startswith("quantkit.transforms."))
EXAMPLES = settings.default.max_examples if settings.default else 100

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Promise:
    """How a transform is called here, and what it keeps.

    Attributes:
        options: for a graph.
        bound: by how much outputs may change, as a part of the largest number of an output, or of 1.
        settles: whether a second call finds nothing to do.
        pixels: whether the inputs are fed whole numbers from 0 to 255.
        given: makes the graph it is about of a network.
    """

    options: Callable[[Graph], Options] = lambda graph: {}
    bound: float = 2e-5
    settles: bool = True
    pixels: bool = False
    given: Callable[[Graph], Graph] = lambda graph: graph


def _renaming(graph: Graph) -> Options:
    inner = next((name for name in graph.nodes if name not in graph.endpoint_names), "nothing")
    return {"old_node_name": (inner,), "new_node_name": ("renamed",)}


def _measured_ranges(graph: Graph) -> Options:
    """What a run of the graph logs of its ranges."""
    names = [name for name, node in graph.nodes.items() if node.op == "RequantizationRange"]
    assume(names)
    found = answers(graph.with_endpoints(None, [Edge(name, port) for name in names for port in (0, 1)]))
    lines = (f";{name}__print__;__requant_min_max:[{found[name]}][{found[f'{name}:1']}]" for name in names)
    return {"min_max_log_file": "\n".join(lines) + "\n"}


# Sums in another order, and factors that went into weights: float32 rounds them differently.
EXACT = Promise()
PROMISES: dict[str, tuple[Promise, ...]] = {
    "absorb_preprocessing": (Promise(lambda graph: {"input_name": graph.inputs[0].node}, pixels=True),),
    "add_default_attributes": (EXACT,),
    "backport_concatv2": (EXACT,),
    "backport_tensor_array_v3": (EXACT,),
    "clean_functions": (EXACT,),
    "convert_layout": (Promise(lambda graph: {"to": "NCHW"}), Promise(lambda graph: {"to": "NHWC"})),
    # Eight (bfloat16) or eleven digits of significand for each weight, or for each number there is.
    "convert_precision": (
        Promise(lambda graph: {"to": "float16", "minimum_size": 1}, bound=0.01),
        Promise(lambda graph: {"to": "bfloat16", "weights_only": False}, bound=0.1),
    ),
    "ensure_input_shapes": (EXACT,),
    "extract_subgraph": (Promise(lambda graph: {"inputs": tuple(map(str, graph.inputs))}),),
    "flatten_atrous_conv": (EXACT,),
    "flatten_products": (EXACT,),
    "fold_batch_norms": (EXACT,),
    "fold_biases": (EXACT,),
    "fold_clamps": (EXACT,),
    "fold_constants": (EXACT,),
    "fold_old_batch_norms": (EXACT,),
    "fold_pads": (EXACT,),
    "freeze_requantization_ranges": (Promise(_measured_ranges, bound=0.1, settles=False, given=quantize_nodes),),
    "fuse_pad_and_conv": (EXACT,),
    "fuse_resize_and_conv": (EXACT,),
    "fuse_resize_pad_and_conv": (EXACT,),
    "inline_functions": (EXACT,),
    "inline_partitionedcall": (EXACT,),
    "insert_logging": (Promise(lambda graph: {"op": ("Conv2D", "Relu")}, settles=False),),
    "merge_duplicate_nodes": (EXACT,),
    "merge_sibling_convolutions": (Promise(lambda graph: {"gain": 1e-6, "across_activations": True}),),
    "obfuscate_names": (EXACT,),
    "pool_after_projection": (EXACT,),
    # Codes of 8 bits at every layer, in ranges found at run time: up to ten layers here, sums of noise included.
    "quantize_nodes": (Promise(bound=0.25, settles=False),),
    # Half a step of 255 for each weight.
    "quantize_weights": (Promise(lambda graph: {"minimum_size": 1}, bound=0.05, settles=False),),
    "remove_attribute": (Promise(lambda graph: {"attribute_name": ("_note",), "op_name": ("*",)}),),
    "remove_control_dependencies": (EXACT,),
    "remove_dead_branches": (EXACT,),
    "remove_device": (EXACT,),
    "remove_dropout": (EXACT,),
    "remove_nodes": (Promise(lambda graph: {"op": ("Identity", "CheckNumerics", "StopGradient")}),),
    "remove_unused_functions": (EXACT,),
    "rename_attribute": (
        Promise(
            lambda graph: {"old_attribute_name": ("_note",), "new_attribute_name": ("_remark",), "op_name": ("*",)}
        ),
    ),
    "rename_node": (Promise(_renaming, settles=False),),
    "rename_op": (Promise(lambda graph: {"old_op_name": ("StopGradient",), "new_op_name": ("Identity",)}),),
    "round_weights": (Promise(lambda graph: {"num_steps": 256}, bound=0.05, settles=False),),
    "set_device": (Promise(lambda graph: {"device": "/device:CPU:0"}),),
    "simplify_arithmetic": (EXACT,),
    "sort_by_execution_order": (EXACT,),
    "sparsify_gather": (EXACT,),
    "strip_unused_nodes": (EXACT,),
}


def test_every_transform_has_its_promise() -> None:
    assert list(PROMISES) == OURS


CASES = [pytest.param(name, promise, id=name) for name, promises in PROMISES.items() for promise in promises]


@pytest.mark.parametrize(("name", "promise"), CASES)
@settings(max_examples=EXAMPLES // 2)
@given(graph=network_graphs())
def test_answers_stay_and_nothing_else_changes(name: str, promise: Promise, graph: Graph) -> None:
    transform = REGISTRY[name]
    graph = promise.given(graph)
    note(to_text(graph))
    options = promise.options(graph)
    written = graphdef.encode(graph)
    after = transform(graph, **options)
    verify(after, blame=name)
    assert graphdef.encode(graph) == written, "the input was changed"
    assert [edge.node for edge in after.inputs] == [edge.node for edge in graph.inputs]

    _compare(graph, after, promise)
    again = transform(graphdef.decode(written).with_endpoints(graph.inputs, graph.outputs), **options)
    assert graphdef.encode(again) == graphdef.encode(after), "another graph from the same"
    if promise.settles:
        assert transform(after, **options) == after, "a second call finds more to do"
    _survives_files(after)


def _compare(before: Graph, after: Graph, promise: Promise) -> None:
    want, found = (answers(graph, pixels=promise.pixels) for graph in (before, after))
    for (name, values), other in zip(want.items(), found.values(), strict=True):
        assert other.shape == values.shape
        largest = max(1.0, float(np.abs(values).max()))
        assert np.abs(other - values).max() <= promise.bound * largest, name


def _survives_files(graph: Graph) -> None:
    for read in (graphdef.decode(graphdef.encode(graph)), graphdef.decode_text(graphdef.encode_text(graph))):
        assert read.with_endpoints(graph.inputs, graph.outputs) == graph
    with suppress(UnavailableError):
        written = onnx.encode(onnx.decode(onnx.encode(convert(graph))))  # constants have become initializers
        assert onnx.encode(onnx.decode(written)) == written


@pytest.mark.parametrize(("name", "promise"), CASES)
@settings(max_examples=EXAMPLES // 2)
@given(graph=damaged_graphs())
def test_a_damaged_graph_is_left_or_refused(name: str, promise: Promise, graph: Graph) -> None:
    """Whatever is missing, of another type or in a circle: an answer, or a sentence."""
    note(str(graph.nodes))
    options = {} if promise.given is quantize_nodes else promise.options(graph)
    with suppress(QuantkitError):
        REGISTRY[name](graph, **options)
