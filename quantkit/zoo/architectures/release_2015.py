"""Inception v3 as released in December 2015, node for node, and the idioms of its graph.

Those idioms are what folding has to cope with: batch norm as one op that left TensorFlow after
GraphDef version 8, a numeric check of every ReLU and max pool that only a control dependency keeps,
the concatenation whose axis comes first, and a JPEG decoder in front.
"""

from typing import Protocol

import numpy as np

from quantkit.ir.graph import Edge, Graph, Node, Versions
from quantkit.ir.tensor import DType, Tensor
from quantkit.zoo.architectures.inception import STEM, Branch, Conv, Fork, Module, Pool, modules
from quantkit.zoo.architectures.parameters import RELU_POWER, LayerParameters
from quantkit.zoo.architectures.writer import FLOAT, Signal, Writer, concatenation_output, pool_output

VERSIONS = Versions(producer=8)
EPSILON = float(np.float32(0.001))


class ConvParameters(Protocol):
    """A kernel (h, w, c_in, c_out) and the four vectors (c_out,) of the batch norm after it."""

    @property
    def kernel(self) -> Tensor: ...
    @property
    def beta(self) -> Tensor: ...
    @property
    def gamma(self) -> Tensor: ...
    @property
    def moving_mean(self) -> Tensor: ...
    @property
    def moving_variance(self) -> Tensor: ...


class ReleaseWriter(Writer):
    """Writes layers the way the 2015 graph has them."""

    def preprocessing(self, size: tuple[int, int], channels: int) -> str:
        """Add the nodes from JPEG bytes to (1, h, w, c) floats in [-1, 1], named ``Mul``."""
        self.const("DecodeJpeg/contents", Tensor.of(np.array(b"", object)))
        self.add(
            "DecodeJpeg",
            "DecodeJpeg",
            "DecodeJpeg/contents",
            channels=channels,
            ratio=1,
            fancy_upscaling=True,
            try_recover_truncated=False,
            acceptable_fraction=1.0,
        )
        self.add("Cast", "Cast", "DecodeJpeg", SrcT=DType.UINT8, DstT=DType.FLOAT)
        self.const("ExpandDims/dim", 0)
        self.add("ExpandDims", "ExpandDims", "Cast", "ExpandDims/dim", **FLOAT)
        self.const("ResizeBilinear/size", size)
        self.add("ResizeBilinear", "ResizeBilinear", "ExpandDims", "ResizeBilinear/size", align_corners=False, **FLOAT)
        self.const("Sub/y", 128.0)
        self.add("Sub", "Sub", "ResizeBilinear", "Sub/y", **FLOAT)
        self.const("Mul/y", 1 / 128)
        return self.add("Mul", "Mul", "Sub", "Mul/y", **FLOAT)

    def conv(self, name: str, source: str, parameters: ConvParameters, stride: int = 1, padding: str = "SAME") -> str:
        """Add a convolution, batch norm, numeric check and ReLU."""
        product, norm = f"{name}/Conv2D", f"{name}/batchnorm"
        self.const(f"{name}/conv2d_params", parameters.kernel)
        self.add(
            product,
            "Conv2D",
            source,
            f"{name}/conv2d_params",
            strides=(1, stride, stride, 1),
            padding=padding.encode(),
            use_cudnn_on_gpu=True,
            **FLOAT,
        )
        self.const(f"{norm}/beta", parameters.beta)
        self.const(f"{norm}/gamma", parameters.gamma)
        self.const(f"{norm}/moving_mean", parameters.moving_mean)
        self.const(f"{norm}/moving_variance", parameters.moving_variance)
        self.add(
            norm,
            "BatchNormWithGlobalNormalization",
            product,
            f"{norm}/moving_mean",
            f"{norm}/moving_variance",
            f"{norm}/beta",
            f"{norm}/gamma",
            variance_epsilon=EPSILON,
            scale_after_normalization=True,
            **FLOAT,
        )
        return self.add(name, "Relu", self.add_check(name, norm), **FLOAT)

    def add_check(self, name: str, source: str) -> str:
        """Add an Identity of ``source`` with a control dependency on a check that it is finite."""
        check = self.add(f"{name}/CheckNumerics", "CheckNumerics", source, message=b"tensor had NaN or Inf", **FLOAT)
        guarded = Node(f"{name}/control_dependency", "Identity", (Edge(source),), controls=(check,), attrs=FLOAT)
        self.nodes.append(guarded)
        return guarded.name

    def pool(self, name: str, source: str, op: str, size: int = 3, stride: int = 1, padding: str = "SAME") -> str:
        """Add ``MaxPool`` with a check and no type, or ``AvgPool`` with a type and no check."""
        is_max = op == "MaxPool"
        return self.add(
            name,
            op,
            self.add_check(name, source) if is_max else source,
            ksize=(1, size, size, 1),
            strides=(1, stride, stride, 1),
            padding=padding.encode(),
            **({} if is_max else FLOAT),
        )

    def join(self, module: str, branches: list[str]) -> str:
        """Add a concatenation along the channels."""
        axis = self.const(f"{module}/join/concat_dim", 3)
        return self.add(f"{module}/join", "Concat", axis, *branches, N=len(branches), **FLOAT)

    def head(self, source: str, size: int, weights: Tensor, biases: Tensor) -> str:
        """Add the average over size x size positions, a dense layer, and the node ``softmax``."""
        pooled = self.pool("pool_3", source, "AvgPool", size, padding="VALID")
        self.const("pool_3/_reshape/shape", (-1, weights.shape[0]))
        flat = self.add("pool_3/_reshape", "Reshape", pooled, "pool_3/_reshape/shape", **FLOAT)
        self.const("softmax/weights", weights)
        self.const("softmax/biases", biases)
        self.add(
            "softmax/logits/MatMul", "MatMul", flat, "softmax/weights", transpose_a=False, transpose_b=False, **FLOAT
        )
        self.add("softmax/logits", "BiasAdd", "softmax/logits/MatMul", "softmax/biases", **FLOAT)
        return self.add("softmax", "Softmax", "softmax/logits", **FLOAT)


