"""Pairs of tensors of two graphs: a float graph and its quantized version, in any two formats.

Plain names decide first (`graph_tensors`). Layers without a common name are matched by their weights, because
quantization and folding change the norm of a channel's weights but hardly their direction:

    similarity(v, w) = mean over channels of  v_c . w_c / (|v_c| |w_c|)

Two layers whose inputs are known to differ are not matched: a pool may have moved across one of them. Inside a fused
layer (bias, batch norm, activation) two versions may compute different tensors, so these are paired only if the
weights are equal up to quantization.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from quantkit.evaluation.graph_tensors import FusedLayer, GraphTensors, TensorProbe
from quantkit.ir.tensor import Array

MIN_SIMILARITY = 0.9
# Relative distance up to which weights are equal apart from quantization.
MAX_DISTANCE = 0.1


class TensorPair(NamedTuple):
    """One tensor in both graphs.

    Attributes:
        name: plain name in the first graph.
        op: op type of its producer in the first graph.
        first, second: probe in each graph.
    """

    name: str
    op: str
    first: TensorProbe
    second: TensorProbe


def match_tensors(first: GraphTensors, second: GraphTensors) -> tuple[TensorPair, ...]:
    """Pair the tensors that two graphs have in common, in the topological order of the first."""
    partners = {name: name for name in first.probes if name in second.probes}
    for layer, other in _match_layers(first, second, partners):
        _pair_layer(layer, other, partners)
    for edge, other_edge in zip(first.graph.outputs, second.graph.outputs, strict=False):
        name, other_name = first.plain_name(edge), second.plain_name(other_edge)
        if name in first.probes and other_name in second.probes:
            partners.setdefault(name, other_name)
    return tuple(
        TensorPair(name, first.graph[probe.edge.node].op, probe, second.probes[partners[name]])
        for name, probe in first.probes.items()
        if name in partners
    )


def _pair_layer(layer: FusedLayer, other: FusedLayer, partners: dict[str, str]) -> None:
    """Pair the outputs of two versions of a layer, and unpair inner tensors that the two compute differently."""
    distance = _distance(layer.weights, other.weights)
    are_equal = distance is None or distance <= MAX_DISTANCE
    for name in layer.inner:
        # A fused activation may leave the name of the layer to the activation's result.
        is_output = partners.get(name) == other.output and layer.is_activated
        if name in partners and (is_output or not are_equal):
            del partners[name]
    if layer.is_activated == other.is_activated:
        partners.setdefault(layer.output, other.output)
    elif other.is_activated and partners.get(layer.output) == other.output:
        del partners[layer.output]  # only the second output is clamped by the activation


def _match_layers(
    first: GraphTensors, second: GraphTensors, partners: Mapping[str, str]
) -> Iterator[tuple[FusedLayer, FusedLayer]]:
    """Yield pairs of layers: first those with a common tensor name, then those with similar weights."""
    by_name: dict[str, FusedLayer] = {}
    for layer in second.layers:
        for name in layer.names:
            by_name.setdefault(name, layer)
    unmatched, matched = [], set()
    for layer in first.layers:
        names = [partners[name] for name in layer.names if name in partners]
        other = next((by_name[name] for name in names if name in by_name), None)
        if other is None or other.node.name in matched:
            unmatched.append(layer)
        else:
            matched.add(other.node.name)
            yield layer, other
    free = [layer for layer in second.layers if layer.node.name not in matched and layer.weights is not None]
    for layer in unmatched:
        scores = [
            (_similarity(layer.weights, other.weights), index)
            for index, other in enumerate(free)
            if layer.source == other.source or not (layer.source in second.probes or other.source in first.probes)
        ]
        score, index = max(scores, default=(0.0, 0))
        if score > MIN_SIMILARITY:
            yield layer, free.pop(index)


def _similarity(a: Array | None, b: Array | None) -> float:
    """Compute the mean cosine similarity of the channels; 0 if the shapes differ."""
    if a is None or b is None or a.shape != b.shape:
        return 0.0
    norms = np.linalg.norm(a, axis=0) * np.linalg.norm(b, axis=0)
    products = (a * b).sum(axis=0)
    usable = np.isfinite(norms) & (norms > 0)
    return float((products[usable] / norms[usable]).mean()) if usable.any() else 0.0


def _distance(a: Array | None, b: Array | None) -> float | None:
    """Compute the relative distance of two weights; None if it is not defined."""
    if a is None or b is None or a.shape != b.shape:
        return None
    finite = np.isfinite(a) & np.isfinite(b)
    norm = float(np.linalg.norm(a[finite]))
    return float(np.linalg.norm(a[finite] - b[finite])) / norm if norm else None
