"""HTML page of a trace: complete, deterministic, and safe for any node name."""

import base64
import json
import re
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import quantkit.transforms  # noqa: F401  (fills the registry)
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.recipes import parse, run
from quantkit.recipes.page import trace_page

FLOAT = {"T": DType.FLOAT}
HOSTILE = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "<!--<script>", "a\u2028b", "&amp;"]


def graph(names: list[str]) -> Graph:
    nodes = [Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 3))}), constant("two", 2.0)]
    for name in names:
        nodes.append(
            Node(name, "Mul", (Edge(nodes[-1].name if nodes[-1].name != "two" else "x"), Edge("two")), (), FLOAT)
        )
        nodes.append(Node(f"{name}/same", "Identity", (Edge(name),), (), FLOAT, "<b>"))
    return Graph.of(nodes, ["x"], [nodes[-1].name])


def make_page(names: list[str], recipe: str = "remove_nodes(op=Identity)") -> str:
    before = graph(names)
    steps = parse(recipe)
    after, trace = run(steps, before)
    for record in trace.records:
        object.__setattr__(record, "seconds", 0.001)
    return trace_page(replace(trace, model="<model>").document(), before, after)


class Page(HTMLParser):
    """Elements, their attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.scripts[-1] == "":
            self.scripts[-1] = data


def test_hostile_names_are_harmless() -> None:
    page = Page(make_page(HOSTILE))
    assert [attrs.get("type") for tag, attrs in page.elements if tag == "script"] == ["application/json", None]
    assert "img" not in {tag for tag, _ in page.elements}
    assert not any(key.startswith("on") for _, attrs in page.elements for key in attrs)
    data = json.loads(page.scripts[0])
    assert [node["name"] for node in data["before"]["nodes"]][2::2] == HOSTILE
    assert "innerHTML" not in page.scripts[1]


def test_policy_allows_only_the_script_of_the_page() -> None:
    page = Page(make_page(["a"]))
    digest = base64.b64encode(sha256(page.scripts[1].encode()).digest()).decode()
    (policy,) = [attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv")]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_page_loads_no_other_file() -> None:
    text = make_page(["a", "b"])
    assert not re.search(r"\b(src|href)=|url\(|@import|https?://", text)
    assert text.count("<!doctype html>") == 1
    assert "prefers-color-scheme: dark" in text


def test_steps_ops_and_both_graphs_are_shown() -> None:
    text = make_page(["a", "b"], "remove_nodes(op=Identity) fold_constants")
    assert "<title>&lt;model&gt;: 6 -&gt; 5 nodes</title>" in text
    assert "<code>remove_nodes(op=Identity)</code>" in text
    assert "<li>a/same (Identity)</li>" in text
    assert "-1 Identity" in text
    figures = Page(text).elements
    kinds = [attrs["class"] for tag, attrs in figures if tag == "g"]
    assert kinds.count("box gone") == 1
    assert kinds.count("box changed") == 2
    assert "box new" not in kinds


def test_a_conversion_between_two_steps_has_a_row() -> None:
    before = graph(["a", "b"])
    after, trace = run(parse("remove_nodes(op=Identity) fold_pads"), before)
    document = trace.document()
    assert "conversion" not in trace_page(document, before, after)
    document["steps"][1] |= {"nodes_before": 3, "nodes_after": 3}
    page = trace_page(document, before, after)
    assert "<td>conversion to another format</td><td>5 &rarr; 3</td>" in page


def test_results_of_a_verification_have_a_column_only_with_it() -> None:
    before = graph(["a"])
    _, trace = run(parse("remove_nodes(op=Identity)"), before)
    document = trace.document()
    assert "check</th>" not in trace_page(document, before, before)
    document["steps"][0]["check"] = "equal outputs"
    page = trace_page(document, before, before)
    assert "<th>check</th><th>time</th>" in page
    assert "<td>verified: equal outputs</td>" in page


def test_steps_without_changes_are_dimmed() -> None:
    text = make_page(["a", "b"], "remove_nodes(op=Identity) fold_pads")
    rows = [attrs.get("class") for tag, attrs in Page(text).elements if tag == "tr"]
    assert rows[:3] == [None, None, "idle"]


def test_unchanged_graph_is_shown_once_with_collapsed_steps() -> None:
    text = make_page(["a"], "fold_pads fold_constants")
    assert "<title>&lt;model&gt;: nothing to do, 4 nodes</title>" in text
    assert "None of the 2 steps changed a node." in text
    assert "<details><summary><h2>Steps</h2></summary>" in text
    assert '<div class="stage" data-view="after">' in text
    changed = make_page(["a", "b"])
    assert "nothing to do" not in changed
    assert "<details open><summary><h2>Steps</h2></summary>" in changed
    assert '<div class="stage" data-view="">' in changed


def test_both_graphs_are_side_by_side() -> None:
    buttons = [attrs["data-view"] for tag, attrs in Page(make_page(["a"])).elements if tag == "button"]
    assert buttons == ["before", "after", "both"]


def test_functions_have_their_own_scope() -> None:
    before = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[2]()
        call = PartitionedCall(x, Tin=[float], Tout=[float], f=&double)
        y = Neg(call)
        function double(sum = s)
        a = _Arg(T=float, index=0)
        s = Add(a, a)
        end
    """)
    steps = parse("inline_functions remove_unused_functions")
    after, trace = run(steps, before)
    document = trace.document()
    assert [node["name"] for node in document["before"]["functions"]["double"]] == ["a", "s"]
    assert {node["fate"] for node in document["before"]["functions"]["double"]} == {"gone"}
    assert document["after"]["functions"] == {}
    page = Page(trace_page(document, before, after))
    data = json.loads(page.scripts[0])
    (add,) = [node for node in data["before"]["nodes"] if node["op"] == "Add"]
    assert (add["name"], add["inputs"]) == ("functions()/double/s", ["functions()/double/a"] * 2)


