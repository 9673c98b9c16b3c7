"""Tests of clean_functions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from function_graphs import find_effects, graphs
from hypothesis import given
from rewritten_graphs import compute_outputs
from work import check_work_is_linear

from quantkit.errors import RecipeError
from quantkit.formats import graphdef
from quantkit.formats.graphdef.schema import message_class
from quantkit.ir.check import verify
from quantkit.ir.functions import Library
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import Shape
from quantkit.ir.text import from_text, to_text
from quantkit.model import load
from quantkit.model.saving import save
from quantkit.recipes import rewrite
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import open_session
from quantkit.transforms.functions.clean_functions import clean_functions
from quantkit.transforms.functions.inline_functions import inline_functions

LOOP = """inputs: x
outputs: y
x = Placeholder[]()
w = Const(3.0)
loop = StatelessWhile(x, w, T=[float, float], cond=&small, body=&step)
y = Neg(loop)
"""
FUNCTIONS = """function small(out[bool] = s)
a = _Arg(T=float, index=0)
w = _Arg(T=float, index=1)
ten = Const(10.0)
s = Less(a, ten, T=float)
end
function step(next = product, kept = w)
a = _Arg(T=float, index=0)
w = _Arg(T=float, index=1)
two = Const(2.0)
factor = Mul(w, two, T=float)
product = Mul(a, factor, T=float)
end
"""


@given(graphs())
def test_outputs_of_random_calls_stay(graph: Graph) -> None:
    text = to_text(graph)
    after = clean_functions(graph)
    verify(after)
    assert to_text(graph) == text
    assert clean_functions.outcome(after).changes == ()
    assert graphdef.decode(graphdef.encode(after)).nodes == after.nodes
    expected, actual = compute_outputs(inline_functions(graph)), compute_outputs(inline_functions(after))
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-5 * max(1, np.abs(values).max()))


def test_side_effects_run_with_each_call() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = StatefulPartitionedCall(x, Tin=[float], Tout=[float], f=&checked)
        function checked(out = same, ^done = last)
        a = _Arg(T=float, index=0)
        first = CheckNumerics(a, T=float, message=first)
        same = Identity(a, ^first, T=float)
        unused = CheckNumerics(a, T=float, message=unused)
        drawn = RandomUniform(size, T=int32, dtype=float)
        size = Const[int32]([2])
        last = NoOp(^first)
        end
    """)
    after = clean_functions(graph)
    body = after.library["checked"]
    assert set(body.graph.nodes) == {"a", "first", "same", "unused"}
    assert dict(body.controls) == {"done": "first"}
    inlined_after, inlined = inline_functions(after), inline_functions(graph)
    assert find_effects(inlined_after, "y") == find_effects(inlined, "y") == {"y/first"}


