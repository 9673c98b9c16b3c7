"""Profiles of models side by side, with their text, HTML and JSON forms."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from quantkit.benchmark.profiling.layer_work import Peaks
from quantkit.benchmark.profiling.model_profile import ModelProfile, ProfileRow
from quantkit.benchmark.profiling.profile_text import (
    LIST_LENGTH,
    OTHER_OPS,
    bound_text,
    model_lines,
    peaks_text,
)
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import format_latency
from quantkit.drawing import escape_text, html_body, html_table
from quantkit.drawing.report_charts import shorten_name
from quantkit.facts import align_columns

SCHEMA = "quantkit.profile/1"


@dataclass(frozen=True, repr=False)
class Profile:
    """Time by layer of one or more models of the same original graph, side by side.

    Attributes:
        models: profiles in the order of the candidates.
        peaks: measured peaks of the machine by runtime; empty if they were not measured.
        notes: messages on all models.
        reasons: reasons why the last model is not faster, ranked by measured time.
    """

    models: tuple[ModelProfile, ...]
    peaks: Mapping[str, Peaks] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def untraced_seconds(self) -> float:
        """Untraced latency of all models together."""
        return sum(model.untraced_seconds for model in self.models)

    @property
    def coverage(self) -> float:
        """Fraction of the time of the ops of all models that belongs to layers of the original graph."""
        total = sum(model.seconds for model in self.models)
        return sum(model.coverage * model.seconds for model in self.models) / max(total, 1e-12)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of all layers, the slowest of all models first."""
        names = dict.fromkeys(row.name for model in self.models for row in model.rows)
        return tuple(sorted(names, key=lambda name: -sum(model.seconds_of(name) for model in self.models)))

    def to_json(self) -> dict[str, Any]:
        """Return the profile as a JSON document; a row names its model by index."""
        return {
            "schema": SCHEMA,
            "coverage": self.coverage,
            "untraced_seconds": self.untraced_seconds,
            "models": [model.to_json() for model in self.models],
            "rows": [
                {"model": index, "bound": self._bound(model, row), **row.to_json()}
                for index, model in enumerate(self.models)
                for row in model.rows
            ],
            "peaks": {name: peaks.to_json() for name, peaks in self.peaks.items()},
            "reasons": [reason.to_json() for reason in self.reasons],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """Return the table of the slowest layers, and the facts about each model."""
        columns = range(2, 2 + 2 * len(self.models), 2)
        table = align_columns([self._table_header(), *self._table_rows()], right=columns)
        return "\n".join((*table, "", *self.lines))

    def _repr_html_(self) -> str:
        return html_body([self.html_table(), *(f"<p>{escape_text(line)}</p>" for line in self.lines)])

    def html_table(self) -> str:
        """Return the table of the slowest layers as HTML."""
        rows = [(shorten_name(layer), *cells) for layer, *cells in self._table_rows()]
        return html_table(self._table_header(), rows, range(2, 2 + 2 * len(self.models), 2))

    def _table_header(self) -> tuple[str, ...]:
        """Return the heading: the models, each with a column for the time and one for the precision."""
        models = [cell for model in self.models for cell in (f"{model.label} in {model.runtime.name}, ms", "precision")]
        return ("layer", "op", *models)

    def _table_rows(self) -> list[tuple[str, ...]]:
        """Return the slowest layers, and a row with the sum of the others."""
        rows = [self._layer_cells(layer) for layer in self.layers[:LIST_LENGTH]]
        others = self.layers[LIST_LENGTH:]
        if others:
            sums = [sum(model.seconds_of(layer) for layer in others) for model in self.models]
            cells = [cell for seconds in sums for cell in (format_latency(seconds), "")]
            rows.append((f"{len(others)} more layers", "", *cells))
        return rows

    def _layer_cells(self, layer: str) -> tuple[str, ...]:
        cells: list[str] = []
        op = ""
        for model in self.models:
            rows = sorted((row for row in model.rows if row.name == layer), key=lambda row: -row.seconds)
            op = op or next((row.op for row in rows), "")
            precisions = dict.fromkeys(row.precision for row in rows)
            cells += [format_latency(sum(row.seconds for row in rows)) if rows else "-", ", ".join(precisions)]
        return (layer or OTHER_OPS, op, *cells)

    @property
    def lines(self) -> Iterator[str]:
        """Facts about each model, the peaks, the reasons and the notes."""
        for model in self.models:
            yield from model_lines(model)
            peaks = self.peaks.get(model.runtime.name)
            if peaks is not None:
                yield f"  {bound_text(model, peaks)}"
        for name, peaks in self.peaks.items():
            yield f"measured peaks in {name}: {peaks_text(peaks)}"
        if self.reasons:
            yield f"time that limits {self.models[-1].label}, the largest first:"
        yield from (f"  {reason}" for reason in self.reasons)
        yield from self.notes

    def __repr__(self) -> str:
        names = ", ".join(f"{model.label!r} in {model.runtime}" for model in self.models)
        return f"Profile({names}, coverage {self.coverage:.2f})"

    def _bound(self, model: ModelProfile, row: ProfileRow) -> str:
        peaks = self.peaks.get(model.runtime.name)
        return "" if peaks is None or row.work is None else peaks.bound(row.work, row.seconds, row.precision)
