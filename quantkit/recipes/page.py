"""A trace as one self-contained HTML page: the steps, the op counts, and both graphs as drawings.

The layout is computed here; the script of the page shows and hides parts, and writes names as text only. The content
security policy of the page allows no other script and no other file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from quantkit.drawing import BoxStyle, Item, Page, escape_text, html_page, render_svg, split_into_pages
from quantkit.ir.graph import Graph
from quantkit.recipes.graph_documents import CHANGED, SAME, function_bodies

# Maximum number of listed changes or skips of one step; the JSON document has all.
MAX_LINES = 300


def trace_page(document: Mapping[str, Any], before: Graph, after: Graph) -> str:
    """Return the page of a trace.

    Args:
        document: result of `Trace.document`.
        before, after: graphs before and after the run.

    Returns:
        An HTML document that opens from disk; equal traces give equal documents.
    """
    graphs = {"before": _with_bodies(before), "after": _with_bodies(after)}
    pages = {key: split_into_pages(graph) for key, graph in graphs.items()}
    nodes = {key: _with_functions(document[key]) for key in graphs}
    is_same = all(node["fate"] == SAME for key in graphs for node in nodes[key])
    count = f"nothing to do, {len(after)} nodes" if is_same else f"{len(before)} -> {len(after)} nodes"
    title = f"{document['model']}: {count}"
    number = len(document["steps"])
    has_results = any(_results(step) for step in document["steps"])
    body = Template(_part("page.html")).substitute(
        title=escape_text(title),
        recipe=escape_text(document["recipe"]),
        summary=f'<p class="note">None of the {number} steps changed a node.</p>' if is_same else "",
        open="" if is_same else " open",
        view="after" if is_same else "",
        check="<th>check</th>" if has_results else "",
        steps="\n".join(_steps(document["steps"], has_results)),
        ops=_ops(document["before"]["op_counts"], document["after"]["op_counts"]),
        before=_figures(pages["before"], nodes["before"]),
        after=_figures(pages["after"], nodes["after"]),
        data=_data(nodes, pages),
    )
    return html_page(title, [body], style=_part("page.css"), script=_part("page.js"))


def _with_bodies(graph: Graph) -> Graph:
    """Return the graph with the nodes of its functions, each function in its own name scope."""
    nodes = [*graph.nodes.values()]
    for name, body in function_bodies(graph).items():
        scope = _scope(name)
        for node in body.nodes.values():
            inputs = tuple(edge._replace(node=scope + edge.node) for edge in node.inputs)
            controls = tuple(scope + control for control in node.controls)
            nodes.append(node.with_(name=scope + node.name, inputs=inputs, controls=controls))
    return graph.with_nodes(nodes)


def _with_functions(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of one graph; those of its functions have the names that `_with_bodies` gives them."""
    nodes = list(document["nodes"])
    for name, body in document["functions"].items():
        scope = _scope(name)
        for node in body:
            edges = {key: [scope + edge for edge in node[key]] for key in ("inputs", "controls")}
            nodes.append({**node, **edges, "name": scope + node["name"]})
    return nodes


def _scope(function: str) -> str:
    return f"functions()/{function}/"


def _part(name: str) -> str:
    return files("quantkit.recipes").joinpath(name).read_text(encoding="utf-8")


def _results(step: Mapping[str, Any]) -> list[str]:
    """Return the results of the verification of a step."""
    titles = {"check": "verified", "undone": "undone", "ignored_error": "ignored"}
    return [f"{title}: {step[key]}" for key, title in titles.items() if step[key]]


def _steps(steps: Sequence[Mapping[str, Any]], has_results: bool) -> Iterator[str]:
    """Yield a row for each step, and one for each conversion to another format between two steps."""
    for number, step in enumerate(steps, 1):
        before = steps[number - 2]["nodes_after"] if number > 1 else step["nodes_before"]
        if before != step["nodes_before"]:
            cells = ("", "conversion to another format", f"{before} &rarr; {step['nodes_before']}")
            yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in (*cells, *[''] * (3 + has_results)))}</tr>"
        yield _step(number, step, has_results)


