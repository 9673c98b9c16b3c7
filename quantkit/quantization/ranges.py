"""What calibration found: the real numbers that each tensor's codes must reach.

A file, so that quantizing again needs no data:

    {"schema": "quantkit.ranges/1",
     "provenance": {"graph": "5d41...", "data": "9a0b...", "scheme": "11fe...", "count": 100},
     "ranges": {"Mul": [-1.0, 0.9921875], "conv": [0.0, 2.5]}}
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from quantkit.errors import InputError
from quantkit.formats import graphdef
from quantkit.formats.documents import read_json
from quantkit.formats.files import write_whole
from quantkit.ir.graph import Edge, Graph

SCHEMA = "quantkit.ranges/1"
FORM = "quantkit quantize --save-ranges FILE writes such files"


class Range(NamedTuple):
    """The lowest and the highest number, both float32."""

    low: float
    high: float

    def joined(self, other: "Range") -> "Range":
        """The range that holds both.

        >>> Range(-1.0, 2.0).joined(Range(0.0, 3.0))
        Range(low=-1.0, high=3.0)
        """
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class Provenance:
    """What the ranges were made of.

    Attributes:
        graph: `graph_digest` of the float graph.
        data: digest of what was fed.
        scheme: `Scheme.digest`.
        count: examples fed.
    """

    graph: str = ""
    data: str = ""
    scheme: str = ""
    count: int = 0


@dataclass(frozen=True)
class Ranges(Mapping[Edge, Range]):
    """Range by edge.

    Attributes:
        ranges: of every edge that a plan quantizes.
        provenance: what they were made of.
        warnings: what the guard saw: a NaN, a dead range, a channel that dwarfs the others.
        means: mean of each channel by edge, which bias correction needs; empty: not asked for.
    """

    ranges: Mapping[Edge, Range]
    provenance: Provenance = Provenance()
    warnings: tuple[str, ...] = ()
    means: Mapping[Edge, tuple[float, ...]] = field(default_factory=dict)

    def __getitem__(self, edge: Edge) -> Range:
        return self.ranges[edge]

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    def __hash__(self) -> int:
        return hash(self.provenance)

    def __str__(self) -> str:
        return f"ranges of {len(self)} tensors, of {self.provenance.count} examples"

    def shared(self, groups: Iterable[frozenset[Edge]]) -> "Ranges":
        """The same, with one range for all edges of a group: the one that holds them all."""
        joined = dict(self.ranges)
        for group in groups:
            members = [self.ranges[edge] for edge in group if edge in self.ranges]
            joined.update(dict.fromkeys(group, reduce(Range.joined, members)) if members else {})
        return replace(self, ranges=joined)

    def require_graph(self, graph: Graph) -> None:
        """See that these ranges are of a graph, weights included; made by hand, they claim nothing.

        Raises:
            InputError: they were collected on another one.
        """
        if self.provenance.graph and self.provenance.graph != graph_digest(graph):
            raise InputError(
                f"the ranges were collected on another graph, {self.provenance.graph}, and this one is "
                f"{graph_digest(graph)}",
                hint="other weights, another --recipe or equalize make another graph: calibrate once more, for this",
            )

    def doubts(self, scheme_digest: str) -> tuple[str, ...]:
        """Why these ranges may not be meant for a scheme, a sentence each; empty: they are."""
        if self.provenance.scheme and self.provenance.scheme != scheme_digest:
            return ("the ranges were collected with another scheme",)
        return ()

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them."""
        provenance = self.provenance
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "provenance": {
                "graph": provenance.graph,
                "data": provenance.data,
                "scheme": provenance.scheme,
                "count": provenance.count,
            },
            "warnings": list(self.warnings),
            "ranges": {str(edge): [_short(low), _short(high)] for edge, (low, high) in self.ranges.items()},
        }
        if self.means:
            document["means"] = {str(edge): list(values) for edge, values in self.means.items()}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Ranges of plain values.

        Raises:
            InputError: they are none.
        """
        if document.get("schema") != SCHEMA:
            raise InputError(
                f"these are no ranges: the schema is {document.get('schema')!r}, not {SCHEMA!r}",
                hint=FORM,
            )
        try:
            ranges = {
                Edge.parse(name): Range(float(np.float32(low)), float(np.float32(high)))
                for name, (low, high) in document["ranges"].items()
            }
            provenance = Provenance(**document["provenance"])
            means = {Edge.parse(name): tuple(map(float, values)) for name, values in document.get("means", {}).items()}
            return cls(ranges, provenance, tuple(document.get("warnings", ())), means)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"these ranges are damaged: {error}", hint="collect them once more") from None

    @cached_property
    def text(self) -> str:
        """The file's text: one edge a line."""
        document = self.to_json()
        lines = [f'"{key}": {json.dumps(value)}' for key, value in document.items() if key != "ranges"]
        edges = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(ends)}" for name, ends in document["ranges"].items())
        return "{" + ",\n ".join([*lines, f'"ranges": {{\n  {edges}}}']) + "}\n"

    def save(self, path: str | Path) -> None:
        """Write the file; it appears whole or not at all."""
        write_whole(Path(path), lambda file: file.write(self.text.encode()))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The ranges of a file.

        Raises:
            InputError: it can not be read, or holds no ranges.
        """
        return cls.from_json(read_json(Path(path), FORM))


def graph_digest(graph: Graph) -> str:
    """Equal for graphs of equal nodes, weights and ends."""
    found = blake2b(repr((list(map(str, graph.inputs)), list(map(str, graph.outputs)))).encode(), digest_size=8)
    for chunk in graphdef.chunks(graph):
        found.update(chunk)
    return found.hexdigest()


def _short(value: float) -> float:
    """The shortest decimal that is the same float32.

    >>> _short(float(np.float32(0.1)))
    0.1
    """
    return float(str(np.float32(value)))
