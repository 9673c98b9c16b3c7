"""Float graphs that every target must quantize."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import quantkit as qk
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import Array, DType, Shape
from quantkit.quantization.annotation import in_target_dialect
from quantkit.quantization.targets import Target
from quantkit.quantization.workflow.preparation import REWRITE_RECIPE, layer_recipe
from quantkit.recipes import Recipe, parse, run
from quantkit.transforms.registry import names_for

HELD_OUT = Path(__file__).parent.parent.parent / "assets" / "digits_heldout.npz"
SIZE = 8


@dataclass(frozen=True, eq=False)
class Case:
    """Float graph with calibration data.

    Attributes:
        graph: in float, with one input and one output.
        images: inputs (n, ...), float32; the first ones calibrate, all are compared.
        num_calibration: number of images that calibrate.
        min_sqnr: SQNR in dB that the output of a quantized model must reach.
    """

    graph: Graph
    images: Array
    num_calibration: int
    min_sqnr: float

    def batches(self) -> Iterator[Array]:
        """Return the calibration images, one at a time."""
        return (self.images[at : at + 1] for at in range(self.num_calibration))


@cache
def make_case(name: str, target: Target) -> Case:
    """Return the case of a name, prepared with the recipes of a target."""
    graph, recipe, images = {"digits": digits, "residual": residual}[name]()
    steps = [step for part in (layer_recipe(target), recipe, parse(REWRITE_RECIPE)) for step in part.steps]
    supported = names_for(graph.dialect)
    prepared, _ = run(Recipe(tuple(step for step in steps if step.name in supported)), graph)
    return Case(in_target_dialect(prepared, target.name), images, num_calibration=32, min_sqnr=20.0)


def digits() -> tuple[Graph, Recipe, Array]:
    """Return the bundled network, with batch norms to fold."""
    model = qk.load("digits", inputs=["Mul"], outputs=["softmax/logits"])
    assert model.card is not None
    with np.load(HELD_OUT) as data:
        images = (data["images"][:64].astype(np.float32) - 128) / 128
    return model.graph, parse(model.card.recipe), images


def residual() -> tuple[Graph, Recipe, Array]:
    """Return a depthwise block, a residual, joined branches, pools and a classifier."""
    nodes = [
        Node("x", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape((1, SIZE, SIZE, 3))}),
        *layer("stem", "x", (3, 3, 3, 16), "Relu"),
        *layer("depthwise", "stem", (3, 3, 16, 1), "Relu6", op="DepthwiseConv2dNative"),
        *layer("project", "depthwise", (1, 1, 16, 16)),
        node("sum", "AddV2", "project", "stem"),
        node("trunk", "Relu", "sum"),
        node("pool", "MaxPool", "trunk", ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding=b"SAME"),
        *layer("left", "pool", (1, 1, 16, 8), "Relu"),
        node("average", "AvgPool", "pool", ksize=(1, 3, 3, 1), strides=(1, 1, 1, 1), padding=b"SAME"),
        *layer("right", "average", (1, 1, 16, 8), "Relu"),
        constant("axis", np.int32(3)),
        node("joined", "ConcatV2", "left", "right", "axis", N=2, Tidx=DType.INT32),
        constant("spatial", np.array([1, 2], np.int32)),
        node("mean", "Mean", "joined", "spatial", keep_dims=False, Tidx=DType.INT32),
        constant("dense/weights", values(16, 10)),
        constant("dense/bias", values(10)),
        node("dense", "MatMul", "mean", "dense/weights"),
        node("logits", "BiasAdd", "dense", "dense/bias"),
    ]
    return Graph.of(nodes, ["x"], ["logits"]), Recipe(()), values(64, SIZE, SIZE, 3)


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    return Node(name, op, tuple(map(Edge.parse, inputs)), attrs={"T": DType.FLOAT, **attrs})


def values(*shape: int) -> Array:
    return np.random.default_rng(shape).normal(0, 0.3, shape).astype(np.float32)


def layer(name: str, source: str, kernel: tuple[int, ...], activation: str = "", op: str = "Conv2D") -> list[Node]:
    """Return a convolution with bias and activation, under the name of the layer."""
    bias = name if not activation else f"{name}/bias_add"
    nodes = [
        constant(f"{name}/weights", values(*kernel)),
        constant(f"{name}/bias", values(kernel[3] if op == "Conv2D" else kernel[2] * kernel[3])),
        node(f"{name}/conv", op, source, f"{name}/weights", strides=(1, 1, 1, 1), padding=b"SAME"),
        node(bias, "BiasAdd", f"{name}/conv", f"{name}/bias"),
    ]
    return [*nodes, node(name, activation, bias)] if activation else nodes
