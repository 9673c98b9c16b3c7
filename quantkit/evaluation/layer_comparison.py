"""Result of a layer-by-layer comparison of two versions of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from quantkit.arguments import public, require_number
from quantkit.data.preprocessing import Preprocessing
from quantkit.drawing.bar_chart import BarChart
from quantkit.errors import CheckError
from quantkit.evaluation.optimizer_changes import OptimizerChange
from quantkit.facts import PlainReport, align_columns
from quantkit.runtimes.session import RuntimeVersion

# Below 10 dB less than two bits are correct.
FLOOR = 10.0
# At 3 dB the noise of a channel has half the power of its signal.
NOISY_CHANNEL = 3.0
MAX_ROWS, MAX_NOTES = 20, 10
# Bars of equal tensors end here; 16 correct bits.
MAX_PLOTTED = 96.0
RANDOM_INPUTS_NOTE = "random inputs prove little: --data IMAGES compares on real ones and finds the first bad layer"
# What to do about layers below a limit, by `LayerComparison.are_quantized`.
REMEDIES = {
    (False, True): "keep these layers in float: keep_float in the --scheme of quantkit quantize, or --max-drop",
    (
        True,
        True,
    ): "both versions are int8: quantkit compare FLOAT FILE states the error of each of them",
    (True, False): "name the float model first: the SQNR is relative to the first version",
    (False, False): "no version is int8: quantkit transform --verify finds the step that changes the values",
}
# Widths of the first two columns in a table of 80 columns.
TENSOR_WIDTH, OP_WIDTH = 28, 12
COLUMNS = ("tensor", "op", "SQNR", "channel", "drop", "cosine", "notes")
LEGEND = (
    "order: broken tensors, then lowest SQNR first. "
    "SQNR: signal-to-quantization-noise ratio in dB, higher is better. "
    "channel: SQNR of the median channel. "
    "drop: SQNR of the layer's worst input minus its own SQNR; "
    "a high drop marks a layer that adds noise itself."
)


@dataclass(frozen=True)
class LayerRow:
    """One tensor in both versions.

    Attributes:
        name: plain name in the first version.
        op: op type of its producer there.
        other: edge of the second version that it was compared with.
        sqnr: in decibels; infinite for equal tensors.
        channel_sqnr: SQNR of the median channel; equal to ``sqnr`` if channels have few values.
        channels: number of channels.
        noisy_channels: number of channels with an SQNR of 3 dB or less.
        cosine: cosine similarity; 1 for tensors of the same direction.
        sqnr_drop: decibels below the worst input of the layer.
        problems: samples in which the sizes differ; NaN, infinity, dead (all zero) or constant values with the version
            that has them; outlier channels.
        is_broken: True if a problem makes the tensor useless and does not exist in the first version.
        has_outlier_channel: True if one channel leaves few quantized values to the others.
        is_finite: True if neither version has NaN or infinity.
    """

    name: str
    op: str
    other: str
    sqnr: float
    channel_sqnr: float
    channels: int
    noisy_channels: int
    cosine: float
    sqnr_drop: float
    problems: tuple[str, ...] = ()
    is_broken: bool = False
    has_outlier_channel: bool = False
    is_finite: bool = True

    @property
    def notes(self) -> str:
        """Problems, noisy channels and the other name, in one line."""
        noisy = [f"{self.noisy_channels} of {self.channels} channels noisy"] if self.noisy_channels else []
        renamed = [f"as {self.other}"] if self.other != self.name else []
        return ", ".join((*self.problems, *noisy, *renamed))

    @property
    def cells(self) -> tuple[str, ...]:
        """Text of each of `COLUMNS`."""
        decibels = (_decibels(self.sqnr), _decibels(self.channel_sqnr), _decibels(self.sqnr_drop))
        return self.name, self.op, *decibels, f"{self.cosine:.5f}", self.notes

    def reason(self, floor: float) -> str:
        """Return why the row is bad."""
        if self.is_broken:
            return ", ".join(self.problems)
        if self.sqnr < floor:
            return f"{_decibels(self.sqnr)} dB, {_decibels(self.sqnr_drop)} dB below its inputs"
        noisy = f"{self.noisy_channels} of {self.channels} channels noisy"
        return f"{_decibels(self.channel_sqnr)} dB in the median channel, {noisy}"

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values; null for an infinite SQNR."""
        return {name: _finite(value) for name, value in vars(self).items()}


