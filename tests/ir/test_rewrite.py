from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from work import check_work_is_linear

from quantkit.errors import GraphError, RecipeError
from quantkit.ir.check import verify
from quantkit.ir.graph import Edge, Graph, Node
from quantkit.ir.pattern import any_, op
from quantkit.ir.rewrite import Skip, apply_rules, free_name, rule, sharing_reason
from quantkit.ir.text import from_text, to_text


@rule(op("Neg")(op("Neg", "inner")(any_("x"))))
def twice(graph: Graph, root: Node, inner: Node) -> list[Node] | Skip:
    """-(-x) is x."""
    shared = sharing_reason(graph, inner, root)
    return Skip(shared) if shared else [root.with_(op="Identity", inputs=inner.inputs)]


@rule(op("Square"))
def written_out(graph: Graph, root: Node) -> list[Node]:
    copy = Node(free_name(graph, f"{root.name}/copy"), "Identity", root.inputs)
    return [copy, Node("product", "Mul", (root.inputs[0], Edge(copy.name)))]


def rewritten(text: str, *rules: object) -> str:
    before = from_text(text)
    outcome = apply_rules(before, *rules)  # type: ignore[arg-type]
    verify(outcome.graph)
    assert before == from_text(text)
    return "\n".join(line for line in to_text(outcome.graph).splitlines() if "Placeholder" not in line)


def test_last_node_takes_over_name_and_consumers_and_others_come_before_it() -> None:
    text = "outputs: b\nx = Placeholder()\na = Square(x)\nb = Relu(a)"
    assert rewritten(text, written_out) == "outputs: b\na/copy = Identity(x)\na = Mul(x, a/copy)\nb = Relu(a)"


def test_name_in_use_gets_a_number() -> None:
    text = "outputs: a, a/copy\nx = Placeholder()\na/copy = Relu(x)\na = Square(x)"
    assert "a/copy_1 = Identity(x)" in rewritten(text, written_out)


def test_nodes_without_consumers_are_removed() -> None:
    text = "outputs: c\nx = Placeholder()\na = Neg(x)\nb = Neg(a)\nc = Relu(b)"
    assert rewritten(text, twice) == "outputs: c\nb = Identity(x)\nc = Relu(b)"


def test_an_output_stays() -> None:
    outcome = apply_rules(from_text("outputs: a, b\nx = Placeholder()\na = Neg(x)\nb = Neg(a)"), twice)
    assert outcome.skips == (Skip("a is an output of the graph", "b"),)
    assert not outcome.changes


def test_rules_match_rewritten_nodes() -> None:
    text = "outputs: d\nx = Placeholder()\na = Square(x)\nb = Neg(a)\nc = Neg(b)\nd = Square(c)"
    after = rewritten(text, twice, written_out)
    first, second = "a/copy = Identity(x)\na = Mul(x, a/copy)", "d/copy = Identity(c)\nd = Mul(c, d/copy)"
    assert after == f"outputs: d\n{first}\nc = Identity(a)\n{second}"


def test_changes_name_old_and_new_op_of_the_root() -> None:
    outcome = apply_rules(from_text("outputs: a\nx = Placeholder()\na = Square(x)"), written_out)
    assert outcome.changes == ("a (Square -> Mul) with a/copy (Identity)",)


def test_skips_are_those_of_the_final_graph_in_file_order() -> None:
    text = "outputs: b, d, e\nx = Placeholder()\na = Neg(x)\nb = Neg(a)\nc = Neg(x)\nd = Neg(c)\ne = Add(a, c)"
    assert [str(skip) for skip in apply_rules(from_text(text), twice).skips] == [
        "b: a is shared: e is a consumer too",
        "d: c is shared: e is a consumer too",
    ]


def test_skip_stops_further_rules_for_the_root() -> None:
    @rule(op("Neg"))
    def never(graph: Graph, root: Node) -> Skip:
        return Skip("first")

    @rule(op("Neg"))
    def too_late(graph: Graph, root: Node) -> list[Node]:
        raise AssertionError

    outcome = apply_rules(from_text("x = Placeholder()\na = Neg(x)"), never, too_late)
    assert [str(skip) for skip in outcome.skips] == ["a: first"]


def test_new_root_takes_over_control_dependencies() -> None:
    text = "outputs: b\nx = Placeholder()\np = Print(x)\nq = Print(x)\na = Neg(x, ^p)\nb = Neg(a, ^q)"
    assert rewritten(text, twice).splitlines()[-1] == "b = Identity(x, ^q, ^p)"


def test_node_with_control_dependents_only_is_kept() -> None:
    text = "outputs: b, c\nx = Placeholder()\na = Neg(x)\nb = Neg(a)\nc = Relu(x, ^a)"
    assert "a = Neg(x)" in rewritten(text, twice)


def test_control_dependents_of_a_moved_node_depend_on_its_inputs() -> None:
    @rule(op("Relu")(op("Neg", "inner")))
    def merge(graph: Graph, inner: Node) -> list[Node]:
        return [inner.with_attrs(relu=True)]

    text = "outputs: b, c\nx = Placeholder()\ny = Placeholder()\na = Neg(x)\nb = Relu(a, ^c)\nc = Relu(y, ^a)"
    after = from_text(rewritten(text, merge))
    assert after["c"].controls == ("x",)
    assert after["b"].controls == ("c",)
    assert "a" not in after


def test_rule_that_matches_without_end_is_an_error() -> None:
    @rule(op("Neg"))
    def again(graph: Graph, root: Node) -> list[Node]:
        return [root.with_attrs(turn=1)]

    with pytest.raises(GraphError, match="never stops rewriting: a"):
        apply_rules(from_text("x = Placeholder()\na = Neg(x)"), again)


