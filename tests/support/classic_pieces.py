"""Cases for fused and flattened convolutions, logs, tables and functions: texts and random graphs."""

from collections.abc import Iterator, Mapping
from random import Random

from classic_cases import ClassicCase

from quantkit.ir.text import from_text

CONV = "T=float, data_format=NHWC, use_cudnn_on_gpu=true, padding=VALID, strides=[1, 1, 1, 1]"
BLOCKS = "T=float, Tblock_shape=int32"
PLAIN = f"{CONV}, dilations=[1, 1, 1, 1]"

ATROUS = f"""
block = Const[int32]([2, 2])
paddings = Const[int32]([[2, 2], [2, 2]])
crops = Const[int32]([[0, 0], [0, 0]])
w = Const[3x3x2x4]()
moved = SpaceToBatchND(x, block, paddings, T=float)
conv = Conv2D(moved, w, {PLAIN}) @"/cpu:0"
back = BatchToSpaceND(conv, block, crops, T=float)
y = Relu(back, T=float)
"""
FUSED = f"""
size = Const[int32]([9, 9])
pads = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])
w = Const[1x1x2x2]()
r = ResizeBilinear(x, size, T=float, align_corners=true, half_pixel_centers=true)
p = MirrorPad(r, pads, T=float, Tpaddings=int32, mode=SYMMETRIC)
c = Conv2D(p, w, {CONV}, dilations=[1, 2, 2, 1]) @"/cpu:0"
y = Relu(c, T=float)
"""
GATHER = """
w = Const([[0.0], [1.0], [0.000001], [2.0]])
i = Identity(w, T=float, _output_shapes=[<4x1>])
g = Gather(i, x, Tparams=float, Tindices=int64)
y = Relu(g, T=float)
"""
SECOND = "axis = Const[int32](0)\ng = GatherV2(i, x, axis, Tparams=float, Tindices=int64, Taxis=int32)"
CALL = """
i = Const[int32](0)
c = PartitionedCall(x, i, Tin=[float, int32], Tout=[float, float], f=&f)
y = Neg(c, T=float)
last = NoOp()
function f(out = add, two = one)
a = _Arg(T=float, index=0)
b = _Arg(T=int32, index=1)
one = Const(1.0)
add = AddV2(a, one, T=float) @"/gpu:0"
end
function g(out = a)
a = _Arg(T=float, index=0)
end
"""
BODY = 'add = AddV2(a, one, T=float) @"/gpu:0"'
LOGGED = """
axis = Const[int32](1)
s = Split(axis, x, T=float, num_split=2)
r = Relu(s:1, T=float)
y = AddV2(r, s:1, T=float)
z = Neg(x, ^r, T=float)
v = IdentityN(z, axis, T=[float, int32])
u = Neg(v:1, T=int32)
"""
# Pairs of a text and its replacement, by name of the case.
Edits = Mapping[str, tuple[tuple[str, str], ...]]

