"""Texts about the speed and the use of the files of a target, from its facts."""

from math import log10

from quantkit.facts import join_names
from quantkit.ir.graph import Graph
from quantkit.quantization.plan import Plan
from quantkit.quantization.targets import Target, targets
from quantkit.quantization.targets.base import is_litert, needs_gpu, splits_patterns
from quantkit.runtimes import find_runtime

# Levels of int8 values above 0 with a zero point, and without one.
UNSIGNED_LEVELS, SIGNED_LEVELS = 255, 127


def find_slow_reason(target: Target) -> str:
    """Return the cause of a latency above that of float; empty if the model can be faster."""
    if needs_gpu(target):
        return "the file is for NVIDIA GPUs: a CPU only shows its accuracy"
    return "the classic ops have only reference kernels on x86" if splits_patterns(target) else ""


def find_faster_target(target: Target) -> Target | None:
    """Return the first target whose files are faster in a common runtime; None for a target that can be fast."""
    if not find_slow_reason(target):
        return None
    others = (other for other in targets().values() if not find_slow_reason(other))
    return next((other for other in others if set(other.runtimes) & set(target.runtimes)), None)


def warn_of_ranges(target: Target, graph: Graph, plan: Plan) -> str:
    """Return the reason, known before calibration, why the quantized model may lose its accuracy; empty without one.

    Args:
        target: target of the quantization.
        graph: float graph.
        plan: plan of ``graph``.
    """
    if needs_gpu(target):
        edges = plan.nonnegative_edges(graph) & plan.activations.keys()
        count = sum(plan.activations[edge].symmetric for edge in edges)
        return _describe_lost_levels(count) if count else ""
    num_depthwise = graph.op_counts.get("DepthwiseConv2dNative", 0)
    faster = find_faster_target(target)
    if not splits_patterns(target) or not num_depthwise or faster is None:
        return ""
    return (
        f"the target {target.name} has one weight range for all channels of a layer, which is not usable for most "
        f"networks with depthwise layers ({num_depthwise} here): --target {faster.name} has a range per channel"
    )


def _describe_lost_levels(count: int) -> str:
    return (
        f"{count} tensors without negative values have half of the levels, as padded convolutions take no zero points: "
        f"their steps are {UNSIGNED_LEVELS} / {SIGNED_LEVELS} times as large, a loss of "
        f"{20 * log10(UNSIGNED_LEVELS / SIGNED_LEVELS):.2f} dB each. Pad ops follow where "
        "that is most of the loss of the outputs; activations 'qint8 affine' in a scheme add them to all"
    )


def advise_threads(target: Target, cores: int) -> str:
    """Return the thread settings to use on a number of cores."""
    options = target.session_options(cores)
    if options.inter_op is not None:
        flags = f"--intra-op {options.intra_op} --inter-op {options.inter_op}"
        return f"intra-op {options.intra_op} and inter-op as many as cores: {flags}"
    if is_litert(target):
        return f"as many threads as cores: --intra-op {cores}"  # LiteRT itself uses one thread
    titles = join_names(find_runtime(name).title for name in target.runtimes)
    return f"keep the default thread settings of {titles}"


def advise_gpu(target: Target) -> str:
    """Return the target of the same kind of file for NVIDIA GPUs, as a sentence; empty without one."""
    if needs_gpu(target):
        return ""
    names = [other.name for other in targets().values() if needs_gpu(other) and other.suffixes == target.suffixes]
    if not names:
        return ""
    return f"for NVIDIA GPUs, use --target {names[0]}: TensorRT refuses this file, or clips its uint8 values"


def describe_weights_only(target: Target) -> str:
    """Return the arithmetic of a model whose weights alone are quantized."""
    return (
        "LiteRT quantizes the inputs of the layers in each call" if is_litert(target) else "all arithmetic is in float"
    )