def inception_v3(seed: int) -> Graph:
    """Build the 1004 nodes of the release, in its order."""
    body = _Release2015(seed)
    write = body.write
    signal = body.chain(STEM, "", Signal(write.preprocessing((299, 299), 3), 3, 0.3))
    for number, module in enumerate(modules(last_pool="MaxPool")):
        signal = body.module(module, f"mixed_{number}" if number else "mixed", signal)
    layer = LayerParameters(seed, "softmax", (1, 1, signal.channels, 1008), signal.power)
    weights = Tensor(DType.FLOAT, (signal.channels, 1008), lambda: layer.kernel.array[0, 0])
    write.head(signal.node, 8, weights, layer.bias)
    return Graph.of(write.nodes, ["Mul"], ["softmax"], versions=VERSIONS)


class _Release2015:
    """Stem and modules, named as in the release: kind of layer and number in the branch."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.write = ReleaseWriter()

    def module(self, module: Module, name: str, source: Signal) -> Signal:
        """Add a module: branches of one layer and towers; forks precede the pooling branch."""
        towers = iter(("tower", "tower_1", "tower_2"))
        joined: list[Signal] = []
        forks: list[tuple[str, Fork, Signal]] = []
        for branch in module.branches:
            prefix = f"{name}/" if len(branch) == 1 else f"{name}/{next(towers)}/"
            if isinstance(branch[0], Pool):
                joined += self.add_forks(forks)
            if isinstance(branch[-1], Fork):
                forks.append((prefix, branch[-1], self.chain(branch[:-1], prefix, source)))
            else:
                joined.append(self.chain(branch, prefix, source))
        return concatenation_output(self.write.join(name, [signal.node for signal in joined]), joined)

    def add_forks(self, forks: list[tuple[str, Fork, Signal]]) -> list[Signal]:
        return [
            self.conv(f"{prefix}mixed/{name}", conv, source)
            for prefix, fork, source in forks
            for name, conv in zip(("conv", "conv_1"), fork, strict=True)
        ]

    def chain(self, layers: Branch, prefix: str, signal: Signal) -> Signal:
        counts = {"conv": 0, "pool": 0}
        for layer in layers:
            kind = "pool" if isinstance(layer, Pool) else "conv"
            name = f"{prefix}{kind}_{counts[kind]}" if counts[kind] else f"{prefix}{kind}"
            counts[kind] += 1
            if isinstance(layer, Conv):
                signal = self.conv(name, layer, signal)
            elif isinstance(layer, Pool):
                node = self.write.pool(name, signal.node, layer.op, stride=layer.stride, padding=layer.padding)
                signal = pool_output(node, layer.op, signal)
        return signal

    def conv(self, name: str, conv: Conv, source: Signal) -> Signal:
        layer = LayerParameters(self.seed, name, (*conv.kernel, source.channels, conv.filters), source.power)
        node = self.write.conv(name, source.node, layer, conv.stride, conv.padding)
        return Signal(node, conv.filters, RELU_POWER)