def test_unused_loop_variables_are_removed() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[]()
        checked = CheckNumerics(x, message=checked)
        size = Const[int32]([])
        drawn = RandomUniform(size, T=int32, dtype=float)
        loop = While(x, x, x, checked, drawn, T=[float, float, float, float, float], cond=&small, body=&step, \
_num_original_outputs=5, _read_only_resource_inputs=[0, 2, 3], output_shapes=[<>, <>, <1>, <2>, <>])
        y = Neg(loop:1)
        function small(out[bool] = s)
        a = _Arg(T=float, index=0)
        b = _Arg(T=float, index=1)
        c = _Arg(T=float, index=2)
        d = _Arg(T=float, index=3)
        e = _Arg(T=float, index=4)
        s = Less(b, b, T=float)
        end
        function step(p = t, q = s, r = c, s = d, t = e)
        a = _Arg(T=float, index=0)
        b = _Arg(T=float, index=1)
        c = _Arg(T=float, index=2)
        d = _Arg(T=float, index=3)
        e = _Arg(T=float, index=4)
        t = AddV2(a, b, T=float)
        s = Sub(b, c, T=float)
        end
    """)
    after = clean_functions(graph)
    loop = after["loop"]
    assert [str(edge) for edge in loop.inputs] == ["x", "x", "checked"]
    assert loop.attrs["_num_original_outputs"] == 3
    assert loop.attrs["_read_only_resource_inputs"] == (1, 2)
    assert loop.attrs["output_shapes"] == (Shape(()), Shape((1,)), Shape((2,)))
    assert str(after["y"].inputs[0]) == "loop"
    step = after.library["step"]
    assert list(step.results) == ["q", "r", "s"]
    assert [step.graph[edge.node].attrs["index"] for edge in step.graph.inputs] == [0, 1, 2]
    assert "t" not in step.graph


def test_equal_variables_that_are_swapped_are_merged() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[]()
        loop = StatelessWhile(x, x, x, T=[float, float, float], cond=&small, body=&step)
        y = AddV2(loop, loop:1)
        function small(out[bool] = s)
        a = _Arg(T=float, index=0)
        b = _Arg(T=float, index=1)
        c = _Arg(T=float, index=2)
        s = Less(b, c, T=float)
        end
        function step(p = b, q = a, r = t)
        a = _Arg(T=float, index=0)
        b = _Arg(T=float, index=1)
        c = _Arg(T=float, index=2)
        t = Neg(a, T=float)
        end
    """)
    after = clean_functions(graph)
    assert len(after["loop"].inputs) == 2
    assert [str(edge) for edge in after["y"].inputs] == ["loop", "loop"]
    assert after.library["step"].graph.outputs[0] == after.library["step"].graph.inputs[0]
    assert clean_functions.outcome(after).changes == ()


def test_control_dependencies_on_nodes_that_become_stateless_are_removed() -> None:
    graph = from_text("""
        inputs: x
        outputs: y
        x = Placeholder[2]()
        y = StatefulPartitionedCall(x, Tin=[float], Tout=[float], f=&outer)
        function outer(out = result, ^done = branch)
        a = _Arg(T=float, index=0)
        which = Const[bool](true)
        branch = If(which, a, Tcond=bool, Tin=[float], Tout=[float], then_branch=&plain, else_branch=&drawn)
        call = StatefulPartitionedCall(a, ^branch, Tin=[float], Tout=[float], f=&selected)
        result = AddV2(call, branch, ^call, T=float)
        end
        function selected(out = branch, ^done = branch)
        a = _Arg(T=float, index=0)
        which = Const[bool](true)
        branch = If(which, a, Tcond=bool, Tin=[float], Tout=[float], then_branch=&plain, else_branch=&drawn)
        end
        function plain(out = n)
        a = _Arg(T=float, index=0)
        n = Neg(a, T=float)
        end
        function drawn(out = r)
        a = _Arg(T=float, index=0)
        size = Const[int32]([2])
        r = RandomUniform(size, T=int32, dtype=float)
        end
    """)
    after = clean_functions(graph)
    assert not any(node.controls for name in ("outer", "selected") for node in after.library[name].graph.nodes.values())
    assert not after.library["outer"].controls
    assert clean_functions.outcome(after).changes == ()


