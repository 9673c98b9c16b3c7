"""What every exact rewrite promises, and pieces of the graphs that tests rewrite."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from work import check_work_is_linear

from quantkit.ir.check import verify
from quantkit.ir.graph import Attr, Graph, Node
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.runtimes import find_runtime
from quantkit.transforms.registry import Transform

CONVOLUTION: Mapping[str, Attr] = {"strides": (1, 1, 1, 1), "padding": b"SAME"}
AVERAGE: Mapping[str, Attr] = {**CONVOLUTION, "ksize": (1, 3, 3, 1)}


def placeholder(shape: tuple[int, ...], name: str = "x") -> Node:
    return Node(name, "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(shape)})


def answers(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """The outputs for seeded inputs."""
    random = np.random.default_rng(seed)
    with find_runtime("reference").open(graph) as session:
        return session.run(
            {one.name: random.uniform(-1, 1, one.shape.sizes).astype(np.float32) for one in session.inputs}
        )


def check_promises(transform: Transform, graph: Graph, **options: Any) -> None:
    """A rewrite keeps ends and answers, leaves its argument alone, and is done after one call."""
    kept = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs, library=graph.library)
    outcome = transform.outcome(graph, **options)
    verify(outcome.graph, blame=transform.name)
    assert graph == kept
    assert (outcome.graph.inputs, outcome.graph.outputs) == (graph.inputs, graph.outputs)
    want, found = answers(graph), answers(outcome.graph)
    for name, values in want.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5 * max(1, np.abs(values).max()))
    again = transform.outcome(outcome.graph, **options)
    assert (again.graph, again.changes) == (outcome.graph, ())


def work_grows_linearly(transform: Transform, graph: Callable[[int], Graph], small: int = 50, **options: Any) -> None:
    """Eight times the nodes take little more than eight times the work."""

    def work(count: int) -> Callable[[], object]:
        made = graph(count)
        return lambda: transform(made, **options)

    check_work_is_linear(work, small)