TEXTS: tuple[tuple[str, str, Edits], ...] = (
    (
        "flatten_atrous_conv",
        ATROUS,
        {
            "plain": (),
            "depthwise": (("Conv2D(", "DepthwiseConv2dNative("), ("use_cudnn_on_gpu=true, ", "")),
            "rates": (("[2, 2])\npad", "[3, 2])\npad"),),
            "rate_of_zero": (("[2, 2])\npad", "[0, 2])\npad"),),
            "no_format": (("data_format=NHWC, ", ""),),
            "other_format": (("NHWC", "NCHW"),),
            "no_strides": ((", strides=[1, 1, 1, 1]", ""),),
            "fed_filter": (("w = Const[3x3x2x4]()", "w = Placeholder[3x3x2x4]()"),),
            "shared_filter": (("y = ", "z = Neg(w, T=float)\ny = "),),
            "shared_convolution": (("y = ", "z = Neg(conv, T=float)\ny = "),),
            "shared_block": (("y = ", "z = Neg(block, T=int32)\ny = "),),
            "shared_input": (("y = ", "z = Neg(x, T=float)\ny = "),),
            "port": (("SpaceToBatchND(x", "SpaceToBatchND(x:1"),),
            "control_inputs": (("(moved, w,", "(moved, w, ^x,"), ("block, crops,", "block, crops, ^w,")),
            "integers": (("w = Const[3x3x2x4]()", "w = Const[int32 3x3x2x4]()"),),
            "flat_filter": (("w = Const[3x3x2x4]()", "w = Const[3x3]()"),),
        },
    ),
    (
        "fuse_pad_and_conv",
        FUSED,
        {
            "plain": (),
            "shared_pad": (("y = ", "z = Neg(p, T=float)\ny = "),),
            "shared_constants": (("y = ", "z = Neg(w, T=float)\nv = Neg(x, ^pads, T=float)\ny = "),),
            "port": (("MirrorPad(r,", "MirrorPad(r:1,"),),
            "no_mode": ((", mode=SYMMETRIC", ""),),
            "no_padding": (("padding=VALID, ", ""),),
            "control_inputs": (("MirrorPad(r, pads,", "MirrorPad(r, pads, ^size,"), ("(p, w,", "(p, w, ^x,")),
        },
    ),
    (
        "fuse_resize_and_conv",
        FUSED.replace("Conv2D(p,", "Conv2D(r,"),
        {
            "plain": (),
            "shared_resize": (("y = ", "z = Neg(r, T=float)\ny = "),),
            "no_corners": (("align_corners=true, ", ""),),
            "port": (("ResizeBilinear(x,", "ResizeBilinear(x:2,"),),
            "control_inputs": (("(x, size,", "(x, size, ^w,"),),
        },
    ),
    (
        "fuse_resize_pad_and_conv",
        FUSED,
        {
            "plain": (),
            "shared_resize": (("y = ", "z = Neg(r, T=float)\ny = "),),
            "shared_pad": (("y = ", f"d = Conv2D(p, w, {PLAIN})\ny = "),),
            "two": (("y = ", f"q = MirrorPad(r, pads, mode=REFLECT)\nd = Conv2D(q, w, {PLAIN})\ny = "),),
        },
    ),
    (
        "fuse_pad_and_conv fuse_resize_pad_and_conv fuse_resize_and_conv",
        FUSED,
        {"plain": ()},
    ),
    (
        "sparsify_gather",
        GATHER,
        {
            "plain": (),
            "second": (("g = Gather(i, x, Tparams=float, Tindices=int64)", SECOND),),
            "other_axis": (("g = Gather(i, x, Tparams=float, Tindices=int64)", SECOND.replace("(0)", "(1)")),),
            "wide": (("w = Const([[0.0], [1.0], [0.000001], [2.0]])", "w = Const[4x2]()"),),
            "integers": (("w = Const([[0.0], [1.0], [0.000001], [2.0]])", "w = Const[int32 4x1]()"),),
            "zeros": (("[1.0], [0.000001], [2.0]", "[0.0], [0.0], [0.000001]"),),
            "two_gathers": (("y = ", "h = Gather(i, x, Tparams=float, Tindices=int64)\ny = "),),
            "group": (("y = ", "group_deps = NoOp(^g)\nz = Neg(i, T=float)\ny = "),),
            "joined": (
                (
                    "y = ",
                    "v = Const[2x1]()\nzero = Const[int32](0)\n"
                    "j = ConcatV2(i, v, zero, N=2, T=float, Tidx=int32)\nk = ConcatV2(v, i, v, zero2, N=3, T=float)\n"
                    "zero2 = Const[int32](0)\nz = Neg(j, T=float)\ny = ",
                ),
            ),
            "shared_axis": (
                (
                    "y = ",
                    "v = Const[2x1]()\nzero = Const[int32](0)\nz = Neg(zero, T=int32)\n"
                    "j = ConcatV2(i, v, zero, N=2, T=float, Tidx=int32)\ny = ",
                ),
            ),
            "reshaped": (("y = ", "v = Const[int32]([2, 2])\nj = Reshape(i, v, T=float)\nk = Neg(j, T=float)\ny = "),),
            "control_inputs": (("Identity(w,", "Identity(w, ^x,"), ("(i, x,", "(i, x, ^x,")),
            "no_gather": (("g = Gather(i, x, Tparams=float, Tindices=int64)", "g = Neg(i, T=float)"),),
            "no_checkpoint": (("w = Const([[0.0], [1.0], [0.000001], [2.0]])", "w = Variable(dtype=float)"),),
        },
    ),
    ("sparsify_gather(group_init_node=init)", GATHER, {"plain": ()}),
    ("sparsify_gather(input_checkpoint=nowhere)", GATHER, {"plain": ()}),
    (
        "inline_partitionedcall",
        CALL,
        {
            "plain": (),
            "second_result": (("Neg(c,", "Neg(c:1,"),),
            "no_such_result": (("Neg(c,", "Neg(c:7,"),),
            "argument": (("out = add", "out = a"),),
            "chain": ((BODY, f"{BODY}\nsecond = AddV2(add, one, T=float)"), ("out = add", "out = second")),
            "ports": (
                (BODY, "s = Split(b, a, num_split=2, T=float)\nadd = Neg(s:1, T=float)"),
                ("two = one", "two = s:1"),
            ),
            "named_outputs": (
                (BODY, "n = FusedBatchNormV3(a, a, a, a, a, T=float, U=float)\nadd = Neg(n:1, T=float)"),
                ("two = one", "two = n:2"),
            ),
            "nested": (
                (BODY, f"{BODY}\nd = PartitionedCall(add, Tin=[float], Tout=[float], f=&g)"),
                ("out = add", "out = d"),
            ),
            "control_input_inside": ((BODY, "add = AddV2(a, one, ^b, T=float)"),),
            "control_input_of_call": (("(x, i,", "(x, i, ^i,"),),
            "control_reader": (("Neg(c,", "Neg(c, ^c,"),),
            "control_result": (("two = one", "two = one, ^done = add"),),
            "too_few": (("(x, i,", "(x,"),),
            "stateful": (("PartitionedCall(x", "StatefulPartitionedCall(x"),),
            "no_function": (("f=&f", "f=&nothing"),),
            "no_attribute": ((", f=&f", ""),),
            "no_name": (("f=&f", "f=3"),),
            "output": (("y = Neg(c, T=float)", "y = Neg(x, T=float)"),),
            "name_taken": (("last = NoOp()", "c/one = Neg(x, T=float)"),),
            "chained_calls": (("y = Neg(c,", "d = PartitionedCall(c, i, Tin=[float, int32], f=&f)\ny = Neg(d:1,"),),
            "port_and_attributes": (("(x, i,", "(x:1, i,"), ("f=&f)", 'f=&f, _more=3) @"/cpu:0"')),
        },
    ),
    (
        "insert_logging",
        LOGGED,
        {"plain": (), "odd_port": (("Relu(s:1", "Relu(s:4"),), "unknown": (("r = Relu(", "r = Mine("),)},
    ),
    ("insert_logging(op=Split,op=Neg,show_op=true,first_n=2)", LOGGED, {"plain": ()}),
    ('insert_logging(prefix=s,prefix=z,show_name=1,message="here: ",summarize=3)', LOGGED, {"plain": ()}),
    ("insert_logging(op=IdentityN)", LOGGED, {"plain": ()}),
    ("insert_logging(message=a,message=b)", LOGGED, {"plain": ()}),
    ("insert_logging(first_n=many)", LOGGED, {"plain": ()}),
    ("insert_logging(op=Neg) insert_logging(op=Neg)", LOGGED, {"plain": ()}),
)
RECIPES = (
    "flatten_atrous_conv",
    "fuse_resize_pad_and_conv",
    "fuse_resize_and_conv",
    "fuse_pad_and_conv",
    "fuse_resize_pad_and_conv fuse_resize_and_conv fuse_pad_and_conv",
    "insert_logging",
    "insert_logging(op=Conv2D,op=Split,show_name=true)",
)


