"""Defects of the original, by number: fixed by default, reproduced in classic mode."""

from collections.abc import Sequence

import numpy as np
import pytest
from classic_nodes import FUSED, FUSED_INPUTS, LAYER, STATISTICS, const, node, placeholder, ramp, untyped_node

from quantkit.compat import parse_classic, run_classic
from quantkit.errors import GraphError, QuantkitError, RecipeError
from quantkit.ir.graph import Graph, Node, Versions
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.ir.text import from_text
from quantkit.recipes import parse, run
from quantkit.runtimes import find_runtime

SEED = 5
X = placeholder("x", 1, 4, 4, 2)
CONV = node("c", "Conv2D", "x", "w", **LAYER)


def graph_of(nodes: Sequence[Node], outputs: str, inputs: str = "x") -> Graph:
    return Graph.of(nodes, inputs.split(",") if inputs else [], outputs.split(","), versions=Versions(producer=21))


def rewrite(graph: Graph, recipe: str) -> Graph:
    return run(parse(recipe), graph)[0]


def classic(graph: Graph, recipe: str, inputs: str = "x", outputs: str = "y") -> Graph:
    endpoints = (inputs.split(",") if inputs else [], outputs.split(","))
    return run_classic(parse_classic(recipe), graph, endpoints)[0]


def outputs_of(graph: Graph) -> list[Array]:
    random = np.random.default_rng(SEED)
    with find_runtime("reference").open(graph) as session, np.errstate(all="ignore"):
        feeds = {info.name: random.uniform(-1, 1, info.shape.sizes).astype(info.dtype.numpy) for info in session.inputs}
        values = session.run(feeds)
    return [values[info.name] for info in session.outputs]


def has_same_outputs(before: Graph, after: Graph, tolerance: float = 1e-5) -> bool:
    """Return True if two graphs have the same outputs."""
    try:
        pairs = list(zip(outputs_of(before), outputs_of(after), strict=True))
    except (QuantkitError, KeyError, ValueError):
        return False
    return all(first.shape == second.shape and np.allclose(first, second, atol=tolerance) for first, second in pairs)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes.values()]


def norm_graph(*more: Node, outputs: str = "y") -> Graph:
    """Return a graph of a convolution, its batch norm and further nodes."""
    norm = node("y", "FusedBatchNorm", "c", *FUSED_INPUTS, **FUSED)
    return graph_of((X, ramp("w", 1, 1, 2, 3), CONV, *STATISTICS, norm, *more), outputs)


def test_1_versions_are_kept() -> None:
    graph = graph_of((X, node("y", "Relu", "x")), "y")
    assert rewrite(graph, "remove_device").versions == Versions(producer=21)
    assert classic(graph, "remove_device").versions == Versions()
    assert classic(graph, "add_default_attributes").versions == Versions(producer=21)


def test_2_shared_statistics_are_folded() -> None:
    graph = norm_graph(node("z", "Relu", "gamma"), outputs="y,z")
    after = rewrite(graph, "fold_old_batch_norms")
    assert "FusedBatchNorm" not in ops(after)
    assert has_same_outputs(graph, after)
    with pytest.raises(GraphError, match="the original never ends here: a constant folded for y has other consumers"):
        classic(graph, "fold_old_batch_norms", outputs="y,z")


@pytest.mark.parametrize("read", ["c", "w"])
def test_2_other_consumers_of_a_convolution_keep_their_outputs(read: str) -> None:
    graph = norm_graph(node("z", "Relu", read), outputs="y,z")
    assert has_same_outputs(graph, rewrite(graph, "fold_old_batch_norms"))
    assert not has_same_outputs(graph, classic(graph, "fold_old_batch_norms", outputs="y,z"))


@pytest.mark.parametrize("op", ["FusedBatchNormV2", "FusedBatchNormV3"])
def test_2_later_versions_are_folded(op: str) -> None:
    norm = node("y", op, "c", *FUSED_INPUTS, U=DType.FLOAT, **FUSED)
    graph = graph_of((X, ramp("w", 1, 1, 2, 3), CONV, *STATISTICS, norm), "y")
    after = rewrite(graph, "fold_old_batch_norms")
    assert op not in ops(after)
    assert has_same_outputs(graph, after)
    assert op in ops(classic(graph, "fold_old_batch_norms"))


