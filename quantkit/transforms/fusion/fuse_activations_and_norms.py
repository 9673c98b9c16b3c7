"""Replace activations and normalizations of several ops by one op."""

from quantkit.ir.graph import Graph
from quantkit.ir.rewrite import Outcome
from quantkit.transforms.onnx import _composites
from quantkit.transforms.registry import transform


@transform(dialects=("onnx",))
def fuse_activations_and_norms(graph: Graph) -> Outcome:
    """Replace LayerNorm, GELU, HardSwish, HardSigmoid, Mish and PReLU of several ops by the op of that name.

    Exporters write these functions as elementwise ops and means. Runtimes have one kernel for each,
    and recognize only some of the forms.

    Before:  d = Sub(x, mean(x))    y = Add(Mul(Div(d, Sqrt(Add(mean(Pow(d, 2)), epsilon))), gamma), beta)
    After:   y = LayerNormalization(x, gamma, beta)

    Options: none.

    The maximum of x and a fraction of x becomes LeakyRelu.

    Replaces a form only if the opset of the graph has the op: PRelu 7, HardSwish 14, LayerNormalization 17,
    Mish 18, Gelu 20. The opset does not change.

    Skips forms whose inner tensors have other consumers, means over other axes than the last ones,
    parameters that are not constants of the normalized shape, and activations in double or bfloat16,
    for which ONNX Runtime has no kernel.

    Example:
        fuse_activations_and_norms
        dialect: onnx
        inputs: x
        outputs: y, z, leaky
        x = Placeholder[2x3x8]()
        two = Constant(2.0)
        epsilon = Constant(1e-05)
        gamma = Constant[8]()
        beta = Constant[8]()
        mean = ReduceMean(x, axes=[-1])
        d = Sub(x, mean)
        square = Pow(d, two)
        variance = ReduceMean(square, axes=[-1])
        total = Add(variance, epsilon)
        deviation = Sqrt(total)
        n = Div(d, deviation)
        scaled = Mul(n, gamma)
        y = Add(scaled, beta)
        three = Constant(3.0)
        zero = Constant(0.0)
        six = Constant(6.0)
        more = Add(y, three)
        clip = Clip(more, zero, six)
        product = Mul(y, clip)
        swish = Div(product, six)
        a = Add(swish, three)
        b = Clip(a, zero, six)
        z = Div(b, six)
        c = Constant([-0.25, 0.5, -0.125, 0.0, 0.25, 1.0, -1.0, 0.5])
        positive = Relu(x)
        opposite = Neg(x)
        negative = Relu(opposite)
        rest = Mul(c, negative)
        prelu = Add(positive, rest)
        fraction = Constant(0.25)
        part = Mul(prelu, fraction)
        leaky = Max(prelu, part)

    Example:
        fuse_activations_and_norms
        dialect: onnx
        inputs: x
        outputs: y, z
        x = Placeholder[2x3x8]()
        epsilon = Constant(1e-05)
        gamma = Constant[8]()
        beta = Constant[8]()
        mean = ReduceMean(x, axes=[-1])
        d = Sub(x, mean)
        square = Mul(d, d)
        variance = ReduceMean(square, axes=[-1])
        total = Add(variance, epsilon)
        deviation = Sqrt(total)
        s = Div(gamma, deviation)
        scaled = Mul(x, s)
        shift = Mul(mean, s)
        offset = Sub(beta, shift)
        y = Add(scaled, offset)
        n = Div(d, deviation)
        z = Mul(n, gamma)
    """
    return _composites.fuse(graph)
