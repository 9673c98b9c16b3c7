"""Text and HTML of a profile: the layers side by side, then the facts about each model."""

from collections.abc import Iterator, Sequence
from html import escape

from quantkit.benchmark.profiling.layer_work import COMPUTE_BOUND, MEMORY_BOUND, Peaks
from quantkit.benchmark.profiling.profile import ModelProfile, Profile, ProfileRow
from quantkit.benchmark.results.report import align_columns, format_latency
from quantkit.runtimes.session import CONVERSION

# Number of layers in the text; the JSON form has all.
LIST_LENGTH = 20
OTHER_OPS = "(no layer)"


def profile_text(profile: Profile) -> str:
    """Return the table of the slowest layers, and the facts about each model."""
    columns = range(2, 2 + 2 * len(profile.models), 2)
    table = align_columns([*table_header(profile), *table_rows(profile, LIST_LENGTH)], right=columns)
    return "\n".join((*table, "", *profile_lines(profile)))


def profile_html(profile: Profile) -> str:
    """Return the table of the slowest layers and the facts as HTML."""
    (heading,), rows = table_header(profile), table_rows(profile, LIST_LENGTH)
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    lines = "".join(f"<p>{escape(line)}</p>" for line in profile_lines(profile))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{lines}"


def table_header(profile: Profile) -> list[tuple[str, ...]]:
    """Return the heading: the models, each with a column for the time and one for the precision."""
    models = [cell for model in profile.models for cell in (f"{model.label} ms", model.runtime.name)]
    return [("layer", "op", *models)]


def table_rows(profile: Profile, count: int) -> list[tuple[str, ...]]:
    """Return the slowest layers, and a row with the sum of the others."""
    rows = [_layer_cells(profile, layer) for layer in profile.layers[:count]]
    others = profile.layers[count:]
    if others:
        sums = [sum(model.seconds_of(layer) for layer in others) for model in profile.models]
        cells = [cell for seconds in sums for cell in (format_latency(seconds), "")]
        rows.append((f"{len(others)} more layers", "", *cells))
    return rows


def profile_lines(profile: Profile) -> Iterator[str]:
    """Yield the facts about each model, the peaks, and the notes."""
    for model in profile.models:
        yield from _model_lines(model)
        peaks = profile.peaks.get(model.runtime.name)
        if peaks is not None:
            yield f"  {_bound_text(model, peaks)}"
    for name, peaks in profile.peaks.items():
        yield f"measured peaks in {name}: {peaks_text(peaks)}"
    if profile.reasons:
        yield f"time that limits {profile.models[-1].label}, the largest first:"
    yield from (f"  {reason}" for reason in profile.reasons)
    yield from profile.notes


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


def _layer_cells(profile: Profile, layer: str) -> tuple[str, ...]:
    cells: list[str] = []
    op = ""
    for model in profile.models:
        rows = sorted((row for row in model.rows if row.name == layer), key=lambda row: -row.seconds)
        op = op or next((row.op for row in rows), "")
        precisions = dict.fromkeys(row.precision for row in rows)
        cells += [format_latency(sum(row.seconds for row in rows)) if rows else "-", ", ".join(precisions)]
    return (layer or OTHER_OPS, op, *cells)


def _model_lines(model: ModelProfile) -> Sequence[str]:
    name = f"{model.label} in {model.runtime}"
    return (
        f"{name}: {format_latency(model.untraced_seconds)} ms without a trace; {precision_text(model)}",
        f"  {100 * model.coverage:.1f} % of the time of the ops has a name of the original graph; "
        f"{format_latency(model.overhead_seconds)} ms outside ops; "
        f"the trace changed the latency by {100 * model.tracing_cost:+.0f} % ({model.calls} calls)",
    )


def _bound_text(model: ModelProfile, peaks: Peaks) -> str:
    """Return the fractions of the time in layers that are bound by computation or by memory."""
    seconds = {COMPUTE_BOUND: 0.0, MEMORY_BOUND: 0.0}
    for row in model.rows:
        bound = peaks.bound(row.work, row.seconds, row.precision) if row.work else ""
        if bound:
            seconds[bound] += row.seconds
    compute, memory = (100 * value / max(model.seconds, 1e-12) for value in seconds.values())
    return f"{compute:.0f} % of the time in compute-bound layers, {memory:.0f} % in memory-bound layers"
