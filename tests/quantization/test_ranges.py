import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.errors import InputError
from quantkit.ir.graph import Edge
from quantkit.ir.text import from_text
from quantkit.quantization.ranges import Provenance, Range, Ranges, graph_digest

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.sampled_from([Edge("a"), Edge("b", 1), Edge("c/d")]), st.tuples(FLOATS, FLOATS)))
def test_ranges_round_trip_bit_for_bit(values: dict[Edge, tuple[float, float]]) -> None:
    ranges = Ranges(
        {edge: Range(*limits) for edge, limits in values.items()}, Provenance("g", "d", "s", 3), ("a warning",)
    )
    assert Ranges.from_json(json.loads(ranges.text)) == ranges


def test_a_file_has_one_line_per_range(tmp_path: Path) -> None:
    ranges = Ranges({Edge("a"): Range(float(np.float32(-0.1)), 1.0)}, means={Edge("a"): (0.5, 0.25)})
    ranges.save(tmp_path / "ranges.json")
    assert '\n  "a": [-0.1, 1.0]' in (tmp_path / "ranges.json").read_text()
    assert Ranges.load(tmp_path / "ranges.json") == ranges


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"schema": "quantkit.ranges/2", "ranges": {"a": 3}}'])
def test_a_damaged_file_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "ranges.json").write_text(text)
    with pytest.raises(InputError):
        Ranges.load(tmp_path / "ranges.json")


def test_ranges_print_as_a_sentence() -> None:
    ranges = Ranges({Edge("x"): Range(0.0, 1.0), Edge("y"): Range(0.0, 2.0)}, Provenance(count=3))
    assert str(ranges) == "ranges of 2 tensors, calibrated on 3 samples"


def test_ranges_of_another_graph_are_an_error() -> None:
    graph = from_text("inputs: x\noutputs: y\nx = Placeholder()\nw = Const(1.0)\ny = Mul(x, w)")
    other = from_text("inputs: x\noutputs: y\nx = Placeholder()\nw = Const(2.0)\ny = Mul(x, w)")
    ranges = Ranges({}, Provenance(graph_digest(graph), "d", "s", 1))
    ranges.require_graph(graph)
    with pytest.raises(InputError, match="calibrated on graph"):
        ranges.require_graph(other)
    Ranges({}).require_graph(other)  # ranges without provenance fit every graph
    assert not ranges.has_other_scheme("s")
    assert not Ranges({}).has_other_scheme("t")
    assert ranges.has_other_scheme("t")


def test_a_group_gets_the_union_of_its_ranges() -> None:
    ranges = Ranges({Edge("a"): Range(0.0, 1.0), Edge("b"): Range(-2.0, 0.5), Edge("c"): Range(0.0, 9.0)})
    merged = ranges.merge_groups([frozenset({Edge("a"), Edge("b"), Edge("d")})])
    assert merged[Edge("a")] == merged[Edge("b")] == merged[Edge("d")] == Range(-2.0, 1.0)
    assert merged[Edge("c")] == Range(0.0, 9.0)
