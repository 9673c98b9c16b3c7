"""Graphs of known models with random weights: the same nodes as the released files.

They serve to measure latency and memory, and to inspect graphs, without a download. Their
predictions are meaningless, so their output nodes have an attribute that `is_random` finds; it
survives saving, loading and transforms. All runtimes ignore attributes whose names begin with an
underscore.
"""

from importlib import import_module

from quantkit.errors import UsageError, did_you_mean
from quantkit.ir.graph import Graph

# Module and function that builds each architecture; the module is imported on first use.
ARCHITECTURES = {
    "inception_v3": ("release_2015", "inception_v3"),
    "inception_v3_2016": ("release_2016", "inception_v3"),
    "mobilenet_v1": ("mobilenet", "mobilenet_v1"),
    "mobilenet_v2": ("mobilenet", "mobilenet_v2"),
}
MARK = "_random_parameters"


def random_graph(card_name: str, seed: int = 0) -> Graph:
    """Build the graph of a card's architecture with random weights.

    Args:
        card_name: key of `ARCHITECTURES`.
        seed: seed of the weights; equal seeds produce equal graphs. Weights are drawn on first use.

    Raises:
        UsageError: there is no architecture with that name.
    """
    if card_name not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        raise UsageError(
            f"there are no random weights for {card_name!r}",
            hint=did_you_mean(card_name, ARCHITECTURES) or f"the architectures are {names}",
        )
    module, function = ARCHITECTURES[card_name]
    graph: Graph = getattr(import_module(f"{__name__}.{module}"), function)(seed)
    return graph.with_nodes(
        node.with_attrs(**{MARK: seed}) if node.name in graph.output_names else node for node in graph.nodes.values()
    )


def is_random(graph: Graph) -> bool:
    """Return True if a graph was built by `random_graph`, also after transforms.

    >>> is_random(random_graph("mobilenet_v1"))
    True
    """
    return any(MARK in node.attrs for node in graph.nodes.values())
