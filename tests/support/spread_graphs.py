"""Exact inverses of rewrites: graphs as exporters write them, for tests and measurements of the rewrites."""

from collections.abc import Callable, Mapping

import numpy as np

from quantkit.ir.draft import Draft
from quantkit.ir.graph import Edge, Graph, Node, constant
from quantkit.ir.tensor import DType, Shape
from quantkit.ops.shape_inference import infer_shapes
from quantkit.transforms.folding.fold_pads import same_widths

FLOAT = {"T": DType.FLOAT}


def with_pads(graph: Graph) -> Graph:
    """Replace the SAME padding of convolutions by Pad nodes."""
    shapes = infer_shapes(graph)
    draft = Draft(graph)
    for node in graph.nodes.values():
        if node.op in ("Conv2D", "DepthwiseConv2dNative") and node.attrs.get("padding") == b"SAME":
            widths = same_widths(shapes, node, shapes[node.inputs[0]])
            if widths is not None and widths.any():
                paddings = constant(f"{node.name}/widths", widths.astype(np.int32))
                attrs = {**FLOAT, "Tpaddings": DType.INT32}
                pad = Node(f"{node.name}/pad", "Pad", (node.inputs[0], Edge(paddings.name)), attrs=attrs)
                draft.replace(node.name, paddings, pad, node.with_input(0, Edge(pad.name)).with_attrs(padding=b"VALID"))
    return draft.graph()


def with_clamps(graph: Graph) -> Graph:
    """Replace Relu and Relu6 by Maximum and Minimum."""
    draft = Draft(graph)
    for node in graph.nodes.values():
        if node.op in ("Relu", "Relu6"):
            low = constant(f"{node.name}/low", np.float32(0))
            if node.op == "Relu":
                draft.replace(node.name, low, node.with_(op="Maximum", inputs=(*node.inputs, Edge(low.name))))
                continue
            high = constant(f"{node.name}/high", np.float32(6))
            floor = Node(f"{node.name}/floor", "Maximum", (*node.inputs, Edge(low.name)), attrs=FLOAT)
            top = node.with_(op="Minimum", inputs=(Edge(floor.name), Edge(high.name)))
            draft.replace(node.name, low, high, floor, top)
    return draft.graph()


def with_batch_norms(graph: Graph, seed: int = 0) -> Graph:
    """Replace the biases of convolutions by decomposed BatchNorm: a product and a sum."""
    random = np.random.default_rng(seed)
    draft = Draft(graph)
    for node in graph.nodes.values():
        layer = graph[node.inputs[0].node] if node.op == "BiasAdd" else node
        if layer.op != "Conv2D" or node.op != "BiasAdd":
            continue
        weights = graph[layer.inputs[1].node]
        factor = random.uniform(0.5, 2, weights.value.shape[3]).astype(np.float32)
        unscaled = constant(f"{layer.name}/unscaled", weights.value.array / factor)
        scale = constant(f"{layer.name}/scale", factor)
        product = Node(f"{node.name}/mul", "Mul", (Edge(layer.name), Edge(scale.name)), attrs=FLOAT)
        total = node.with_(op="AddV2", inputs=(Edge(product.name), node.inputs[1]), attrs=FLOAT)
        draft.replace(layer.name, unscaled, layer.with_input(1, Edge(unscaled.name)))
        draft.replace(node.name, scale, product, total)
    return draft.graph()


def with_preprocessing(graph: Graph, mean: float = 128, std: float = 128) -> Graph:
    """Add an input of pixels from 0 to 255 with two nodes that normalize them."""
    (edge,) = graph.inputs
    source = graph[edge.node]
    shape = infer_shapes(graph)[edge]
    pixels = Node("pixels", "Placeholder", attrs={"dtype": DType.FLOAT, "shape": Shape(shape.dims)})
    middle, factor = constant("middle", np.float32(mean)), constant("factor", np.float32(1 / std))
    centered = Node("centered", "Sub", (Edge("pixels"), Edge("middle")), attrs=FLOAT)
    prepared = Node(source.name, "Mul", (Edge("centered"), Edge("factor")), attrs=FLOAT)
    draft = Draft(graph)
    draft.replace(source.name, pixels, middle, factor, centered, prepared)
    return draft.graph().with_(inputs=(Edge("pixels"),))


# Function that prepares the folded network such that the rewrite has a match.
REWRITES: Mapping[str, Callable[[Graph], Graph]] = {
    "pool_after_projection": lambda graph: graph,
    "absorb_preprocessing": with_preprocessing,
    "fold_pads": with_pads,
    "fold_clamps": with_clamps,
    "fold_batch_norms": with_batch_norms,
}