def pieces() -> Iterator[ClassicCase]:
    """Yield all cases."""
    for recipe, text, cases in TEXTS:
        kind = "int64 3" if text is GATHER else "1x8x8x2"
        for name, edits in cases.items():
            edited = text
            for old, new in edits:
                assert old in edited, f"{recipe}: nothing to replace for {name}"
                edited = edited.replace(old, new)
            graph = from_text(f"x = Placeholder[{kind}](){edited}")
            yield ClassicCase(f"quirk/{recipe}/{name}", graph, "x", "y", recipe)
    for number, recipe in enumerate(RECIPES):
        for seed in range(8):
            graph = from_text(_random_text(Random(100 * number + seed)))
            yield ClassicCase(f"random/pieces/{number}/{seed}", graph, "x", "y", recipe)


def _random_text(random: Random) -> str:
    """Return the text of a random graph: resize, mirror pad, atrous and plain convolutions."""
    lines = ["x = Placeholder[1x8x8x2]()", "size = Const[int32]([8, 8])"]
    lines.append("pads = Const[int32]([[0, 0], [1, 1], [1, 1], [0, 0]])")
    lines += ["block = Const[int32]([2, 2])", "around = Const[int32]([[2, 2], [2, 2]])"]
    lines += ["none = Const[int32]([[0, 0], [0, 0]])", "small = Const[1x1x2x2]()", "w = Const[3x3x2x2]()"]
    tensors = ["x"]
    for number in range(random.randrange(3, 9)):
        name, source = f"n{number}", random.choice(tensors)
        kind = random.choice(("resize", "pad", "atrous", "conv", "relu", "add", "split"))
        if kind == "resize":
            corners = random.choice(("true", "false"))
            resize = f"ResizeBilinear({source}, size, T=float, align_corners={corners}, half_pixel_centers=false)"
            lines.append(f"{name} = {resize}")
        elif kind == "pad":
            lines.append(
                f"{name}/pad = MirrorPad({source}, pads, T=float, mode={random.choice(('REFLECT', 'SYMMETRIC'))})"
            )
            lines.append(f"{name} = Conv2D({name}/pad, w, {PLAIN})")
            tensors += [f"{name}"]
        elif kind == "atrous":
            lines.append(f"{name}/moved = SpaceToBatchND({source}, block, around, {BLOCKS}, Tpaddings=int32)")
            lines.append(f"{name}/conv = Conv2D({name}/moved, {random.choice(('w', f'{name}/w'))}, {PLAIN})")
            lines += [
                f"{name}/w = Const[3x3x2x2]()",
                f"{name} = BatchToSpaceND({name}/conv, block, none, {BLOCKS}, Tcrops=int32)",
            ]
        elif kind == "conv":
            lines.append(f"{name} = Conv2D({source}, small, {PLAIN})")
        elif kind == "relu":
            lines.append(f"{name} = Relu({source}, T=float)")
        elif kind == "add":
            lines.append(f"{name} = AddV2({source}, {random.choice(tensors)}, T=float)")
        else:
            lines += [
                f"{name}/axis = Const[int32](3)",
                f"{name}/halves = Split({name}/axis, {source}, T=float, num_split=2)",
            ]
            halves = f"{name}/halves:1, {name}/halves:{random.randrange(2)}, {name}/axis"
            lines.append(f"{name} = ConcatV2({halves}, N=2, T=float, Tidx=int32)")
        tensors.append(name)
    return "\n".join([*lines, f"y = Relu({tensors[-1]}, T=float)"])
