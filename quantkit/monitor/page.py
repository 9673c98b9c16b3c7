"""Parts of a self-contained HTML page, light, dark and printed, without scripts and other files."""

from collections.abc import Iterable

from quantkit.drawing import TimeSeries, escape_text
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
@media print { .monitor { --back: #fff; --ink: #000; --faint: #444; --rim: #999; --face: #fff; padding: 0;
  --c0: #2563eb; --c1: #c2410c; --c2: #15803d; --c3: #a21caf; --c4: #a16207; --c5: #0e7490; }
  .monitor h2 { break-after: avoid; } .monitor .wide { overflow: visible; } }
"""
# Background of the whole page, and no access to other files.
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body {{ margin: 0; background: #fff; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181c; }} }}
@media print {{ body {{ background: #fff; }} }}</style></head><body>
"""


def html_page(title: str, body: str) -> str:
    """Return an HTML document with the result of `html_body`."""
    return f"{HEAD.format(title=escape_text(title))}{body}\n</body></html>\n"


def html_body(parts: Iterable[str]) -> str:
    """Return HTML elements with their style as one element."""
    return "\n".join([f'<div class="monitor"><style>{STYLE}</style>', *parts, "</div>"])


def html_list(lines: Iterable[str]) -> str:
    """Return lines as a list."""
    return f"<ul>{''.join(f'<li>{escape_text(line.strip())}</li>' for line in lines)}</ul>"


def html_chart(metric: Metric, seconds: tuple[float, ...]) -> str:
    """Return the chart of a metric; empty without values."""
    lines = {name: values for name, values in metric.values.items() if any(value is not None for value in values)}
    maximum = 100.0 if metric.measure == "%" else None
    return TimeSeries(metric.title, metric.measure, seconds, lines, maximum).html() if lines else ""


def html_table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return an HTML table with a row of headings."""
    head = "".join(f"<th>{escape_text(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape_text(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