def test_equal_traces_give_equal_pages() -> None:
    assert make_page(["a", "b"]) == make_page(["a", "b"])


def test_large_graph_is_split_into_pages() -> None:
    names = [f"block{number % 20}/conv{number}" for number in range(2500)]
    text = make_page(names)
    assert len(text) < 8e6
    data = json.loads(Page(text).scripts[0])
    assert all(node["page"] is not None for node in data["before"]["nodes"] if node["op"] != "Const")
    assert max(svg.count('<g class="box') for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)) <= 60 + 16


def test_labels_of_groups_begin_with_a_name() -> None:
    nodes = [Node("", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, 3))})]
    for number in range(200):
        nodes.append(Node(f"{'long' * 9}{number}", "Neg", (Edge(nodes[-1].name),), (), FLOAT))
    before = Graph.of(nodes, [""], [nodes[-1].name])
    _, trace = run(parse("fold_pads"), before)
    text = trace_page(trace.document(), before, before)
    labels = [label for label in re.findall(r'class="first">([^<]*)', text) if " ... " in label]
    assert labels
    assert all(re.fullmatch(r"…[long]+\d+ \.\.\. …[long]+\d+", label) for label in labels)


def test_document_has_the_state_of_each_node() -> None:
    before = graph(["a"])
    steps = parse("remove_nodes(op=Identity) quantize_weights(minimum_size=1)")
    _, trace = run(steps, before)
    document = trace.document()
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == "quantkit.trace/1"
    fates = {node["name"]: node["fate"] for node in document["before"]["nodes"]}
    assert fates == {"x": "same", "two": "changed", "a": "same", "a/same": "same"}
    two = next(node for node in document["before"]["nodes"] if node["name"] == "two")
    assert two["difference"] == "op 'Const' that is not expected 'Dequantize'"
    assert next(node for node in document["after"]["nodes"] if node["name"] == "two_quantized_min")["fate"] == "new"
    assert document["before"]["nodes"][2]["shapes"] == ["1x3"]
