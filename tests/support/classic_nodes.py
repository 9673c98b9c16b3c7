"""Nodes for the cases of classic mode."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from classic_cases import ClassicCase

from quantkit.ir.graph import Graph, Node, Versions, constant
from quantkit.ir.tensor import DType, Shape

LAYER = {"strides": (1, 1, 1, 1), "padding": b"SAME", "data_format": b"NHWC"}
POOL = {"ksize": (1, 2, 2, 1), **LAYER}
FUSED = {"epsilon": 0.001, "is_training": False}
GLOBAL = {"variance_epsilon": 0.001, "scale_after_normalization": True}


def node(name: str, op: str, *inputs: str, device: str = "", **attrs: Any) -> Node:
    """Return a node with inputs as spelled in a file, and the attribute T=float by default."""
    attributes = {key: value for key, value in {"T": DType.FLOAT, **attrs}.items() if value is not None}
    return Node.of_written(name, op, inputs, attributes, device)


def placeholder(name: str, *sizes: int, dtype: DType = DType.FLOAT, **attrs: Any) -> Node:
    return node(name, "Placeholder", T=None, dtype=dtype, shape=Shape(sizes) if sizes else None, **attrs)


def const(name: str, values: Any, *inputs: str, dtype: Any = np.float32) -> Node:
    return constant(name, np.asarray(values, dtype)).with_(controls=tuple(text[1:] for text in inputs))


def ramp(name: str, *sizes: int, start: int = -3) -> Node:
    """Return weights that increase in steps of 0.25."""
    count = int(np.prod(sizes))
    return const(name, ((np.arange(count) % 11 + start) / 4).reshape(sizes))


def untyped_node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    return node(name, op, *inputs, **{"T": None, **attrs})


class Cases:
    """Cases of one kind."""

    def __init__(self, kind: str, transforms: str) -> None:
        self.kind = kind
        self.transforms = transforms
        self.cases: list[ClassicCase] = []

    def add(
        self,
        name: str,
        nodes: Sequence[Node],
        outputs: str,
        transforms: str = "",
        inputs: str = "x",
        producer: int = 21,
    ) -> None:
        graph = Graph.of(nodes, versions=Versions(producer))
        recipe = transforms or self.transforms
        self.cases.append(ClassicCase(f"quirk/{self.kind}/{name}", graph, inputs, outputs, recipe))


X = placeholder("x", 1, 4, 4, 2)
SMALL = (placeholder("x"), node("a", "Identity", "x"), node("y", "Relu", "a"))
STATISTICS = (
    const("mean", [1, 2, 3]),
    const("variance", [4, 1, 0.25]),
    const("beta", [0, 1, -1]),
    const("gamma", [1, 2, 0.5]),
)
FUSED_INPUTS = ("gamma", "beta", "mean", "variance")
GLOBAL_INPUTS = ("mean", "variance", "beta", "gamma")
