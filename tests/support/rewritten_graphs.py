"""Checks of exact transforms, and parts of the graphs that tests rewrite."""

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


def compute_outputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Return the outputs of the reference runtime for seeded inputs."""
    random = np.random.default_rng(seed)
    with find_runtime("reference").open(graph) as session:
        return session.run(
            {info.name: random.uniform(-1, 1, info.shape.sizes).astype(np.float32) for info in session.inputs}
        )


def check_exact_transform(transform: Transform, graph: Graph, **options: Any) -> None:
    """Check that a transform keeps inputs, outputs, their values and its argument, and is idempotent."""
    copy = Graph.of(graph.nodes.values(), graph.inputs, graph.outputs, library=graph.library)
    outcome = transform.outcome(graph, **options)
    verify(outcome.graph, blame=transform.name)
    assert graph == copy
    assert (outcome.graph.inputs, outcome.graph.outputs) == (graph.inputs, graph.outputs)
    expected, actual = compute_outputs(graph), compute_outputs(outcome.graph)
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-5, atol=1e-5 * max(1, np.abs(values).max()))
    again = transform.outcome(outcome.graph, **options)
    assert (again.graph, again.changes) == (outcome.graph, ())


def check_linear_work(transform: Transform, graph: Callable[[int], Graph], small: int = 50, **options: Any) -> None:
    """Check that the work of a transform grows linearly with the number of nodes."""

    def work(count: int) -> Callable[[], object]:
        sized = graph(count)
        return lambda: transform(sized, **options)

    check_work_is_linear(work, small)
