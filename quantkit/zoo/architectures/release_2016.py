"""Inception v3 of TF-Slim, August 2016, frozen: 1656 nodes, batch norm as arithmetic."""

from quantkit.ir.graph import Graph
from quantkit.ir.tensor import DType
from quantkit.zoo.architectures.inception import STEM, Branch, Conv, Fork, Module, Pool, modules
from quantkit.zoo.architectures.parameters import RELU_POWER, LayerParameters
from quantkit.zoo.architectures.slim import ERA_2016, SlimWriter
from quantkit.zoo.architectures.writer import FLOAT, Signal, concatenation_output, pool_output

CLASSES = 1001


def inception_v3(seed: int) -> Graph:
    """Build the graph; names and order of the nodes follow its op counts and published names."""
    body = _Release2016(seed)
    write = body.write
    signal = body.chain(STEM, "", Signal(write.placeholder(299), 3, 0.3))
    for module in modules(last_pool="AvgPool"):
        signal = body.module(module, signal)
    scope = "InceptionV3/Logits"
    average = write.pool(f"{scope}/AvgPool_1a_8x8/AvgPool", signal.node, "AvgPool", 8, padding="VALID")
    dropout = write.identity(f"{scope}/Dropout_1b/Identity", average)
    logits = write.logits(signal._replace(node=dropout), seed, CLASSES)
    squeezed = write.squeeze(f"{scope}/SpatialSqueeze", logits)
    return Graph.of(write.nodes, ["input"], [write.predictions(squeezed, CLASSES)])


class _Release2016:
    """The stem and the modules, each branch in a scope of its own."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.write = SlimWriter(ERA_2016, "InceptionV3", "InceptionV3/InceptionV3")

    def module(self, module: Module, source: Signal) -> Signal:
        ends = [
            self.chain(branch, f"{module.scope}/Branch_{number}/", source)
            for number, branch in enumerate(module.branches)
        ]
        return self.join(module.scope, ends)

    def chain(self, layers: Branch, prefix: str, signal: Signal) -> Signal:
        for layer in layers:
            if isinstance(layer, Conv):
                signal = self.conv(layer, prefix, signal)
            elif isinstance(layer, Fork):
                sides = [self.conv(side, prefix, signal) for side in layer]
                signal = self.join(prefix.rstrip("/"), sides)
            else:
                signal = self.pool(layer, prefix, signal)
        return signal

    def conv(self, conv: Conv, prefix: str, source: Signal) -> Signal:
        scope = f"{prefix}{conv.scope}"
        layer = LayerParameters(self.seed, scope, (*conv.kernel, source.channels, conv.filters), source.power)
        normalized = self.write.conv(scope, source.node, layer, conv.stride, conv.padding)
        node = self.write.add(f"{self.write.body}/{scope}/Relu", "Relu", normalized, **FLOAT)
        return Signal(node, conv.filters, RELU_POWER)

    def pool(self, pool: Pool, prefix: str, source: Signal) -> Signal:
        name = f"{self.write.body}/{prefix}{pool.scope}/{pool.op}"
        node = self.write.pool(name, source.node, pool.op, stride=pool.stride, padding=pool.padding)
        return pool_output(node, pool.op, source)

    def join(self, scope: str, sources: list[Signal]) -> Signal:
        name = f"{self.write.body}/{scope}/concat_v2"
        axis = self.write.const(f"{name}/axis", 3)
        nodes = [source.node for source in sources]
        self.write.add(name, "ConcatV2", *nodes, axis, N=len(nodes), Tidx=DType.INT32, **FLOAT)
        return concatenation_output(name, sources)
