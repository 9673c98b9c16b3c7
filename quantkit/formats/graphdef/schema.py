"""Table of the GraphDef messages; see `quantkit.formats.descriptors`."""

import re
from typing import Any

from quantkit.errors import InputError, one_line
from quantkit.formats.descriptors import Schema

_MESSAGES = """
GraphDef: node 1 *NodeDef, library 2 FunctionDefLibrary, version 3 int32, versions 4 VersionDef
VersionDef: producer 1 int32, min_consumer 2 int32, bad_consumers 3 *int32
NodeDef: name 1 string, op 2 string, input 3 *string, device 4 string, attr 5 map<string,AttrValue>,
  experimental_debug_info 6 NodeDebugInfo, experimental_type 7 FullTypeDef
NodeDebugInfo: original_node_names 1 *string, original_func_names 2 *string
AttrValue: list 1 ?ListValue, s 2 ?bytes, i 3 ?int64, f 4 ?float, b 5 ?bool, type 6 ?DataType,
  shape 7 ?TensorShapeProto, tensor 8 ?TensorProto, placeholder 9 ?string, func 10 ?NameAttrList
ListValue: s 2 *bytes, i 3 *int64, f 4 *float, b 5 *bool, type 6 *DataType, shape 7 *TensorShapeProto,
  tensor 8 *TensorProto, func 9 *NameAttrList
NameAttrList: name 1 string, attr 2 map<string,AttrValue>
TensorShapeProto: dim 2 *Dim, unknown_rank 3 bool
Dim: size 1 int64, name 2 string
TensorProto: dtype 1 DataType, tensor_shape 2 TensorShapeProto, version_number 3 int32, tensor_content 4 bytes,
  float_val 5 *float, double_val 6 *double, int_val 7 *int32, string_val 8 *bytes, scomplex_val 9 *float,
  int64_val 10 *int64, bool_val 11 *bool, dcomplex_val 12 *double, half_val 13 *int32,
  resource_handle_val 14 *ResourceHandleProto, variant_val 15 *VariantTensorDataProto, uint32_val 16 *uint32,
  uint64_val 17 *uint64, float8_val 18 bytes
ResourceHandleProto: device 1 string, container 2 string, name 3 string, hash_code 4 uint64,
  maybe_type_name 5 string, dtypes_and_shapes 6 *DtypeAndShape
DtypeAndShape: dtype 1 DataType, shape 2 TensorShapeProto
VariantTensorDataProto: type_name 1 string, metadata 2 bytes, tensors 3 *TensorProto
FullTypeDef: type_id 1 FullTypeId, args 2 *FullTypeDef, s 3 ?string, i 4 ?int64
FunctionDefLibrary: function 1 *FunctionDef, gradient 2 *GradientDef, registered_gradients 3 *RegisteredGradient
FunctionDef: signature 1 OpDef, node_def 3 *NodeDef, ret 4 map<string,string>, attr 5 map<string,AttrValue>,
  control_ret 6 map<string,string>, arg_attr 7 map<uint32,ArgAttrs>, resource_arg_unique_id 8 map<uint32,uint32>
ArgAttrs: attr 1 map<string,AttrValue>
GradientDef: function_name 1 string, gradient_func 2 string
RegisteredGradient: gradient_func 1 string, registered_op_type 2 string
OpDef: name 1 string, input_arg 2 *ArgDef, output_arg 3 *ArgDef, attr 4 *AttrDef,
  summary 5 string, description 6 string, deprecation 8 OpDeprecation,
  is_aggregate 16 bool, is_stateful 17 bool, is_commutative 18 bool,
  allows_uninitialized_input 19 bool, control_output 20 *string, is_distributed_communication 21 bool
ArgDef: name 1 string, description 2 string, type 3 DataType, type_attr 4 string, number_attr 5 string,
  type_list_attr 6 string, handle_data 7 *DtypeAndShape, is_ref 16 bool, experimental_full_type 17 FullTypeDef
AttrDef: name 1 string, type 2 string, default_value 3 AttrValue, description 4 string, has_minimum 5 bool,
  minimum 6 int64, allowed_values 7 AttrValue
OpDeprecation: version 1 int32, explanation 2 string
OpList: op 1 *OpDef
SavedModel: saved_model_schema_version 1 int64, meta_graphs 2 *MetaGraphDef
MetaGraphDef: meta_info_def 1 MetaInfoDef, graph_def 2 GraphDef, saver_def 3 SaverDef,
  signature_def 5 map<string,SignatureDef>, object_graph_def 7 SavedObjectGraph
MetaInfoDef: meta_graph_version 1 string, stripped_op_list 2 OpList, tags 4 *string, tensorflow_version 5 string,
  tensorflow_git_version 6 string, stripped_default_attrs 7 bool
SaverDef: restore_op_name 3 string
SavedObjectGraph: concrete_functions 2 map<string,SavedConcreteFunction>
SavedConcreteFunction: bound_inputs 2 *int32
SignatureDef: inputs 1 map<string,TensorInfo>, outputs 2 map<string,TensorInfo>, method_name 3 string
TensorInfo: name 1 string, dtype 2 DataType, tensor_shape 3 TensorShapeProto
"""

