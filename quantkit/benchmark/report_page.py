"""One self-contained HTML page of a benchmark and a profile: claim, tables, charts, machine and commands."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantkit.benchmark.profiling import Profile
from quantkit.benchmark.profiling.layer_work import Peaks
from quantkit.benchmark.profiling.profile_text import OTHER_OPS
from quantkit.benchmark.profiling.verb import profile_layers
from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Benchmark, format_latency, runtime_text, threads_text
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.selection import find_saved
from quantkit.drawing import escape_text, html_code, html_list, html_page, html_section, html_table
from quantkit.drawing import report_charts as charts
from quantkit.drawing.html_page import NUM_SERIES
from quantkit.errors import UnavailableError
from quantkit.formats.files import write_whole
from quantkit.runtimes import REGISTRY

TITLE = "quantkit benchmark"
# Layers in the chart; the table below it has more.
NUM_LAYERS = 12
PROFILE_NOTE = "These times are those of the profile, a run of its own whose calls differ from those of the benchmark."
ABOVE_NOTE = (
    '<p class="small">Layers above the lines are faster than the peaks measured in the same run: their data stays in '
    "caches, which the copy of large arrays does not use, or other programs delayed the measurement of the peaks.</p>"
)


def save_page(
    path: str | os.PathLike[str],
    benchmark: Benchmark | None = None,
    profile: Profile | None = None,
    command_line: str = "",
) -> None:
    """Write the page, or with the suffix ``.svg`` only the chart of the medians, to a file that appears complete.

    Args:
        path: file with the suffix ``.html``, or ``.svg`` for a chart.
        benchmark: latencies; None if they were not measured.
        profile: time by layer; None if it was not measured.
        command_line: command that measured; empty for the command that repeats the measurements.
    """
    is_chart = Path(path).suffix == ".svg" and benchmark is not None
    text = median_chart(benchmark) if is_chart and benchmark else render_page(benchmark, profile, command_line)
    write_whole(Path(path), lambda file: file.write(text.encode()))


def save_page_with_layers(
    path: str | os.PathLike[str],
    benchmark: Benchmark,
    models: Any,
    *,
    command_line: str = "",
    **options: Any,
) -> None:
    """Measure the time by layer, and write the page; a chart, and the page of a saved benchmark, have no layers.

    A page whose layers cannot be measured has a note with the reason.

    Args:
        path, benchmark, command_line: see `save_page`.
        models, options: arguments of `profile_layers`.

    Raises:
        UsageError, InputError: see `profile_layers`.
    """
    profile = None
    is_saved = find_saved(models) is not None
    if Path(path).suffix != ".svg" and not is_saved:
        try:
            profile = profile_layers(models, **options)
        except UnavailableError as error:
            benchmark = replace(benchmark, notes=(*benchmark.notes, f"layers are not measured: {error.message}"))
    save_page(path, benchmark, profile, "" if is_saved else command_line)


def median_chart(benchmark: Benchmark) -> str:
    """Return the medians with their intervals, the fastest first, as an SVG file."""
    machine = benchmark.measurements[0].context.machine.sentence if benchmark.measurements else ""
    chart = charts.draw_intervals(_bars(benchmark))
    return charts.svg_document(_latency_title(benchmark), machine, _runtime_key(benchmark), chart)


def render_page(benchmark: Benchmark | None, profile: Profile | None, command_line: str = "") -> str:
    """Return the page as HTML; the reasons are those of the profile on the page, if it has some."""
    reasons = (profile.reasons if profile else ()) or (benchmark.reasons if benchmark else ())
    layers = [
        *(_layer_sections(profile) if profile else ()),
        *([_reason_section(reasons, PROFILE_NOTE if profile is None else "")] if reasons else ()),
    ]
    sections = _benchmark_sections(benchmark, layers, command_line) if benchmark else [f"<h1>{TITLE}</h1>", *layers]
    comparison = benchmark and benchmark.baseline_comparison
    shown = {f"  {reason}" for each in (benchmark, profile) if each for reason in each.reasons}
    shown |= set(comparison.lines if comparison else ())
    shown |= {each.context.machine.sentence for each in (benchmark.measurements if benchmark else ())}
    notes = [*(benchmark.messages if benchmark else ()), *(profile.lines if profile else ())]
    notes = [line for line in dict.fromkeys(notes) if line not in shown]
    return html_page(TITLE, [*sections, html_section("Notes", html_list(notes))])


def _benchmark_sections(benchmark: Benchmark, layers: Sequence[str], command_line: str) -> Iterator[str]:
    contexts = [measurement.context for measurement in benchmark.measurements]
    yield f"<h1>{escape_text(_claim(benchmark))}</h1>"
    if benchmark.rivals and not _has_intervals(benchmark):
        yield "<p>These are single medians, without intervals: small differences may be noise.</p>"
    elif benchmark.rivals:
        names = ", ".join(_name(row.measurement) for row in benchmark.rivals if row.measurement)
        yield f"<p>Not shown to be slower: {escape_text(names)}.</p>"
    if contexts:
        time = f"; {contexts[0].started[:16]} UTC" if contexts[0].started else ""
        yield f'<p class="small">{escape_text(contexts[0].machine.sentence)}{time}</p>'
    marked = [index for index, row in enumerate(benchmark.ranked) if row is benchmark.fastest]
    tables = [html_table(titles, rows, right, marked) for titles, rows, right in benchmark.tables(benchmark.ranked)]
    chart = charts.draw_intervals(_bars(benchmark))
    yield html_section(_latency_title(benchmark), charts.html_key(_runtime_key(benchmark)), chart, *tables[:-1])
    if benchmark.baseline_comparison is not None:
        heading, *lines = benchmark.baseline_comparison.lines
        yield html_section("Change since the saved benchmark", f"<p>{escape_text(heading)}</p>", html_list(lines))
    yield from layers
    samples = [
        (_name(each), runtime_series(each.context.runtime), each.seconds)
        for each in (row.measurement for row in benchmark.ranked)
        if each is not None
    ]
    yield html_section("Latency relative to its median", charts.draw_distributions(samples))
    if contexts:
        yield html_section("Load time and memory", tables[-1])
        versions = sorted({f"{context.runtime} {context.version}" for context in contexts})
        machine = f"{contexts[0].machine.system}, Python {contexts[0].machine.python}, {', '.join(versions)}"
        command = html_code(command_line or format_command(contexts))
        yield html_section("Command", command, f'<p class="small">{escape_text(machine)}</p>')


def format_command(contexts: Sequence[MeasurementContext]) -> str:
    """Return the command that repeats the measurements, with the settings of the first one."""
    first = contexts[0]
    flags = {
        "--intra-op": first.intra_op,
        "--inter-op": first.inter_op,
        "--cpus": ",".join(map(str, first.cpus)) or None,
        "--device": None if first.device == "cpu" else first.device,
        "--precision": None if first.precision == "float32" else first.precision,
        "--batch": None if first.batch == 1 else first.batch,
        "--seed": first.seed or None,
    }
    arguments = [text for flag, value in flags.items() if value is not None for text in (flag, str(value))]
    variables = [f"{name}={value}" for name, value in first.environment.items()]
    models = dict.fromkeys(f"{context.model}@{context.runtime}" for context in contexts)
    return " ".join((*map(shlex.quote, variables), shlex.join(("quantkit", "benchmark", *models, *arguments))))


def _layer_sections(profile: Profile) -> Iterator[str]:
    series = _model_series(profile)
    rows = [
        (layer or OTHER_OPS, [1e3 * model.seconds_of(layer) for model in profile.models])
        for layer in profile.layers[:NUM_LAYERS]
    ]
    totals = ", ".join(
        f"{format_latency(model.untraced_seconds)} ms for {each.name}"
        for model, each in zip(profile.models, series, strict=True)
    )
    note = f'<p class="small">{escape_text(f"{PROFILE_NOTE} One call took {totals} there.")}</p>'
    chart = charts.draw_layers(rows, series, "ms")
    yield html_section("Slowest layers", note, charts.html_key(series), chart, profile.html_table())
    for runtime, peaks in profile.peaks.items():
        points = list(_points(profile, runtime, series))
        chart = charts.draw_roofline(points, _peak_rates(peaks), peaks.num_bytes)
        if chart:
            key = charts.html_key(list(dict.fromkeys(point.series for point in points)))
            highest = max(rate for _, rate in _peak_rates(peaks))
            limits = [min(highest, point.intensity * peaks.num_bytes) for point in points]
            is_above = any(point.rate > limit for point, limit in zip(points, limits, strict=True))
            yield html_section(f"Roofline in {runtime}", key, chart, *([ABOVE_NOTE] if is_above else []))


def _points(profile: Profile, runtime: str, series: Sequence[charts.ChartSeries]) -> Iterator[charts.RooflinePoint]:
    for model, own in zip(profile.models, series, strict=True):
        for row in model.rows if model.runtime.name == runtime else ():
            if row.work and row.work.operations and row.work.num_bytes and row.seconds > 0:
                intensity = row.work.operations / row.work.num_bytes
                yield charts.RooflinePoint(row.name, own, intensity, row.work.operations / row.seconds)


def _peak_rates(peaks: Peaks) -> list[tuple[str, float]]:
    rates = (("float", peaks.float_operations), ("int8", peaks.int8_operations))
    return [(f"{name} peak", rate) for name, rate in rates if rate]


def _reason_section(reasons: Iterable[Reason], note: str) -> str:
    items = "".join(
        f"<li>{escape_text(reason.kind)}: {escape_text(reason.text)}{html_code(reason.command)}</li>"
        for reason in reasons
    )
    return html_section(
        "What limits the int8 model", f'<p class="small">{note}</p>' if note else "", f"<ol>{items}</ol>"
    )


def _bars(benchmark: Benchmark) -> list[charts.Bar]:
    """Return one bar for each measured row, the fastest first."""
    speedups = {id(row): speedup for row, speedup in zip(benchmark.rows, benchmark.speedups, strict=True)}
    has_speedup = any(isinstance(each, Speedup) and each.outcome != "undecided" for each in benchmark.speedups)
    fastest = min((each.summary.median for each in benchmark.measurements), default=0.0)
    bars = []
    for row in benchmark.ranked:
        if row.measurement is not None:
            summary, speedup = row.measurement.summary, speedups[id(row)]
            note = "baseline" if speedup is None and has_speedup else ""
            if isinstance(speedup, Speedup) and speedup.outcome != "undecided":
                note = f"{speedup.ratio:.2f}x"
            mark = "" if summary.median > fastest or len(benchmark.measurements) == 1 else "fastest"
            mark = "lowest median" if mark and benchmark.doubt and _has_intervals(benchmark) else mark
            name, series = _name(row.measurement), runtime_series(row.measurement.context.runtime)
            text = f"{format_latency(summary.median)} ms"
            value, low, high = (1e3 * seconds for seconds in (summary.median, summary.low, summary.high))
            bars.append(charts.Bar(name, series, value, low, high, text, note, mark))
    return bars


def _claim(benchmark: Benchmark) -> str:
    """Return the heading: the row with the lowest median, and its speed-up if it is decided."""
    fastest = benchmark.fastest
    if fastest is None or fastest.measurement is None:
        return TITLE
    name = f"{_name(fastest.measurement)}: {format_latency(fastest.measurement.summary.median)} ms"
    if len(benchmark.measurements) == 1:
        return name
    if benchmark.doubt and _has_intervals(benchmark):
        return f"{name}, the lowest median, {benchmark.doubt}"
    speedup = benchmark.speedups[benchmark.rows.index(fastest)]
    if not isinstance(speedup, Speedup) or speedup.outcome != "faster":
        return f"{name}, the fastest on this machine"
    baseline, interval = _name(benchmark.measurements[0]), f"{speedup.low:.2f}-{speedup.high:.2f}"
    return f"{name}, {speedup.ratio:.2f}x as fast as {baseline} (95 % CI {interval})"


def _has_intervals(benchmark: Benchmark) -> bool:
    return any(len(measurement.seconds) > 1 for measurement in benchmark.measurements)


def _latency_title(benchmark: Benchmark) -> str:
    return f"Latency of one call: median{' and 95 % interval' if _has_intervals(benchmark) else ''}"


def _runtime_key(benchmark: Benchmark) -> list[charts.ChartSeries]:
    return [runtime_series(name) for name in dict.fromkeys(each.context.runtime for each in benchmark.measurements)]


def runtime_series(runtime: str, opacity: float = 1.0, name: str = "") -> charts.ChartSeries:
    """Return the appearance of a runtime, which is the same on all pages."""
    names = list(REGISTRY.objects())
    colour = names.index(runtime) if runtime in names else len(names)
    return charts.ChartSeries(name or runtime, colour % NUM_SERIES, opacity)


def _model_series(profile: Profile) -> list[charts.ChartSeries]:
    """Return the appearance of each model: the colour of its runtime, the last model of a runtime the strongest."""
    runtimes = [model.runtime.name for model in profile.models]
    return [
        runtime_series(
            name,
            1 - 0.7 * (1 - (1 + runtimes[:index].count(name)) / runtimes.count(name)),
            f"{profile.models[index].label} in {name}",
        )
        for index, name in enumerate(runtimes)
    ]


def _name(measurement: Measurement) -> str:
    """Return model and runtime, with the thread options that differ from the default."""
    context = measurement.context
    threads = threads_text(context)
    name = f"{context.model} in {runtime_text(context)}"
    return name if threads == "default" else f"{name}, threads {threads}"
