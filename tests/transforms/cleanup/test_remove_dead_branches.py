"""Branches that are never taken: what runs stays, and in its order."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from branching import Run
from hypothesis import given
from hypothesis import strategies as st
from work import check_work_is_linear

from quantkit.errors import RecipeError
from quantkit.formats import graphdef
from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text, to_text
from quantkit.recipes import transform
from quantkit.runtimes import open_session
from quantkit.transforms.cleanup.remove_dead_branches import remove_dead_branches

X = Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(())})
P = Node("p", "Placeholder", attrs={"dtype": DType.BOOL, "shape": Shape(())})


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Switches and merges of every kind, most of them decided by constants."""
    nodes = [X, P, constant("yes", np.True_), constant("no", np.False_)]
    numbers, truths = [Edge("x")], [Edge("p"), Edge("yes"), Edge("no"), Edge("yes"), Edge("no")]
    for number in range(draw(st.integers(3, 25))):
        kind = draw(st.sampled_from(["Neg", "Add", "Effect", "Switch", "Switch", "Merge", "Merge", "Not", "Carry"]))
        name = f"n{number}"
        sources = truths if kind in ("Not", "Carry") else numbers
        reads = [draw(st.sampled_from(sources)) for _ in range(2 if kind in ("Add", "Merge") else 1)]
        if kind in ("Switch", "Carry"):
            reads.append(draw(st.sampled_from(truths)))
        controls = (draw(st.sampled_from(nodes)).name,) if draw(st.integers(0, 3)) == 0 else ()
        op = {"Not": "LogicalNot", "Carry": "Switch"}.get(kind, kind)
        attrs: dict[str, Attr] = {"T": DType.BOOL if kind == "Carry" else DType.FLOAT}
        nodes.append(Node(name, op, tuple(reads), controls, {} if kind == "Not" else attrs))
        ports = (0, 1) if op == "Switch" else (0,)
        sources.extend(Edge(name, port) for port in ports)
        if kind == "Carry":
            nodes.extend(Node(f"{name}/{port}", "Identity", (Edge(name, port),), attrs=attrs) for port in ports)
            truths.extend(Edge(f"{name}/{port}") for port in ports)
    outputs = draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=3, unique=True))
    return Graph.of(nodes, ["x", "p"], outputs)


@given(graphs())
def test_what_was_alive_is_alive_equal_and_as_late(graph: Graph) -> None:
    kept = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs)
    after = remove_dead_branches(graph)
    verify(after)
    assert graph == kept
    assert after.outputs == graph.outputs
    for truth in (True, False):
        feeds = {"x": np.float32(3), "p": np.bool_(truth)}
        before_run, after_run = Run(graph, feeds), Run(after, feeds)
        for edge in graph.outputs:
            assert before_run.output(edge) == after_run.output(edge)
            if before_run.output(edge) is not None:
                assert before_run.effects_behind(edge) == after_run.effects_behind(edge)


@given(graphs())
def test_a_second_time_there_is_nothing_to_do(graph: Graph) -> None:
    once = remove_dead_branches(graph)
    outcome = remove_dead_branches.outcome(once)
    assert (outcome.graph, outcome.changes) == (once, ())
    assert remove_dead_branches(graph) == once


TRAINED = """inputs: x, train
outputs: y
x = Placeholder[2]()
train = Placeholder[bool]()
id = Identity(train)
s = Switch(id, id)
t = Identity(s:1)
half = Const(0.5, ^t)
xs = Switch(x, id)
drop = Mul(xs:1, half)
same = Identity(xs:0)
y = Merge(same, drop, N=2)
"""


def test_a_predicate_can_be_given_and_is_no_input_any_more() -> None:
    made = remove_dead_branches(from_text(TRAINED), pred=("train:false",))
    assert made.inputs == (Edge("x"),)
    assert made["train"].value.array == np.False_
    assert (made["y"].op, made["y"].inputs) == ("Identity", (Edge("same"),))
    taken = remove_dead_branches(from_text(TRAINED), pred=("train:true",))
    assert taken["half"].controls == (), "nothing holds it back any more, and it can be folded"


