"""Monitoring result as one self-contained HTML page, light and dark, without scripts and other files."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from quantkit.drawing import TimeSeries, escape_text

if TYPE_CHECKING:
    from quantkit.monitor.report import Monitoring
    from quantkit.monitor.series import Metric

STYLE = """
.monitor { --back: #fff; --ink: #1c1e21; --faint: #6b7280; --rim: #c4c9d1; --face: #f4f5f7; color: var(--ink);
  --c0: #2563eb; --c1: #c2410c; --c2: #15803d; --c3: #a21caf; --c4: #a16207; --c5: #0e7490;
  background: var(--back); font: 14px/1.45 system-ui, sans-serif; padding: 1rem; }
@media (prefers-color-scheme: dark) { .monitor { --back: #16181c; --ink: #e6e7ea; --faint: #9aa1ad; --rim: #464c57;
  --face: #23262c; --c0: #6ea0ff; --c1: #fb923c; --c2: #4ade80; --c3: #e879f9; --c4: #facc15; --c5: #22d3ee; } }
.monitor h1 { font-size: 1.35rem; overflow-wrap: anywhere; } .monitor h2 { font-size: 1.1rem; }
.monitor .charts { display: flex; flex-wrap: wrap; gap: 1rem; }
.monitor figure { flex: 1 1 26rem; min-width: min(100%, 18rem);
  box-sizing: border-box; margin: 0; padding: .5rem; border: 1px solid var(--rim); border-radius: 6px;
  break-inside: avoid; }
.monitor figcaption span { margin-left: .8rem; color: var(--faint); white-space: nowrap; }
.monitor figcaption span::before { content: ""; display: inline-block; width: .8rem; height: .2rem; margin-right: .3rem;
  vertical-align: middle; background: var(--line); }
.monitor svg { display: block; width: 100%; height: auto; } .monitor svg text { fill: var(--faint); font-size: 11px; }
.monitor svg path { fill: none; stroke: var(--line); stroke-width: 1.5; } .monitor .rule { stroke: var(--rim); }
.monitor .line0 { --line: var(--c0); } .monitor .line1 { --line: var(--c1); } .monitor .line2 { --line: var(--c2); }
.monitor .line3 { --line: var(--c3); } .monitor .line4 { --line: var(--c4); } .monitor .line5 { --line: var(--c5); }
.monitor table { border-collapse: collapse; } .monitor .wide { overflow: auto; }
.monitor th { text-align: left; color: var(--faint); font-weight: normal; }
.monitor th, .monitor td { padding: .15rem .9rem .15rem 0; } .monitor tbody tr { border-top: 1px solid var(--rim); }
.monitor li { overflow-wrap: anywhere; } .monitor code { overflow-wrap: anywhere; }
"""
# Background of the whole page, and no access to other files.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body {{ margin: 0; background: #fff; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181c; }} }}</style></head><body>
"""


def html_page(monitoring: "Monitoring") -> str:
    """Return the report of a job as an HTML document."""
    title = escape_text(f"{monitoring.verdict.kind}: {' '.join(monitoring.command) or monitoring.pid}")
    return f"{HEAD.format(title=title)}{html_body(monitoring)}\n</body></html>\n"


def html_body(monitoring: "Monitoring") -> str:
    """Return the report of a job as an HTML element."""
    verdict = monitoring.verdict
    command = " ".join(monitoring.command) or f"process {monitoring.pid}"
    parts = [
        f'<div class="monitor"><style>{STYLE}</style>',
        f"<h1>{escape_text(monitoring.headline)}</h1>",
        f"<p>Next step: {escape_text(verdict.advice)}.</p>",
        f"<p><code>{escape_text(command)}</code></p>",
        *_proof(monitoring),
        "<h2>Evidence</h2>",
        _list([*monitoring.evidence, *(f"not available: {reason}" for reason in monitoring.not_available)]),
        "<h2>Time series</h2>",
        '<div class="charts">',
        *(_chart(metric, monitoring.series.seconds) for metric in monitoring.series.metrics),
        "</div>",
        "<h2>Threads</h2>",
        _threads(monitoring),
        *(f"<p>{escape_text(line)}</p>" for line in monitoring.summary),
        "</div>",
    ]
    return "\n".join(parts)


def _proof(monitoring: "Monitoring") -> Iterator[str]:
    if monitoring.proof:
        yield "<h2>Proof by intervention</h2>"
        yield _list(str(monitoring.proof).splitlines())


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape_text(line.strip())}</li>' for line in lines)}</ul>"


def _chart(metric: "Metric", seconds: tuple[float, ...]) -> str:
    lines = {name: values for name, values in metric.values.items() if any(value is not None for value in values)}
    maximum = 100.0 if metric.measure == "%" else None
    return TimeSeries(metric.title, metric.measure, seconds, lines, maximum).html() if lines else ""


def _threads(monitoring: "Monitoring") -> str:
    cells = [
        (thread.name, thread.pid, thread.tid, f"{thread.cpu:.2f}", f"{thread.queued:.2f}", f"{thread.locked:.0%}")
        for thread in monitoring.facts.threads
    ]
    rows = "".join(f"<tr>{''.join(f'<td>{escape_text(str(cell))}</td>' for cell in row)}</tr>" for row in cells)
    titles = "".join(f"<th>{title}</th>" for title in ("thread", "process", "number", "cores", "queued", "locked"))
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>'
