"""Layers of TF-Slim in frozen graphs.

Variables became constants, but each is still read through its ``read`` Identity. Variables are
named by the layer alone; operations repeat the network's scope in the networks that re-enter it.
"""

from dataclasses import dataclass

import numpy as np

from quantkit.ir.graph import Attr
from quantkit.ir.tensor import DType, Shape, Tensor
from quantkit.zoo.architectures.parameters import LayerParameters
from quantkit.zoo.architectures.writer import FLOAT, Signal, Writer

EPSILON = float(np.float32(0.001))
_NHWC: dict[str, Attr] = {"data_format": b"NHWC"}


@dataclass(frozen=True)
class Era:
    """Differences between TensorFlow versions that exported the same code.

    Attributes:
        convolution: last component of the name of a convolution.
        dilations: True if convolutions have the attribute ``dilations``.
        is_fused: whether batch norm is one op.
    """

    convolution: str
    dilations: bool
    is_fused: bool


ERA_2016 = Era("convolution", dilations=False, is_fused=False)
ERA_2018 = Era("Conv2D", dilations=True, is_fused=True)


class SlimWriter(Writer):
    """Writes layers the way TF-Slim's frozen graphs have them.

    Args:
        era: version of the export.
        network: scope of the variables, such as ``InceptionV3``.
        body: scope of the operations of the network's body: ``InceptionV3/InceptionV3``, or as
            ``network``.
    """

    def __init__(self, era: Era, network: str, body: str) -> None:
        super().__init__()
        self.era = era
        self.network = network
        self.body = body

    def placeholder(self, size: int) -> str:
        """Add the input of one image, (1, size, size, 3)."""
        return self.add("input", "Placeholder", dtype=DType.FLOAT, shape=Shape((1, size, size, 3)))

    def variable(self, name: str, values: Tensor) -> str:
        """Add a frozen variable and its Identity."""
        self.const(name, values)
        return self.add(f"{name}/read", "Identity", name, _class=(f"loc:@{name}".encode(),), **FLOAT)

    def identity(self, name: str, source: str) -> str:
        return self.add(name, "Identity", source, **FLOAT)

    def conv(self, scope: str, source: str, layer: LayerParameters, stride: int = 1, padding: str = "SAME") -> str:
        """Add a convolution and batch norm; ``scope`` is relative to the network's."""
        convolved = self.convolution(f"{self.network}/{scope}", f"{self.body}/{scope}", source, layer, stride, padding)
        write = self.fused_batch_norm if self.era.is_fused else self.decomposed_batch_norm
        return write(f"{self.network}/{scope}/BatchNorm", f"{self.body}/{scope}/BatchNorm", convolved, layer)

    def convolution(
        self, variables: str, scope: str, source: str, layer: LayerParameters, stride: int = 1, padding: str = "SAME"
    ) -> str:
        """Add the convolution of a layer, without batch norm."""
        attrs: dict[str, Attr] = {
            "strides": (1, stride, stride, 1),
            "padding": padding.encode(),
            **_NHWC,
            **FLOAT,
            **({"dilations": (1, 1, 1, 1)} if self.era.dilations else {}),
        }
        if layer.is_depthwise:
            kernel = self.variable(f"{variables}/depthwise_weights", layer.kernel)
            return self.add(f"{scope}/depthwise", "DepthwiseConv2dNative", source, kernel, **attrs)
        kernel = self.variable(f"{variables}/weights", layer.kernel)
        return self.add(f"{scope}/{self.era.convolution}", "Conv2D", source, kernel, use_cudnn_on_gpu=True, **attrs)

    def decomposed_batch_norm(self, variables: str, scope: str, source: str, layer: LayerParameters) -> str:
        """Add beta without gamma: ``x r + (beta - mean r)``, ``r = 1 / sqrt(variance + epsilon)``."""
        beta = self.variable(f"{variables}/beta", layer.beta)
        mean = self.variable(f"{variables}/moving_mean", layer.moving_mean)
        variance = self.variable(f"{variables}/moving_variance", layer.moving_variance)
        scope = f"{scope}/batchnorm"
        epsilon = self.const(f"{scope}/add/y", EPSILON)
        self.add(f"{scope}/add", "Add", variance, epsilon, **FLOAT)
        inverse = self.add(f"{scope}/Rsqrt", "Rsqrt", f"{scope}/add", **FLOAT)
        self.add(f"{scope}/mul", "Mul", source, inverse, **FLOAT)
        self.add(f"{scope}/mul_1", "Mul", mean, inverse, **FLOAT)
        self.add(f"{scope}/sub", "Sub", beta, f"{scope}/mul_1", **FLOAT)
        return self.add(f"{scope}/add_1", "Add", f"{scope}/mul", f"{scope}/sub", **FLOAT)

    def fused_batch_norm(self, variables: str, scope: str, source: str, layer: LayerParameters) -> str:
        """Add ``FusedBatchNorm`` with moving statistics."""
        vectors = [
            self.variable(f"{variables}/{name}", getattr(layer, name))
            for name in ("gamma", "beta", "moving_mean", "moving_variance")
        ]
        return self.add(
            f"{scope}/FusedBatchNorm", "FusedBatchNorm", source, *vectors, epsilon=EPSILON, is_training=False,
            **_NHWC, **FLOAT,
        )  # fmt: skip

    def pool(self, name: str, source: str, op: str, size: int = 3, stride: int = 1, padding: str = "SAME") -> str:
        """Add ``MaxPool`` or ``AvgPool``."""
        return self.add(
            name, op, source, ksize=(1, size, size, 1), strides=(1, stride, stride, 1), padding=padding.encode(),
            **_NHWC, **FLOAT,
        )  # fmt: skip

    def logits(self, source: Signal, seed: int, classes: int) -> str:
        """Add a 1x1 convolution with bias, in the scope ``Logits``."""
        scope = f"{self.network}/Logits/Conv2d_1c_1x1"
        layer = LayerParameters(seed, scope, (1, 1, source.channels, classes), source.power)
        product = self.convolution(scope, scope, source.node, layer)
        biases = self.variable(f"{scope}/biases", layer.bias)
        return self.add(f"{scope}/BiasAdd", "BiasAdd", product, biases, **_NHWC, **FLOAT)

    def squeeze(self, name: str, source: str) -> str:
        """Add the nodes that reshape (n, 1, 1, k) to (n, k)."""
        return self.add(name, "Squeeze", source, squeeze_dims=(1, 2), **FLOAT)

    def predictions(self, source: str, classes: int) -> str:
        """Add a softmax between two reshapes."""
        scope = f"{self.network}/Predictions"
        index: dict[str, Attr] = {"Tshape": DType.INT32}
        self.const(f"{scope}/Reshape/shape", (-1, classes))
        self.add(f"{scope}/Reshape", "Reshape", source, f"{scope}/Reshape/shape", **index, **FLOAT)
        self.add(f"{scope}/Softmax", "Softmax", f"{scope}/Reshape", **FLOAT)
        self.const(f"{scope}/Shape", (1, classes))
        return self.add(f"{scope}/Reshape_1", "Reshape", f"{scope}/Softmax", f"{scope}/Shape", **index, **FLOAT)
