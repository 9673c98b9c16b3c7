from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import InputError, UsageError
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array
from quantkit.ir.text import from_text
from quantkit.quantization import Plan, Range, Ranges, Scheme, annotate, calibrate
from quantkit.quantization.calibration import collect, examples_at_once, memory_bound, open_observed

TEXT = """
inputs: x
outputs: y
x = Placeholder[<?x4>]()
w = Const[4x6]()
b = Const[6]()
v = Const[6x3]()
m = MatMul(x, w, T=float)
n = BiasAdd(m, b, T=float)
r = Relu(n, T=float)
y = MatMul(r, v, T=float)
"""
EXAMPLES = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
SCHEME = Scheme(observer="min_max")


def network() -> Graph:
    return from_text(TEXT)


def ranges_of(plan: Plan, batches: list[Array], graph: Graph | None = None, **options: object) -> Ranges:
    with open_observed(graph or network(), plan, "reference") as session:
        return collect(session, plan, batches, **options)  # type: ignore[arg-type]


def test_ranges_are_those_of_the_data() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    counts: list[int] = []
    ranges = ranges_of(plan, [EXAMPLES[:8], EXAMPLES[8:]], progress=counts.append, at_once=3)
    hidden = np.maximum(EXAMPLES @ graph["w"].value.array + graph["b"].value.array, 0)
    assert ranges[Edge("x")] == Range(float(EXAMPLES.min()), float(EXAMPLES.max()))
    assert ranges[Edge("r")] == pytest.approx((hidden.min(), hidden.max()), rel=1e-5)
    assert (counts[-1], ranges.provenance.count) == (20, 20)
    assert ranges.provenance.scheme == plan.scheme.digest


def test_data_are_known_by_their_digest_however_they_are_cut() -> None:
    plan = annotate(network(), SCHEME)
    first, second = ranges_of(plan, [EXAMPLES]), ranges_of(plan, [EXAMPLES[:5], EXAMPLES[5:]])
    assert first == second
    assert ranges_of(plan, [EXAMPLES[1:]]).provenance.data != first.provenance.data


def test_an_interrupted_calibration_goes_on(tmp_path: Path) -> None:
    plan = annotate(network(), Scheme(bias_correction=True))
    state = tmp_path / "ranges.state.npz"

    def broken() -> Iterator[Array]:
        yield EXAMPLES[:7]
        raise KeyboardInterrupt

    with open_observed(network(), plan, "reference") as session, pytest.raises(KeyboardInterrupt):
        collect(session, plan, broken(), resume=state)
    assert state.exists()
    runs: list[int] = []
    resumed = ranges_of(plan, [EXAMPLES], resume=state, progress=runs.append)
    assert runs[0] == 8, "seven were not run again"
    assert resumed.to_json() == ranges_of(plan, [EXAMPLES]).to_json()
    assert not state.exists()


def test_what_the_guard_saw_before_an_interruption_is_not_forgotten(tmp_path: Path) -> None:
    graph = from_text(TEXT.replace("b = Const[6]()", "b = Const([-99, -99, -99, -99, -99, -99.0])"))
    plan = annotate(graph, SCHEME)
    state = tmp_path / "ranges.state.npz"
    first = EXAMPLES.copy()
    first[2, 1] = np.nan

    def broken() -> Iterator[Array]:
        yield first[:7]
        raise KeyboardInterrupt

    with open_observed(graph, plan, "reference") as session, pytest.raises(KeyboardInterrupt):
        collect(session, plan, broken(), resume=state)
    remarks = ranges_of(plan, [first], graph, resume=state).remarks
    assert remarks == ranges_of(plan, [first], graph).remarks
    assert remarks[0].startswith("x: NaN in 1 values")


def test_other_data_do_not_go_on(tmp_path: Path) -> None:
    plan = annotate(network(), SCHEME)
    state = tmp_path / "ranges.state.npz"

    def broken() -> Iterator[Array]:
        yield EXAMPLES[:7]
        raise KeyboardInterrupt

    with open_observed(network(), plan, "reference") as session, pytest.raises(KeyboardInterrupt):
        collect(session, plan, broken(), resume=state)
    with pytest.raises(InputError, match="fed other data"):
        ranges_of(plan, [EXAMPLES[::-1]], resume=state)
    other = annotate(network())
    assert ranges_of(other, [EXAMPLES], resume=state).provenance.count == 20, "another scheme begins anew"


def test_a_damaged_state_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "state.npz").write_bytes(b"PK broken")
    assert ranges_of(annotate(network(), SCHEME), [EXAMPLES], resume=tmp_path / "state.npz").provenance.count == 20


