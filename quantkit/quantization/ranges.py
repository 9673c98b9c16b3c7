"""Calibrated value ranges of tensors.

A ranges file replaces the calibration dataset when a model is quantized again:

    {"schema": "quantkit.ranges/3",
     "provenance": {"graph": "5d41...", "data": "9a0b...", "scheme": "11fe...", "count": 100,
                    "preprocessing": {"height": 299, ..., "mean": 128.0, "std": 128.0, "origin": "card"}},
     "ranges": {"Mul": [-1.0, 0.9921875], "conv": [0.0, 2.5]}}
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from quantkit.data.preprocessing import Preprocessing
from quantkit.errors import InputError, UsageError
from quantkit.formats import graphdef, onnx
from quantkit.formats.documents import check_structure, read_json
from quantkit.formats.files import write_whole
from quantkit.formats.metadata import with_text
from quantkit.ir.graph import Edge, Graph
from quantkit.ir.tensor import Array

SCHEMA = "quantkit.ranges/3"
# Files of this schema do not state the preprocessing.
SCHEMA_WITHOUT_PREPROCESSING = "quantkit.ranges/2"
UNKNOWN = "unknown"
HINT = "write ranges with quantkit quantize --save-ranges FILE"
# Types of the values of a ranges file; `Preprocessing.from_json` checks those of the preprocessing.
_STRUCTURE = {
    "ranges": {str: (float, float)},
    "means": {str: [float]},
    "mean_errors": {str: [float]},
    "scales": {str: [float]},
    "warnings": [str],
}
_PROVENANCE = {"graph": str, "data": str, "scheme": str, "count": int, "trained": int}


class Range(NamedTuple):
    """Smallest and largest value of a tensor, both float32."""

    low: float
    high: float

    def union(self, other: "Range") -> "Range":
        """Return the smallest range that contains both.

        >>> Range(-1.0, 2.0).union(Range(0.0, 3.0))
        Range(low=-1.0, high=3.0)
        """
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class Provenance:
    """Origin of ranges.

    Attributes:
        graph: `graph_digest` of the float graph; may be empty.
        data: digest of the calibration data.
        scheme: `Scheme.digest` of the scheme.
        count: number of calibration samples.
        preprocessing: preprocessing of the calibration images; `ARRAYS_UNCHANGED` for arrays, `UNKNOWN` for a file that
            does not state it.
        trained: number of ranges that come from quantization-aware training instead of calibration.
    """

    graph: str = ""
    data: str = ""
    scheme: str = ""
    count: int = 0
    preprocessing: Preprocessing | str = UNKNOWN
    trained: int = 0


@dataclass(frozen=True)
class Ranges(Mapping[Edge, Range]):
    """Calibrated value range of each quantized edge.

    Attributes:
        ranges: range by edge.
        provenance: graph, data and scheme of the calibration.
        warnings: tensors that are hard to quantize: NaN, infinity, a constant, a dominant channel; skipped samples.
        means: mean of each channel by edge, for bias correction; empty without it.
        mean_errors: mean quantization error of each channel by edge, for bias correction; empty without measurement.
        scales: scale of each channel by edge that moves into the weights, see `scale_migration`; the ranges are those
            of the divided edges.
        extremes: smallest and largest observed value by edge; not part of the file, and empty after `load`.
        channel_maxima: largest absolute value of each channel, by input or output edge of a layer, as `extremes`.
        sqnr: signal-to-quantization-noise ratio in decibels by edge, of observers with a histogram, as `extremes`.
    """

    ranges: Mapping[Edge, Range]
    provenance: Provenance = Provenance()
    warnings: tuple[str, ...] = ()
    means: Mapping[Edge, tuple[float, ...]] = field(default_factory=dict)
    mean_errors: Mapping[Edge, tuple[float, ...]] = field(default_factory=dict)
    scales: Mapping[Edge, tuple[float, ...]] = field(default_factory=dict)
    extremes: Mapping[Edge, Range] = field(default_factory=dict, compare=False)
    channel_maxima: Mapping[Edge, Array] = field(default_factory=dict, compare=False)
    sqnr: Mapping[Edge, float] = field(default_factory=dict, compare=False)

    def __getitem__(self, edge: Edge) -> Range:
        return self.ranges[edge]

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def __hash__(self) -> int:
        return hash(self.provenance)

    def __str__(self) -> str:
        trained = f", {self.provenance.trained} of them trained" if self.provenance.trained else ""
        return f"ranges of {len(self)} tensors, calibrated on {self.provenance.count} samples{trained}"

    def merge_groups(self, groups: Iterable[frozenset[Edge]]) -> "Ranges":
        """Return the ranges with the union of the ranges of each group for all its edges."""
        merged = dict(self.ranges)
        for group in groups:
            members = [self.ranges[edge] for edge in group if edge in self.ranges]
            merged.update(dict.fromkeys(group, reduce(Range.union, members)) if members else {})
        return replace(self, ranges=merged)

    def require_graph(self, graph: Graph) -> None:
        """Check that the ranges were calibrated on a graph, weights included; without a digest, every graph fits.

        Raises:
            InputError: the ranges were calibrated on another graph.
        """
        if self.provenance.graph and self.provenance.graph != graph_digest(graph):
            raise InputError(
                f"the ranges were calibrated on graph {self.provenance.graph}, not on {graph_digest(graph)}",
                hint="calibrate again; weights, --recipe and equalize change the graph",
            )

    def has_other_scheme(self, scheme_digest: str) -> bool:
        """Return True if the ranges were calibrated with another scheme; without a digest, they were not."""
        return bool(self.provenance.scheme) and self.provenance.scheme != scheme_digest

    def to_json(self) -> dict[str, Any]:
        """Return the ranges as JSON values, for `from_json`."""
        provenance = self.provenance
        preprocessing = provenance.preprocessing
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "provenance": {
                "graph": provenance.graph,
                "data": provenance.data,
                "scheme": provenance.scheme,
                "count": provenance.count,
                "preprocessing": preprocessing if isinstance(preprocessing, str) else preprocessing.to_json(),
                **({"trained": provenance.trained} if provenance.trained else {}),
            },
            "warnings": list(self.warnings),
            "ranges": {edge.reference: [_short(low), _short(high)] for edge, (low, high) in self.ranges.items()},
        }
        for name, values_of in (("means", self.means), ("mean_errors", self.mean_errors), ("scales", self.scales)):
            if values_of:
                document[name] = {edge.reference: list(values) for edge, values in values_of.items()}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the ranges of JSON values.

        Raises:
            InputError: the values are not ranges.
        """
        if document.get("schema") not in (SCHEMA, SCHEMA_WITHOUT_PREPROCESSING):
            raise InputError(
                f"the file does not contain ranges: the schema is {document.get('schema')!r} instead of {SCHEMA!r}",
                hint=HINT,
            )
        try:
            for name, structure in _STRUCTURE.items():
                if name in document or name == "ranges":
                    check_structure(document[name], structure, name)
            for name, value in document["provenance"].items():
                if name in _PROVENANCE:
                    check_structure(value, _PROVENANCE[name], name)
            ranges = {
                Edge.parse(name): Range(float(np.float32(low)), float(np.float32(high)))
                for name, (low, high) in document["ranges"].items()
            }
            if wrong := [str(edge) for edge, (low, high) in ranges.items() if not np.isfinite((low, high)).all()]:
                raise ValueError(f"the range of {wrong[0]!r} is not finite")
            stated = dict(document["provenance"])
            preprocessing = stated.pop("preprocessing", UNKNOWN)
            if not isinstance(preprocessing, str):
                preprocessing = Preprocessing.from_json(preprocessing)
            provenance = Provenance(**stated, preprocessing=preprocessing)
            means, mean_errors, scales = (
                {Edge.parse(edge): tuple(map(float, values)) for edge, values in document.get(name, {}).items()}
                for name in ("means", "mean_errors", "scales")
            )
            return cls(ranges, provenance, tuple(document.get("warnings", ())), means, mean_errors, scales)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, UsageError) as error:
            raise InputError(f"the ranges are damaged: {error}", hint="calibrate again") from None

    @cached_property
    def text(self) -> str:
        """Content of a ranges file, with one edge per line."""
        document = self.to_json()
        lines = [f'"{key}": {json.dumps(value)}' for key, value in document.items() if key != "ranges"]
        edges = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(limits)}" for name, limits in document["ranges"].items())
        return "{" + ",\n ".join([*lines, f'"ranges": {{\n  {edges}}}']) + "}\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ranges to a file; the file appears complete or not at all."""
        write_whole(Path(path), lambda file: file.write(self.text.encode()))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the ranges of a file.

        Raises:
            InputError: the file cannot be read, or does not contain ranges.
        """
        return cls.from_json(read_json(Path(path), HINT))


def graph_digest(graph: Graph) -> str:
    """Return a digest of nodes, weights, inputs and outputs."""
    graph = with_text(graph, None)
    digest = blake2b(repr((list(map(str, graph.inputs)), list(map(str, graph.outputs)))).encode(), digest_size=8)
    for chunk in (onnx if graph.dialect == onnx.DIALECT else graphdef).chunks(graph):
        digest.update(chunk)
    return digest.hexdigest()


def _short(value: float) -> float:
    """Return the shortest decimal number that rounds to the same float32.

    >>> _short(float(np.float32(0.1)))
    0.1
    """
    return float(str(np.float32(value)))
