"""The graphs of known models without their weights: the same nodes, random parameters.

Good for latency, memory and the shape of things where nothing can be downloaded. The answers of such a graph mean
nothing, and the graph says so: its output nodes carry an attribute that `is_random` finds, which survives saving,
loading and transforms. Attributes whose names begin with an underscore are for annotations: every engine lets them be.
"""

from importlib import import_module

from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.graph import Graph

# The module and function that builds each; imported when it is asked for.
ARCHITECTURES = {
    "inception_v3": ("release_2015", "inception_v3"),
    "inception_v3_2016": ("release_2016", "inception_v3"),
    "mobilenet_v1": ("mobilenet", "mobilenet_v1"),
    "mobilenet_v2": ("mobilenet", "mobilenet_v2"),
}
MARK = "_random_parameters"


def random_graph(card_name: str, seed: int = 0) -> Graph:
    """The graph of a card's architecture, with random parameters in place of the trained ones.

    Args:
        card_name: a key of `ARCHITECTURES`.
        seed: equal seeds give equal graphs. Parameters are drawn when they are read, and nothing before.

    Raises:
        UsageError: no architecture of that name is known.
    """
    if card_name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UsageError(
            f"there are no random weights for {card_name!r}",
            hint=did_you_mean(card_name, ARCHITECTURES) or f"architectures that can be built: {known}",
        )
    module, function = ARCHITECTURES[card_name]
    graph: Graph = getattr(import_module(f"{__name__}.{module}"), function)(seed)
    return graph.with_nodes(
        node.with_attrs(**{MARK: seed}) if node.name in graph.output_names else node for node in graph.nodes.values()
    )


def is_random(graph: Graph) -> bool:
    """Whether the graph came from `random_graph`, by way of whatever files and transforms.

    >>> is_random(random_graph("mobilenet_v1"))
    True
    """
    return any(MARK in node.attrs for node in graph.nodes.values())