def test_2_bias_before_batch_norm_is_folded() -> None:
    between = (const("b", [1, 2, 3]), node("a", "BiasAdd", "c", "b"))
    norm = node("y", "FusedBatchNorm", "a", *FUSED_INPUTS, **FUSED)
    graph = graph_of((X, ramp("w", 1, 1, 2, 3), CONV, *between, *STATISTICS, norm), "y")
    after = rewrite(graph, "fold_old_batch_norms")
    assert "FusedBatchNorm" not in ops(after)
    assert has_same_outputs(graph, after)
    assert "FusedBatchNorm" in ops(classic(graph, "fold_old_batch_norms"))


def test_2_batch_norms_in_training_mode_are_skipped() -> None:
    norm = node("y", "FusedBatchNorm", "c", *FUSED_INPUTS, epsilon=0.001, is_training=True)
    graph = graph_of((X, ramp("w", 1, 1, 2, 3), CONV, *STATISTICS, norm), "y")
    assert "FusedBatchNorm" in ops(rewrite(graph, "fold_old_batch_norms"))
    assert "FusedBatchNorm" not in ops(classic(graph, "fold_old_batch_norms"))


def factor_graph(factor: object, layer: Node = CONV, weights: Node | None = None, source: Node = X) -> Graph:
    product = node("y", "Mul", "c", "s")
    return graph_of((source, weights or ramp("w", 1, 1, 2, 3), layer, const("s", factor), product), "y")


@pytest.mark.parametrize("factor", [2.0, [2.0], [[[[1.0, 2.0, 4.0]]]]])
def test_3_any_factor_is_folded(factor: object) -> None:
    graph = factor_graph(factor)
    after = rewrite(graph, "fold_batch_norms")
    assert "Mul" not in ops(after)
    assert has_same_outputs(graph, after)
    with pytest.raises(GraphError, match="Mul constant input to batch norm has bad shape"):
        classic(graph, "fold_batch_norms")


def test_3_every_branch_is_folded() -> None:
    branches = [
        (
            ramp(f"w{number}", 1, 1, 2, 3),
            node(f"c{number}", "Conv2D", "x", f"w{number}", **LAYER),
            const(f"s{number}", [1, 2, 4]),
        )
        for number in range(2)
    ]
    products = [node(f"m{number}", "Mul", f"c{number}", f"s{number}") for number in range(2)]
    graph = graph_of((X, *branches[0], *branches[1], *products, node("y", "Add", "m0", "m1")), "y")
    after = rewrite(graph, "fold_batch_norms")
    assert "Mul" not in ops(after)
    assert has_same_outputs(graph, after)
    assert ops(classic(graph, "fold_batch_norms")).count("Mul") == 1


def test_3_transposed_weights_are_scaled_by_row() -> None:
    layer = node("c", "MatMul", "x", "w", transpose_a=False, transpose_b=True)
    graph = factor_graph([1, 2, 4], layer, ramp("w", 3, 3), placeholder("x", 2, 3))
    assert has_same_outputs(graph, rewrite(graph, "fold_batch_norms"))
    assert not has_same_outputs(graph, classic(graph, "fold_batch_norms"))


def sum_graph(*inputs: str) -> Graph:
    return graph_of((placeholder("x", 2), const("k", [1, 2]), node("y", "Add", *inputs)), "y")


def test_4_add_with_equal_inputs_is_quantized() -> None:
    graph = sum_graph("x", "x")
    assert has_same_outputs(graph, rewrite(graph, "quantize_nodes"), tolerance=0.05)
    with pytest.raises(GraphError, match="RenameNodeInputs argument contains a cycle"):
        classic(graph, "quantize_nodes")


def test_4_control_inputs_are_not_quantized() -> None:
    graph = sum_graph("x", "k", "^k")
    assert has_same_outputs(graph, rewrite(graph, "quantize_nodes"), tolerance=0.05)
    wrong = classic(graph, "quantize_nodes strip_unused_nodes")
    assert any("__hat__" in name for name in wrong.nodes)


@pytest.mark.parametrize("attrs", [{"data_format": b"NCHW"}, {"dilations": (1, 2, 2, 1)}])
def test_4_unsupported_convolutions_stay_float(attrs: dict[str, object]) -> None:
    source = placeholder("x", 1, 2, 4, 4) if "data_format" in attrs else X
    layer = node("y", "Conv2D", "x", "w", **{**LAYER, **attrs})
    graph = graph_of((source, ramp("w", 2, 2, 2, 3), layer), "y")
    assert "QuantizedConv2D" not in ops(rewrite(graph, "quantize_nodes"))
    after = classic(graph, "quantize_nodes")
    assert set(after["y/eightbit"].attrs) == {"strides", "padding", "Tinput", "Tfilter", "out_type"}


