"""MobileNet v1 and v2, width 1.0, 224x224, as TF-Slim froze them in 2018.

Howard et al., MobileNets, 2017: https://arxiv.org/abs/1704.04861
Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018:
https://arxiv.org/abs/1801.04381
"""

from quantkit.ir.graph import Graph
from quantkit.zoo.architectures.parameters import RELU_POWER, LayerParameters
from quantkit.zoo.architectures.slim import ERA_2018, SlimWriter
from quantkit.zoo.architectures.writer import FLOAT, Signal

CLASSES = 1001

# (stride of the depthwise convolution, channels of the pointwise one) after the first convolution.
V1_BLOCKS = (
    (1, 64), (2, 128), (1, 128), (2, 256), (1, 256), (2, 512), (1, 512), (1, 512), (1, 512), (1, 512), (1, 512),
    (2, 1024), (1, 1024),
)  # fmt: skip

# (expansion, channels, blocks, stride of the first block): Table 2 of the paper.
V2_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

# Mean square of a batch norm's output, where no activation follows.
_LINEAR_POWER = 1.2


def mobilenet_v1(seed: int) -> Graph:
    """Build thirteen pairs of a depthwise and a pointwise convolution."""
    net = _MobileNet(seed, SlimWriter(ERA_2018, "MobilenetV1", "MobilenetV1/MobilenetV1"))
    write = net.write
    signal = net.relu6("Conv2d_0", net.conv("Conv2d_0", Signal(write.placeholder(224), 3, 0.3), 32, 3, 2))
    for number, (stride, filters) in enumerate(V1_BLOCKS, start=1):
        scope = f"Conv2d_{number}_depthwise"
        signal = net.relu6(scope, net.depthwise(scope, signal, stride))
        scope = f"Conv2d_{number}_pointwise"
        signal = net.relu6(scope, net.conv(scope, signal, filters))
    scope = "MobilenetV1/Logits"
    average = write.pool(f"{scope}/AvgPool_1a/AvgPool", signal.node, "AvgPool", 7, padding="VALID")
    dropout = write.identity(f"{scope}/Dropout_1b/Identity", average)
    logits = write.logits(signal._replace(node=dropout), seed, CLASSES)
    squeezed = write.squeeze(f"{scope}/SpatialSqueeze", logits)
    return Graph.of(write.nodes, ["input"], [write.predictions(squeezed, CLASSES)])


def mobilenet_v2(seed: int) -> Graph:
    """Build seventeen inverted residuals with linear bottlenecks."""
    net = _MobileNet(seed, SlimWriter(ERA_2018, "MobilenetV2", "MobilenetV2"))
    write = net.write
    image = write.identity("MobilenetV2/input", write.placeholder(224))
    signal = net.relu6("Conv", net.conv("Conv", Signal(image, 3, 0.3), 32, 3, 2))
    number = 0
    for expansion, filters, blocks, stride in V2_STAGES:
        for block in range(blocks):
            scope = f"expanded_conv_{number}" if number else "expanded_conv"
            signal = net.inverted_residual(scope, signal, expansion, filters, stride if block == 0 else 1)
            number += 1
    signal = net.relu6("Conv_1", net.conv("Conv_1", signal, 1280))
    embedding = write.identity("MobilenetV2/embedding", signal.node)
    scope = "MobilenetV2/Logits"
    average = write.pool(f"{scope}/AvgPool", embedding, "AvgPool", 7, padding="VALID")
    dropout = write.identity(f"{scope}/Dropout/Identity", average)
    logits = write.logits(signal._replace(node=dropout), seed, CLASSES)
    output = write.identity(f"{scope}/output", write.squeeze(f"{scope}/Squeeze", logits))
    return Graph.of(write.nodes, ["input"], [write.predictions(output, CLASSES)])


class _MobileNet:
    """Layers whose weights are scaled to their inputs."""

    def __init__(self, seed: int, write: SlimWriter) -> None:
        self.seed = seed
        self.write = write

    def conv(self, scope: str, source: Signal, filters: int, size: int = 1, stride: int = 1) -> Signal:
        """Add a convolution and batch norm."""
        layer = LayerParameters(self.seed, scope, (size, size, source.channels, filters), source.power)
        return Signal(self.write.conv(scope, source.node, layer, stride), filters, _LINEAR_POWER)

    def depthwise(self, scope: str, source: Signal, stride: int) -> Signal:
        """Add a 3x3 depthwise convolution and batch norm."""
        layer = LayerParameters(self.seed, scope, (3, 3, source.channels, 1), source.power, is_depthwise=True)
        return Signal(self.write.conv(scope, source.node, layer, stride), source.channels, _LINEAR_POWER)

    def relu6(self, scope: str, source: Signal) -> Signal:
        node = self.write.add(f"{self.write.body}/{scope}/Relu6", "Relu6", source.node, **FLOAT)
        return Signal(node, source.channels, RELU_POWER)

    def inverted_residual(self, scope: str, source: Signal, expansion: int, filters: int, stride: int) -> Signal:
        """Expand, filter each channel, project without activation; add the source if shapes match."""
        source = self._add_identity(f"{scope}/input", source)
        signal = source
        if expansion > 1:
            wide = self.conv(f"{scope}/expand", signal, expansion * source.channels)
            signal = self._add_identity(f"{scope}/expansion_output", self.relu6(f"{scope}/expand", wide))
        filtered = self.relu6(f"{scope}/depthwise", self.depthwise(f"{scope}/depthwise", signal, stride))
        signal = self._add_identity(f"{scope}/depthwise_output", filtered)
        signal = self._add_identity(f"{scope}/project/Identity", self.conv(f"{scope}/project", signal, filters))
        if stride == 1 and filters == source.channels:
            total = self.write.add(f"{self.write.body}/{scope}/add", "Add", signal.node, source.node, **FLOAT)
            signal = Signal(total, filters, signal.power + source.power)
        return self._add_identity(f"{scope}/output", signal)

    def _add_identity(self, name: str, source: Signal) -> Signal:
        return source._replace(node=self.write.identity(f"{self.write.body}/{name}", source.node))
