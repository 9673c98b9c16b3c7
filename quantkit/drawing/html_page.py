"""Self-contained HTML of reports: one style for all pages, light, dark, narrow and printed.

A page loads no other file, and its content security policy allows no script but its own. The same parts are a page or,
with `html_body`, the result of a notebook cell. `colours.css` is also the style of charts in SVG files.
"""

import base64
from collections.abc import Collection, Iterable
from functools import cache
from hashlib import sha256
from importlib.resources import files

from quantkit.drawing.svg import escape_text

# Number of colours of series in the style sheet: the classes series-0 to series-5.
NUM_SERIES = 6


@cache
def read_style(*names: str) -> str:
    """Return style sheets of this package."""
    return "".join(files("quantkit.drawing").joinpath(name).read_text(encoding="utf-8") for name in names)


def html_page(title: str, parts: Iterable[str], *, style: str = "", script: str = "") -> str:
    """Return an HTML document.

    Args:
        title: title of the window.
        parts: HTML elements of the page.
        style: further style sheet of the page.
        script: script of the page; empty for a page without scripts.
    """
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'" + (f"; script-src 'sha256-{digest}'" if script else "")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>{escape_text(title)}</title>\n'
        f"<style>\n{read_style('colours.css', 'page.css')}{style}</style>"
    )
    body = "\n".join(("<main>", *parts, "</main>", *([f"<script>{script}</script>"] if script else [])))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body class="quantkit">\n{body}\n</body></html>\n'


def html_body(parts: Iterable[str]) -> str:
    """Return HTML elements with their style as one element, for notebooks."""
    style = read_style("colours.css", "page.css")
    return "\n".join((f'<div class="quantkit"><style>{style}</style>', *parts, "</div>"))


def html_section(title: str, *parts: str, is_collapsed: bool = False) -> str:
    """Return a section with a heading; a collapsed one shows its parts after a click."""
    head = f"<h2>{escape_text(title)}</h2>"
    if is_collapsed:
        return "\n".join((f'<details class="part"><summary>{head}</summary>', *parts, "</details>"))
    return "\n".join((f"<section>{head}", *parts, "</section>"))


def html_list(lines: Iterable[str]) -> str:
    """Return lines as a list."""
    return f"<ul>{''.join(f'<li>{escape_text(line.strip())}</li>' for line in lines)}</ul>"


def html_code(text: str) -> str:
    """Return lines of code that can be copied."""
    return "<pre>{}</pre>".format("\n".join(map(escape_text, text.splitlines())))


def html_table(
    titles: Iterable[str],
    rows: Iterable[Iterable[object]],
    numbers: Collection[int] = (),
    marked: Collection[int] = (),
) -> str:
    """Return a table that scrolls sideways on a narrow screen.

    Args:
        titles: headings of the columns.
        rows: cells of each row.
        numbers: indices of the columns with numbers, which are aligned at the right.
        marked: indices of emphasized rows.
    """

    def row_html(tag: str, values: Iterable[object], kind: str = "") -> str:
        cells = (
            f"<{tag}{number if column in numbers else ''}>{escape_text(str(value))}</{tag}>"
            for column, value in enumerate(values)
        )
        return f"<tr{kind}>{''.join(cells)}</tr>"

    number, mark = ' class="number"', ' class="marked"'
    body = "".join(row_html("td", row, mark if index in marked else "") for index, row in enumerate(rows))
    head = row_html("th", titles)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