@dataclass(frozen=True, repr=False)
class LayerComparison(PlainReport):
    """All tensors that two versions of a model have in common.

    Attributes:
        models: names of both versions.
        runtimes: runtimes of both versions.
        rows: in the topological order of the first version.
        samples: number of samples.
        only_first: tensors of the first version without a partner.
        floor: SQNR in decibels below which a layer is bad.
        is_random: True if the inputs were random.
        rejected: message by name of each image that could not be decoded.
        preprocessing: preprocessing of images; None for arrays and random inputs.
        resized: tensors whose size depends on the data, and differs between the versions in every sample.
        optimizer_changes: outputs that the optimizer of a runtime changes; the rows of inner tensors do not show this.
        environment: environment variables of the process that ``isa`` set.
        are_quantized: True for each version that has int8 layers.
    """

    models: tuple[str, str]
    runtimes: tuple[RuntimeVersion, RuntimeVersion]
    rows: tuple[LayerRow, ...]
    samples: int
    only_first: tuple[str, ...] = ()
    floor: float = FLOOR
    is_random: bool = False
    rejected: tuple[tuple[str, str], ...] = ()
    preprocessing: Preprocessing | None = None
    resized: tuple[str, ...] = ()
    optimizer_changes: tuple[OptimizerChange, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    are_quantized: tuple[bool, bool] = (False, True)

    @property
    def worst_first(self) -> tuple[LayerRow, ...]:
        """Broken rows, then the other rows by ascending SQNR."""
        return tuple(sorted(self.rows, key=lambda row: (not row.is_broken, row.sqnr)))

    @property
    def bad(self) -> tuple[LayerRow, ...]:
        """Bad rows in topological order.

        On random inputs only rows that are not finite: noise gives activations near zero, where healthy versions
        differ too.
        """
        if self.is_random:
            return tuple(row for row in self.rows if not row.is_finite)
        return self.below_floor

    @property
    def below_floor(self) -> tuple[LayerRow, ...]:
        """Rows that are broken, below the floor, or noisy in most channels, in topological order."""
        return tuple(
            row for row in self.rows if row.is_broken or row.sqnr < self.floor or row.channel_sqnr <= NOISY_CHANNEL
        )

    @property
    def first_bad(self) -> LayerRow | None:
        """First bad row in topological order."""
        return next(iter(self.bad), None)

    @property
    def first_outlier(self) -> LayerRow | None:
        """First row with an outlier channel in topological order."""
        return next((row for row in self.rows if row.has_outlier_channel), None)

    @public
    def check(self, *, min_sqnr: float | None = None) -> None:
        """Check that no tensor is broken or below a limit, and that no optimizer changes an output by more.

        Args:
            min_sqnr: lowest allowed SQNR in decibels (default: no limit).

        Raises:
            CheckError: a tensor is broken or below the limit, or an output changes by more.
            UsageError: the limit is not a finite number.
        """
        if min_sqnr is None:
            return
        require_number(min_sqnr=min_sqnr)
        change = next((change for change in self.optimizer_changes if change.sqnr < min_sqnr), None)
        if change is not None:
            raise CheckError(
                f"{change}, which is below {min_sqnr:g} dB",
                hint="select another runtime with FILE@RUNTIME, or disable its optimizer; "
                "quantkit summarize states whether int8 sums of a file can saturate",
            )
        failing = [row for row in self.rows if row.is_broken or row.sqnr < min_sqnr]
        if failing:
            first = failing[0]
            problem = ", ".join(first.problems) if first.is_broken else f"{first.sqnr:.1f} dB"
            raise CheckError(
                f"{len(failing)} of {len(self.rows)} tensors are broken or below {min_sqnr:g} dB, "
                f"the first is {first.name} ({first.op}): {problem}",
                hint=RANDOM_INPUTS_NOTE if self.is_random else REMEDIES[self.are_quantized],
            )

    def plot(self) -> BarChart:
        """Return a bar chart of the SQNR by layer, in topological order."""
        bars = [(row.name, 0.0 if row.is_broken else max(min(row.sqnr, MAX_PLOTTED), 0.0)) for row in self.rows]
        return BarChart(
            title=f"SQNR of {self.models[1]} against {self.models[0]}",
            measure="dB",
            bars=tuple(bars),
            highlighted=frozenset(row.name for row in self.bad),
            threshold=self.floor,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the document of ``quantkit compare --json``, lowest SQNR first."""
        first_bad, first_outlier = self.first_bad, self.first_outlier
        return {
            "schema": "quantkit.compare/2",
            "models": list(self.models),
            "runtimes": [{"name": runtime.name, "version": runtime.version} for runtime in self.runtimes],
            "environment": dict(self.environment),
            "preprocessing": None if self.preprocessing is None else self.preprocessing.to_json(),
            "samples": self.samples,
            "random": self.is_random,
            "floor": self.floor,
            "first_bad": first_bad.name if first_bad else None,
            "first_outlier": first_outlier.name if first_outlier else None,
            "bad": [row.name for row in self.bad],
            "below_floor": [row.name for row in self.below_floor],
            "layers": [row.to_json() for row in self.worst_first],
            "only_first": list(self.only_first),
            "resized": list(self.resized),
            "optimizer_changes": [change.to_json() for change in self.optimizer_changes],
            "rejected": [{"name": name, "message": message} for name, message in self.rejected],
        }

    @property
    def headlines(self) -> tuple[str, ...]:
        """Sentences before the table."""
        first, second = (f"{name} in {runtime}" for name, runtime in zip(self.models, self.runtimes, strict=True))
        inputs = "random inputs" if self.is_random else "samples"
        lines = [f"{first} against {second}: {len(self.rows)} tensors, {self.samples} {inputs}"]
        lines += map(str, self.optimizer_changes)
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        bad, outlier = self.first_bad, self.first_outlier
        if bad:
            lines.append(f"first bad layer: {bad.name} ({bad.op}): {bad.reason(self.floor)}")
        elif self.below_floor:
            fraction = f"{len(self.below_floor)} of {len(self.rows)} tensors"
            lines.append(f"below {self.floor:g} dB: {fraction}, possibly because of the random inputs")
        else:
            lines.append(f"no layer is below {self.floor:g} dB")
        if self.resized:
            names = ", ".join(self.resized[:MAX_NOTES])
            lines.append(f"another size in every sample, so that no value is compared: {names}")
        if self.is_random:
            lines.append(RANDOM_INPUTS_NOTE)
        if outlier:
            lines.append(f"first layer with an outlier channel: {outlier.name} ({outlier.op}): {outlier.notes}")
        return tuple(lines)

    def text(self, max_rows: int | None = MAX_ROWS) -> str:
        """Return the report as text.

        Args:
            max_rows: number of rows, lowest SQNR first, in 80 columns without notes; None for all, with whole names.
        """
        rows = self.worst_first if max_rows is None else self.worst_first[:max_rows]
        cells = [COLUMNS, *(row.cells for row in rows)]
        table = cells if max_rows is None else [_shorten_names(row) for row in cells]
        lines = [*self.headlines, *align_columns(table, right=range(2, 6))]
        if len(rows) < len(self.rows):
            lines.append(f"... and {len(self.rows) - len(rows)} rows with a higher SQNR")
        if table != cells:
            lines.append("..: shortened; -v prints all rows with whole names")
        lines.append(LEGEND)
        noted = [row for row in self.rows if row.problems and row not in rows]
        lines += [f"{row.name} ({row.op}): {', '.join(row.problems)}" for row in noted[:MAX_NOTES]]
        if noted[MAX_NOTES:]:
            lines.append(f"... and {len(noted) - MAX_NOTES} more rows with notes")
        return "\n".join(lines)

    def __repr__(self) -> str:
        bad = f"first bad: {self.first_bad.name!r}" if self.first_bad else "no bad tensor"
        return f"LayerComparison({self.models[0]!r} and {self.models[1]!r}, {len(self.rows)} tensors, {bad})"

    def __str__(self) -> str:
        return self.text()


def _shorten_names(cells: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cells of a row with a tensor and an op that fit into 80 columns."""
    return (
        tuple(
            text if len(text) <= width else f"{text[: width // 2 - 1]}..{text[-(width - width // 2 - 1) :]}"
            for text, width in zip(cells, (TENSOR_WIDTH, OP_WIDTH), strict=False)
        )
        + cells[2:]
    )


def _decibels(value: float) -> str:
    return f"{value:.1f}" if isfinite(value) else "equal" if value > 0 else "none"


def _finite(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and not isfinite(value) else value
