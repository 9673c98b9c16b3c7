"""Pages of a drawn graph."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from work import check_work_is_linear

from quantkit.drawing.pages import MAX_BOXES, Page, split_into_pages
from quantkit.ir.graph import Edge, Graph, Node, constant


def build_chain(names: list[str]) -> Graph:
    nodes = [Node("x", "Placeholder")]
    for name in names:
        nodes.append(constant(f"{name}_weights", 1.0))
        nodes.append(Node(name, "Add", (Edge(nodes[-2].name), Edge(f"{name}_weights"))))
    return Graph.of(nodes, ["x"], [nodes[-1].name])


def drawn_once(pages: tuple[Page, ...]) -> list[str]:
    return [item.title for page in pages for item in page.items if item.page is None and not item.is_outside]


def test_small_graph_is_one_page_without_its_constants() -> None:
    (page,) = split_into_pages(build_chain(["a/b", "a/c"]))
    assert [item.title for item in page.items] == ["x", "a/b", "a/c"]
    assert page.edges == ((0, 1, False), (1, 2, False))


def test_scopes_become_boxes() -> None:
    graph = build_chain([f"block{block}/conv{number}" for block in range(6) for number in range(40)])
    first, *blocks = split_into_pages(graph)
    groups = [item for item in first.items if item.page is not None]
    # One block is drawn in place: there is room for it.
    assert [item.title for item in groups] == [f"block{block}/" for block in range(1, 6)]
    assert len(first.items) <= MAX_BOXES
    assert [page.parent for page in blocks] == [0] * 5
    assert [item.title for item in blocks[0].items if item.is_outside] == ["block0/conv39", "block2/conv0"]
    assert (0, 1, False) in blocks[0].edges


def test_scope_comes_after_its_producers_even_if_some_nodes_run_first() -> None:
    late = [
        Node("end/size", "Shape", ()),
        *(Node(f"end/n{number}", "Neg", (Edge("end/size"),)) for number in range(60)),
    ]
    graph = build_chain([f"net/conv{number}" for number in range(60)])
    last = Node("end/last", "Add", (Edge("net/conv59"), Edge("end/n59")))
    (first, *_) = split_into_pages(Graph.of([*late, *graph.nodes.values(), last], ["x"], ["end/last"]))
    assert [item.title for item in first.items] == ["x", "net/", "end/"]
    assert first.edges == ((0, 1, False), (1, 2, False))


def test_mutually_dependent_scopes_have_a_fixed_order() -> None:
    nodes = [Node("x", "Placeholder")]
    for number in range(70):
        for scope in ("a", "b"):
            nodes.append(Node(f"{scope}/n{number}", "Neg", (Edge(nodes[-1].name),)))
    (first, *_) = split_into_pages(Graph.of(nodes, ["x"], ["b/n69"]))
    assert [item.title for item in first.items] == ["x", "a/", "b/"]
    assert {edge[:2] for edge in first.edges} == {(0, 1), (1, 2), (2, 1)}


def test_names_without_scopes_are_divided_in_topological_order() -> None:
    graph = build_chain([f"n{number}" for number in range(200)])
    first, second, *_ = split_into_pages(graph)
    assert first.items[0].title == "x ... n58"
    assert first.edges == ((0, 1, False), (1, 2, False), (2, 3, False))
    assert second.items[0].title == "x"


def test_common_scope_of_all_nodes_has_no_page() -> None:
    graph = build_chain([f"model/block{number % 3}/conv{number}" for number in range(90)])
    titles = [page.title for page in split_into_pages(graph)]
    assert "model/" in titles
    assert {"model/block0/", "model/block1/", "model/block2/"} >= set(titles) - {"", "model/"}


def test_control_dependencies_are_marked() -> None:
    nodes = [Node("x", "Placeholder"), Node("y", "NoOp", (), ("x",))]
    (page,) = split_into_pages(Graph.of(nodes, ["x"], ["y"]))
    assert page.edges == ((0, 1, True),)


names = st.lists(st.text("ab/", min_size=1, max_size=6), min_size=1, max_size=40, unique=True)


@given(names, st.integers(2, 9))
def test_every_node_is_drawn_once_within_the_limit(names: list[str], limit: int) -> None:
    graph = build_chain(names)
    pages = split_into_pages(graph, limit)
    assert sorted(drawn_once(pages)) == sorted(["x", *names])
    for page in pages:
        assert len([item for item in page.items if not item.is_outside]) <= limit
    opened = [item.page for page in pages for item in page.items if item.page is not None]
    assert sorted(opened) == list(range(1, len(pages)))
    assert split_into_pages(graph, limit) == pages


def test_run_time_is_linear() -> None:
    def work(size: int) -> Callable[[], object]:
        graph = build_chain([f"s{number % 7}/n{number}" for number in range(size)])
        _ = graph.order, graph.node_uses
        return lambda: split_into_pages(graph)

    # The depth of the pages is equal at both sizes, and each level visits all nodes once.
    check_work_is_linear(work, 1000)