def _step(number: int, step: Mapping[str, Any], has_results: bool) -> str:
    ops = ", ".join(f"{count:+} {op}" for op, count in step["ops"].items())
    skips = [f"{skip['node']}: {skip['reason']}" if skip["node"] else skip["reason"] for skip in step["skips"]]
    cells = (
        str(number),
        f"<code>{escape_text(step['transform'])}</code>",
        f"{step['nodes_before']} &rarr; {step['nodes_after']}",
        escape_text(ops),
        _list("changed", step["changes"]) + _list("skipped", skips),
        *([escape_text("; ".join(_results(step)))] if has_results else []),
        f"{step['seconds'] * 1e3:.0f} ms",
    )
    is_idle = not (step["changes"] or step["ops"] or step["ignored_error"])
    kind = ' class="undone"' if step["undone"] else ' class="idle"' if is_idle else ""
    return f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _list(title: str, lines: list[str]) -> str:
    if not lines:
        return ""
    more = f"<li>{len(lines) - MAX_LINES} more</li>" if len(lines) > MAX_LINES else ""
    items = "".join(f"<li>{escape_text(line)}</li>" for line in lines[:MAX_LINES])
    return f"<details><summary>{title} {len(lines)}</summary><ul>{items}{more}</ul></details>"


def _ops(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    largest = max([1, *before.values(), *after.values()])
    rows = []
    for op in sorted({*before, *after}, key=lambda op: (-before.get(op, 0), op)):
        old, new = before.get(op, 0), after.get(op, 0)
        kind = "same" if old == new else "gone" if not new else "new" if not old else "changed"
        bars = "".join(
            f'<i class="{name}" style="width:{100 * count / largest:.1f}%"></i>'
            for name, count in (("old", old), ("now", new))
        )
        rows.append(
            f'<tr class="{kind}"><td>{escape_text(op)}</td><td>{old}</td><td>{new}</td>'
            f'<td class="bars">{bars}</td></tr>'
        )
    return "\n".join(rows)


def _figures(pages: tuple[Page, ...], nodes: list[dict[str, Any]]) -> str:
    numbers = {node["name"]: number for number, node in enumerate(nodes)}

    def style(item: Item) -> BoxStyle:
        if item.page is not None:
            return _group_style(item, [nodes[numbers[name]] for name in item.nodes])
        number = numbers[item.nodes[0]]
        return _node_style(item, nodes[number], number)

    return "\n".join(
        f'<figure data-number="{number}">{render_svg(page, style)}</figure>' for number, page in enumerate(pages)
    )


def _group_style(item: Item, nodes: list[Mapping[str, Any]]) -> BoxStyle:
    fates = [node["fate"] for node in nodes if node["fate"] != SAME]
    counts = ", ".join(f"{fates.count(fate)} {fate}" for fate in sorted({*fates}))
    lines = (item.title, f"{len(nodes)} nodes", *([counts] if counts else []))
    return BoxStyle(lines, f"group {CHANGED if counts else SAME}", None, item.page, f"{item.title}: opens a page")


def _node_style(item: Item, node: Mapping[str, Any], number: int) -> BoxStyle:
    shape = ", ".join(node["shapes"])
    attributes = [f"{key}: {value}" for key, value in node["attributes"].items()]
    hint = "\n".join([f"{node['op']} {node['name']}", shape, node["difference"], *attributes])
    kind = "outside" if item.is_outside else node["fate"]
    return BoxStyle((node["op"], node["name"], shape), kind, number, None, hint)


def _data(nodes: Mapping[str, list[dict[str, Any]]], pages: Mapping[str, tuple[Page, ...]]) -> str:
    """Return both graphs for the script of the page as JSON without characters that could end the script element."""
    data = {}
    for key, graph_pages in pages.items():
        page_of_node = {
            item.nodes[0]: number
            for number, page in enumerate(graph_pages)
            for item in page.items
            if item.page is None and not item.is_outside
        }
        data[key] = {
            "pages": [{"title": page.title, "parent": page.parent} for page in graph_pages],
            "nodes": [{**node, "page": page_of_node.get(node["name"])} for node in nodes[key]],
        }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
