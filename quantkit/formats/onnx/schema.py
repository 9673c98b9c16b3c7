"""Table of the ONNX messages; see `quantkit.formats.descriptors`."""

from quantkit.formats.descriptors import Schema

# Enums are plain integers here, so that values of later versions survive. The original schema is proto2; proto3 does
# not distinguish a missing field from a zero, which have the same meaning in ONNX.
_MESSAGES = """
ModelProto: ir_version 1 int64, producer_name 2 string, producer_version 3 string, domain 4 string,
  model_version 5 int64, doc_string 6 string, graph 7 GraphProto, opset_import 8 *OperatorSetIdProto,
  metadata_props 14 *StringStringEntryProto, functions 25 *FunctionProto
OperatorSetIdProto: domain 1 string, version 2 int64
StringStringEntryProto: key 1 string, value 2 string
GraphProto: node 1 *NodeProto, name 2 string, initializer 5 *TensorProto, doc_string 10 string,
  input 11 *ValueInfoProto, output 12 *ValueInfoProto, value_info 13 *ValueInfoProto,
  sparse_initializer 15 *SparseTensorProto, metadata_props 16 *StringStringEntryProto
FunctionProto: name 1 string, input 4 *string, output 5 *string, attribute 6 *string, node 7 *NodeProto,
  opset_import 9 *OperatorSetIdProto, domain 10 string, attribute_proto 11 *AttributeProto, overload 13 string
NodeProto: input 1 *string, output 2 *string, name 3 string, op_type 4 string, attribute 5 *AttributeProto,
  doc_string 6 string, domain 7 string, overload 8 string, metadata_props 9 *StringStringEntryProto
AttributeProto: name 1 string, f 2 float, i 3 int64, s 4 bytes, t 5 TensorProto, g 6 GraphProto, floats 7 *float,
  ints 8 *int64, strings 9 *bytes, tensors 10 *TensorProto, graphs 11 *GraphProto, doc_string 13 string,
  tp 14 TypeProto, type_protos 15 *TypeProto, type 20 int32, ref_attr_name 21 string,
  sparse_tensor 22 SparseTensorProto, sparse_tensors 23 *SparseTensorProto
TensorProto: dims 1 *int64, data_type 2 int32, float_data 4 *float, int32_data 5 *int32, string_data 6 *bytes,
  int64_data 7 *int64, name 8 string, raw_data 9 bytes, double_data 10 *double, uint64_data 11 *uint64,
  doc_string 12 string, external_data 13 *StringStringEntryProto, data_location 14 int32
SparseTensorProto: values 1 TensorProto, indices 2 TensorProto, dims 3 *int64
ValueInfoProto: name 1 string, type 2 TypeProto, doc_string 3 string, metadata_props 4 *StringStringEntryProto
TypeProto: tensor_type 1 ?TensorTypeProto, denotation 6 string
TensorTypeProto: elem_type 1 int32, shape 2 TensorShapeProto
TensorShapeProto: dim 1 *DimensionProto
DimensionProto: dim_value 1 ?int64, dim_param 2 ?string, denotation 3 string
"""

SCHEMA = Schema("onnx", _MESSAGES)
message_class = SCHEMA.message_class
parse_message = SCHEMA.parse

# Field numbers.
NODE, INITIALIZER, INPUT, OUTPUT, SPARSE = 1, 5, 11, 12, 15
NODE_ATTRIBUTE, ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, RAW_DATA = 5, 5, 6, 9
MODEL_GRAPH = 7
FLOAT, INT, STRING, TENSOR, GRAPH, FLOATS, INTS, STRINGS, TENSORS, SPARSE_TENSOR = 1, 2, 3, 4, 5, 6, 7, 8, 9, 11