@pytest.mark.parametrize("text", ["train", ":true", "train:maybe", "trian:true"])
def test_predicates_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="remove_dead_branches: "):
        remove_dead_branches(from_text(TRAINED), pred=(text,))


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        ("Placeholder[bool ?x2]()", "whose values are of shape ?x2"),
        ("Placeholder[string 2]()", "whose values are of type string"),
        ("Placeholder[2]()", "whose values are of type float"),
        ("Unique(x)", "which has 2 outputs"),
    ],
)
def test_a_predicate_is_one_truth_value(predicate: str, reason: str) -> None:
    graph = from_text(TRAINED.replace("train = Placeholder[bool]()", f"train = {predicate}"))
    with pytest.raises(RecipeError, match=f"pred names 'train'.*{re.escape(reason)}"):
        remove_dead_branches(graph, pred=("train:true",))


def test_a_predicate_keeps_its_shape() -> None:
    graph = from_text(TRAINED.replace("Placeholder[bool]()", "Placeholder[bool 1]()"))
    assert remove_dead_branches(graph, pred=("train:true",))["train"].value.shape == (1,)


def test_a_default_that_nobody_feeds_decides() -> None:
    text = TRAINED.replace("train = Placeholder[bool]()", "no = Const[bool](false)\ntrain = PlaceholderWithDefault(no)")
    fed = from_text(text)
    assert remove_dead_branches(fed) == fed
    assert "xs" not in remove_dead_branches(fed.with_endpoints(["x"], None))


def test_which_input_was_merged_is_known() -> None:
    graph = from_text(TRAINED).with_endpoints(None, ["y", "y:1"])
    made = remove_dead_branches(graph, pred=("train:true",))
    assert made["y"].op == "IdentityN"
    assert made[made["y"].inputs[1].node].value.array == 1
    verify(made)


def test_an_output_that_is_turned_off_stops_it() -> None:
    graph = from_text(TRAINED).with_endpoints(None, ["drop"])
    outcome = remove_dead_branches.outcome(graph, pred=("train:false",))
    assert [str(skip) for skip in outcome.skips] == [
        "drop: it is an output of the graph that a constant predicate turns off"
    ]
    assert "drop" in outcome.graph


def test_loops_stay_and_loops_in_dead_branches_go() -> None:
    loop = """inputs: x
outputs: y
x = Placeholder[]()
no = Const[bool](false)
s = Switch(x, no)
enter = Enter(s:{port}, frame_name=loop)
merge = Merge(enter, next, N=2)
small = Less(merge, merge)
cond = LoopCond(small)
turn = Switch(merge, cond)
body = Neg(turn:1)
next = NextIteration(body)
exit = Exit(turn)
other = Identity(s:{other})
y = Merge(exit, other, N=2)
"""
    dead = remove_dead_branches.outcome(from_text(loop.format(port=1, other=0)))
    assert (set(dead.graph.nodes), dead.skips) == ({"x", "no", "other", "y"}, ())
    live = remove_dead_branches.outcome(from_text(loop.format(port=0, other=1)))
    assert live.graph["enter"].inputs == (Edge("x"),)
    assert [str(skip) for skip in live.skips] == ["cond: it ends a loop: the 1 switches that it decides stay"]


def test_its_work_is_linear() -> None:
    def nest(count: int) -> Callable[[], object]:
        nodes = [X, constant("no", np.False_)]
        last = Edge("x")
        for number in range(count):
            pivot = Node(f"p{number}", "Switch", (Edge(f"i{number - 1}" if number else "no"), Edge("no")))
            inner = Node(f"i{number}", "Identity", (Edge(pivot.name),))
            switch = Node(f"s{number}", "Switch", (last, Edge(inner.name)))
            dead = Node(f"d{number}", "Neg", (Edge(switch.name, 1),))
            merge = Node(f"m{number}", "Merge", (Edge(switch.name), Edge(dead.name)), attrs={"N": 2})
            nodes.extend((pivot, inner, switch, dead, merge))
            last = Edge(merge.name)
        graph = Graph.of(nodes, ["x"], [last])
        return lambda: remove_dead_branches(graph)

    check_work_is_linear(nest, 40)


def answers(graph: Graph, **feeds: Any) -> dict[str, Any]:
    with open_session(graph, "tensorflow") as session:
        return session.run(feeds)


