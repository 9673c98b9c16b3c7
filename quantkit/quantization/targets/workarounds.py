"""Ops without effect that steer the rewrites of a runtime: each row names the runtime and the versions that need it.

A row is applied to files for its runtime: to those for all runtimes of the target, and to those of ``--runtime``. Its
test quantizes a network without the row, and fails on the version that no longer needs the row.
"""

import re
from dataclasses import dataclass

from quantkit.runtimes import find_runtime

AVERAGE, MAXIMUM, PRODUCT, SILU = "average", "maximum", "product", "silu"
SHUFFLE, PRODUCT_CHAIN, CAPTURE, REDUCTION = "shuffle", "product chain", "capture", "reduction"
OUTPUT_LAYOUT, PAIR_SOFTMAX, CHANNEL_SHUFFLE = "output layout", "softmax of two classes", "channel shuffle"
EXTREME, HIDDEN_SIZE, FLAT_NORM = "quantized extreme", "hidden size", "flat normalization"
UPSAMPLING, SHARED_BIAS = "nearest upsampling", "shared bias"
CONCAT = "Concat of one tensor"


@dataclass(frozen=True)
class Workaround:
    """One op that computes its input, with its purpose.

    Attributes:
        name: key of the row.
        op: inserted op.
        runtime: name of the runtime that needs the op.
        first: first version that was seen to need the op.
        reason: rewrite of the runtime that the op prevents or allows.
        test: name of the test in ``tests/quantization/targets/test_workarounds.py``.
        fixed: first version that does not need the op; empty if no such version is known.
        others: runtimes whose files need the op, too.
    """

    name: str
    op: str
    runtime: str
    first: str
    reason: str
    test: str
    fixed: str = ""
    others: tuple[str, ...] = ()

    def is_needed(self, runtime: str | None) -> bool:
        """Return True if files for a runtime, or for all with None, need the op in its installed version."""
        if runtime not in (None, self.runtime, *self.others):
            return False
        installed = find_runtime(self.runtime).available()
        return not self.fixed or not installed.ok or _parse(installed.detail) < _parse(self.fixed)


WORKAROUNDS = (
    Workaround(
        AVERAGE,
        CONCAT,
        "onnxruntime",
        "1.22",
        "the int8 average pool is ten times slower than the float one",
        "test_averages_stay_float",
    ),
    Workaround(
        MAXIMUM,
        CONCAT,
        "onnxruntime",
        "1.22",
        "a QuantizeLinear moves before a float MaxPool, whose int8 kernel is slow",
        "test_quantization_stays_after_a_float_pool",
    ),
    Workaround(
        PRODUCT,
        CONCAT,
        "onnxruntime",
        "1.22",
        "an int8 product and the Add of a computed tensor become a float Gemm",
        "test_products_before_sums_stay_int8",
    ),
    Workaround(
        SILU,
        CONCAT,
        "onnxruntime",
        "1.22",
        "a DequantizeLinear is copied for each consumer, so that a float SiLU is not fused",
        "test_float_silu_is_one_op",
    ),
    Workaround(
        UPSAMPLING,
        "Gather of columns and rows",
        "onnxruntime",
        "1.32",
        "a Resize of int8 images with channels last copies single values",
        "test_upsampling_copies_rows",
    ),
    Workaround(
        CAPTURE,
        "QuantizeLinear and DequantizeLinear",
        "onnxruntime",
        "1.32",
        "a DequantizeLinear moves after a view that subgraphs capture, which ends the process",
        "test_views_that_branches_capture_have_a_pair",
        others=("openvino", "tensorrt"),
    ),
    Workaround(
        SHUFFLE,
        "Max with -inf",
        "openvino",
        "2026.3",
        "the subtraction of the zero point moves after a pixel shuffle, where it is slow in images of one channel",
        "test_zero_points_are_subtracted_before_a_shuffle",
    ),
    Workaround(
        REDUCTION,
        "Max with -inf",
        "openvino",
        "2026.4",
        "a reduction that drops axes, factors of channels and a QuantizeLinear become one kernel with wrong factors",
        "test_factors_after_reductions_are_correct",
    ),
    Workaround(
        PRODUCT_CHAIN,
        "LeakyRelu with alpha 1",
        "openvino",
        "2026.4",
        "a chain of small int8 products becomes one kernel, which quantizes int32 sums without their scale",
        "test_chains_of_products_are_correct",
    ),
    Workaround(
        EXTREME,
        "Max with -inf",
        "openvino",
        "2026.4",
        "a ReduceMax or ReduceMin and a QuantizeLinear become one kernel, which stores integers before it scales",
        "test_quantized_extremes_are_correct",
    ),
    Workaround(
        HIDDEN_SIZE,
        "Max with 0",
        "openvino",
        "2026.4",
        "an int8 convolution from which sizes are computed loses its bias",
        "test_convolutions_before_sizes_keep_their_bias",
    ),
    Workaround(
        FLAT_NORM,
        "Reshape to rows and back",
        "openvino",
        "2026.4",
        "an InstanceNormalization of images computes blocks of 16 channels, also if only one has values",
        "test_few_channels_are_normalized_as_rows",
    ),
    Workaround(
        SHARED_BIAS,
        "copy of the constant",
        "openvino",
        "2026.4",
        "a convolution is not fused with a bias that other convolutions share, nor with the activation after it",
        "test_shared_biases_are_fused",
    ),
    Workaround(
        OUTPUT_LAYOUT,
        "Transpose to channels last and back",
        "openvino",
        "2026.4",
        "the loop that reorders outputs of 16 to 64 channels is up to 20 times as slow as a Transpose",
        "test_outputs_are_transposed",
    ),
    Workaround(
        PAIR_SOFTMAX,
        "Sigmoid of the difference",
        "openvino",
        "2026.4",
        "a Softmax of rows of two classes is three times as slow",
        "test_softmax_of_two_classes_is_a_sigmoid",
    ),
    Workaround(
        CHANNEL_SHUFFLE,
        "Conv with a permutation matrix",
        "openvino",
        "2026.4",
        "both runtimes reorder the image to channels first and back for moves of int8 channels, which takes up to five "
        "times as long",
        "test_shuffles_are_products",
        others=("onnxruntime",),
    ),
)


def is_needed(name: str, runtime: str | None) -> bool:
    """Return True if a file needs a workaround.

    Args:
        name: key of a row of `WORKAROUNDS`.
        runtime: runtime of the file; None for all runtimes of the target.
    """
    return any(row.is_needed(runtime) for row in WORKAROUNDS if row.name == name)


def _parse(version: str) -> tuple[int, ...]:
    """Return the release of a version, without the parts of a build.

    >>> _parse("2026.4.1-22982") < _parse("2026.10")
    True
    """
    return tuple(map(int, re.findall(r"\d+", re.split(r"[-+ ]", version)[0])))