def test_constants_move_into_innermost_function() -> None:
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[]()
        w = Const(3.0)
        call = PartitionedCall(x, w, Tin=[float, float], Tout=[float], f=&outer)
        y = Neg(call)
        function outer(out = loop)
        a = _Arg(T=float, index=0)
        w = _Arg(T=float, index=1)
        loop = StatelessWhile(a, w, T=[float, float], cond=&small, body=&step)
        end
    """
        + FUNCTIONS
    )
    after = clean_functions(graph)
    assert after["call"].inputs == graph["call"].inputs[:1]
    assert len(after.library["outer"].graph["loop"].inputs) == 1
    (factor,) = (node for node in after.library["step"].graph.nodes.values() if node.is_constant)
    assert factor.value.array == 6


@pytest.mark.parametrize("use", ["gradient", "second caller", "graph output"])
def test_signature_with_other_use_stays(use: str) -> None:
    graph = from_text(LOOP + FUNCTIONS)
    if use == "gradient":
        library = graph.library
        graph = graph.with_(library=Library(library.entries, {"step": "small"}))
    elif use == "second caller":
        graph = from_text(LOOP.replace("y = Neg(loop)", "y = step(loop, w)") + FUNCTIONS)
    else:
        graph = graph.with_endpoints(None, ["loop"])
    after = clean_functions(graph)
    assert after["loop"] == graph["loop"]
    assert list(after.library["step"].results) == ["next", "kept"]
    assert after.library.gradients == graph.library.gradients


def test_large_constants_are_not_copied() -> None:
    text = """
        inputs: x
        outputs: y
        x = Placeholder[{size}]()
        w = Const[{size}]()
        a = PartitionedCall(x, w, Tin=[float, float], Tout=[float], f=&first)
        b = PartitionedCall(x, w, Tin=[float, float], Tout=[float], f=&second)
        y = Add(a, b)
    """
    for name in ("first", "second"):
        text += f"""
            function {name}(out = m)
            a = _Arg(T=float, index=0)
            w = _Arg(T=float, index=1)
            s = Neg(w, T=float)
            m = Mul(a, s, T=float)
            end
        """
    small = clean_functions.outcome(from_text(text.format(size=10)))
    assert [len(small.graph[name].inputs) for name in "ab"] == [1, 1]
    large = clean_functions.outcome(from_text(text.format(size=1000)))
    assert not large.changes
    reasons = {skip.reason for skip in large.skips}
    assert reasons == {f"the constant has more than 1024 bytes, and {name} is not its only consumer" for name in "ab"}


def test_argument_downstream_of_switch_stays() -> None:
    text = LOOP.replace(
        "x = Placeholder[]()", "x = Placeholder[]()\np = Placeholder[bool]()\nt = Switch(x, p)\nu = Neg(t:1)"
    )
    text = text.replace("StatelessWhile(x, w, T=[float, float]", "StatelessWhile(x, u, T=[float, float]")
    after = clean_functions(from_text(text + FUNCTIONS))
    assert [str(edge) for edge in after["loop"].inputs] == ["x", "u"]


@pytest.mark.parametrize(
    ("text", "damaged"),
    [
        (" cond=&small,", ""),
        ("cond=&small", "cond=[&small, &step]"),
        ("cond=&small", "cond=3"),
        ("T=[float, float]", "T=[float]"),
        ("T=[float, float]", 'T=Opaque("0a00")'),
        ("StatelessWhile(x, w", "StatelessWhile(x"),
        ("kept = w)", "next_2 = product, kept = w)"),
    ],
)
def test_damaged_calls_stay(text: str, damaged: str) -> None:
    graph = from_text((LOOP + FUNCTIONS).replace(text, damaged))
    after = clean_functions(graph)
    assert after["loop"] == graph["loop"]
    assert [len(function.graph.inputs) for function in after.library.values()] == [2, 2]


def test_function_that_cannot_be_loaded_is_skipped() -> None:
    message = message_class("GraphDef").FromString(graphdef.encode(from_text(LOOP + FUNCTIONS)))
    custom = message.library.function.add()
    custom.signature.name = "custom"
    custom.node_def.add(name="n", op="CustomOp")
    custom.ret["r"] = "n:out:0"
    custom.signature.output_arg.add(name="r", type=1)
    message.node.add(name="z", op="custom")
    graph = graphdef.decode(message.SerializeToString()).with_endpoints(["x"], ["y"])
    outcome = clean_functions.outcome(graph)
    verify(outcome.graph)
    assert len(outcome.graph["loop"].inputs) == 1
    assert [skip.node for skip in outcome.skips] == ["custom"]


def test_unsupported_transform_is_rejected_with_suggestion() -> None:
    with pytest.raises(RecipeError, match="transform 'fold_constant' is not supported") as raised:
        clean_functions(from_text(LOOP + FUNCTIONS), transform=("fold_constant",))
    assert "fold_constants" in raised.value.hint


def test_nested_calls_do_not_exceed_recursion_limit() -> None:
    depth = 1500
    call = "PartitionedCall({}, w, Tin=[float, float], Tout=[float], f=&f{})"
    arguments = "a = _Arg(T=float, index=0)\nw = _Arg(T=float, index=1)"
    lines = [
        "inputs: x",
        "outputs: z",
        "x = Placeholder[2]()",
        "w = Const(1.0)",
        f"y = {call.format('x', 0)}",
        "z = Neg(y)",
    ]
    for number in range(depth):
        inner = call.format("a", number + 1)
        lines.extend(
            [f"function f{number}(out = same)", arguments, f"call = {inner}", "same = Identity(call, T=float)", "end"]
        )
    lines.extend([f"function f{depth}(out = n)", arguments, "s = Exp(w, T=float)", "n = Mul(a, s, T=float)", "end"])
    after = clean_functions(from_text("\n".join(lines)))
    assert [len(after.library[f"f{number}"].graph.inputs) for number in (0, depth)] == [1, 1]
    assert after.library[f"f{depth}"].graph.op_counts == {"Const": 1, "Mul": 1, "_Arg": 1}


def test_clean_functions_runs_in_linear_time() -> None:
    def loops(count: int) -> Callable[[], object]:
        lines = ["inputs: l0", f"outputs: l{count}", "l0 = Placeholder[]()", "w = Const(3.0)"]
        bodies = ""
        for number in range(count):
            names = f"cond=&small{number}, body=&step{number}"
            lines.append(f"c{number} = StatelessWhile(l{number}, w, T=[float, float], {names})")
            lines.append(f"l{number + 1} = Neg(c{number})")
            bodies += FUNCTIONS.replace("small(", f"small{number}(").replace("step(", f"step{number}(")
        graph = from_text("\n".join(lines) + "\n" + bodies)
        return lambda: clean_functions(graph)

    def nodes(count: int) -> Callable[[], object]:
        body = FUNCTIONS.replace("factor = Mul(w, two, T=float)", "n0 = Mul(w, two, T=float)")
        for number in range(count):
            line = f"i{number} = Identity(n{number}, T=float)\nn{number + 1} = AddV2(i{number}, a, T=float)\n"
            body = body.replace("product =", f"{line}product =")
        graph = from_text(LOOP + body.replace("Mul(a, factor", f"Mul(a, n{count}"))
        return lambda: clean_functions(graph)

    check_work_is_linear(loops, 10)
    check_work_is_linear(nodes, 30)


def loop_with_a_batch_norm(tf: Any, weights: Callable[..., Any]) -> Callable[..., Any]:
    w, scale, offset, mean, variance = weights(3, 3, 4, 4), *(weights(4) for _ in range(4))

    def step(number: Any, x: Any) -> Any:
        y = tf.nn.conv2d(x, w, 1, "SAME")
        return number + 1, tf.nn.relu(tf.nn.batch_normalization(y, mean, variance, offset, scale, 1e-3))

    return lambda x: tf.while_loop(lambda number, x: number < 3, step, (0, x))[1]


def branches_in_a_loop(tf: Any, weights: Callable[..., Any]) -> Callable[..., Any]:
    w = weights(4, 4)

    def inner(number: Any, x: Any) -> Any:
        return number + 1, tf.tanh(x @ w)

    def outer(number: Any, x: Any) -> Any:
        y = tf.while_loop(lambda number, x: number < 2, inner, (0, x))[1]
        return number + 1, tf.cond(tf.reduce_sum(y) > 0, lambda: y @ w + 1.0, lambda: y - tf.reduce_sum(w))

    return lambda x: tf.while_loop(lambda number, x: number < 4, outer, (0, x))[1]


def variables_of_all_kinds(tf: Any, weights: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loop with unused, equal, swapped, and invariant variables."""
    w = weights(4, 4)

    def step(i: Any, j: Any, a: Any, b: Any, total: Any, constant: Any, first: Any) -> Any:
        tf.debugging.assert_less(i, 10)
        product = a @ (constant * 2.0)
        return i + 1, j + 1, b * 1.5, product + tf.cast(i - j, tf.float32) + first, total + a, constant, first

    def network(x: Any) -> Any:
        variables = (0, 0, x, x * 2.0, x, w, tf.reduce_sum(x))
        results = tf.while_loop(lambda i, j, *_: (i < 3) & (j < 3), step, variables)
        return results[2] - results[3] + results[5][0] + results[6]

    return network