def test_dangling_input_is_an_error() -> None:
    with pytest.raises(GraphError, match="node 'b' .* has input 'a', which is not in the graph"):
        apply_rules(from_text("b = Neg(a)"), twice)


def test_graph_without_matches_is_the_same_object() -> None:
    graph = from_text("outputs: a, b\nx = Placeholder()\na = Neg(x)\nb = Neg(a)")
    assert apply_rules(graph, twice, written_out).graph is graph


def test_rule_gets_current_consumers_and_uses() -> None:
    observed: list[tuple[int, int]] = []

    @rule(op("Relu"))
    def look(graph: Graph, root: Node) -> Sequence[Node] | None:
        observed.append((len(graph.node_uses["a"]), len(graph.uses[Edge("a")])))
        assert all(use.node is graph[use.node.name] for use in graph.node_uses["a"])
        return None

    text = "outputs: c\nx = Placeholder()\na = Exp(x)\nb = Square(a, ^a)\nc = Relu(b)"
    apply_rules(from_text(text), written_out, look)
    assert observed == [(3, 2), (3, 2)]


def test_sharing_reason() -> None:
    graph = from_text("""
        inputs: x
        outputs: c
        x = Placeholder()
        a = Neg(x)
        b = Add(a, a)
        c = Relu(b, ^a)
        d = Relu(b)
    """)
    assert sharing_reason(graph, graph["a"], graph["b"]) == "a is an input of b twice"
    assert sharing_reason(graph, graph["b"], graph["c"]) == "b is shared: d is a consumer too"
    assert sharing_reason(graph, graph["c"], graph["d"]) == "c is an output of the graph"
    assert sharing_reason(graph, graph["x"], graph["a"]) == "x is an input of the graph"
    assert sharing_reason(graph, graph["d"], graph["c"]) == ""


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Nodes of the rules' ops and others, with control inputs, in any file order."""
    nodes = [Node("x", "Placeholder")]
    for number in range(draw(st.integers(1, 20))):
        before = st.sampled_from([node.name for node in nodes])
        kind = draw(st.sampled_from(["Neg", "Neg", "Square", "Add", "Relu"]))
        inputs = tuple(Edge(draw(before)) for _ in range(2 if kind == "Add" else 1))
        controls = (draw(before),) if draw(st.integers(0, 3)) == 0 else ()
        nodes.append(Node(f"n{number}", kind, inputs, controls))
    outputs = draw(st.lists(st.sampled_from([node.name for node in nodes]), min_size=1, max_size=2, unique=True))
    return Graph.of(draw(st.permutations(nodes)), ["x"], outputs)


@given(graphs())
def test_any_graph_stays_valid_and_is_rewritten_to_the_end(graph: Graph) -> None:
    outcome = apply_rules(graph, twice, written_out)
    verify(outcome.graph)
    assert set(outcome.graph.order) == set(outcome.graph.nodes)
    assert (outcome.graph.inputs, outcome.graph.outputs) == (graph.inputs, graph.outputs)
    assert "Square" not in outcome.graph.op_counts
    again = apply_rules(outcome.graph, twice, written_out)
    assert (again.graph, again.changes) == (outcome.graph, ())
    assert [skip.node for skip in again.skips] == [skip.node for skip in outcome.skips]


@pytest.mark.parametrize("kind", ["Neg", "Square", "Relu"])
def test_run_time_is_linear(kind: str) -> None:
    def work(length: int) -> Callable[[], object]:
        names = ["x", *(f"n{number}" for number in range(length))]
        nodes = [Node(name, kind, (Edge(before),)) for before, name in pairwise(names)]
        graph = Graph.of([Node("x", "Placeholder"), *nodes], ["x"], [names[-1]])
        return lambda: apply_rules(graph, twice, written_out)

    check_work_is_linear(work, 50)


def test_text_inputs_are_parsed_as_edges() -> None:
    assert Node("a", "Split").with_(inputs=(Edge("axis"), "x:1")).inputs == (Edge("axis"), Edge("x", 1))
    assert Node("a", "Neg", ("x",)).inputs == (Edge("x"),)  # type: ignore[arg-type]

    @rule(op("Relu"))
    def negate(graph: Graph, root: Node) -> list[Node]:
        return [root.with_(op="Neg", inputs=("parts:1",))]

    text = "outputs: y\naxis = Const[int32](0)\nx = Placeholder[4]()\nparts = Split(axis, x)\ny = Relu(x)"
    assert rewritten(text, negate).splitlines()[-1] == "y = Neg(parts:1)"


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (lambda root: root, "returns Node, for root 'y'"),
        (lambda root: [root, "x"], "returns str among the nodes"),
        (
            lambda root: [root.with_(op="Neg", inputs=(root,))],
            "returns node 'y', whose input .* is of type Node, for root 'y'",
        ),
    ],
)
def test_malformed_result_names_the_rule_and_its_line(result: Callable[[Node], list[Node]], problem: str) -> None:
    @rule(op("Relu"))
    def replace_relu(graph: Graph, root: Node) -> list[Node]:
        return result(root)

    message = rf"test_rewrite\.py, line \d+: rule replace_relu: Relu {problem}"
    with pytest.raises(RecipeError, match=message):
        apply_rules(from_text("x = Placeholder()\ny = Relu(x)"), replace_relu)


def test_unbound_parameter_is_an_error_at_registration() -> None:
    message = r"test_rewrite\.py, line \d+: the pattern does not bind parameter 'weights' of rule 'fold'"
    with pytest.raises(RecipeError, match=message) as caught:

        @rule(op("MatMul")(any_("x"), any_()))
        def fold(graph: Graph, x: Node, weights: Node) -> list[Node]:
            return [x]

    assert caught.value.hint == "the parameters are graph, root, x"