_DATA_TYPES = (
    "INVALID FLOAT DOUBLE INT32 UINT8 INT16 INT8 STRING COMPLEX64 INT64 BOOL QINT8 QUINT8 QINT32 BFLOAT16 QINT16 "
    "QUINT16 UINT16 COMPLEX128 HALF RESOURCE VARIANT UINT32 UINT64 FLOAT8_E5M2 FLOAT8_E4M3FN FLOAT8_E4M3FNUZ "
    "FLOAT8_E4M3B11FNUZ FLOAT8_E5M2FNUZ INT4 UINT4 INT2 UINT2"
)
_FULL_TYPES = (
    "UNSET 0 VAR 1 ANY 2 PRODUCT 3 NAMED 4 FOR_EACH 20 CALLABLE 100 BOOL 200 UINT8 201 UINT16 202 UINT32 203 "
    "UINT64 204 INT8 205 INT16 206 INT32 207 INT64 208 HALF 209 FLOAT 210 DOUBLE 211 COMPLEX64 212 COMPLEX128 213 "
    "STRING 214 BFLOAT16 215 TENSOR 1000 ARRAY 1001 OPTIONAL 1002 LITERAL 1003 ENCODED 1004 SHAPE_TENSOR 1005 "
    "DATASET 10102 RAGGED 10103 ITERATOR 10104 MUTEX_LOCK 10202 LEGACY_VARIANT 10203"
)

DATA_TYPES = {name: number for number, name in enumerate(_DATA_TYPES.split())}
_TYPE_NUMBERS = {f"DT_{name}": number for name, number in DATA_TYPES.items()}
_REFERENCES = {f"DT_{name}_REF": number + 100 for name, number in DATA_TYPES.items() if number}
_FULL_TYPE_PARTS = _FULL_TYPES.split()

SCHEMA = Schema(
    "tensorflow",
    _MESSAGES,
    {
        "DataType": {**_TYPE_NUMBERS, **_REFERENCES},
        "FullTypeId": {
            f"TFT_{name}": int(number)
            for name, number in zip(_FULL_TYPE_PARTS[::2], _FULL_TYPE_PARTS[1::2], strict=True)
        },
    },
)
message_class = SCHEMA.message_class
parse = SCHEMA.parse


def parse_text(name: str, text: str, *, allow_unknown: bool = False) -> Any:
    """Parse a message of the schema from protobuf's text form.

    Args:
        name: name of the message.
        text: text form of the message.
        allow_unknown: ignore fields that are not in the schema.

    Raises:
        InputError: the text is not such a message; the error has line and column.
    """
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, message_class(name)(), allow_unknown_field=allow_unknown)
    except text_format.ParseError as error:
        where = f"line {error.GetLine()}, column {error.GetColumn()}: " if error.GetLine() else ""
        raise InputError(where + one_line(re.sub(r"^\d+:\d+ : ", "", str(error)))) from None
    except RecursionError:
        raise InputError("the messages are nested too deeply") from None
