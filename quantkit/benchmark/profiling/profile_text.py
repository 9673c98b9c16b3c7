"""Text of a profile: facts about one model, and the peaks of the machine."""

from collections.abc import Sequence

from quantkit.benchmark.profiling.layer_work import COMPUTE_BOUND, MEMORY_BOUND, Peaks
from quantkit.benchmark.profiling.model_profile import ModelProfile, ProfileRow
from quantkit.benchmark.results.report import format_latency
from quantkit.runtimes.session import CONVERSION

# Number of layers in the text; the JSON form has all.
LIST_LENGTH = 20
OTHER_OPS = "(no layer)"


def precision_text(model: ModelProfile) -> str:
    """Return the fractions of the time by precision, and the slowest layer that is not in int8."""
    int8, other, conversions, transfers = (f"{100 * fraction:.0f} %" for fraction in model.fractions.values())
    text = f"{int8} of the time of its ops is in int8, {other} in float, {conversions} in conversions"
    if model.fractions["transfer"]:
        text += f", {transfers} in transfers between devices"
    others = [row for row in model.rows if row.precision != "int8"]
    if not others or not model.fractions["int8"]:
        return text
    slowest = max(others, key=lambda row: row.seconds)
    return f"{text}, above all {row_name(slowest)}"


def row_name(row: ProfileRow) -> str:
    """Return the layer of a row with its op type."""
    if not row.name:
        return row.ops[0]
    return f"a conversion at {row.name}" if row.precision == CONVERSION else f"{row.name} ({row.op})"


def peaks_text(peaks: Peaks) -> str:
    """Return the peaks in GFLOP/s, GOP/s and GB/s."""
    rates = ((peaks.float_operations, "float"), (peaks.int8_operations, "int8"))
    texts = [f"{rate / 1e9:.0f} GFLOP/s in {name}" for rate, name in rates if rate is not None]
    texts = [text.replace("GFLOP", "GOP") if "int8" in text else text for text in texts]
    return ", ".join((*texts, f"{peaks.num_bytes / 1e9:.1f} GB/s copied"))


def model_lines(model: ModelProfile) -> Sequence[str]:
    """Return the lines on the precisions, the coverage and the trace of a model."""
    name = f"{model.label} in {model.runtime}"
    return (
        f"{name}: {format_latency(model.untraced_seconds)} ms without a trace; {precision_text(model)}",
        f"  {100 * model.coverage:.1f} % of the time of the ops has a name of the original graph; "
        f"{format_latency(model.overhead_seconds)} ms outside ops; "
        f"the trace changed the latency by {100 * model.tracing_cost:+.0f} % ({model.calls} calls)",
    )


def bound_text(model: ModelProfile, peaks: Peaks) -> str:
    """Return the fractions of the time in layers that are bound by computation or by memory."""
    seconds = {COMPUTE_BOUND: 0.0, MEMORY_BOUND: 0.0}
    for row in model.rows:
        bound = peaks.bound(row.work, row.seconds, row.precision) if row.work else ""
        if bound:
            seconds[bound] += row.seconds
    compute, memory = (100 * value / max(model.seconds, 1e-12) for value in seconds.values())
    return f"{compute:.0f} % of the time in compute-bound layers, {memory:.0f} % in memory-bound layers"