@pytest.mark.parametrize(
    ("old", "new", "remark"),
    [
        ("b = Const[6]()", "b = Const([nan, 0, 0, 0, 0, 0.0])", "r: NaN in 20 values"),
        ("b = Const[6]()", "b = Const([-99, -99, -99, -99, -99, -99.0])", "r: always 0, so its range is dead"),
        ("b = Const[6]()", "b = Const([inf, 0, 0, 0, 0, 0.0])", "n: its constants b hold NaN or infinity"),
        ("b = Const[6]()", "b = Const([0, 0, 9000, 0, 0, 0.0])", "r: channel 2 reaches"),
    ],
)
def test_the_guard_names_the_layer(old: str, new: str, remark: str) -> None:
    graph = from_text(TEXT.replace(old, new))
    ranges = ranges_of(annotate(graph, SCHEME), [EXAMPLES], graph)
    assert any(one.startswith(remark) for one in ranges.remarks), ranges.remarks


def test_a_constant_beside_others_with_its_range_is_named() -> None:
    """What a concatenation joins shares a range, which is not dead; one of its branches may be."""
    text = TEXT.replace("outputs: y", "outputs: z")
    text += "k = Const(0.0)\nzero = Mul(x, k, T=float)\nh = Const(0.5)\none = AddV2(zero, h, T=float)\n"
    text += "axis = Const[int32](1)\nc = ConcatV2(r, one, axis, T=float, N=2)\nu = Const[10x3]()\n"
    text += "z = MatMul(c, u, T=float)\n"
    graph = from_text(text)
    plan = annotate(graph, SCHEME)
    assert plan.group_of(Edge("one")) > {Edge("one")}
    assert "one: always 0.5, so its range is dead" in ranges_of(plan, [EXAMPLES], graph).remarks


def test_what_does_not_fit_is_said() -> None:
    plan = annotate(network(), SCHEME)
    with pytest.raises(InputError, match="no example"):
        ranges_of(plan, [])
    with pytest.raises(UsageError, match="takes shape"):
        ranges_of(plan, [EXAMPLES[:, :3]])
    with pytest.raises(UsageError, match="is not an input"):
        ranges_of(plan, [{"z": EXAMPLES}])  # type: ignore[list-item]


def test_ranges_are_for_the_target_that_is_named() -> None:
    found = calibrate(network(), [EXAMPLES], target="litert", runtime="reference")
    assert found.provenance.scheme == Scheme.for_target("litert").digest
    assert set(found) >= set(annotate(network(), Scheme.for_target("litert")).activations)


def test_float64_is_fed_as_what_the_graph_takes() -> None:
    plan = annotate(network(), SCHEME)
    assert ranges_of(plan, [EXAMPLES.astype(np.float64)]) == ranges_of(plan, [EXAMPLES])


def test_memory_and_examples_at_once_follow_from_shapes() -> None:
    graph = network()
    plan = annotate(graph, SCHEME)
    assert examples_at_once(graph, plan) == 64
    fixed = from_text(TEXT.replace("<?x4>", "<2x4>"))
    assert examples_at_once(fixed, plan) == 2
    assert memory_bound(graph, plan) < memory_bound(graph, plan, at_once=64)


def test_batches_that_are_fed_as_they_are_count_what_they_are_said_to() -> None:
    """An input without a batch axis: four numbers are one example, not four."""
    graph = from_text(
        """
        inputs: x
        outputs: y
        x = Placeholder[<4>]()
        first = Const[int32](0)
        row = ExpandDims(x, first, T=float, Tdim=int32)
        w = Const[4x6]()
        y = MatMul(row, w, T=float)
        """
    )
    plan = annotate(graph, SCHEME)
    counts: list[int] = []
    options = {"at_once": None, "counted": lambda feeds: 1, "progress": counts.append}
    ranges = ranges_of(plan, list(EXAMPLES), graph, **options)
    assert (ranges.provenance.count, counts[-1]) == (20, 20)
    assert ranges[Edge("row")] == Range(float(EXAMPLES.min()), float(EXAMPLES.max()))


@pytest.mark.engine
def test_encoded_pictures_are_known_by_their_bytes() -> None:
    graph = from_text(
        """
        inputs: text
        outputs: y
        text = Placeholder[<>](dtype=string)
        number = StringToNumber(text, out_type=float)
        sizes = Const[int32]([1, 1])
        x = Reshape(number, sizes, T=float)
        w = Const[1x3]()
        y = MatMul(x, w, T=float)
        """
    )
    plan = annotate(graph, SCHEME)
    with open_observed(graph, plan, "tensorflow") as session:
        texts = [{"text": np.array(one, object)} for one in (b"1.5", b"-2")]
        ranges = collect(session, plan, texts, at_once=None, counted=lambda feeds: 1)
    assert ranges[Edge("x")] == Range(-2.0, 1.5)
    assert ranges.provenance.count == 2
