"""The messages of GraphDef, as a table: field numbers are facts.

The table is turned into classes in a descriptor pool of our own, so that reading a graph needs no
TensorFlow and can not clash with one that is loaded. Fields that are not listed survive as unknown
fields of the binary form.
"""

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "tensorflow"

# message: field number kind; `*` marks a repeated field, `map<key, value>` a map, `?` a member of a oneof.
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

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    word: getattr(_Field, f"TYPE_{word.upper()}")
    for word in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}


@cache
def message_class(name: str) -> Any:
    """The protobuf class of a message of the table."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="quantkit/graphdef.proto", package=PACKAGE, syntax="proto3")
    types = file.enum_type.add(name="DataType")
    for name, number in DATA_TYPES.items():
        types.value.add(name=f"DT_{name}", number=number)
    for name, number in list(DATA_TYPES.items())[1:]:
        types.value.add(name=f"DT_{name}_REF", number=number + 100)
    full = file.enum_type.add(name="FullTypeId")
    words = iter(_FULL_TYPES.split())
    for word, code in zip(words, words, strict=True):
        full.value.add(name=f"TFT_{word}", number=int(code))
    for line in _MESSAGES.replace(",\n  ", ", ").strip().splitlines():
        name, _, fields = line.partition(": ")
        message = file.message_type.add(name=name)
        for field in fields.split(", "):
            _add_field(message, *field.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: Any, name: str, number: str, kind: str) -> None:
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.startswith("map<"):
        entry = message.nested_type.add(name="".join(word.capitalize() for word in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for place, (part, what) in enumerate(zip(("key", "value"), kind[4:-1].split(","), strict=True), start=1):
            _add_field(entry, part, str(place), what)
        field.label = _Field.LABEL_REPEATED
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
        return
    if kind.startswith("?"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="value" if message.name == "AttrValue" else "attr")
        field.oneof_index = 0
    elif kind.startswith("*"):
        field.label = _Field.LABEL_REPEATED
    kind = kind.lstrip("?*")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in ("DataType", "FullTypeId") else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"
