"""Result of a quantization."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quantkit.arguments import expand_user
from quantkit.data import Preprocessing
from quantkit.facts import PlainReport
from quantkit.formats.metadata import with_metadata
from quantkit.formats.sizes import format_size
from quantkit.model import Model
from quantkit.quantization.plan import Plan
from quantkit.quantization.precision.decision import Decision, explain
from quantkit.quantization.ranges import Ranges
from quantkit.quantization.report import QuantizationReport
from quantkit.quantization.workflow.conversion import Conversion
from quantkit.quantization.workflow.options import check_output
from quantkit.quantization.workflow.planning import with_digest
from quantkit.recipes.trace import Trace


@dataclass(frozen=True)
class QuantizationResult(PlainReport):
    """A quantized model with the decisions, the ranges and the report that belong to it.

    Attributes:
        float_model: the model that was quantized.
        conversion: prepared float graph, plan and ranges.
        report: precision, size, accuracy and latency.
        metadata: metadata of the file, see `quantkit.formats.metadata`, with the receipt, which only `save` writes.
    """

    float_model: Model
    conversion: Conversion
    report: QuantizationReport
    metadata: Mapping[str, Any]

    @cached_property
    def model(self) -> Model:
        """Quantized model, with the card of the float model."""
        metadata = {key: value for key, value in self.metadata.items() if key != "receipt"}
        graph = with_metadata(self.conversion.complete, metadata)
        return Model(f"{self.float_model.name} ({self.report.target})", graph, card=self.float_model.card)

    @cached_property
    def plan(self) -> Plan:
        """Decision for each tensor, with the reasons of float fallbacks."""
        return with_digest(self.conversion.plan, self.conversion.graph)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Decision about the precision of each layer and each other node, in execution order."""
        return self.report.decisions

    @property
    def trace(self) -> Trace | None:
        """Record of the recipe that prepared the float graph; None without one."""
        return self.conversion.trace

    def explain(self, *, verbose: bool = False) -> str:
        """Return the decisions by reason, and the changes and skips of the recipe, as text.

        Args:
            verbose: list all changes of the recipe.
        """
        trace = () if self.trace is None else self.trace.lines(verbose=verbose)
        return "\n".join([*explain(self.decisions), *trace])

    @property
    def ranges(self) -> Ranges:
        """Calibrated ranges; empty with weights only."""
        return self.conversion.ranges

    @property
    def preprocessing(self) -> Preprocessing | str:
        """Preprocessing of the calibration images, `ARRAYS_UNCHANGED`, or `UNKNOWN`."""
        return self.report.preprocessing

    def __repr__(self) -> str:
        report = self.report
        return f"QuantizationResult({report.model!r}, target={report.target!r}, {format_size(report.num_bytes)})"

    def __str__(self) -> str:
        return str(self.report)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return self.report.to_json()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the quantized model in its target's format; the file appears complete or not at all.

        Args:
            path: file with a suffix of the target: ``.onnx``, ``.pb``, ``.pbtxt`` or ``.tflite``; for TensorFlow,
                also a new or empty folder without a suffix, for a SavedModel.

        Returns:
            The path.

        Raises:
            UsageError: the suffix is that of another format, or the folder does not exist.
            InputError: the file cannot be written.
        """
        path = expand_user(path)
        check_output(self.conversion.target, path)
        self.conversion.save(path, self.metadata)
        return path
