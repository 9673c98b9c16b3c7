"""Properties of every transform on random networks: outputs stay, results are deterministic and valid.

`EXPECTATIONS` has an entry for every transform of the registry; a transform without an entry fails.
``pytest --hypothesis-profile="many examples"`` runs more examples.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import assume, given, note
from hypothesis.errors import UnsatisfiedAssumption
from network_graphs import compute_outputs, damaged_graphs, network_graphs

from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.errors import QuantkitError, UnavailableError
from quantkit.formats import graphdef, onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.ir.text import to_text
from quantkit.transforms.precision.quantize_nodes import quantize_nodes
from quantkit.transforms.registry import REGISTRY

# The networks are TensorFlow graphs; tests/transforms/test_onnx_networks.py has ONNX graphs.
BUILT_IN = sorted(
    name
    for name, transform in REGISTRY.items()
    if transform.function.__module__.startswith("quantkit.transforms.") and "tensorflow" in transform.dialects
)

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Expectation:
    """Options of a transform, and the expected properties of its result.

    Attributes:
        options: options for a graph.
        bound: maximum change of outputs, relative to the largest absolute value of an output or 1.
        is_idempotent: a second call changes nothing.
        pixels: inputs are integers from 0 to 255.
        prepare: rewrite of the network before the transform.
    """

    options: Callable[[Graph], Options] = lambda graph: {}
    bound: float = 2e-5
    is_idempotent: bool = True
    pixels: bool = False
    prepare: Callable[[Graph], Graph] = lambda graph: graph


def _names_to_rename(graph: Graph) -> Options:
    inner = next((name for name in graph.nodes if name not in graph.endpoint_names), "absent")
    return {"old_node_name": (inner,), "new_node_name": ("renamed",)}


def _run_ranges(graph: Graph) -> dict[str, tuple[Array, Array]]:
    """Return the minimum and maximum that each RequantizationRange computes in a run."""
    names = [name for name, node in graph.nodes.items() if node.op == "RequantizationRange"]
    if not names:
        return {}
    ranges = compute_outputs(graph.with_endpoints(None, [Edge(name, port) for name in names for port in (0, 1)]))
    return {name: (ranges[name], ranges[f"{name}:1"]) for name in names}


def _logged_ranges(graph: Graph) -> Options:
    """Return the ranges that a run of the graph logs."""
    ranges = _run_ranges(graph)
    assume(ranges)
    lines = (f";{name}__print__;__requant_min_max:[{low}][{high}]" for name, (low, high) in ranges.items())
    return {"min_max_log_file": "\n".join(lines) + "\n"}


def _reject_negative_ranges(graph: Graph) -> Graph:
    """Reject networks with a range below zero.

    RequantizationRange does not extend such a range to zero, and QuantizedRelu then returns the
    maximum of the range instead of zero, as TensorFlow's kernels do.
    """
    assume(all(high >= 0 for _, high in _run_ranges(quantize_nodes(graph)).values()))
    return graph


# Reordered sums and folded factors round differently in float32.
EXACT = Expectation()
EXPECTATIONS: dict[str, tuple[Expectation, ...]] = {
    "absorb_preprocessing": (Expectation(lambda graph: {"input_name": graph.inputs[0].node}, pixels=True),),
    "add_default_attributes": (EXACT,),
    "backport_concatv2": (EXACT,),
    "backport_tensor_array_v3": (EXACT,),
    "clean_functions": (EXACT,),
    "convert_layout": (Expectation(lambda graph: {"to": "NCHW"}), Expectation(lambda graph: {"to": "NHWC"})),
    # Significands of 11 (float16) or 8 bits (bfloat16), of the weights or of all values.
    "convert_precision": (
        Expectation(lambda graph: {"to": "float16", "minimum_size": 1}, bound=0.01),
        Expectation(lambda graph: {"to": "bfloat16", "weights_only": False}, bound=0.1),
    ),
    "ensure_input_shapes": (EXACT,),
    "extract_subgraph": (Expectation(lambda graph: {"inputs": tuple(map(str, graph.inputs))}),),
    "flatten_atrous_conv": (EXACT,),
    "flatten_products": (EXACT,),
    "fold_batch_norms": (EXACT,),
    "fold_biases": (EXACT,),
    "fold_clamps": (EXACT,),
    "fold_constants": (EXACT,),
    "fold_old_batch_norms": (EXACT,),
    "fold_pads": (EXACT,),
    "freeze_requantization_ranges": (
        Expectation(_logged_ranges, bound=0.1, is_idempotent=False, prepare=quantize_nodes),
    ),
    "fuse_pad_and_conv": (EXACT,),
    "fuse_resize_and_conv": (EXACT,),
    "fuse_resize_pad_and_conv": (EXACT,),
    "inline_functions": (EXACT,),
    "inline_partitionedcall": (EXACT,),
    "insert_logging": (Expectation(lambda graph: {"op": ("Conv2D", "Relu")}, is_idempotent=False),),
    "merge_duplicate_nodes": (EXACT,),
    "obfuscate_names": (EXACT,),
    "pool_after_projection": (EXACT,),
    # The smallest tenth of the weights has little influence.
    "prune_weights": (Expectation(lambda graph: {"sparsity": 0.1, "minimum_size": 1}, bound=0.2),),
    # int8 activations at every layer with dynamic ranges: quantization errors of up to ten layers add up.
    "quantize_nodes": (Expectation(bound=0.25, is_idempotent=False, prepare=_reject_negative_ranges),),
    # The error of a weight is at most half a quantization step.
    "quantize_weights": (Expectation(lambda graph: {"minimum_size": 1}, bound=0.05, is_idempotent=False),),
    "remove_attribute": (Expectation(lambda graph: {"attribute_name": ("_note",), "op_name": ("*",)}),),
    "remove_control_dependencies": (EXACT,),
    "remove_dead_branches": (EXACT,),
    "remove_device": (EXACT,),
    "remove_dropout": (EXACT,),
    "remove_nodes": (Expectation(lambda graph: {"op": ("Identity", "CheckNumerics", "StopGradient")}),),
    "remove_unused_functions": (EXACT,),
    "rename_attribute": (
        Expectation(
            lambda graph: {"old_attribute_name": ("_note",), "new_attribute_name": ("_remark",), "op_name": ("*",)}
        ),
    ),
    "rename_node": (Expectation(_names_to_rename, is_idempotent=False),),
    "rename_op": (Expectation(lambda graph: {"old_op_name": ("StopGradient",), "new_op_name": ("Identity",)}),),
    "round_weights": (Expectation(lambda graph: {"num_steps": 256}, bound=0.05, is_idempotent=False),),
    "set_device": (Expectation(lambda graph: {"device": "/device:CPU:0"}),),
    "simplify_arithmetic": (EXACT,),
    "sort_by_execution_order": (EXACT,),
    "sparsify_gather": (EXACT,),
    "strip_unused_nodes": (EXACT,),
}


def test_every_transform_has_an_expectation() -> None:
    assert list(EXPECTATIONS) == BUILT_IN


def _find_problems(check: Callable[[str, Expectation], None]) -> str:
    """Return the problems of all transforms with the networks of one example."""
    problems = []
    for name, expectations in EXPECTATIONS.items():
        for expectation in expectations:
            try:
                check(name, expectation)
            except UnsatisfiedAssumption:
                continue
            except Exception as error:  # the problem names the transform
                problems.append(f"{name}: {type(error).__name__}: {error}")
    return "\n".join(problems)


@given(graph=network_graphs())
def test_outputs_stay_and_result_is_deterministic(graph: Graph) -> None:
    note(to_text(graph))
    outputs = {pixels: compute_outputs(graph, pixels=pixels) for pixels in (False, True)}

    def check(name: str, expectation: Expectation) -> None:
        before, transform = expectation.prepare(graph), REGISTRY[name]
        options = expectation.options(before)
        data = graphdef.encode(before)
        after = transform(before, **options)
        verify(after, blame=name)
        assert graphdef.encode(before) == data, "the input graph was changed"
        assert [edge.node for edge in after.inputs] == [edge.node for edge in before.inputs]
        expected = outputs[expectation.pixels] if before is graph else compute_outputs(before)
        _compare_outputs(expected, compute_outputs(after, pixels=expectation.pixels), expectation.bound)
        again = transform(graphdef.decode(data).with_endpoints(before.inputs, before.outputs), **options)
        assert graphdef.encode(again) == graphdef.encode(after), "the result is not deterministic"
        if expectation.is_idempotent:
            assert transform(after, **options) == after, "the transform is not idempotent"
        if after != graph:
            _check_round_trips(after)

    _check_round_trips(graph)
    assert _find_problems(check) == ""


def _compare_outputs(expected: Mapping[str, Array], actual: Mapping[str, Array], bound: float) -> None:
    for (name, values), values_after in zip(expected.items(), actual.values(), strict=True):
        assert values_after.shape == values.shape
        largest = max(1.0, float(np.abs(values).max()))
        assert np.abs(values_after - values).max() <= bound * largest, name


def _check_round_trips(graph: Graph) -> None:
    for decoded in (graphdef.decode(graphdef.encode(graph)), graphdef.decode_text(graphdef.encode_text(graph))):
        assert decoded.with_endpoints(graph.inputs, graph.outputs) == graph
    with suppress(UnavailableError):
        data = onnx.encode(onnx.decode(onnx.encode(convert(graph))))  # constants have become initializers
        assert onnx.encode(onnx.decode(data)) == data


@given(graph=damaged_graphs())
def test_damaged_graph_raises_quantkit_error_only(graph: Graph) -> None:
    """Check graphs with missing nodes, wrong types and cycles."""
    note(str(graph.nodes))

    def check(name: str, expectation: Expectation) -> None:
        options = {} if expectation.prepare is quantize_nodes else expectation.options(graph)
        with suppress(QuantkitError):
            REGISTRY[name](graph, **options)

    assert _find_problems(check) == ""