def lists(tf: Any, weights: Callable[..., Any]) -> Callable[..., Any]:
    w = weights(4, 4)
    return lambda x: tf.scan(lambda a, row: tf.tanh(a @ w + row), tf.map_fn(lambda row: row[None] @ w, x))


def keras(*layers: Callable[[Any], Any]) -> Callable[..., Any]:
    def network(tf: Any, weights: Callable[..., Any]) -> Any:
        tf.keras.utils.set_random_seed(0)
        model = tf.keras.Sequential([tf.keras.Input((5, 4)), *(layer(tf.keras.layers) for layer in layers)])
        for variable in model.weights:
            variable.assign(weights(*variable.shape))
        return model

    return network


NETWORKS: Mapping[str, tuple[Callable[..., Any], tuple[int, ...], int]] = {
    "loop with BatchNorm": (loop_with_a_batch_norm, (1, 6, 6, 4), 20),
    "branches in a loop": (branches_in_a_loop, (3, 4), 20),
    "variables of all kinds": (variables_of_all_kinds, (3, 4), 10),
    "lists": (lists, (3, 4), 15),
    "two recurrent layers": (
        keras(lambda layers: layers.LSTM(3, return_sequences=True), lambda layers: layers.GRU(3, go_backwards=True)),
        (1, 5, 4),
        36,
    ),
    "bidirectional layer with mask": (
        keras(lambda layers: layers.Masking(), lambda layers: layers.Bidirectional(layers.SimpleRNN(3))),
        (1, 5, 4),
        36,
    ),
}


