"""Small graphs with random inputs and the outputs that NumPy computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from quantkit.ir.graph import Edge, Graph, Node, Versions, constant
from quantkit.ir.tensor import DType, Shape

Arrays = Mapping[str, npt.NDArray[Any]]
FLOAT, INT32, BOOL = DType.FLOAT, DType.INT32, DType.BOOL


@dataclass(frozen=True)
class Case:
    """Graph with its expected outputs.

    Attributes:
        graph: graph to run.
        inputs, outputs: element type and shape of each, by name.
        feeds: function that returns random inputs for a batch of n.
        expected: function that computes the outputs with NumPy.
    """

    graph: Graph
    inputs: Mapping[str, tuple[DType, tuple[int | None, ...]]]
    outputs: Mapping[str, DType]
    feeds: Callable[[int], Arrays]
    expected: Callable[[Arrays], Arrays]


def placeholder(name: str, dtype: DType, *dims: int | None) -> Node:
    return Node(name, "Placeholder", attrs={"dtype": dtype, "shape": Shape(dims)})


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": FLOAT, **attrs})


def random(*shape: int) -> npt.NDArray[np.float32]:
    """Return random values in [-1, 1] that depend only on the shape."""
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)


def dense() -> Case:
    weights, bias = random(4, 3), random(3)
    graph = Graph.of(
        [
            placeholder("x", FLOAT, None, 4),
            constant("weights", weights),
            constant("bias", bias),
            node("product", "MatMul", "x", "weights", transpose_a=False, transpose_b=False),
            node("sum", "BiasAdd", "product", "bias"),
            node("y", "Relu", "sum"),
            node("softmax", "Softmax", "sum"),
        ],
        ["x"],
        ["y", "product", "softmax"],
    )

    def compute(feeds: Arrays) -> Arrays:
        product = feeds["x"] @ weights
        powers = np.exp(product + bias)
        return {
            "y": np.maximum(product + bias, 0),
            "product": product,
            "softmax": powers / powers.sum(axis=1, keepdims=True),
        }

    return Case(
        graph,
        {"x": (FLOAT, (None, 4))},
        {"y": FLOAT, "product": FLOAT, "softmax": FLOAT},
        lambda n: {"x": random(n, 4)},
        compute,
    )


def convolution() -> Case:
    weights, bias = random(3, 3, 2, 4), random(4)
    graph = Graph.of(
        [
            placeholder("image", FLOAT, None, 6, 5, 2),
            constant("weights", weights),
            constant("bias", bias),
            node("conv", "Conv2D", "image", "weights", strides=(1, 1, 1, 1), padding=b"SAME"),
            node("biased", "BiasAdd", "conv", "bias"),
            node("relu", "Relu", "biased"),
            node("max", "MaxPool", "relu", ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding=b"VALID"),
            node("average", "AvgPool", "image", ksize=(1, 3, 3, 1), strides=(1, 1, 1, 1), padding=b"SAME"),
            constant("axis", np.int32(3)),
            Node(
                "joined", "ConcatV2", (Edge("relu"), Edge("average"), Edge("axis")), attrs={"T": FLOAT, "N": 2}
            ).with_attrs(Tidx=INT32),
        ],
        ["image"],
        ["joined", "max"],
    )

    def windows(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))  # n h w c 3 3

    def compute(feeds: Arrays) -> Arrays:
        image = feeds["image"]
        relu = np.maximum(np.einsum("nhwcij,ijck->nhwk", windows(image), weights) + bias, 0)
        counts = windows(np.ones_like(image)).sum(axis=(4, 5))
        average = windows(image).sum(axis=(4, 5)) / counts
        n = len(image)
        pooled = relu[:, :, :4].reshape(n, 3, 2, 2, 2, 4).max(axis=(2, 4))
        return {"joined": np.concatenate([relu, average], axis=3), "max": pooled}

    return Case(
        graph,
        {"image": (FLOAT, (None, 6, 5, 2))},
        {"joined": FLOAT, "max": FLOAT},
        lambda n: {"image": random(n, 6, 5, 2)},
        compute,
    )


def split() -> Case:
    graph = Graph.of(
        [
            placeholder("x", FLOAT, None, 6),
            constant("axis", np.int32(1)),
            node("split", "Split", "axis", "x", num_split=3),
            node("negative", "Neg", "split:1"),
        ],
        ["x"],
        ["split:2", "split", "negative"],
    )

    def compute(feeds: Arrays) -> Arrays:
        first, second, third = np.split(feeds["x"], 3, axis=1)
        return {"split:2": third, "split": first, "negative": -second}

    return Case(
        graph,
        {"x": (FLOAT, (None, 6))},
        {"split:2": FLOAT, "split": FLOAT, "negative": FLOAT},
        lambda n: {"x": random(n, 6)},
        compute,
    )


def integers() -> Case:
    graph = Graph.of(
        [
            placeholder("a", INT32, None, 3),
            placeholder("b", INT32, None, 3),
            placeholder("flag", BOOL),
            node("sum", "AddV2", "a", "b", T=INT32),
            node("greater", "Greater", "a", "b", T=INT32),
            Node("off", "LogicalNot", (Edge("flag"),)),
        ],
        ["a", "b", "flag"],
        ["sum", "greater", "off"],
        versions=Versions(producer=27),  # before 24, a placeholder of shape [] had any shape
    )

    def feeds(n: int) -> Arrays:
        numbers = np.random.default_rng(n).integers(-100, 100, (2, n, 3), np.int32)
        return {"a": numbers[0], "b": numbers[1], "flag": np.bool_(True)}  # type: ignore[dict-item]

    return Case(
        graph,
        {"a": (INT32, (None, 3)), "b": (INT32, (None, 3)), "flag": (BOOL, ())},
        {"sum": INT32, "greater": BOOL, "off": BOOL},
        feeds,
        lambda f: {"sum": f["a"] + f["b"], "greater": f["a"] > f["b"], "off": np.logical_not(f["flag"])},
    )


def middle() -> Case:
    """Return a graph with an input in its middle that is also an output, and an input without consumers."""
    graph = Graph.of(
        [
            placeholder("pixels", FLOAT, 1, 4),
            placeholder("unread", FLOAT, 2),
            constant("scale", np.float32(2)),
            node("scaled", "Mul", "pixels", "scale"),
            node("relu", "Relu", "scaled"),
        ],
        ["scaled", "unread"],
        ["relu", "scaled"],
    )
    return Case(
        graph,
        {"scaled": (FLOAT, (1, 4)), "unread": (FLOAT, (2,))},
        {"relu": FLOAT, "scaled": FLOAT},
        lambda n: {"scaled": random(1, 4), "unread": random(2)},
        lambda feeds: {"relu": np.maximum(feeds["scaled"], 0), "scaled": feeds["scaled"]},
    )


CASES: Mapping[str, Case] = {make.__name__: make() for make in (dense, convolution, split, integers, middle)}
