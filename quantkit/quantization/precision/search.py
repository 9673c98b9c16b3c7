"""Search for the layers that stay in float: a minimum cut for each price of the error.

    minimize    sum_i time_i(x_i) + sum_(i,j) boundary_ij [x_i != x_j] + price * noise(x)

The noise of a choice is the sum of the contributions of its quantizations; that of an edge counts if a layer next to it
is in int8. All costs are paid where neighbours differ, so that the problem for one price is a minimum cut, which is
exact. The prices of a sweep give the Pareto front of time and error.
"""

from collections.abc import Collection, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from quantkit.errors import UnavailableError
from quantkit.ir.graph import Edge, Graph
from quantkit.quantization.plan import Plan
from quantkit.quantization.precision.cost import CostModel
from quantkit.quantization.precision.error import ErrorModel, Floats

# Nodes of the cut next to the names of the layers and the indices of the switches.
INT8, FLOAT = "int8", "float"
# Prices of the noise of all int8 layers, as a multiple of the time of the model.
PRICES = tuple(2.0**exponent for exponent in range(-6, 11))
# Linearizations of the noise at the choice of the iteration before.
NUM_ITERATIONS = 3


class Link(NamedTuple):
    """Edges with a common range between layers.

    Attributes:
        producers: layers that compute them; `FLOAT` for a float node.
        consumers: layers that use them; `FLOAT` for a float node or an output of the graph.
        seconds: time of a conversion between int8 and float.
    """

    producers: frozenset[str]
    consumers: frozenset[str]
    seconds: float

    @property
    def layers(self) -> frozenset[str]:
        """All of these layers."""
        return (self.producers | self.consumers) - {FLOAT}


class FloatSearch:
    """Choices of float layers with little time for each error.

    Attributes:
        graph: float graph.
        plan: plan of ``graph`` with all layers in int8.
        errors: error model of the plan.
        costs: times of the layers and boundaries of the plan.
        links: edges of each group with a common range.
        owners: layers of each switch, any of which in int8 uses the quantization.
    """

    def __init__(self, graph: Graph, plan: Plan, errors: ErrorModel, costs: CostModel) -> None:
        self.graph, self.plan, self.errors, self.costs = graph, plan, errors, costs
        self.layers = [pattern.layer for pattern in plan.patterns]
        self.links = [self._link(group) for group in errors.switched.groups]
        self.owners = [
            *(link.layers for link in self.links),
            *(frozenset({layer}) for layer in errors.switched.layers),
        ]

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

    def seconds(self, choice: frozenset[str]) -> float:
        """Return the predicted time of the layers and boundaries of a choice."""
        times = self.costs.layers
        layers = sum(times[name].float if name in choice else times[name].int8 for name in self.layers)
        is_float = choice | {FLOAT}
        crossed = (
            link.seconds
            * sum(
                (producer in is_float) != (consumer in is_float)
                for producer, consumer in product(link.producers, link.consumers)
            )
            / max(len(link.producers) * len(link.consumers), 1)
            for link in self.links
        )
        return layers + sum(crossed)

    def _choose(self, price: float) -> frozenset[str]:
        """Return the float layers with the least time and priced noise."""
        choice = frozenset[str]()
        for _ in range(NUM_ITERATIONS):
            weights = self.errors.contributions(self.switches(choice))
            choice, before = self.cut(price * self.seconds(frozenset()) * weights), choice
            if choice == before:
                break
        return choice

    def cut(self, noise: Floats) -> frozenset[str]:
        """Return the float side of the minimum cut.

        Args:
            noise: priced noise of each switch, (n,).

        Raises:
            UnavailableError: networkx is not installed.
        """
        try:
            import networkx
        except ImportError as error:
            raise UnavailableError("networkx is not installed", hint="pip install networkx") from error
        graph = networkx.DiGraph()

        def add(source: object, target: object, capacity: float | None = None) -> None:
            if capacity is None:
                graph.add_edge(source, target)  # no limit
            elif capacity > 0:
                present = graph.get_edge_data(source, target, {"capacity": 0.0})["capacity"]
                graph.add_edge(source, target, capacity=present + capacity)

        graph.add_nodes_from([INT8, FLOAT])
        for layer in self.layers:
            add(INT8, ("layer", layer), self.costs.layers[layer].float)
            add(("layer", layer), FLOAT, self.costs.layers[layer].int8)
        for number, owners in enumerate(self.owners):
            for layer in owners:
                add(("layer", layer), ("switch", number))
            add(("switch", number), FLOAT, float(noise[number]))
        for link in self.links:
            seconds = link.seconds / max(len(link.producers) * len(link.consumers), 1)
            for pair in product(link.producers, link.consumers):
                source, target = (FLOAT if name == FLOAT else ("layer", name) for name in pair)
                add(source, target, seconds)
                add(target, source, seconds)
        _, (int8, _) = networkx.minimum_cut(graph, INT8, FLOAT)
        return frozenset(layer for layer in self.layers if ("layer", layer) not in int8)

    def _link(self, group: Collection[Edge]) -> Link:
        """Return the layers before and after the edges of a group."""
        plan = self.plan
        inner = set(plan.pass_through)
        outputs = {pattern.output: pattern.layer for pattern in plan.patterns}
        producers = {outputs.get(edge, FLOAT) for edge in group if edge.node not in inner}
        consumers = set[str]()
        for edge in group:
            names = [use.node.name for use in self.graph.uses.get(edge, ()) if use.node.name not in inner]
            consumers.update(plan.pattern_of[name].layer if name in plan.pattern_of else FLOAT for name in names)
            consumers.update({FLOAT} if edge in self.graph.outputs else ())
        seconds = min(self.costs.boundaries[edge] for edge in group)
        return Link(frozenset(producers), frozenset(consumers), seconds)