def num_nodes(graph: Graph) -> int:
    bodies = (function.graph.op_counts for function in graph.library.values())
    return len(graph) + sum(sum(counts.values()) - counts.get("_Arg", 0) for counts in bodies)


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_tensorflow_outputs_stay_with_fewer_nodes(name: str, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="pip install tensorflow")
    random = np.random.default_rng(0)
    make, shape, num_removed = NETWORKS[name]
    model = make(tf, lambda *sizes: tf.Variable(random.uniform(0.1, 0.9, sizes).astype(np.float32)))
    if not isinstance(model, tf.keras.Model):
        model = tf.function(model, input_signature=[tf.TensorSpec(shape, tf.float32, "x")])
    graph = load(model).graph
    inference = find_recipe("inference")
    before = rewrite(graph, replace(inference, steps=tuple(s for s in inference.steps if s.name != "clean_functions")))
    after = rewrite(graph, "inference")
    assert num_nodes(after) <= num_nodes(before) - num_removed
    assert clean_functions.outcome(after).changes == ()
    save(after, tmp_path / "graph.pb")
    saved = load(tmp_path / "graph.pb", inputs=graph.inputs, outputs=graph.outputs).graph
    save(after, tmp_path / "model", format="saved_model")
    served = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    [source], [result] = graph.inputs, graph.outputs
    for sign in (1, -1):
        x = (sign * random.uniform(-0.5, 1, shape)).astype(np.float32)
        outputs = []
        for version in (graph, after, saved):
            with open_session(version, "tensorflow") as session:
                outputs.append(session.run({str(source): x})[str(result)])
        outputs.append(next(iter(served(**{str(source): tf.constant(x)}).values())).numpy())
        for actual in outputs[1:]:
            np.testing.assert_allclose(actual, outputs[0], rtol=1e-5, atol=1e-5 * np.abs(outputs[0]).max())
