"""One self-contained HTML page of a benchmark and a profile: claim, tables, charts, machine and commands."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any, Unpack

from quantkit.benchmark.profiling import Profile
from quantkit.benchmark.profiling.layer_work import Peaks
from quantkit.benchmark.profiling.profile_text import LIST_LENGTH, OTHER_OPS
from quantkit.benchmark.profiling.verb import profile_layers
from quantkit.benchmark.results.measurement import Measurement, MeasurementContext
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import Benchmark, fastest_line
from quantkit.benchmark.sampling.selection import CandidateOptions
from quantkit.drawing import html_page
from quantkit.drawing import report_charts as charts
from quantkit.errors import UnavailableError
from quantkit.formats.files import write_whole
from quantkit.progress import OnProgress, ignore_progress

TITLE = "quantkit benchmark"


def save_page(path: str | os.PathLike[str], benchmark: Benchmark | None = None, profile: Profile | None = None) -> None:
    """Write the page, or with the suffix ``.svg`` only the chart of the medians, to a file that appears complete.

    Args:
        path: file with the suffix ``.html``, or ``.svg`` for a chart.
        benchmark: latencies; None if they were not measured.
        profile: time by layer; None if it was not measured.
    """
    is_chart = Path(path).suffix == ".svg" and benchmark is not None
    text = median_chart(benchmark) if is_chart and benchmark else render_page(benchmark, profile)
    write_whole(Path(path), lambda file: file.write(text.encode()))


def save_page_with_layers(
    path: str | os.PathLike[str],
    benchmark: Benchmark,
    models: Any,
    *,
    on_progress: OnProgress = ignore_progress,
    **options: Unpack[CandidateOptions],
) -> None:
    """Measure the time by layer, unless the file is a chart or no runtime measures ops, and write the page.

    Args:
        path, benchmark: see `save_page`.
        models, on_progress, options: see `profile_layers`.

    Raises:
        UsageError, InputError: see `profile_layers`.
    """
    profile = None
    if Path(path).suffix != ".svg":
        with suppress(UnavailableError):
            profile = profile_layers(models, on_progress=on_progress, **options)
    save_page(path, benchmark, profile)


def median_chart(benchmark: Benchmark) -> str:
    """Return the medians with their intervals as an SVG file."""
    return charts.as_document(charts.draw_intervals(_interval_rows(benchmark), "ms"))


def render_page(benchmark: Benchmark | None, profile: Profile | None) -> str:
    """Return the page as HTML."""
    sections = [
        f"<h1>{TITLE}</h1>",
        *(_benchmark_sections(benchmark) if benchmark else ()),
        *(_profile_sections(profile) if profile else ()),
    ]
    return html_page(TITLE, (f"<section>{section}</section>" for section in sections))


def _benchmark_sections(benchmark: Benchmark) -> Iterator[str]:
    contexts = [measurement.context for measurement in benchmark.measurements]
    claim = "" if benchmark.fastest is None else fastest_line(benchmark.fastest, benchmark.rivals)
    yield f'<p class="claim">{escape(claim)}</p>'
    yield f'<h2>Latency</h2><div class="wide">{charts.draw_intervals(_interval_rows(benchmark), "ms")}</div>'
    yield f'<div class="wide">{benchmark._repr_html_()}</div>'
    samples = [(_name(each), [1e3 * seconds for seconds in each.seconds]) for each in benchmark.measurements]
    yield f'<h2>Distributions</h2><div class="wide">{charts.draw_distributions(samples, "ms")}</div>'
    yield from _reason_section(benchmark.reasons)
    if contexts:
        machine = contexts[0].machine
        yield f"<h2>Machine</h2><p>{escape(machine.sentence)}; {escape(machine.system)}, Python {machine.python}</p>"
        versions = sorted({f"{context.runtime} {context.version}" for context in contexts})
        yield f"<h2>Commands</h2><pre>{escape(command_line(contexts))}</pre><p>{escape(', '.join(versions))}</p>"


def command_line(contexts: Sequence[MeasurementContext]) -> str:
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


def _profile_sections(profile: Profile) -> Iterator[str]:
    keys = "".join(
        f'<span class="key" style="background:var(--series-{index % 4})"></span>'
        f"{escape(f'{model.label} in {model.runtime}')}"
        for index, model in enumerate(profile.models)
    )
    rows = [
        (layer or OTHER_OPS, [1e3 * model.seconds_of(layer) for model in profile.models])
        for layer in profile.layers[:LIST_LENGTH]
    ]
    yield f'<h2>Layers</h2><p>{keys}</p><div class="wide">{charts.draw_layers(rows, "ms")}</div>'
    yield f'<div class="wide">{profile._repr_html_()}</div>'
    for runtime, peaks in profile.peaks.items():
        chart = charts.draw_roofline(list(_points(profile, runtime)), _peak_rates(peaks), peaks.num_bytes)
        if chart:
            yield f'<h2>Roofline in {escape(runtime)}</h2><p>{keys}</p><div class="wide">{chart}</div>'
    yield from _reason_section(profile.reasons)


def _points(profile: Profile, runtime: str) -> Iterator[charts.RooflinePoint]:
    for index, model in enumerate(profile.models):
        for row in model.rows if model.runtime.name == runtime else ():
            if row.work and row.work.operations and row.work.num_bytes and row.seconds > 0:
                intensity = row.work.operations / row.work.num_bytes
                yield charts.RooflinePoint(row.name, index, intensity, row.work.operations / row.seconds)


def _peak_rates(peaks: Peaks) -> list[tuple[str, float]]:
    rates = (("float", peaks.float_operations), ("int8", peaks.int8_operations))
    return [(f"{name} peak", rate) for name, rate in rates if rate]


def _reason_section(reasons: Iterable[Reason]) -> Iterator[str]:
    items = "".join(
        f"<li>{escape(reason.kind)}: {escape(reason.text)}<pre>{escape(reason.command)}</pre></li>"
        for reason in reasons
    )
    if items:
        yield f"<h2>What limits the int8 model</h2><ol>{items}</ol>"


def _interval_rows(benchmark: Benchmark) -> list[tuple[str, float, float, float]]:
    return [
        (_name(each), 1e3 * each.summary.median, 1e3 * each.summary.low, 1e3 * each.summary.high)
        for each in benchmark.measurements
    ]


def _name(measurement: Measurement) -> str:
    return f"{measurement.context.model} in {measurement.context.runtime}"
