"""Target "simulated": a float graph that rounds like int8, to see the accuracy of a scheme anywhere."""

from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.quantization import Plan, Ranges
from quantkit.quantization.parameters import QuantizationParameters
from quantkit.quantization.targets import Target


class SimulatedTarget(Target):
    """Frozen TensorFlow graph with a FakeQuantWithMinMaxVars after every quantized edge."""

    name = "simulated"
    dialect = "tensorflow"
    suffixes = (".pb", ".pbtxt")
    runtimes = ("reference", "tensorflow")
    fixed = ("activations", "signed_activations")

    def convert(self, graph: Graph, plan: Plan, ranges: Ranges) -> Graph:
        plan.require_ranges(ranges)
        nodes = []
        for node in graph.nodes.values():
            if node.name in plan.weights:
                weights = node.value.array
                parameters = QuantizationParameters.of_weights(plan.weights[node.name], weights)
                nodes.append(constant(node.name, parameters.fake_quantize(weights)))
            else:
                inputs = [_round_edge(edge) if edge in plan.activations else edge for edge in node.inputs]
                nodes.append(node.with_(inputs=tuple(inputs)))
        for edge in plan.activations:
            rounded = _round_edge(edge)
            low = constant(f"{rounded.node}/low", min(ranges[edge].low, 0.0))
            high = constant(f"{rounded.node}/high", max(ranges[edge].high, 0.0) or 1.0)
            inputs = [edge, Edge(low.name), Edge(high.name)]
            nodes += [low, high, Node(rounded.node, "FakeQuantWithMinMaxVars", tuple(inputs))]
        return graph.with_nodes(nodes)


def _round_edge(edge: Edge) -> Edge:
    """Return the edge of the FakeQuantWithMinMaxVars after an edge."""
    return Edge(f"{edge.node}/rounded_{edge.port}")


TARGET = SimulatedTarget()