@pytest.mark.engine
def test_tensorflow_computes_the_same_by_conditions_of_its_first_version() -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    v1 = tf.compat.v1
    was_v2 = tf.compat.v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as made:
            x = v1.placeholder(tf.float32, [2, 3], "x")
            train = v1.placeholder_with_default(False, [], "train")

            def inner() -> Any:
                return v1.cond(v1.logical_not(train), lambda: x * 3.0, lambda: tf.nn.relu(x) + 1.0)

            y = v1.cond(train, lambda: x - v1.cond(train, lambda: x + 5.0, lambda: x), inner)
            v1.identity(y, "y")
    finally:
        if was_v2:
            v1.enable_control_flow_v2()
    graph = graphdef.decode(made.as_graph_def().SerializeToString()).with_endpoints(["x"], ["y"])
    after = transform(graph, "remove_dead_branches strip_unused_nodes fold_constants")
    assert "Merge" not in after.op_counts
    assert len(after) < 6
    values = np.float32([[1, -2, 3], [0, 5, -6]])
    np.testing.assert_array_equal(answers(after, x=values)["y"], answers(graph, x=values)["y"])


FUNCTIONAL = """inputs: x
outputs: y
x = Placeholder[2]()
c = Const[{kind}]({value})
r = {op}(c, x, Tcond={kind}, Tin=[float], Tout=[float], {branches})
y = Neg(r)
function plus(out = s)
a = _Arg(T=float, index=0)
one = Const(1.0)
s = AddV2(a, one, T=float)
end
function times(out = s)
a = _Arg(T=float, index=0)
two = Const(2.0)
s = Mul(a, two, T=float)
end
"""
IF = "then_branch=&plus, else_branch=&times"
CASE = "branches=[&plus, &times]"


@pytest.mark.parametrize(
    ("op", "kind", "value", "branches", "taken"),
    [
        ("If", "bool", "true", IF, "AddV2"),
        ("StatelessIf", "bool", "false", IF, "Mul"),
        ("If", "int32", "3", IF, "AddV2"),
        ("If", "float", "0.0", IF, "Mul"),
        ("If", "float", "[0.0]", IF, "AddV2"),
        ("If", "string", '""', IF, "Mul"),
        ("Case", "int32", "0", CASE, "AddV2"),
        ("StatelessCase", "int32", "1", CASE, "Mul"),
        ("Case", "int32", "-1", CASE, "Mul"),
        ("Case", "int32", "7", CASE, "Mul"),
    ],
)
def test_the_branch_that_a_function_call_takes(op: str, kind: str, value: str, branches: str, taken: str) -> None:
    graph = from_text(FUNCTIONAL.format(op=op, kind=kind, value=value, branches=branches))
    made = remove_dead_branches(graph)
    assert made[made["y"].inputs[0].node].op == taken
    assert "r" not in made
    assert remove_dead_branches(made) == made


def test_functions_that_can_not_be_opened_stay() -> None:
    text = FUNCTIONAL.format(op="If", kind="bool", value="true", branches=IF.replace("plus", "gone"))
    outcome = remove_dead_branches.outcome(from_text(text))
    assert [str(skip) for skip in outcome.skips] == ["r: function 'gone' is not in the library"]
    loop = FUNCTIONAL.format(op="While", kind="bool", value="true", branches="cond=&plus, body=&times")
    outcome = remove_dead_branches.outcome(from_text(loop))
    assert [str(skip) for skip in outcome.skips] == ["r: it is a loop, While"]
    assert to_text(outcome.graph) == to_text(from_text(loop))
    unknown = FUNCTIONAL.format(op="If", kind="bool", value="true", branches=IF).replace("If(c", "If(x")
    outcome = remove_dead_branches.outcome(from_text(unknown))
    assert [str(skip) for skip in outcome.skips] == ["r: its condition x is not constant"]


@pytest.mark.engine
def test_tensorflow_computes_the_same_by_conditions_in_functions() -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")

    @tf.function(input_signature=[tf.TensorSpec([2, 3], tf.float32, "x")])
    def network(x: Any) -> Any:
        train = tf.raw_ops.PlaceholderWithDefault(input=False, shape=[], name="train")
        inner = tf.cond(train, lambda: x + 1.0, lambda: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: -x))
        return tf.identity(inner, "y")

    made = network.get_concrete_function().graph.as_graph_def()
    graph = graphdef.decode(made.SerializeToString()).with_endpoints(["x"], ["y"])
    after = transform(graph, "remove_dead_branches strip_unused_nodes remove_unused_functions")
    assert sum(count for op, count in after.op_counts.items() if "If" in op) == 1
    assert len(after.library) == 2
    for values in (np.ones((2, 3), np.float32), -np.ones((2, 3), np.float32)):
        np.testing.assert_array_equal(answers(after, x=values)["y"], answers(graph, x=values)["y"])
