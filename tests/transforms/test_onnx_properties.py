"""Properties of the recipe inference on random networks in ONNX: outputs stay, a second run changes nothing."""

from contextlib import suppress

import numpy as np
from hypothesis import assume, given, note
from network_graphs import damaged_graphs, network_graphs

from quantkit.convert.tensorflow_to_onnx import convert
from quantkit.errors import QuantkitError, UnavailableError
from quantkit.formats import onnx
from quantkit.ir.check import verify
from quantkit.ir.graph import Graph
from quantkit.ir.text import to_text
from quantkit.recipes import rewrite
from quantkit.runtimes import find_runtime
from quantkit.runtimes.random_inputs import random_arrays


def as_onnx(graph: Graph) -> Graph:
    try:
        return convert(graph)
    except UnavailableError:
        assume(False)
        raise


def num_computed(graph: Graph) -> int:
    return sum(not node.is_constant for node in graph.nodes.values())


@given(graph=network_graphs())
def test_outputs_stay_and_a_second_run_changes_nothing(graph: Graph) -> None:
    before = as_onnx(graph)
    note(to_text(before))
    data = onnx.encode(before)
    after = rewrite(before, "inference")
    verify(after)
    assert onnx.encode(before) == data, "the input graph was changed"
    assert onnx.encode(rewrite(before, "inference")) == onnx.encode(after), "the result is not deterministic"
    assert rewrite(after, "inference").op_counts == after.op_counts
    assert num_computed(after) <= num_computed(before)
    reference = find_runtime("reference")
    try:
        with reference.open(before) as session:
            feeds = random_arrays(session.inputs)
            expected = session.run(feeds)
    except UnavailableError:
        assume(False)
    with reference.open(onnx.decode(onnx.encode(after))) as session:
        actual = session.run(feeds)
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        largest = max(1.0, float(np.abs(values).max(initial=0)))
        assert np.abs(actual[name] - values).max(initial=0) <= 2e-5 * largest, name


@given(graph=damaged_graphs())
def test_damaged_graph_raises_quantkit_error_only(graph: Graph) -> None:
    """Check graphs with missing nodes, wrong types and cycles."""
    with suppress(QuantkitError):
        rewrite(graph.with_(dialect="onnx"), "inference")
