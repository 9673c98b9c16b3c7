"""Search for the layers that stay in float: a minimum cut for each price of the error.

    minimize    sum_i time_i(x_i) + sum_e boundary_e [int8 and float next to e] + price * noise(x)

The kernels are the layers and the pass-through nodes of a plan. An edge is quantized once for all its int8 consumers,
and dequantized once for all its float consumers. The noise of a choice is the sum of the contributions of its
quantizations; that of an edge counts if a layer next to it is in int8. All costs are paid where neighbours differ, so
that the problem for one price is a minimum cut, which is exact. The prices of a sweep give the Pareto front of time and
error.
"""

from collections.abc import Collection, Iterable, Iterator
from math import inf
from typing import NamedTuple

import numpy as np

from quantkit.ir.graph import Edge, Graph
from quantkit.quantization.plan import Plan
from quantkit.quantization.precision.cost import CostModel
from quantkit.quantization.precision.error import ErrorModel, Floats

# Nodes of the cut next to those of the kernels, edges and quantizations.
INT8, FLOAT = "int8", "float"
# Prices of the noise of all int8 layers, as a multiple of the time of the model.
PRICES = tuple(2.0**exponent for exponent in range(-6, 11))
# Resolution of the capacities of a cut in seconds. Sums of integers do not depend on the order of the additions:
# of equal choices, every process takes the same one.
RESOLUTION = 1e-15
# Linearizations of the noise at the choice of the iteration before.
NUM_ITERATIONS = 3


class Link(NamedTuple):
    """Quantized edge between kernels.

    Attributes:
        producer: kernel that computes it; `FLOAT` for a float node.
        consumers: kernels that use it; `FLOAT` for a float node or an output of the graph.
        seconds: time of a conversion between int8 and float.
    """

    producer: str
    consumers: frozenset[str]
    seconds: float


class TimeCut:
    """Choices of float kernels with the least time.

    Attributes:
        plan: plan of the graph with all kernels in int8.
        costs: times of the kernels and boundaries of the plan.
        layers: layers of the fused patterns.
        links: quantized edges.
    """

    def __init__(self, graph: Graph, plan: Plan, costs: CostModel) -> None:
        self.plan, self.costs = plan, costs
        self.layers = [pattern.layer for pattern in plan.patterns]
        kernels = {name: pattern.layer for name, pattern in plan.pattern_of.items()}
        kernels |= {name: name for name in plan.pass_through}
        producers = {pattern.output: pattern.layer for pattern in plan.patterns}
        self.links = [
            Link(
                producers.get(edge, edge.node if edge.node in plan.pass_through else FLOAT),
                frozenset(kernels.get(use.node.name, FLOAT) for use in graph.uses.get(edge, ()))
                | frozenset({FLOAT} if edge in graph.outputs else ()),
                costs.boundaries[edge],
            )
            for edge in plan.activations
        ]

    def seconds(self, choice: frozenset[str]) -> float:
        """Return the predicted time of the kernels and boundaries of a choice."""
        is_float = choice | {FLOAT}
        kernels = (time.float if name in choice else time.int8 for name, time in self.costs.kernels.items())
        crossed = (
            link.seconds
            for link in self.links
            if any((consumer in is_float) != (link.producer in is_float) for consumer in link.consumers)
        )
        return sum(kernels) + sum(crossed)

    def choose(self, noise: Iterable[tuple[Collection[str], float]] = ()) -> frozenset[str]:
        """Return the float kernels with the least time and noise, the float side of the minimum cut.

        Of equal choices, it is the one with the fewest kernels.

        Args:
            noise: kernels, and the price that is paid if one of them is in int8.
        """
        import networkx

        graph = networkx.DiGraph()

        def add(source: object, target: object, capacity: float = inf) -> None:
            if capacity == inf:
                graph.add_edge(source, target)  # no limit
            elif capacity > RESOLUTION:  # false for NaN, the noise of a model with values that are not finite
                graph.add_edge(source, target, capacity=round(capacity / RESOLUTION))

        def node(kernel: str) -> object:
            return FLOAT if kernel == FLOAT else ("kernel", kernel)

        graph.add_nodes_from([INT8, FLOAT, *map(node, self.costs.kernels)])
        for name, time in self.costs.kernels.items():
            add(INT8, node(name), time.float)
            add(node(name), FLOAT, time.int8)
        for number, (kernels, price) in enumerate(noise):
            for kernel in kernels:
                add(node(kernel), ("noise", number))
            add(("noise", number), FLOAT, price)
        for number, link in enumerate(self.links):
            producer, others = node(link.producer), link.consumers - {link.producer}
            # Paid if the producer is in int8 and a consumer in float, and the reverse.
            add(producer, ("dequantized", number), link.seconds)
            add(("quantized", number), producer, link.seconds)
            for kernel in others:
                add(("dequantized", number), node(kernel))
                add(node(kernel), ("quantized", number))
        _, (int8, _) = networkx.minimum_cut(graph, INT8, FLOAT)
        return frozenset(name for name in self.costs.kernels if node(name) not in int8)


class FloatSearch(TimeCut):
    """Choices of float layers with little time for each error.

    Attributes:
        errors: error model of the plan.
        owners: layers of each switch, any of which in int8 uses the quantization.
    """

    def __init__(self, graph: Graph, plan: Plan, errors: ErrorModel, costs: CostModel) -> None:
        super().__init__(graph, plan, costs)
        self.errors = errors
        outputs = {pattern.output: pattern.layer for pattern in plan.patterns}
        self.owners = [frozenset(_find_owners(graph, plan, outputs, group)) for group in errors.switched.groups]
        self.owners += [frozenset({layer}) for layer in errors.switched.layers]

    def front(self) -> Iterator[frozenset[str]]:
        """Yield the float layers of each price of the noise, fewest first."""
        choices = {frozenset[str]()}
        for price in PRICES:
            choice = self._choose(price)
            if choice not in choices:
                choices.add(choice)
                yield choice

    def ranking(self) -> list[str]:
        """Return the layers, those first that a low price of the noise keeps in float, then by their noise."""
        choices = list(self.front())
        noise = self.errors.contributions(self.switches(frozenset()))
        contribution = {
            layer: sum(float(noise[number]) for number, owners in enumerate(self.owners) if layer in owners)
            for layer in self.layers
        }
        first = {layer: price for price, choice in reversed(list(enumerate(choices))) for layer in choice}
        return sorted(self.layers, key=lambda layer: (first.get(layer, len(choices)), -contribution[layer]))

    def switches(self, choice: frozenset[str]) -> Floats:
        """Return the switches of a choice, (n,) of 0 and 1."""
        return np.array([not owners or not owners <= choice for owners in self.owners], np.float64)

    def _choose(self, price: float) -> frozenset[str]:
        """Return the float layers with the least time and priced noise."""
        choice = frozenset[str]()
        for _ in range(NUM_ITERATIONS):
            noise = price * self.seconds(frozenset()) * self.errors.contributions(self.switches(choice))
            before, choice = choice, self.choose(zip(self.owners, noise, strict=True)).intersection(self.layers)
            if choice == before:
                break
        return choice


def _find_owners(graph: Graph, plan: Plan, outputs: dict[Edge, str], group: Collection[Edge]) -> Iterator[str]:
    """Yield the layers before and after the edges of a group."""
    for edge in group:
        names = (use.node.name for use in graph.uses.get(edge, ()))
        yield from (plan.pattern_of[name].layer for name in names if name in plan.pattern_of)
        yield from (outputs[edge],) if edge in outputs else ()
