"""The table of ops against the definitions of both formats, and against the functions registered for its ops."""

import re
from pathlib import Path

import pytest

import quantkit.convert.onnx_to_tensorflow.elementwise
import quantkit.convert.tensorflow_to_onnx.elementwise  # noqa: F401
from quantkit.convert.onnx_to_tensorflow import translator as onnx_translator
from quantkit.convert.tensorflow_to_onnx import translator
from quantkit.ops import kernels
from quantkit.ops.onnx import kernels as onnx_kernels
from quantkit.ops.onnx import shapes as onnx_shapes
from quantkit.ops.table import ELEMENTWISE, OPS, Fact, find_names, find_ops
from quantkit.ops.tensorflow import shapes
from quantkit.ops.tensorflow.signatures import op_names

ROOT = Path(__file__).parents[2]
_SNIPPET = re.compile(r"```text\n# (\S+)\n(.*?)```", re.DOTALL)


def test_tensorflow_names_exist() -> None:
    assert {name for op in OPS for name in op.names["tensorflow"]} <= set(op_names())


def test_onnx_names_exist() -> None:
    defs = pytest.importorskip("onnx").defs
    names = {name for op in OPS for name in op.names["onnx"] if "." not in name}
    # Inputs and omitted inputs are nodes of a graph here, not of a file.
    assert names - {schema.name for schema in defs.get_all_schemas()} == {"Placeholder", "Absent"}


def test_names_are_unique() -> None:
    for dialect in ("tensorflow", "onnx"):
        names = [name for op in OPS for name in op.names[dialect]]
        assert sorted(names) == sorted(set(names))


def test_each_op_has_a_fact_and_a_name() -> None:
    assert all(any(op.facts.values()) and any(op.names.values()) for op in OPS)


def test_elementwise_ops_have_shape_rules() -> None:
    for dialect, rules in (("tensorflow", shapes.RULES), ("onnx", onnx_shapes.RULES)):
        assert find_ops(ELEMENTWISE, dialect) - rules.keys() == frozenset()


def test_same_ops_are_converted_in_both_directions() -> None:
    assert find_names(ELEMENTWISE, "tensorflow").keys() - translator.HANDLERS.keys() == frozenset()
    assert find_names(ELEMENTWISE, "onnx").keys() - onnx_translator.HANDLERS.keys() == frozenset()


def test_same_ops_have_kernels_in_both_dialects() -> None:
    same = find_ops(Fact.SAME, "tensorflow")
    assert {op for op in same if not kernels.has_kernel(op)} == set()
    assert {op for op in find_ops(Fact.SAME, "onnx") if not onnx_kernels.has_kernel(op)} == set()


def test_guide_shows_the_code() -> None:
    snippets = _SNIPPET.findall((ROOT / "assets" / "guides" / "add-an-op.md").read_text())
    assert len(snippets) == 3
    for file, text in snippets:
        assert text.strip() in (ROOT / file).read_text(), file
