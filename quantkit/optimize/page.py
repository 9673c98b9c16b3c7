"""One self-contained HTML page of a search: the recommendation, the front, all candidates, and the lines to copy."""

import os
from collections.abc import Iterator
from pathlib import Path

from quantkit.benchmark.report_page import runtime_series
from quantkit.benchmark.results.report import format_latency
from quantkit.drawing import escape_text, html_code, html_list, html_page, html_section, html_table
from quantkit.drawing import report_charts as charts
from quantkit.formats.files import write_whole
from quantkit.optimize.result import SPEEDUP_NOTE, TITLES, Optimization, cells
from quantkit.optimize.search import Choice
from quantkit.runtimes import find_runtime

# Candidates in the chart; the table below it has all.
NUM_BARS = 12


def save_page(path: str | os.PathLike[str], result: Optimization) -> None:
    """Write the page to a file that appears complete or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    text = html_page("quantkit optimize", _sections(result))
    write_whole(Path(path), lambda file: file.write(text.encode()))


def _sections(result: Optimization) -> Iterator[str]:
    use, _, proof = result.answer.partition(": ")
    yield f"<h1>{escape_text(use[:1].upper() + use[1:])}</h1>"
    yield f'<p class="claim">{escape_text(proof[:1].upper() + proof[1:])}</p>'
    if not result.is_complete:
        yield "<p>The search was interrupted: a later one may find a faster file.</p>"
    yield f'<p class="small">{escape_text(result.machine.sentence)}</p>'
    shown = result.choices[:NUM_BARS]
    names = sorted({each.candidate.settings.runtime for each in shown})
    key = [runtime_series(name, name=find_runtime(name).title) for name in names]
    bars = charts.draw_intervals([_bar(result, each) for each in shown])
    yield html_section("Latency of the fastest candidates", charts.html_key(key), bars)
    marked = [index for index, each in enumerate(result.front) if each.name == result.best.name]
    front = html_table(TITLES, map(cells, result.front), range(1, 6), marked)
    note = f'<p class="small">{SPEEDUP_NOTE[:1].upper() + SPEEDUP_NOTE[1:]}.</p>'
    yield html_section("Candidates that no other one beats in latency, drop and size", front, note)
    yield html_section("All others", html_list(f"{name}: {reason}" for name, reason in result.reasons))
    settings = result.settings
    texts = {"Command line": settings.command, "Python": settings.python}
    if settings.native:
        texts[find_runtime(result.best.candidate.settings.runtime).title] = settings.native
    for title, text in texts.items():
        yield html_section(title, html_code(text))


def _bar(result: Optimization, choice: Choice) -> charts.Bar:
    """Return the latency of a candidate; its interval is that of its speed-up."""
    runtime = choice.candidate.settings.runtime
    series = runtime_series(runtime, name=find_runtime(runtime).title)
    low = high = choice.seconds
    if choice.speedup is not None:
        low, high = (choice.seconds * choice.ratio / limit for limit in (choice.speedup.high, choice.speedup.low))
    is_out = choice.drop is not None and choice.drop.high > result.goal.max_drop
    note = "drop too large" if is_out else "drop unknown" if choice.drop is None and not choice.is_float32 else ""
    return charts.Bar(
        choice.name,
        series,
        1000 * choice.seconds,
        1000 * low,
        1000 * high,
        f"{format_latency(choice.seconds)} ms",
        note,
        "best" if choice.name == result.best.name else "",
    )
