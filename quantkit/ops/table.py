"""Facts of ops, one row for each op, with its names in both dialects.

Sets of ops are queries on this table:

    >>> sorted(find_ops(Fact.DIVISION))
    ['Div', 'DivNoNan', 'RealDiv']

Kernels, conversions, and shape rules of ops that change shapes are functions; each is registered with the name of its
op. The guide "Add an op" shows a whole op.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from types import MappingProxyType

DIALECTS = ("tensorflow", "onnx")


class Fact(Flag):
    """Property of an op."""

    # The first input and the output have the same shape, and an element depends on the element at its position.
    UNARY = auto()
    # The same with several inputs, which broadcast.
    BINARY = auto()
    # Both dialects have the op, and it means the same without attributes.
    SAME = auto()
    # The output is the first input.
    IDENTITY = auto()
    # The output has the values of the first input in their order, in another shape.
    VIEW = auto()
    # The outputs are values of the inputs: moved, selected or repeated.
    MOVEMENT = auto()
    REDUCTION = auto()
    # The output depends on the shape of the input only.
    SHAPE = auto()

    ADDITION = auto()
    DIVISION = auto()
    # Sum, difference, product or quotient of two operands.
    ARITHMETIC = auto()
    COMPARISON = auto()
    # The output is boolean.
    BOOLEAN = auto()
    # The output is a size or an index, int64 in ONNX.
    INDEX = auto()
    # Elementwise activation of layers, without other inputs.
    ACTIVATION = auto()
    # The output is never negative.
    NONNEGATIVE = auto()
    # f(s x) = s f(x) for s > 0
    HOMOGENEOUS = auto()
    # f(f(x)) = f(x)
    IDEMPOTENT = auto()
    # The output is smooth in the constants of the op.
    SMOOTH = auto()
    # The output hides changes of the input: it is saturated, clamped or rounded, or a decision.
    HIDING = auto()
    # The output approaches a limit: small and large inputs give nearly equal outputs.
    SATURATING = auto()
    # Small errors of small inputs become large errors of the output.
    AMPLIFYING = auto()
    # NaN gives the same output in all runtimes.
    EXACT_NAN = auto()
    # Runtimes reuse the memory of an input for the output.
    IN_PLACE = auto()

    CONVOLUTION = auto()
    TRANSPOSED_CONVOLUTION = auto()
    # Matrix product whose second operand can be weights.
    PRODUCT = auto()
    RECURRENT = auto()
    # Normalization with stored means, and with means of its input.
    BATCH_NORM = auto()
    NORMALIZATION = auto()
    GATHER = auto()
    PAD = auto()
    CONCAT = auto()
    AVERAGE = auto()
    VARIABLE = auto()
    CALL = auto()
    IF = auto()
    CASE = auto()
    LOOP = auto()

    # Roles in the quantizer. The op looks up rows of a table, which can be int8.
    LOOKUP = auto()
    # An op without computation: a constant, an input, a control dependency.
    SOURCE = auto()
    # The op adds a constant per channel to a layer.
    BIAS = auto()
    # The layer is not part of fused patterns.
    UNFUSED = auto()
    # The int8 kernel of the layer can add a residual.
    SUM_LAYER = auto()
    # The int8 kernel of the layer has int8 outputs only.
    INT8_OUTPUT = auto()
    # The kernel of a layer computes the activation.
    FUSED = auto()
    # The op computes on quantized values without weights, with the parameters of its input.
    PASS_THROUGH = auto()
    # Such an op with parameters of its own for each input and the output.
    REQUANTIZING = auto()
    # Such an op of a gated activation, x * gate(x): in int8 after layers whose outputs are int8 in any case.
    GATE = auto()
    # Such an op that selects a part of its input, whose range may be smaller.
    SELECTION = auto()
    # Such an op with more output than input values.
    REPETITION = auto()


ANY_CONVOLUTION = Fact.CONVOLUTION | Fact.TRANSPOSED_CONVOLUTION
LAYER = ANY_CONVOLUTION | Fact.PRODUCT
ELEMENTWISE = Fact.UNARY | Fact.BINARY
CONTROL_FLOW = Fact.CALL | Fact.IF | Fact.CASE | Fact.LOOP


# Op types of TensorFlow | op types of ONNX | facts of both; `tensorflow:` and `onnx:` limit facts to one dialect. The
# converters write the first op type.
_TABLE = """
Conv2D                        | Conv                   | convolution smooth sum_layer onnx:int8_output
DepthwiseConv2dNative         |                        | convolution smooth sum_layer
Conv2DBackpropInput           | ConvTranspose          | transposed_convolution smooth tensorflow:unfused
MatMul                        | MatMul                 | product smooth tensorflow:sum_layer
                              | Gemm                   | product smooth
