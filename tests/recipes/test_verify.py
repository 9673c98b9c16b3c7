"""Verification of steps: equal outputs pass, others are rejected or undone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import quantkit as qk
import quantkit.transforms
from quantkit.errors import CheckError, GraphError, UnavailableError, UsageError
from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType, Shape
from quantkit.ir.text import from_text
from quantkit.recipes import parse, run, transform
from quantkit.recipes.outputs import compare
from quantkit.recipes.trace import SKIP, node_changes
from quantkit.recipes.verify import Verifier, make_verifier
from quantkit.runtimes import open_session
from quantkit.runtimes.random_inputs import random_arrays
from quantkit.runtimes.session import Session, TensorInfo
from quantkit.transforms.registry import REGISTRY
from quantkit.transforms.registry import transform as register

GRAPH = from_text(
    """
    inputs: x
    outputs: y
    x = Placeholder[?x3]()
    same = Identity(x, T=float)
    scale = Const(2.0)
    y = Mul(same, scale, T=float)
    """
)


@pytest.fixture
def _register_wrong_transforms() -> None:
    """Register a transform that changes the outputs by 0.1 %, and one that adds an unknown op."""

    def scale_wrongly(graph: Graph) -> Graph:
        """Scale wrongly."""
        return graph.with_nodes(
            from_text("scale = Const(2.002)")["scale"] if node.name == "scale" else node
            for node in graph.nodes.values()
        )

    def use_unknown_op(graph: Graph) -> Graph:
        """Add a node of an unknown op type."""
        return graph.with_nodes(
            node.with_(op="NoSuchOp") if node.name == "y" else node for node in graph.nodes.values()
        )

    register(scale_wrongly)
    register(use_unknown_op)


def verifier(**options: object) -> Verifier:
    return Verifier(lambda graph: open_session(graph, "reference"), **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_register_wrong_transforms")
def test_rejected_step_is_undone_and_the_run_continues() -> None:
    steps = parse("scale_wrongly remove_nodes(op=Identity) use_unknown_op")
    graph, trace = run(steps, GRAPH, check=verifier(), on_mismatch=SKIP)
    assert graph["scale"] == GRAPH["scale"]
    assert graph["y"].op == "Mul"
    assert "same" not in graph
    rejected, unchanged, broken = trace.records
    assert "scale_wrongly changes output 'y' by 0.00" in rejected.undone
    assert "times the rounding of the model" in rejected.undone
    assert (rejected.nodes, rejected.changes, rejected.check, rejected.ops) == ((4, 4), (), "", {})
    assert (unchanged.undone, unchanged.check, unchanged.ops) == ("", "y: equal", {"Identity": -1})
    assert "the graph after use_unknown_op cannot be run" in broken.undone
    assert [record["undone"] for record in trace.to_json()["steps"]] == [rejected.undone, "", broken.undone]


def test_step_with_a_broken_graph_is_undone() -> None:
    def lose_a_node(graph: Graph) -> Graph:
        """Remove a node that has consumers."""
        return graph.with_nodes(node for node in graph.nodes.values() if node.name != "scale")

    register(lose_a_node)
    graph, trace = run(parse("lose_a_node"), GRAPH, check=verifier(), on_mismatch=SKIP)
    assert graph == GRAPH
    assert trace.records[0].undone == "after lose_a_node, node 'y' (Mul) has input 'scale', which is not in the graph"
    for options in ({}, {"check": verifier()}, {"on_mismatch": SKIP}):
        with pytest.raises(GraphError, match="after lose_a_node"):
            run(parse("lose_a_node"), GRAPH, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_register_wrong_transforms")
def test_tolerance_is_an_option() -> None:
    run(parse("scale_wrongly"), GRAPH, check=verifier(tolerance=1e-2))
    with pytest.raises(CheckError, match="the tolerance is 0.0001"):
        run(parse("scale_wrongly"), GRAPH, check=verifier(tolerance=1e-4))
    assert "exact steps within 0.01 of" in verifier(tolerance=1e-2).terms
    assert "exact steps within 10 times the rounding of the model" in verifier().terms


def test_data_is_used() -> None:
    recorded: list[np.ndarray] = []

    class Spy:
        """Session that records its feeds."""

        def __init__(self, session: Session) -> None:
            self.session = session
            self.inputs, self.outputs = session.inputs, session.outputs

        def __enter__(self) -> "Spy":
            return self

        def __exit__(self, *reason: object) -> None:
            self.session.close()

        def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            recorded.append(feeds["x"])
            return dict(self.session.run(feeds))

    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    check = Verifier(lambda graph: Spy(open_session(graph, "reference")), feeder=lambda infos: [{"x": rows}])  # type: ignore[arg-type,return-value]
    run(parse("remove_nodes(op=Identity)"), GRAPH, check=check)
    assert all(np.array_equal(rows, feed) for feed in recorded)
    assert len(recorded) == 2
    assert "on the given data" in check.terms


def test_graph_that_never_ran_blames_no_transform() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[2]()\ny = NoSuchOp(x, T=float)")
    with pytest.raises(UnavailableError):
        run(parse("sort_by_execution_order"), graph, check=verifier(), on_mismatch=SKIP)


def test_reduced_precision_is_reported() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[4x4]()\nw = Const[4x300]()\ny = MatMul(x, w, T=float)")
    _, trace = run(parse("round_weights(num_steps=16)"), graph, check=verifier())
    assert "largest difference" in trace.records[0].check
    assert "by design)" in trace.records[0].check


def test_quantized_outputs_are_compared_as_numbers() -> None:
    names = {"y": np.array([10, 200, 30], np.uint8)}
    shifted = {"y": np.array([11, 201, 31], np.uint8)}
    assert "largest difference 1, cosine 1.0000" in compare(names, shifted, REGISTRY["quantize_nodes"], 1e-5)
    with pytest.raises(CheckError, match="in 100.0% of its elements"):
        compare(names, shifted, REGISTRY["fold_pads"], 1e-5)


INF, NAN = np.inf, np.nan
EXACT, ROUNDED = REGISTRY["fold_pads"], REGISTRY["quantize_nodes"]


@pytest.mark.parametrize(
    ("expected", "actual", "reason"),
    [
        (np.array([1, 2], np.float32), np.array([1, 2], np.float64), "it was float32 and is float64"),
        (np.array([INF, 2], np.float32), np.array([INF, 3], np.float32), "by 1; the tolerance"),
        (np.array([INF, 2], np.float32), np.array([-INF, 2], np.float32), "changes the NaN and infinite values"),
        (np.array([NAN, 2], np.float32), np.array([1, 2], np.float32), "changes the NaN and infinite values"),
        (np.array([NAN, 2], np.float32), np.array([NAN, NAN], np.float32), "adds NaN or infinity"),
        (np.array([INF, 2], np.float32), np.array([NAN, 2], np.float32), "changes the NaN and infinite values"),
        (np.array([1 + 1j], np.complex64), np.array([1 - 1j], np.complex64), "by 2; the tolerance"),
        (np.array([1, 2], np.float16), np.array([1, 2.1], np.float16), "by 0.0996; the tolerance is 0.0039"),
    ],
)
def test_changes_that_exact_transforms_must_not_make(expected: np.ndarray, actual: np.ndarray, reason: str) -> None:
    with pytest.raises(CheckError, match=reason):
        compare({"y": expected}, {"y": actual}, EXACT, 1e-5)


def test_non_finite_values_are_not_compared() -> None:
    expected, actual = np.array([NAN, INF, 3, 4], np.float32), np.array([NAN, INF, 3.00001, 4], np.float32)
    assert compare({"y": expected}, {"y": expected}, EXACT, 1e-5) == "y (50.0% of the values finite): equal"
    assert "largest difference 1e-05" in compare({"y": expected}, {"y": actual}, EXACT, 1e-5)
    assert "cosine 0.9999" in compare({"y": expected}, {"y": np.array([0, 0, 3.1, 4], np.float32)}, ROUNDED, 1e-5)
    with pytest.raises(CheckError, match="adds NaN"):
        compare({"y": expected}, {"y": np.array([0, 0, NAN, 4], np.float32)}, ROUNDED, 1e-5)
    all_nan = np.full(3, NAN, np.float32)
    assert compare({"y": all_nan}, {"y": all_nan}, EXACT, 1e-5) == "y (0.0% of the values finite): equal"


def test_narrow_types_round() -> None:
    expected = np.array([1, -2, 0.5], np.float16)
    assert "largest difference" in compare({"y": expected}, {"y": np.array([1.001, -2, 0.5], np.float16)}, EXACT, 1e-5)


def test_empty_outputs_are_equal() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert compare({"y": empty}, {"y": empty}, EXACT, 1e-5) == "y: equal"


def test_node_changes() -> None:
    after = from_text("x = Placeholder[?x3]()\nscale = Const(3.0)\ny = Add(x, scale, T=float)\nz = Neg(y, T=float)")
    assert node_changes(GRAPH, after) == (
        "same (Identity) removed",
        "scale (Const) changed",
        "y (Mul -> Add)",
        "z (Neg) added",
    )


def test_changes_in_functions_are_compared() -> None:
    function = "function f(r = n)\na = _Arg(index=0)\nn = {}(a)\nend"
    text = f"inputs: x\noutputs: y\nx = Placeholder[2]()\ny = Neg(x, T=float)\n{function}"
    before, after = from_text(text.format("Neg")), from_text(text.format("Abs"))
    assert verifier()(before, before.with_nodes(before.nodes.values()), REGISTRY["fold_constants"]) == "the same nodes"
    assert verifier()(before, after, REGISTRY["fold_constants"]) == "y: equal"


SATURATED = """
    inputs: x
    outputs: y
    x = Placeholder[?x3]()
    big = Const([[1e6, 0.0], [0.0, 0.0], [0.0, 0.0]])
    shift = Const([1e9, 0.0])
    product = MatMul(x, big, T=float)
    logits = Add(product, shift, T=float)
    y = Softmax(logits, T=float)
    """
SCALED = """
    inputs: x
    outputs: y
    x = Placeholder[?x4x4x3]()
    factor = Const(1.5378e-05)
    offset = Const(-1.0)
    small = Mul(x, factor, T=float)
    y = Add(small, offset, T=float)
    """


def messages_of(text: str, **options: object) -> list[str]:
    messages: list[str] = []
    transform(from_text(text), "remove_nodes(op=Identity)", runtime="reference", on_message=messages.append, **options)  # type: ignore[arg-type]
    return [message for message in messages if "prove little" in message]


def test_inputs_that_do_not_change_the_outputs_are_reported() -> None:
    (message,) = messages_of(SCALED, verify=True)  # 65025 levels, of which random inputs reach two
    assert "with the random inputs" in message
    assert "--data" in message
    (message,) = messages_of(SCALED, data=np.ones((3, 4, 4, 3), np.float32))
    assert "over the given samples" in message
    model = transform(from_text(SCALED), "remove_nodes(op=Identity)", runtime="reference", verify=True)
    assert model.trace is not None
    assert "prove little" in (model.trace.verification or {})["warning"]
    assert not messages_of(SCALED, data=np.linspace(0, 65025, 96, dtype=np.float32).reshape(2, 4, 4, 3))
    assert not messages_of(SATURATED, verify=True), "the inputs of the last Softmax differ"


def test_random_inputs_have_the_range_that_the_graph_expects() -> None:
    text = SCALED.replace("1.5378e-05", "0.00784314")  # from 0..255 to -1..1
    assert not messages_of(text, verify=True)
    graph = from_text(text)
    check = make_verifier(qk.load(graph), graph, runtime="reference")
    assert check.bounds == {"x": (0.0, 255.0)}


@pytest.mark.parametrize(("options", "is_warned"), [({}, True), ({"verify": True}, False)])
def test_8_bit_graphs_without_data_come_with_a_warning(options: dict[str, bool], is_warned: bool) -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder[2x3]()\ny = Relu(x, T=float)")
    messages: list[str] = []
    transform(graph, "quantize_nodes", runtime="reference", on_message=messages.append, **options)
    warnings = [message for message in messages if "quantize_nodes uses no data" in message]
    assert len(warnings) == is_warned
    assert not is_warned or "--target eightbit --calibration DATA" in warnings[0]


@pytest.mark.parametrize("dtype", ["string", "resource", "variant"])
def test_inputs_without_numbers_need_arrays(dtype: str) -> None:
    inputs = (TensorInfo("x", DType(dtype), Shape((2,))),)
    with pytest.raises(UsageError, match=f"input 'x', which takes {dtype}s"):
        random_arrays(inputs)


@pytest.mark.parametrize(
    ("shape", "sizes"), [("?x?x?x3", (2, 32, 64, 3)), ("?x?x3", (2, 8, 3)), ("?x8x8x3", (2, 8, 8, 3))]
)
def test_dynamic_sizes_are_small_and_distinct(shape: str, sizes: tuple[int, ...]) -> None:
    graph = from_text(f"""
        inputs: x
        outputs: y
        x = Placeholder[{shape}](dtype=float)
        z = Identity(x, T=float)
        y = Relu(z, T=float)
    """)
    check = verifier()
    run(parse("remove_nodes(op=Identity)"), graph, check=check)
    assert check.feeds[0]["x"].shape == sizes


INTEGERS = """
    dialect: onnx
    inputs: x, n
    outputs: y
    x = Placeholder[int64 6]()
    n = Placeholder[int64 6]()
    {}
    z = Identity(q)
    y = Neg(z)
    """


@pytest.mark.parametrize(
    "nodes",
    [
        "q = Div(x, n)",
        "q = Mod(x, n)",
        "one = Constant[int64](1)\n    m = Sub(n, one)\n    q = Div(x, m)",
        "t = Constant[int64]([5, 7])\n    g = Gather(t, n)\n    q = Div(x, n)",
    ],
)
def test_random_integers_are_in_the_domain_of_the_graph(nodes: str) -> None:
    _, trace = run(parse("remove_nodes(op=Identity)"), from_text(INTEGERS.format(nodes)), check=verifier())
    assert trace.records[0].check == "y: equal"


def test_integers_that_no_random_input_fits_need_samples() -> None:
    nodes = "big = Constant[int64](9)\n    m = Sub(n, big)\n    s = Sub(m, m)\n    q = Div(x, s)"
    with pytest.raises(GraphError, match="no integers fit as random inputs: .*divided by zero") as error:
        run(parse("remove_nodes(op=Identity)"), from_text(INTEGERS.format(nodes)), check=verifier())
    assert "--data" in error.value.hint


@pytest.mark.parametrize(
    "nodes",
    [
        "n = Cast(x, to=7)\nk = Constant[int64](9)\nq = Div(k, n)",
        "n = Cast(x, to=6)\nk = Constant[int32](9)\nq = Mod(k, n)",
        "n = Cast(x, to=7)\nt = Constant[int64]([0, 0])\ng = Gather(t, n)\nk = Constant[int64](9)\nq = Div(k, g)",
    ],
)
def test_floats_that_no_random_input_fits_need_samples(nodes: str) -> None:
    text = f"dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[4]()\n{nodes}\nz = Identity(q)\ny = Neg(z)"
    with pytest.raises(GraphError, match="no values fit as random inputs: .*divided by zero") as error:
        run(parse("remove_nodes(op=Identity)"), from_text(text), check=verifier())
    assert "--data" in error.value.hint


def test_sizes_that_do_not_fit_name_the_flags() -> None:
    graph = from_text(
        "dialect: onnx\ninputs: x\noutputs: y\nx = Placeholder[?x?]()\ns = Constant[int64]([3, 7, 11])\n"
        "z = Reshape(x, s)\nr = Identity(z)\ny = Relu(r)"
    )
    with pytest.raises(GraphError, match="no sizes of the inputs x fit as random inputs") as error:
        run(parse("remove_nodes(op=Identity)"), graph, check=verifier())
    assert "--data" in error.value.hint
    assert "--input-shape x:8x8" in error.value.hint


def failing(message: str) -> Callable[[Graph], Session]:
    def fail(graph: Graph) -> Session:
        raise UnavailableError(message)

    return fail


def test_another_way_runs_a_model_that_the_runtime_cannot_run() -> None:
    way = {"without its optimizer": lambda graph: open_session(graph, "reference")}
    check = Verifier(failing("the optimizer fails"), fallbacks=way)
    _, trace = run(parse("remove_nodes(op=Identity)"), GRAPH, check=check)
    assert trace.records[0].check == "y: equal"
    assert check.warning == "the optimizer fails; the model is verified without its optimizer"


def test_runtime_that_cannot_run_the_new_graph_is_at_fault() -> None:
    def fails_without_identity(graph: Graph) -> Session:
        return open_session(graph, "reference") if "same" in graph else failing("the optimizer fails")(graph)

    way = {"without its optimizer": lambda graph: open_session(graph, "reference")}
    check = Verifier(fails_without_identity, fallbacks=way)
    with pytest.raises(CheckError, match="it runs without its optimizer, so that the runtime is at fault"):
        run(parse("remove_nodes(op=Identity)"), GRAPH, check=check)


@dataclass
class ChangedSession:
    """Session with wrong outputs, as of an optimizer that fuses nodes wrongly."""

    session: Session

    def __getattr__(self, name: str) -> object:
        return getattr(self.session, name)

    def __enter__(self) -> "ChangedSession":
        return self

    def __exit__(self, *reason: object) -> None:
        self.session.close()

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: -values for name, values in self.session.run(feeds).items()}


@pytest.mark.parametrize("is_wrong_before", [True, False])
def test_optimizer_that_changes_the_result_is_at_fault(is_wrong_before: bool) -> None:
    def open_optimized(graph: Graph) -> Session:
        session = open_session(graph, "reference")
        return ChangedSession(session) if ("same" in graph) == is_wrong_before else session  # type: ignore[return-value]

    way = {"without its optimizer": lambda graph: open_session(graph, "reference")}
    check = Verifier(open_optimized, fallbacks=way)
    if is_wrong_before:
        run(parse("remove_nodes(op=Identity)"), GRAPH, check=check)
        assert "the optimizer of the runtime changes the result of the model before remove_nodes" in check.warning
    else:
        with pytest.raises(CheckError, match="the optimizer of the runtime changes the result of the graph after"):
            run(parse("remove_nodes(op=Identity)"), GRAPH, check=check)


def test_decisions_by_rounding_are_accepted() -> None:
    """Equal scores: which one is the largest depends on the order of a sum."""
    text = """
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[64x3]()
        a = Constant([[0.1, 0.1], [0.7, 0.7], [0.2, 0.2]])
        p = MatMul(x, a)
        b = Constant([0.3, {}])
        s = Add(p, b)
        y = ArgMax(s, axis=1, keepdims=0)
    """
    before, after = from_text(text.format("0.30000004")), from_text(text.format("0.3"))
    assert "y: " in verifier()(before, after, REGISTRY["fold_constants"])
    with pytest.raises(CheckError, match="changes the input of ArgMax 'y' by 0.1"):
        verifier()(before, from_text(text.format("0.4")), REGISTRY["fold_constants"])


@pytest.mark.parametrize("last", ["Sigmoid", "Softmax", "Tanh", "Relu", "Floor"])
def test_the_input_of_a_last_op_that_hides_changes_is_compared(last: str) -> None:
    text = """
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        b = Constant([-60.0, {}, 900.0])
        p = Mul(x, b)
        far = Constant([-700.0, -1000.0, 2000.0])
        s = Add(p, far)
        z = {}(s)
        y = Reshape(z, sizes)
        sizes = Constant[int64]([6])
    """
    before, after = (from_text(text.format(scale, last)) for scale in ("3.0", "3.01"))
    with pytest.raises(CheckError, match=f"changes (the input of {last} 'z'|output 'y')"):
        verifier()(before, after, REGISTRY["fold_constants"])
