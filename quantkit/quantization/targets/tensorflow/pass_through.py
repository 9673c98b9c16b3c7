"""Nodes between layers that work on codes: concats, pools, and what moves numbers without changing them."""

import numpy as np

from quantkit.errors import GraphError
from quantkit.ir.graph import Attr, Edge, Node
from quantkit.ir.tensor import DType
from quantkit.ops.shape_inference import UNKNOWN
from quantkit.quantization.plan import CONCATS
from quantkit.quantization.targets.tensorflow.graph_builder import AGAIN, Growth
from quantkit.quantization.targets.tensorflow.parameters import CODES, Coded, codes_name


def add_pass_through(work: Growth, node: Node) -> None:
    """Put what a pass-through node makes of its codes into the graph; or the node, in float, where nothing can.

    Raises:
        GraphError: the plan does not fit the graph, or the node joins along a dimension that is not known.
    """
    output = Edge(node.name)
    wanted = work.grid_of(output)
    if wanted is None:
        raise GraphError(f"the plan carries {node.name!r} and gives it no codes", hint=AGAIN)
    if node.op in CONCATS:
        work.coded[output] = _concat(work, node, wanted)
        return
    made = _moved(work, node, work.codes_of(node.inputs[0]))
    if made is None:
        work.reasons[node.name] = "its size is not known, so no pool computes it"
        work.keep(node)
    else:
        work.coded[output] = work.recoded(node.name, made, wanted)


def _concat(work: Growth, node: Node, wanted: Coded) -> Coded:
    slot = 0 if node.op == "Concat" else len(node.inputs) - 1
    parts = [edge for place, edge in enumerate(node.inputs) if place != slot]
    axis = work.source.constant_of(node.inputs[slot])
    if axis is None:
        raise GraphError(f"{node.name!r} joins along a computed dimension", hint="run fold_constants first")
    rank = next((shape.rank for edge in parts if (shape := work.shapes.get(edge, UNKNOWN)).is_known), None)
    place = int(axis.array.reshape(-1)[0])
    if place < 0 and rank is None:
        raise GraphError(f"{node.name!r} joins along dimension {place} of an unknown number", hint="give its shape")
    place = place + (rank or 0) if place < 0 else place
    coded = [work.recoded(f"{node.name}/{at}", work.codes_of(edge), wanted) for at, edge in enumerate(parts)]
    # The plain op: it copies bytes twice as fast as QuantizedConcatV2, which minds ranges that are all one here.
    inputs = [*(one.edge for one in coded), work.constant(f"{node.name}/axis", np.int32(place))]
    name = codes_name(Edge(node.name))
    made = work.add(name, "ConcatV2", inputs, N=len(coded), T=CODES, Tidx=DType.INT32)
    return wanted._replace(edge=made)


def _moved(work: Growth, node: Node, coded: Coded) -> Coded | None:
    """What a pass-through node of one data input makes of its codes; None: it can not."""
    name = codes_name(Edge(node.name))
    if node.op in ("MaxPool", "AvgPool"):
        window = {key: node.attrs[key] for key in ("ksize", "strides", "padding")}
        made = work.add(name, f"Quantized{node.op}", (coded.edge, *work.span(coded)), T=CODES, **window)
    elif node.op == "Mean":
        return _spatial_mean(work, node, name, coded)
    elif node.op in ("Relu", "Relu6"):
        made = work.clipped(name, node.op, coded)
    else:
        made = work.on_bytes(name, node, coded)
    return coded._replace(edge=made)


def _spatial_mean(work: Growth, node: Node, name: str, coded: Coded) -> Coded | None:
    dims = work.shapes.get(node.inputs[0], UNKNOWN).dims
    if dims is None or None in dims[1:]:
        return None
    window: dict[str, Attr] = {"ksize": (1, dims[1], dims[2], 1), "strides": (1, 1, 1, 1), "padding": b"VALID"}
    inputs = (coded.edge, *work.span(coded))
    if node.attrs.get("keep_dims"):
        return coded._replace(edge=work.add(name, "QuantizedAvgPool", inputs, T=CODES, **window))
    made = work.add(f"{name}/pool", "QuantizedAvgPool", inputs, T=CODES, **window)
    shape = work.constant(f"{name}/shape", np.array([-1, dims[3]], np.int32))
    flat = Node(name, "Reshape", (made, shape), attrs={"Tshape": DType.INT32})
    return coded._replace(edge=work.on_bytes(name, flat, coded._replace(edge=made)))