BatchMatMulV2 BatchMatMul BatchMatMulV3 |              | smooth
Einsum                        | Einsum                 | smooth
                              | LSTM                   | recurrent smooth
                              | GRU                    | recurrent smooth
                              | RNN                    | recurrent smooth

FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 | BatchNormalization | batch_norm smooth in_place
BatchNormWithGlobalNormalization |                     | batch_norm smooth in_place
                              | LayerNormalization     | normalization smooth
                              | InstanceNormalization  | normalization smooth
                              | GroupNormalization     | normalization smooth
                              | RMSNormalization       | normalization smooth
                              | LpNormalization        | normalization
LRN                           | LRN                    | onnx:normalization

AddV2 Add          | Add | same binary addition arithmetic bias smooth in_place exact_nan onnx:pass_through,requantizing
BiasAdd            |     | bias arithmetic smooth in_place
AddN               | Sum | arithmetic smooth in_place exact_nan onnx:binary
Sub                | Sub | same binary arithmetic smooth in_place exact_nan
Mul                | Mul | same binary arithmetic smooth in_place exact_nan onnx:pass_through,requantizing
RealDiv Div        | Div | same binary division arithmetic smooth in_place exact_nan
DivNoNan           |     | binary division
Maximum            | Max | same binary in_place
Minimum            | Min | same binary in_place
Pow                | Pow | same binary
                   | Mean | binary
SquaredDifference  |     | binary nonnegative
FloorMod           | Mod | binary
FloorDiv           |     | binary
TruncateDiv        |     | binary
TruncateMod Mod    |     | binary
MulNoNan           |     | binary
Xdivy              |     | binary
Xlogy              |     | binary
Atan2              |     | binary
BitwiseAnd         | BitwiseAnd | binary
BitwiseOr          | BitwiseOr  | binary
BitwiseXor         | BitwiseXor | binary
                   | BitShift   | binary
LeftShift          |     | binary
RightShift         |     | binary

Equal              | Equal          | same binary comparison boolean hiding exact_nan
NotEqual           |                | binary comparison boolean
Greater            | Greater        | same binary comparison boolean hiding
GreaterEqual       | GreaterOrEqual | same binary comparison boolean hiding
Less               | Less           | same binary comparison boolean hiding
LessEqual          | LessOrEqual    | same binary comparison boolean hiding
LogicalAnd         | And            | same binary boolean idempotent
LogicalOr          | Or             | same binary boolean
LogicalNot         | Not            | same unary boolean
IsInf              | IsInf          | same unary boolean exact_nan
IsNan              | IsNaN          | same unary boolean exact_nan
IsFinite           |                | unary boolean exact_nan
                   | Xor            | binary boolean

Relu | Relu | same unary activation nonnegative homogeneous idempotent hiding in_place fused pass_through
Relu6              |                | unary activation nonnegative idempotent hiding in_place fused pass_through
                   | Clip           | unary hiding in_place fused pass_through
LeakyRelu          | LeakyRelu      | unary activation homogeneous in_place onnx:pass_through,requantizing
                   | PRelu          | binary homogeneous smooth in_place