def test_4_fake_quants_move_before_pass_through_ops_only() -> None:
    fake = {"T": None, "num_bits": 8, "narrow_range": False}
    nodes = (
        *(placeholder("x", 2), const("lo", -1.5), const("hi", 0.25), node("c", "Neg", "x"), node("r", "Exp", "c")),
        node("y", "FakeQuantWithMinMaxVars", "r", "lo", "hi", **fake),
    )
    graph = graph_of(nodes, "y")
    assert has_same_outputs(graph, rewrite(graph, "quantize_nodes"), tolerance=0.05)
    assert not has_same_outputs(graph, classic(graph, "quantize_nodes"), tolerance=0.05)


def test_4_integer_placeholders_stay() -> None:
    nodes = (
        placeholder("x", 2),
        placeholder("i", 2, dtype=DType.INT32),
        node("z", "Neg", "i", T=DType.INT32),
        node("y", "Relu", "x"),
    )
    graph = graph_of(nodes, "y,z", "x,i")
    recipe = "quantize_nodes(input_min=-1,input_max=1)"
    assert rewrite(graph, recipe)["i"].attrs["dtype"] is DType.INT32
    assert classic(graph, recipe, "x,i", "y,z")["i"].attrs["dtype"] is DType.QUINT8


def test_4_later_add_and_concat_ops_are_quantized() -> None:
    nodes = (
        *(
            placeholder("x", 2, 3),
            const("k", [1, 2, 3]),
            node("a", "AddV2", "x", "k"),
            const("axis", 1, dtype=np.int32),
        ),
        node("y", "ConcatV2", "a", "x", "axis", N=2, Tidx=DType.INT32),
    )
    graph = graph_of(nodes, "y")
    quantized = ops(rewrite(graph, "quantize_nodes"))
    assert "QuantizedAdd" in quantized
    assert "QuantizedConcat" in quantized
    assert not any(op.startswith("Quantized") for op in ops(classic(graph, "quantize_nodes")))


@pytest.mark.parametrize("values", [[1, np.inf, -1, 0], [3e38, -3e38, 0, 1]], ids=["infinite", "huge"])
def test_5_weights_of_any_range_keep_their_values(values: object) -> None:
    graph = graph_of((const("w", values), node("y", "Relu", "w")), "y", "")
    recipe = "quantize_weights(minimum_size=4)"
    assert has_same_outputs(graph, rewrite(graph, recipe))
    after = classic(graph, recipe, "")
    assert "Dequantize" in ops(after)
    assert not has_same_outputs(graph, after)


@pytest.mark.parametrize(("values", "high"), [([-1, -2, -3, -4], 0), ([0, 0, 0, 0], 1)])
def test_5_weight_ranges_are_tight_and_never_empty(values: list[int], high: int) -> None:
    graph = graph_of((const("w", values), node("y", "Relu", "w")), "y", "")
    recipe = "quantize_weights(minimum_size=4)"
    assert rewrite(graph, recipe)["w_quantized_max"].value.array == high
    assert classic(graph, recipe, "")["w_quantized_max"].value.array == np.finfo(np.float32).tiny


def test_6_rounded_weights_stay_in_their_range() -> None:
    values = np.arange(16, dtype=np.float32)
    graph = graph_of((const("w", values), node("y", "Neg", "w")), "y", "")
    right = rewrite(graph, "round_weights(num_steps=4)")["w"].value.array
    wrong = classic(graph, "round_weights(num_steps=4)", "")["w"].value.array
    assert (right.max() <= 15, len(set(right.tolist()))) == (True, 4)
    assert (wrong.max() > 15, len(set(wrong.tolist()))) == (True, 5)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_6_equal_weights_keep_their_value(value: float) -> None:
    graph = graph_of((const("w", np.full(16, value)), node("y", "Neg", "w")), "y", "")
    assert has_same_outputs(graph, rewrite(graph, "round_weights(num_steps=4)"), tolerance=0)
    assert not has_same_outputs(graph, classic(graph, "round_weights(num_steps=4)", ""), tolerance=0)


def test_7_valid_atrous_convolutions_keep_their_output_shape() -> None:
    zeros, two = np.zeros((2, 2)), [2, 2]
    nodes = (
        *(placeholder("x", 1, 8, 8, 2), ramp("w", 3, 3, 2, 1), const("block", two, dtype=np.int32)),
        const("pads", zeros, dtype=np.int32),
        *(const("out", two, dtype=np.int32), const("crops", zeros, dtype=np.int32)),
        node("s", "SpaceToBatchND", "x", "block", "pads", Tblock_shape=DType.INT32, Tpaddings=DType.INT32),
        node("c", "Conv2D", "s", "w", use_cudnn_on_gpu=True, **{**LAYER, "padding": b"VALID"}),
        node("y", "BatchToSpaceND", "c", "out", "crops", Tblock_shape=DType.INT32, Tcrops=DType.INT32),
    )
    graph = graph_of(nodes, "y")
    after = rewrite(graph, "flatten_atrous_conv")
    assert "SpaceToBatchND" not in ops(after)
    assert has_same_outputs(graph, after)
    assert classic(graph, "flatten_atrous_conv")["y"].attrs["padding"] == b"SAME"


