"""Conversion between ONNX models and graphs of dialect ``onnx``.

In ONNX values have names, in a graph nodes have. The name of a node is the name of its first output:

    value "x"  <->  Edge("x")                       value of a later output  <->  Edge("x", 1), Edge("x", 2) ...

The attribute ``_outputs`` has the names of all outputs of a node with several outputs. A model input is a
``Placeholder``, an initializer a ``Constant``; an omitted input is the node ``""`` (`ABSENT`). Operators of other
domains have the op type ``domain.Op``. A node with subgraphs has control dependencies on the values that these use.
Functions of a model are inlined.
"""

from quantkit.formats.onnx.reader import decode, decode_subgraph, has_functions
from quantkit.formats.onnx.schema import MODEL_GRAPH
from quantkit.formats.onnx.tensors import external_data_reader
from quantkit.formats.onnx.values import (
    ABSENT,
    DIALECT,
    INITIALIZER_BYTES,
    OPSET,
    OUTPUTS,
    edge_of,
    edges_by_name,
    header,
    node_name,
    opsets,
    renamed_infos,
    retyped_infos,
    value_infos,
    value_name,
    with_dimension_names,
    with_node_names,
)
from quantkit.formats.onnx.writer import chunks, encode, encode_subgraph, needs_data_file, write, write_data

__all__ = [
    "ABSENT",
    "DIALECT",
    "INITIALIZER_BYTES",
    "MODEL_GRAPH",
    "OPSET",
    "OUTPUTS",
    "chunks",
    "decode",
    "decode_subgraph",
    "edge_of",
    "edges_by_name",
    "encode",
    "encode_subgraph",
    "external_data_reader",
    "has_functions",
    "header",
    "needs_data_file",
    "node_name",
    "opsets",
    "renamed_infos",
    "retyped_infos",
    "value_infos",
    "value_name",
    "with_dimension_names",
    "with_node_names",
    "write",
    "write_data",
]