Elu                | Elu            | same unary activation in_place
Selu               | Selu           | same unary activation in_place
Sigmoid | Sigmoid | same unary activation nonnegative hiding saturating in_place onnx:pass_through,requantizing,gate
Tanh               | Tanh           | same unary activation hiding in_place
Softplus           | Softplus       | same unary activation nonnegative
                   | HardSigmoid    | unary nonnegative hiding in_place
                   | HardSwish      | unary in_place onnx:pass_through,requantizing,gate
Softmax            | Softmax        | nonnegative hiding saturating in_place
LogSoftmax         | LogSoftmax     | hiding saturating
Log                | Log            | same unary in_place amplifying
Log1p              |                | unary amplifying
Abs                | Abs            | same unary nonnegative homogeneous idempotent in_place
Exp                | Exp            | same unary nonnegative in_place
Sqrt               | Sqrt           | same unary nonnegative smooth in_place exact_nan
Rsqrt              |                | unary nonnegative smooth in_place
Square             |                | unary nonnegative in_place
Neg                | Neg            | same unary in_place exact_nan
Reciprocal Inv     | Reciprocal     | unary smooth
Ceil               | Ceil           | same unary idempotent hiding
Floor              | Floor          | same unary idempotent hiding
Round Rint         | Round          | same unary idempotent hiding
Sign               | Sign           | same unary idempotent hiding
Cast               | Cast           | unary hiding
Acos               | Acos           | same unary
Acosh              | Acosh          | same unary
Asin               | Asin           | same unary
Asinh              | Asinh          | same unary
Atan               | Atan           | same unary
Atanh              | Atanh          | same unary
Cos                | Cos            | same unary
Cosh               | Cosh           | same unary
Sin                | Sin            | same unary
Sinh               | Sinh           | same unary
Tan                | Tan            | same unary
Softsign           | Softsign       | same unary
Erf                | Erf            | same unary
Erfc               |                | unary
Expm1              |                | unary
Digamma            |                | unary
Invert             | BitwiseNot     | unary
                   | Celu           | unary
                   | Gelu com.microsoft.Gelu com.microsoft.FastGelu com.microsoft.QuickGelu | unary
                   | Mish           | unary
                   | Shrink         | unary
                   | Swish          | unary
                   | ThresholdedRelu | unary

Identity           | Identity  | unary identity view movement homogeneous exact_nan pass_through
StopGradient       |           | unary identity view movement exact_nan
PreventGradient    |           | unary identity view movement
Snapshot           |           | unary identity view movement
CheckNumerics      |           | unary identity view movement
PlaceholderWithDefault |       | identity view movement
IdentityN          |           | identity
EnsureShape        |           | identity view movement
                   | Dropout   | identity view movement
Reshape            | Reshape   | view movement exact_nan pass_through
Squeeze            | Squeeze   | view movement exact_nan pass_through
ExpandDims         | Unsqueeze | view movement exact_nan pass_through
                   | Flatten   | view movement exact_nan pass_through
Transpose          | Transpose | movement exact_nan onnx:pass_through
Slice              | Slice     | movement exact_nan onnx:pass_through,selection
StridedSlice       |           | movement exact_nan
Split              | Split     | movement exact_nan onnx:pass_through,selection
SplitV             |           | movement exact_nan
GatherV2 Gather    | Gather    | gather movement exact_nan onnx:lookup,pass_through,selection
GatherNd           | GatherND  | movement exact_nan
BroadcastTo        | Expand    | movement exact_nan onnx:pass_through,repetition
Tile               | Tile      | movement exact_nan onnx:pass_through,repetition
Pack               |           | movement exact_nan
Unpack             |           | movement exact_nan
ReverseV2 Reverse  |           | movement
DepthToSpace       | DepthToSpace | movement onnx:pass_through
SpaceToDepth       | SpaceToDepth | movement
ConcatV2 Concat    | Concat    | concat movement exact_nan pass_through onnx:requantizing
Pad                | Pad       | pad exact_nan tensorflow:pass_through
PadV2              |           | pad exact_nan
MirrorPad          |           | pad tensorflow:pass_through
MaxPool            | MaxPool   | pass_through
AvgPool            | AveragePool | average pass_through
                   | Resize    | pass_through repetition
                   | Upsample  | pass_through repetition