def test_8_fused_convolutions_keep_their_dilations() -> None:
    nodes = (
        *(placeholder("x", 1, 8, 8, 2), ramp("w", 3, 3, 2, 1)),
        const("pads", [[0, 0], [1, 1], [1, 1], [0, 0]], dtype=np.int32),
        node("p", "MirrorPad", "x", "pads", Tpaddings=DType.INT32, mode=b"REFLECT"),
        node("y", "Conv2D", "p", "w", dilations=(1, 2, 2, 1), **{**LAYER, "padding": b"VALID"}),
    )
    graph = graph_of(nodes, "y")
    assert has_same_outputs(graph, rewrite(graph, "fuse_pad_and_conv"))
    assert "dilations" not in classic(graph, "fuse_pad_and_conv")["y"].attrs


def test_8_fused_resize_keeps_half_pixel_centers() -> None:
    nodes = (
        *(X, ramp("w", 3, 3, 2, 1), const("size", [8, 8], dtype=np.int32)),
        node("p", "ResizeBilinear", "x", "size", align_corners=False, half_pixel_centers=True),
        node("y", "Conv2D", "p", "w", **{**LAYER, "padding": b"VALID"}),
    )
    graph = graph_of(nodes, "y")
    assert has_same_outputs(graph, rewrite(graph, "fuse_resize_and_conv"))
    after = classic(graph, "fuse_resize_and_conv")["y"]
    assert (after.op, "half_pixel_centers" in after.attrs) == ("FusedResizeAndPadConv2D", False)


@pytest.mark.parametrize("recipe", ["merge_duplicate_nodes", "obfuscate_names"])
def test_9_endpoints_with_a_port_are_kept(recipe: str) -> None:
    nodes = (placeholder("x", 2), node("a", "Relu", "x"), node("b", "Relu", "x"), node("y", "Add", "a", "b"))
    graph = graph_of(nodes, "b:0,y:0", "x:0")
    assert {"x", "b", "y"} <= set(rewrite(graph, recipe).nodes)
    assert not {"b"} <= set(classic(graph, recipe, "x:0", "b:0,y:0").nodes)


def test_10_open_parenthesis_is_an_error() -> None:
    text = "remove_device remove_nodes(op=Identity"
    with pytest.raises(RecipeError, match="the parenthesis opened here is never closed"):
        parse(text)
    assert [step.name for step in parse_classic(text).steps] == ["remove_device"]


def test_11_negative_size_is_unknown() -> None:
    graph = graph_of((placeholder("x", 2), node("a", "Relu", "x"), node("y", "Relu", "a")), "y", "a")
    recipe = 'strip_unused_nodes(shape="-1,2")'
    assert rewrite(graph, recipe)["a"].attrs["shape"] == Shape((None, 2))
    with pytest.raises(GraphError, match="the original crashes here: shape '-1,2' has a negative size"):
        classic(graph, recipe, "a")


def test_11_missing_attribute_has_its_default() -> None:
    weights = ramp("w", 3, 3)
    graph = graph_of((placeholder("x", 2, 3), weights, node("y", "MatMul", "x", "w")), "y")
    assert has_same_outputs(graph, rewrite(graph, "quantize_nodes"), tolerance=0.1)
    with pytest.raises(GraphError, match="the original crashes here: y .MatMul. lacks the attribute 'transpose_a'"):
        classic(graph, "quantize_nodes")


def test_11_negative_axis_counts_from_the_end() -> None:
    layers = [
        (ramp(f"w{number}", 1, 1, 2, number + 1), node(f"c{number}", "Conv2D", "x", f"w{number}", **LAYER))
        for number in range(2)
    ]
    joined = node("j", "ConcatV2", "c0", "c1", "axis", N=2, Tidx=DType.INT32)
    norm = node("y", "FusedBatchNorm", "j", *FUSED_INPUTS, **FUSED)
    axis = const("axis", -1, dtype=np.int32)
    graph = graph_of((X, *layers[0], *layers[1], axis, joined, *STATISTICS, norm), "y")
    after = rewrite(graph, "fold_old_batch_norms")
    assert "FusedBatchNorm" not in ops(after)
    assert has_same_outputs(graph, after)
    second = placeholder("z", 1, 4, 4, 2)
    other = layers[1][1].with_input(0, "z")
    graph = graph_of((X, second, *layers[0], layers[1][0], other, axis, joined, *STATISTICS, norm), "y", "x,z")
    with pytest.raises(GraphError, match="the original crashes here"):
        classic(graph, "fold_old_batch_norms", "x,z")


