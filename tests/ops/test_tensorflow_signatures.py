import gzip
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Node, Opaque
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.ops.tensorflow.signatures import (
    OpDef,
    attribute,
    find_op,
    input_dtypes,
    num_outputs,
    op_names,
    output_dtypes,
)

ROOT = Path(__file__).parents[2]


def find_known_op(name: str) -> OpDef:
    op = find_op(name)
    assert op is not None
    return op


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [
        ("Conv2D", "data_format", b"NHWC"),
        ("Conv2D", "dilations", (1, 1, 1, 1)),
        ("Conv2D", "use_cudnn_on_gpu", True),
        ("Conv2D", "strides", None),
        ("ConcatV2", "Tidx", DType.INT32),
        ("LRN", "alpha", 1.0),
        ("LeakyRelu", "alpha", float(np.float32(0.2))),
        ("Placeholder", "shape", Shape(None)),
    ],
)
def test_defaults_are_attribute_values(op: str, name: str, value: Attr | None) -> None:
    assert find_known_op(op).attrs[name].default == value


def test_every_entry_can_be_parsed() -> None:
    attrs = [attr for name in op_names() for attr in find_known_op(name).attrs.values()]
    tensors = [attr.default for attr in attrs if attr.kind == "tensor" and attr.default is not None]
    assert tensors
    assert all(isinstance(value, Tensor) for value in tensors)


def test_properties_of_ops() -> None:
    assert find_known_op("RandomUniform").is_stateful
    assert not find_known_op("Add").is_stateful
    assert find_known_op("Mul").is_commutative
    assert find_known_op("BatchNormWithGlobalNormalization").deprecated == 9
    assert find_known_op("Assign").inputs[0].is_ref
    assert find_op("NoSuchOp") is None


def test_types_of_attributes_and_lists() -> None:
    concat = Node("c", "QuantizedConcat", attrs={"N": 2, "T": DType.QUINT8})
    assert input_dtypes(concat) == (DType.INT32, DType.QUINT8, DType.QUINT8, *(DType.FLOAT,) * 4)
    assert output_dtypes(concat) == (DType.QUINT8, DType.FLOAT, DType.FLOAT)
    assert output_dtypes(Node("i", "IdentityN", attrs={"T": (DType.INT32, DType.FLOAT)})) == (DType.INT32, DType.FLOAT)
    assert output_dtypes(Node("s", "Shape", attrs={"T": DType.FLOAT})) == (DType.INT32,)
    assert output_dtypes(Node("r", "LeakyRelu")) == (DType.FLOAT,)
    assert output_dtypes(Node("a", "Add")) == (None,)
    assert output_dtypes(Node("x", "NoSuchOp")) == ()


def test_number_of_outputs() -> None:
    assert num_outputs(Node("s", "Split", attrs={"num_split": 3})) == 3
    assert num_outputs(Node("n", "NoOp")) == 0
    assert num_outputs(Node("x", "NoSuchOp")) is None


def test_error_names_missing_attribute() -> None:
    with pytest.raises(GraphError, match=r"'s' \(Split\) has no attribute 'num_split'"):
        num_outputs(Node("s", "Split"))
    assert attribute(Node("c", "Conv2D"), "data_format") == b"NHWC"


@pytest.mark.engine
def test_table_agrees_with_the_installed_tensorflow() -> None:
    pytest.importorskip("tensorflow", reason="pip install tensorflow")
    path = ROOT / "assets" / "generate_op_table.py"
    spec = importlib.util.spec_from_file_location("generate_op_table", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    installed = generator.table()
    table = json.loads(gzip.decompress(generator.TABLE.read_bytes()))
    # Other TensorFlow versions add and remove a few ops: run assets/generate_op_table.py if this fails.
    differing = [name for name in table if table[name] != installed.get(name)]
    assert len(differing) < 0.02 * len(table), differing


def test_a_type_list_must_be_a_list() -> None:
    node = Node("w", "While", attrs={"T": Opaque(b"x")})
    with pytest.raises(GraphError, match=r"attribute 'T' of node 'w' \(While\) is not a list of types"):
        output_dtypes(node)