Where              |           | index
                   | Where     | exact_nan
SelectV2 Select    |           | exact_nan
Fill               |           | exact_nan
                   | ConstantOfShape | exact_nan
                   | Trilu     | exact_nan
OnesLike           |           | unary exact_nan
ZerosLike          |           | unary exact_nan

Sum                | ReduceSum  | reduction
Mean               | ReduceMean | reduction tensorflow:average,pass_through
Max                | ReduceMax  | reduction
Min                | ReduceMin  | reduction
Prod               | ReduceProd | reduction
                   | ReduceL1   | reduction nonnegative
EuclideanNorm      | ReduceL2   | reduction nonnegative
                   | ReduceSumSquare | reduction nonnegative
                   | ReduceLogSum | reduction
                   | ReduceLogSumExp | reduction
All                |            | reduction boolean
Any                |            | reduction boolean

Shape ShapeN       | Shape      | shape index exact_nan
Size               | Size       | shape index exact_nan
Rank               |            | shape index exact_nan
ArgMax             | ArgMax     | index hiding
ArgMin             | ArgMin     | index hiding
                   | NonZero    | index
                   | NonMaxSuppression | index
TopKV2             | TopK       | hiding
                   | Hardmax    | hiding

Const              | Constant   | source exact_nan
Placeholder        | Placeholder | source
                   | Absent     | source
NoOp               |            | source
Variable VariableV2 VarHandleOp | | variable
PartitionedCall StatefulPartitionedCall | | call
If StatelessIf     | If         | if
Case StatelessCase |            | case
While StatelessWhile | Loop     | loop
                   | Scan       | loop
"""


@dataclass(frozen=True)
class Op:
    """One row of the table.

    Attributes:
        names: op types by dialect; the converter writes the first.
        facts: facts by dialect.
    """

    names: Mapping[str, tuple[str, ...]]
    facts: Mapping[str, Fact]


def _parse(row: str) -> Op:
    *columns, facts = (column.split() for column in row.split("|"))
    facts_of = dict.fromkeys(DIALECTS, Fact(0))
    for stated in facts:
        dialect, _, names = stated.rpartition(":")
        for name in names.split(","):
            for each in [dialect] if dialect else DIALECTS:
                facts_of[each] |= Fact[name.upper()]
    return Op(dict(zip(DIALECTS, map(tuple, columns), strict=True)), facts_of)


OPS = tuple(_parse(row) for row in _TABLE.splitlines() if row)


@cache
def find_ops(facts: Fact, dialect: str = "") -> frozenset[str]:
    """Return the op types of which at least one of some facts is true.

    Args:
        facts: one fact, or several joined by ``|``.
        dialect: ``tensorflow`` or ``onnx``; empty for both.
    """
    dialects = (dialect,) if dialect else DIALECTS
    return frozenset(name for op in OPS for each in dialects if op.facts[each] & facts for name in op.names[each])


@cache
def find_names(facts: Fact, dialect: str) -> Mapping[str, str]:
    """Return the op types with a fact that both dialects have, and their op types in the other dialect.

    >>> find_names(Fact.DIVISION, "tensorflow")["Div"], find_names(Fact.DIVISION, "onnx")["Div"]
    ('Div', 'RealDiv')
    """
    (other,) = set(DIALECTS) - {dialect}
    rows = [op for op in OPS if op.facts[dialect] & facts and op.facts[dialect] & Fact.SAME]
    return MappingProxyType({name: op.names[other][0] for op in rows for name in op.names[dialect]})
