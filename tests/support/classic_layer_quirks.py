"""Small graphs with unexpected results of the original tool's folding and quantization."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from classic_nodes import (
    FUSED,
    FUSED_INPUTS,
    GLOBAL,
    GLOBAL_INPUTS,
    LAYER,
    POOL,
    STATISTICS,
    Cases,
    X,
    const,
    node,
    placeholder,
    ramp,
    untyped_node,
)

from quantkit.ir.graph import Node
from quantkit.ir.tensor import DType, Shape


def _factors() -> Cases:
    cases = Cases("factors", "fold_batch_norms")
    conv = node("c", "Conv2D", "x", "w", **LAYER)
    weights, factor = ramp("w", 1, 1, 2, 3), const("s", [1, 2, 4])
    plain = (X, weights, conv, factor, node("y", "Mul", "c", "s"))
    cases.add("plain", plain, "y")
    cases.add("factor_first", (*plain[:4], node("y", "Mul", "s", "c")), "y")
    for number, values in enumerate((2, [2], [[[[1, 2, 3]]]], [1, 2], [[1, 2, 3]])):
        cases.add(f"shape_{number}", (*plain[:3], const("s", values), node("y", "Mul", "c", "s")), "y")
    cases.add("read_elsewhere", (*plain, node("z", "Relu", "c")), "y,z")
    cases.add("conv_is_an_output", plain, "y,c")
    cases.add("weights_read_elsewhere", (*plain, node("z", "Relu", "w")), "y,z")
    cases.add("weights_are_an_output", plain, "y,w")
    cases.add("factor_read_elsewhere", (*plain, node("z", "Relu", "s")), "y,z")
    cases.add(
        "controls",
        (X, weights, node("c", "Conv2D", "^x", "x", "^w", "w", **LAYER), factor, node("y", "Mul", "c:0", "^x", "s")),
        "y",
    )
    branches = (
        X,
        ramp("w", 1, 1, 2, 3),
        ramp("v", 1, 1, 2, 3, start=2),
        conv,
        node("d", "Conv2D", "x", "v", **LAYER),
        const("s", [1, 2, 4]),
        const("t", [3, 2, 1]),
        node("m", "Mul", "c", "s"),
        node("n", "Mul", "d", "t"),
        node("y", "Add", "m", "n"),
    )
    cases.add("branches", branches, "y")
    cases.add("branches_twice", branches, "y", "fold_batch_norms fold_batch_norms")
    cases.add(
        "depthwise",
        (
            X,
            ramp("w", 3, 3, 2, 2),
            node("c", "DepthwiseConv2dNative", "x", "w", **LAYER),
            const("s", [1, 2, 3, 4]),
            node("y", "Mul", "c", "s"),
        ),
        "y",
    )
    flat = (placeholder("x", 2, 3), ramp("w", 3, 3), const("s", [1, 2, 4]))
    for name, transposed in (("matmul", False), ("matmul_transposed", True)):
        product = node("c", "MatMul", "x", "w", transpose_a=False, transpose_b=transposed)
        cases.add(name, (*flat, product, node("y", "Mul", "c", "s")), "y")
    cases.add(
        "square_of_weights",
        (ramp("w", 1, 1, 3, 3), node("c", "Conv2D", "w", "w", **LAYER), factor, node("y", "Mul", "c", "s")),
        "y",
        inputs="",
    )
    cases.add(
        "double_weights",
        (X, const("w", np.ones((1, 1, 2, 3)), dtype=np.float64), conv, factor, node("y", "Mul", "c", "s")),
        "y",
    )
    cases.add("chain", (*plain, const("t", [2, 2, 3]), node("z", "Mul", "y", "t")), "z")
    cases.add(
        "chain_twice",
        (*plain, const("t", [2, 2, 3]), node("z", "Mul", "y", "t")),
        "z",
        "fold_batch_norms fold_batch_norms",
    )
    cases.add(
        "no_value", (X, untyped_node("w", "Const", dtype=DType.FLOAT), conv, factor, node("y", "Mul", "c", "s")), "y"
    )
    return cases


def _norms() -> Cases:
    cases = Cases("norms", "fold_old_batch_norms")
    weights, conv = ramp("w", 1, 1, 2, 3), node("c", "Conv2D", "x", "w", **LAYER)
    begin = (X, weights, conv, *STATISTICS)
    fused = node("y", "FusedBatchNorm", "c", *FUSED_INPUTS, **FUSED)
    cases.add("fused", (*begin, fused), "y")
    cases.add("global", (*begin, node("y", "BatchNormWithGlobalNormalization", "c", *GLOBAL_INPUTS, **GLOBAL)), "y")
    cases.add(
        "global_unscaled",
        (
            *begin,
            node(
                "y",
                "BatchNormWithGlobalNormalization",
                "c",
                *GLOBAL_INPUTS,
                **{**GLOBAL, "scale_after_normalization": False},
            ),
        ),
        "y",
    )
    for version in ("V2", "V3"):
        cases.add(
            f"fused_{version}",
            (*begin, node("y", f"FusedBatchNorm{version}", "c", *FUSED_INPUTS, U=DType.FLOAT, **FUSED)),
            "y",
        )
    cases.add(
        "training", (*begin, node("y", "FusedBatchNorm", "c", *FUSED_INPUTS, epsilon=0.001, is_training=True)), "y"
    )
    cases.add("no_epsilon", (*begin, node("y", "FusedBatchNorm", "c", *FUSED_INPUTS)), "y")
    cases.add("no_type", (X, weights, untyped_node("c", "Conv2D", "x", "w", **LAYER), *STATISTICS, fused), "y")
    cases.add(
        "no_data_format",
        (X, weights, node("c", "Conv2D", "x", "w", strides=(1, 1, 1, 1), padding=b"SAME"), *STATISTICS, fused),
        "y",
    )
    cases.add("gamma_read_elsewhere", (*begin, fused, node("z", "Relu", "gamma")), "y,z")
    twice = (
        *begin,
        fused,
        ramp("v", 1, 1, 2, 3),
        node("d", "Conv2D", "x", "v", **LAYER),
        *(constant.with_(name=f"{constant.name}2") for constant in STATISTICS[:3]),
    )
    second = node("z", "FusedBatchNorm", "d", "gamma", "beta2", "mean2", "variance2", **FUSED)
    cases.add("gamma_of_two", (*twice, second, node("s", "Add", "y", "z")), "s")
    cases.add("conv_read_elsewhere", (*begin, fused, node("z", "Relu", "c")), "y,z")
    cases.add("weights_read_elsewhere", (*begin, fused, node("z", "Relu", "w")), "y,z")
    cases.add("conv_is_an_output", (*begin, fused), "y,c")
    cases.add("other_outputs_read", (*begin, fused, node("z", "Relu", "y:1")), "y,z")
    for role, name in enumerate(("mean", "variance", "beta", "gamma")):
        short = tuple(
            const(vector.name, [1, 2]) if number == role else vector for number, vector in enumerate(STATISTICS)
        )
        cases.add(f"short_{name}", (X, weights, conv, *short, fused), "y")
    cases.add("all_short", (X, weights, conv, *(const(vector.name, [1, 2]) for vector in STATISTICS), fused), "y")
    cases.add(
        "bias_between",
        (
            *begin,
            const("b", [1, 2, 3]),
            node("a", "BiasAdd", "c", "b"),
            node("y", "FusedBatchNorm", "a", *FUSED_INPUTS, **FUSED),
        ),
        "y",
    )
    cases.add(
        "depthwise",
        (
            placeholder("x", 1, 4, 4, 3),
            ramp("w", 3, 3, 3, 1),
            node("c", "DepthwiseConv2dNative", "x", "w", **LAYER),
            *STATISTICS,
            fused,
        ),
        "y",
    )
    second_pair = (
        node("d", "Conv2D", "y", "v", **LAYER),
        ramp("v", 1, 1, 3, 3),
        *(constant.with_(name=f"{constant.name}2") for constant in STATISTICS),
    )
    cases.add(
        "chain",
        (
            *begin,
            fused,
            *second_pair,
            node("z", "FusedBatchNorm", "d", "gamma2", "beta2", "mean2", "variance2", **FUSED),
        ),
        "z",
    )
    cases.add(
        "controls",
        (
            X,
            placeholder("g"),
            weights,
            node("c", "Conv2D", "x", "w", "^g", **LAYER),
            *STATISTICS,
            node("y", "FusedBatchNorm", "c", *FUSED_INPUTS, "^g", **FUSED),
        ),
        "y",
        inputs="x,g",
    )
    return cases


def _joined_norms() -> Cases:
    cases = Cases("joined_norms", "fold_old_batch_norms")
    blocks = (
        const("block", [2, 2], dtype=np.int32),
        const("pads", [[0, 0], [0, 0]], dtype=np.int32),
        const("crops", [[0, 0], [0, 0]], dtype=np.int32),
    )
    typed = {"Tblock_shape": DType.INT32}
    begin = (
        X,
        *blocks,
        node("s", "SpaceToBatchND", "x", "block", "pads", Tpaddings=DType.INT32, **typed),
        ramp("w", 1, 1, 2, 3),
        node("c", "Conv2D", "s", "w", **LAYER),
    )
    inner = (
        const("block2", [2, 2], dtype=np.int32),
        node("b", "BatchToSpaceND", "c", "block2", "crops", Tcrops=DType.INT32, **typed),
    )
    fused = node("y", "FusedBatchNorm", "b", *FUSED_INPUTS, **FUSED)
    cases.add("space", (*begin, *inner, *STATISTICS, fused), "y")
    shared = node("b", "BatchToSpaceND", "c", "block", "crops", Tcrops=DType.INT32, **typed)
    cases.add("space_shared_block", (*begin, shared, *STATISTICS, fused), "y")
    for axis in (3, 0, 2, -1):
        width = (3, 3) if axis != 3 else (1, 2)
        parts = (
            X,
            placeholder("z", 1, 4, 4, 2),
            ramp("w", 1, 1, 2, width[0]),
            ramp("v", 1, 1, 2, width[1], start=1),
            node("c", "Conv2D", "x", "w", **LAYER),
            node("d", "Conv2D", "z", "v", **LAYER),
            const("axis", axis, dtype=np.int32),
        )
        for op, order in (("ConcatV2", ("c", "d", "axis")), ("Concat", ("axis", "c", "d"))):
            joined = node("j", op, *order, N=2, **({"Tidx": DType.INT32} if op == "ConcatV2" else {}))
            cases.add(
                f"{op}_{axis}",
                (*parts, joined, *STATISTICS, node("y", "FusedBatchNorm", "j", *FUSED_INPUTS, **FUSED)),
                "y",
                inputs="x,z",
            )
    one_source = (
        X,
        ramp("w", 1, 1, 2, 1),
        ramp("v", 1, 1, 2, 2, start=1),
        node("c", "Conv2D", "x", "w", **LAYER),
        node("d", "Conv2D", "x", "v", **LAYER),
        const("axis", 3, dtype=np.int32),
    )
    joined = node("j", "ConcatV2", "c", "d", "axis", N=2, Tidx=DType.INT32)
    cases.add(
        "same_source", (*one_source, joined, *STATISTICS, node("y", "FusedBatchNorm", "j", *FUSED_INPUTS, **FUSED)), "y"
    )
    return cases


def _eight_bit_weights() -> Cases:
    cases = Cases("eight_bit_weights", "quantize_weights(minimum_size=4)")
    tensors: dict[str, Any] = {
        "zeros": np.zeros(4),
        "negative": [-1, -2, -3, -4],
        "positive": [1, 2, 3, 4],
        "equal": [5, 5, 5, 5],
        "equal_negative": [-5, -5, -5, -5],
        "infinite": [1, np.inf, -1, 0],
        "minus_infinite": [1, -np.inf, -1, 0],
        "not_a_number": [1, np.nan, -1, 0],
        "outlier": [1e30, 1, 2, 3],
        "tiny": [1e-40, 2e-40, -1e-40, 0],
        "huge": [3e38, -3e38, 0, 1],
        "halves": [-0.5, 0.5, 1.5, 2.5, 254.5, 255, 0, 1],
        "small": [1, 2, 3],
    }
    for name, values in tensors.items():
        if name != "not_a_number":
            cases.add(name, (const("w", values), node("y", "Relu", "w")), "y", inputs="")
    cases.add(
        "double", (const("w", [1, 2, 3, 4], dtype=np.float64), node("y", "Relu", "w", T=DType.DOUBLE)), "y", inputs=""
    )
    cases.add("waits", (placeholder("x"), const("w", [1, 2, 3, 4], "^x"), node("y", "Relu", "w")), "y")
    cases.add(
        "default_size",
        (ramp("w", 1023), ramp("v", 1024), node("y", "Relu", "w"), node("z", "Relu", "v")),
        "y,z",
        "quantize_weights",
        "",
    )
    cases.add("negative_size", (ramp("w", 8), node("y", "Relu", "w")), "y", "quantize_weights(minimum_size=-1)", "")
    cases.add(
        "zero_size",
        (const("w", 2.5), const("e", np.zeros(0)), node("y", "Relu", "w")),
        "y",
        "quantize_weights(minimum_size=0)",
        "",
    )
    cases.add("no_type", (untyped_node("w", "Const"), node("y", "Relu", "w")), "y", inputs="")
    cases.add("no_value", (untyped_node("w", "Const", dtype=DType.FLOAT), node("y", "Relu", "w")), "y", inputs="")
    cases.add(
        "cycle", (ramp("w", 8), node("y", "Relu", "w"), node("a", "Relu", "b"), node("b", "Relu", "a")), "y", inputs=""
    )
    cases.add("dangling", (ramp("w", 8), node("y", "Relu", "gone")), "y", inputs="")
    return cases


def _steps() -> Cases:
    cases = Cases("steps", "round_weights(num_steps=4)")
    values: dict[str, Any] = {
        "zeros": np.zeros(16),
        "equal": np.full(16, 3),
        "equal_negative": np.full(16, -3),
        "negative": -np.arange(1, 17),
        "positive": np.arange(1, 17),
        "mixed": np.arange(16) - 5,
        "few": np.arange(15),
        "thirds": np.arange(20) / 3,
    }
    for name, numbers in values.items():
        for steps in (1, 4, 7):
            cases.add(
                f"{name}_{steps}",
                (const("w", numbers), node("y", "Relu", "w")),
                "y",
                f"round_weights(num_steps={steps})",
                "",
            )
    return cases


def _eight_bit() -> Cases:
    cases = Cases("eight_bit", "quantize_nodes")

    def sum_of(*inputs: str, **attrs: Any) -> tuple[Node, ...]:
        return placeholder("x", 2), const("k", [1, 2]), node("y", "Add", *inputs, **attrs)

    cases.add("sum", sum_of("x", "k"), "y")
    cases.add("same_input_twice", sum_of("x", "x"), "y")
    cases.add("same_input_spelled_twice", sum_of("x", "x:0"), "y")
    cases.add("control_input", sum_of("x", "k", "^k"), "y")
    cases.add(
        "integers",
        (
            placeholder("x", 2, dtype=DType.INT32),
            const("k", [1, 2], dtype=np.int32),
            node("y", "Add", "x", "k", T=DType.INT32),
        ),
        "y",
    )
    cases.add(
        "integer_placeholder",
        (
            placeholder("x", 2),
            placeholder("i", 2, dtype=DType.INT32),
            node("z", "Neg", "i", T=DType.INT32),
            node("y", "Relu", "x"),
        ),
        "y,z",
        "quantize_nodes(input_min=-1,input_max=1)",
        "x,i",
    )
    cases.add("range_half", sum_of("x", "k"), "y", "quantize_nodes(input_min=1)")
    cases.add("range_other_half", sum_of("x", "k"), "y", "quantize_nodes(fallback_max=1)")
    cases.add("range_twice", sum_of("x", "k"), "y", "quantize_nodes(fallback_max=1,fallback_max=1,fallback_min=0)")
    cases.add("sum_v2", (placeholder("x", 2), const("k", [1, 2]), node("y", "AddV2", "x", "k")), "y")
    conv = (
        X,
        ramp("w", 1, 1, 2, 3),
        node("c", "Conv2D", "x", "w", **LAYER),
        const("b", [1, 2, 3]),
        node("a", "BiasAdd", "c", "b"),
        node("r", "Relu", "a"),
        node("p", "MaxPool", "r", **POOL),
        node("y", "Relu6", "p"),
    )
    cases.add("layers", conv, "y")
    cases.add("layers_between_are_outputs", conv, "y,r,c")
    cases.add("layers_with_ports", conv, "y:0,r:0")
    cases.add("layers_fed", conv, "y", "quantize_nodes(input_min=-1,input_max=2)")
    cases.add("layers_fallback", conv, "y", "quantize_nodes(fallback_min=-3,fallback_max=3)")
    cases.add("layers_ignored", conv, "y", "quantize_nodes(ignore_op=BiasAdd,ignore_op=Relu)")
    cases.add(
        "layers_and_recipe",
        conv,
        "y",
        "add_default_attributes quantize_weights(minimum_size=2) quantize_nodes "
        "strip_unused_nodes sort_by_execution_order",
    )
    first = {**LAYER, "data_format": b"NCHW"}
    cases.add(
        "channels_first",
        (placeholder("x", 1, 2, 4, 4), ramp("w", 1, 1, 2, 3), node("y", "Conv2D", "x", "w", **first)),
        "y",
    )
    cases.add(
        "dilated", (X, ramp("w", 2, 2, 2, 3), node("y", "Conv2D", "x", "w", dilations=(1, 2, 2, 1), **LAYER)), "y"
    )
    cases.add("no_strides", (X, ramp("w", 1, 1, 2, 3), node("y", "Conv2D", "x", "w")), "y")
    cases.add("no_type", (placeholder("x", 2), const("k", [1, 2]), untyped_node("y", "Mul", "x", "k")), "y")
    cases.add(
        "transposed",
        (placeholder("x", 2, 3), ramp("w", 2, 3), node("y", "MatMul", "x", "w", transpose_a=False, transpose_b=True)),
        "y",
    )
    axis, shape = const("k", 1, dtype=np.int32), const("s", [6], dtype=np.int32)
    cases.add(
        "concat",
        (
            placeholder("x", 2, 3),
            axis,
            node("r", "Relu", "x"),
            node("j", "Concat", "k", "r", "x", N=2),
            node("y", "Relu", "j"),
        ),
        "y",
    )
    cases.add(
        "reshape",
        (
            placeholder("x", 2, 3),
            shape,
            node("r", "Relu", "x"),
            node("f", "Reshape", "r", "s", Tshape=DType.INT32),
            node("y", "Relu", "f"),
        ),
        "y",
    )
    cases.add(
        "resize",
        (
            X,
            const("s", [8, 8], dtype=np.int32),
            node("y", "ResizeBilinear", "x", "s", align_corners=True, half_pixel_centers=False),
        ),
        "y",
    )
    split = untyped_node("s", "Split", "k", "x", T=DType.FLOAT, num_split=2)
    cases.add(
        "ports",
        (
            placeholder("x", 2, 4),
            axis,
            split,
            node("a", "Relu", "s:1"),
            node("b", "Mul", "s:0", "a"),
            node("y", "Add", "s", "b"),
        ),
        "y",
    )
    cases.add(
        "shared_input",
        (
            placeholder("x", 2),
            node("a", "Relu", "x"),
            node("b", "Relu6", "a"),
            node("c", "Relu", "a"),
            node("d", "Tanh", "a"),
            node("y", "AddN", "b", "c", "d", N=3),
        ),
        "y",
    )
    cases.add(
        "deep",
        (
            placeholder("x", 2),
            *(
                node(f"r{number}", ("Relu", "Relu6")[number % 2], f"r{number - 1}" if number else "x")
                for number in range(6)
            ),
        ),
        "r5",
    )
    return cases


def _trained_ranges() -> Cases:
    cases = Cases("trained_ranges", "quantize_nodes")
    ends = (const("lo", -1.5), const("hi", 3))
    fake = {"T": None, "num_bits": 8, "narrow_range": False}
    conv = (X, ramp("w", 1, 1, 2, 3), node("c", "Conv2D", "x", "w", **LAYER), *ends)
    chains: dict[str, Sequence[Node]] = {
        "directly": (),
        "relu": (node("r", "Relu", "c"),),
        "softmax": (node("r", "Softmax", "c"),),
        "two": (node("r", "Relu", "c"), node("q", "Tanh", "r")),
        "three": (node("r", "Relu", "c"), node("q", "MaxPool", "r", **POOL), node("s", "Identity", "q")),
        "four": (node("r", "Relu", "c"), node("q", "Exp", "r"), node("s", "Identity", "q"), node("t", "Relu", "s")),
    }
    for name, chain in chains.items():
        last = chain[-1].name if chain else "c"
        nodes = (*conv, *chain, node("f", "FakeQuantWithMinMaxVars", last, "lo", "hi", **fake), node("y", "Relu", "f"))
        cases.add(name, nodes, "y")
        cases.add(f"{name}_read_elsewhere", (*nodes, node("z", "Tanh", last)), "y,z")
        cases.add(f"{name}_first_read_elsewhere", (*nodes, node("z", "Tanh", "c")), "y,z")
    two = (
        *conv,
        const("lo2", -1),
        const("hi2", 2),
        node("f", "FakeQuantWithMinMaxVars", "c", "lo", "hi", **fake),
        node("g", "FakeQuantWithMinMaxVars", "f", "lo2", "hi2", **fake),
    )
    cases.add("two_in_a_row", two, "g")
    cases.add(
        "shared_range",
        (
            *conv,
            node("f", "FakeQuantWithMinMaxVars", "c", "lo", "hi", **fake),
            node("r", "Relu", "f"),
            node("g", "FakeQuantWithMinMaxVars", "r", "lo", "hi", **fake),
        ),
        "g",
    )
    cases.add(
        "four_bits",
        (*conv, node("y", "FakeQuantWithMinMaxVars", "c", "lo", "hi", T=None, num_bits=4, narrow_range=True)),
        "y",
    )
    cases.add(
        "computed_range",
        (*conv, node("h", "Abs", "hi"), node("y", "FakeQuantWithMinMaxVars", "c", "lo", "h", **fake)),
        "y",
    )
    return cases


def _constants() -> Cases:
    cases = Cases("constants", "fold_constants")
    a, b = const("a", [1, 2]), const("b", [3, 5])
    sum_ = node("s", "Add", "a", "b")
    plain = (placeholder("x", 2), a, b, sum_, node("m", "Mul", "x:0", "s:0"), node("y", "Sub", "m", "s"))
    cases.add("plain", plain, "y")
    cases.add("with_ports", plain, "y:0", inputs="x:0")
    cases.add("folded_is_an_output", plain, "y,s")
    cases.add("folded_is_the_output", plain, "s")
    cases.add(
        "several",
        (
            placeholder("x", 2),
            a,
            b,
            sum_,
            node("q", "Mul", "b", "b"),
            node("r", "Sqrt", "q"),
            node("m", "Mul", "x", "s"),
            node("n", "Sub", "m", "q"),
            node("y", "Add", "n", "r"),
        ),
        "y",
    )
    for number, location in enumerate((b"loc:@s", b"loc:@gone", b"gone", b"loc:@")):
        beside = (*plain[:-1], plain[-1].with_attrs(_class=(location,)))
        cases.add(f"colocated_{number}", beside, "y")
    cases.add("excluded_op", plain, "y", "fold_constants(exclude_op=Add)")
    cases.add("excluded_node", plain, "y", "fold_constants(exclude_node=s,exclude_node=other)")
    for limit in (4, 8, 15):
        cases.add(f"limit_{limit}", plain, "y", f"fold_constants(max_constant_size_in_bytes={limit})")
    nodes = (
        placeholder("x"),
        a,
        b,
        untyped_node("s", "Tile", "a", "n", T=DType.FLOAT, Tmultiples=DType.INT32),
        node("n", "Abs", "i", T=DType.INT32),
        const("i", [3], dtype=np.int32),
        node("y", "Mul", "x", "s"),
    )
    cases.add("limit_of_a_computed_shape", nodes, "y", "fold_constants(max_constant_size_in_bytes=16)")
    cases.add(
        "waiting_constant", (placeholder("x", 2), const("a", [1, 2], "^x"), b, sum_, node("y", "Mul", "x", "s")), "y"
    )
    cases.add(
        "waiting_for_a_step",
        (
            placeholder("x", 2),
            untyped_node("n", "NoOp", "^x"),
            a,
            const("b", [3, 5], "^n"),
            node("s", "Add", "a", "b", "^n"),
            node("y", "Mul", "x", "s"),
        ),
        "y",
    )
    cases.add(
        "folded_is_waited_for", (placeholder("x", 2), a, b, sum_, node("y", "Mul", "x", "s", "^s", "^b", "^a")), "y"
    )
    cases.add("controls_sorted", (placeholder("x", 2), a, b, node("y", "Relu", "x", "^b", "^a", "^x", "^b")), "y")
    cases.add(
        "random",
        (
            const("k", [2], dtype=np.int32),
            placeholder("x", 2),
            untyped_node("r", "RandomUniform", "k", T=DType.INT32, dtype=DType.FLOAT),
            node("y", "Mul", "x", "r"),
        ),
        "y",
    )
    cases.add("scalar", (placeholder("x"), const("a", 1), const("b", 2), sum_, node("y", "Mul", "x", "s")), "y")
    cases.add(
        "integers",
        (
            placeholder("x", 2, 2),
            const("a", [2, 1], dtype=np.int32),
            const("b", 1, dtype=np.int32),
            node("s", "Sub", "a", "b", T=DType.INT32),
            untyped_node("y", "Transpose", "x", "s", T=DType.FLOAT, Tperm=DType.INT32),
        ),
        "y",
    )
    cases.add(
        "truths",
        (
            placeholder("x", 2, dtype=DType.BOOL),
            const("a", True, dtype=bool),
            untyped_node("n", "LogicalNot", "a"),
            untyped_node("y", "LogicalAnd", "x", "n"),
        ),
        "y",
    )
    split = untyped_node("s", "Split", "k", "a", T=DType.FLOAT, num_split=2)
    cases.add(
        "several_outputs",
        (
            placeholder("x", 1),
            const("k", 0, dtype=np.int32),
            a,
            split,
            node("m", "Mul", "x", "s:1"),
            node("y", "Add", "m", "s:0"),
        ),
        "y",
    )
    cases.add(
        "one_of_several_outputs",
        (placeholder("x", 1), const("k", 0, dtype=np.int32), a, split, node("y", "Mul", "x", "s:1")),
        "y",
    )
    cases.add(
        "output_shapes",
        (
            placeholder("x", 2),
            a,
            b,
            node("s", "Add", "a", "b", _output_shapes=(Shape((2,)),)),
            node("y", "Mul", "x", "s", _output_shapes=(Shape((2,)),)),
        ),
        "y",
    )
    names = [f"p{number}" for number in range(14)]
    cases.add(
        "order_of_inputs",
        (*(placeholder(name) for name in names), node("y", "AddN", *names, N=14)),
        "y",
        inputs=",".join(names),
    )
    names = ["conv", "images", "labels", "keep_prob", "z/a", "input:0", "b"]
    cases.add(
        "order_of_words",
        (*(placeholder(name.split(":")[0]) for name in names), node("y", "AddN", *names, N=7)),
        "y",
        inputs=",".join(names),
    )
    cases.add(
        "unread_inputs",
        (placeholder("x"), placeholder("i"), placeholder("j"), node("y", "Relu", "x")),
        "y",
        inputs="i,x,j",
    )
    fallback = node("x", "PlaceholderWithDefault", "k", T=None, dtype=DType.FLOAT, shape=Shape(()))
    cases.add("fallback_fed", (const("k", 1), fallback, node("y", "Relu", "x")), "y")
    cases.add(
        "fallback_not_fed",
        (placeholder("z"), const("k", 1), fallback, node("r", "Relu", "x"), node("y", "Mul", "z", "r")),
        "y",
        inputs="z",
    )
    cases.add(
        "defaults_added",
        (X, ramp("w", 1, 1, 2, 3), node("y", "Conv2D", "x", "w", strides=(1, 1, 1, 1), padding=b"SAME")),
        "y",
    )
    cases.add("nothing_to_fold", (placeholder("x"), node("y", "Relu", "x", device="/cpu:0")), "y")
    cases.add(
        "identity_of_a_constant", (placeholder("x", 2), a, node("i", "Identity", "a"), node("y", "Mul", "x", "i")), "y"
    )
    cases.add("dead_code", (*plain, node("d", "Relu", "m"), node("e", "Sqrt", "s")), "y")
    cases.add("file_order", tuple(reversed(plain)), "y")
    norm = (
        placeholder("x", 1, 4),
        const("v", [1, 2, 3, 4]),
        const("e", 0.001),
        node("a", "Add", "v", "e"),
        node("r", "Rsqrt", "a"),
        const("g", [1, 2, 1, 2]),
        node("m", "Mul", "r", "g"),
        node("n", "Mul", "x", "m"),
        const("u", [4, 3, 2, 1]),
        node("t", "Mul", "u", "m"),
        const("o", [1, 0, 1, 0]),
        node("s", "Sub", "o", "t"),
        node("y", "Add", "n", "s"),
    )
    cases.add("decomposed_norm", norm, "y")
    cases.add("decomposed_norm_twice", norm, "y", "fold_constants fold_constants")
    return cases


def _shapes() -> Cases:
    cases = Cases("shapes", "fold_constants")
    shape = node("s", "Shape", "x", out_type=DType.INT32)
    cases.add("shape", (placeholder("x", 2, 3), shape, node("y", "Reshape", "x", "s", Tshape=DType.INT32)), "y")
    cases.add("shape_unknown", (placeholder("x"), shape, node("y", "Reshape", "x", "s", Tshape=DType.INT32)), "y")
    cases.add(
        "rank_and_size",
        (
            placeholder("x", 2, 3),
            node("r", "Rank", "x"),
            node("n", "Size", "x"),
            node("t", "Add", "r", "n", T=DType.INT32),
            untyped_node("y", "ExpandDims", "x", "z", T=DType.FLOAT, Tdim=DType.INT32),
            node("z", "Sub", "t", "n", T=DType.INT32),
        ),
        "y",
    )
    cases.add(
        "of_what_is_computed",
        (
            placeholder("x", 2, 3),
            node("a", "Relu", "x"),
            node("s", "Shape", "a", out_type=DType.INT32),
            node("t", "Shape", "x", out_type=DType.INT64),
            untyped_node("c", "Cast", "t", SrcT=DType.INT64, DstT=DType.INT32),
            node("m", "Add", "s", "c", T=DType.INT32),
            node("y", "Tile", "x", "m", Tmultiples=DType.INT32),
        ),
        "y",
    )
    cases.add(
        "shape_is_an_output", (placeholder("x", 2, 3), shape, node("y", "Reshape", "x", "s", Tshape=DType.INT32)), "y,s"
    )
    cases.add(
        "shapes_of_two",
        (
            placeholder("x", 2, 3),
            placeholder("z", 4),
            node("s", "ShapeN", "x", "x", N=2, out_type=DType.INT32),
            node("a", "Reshape", "x", "s:1", Tshape=DType.INT32),
            node("y", "Reshape", "a", "s", Tshape=DType.INT32),
        ),
        "y",
    )
    cases.add(
        "of_a_constant",
        (
            placeholder("x", 2),
            const("a", [1, 2]),
            node("s", "Shape", "a", out_type=DType.INT32),
            node("y", "Reshape", "x", "s", Tshape=DType.INT32),
        ),
        "y",
    )
    cases.add(
        "of_old_scalar",
        (
            untyped_node("x", "Placeholder", dtype=DType.FLOAT, shape=Shape(())),
            shape,
            node("y", "Reshape", "x", "s", Tshape=DType.INT32),
        ),
        "y",
    )
    cases.add(
        "of_new_scalar",
        (
            untyped_node("x", "Placeholder", dtype=DType.FLOAT, shape=Shape(())),
            node("r", "Rank", "x"),
            untyped_node("y", "ExpandDims", "x", "r", T=DType.FLOAT, Tdim=DType.INT32),
        ),
        "y",
        producer=24,
    )
    cases.add(
        "shape_excluded",
        (placeholder("x", 2, 3), shape, node("y", "Reshape", "x", "s", Tshape=DType.INT32)),
        "y",
        "fold_constants(exclude_op=Shape)",
    )
    return cases


def _refused_constants() -> Cases:
    cases = Cases("refused_constants", "fold_constants")
    plain = (placeholder("x", 2), const("a", [1, 2]), node("m", "Mul", "x", "a"), node("y", "Relu", "m"))
    cases.add("cut_in_the_middle", plain, "y", inputs="m")
    cases.add("cut_and_unknown_output", plain, "nope", inputs="m")
    cases.add("unknown_input", plain, "y", inputs="x,nope")
    cases.add("no_such_output", plain, "y:1")
    cases.add("no_such_input", plain, "y", inputs="x:1")
    cases.add("fed_twice", plain, "y", inputs="x,x")
    cases.add("fed_and_fetched", plain, "x")
    cases.add("no_outputs", plain, "")
    cases.add("not_fed", plain, "y", inputs="")
    cases.add("not_fed_unknown_shape", (placeholder("x"), *plain[1:]), "y", inputs="")
    cases.add("ignored", plain, "y", "fold_constants(ignore_errors=true) remove_device", inputs="")
    cases.add("unknown_op", (*plain, node("z", "Odd", "y")), "z")
    cases.add("dangling", (*plain, node("z", "Relu", "gone")), "z")
    cases.add("no_such_port", (*plain, node("z", "Relu", "y:1")), "z")
    cases.add("control_first", (*plain, node("z", "Relu", "^a", "y")), "z")
    cases.add("cycle", (*plain, node("a1", "Relu", "a2"), node("a2", "Relu", "a1")), "y")
    return cases


QUIRKS: tuple[Callable[[], Cases], ...] = (
    _factors,
    _norms,
    _joined_norms,
    _eight_bit_weights,
    _steps,
    _eight_bit,
    _trained_ranges,
    _constants,
    _shapes,
    _refused_constants,
)
