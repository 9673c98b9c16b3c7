"""Remove arithmetic no-ops and merge consecutive operations."""

from quantkit.formats import onnx
from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome, apply_rules
from quantkit.ops.shape_inference import infer
from quantkit.transforms.cleanup import _number_identities, _shape_identities
from quantkit.transforms.cleanup._identities import as_rule, remove_new_identities
from quantkit.transforms.onnx import _arithmetic as onnx_arithmetic
from quantkit.transforms.registry import transform


@transform(dialects=("tensorflow", "onnx"))
def simplify_arithmetic(graph: Graph, *, signed_zeros: bool = True) -> Outcome:
    """Apply identities of algebra, logic and shapes until none applies.

    Before:  y = Reshape(Transpose(Transpose(Mul(x, 1.0), [1, 0]), [1, 0]), shape of x)
    After:   y = x

    Options:
        signed_zeros: treat 0 and -0 as different; x + 0 stays if x may be -0 (default: true).

    Removal is bit-exact: factors and divisors of 1, summands of 0, no-op casts, reshapes,
    transposes, pads, slices, tiles and reductions, inverse pairs, constant selections, and known
    sizes. Merged factors or summands, and a factor merged with a negation, round once instead of
    twice: results differ by float32 rounding.

    Biases, constant factors and activations of a layer move before its Squeeze, which then often
    cancels an ExpandDims: Keras computes 1-D convolutions as 2-D ones.

    A Reshape with a computed target shape that has one unknown size gets a constant target shape
    with -1 for that size.

    In ONNX graphs also: consecutive views become one Reshape, a transpose that moves only axes of
    size 1 becomes a Reshape, also with a view and a second transpose after it, consecutive slices and
    concatenations are merged, Slice and Squeeze become Gather, a Squeeze after a reduction becomes
    keepdims=0, x * (1 / y) becomes x / y, and elementwise ops, pads and reductions between
    transposes compute before them where fewer transposes then remain.

    Skips factors whose product would leave the range of float32, summands of different signs, x + 0
    that could change -0 to 0, rules that depend on an unknown shape, and negations by which
    runtimes recognize GELU.

    Example:
        simplify_arithmetic
        inputs: x
        outputs: y
        x = Placeholder[2x3]()
        two = Const(2.0)
        half = Const(0.25)
        swap = Const[int32]([1, 0])
        a = Mul(x, two)
        b = Mul(half, a)
        c = Transpose(b, swap)
        d = Transpose(c, swap)
        y = Neg(d)

    Example:
        simplify_arithmetic
        inputs: x, m, t
        outputs: y, n, sizes_x, s
        x = Placeholder[2x3]()
        m = Placeholder[bool 2x3]()
        t = Placeholder[?x3]()
        zero = Const(0.0)
        one = Const(1.0)
        a = Sub(x, zero)
        b = Pow(a, one)
        c = Cast(b, SrcT=float, DstT=float)
        d = Relu(c)
        e = Relu(d)
        f = Maximum(e, e)
        no = Const[int32]([])
        g = Max(f, no)
        widths = Const[int32]([[0, 0], [0, 0]])
        h = Pad(g, widths)
        once = Const[int32]([1, 1])
        i = Tile(h, once)
        sizes = Const[int32]([2, 3])
        j = BroadcastTo(i, sizes)
        k = Reshape(j, sizes)
        begin = Const[int32]([0, 0])
        l = Slice(k, begin, sizes)
        o = AddN(l, N=1)
        axis = Const[int32](1)
        split = Split(axis, o, num_split=3)
        p = ConcatV2(split, split:1, split:2, axis, N=3)
        unpack = Unpack(p, num=2, axis=0)
        q = Pack(unpack, unpack:1, N=2, axis=0)
        unpack2 = Unpack(q, num=2, axis=0)
        r = Pack(unpack2:1, unpack2, N=2, axis=0)
        unpack3 = Unpack(r, num=2, axis=0)
        y = Select(true, unpack3, unpack3:1)
        true = Const[bool](true)
        both = LogicalAnd(m, true)
        not = LogicalNot(both)
        n = LogicalNot(not)
        sizes_x = Shape(x)
        shape = Shape(t)
        first = Const[int32]([0])
        second = Const[int32]([1])
        two = Const[int32]([2])
        s = StridedSlice(shape, second, two, second, shrink_axis_mask=1)

    Example:
        simplify_arithmetic
        inputs: x
        outputs: y
        x = Placeholder[2x1x8x3]()
        w = Const[1x3x3x4]()
        b = Const([0.5, -1.0, 2.0, 1.0])
        axis = Const[int32](-3)
        conv = Conv2D(x, w, padding=SAME, strides=[1, 1, 1, 1])
        line = Squeeze(conv, squeeze_dims=[-3])
        biased = BiasAdd(line, b)
        positive = Relu(biased)
        y = ExpandDims(positive, axis)

    Example:
        simplify_arithmetic(signed_zeros=false)
        inputs: x
        outputs: y
        x = Placeholder[1x2x2x1]()
        y = AvgPool(x, ksize=[1, 1, 1, 1], padding=SAME, strides=[1, 1, 1, 1])

    Example:
        simplify_arithmetic
        dialect: onnx
        inputs: x, m
        outputs: y, n, z, extremes
        x = Placeholder[2x3]()
        m = Placeholder[bool 2x3]()
        zero = Constant(0.0)
        two = Constant(2.0)
        half = Constant(0.25)
        a = Sub(x, zero)
        b = Cast(a, to=1)
        c = Relu(b)
        d = Relu(c)
        e = Mul(d, two)
        f = Mul(e, half)
        g = Neg(f)
        h = Add(a, g)
        square = Mul(x, x)
        inverse = Reciprocal(square)
        i = Mul(h, inverse)
        part = Split(i, axis=1)
        true = Constant[bool](true)
        chosen = Where(true, part, i)
        one = Max(chosen)
        sizes = Constant[int64]([2, 3])
        row = Constant([1.0, 2.0, 3.0])
        wide = Expand(row, sizes)
        y = Add(one, wide)
        p = Not(m)
        n = Not(p)
        lowest = ReduceMin(x, axes=[1], keepdims=1)
        z = Squeeze(lowest, axis)
        axis = Constant[int64]([1])
        extremes = Neg(z)

    Example:
        simplify_arithmetic
        dialect: onnx
        inputs: x
        outputs: y, z, w, v
        x = Placeholder[2x1x4x6]()
        none = Constant[int64]([0, 0, 0, 0, 0, 0, 0, 0])
        padded = Pad(x, none)
        a = Transpose(padded, perm=[0, 2, 3, 1])
        b = Transpose(a, perm=[0, 2, 1, 3])
        shape = Constant[int64]([2, 6, 4])
        y = Reshape(b, shape)
        begin = Constant[int64]([0])
        last = Constant[int64]([3])
        rows = Constant[int64]([2])
        columns = Constant[int64]([3])
        every = Constant[int64]([2])
        cut = Slice(x, begin, last, rows, every)
        part = Slice(cut, begin, last, columns)
        once = Constant[int64]([1, 1, 1, 1])
        tiled = Tile(part, once)
        joined = Concat(part, tiled, axis=1)
        z = Concat(joined, part, axis=1)
        second = Constant[int64]([1])
        first = Slice(x, begin, second, rows)
        flat = Squeeze(first, rows)
        w = Flatten(flat, axis=1)
        same = Flatten(w)
        line = Constant[int64]([-1])
        v = Reshape(same, line)

    Example:
        simplify_arithmetic
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[?x3x1x5]()
        last = Transpose(x, perm=[0, 2, 3, 1])
        row = Constant[int64]([1])
        column = Constant[int64]([2])
        line = Squeeze(last, row)
        image = Unsqueeze(line, column)
        y = Transpose(image, perm=[0, 3, 1, 2])

    Example:
        simplify_arithmetic
        dialect: onnx
        inputs: x
        outputs: y
        x = Placeholder[2x3x4x5]()
        swapped = Transpose(x, perm=[0, 2, 3, 1])
        bias = Constant([1.0, -2.0, 3.0])
        sum = Add(swapped, bias)
        positive = Relu(sum)
        y = Transpose(positive, perm=[0, 3, 1, 2])
    """
    if graph.dialect == onnx.DIALECT:
        return onnx_arithmetic.simplify(graph, signed_zeros)
    inference = infer(graph)
    table = (*_number_identities.RULES, *_shape_identities.RULES)
    outcome = apply_rules(graph, *(as_rule(ops, simplify, inference, signed_zeros) for ops, simplify in table))
    if not outcome.changes:
        return outcome
    return Outcome(remove_new_identities(graph, outcome.graph), outcome.changes, outcome.skips)