def gather_graph(count: int) -> Graph:
    """Return a graph of Gather nodes on one weights constant."""
    nodes = [const("w", [[0], [2], [0], [4]]), node("i", "Identity", "w")]
    for number in range(count):
        ids = placeholder(f"x{number}", 3, dtype=DType.INT64)
        look = untyped_node(f"y{number}", "Gather", "i", f"x{number}", Tparams=DType.FLOAT, Tindices=DType.INT64)
        nodes += [ids, look]
    return graph_of(
        nodes, ",".join(f"y{number}" for number in range(count)), ",".join(f"x{number}" for number in range(count))
    )


def test_12_weights_with_two_gathers_become_sparse() -> None:
    graph = gather_graph(2)
    after = rewrite(graph, "sparsify_gather")
    assert ops(after).count("LookupTableFind") == 2
    assert classic(graph, "sparsify_gather", "x0,x1", "y0,y1")["y0"].written_inputs == ("x0",)


def test_13_control_inputs_stay_after_the_axis() -> None:
    nodes = (
        *(placeholder("x", 2, 3), const("axis", 1, dtype=np.int32)),
        node("y", "ConcatV2", "x", "x", "axis", "^axis", N=2, Tidx=DType.INT32),
    )
    graph = graph_of(nodes, "y")
    after = rewrite(graph, "backport_concatv2")
    assert after["y"].written_inputs == ("axis", "x", "x", "^axis")
    assert has_same_outputs(graph, after)
    assert classic(graph, "backport_concatv2")["y"].written_inputs == ("^axis", "x", "x", "axis")


def test_14_renamed_attribute_keeps_its_value() -> None:
    graph = graph_of((placeholder("x", 2), node("y", "Relu", "x", new=1, old=2)), "y")
    recipe = "rename_attribute(old_attribute_name=old,new_attribute_name=new)"
    assert rewrite(graph, recipe)["y"].attrs["new"] == 2
    assert classic(graph, recipe)["y"].attrs["new"] == 1


def test_15_control_dependencies_of_removed_nodes_stay() -> None:
    nodes = (placeholder("x", 2), placeholder("g", 2), node("a", "Identity", "x", "^g"), node("y", "Relu", "a"))
    graph = graph_of(nodes, "y", "x,g")
    assert rewrite(graph, "remove_nodes(op=Identity)")["y"].controls == ("g",)
    assert classic(graph, "remove_nodes(op=Identity)", "x,g")["y"].controls == ()


CALLS = """
inputs: x
outputs: y
x = Placeholder[2]()
{call}
y = Neg(c)
function twice(out = sum)
a = _Arg(T=float, index=0)
sum = AddV2(a, a)
end
function controlled(out = sum)
a = _Arg(T=float, index=0)
one = Const(1.0)
sum = AddV2(a, one, ^a)
end
"""


def call_graph(text: str, outputs: str = "y") -> Graph:
    graph = from_text(CALLS.format(call=f"c = {text}"))
    return graph.with_endpoints(None, outputs.split(","))


def test_16_stateful_calls_are_inlined() -> None:
    graph = call_graph("StatefulPartitionedCall(x, Tin=[float], Tout=[float], f=&twice)")
    assert "StatefulPartitionedCall" not in ops(rewrite(graph, "inline_partitionedcall"))
    assert "StatefulPartitionedCall" in ops(classic(graph, "inline_partitionedcall"))


def test_16_calls_that_are_outputs_keep_their_names() -> None:
    graph = call_graph("PartitionedCall(x, Tin=[float], Tout=[float], f=&twice)", "c,y")
    after = rewrite(graph, "inline_partitionedcall")
    assert "PartitionedCall" not in ops(after)
    assert "c" in after.nodes
    assert "c" not in classic(graph, "inline_partitionedcall", outputs="c,y").nodes


def test_16_control_inputs_in_functions_are_renamed() -> None:
    graph = call_graph("PartitionedCall(x, Tin=[float], Tout=[float], f=&controlled)")
    assert "PartitionedCall" not in ops(rewrite(graph, "inline_partitionedcall"))
    with pytest.raises(GraphError, match="Invalid graph with inputs referring to nonexistent nodes"):
        classic(graph, "inline_partitionedcall")
