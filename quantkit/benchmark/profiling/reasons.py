"""Reasons why an int8 model is not faster, ranked by measured time, each with the next command."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from quantkit.benchmark.host.machine import Machine
from quantkit.benchmark.profiling.layer_work import MEMORY_BOUND, Peaks
from quantkit.benchmark.profiling.model_profile import ModelProfile, ProfileRow
from quantkit.benchmark.profiling.profile import Profile
from quantkit.benchmark.results.reason import Reason
from quantkit.benchmark.results.report import format_latency
from quantkit.runtimes.session import CONVERSION, FLOAT, INT8, TRANSFER

REFERENCE_KERNELS, FLOAT_FALLBACKS, BOUNDARIES, TRANSFERS = (
    *("reference kernels", "float fallbacks", "boundaries", "transfers"),
)
NO_INT8_KERNELS = "no int8 kernels"
NO_VNNI, OVERSUBSCRIPTION, QUOTA, MEMORY = ("no VNNI", "oversubscription", "cpu quota", "memory-bound")
# Instructions that multiply and add int8 values in one step, on x86 and on Arm.
DOT_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"})
# Fraction of the latency from which a part of it is a reason.
LEAST_FRACTION = 0.03
# Names of islands in one sentence.
MAX_NAMES = 2


class Remedies(Protocol):
    """Commands that continue from a verdict."""

    def quantize(self, *flags: str) -> str:
        """Return the command that quantizes the float model again."""

    def retarget(self) -> str:
        """Return the command that quantizes for a target with fast kernels."""

    def benchmark(self, *flags: str, runtime: str = "") -> str:
        """Return the command that measures both models, in another runtime if one is given."""

    def optimize(self) -> str:
        """Return the command that searches the fastest form of the float model."""


@dataclass(frozen=True)
class FileRemedies:
    """Commands for two model files.

    Attributes:
        float_model, int8_model: models as on the command line.
    """

    float_model: str
    int8_model: str

    def quantize(self, *flags: str) -> str:
        return shlex.join(("quantkit", "quantize", self._model, "-o", "OUTPUT.onnx", "--calibration", "DATA", *flags))

    def retarget(self) -> str:
        return self.quantize("--target", "onnx")

    def benchmark(self, *flags: str, runtime: str = "") -> str:
        models = [self.float_model, self.int8_model]
        if runtime:
            models = [f"{model.partition('@')[0]}@{runtime}" for model in models]
        return shlex.join(("quantkit", "benchmark", *models, *flags))

    def optimize(self) -> str:
        return shlex.join(("quantkit", "optimize", self._model, "-o", "OUTPUT", "--data", "DATA"))

    @property
    def _model(self) -> str:
        return self.float_model.partition("@")[0]


def find_reasons(profile: Profile, machine: Machine, remedies: Remedies) -> tuple[Reason, ...]:
    """Return the reasons why the last model of a profile is not faster, the one with most time first.

    Args:
        profile: profile of the float and of the int8 model.
        machine: this host.
        remedies: next commands.
    """
    model = profile.models[-1]
    least = LEAST_FRACTION * model.untraced_seconds
    reasons = [
        *_row_reasons(model, profile.peaks.get(model.runtime.name), remedies),
        *_instruction_reasons(model, machine, remedies),
    ]
    large = [reason for reason in reasons if reason.seconds >= least]
    return tuple(sorted((*large, *_process_reasons(model, machine, remedies)), key=lambda reason: -reason.seconds))


def _row_reasons(model: ModelProfile, peaks: Peaks | None, remedies: Remedies) -> Iterator[Reason]:
    """Yield the reasons that are parts of the time of the ops."""
    reference = [row for row in model.rows if row.reference_seconds and row.precision in (INT8, FLOAT)]
    seconds = sum(row.reference_seconds for row in reference)
    text = f"{_time(seconds, model)} in kernels without SIMD or oneDNN, {_names(reference)}"
    yield Reason(REFERENCE_KERNELS, seconds, text, remedies.retarget())
    yield from _island_reasons(model, remedies)
    for precision, kind, noun in (
        (CONVERSION, BOUNDARIES, "conversions between formats"),
        (TRANSFER, TRANSFERS, "copies between devices"),
    ):
        rows = [row for row in model.rows if row.precision == precision]
        text = f"{_time(sum(row.seconds for row in rows), model)} in {noun}, {_names(rows)}"
        yield Reason(kind, sum(row.seconds for row in rows), text, remedies.quantize("--save-plan", "plan.json"))
    bound = [row for row in model.rows if row.work and peaks and _is_memory_bound(row, peaks)]
    seconds = sum(row.seconds for row in bound)
    text = f"{_time(seconds, model)} in layers that the memory bandwidth limits, {_names(bound)}"
    yield Reason(MEMORY, seconds, text, remedies.benchmark("--batch", "8"))


def _island_reasons(model: ModelProfile, remedies: Remedies) -> Iterator[Reason]:
    """Yield a reason for the layers that stay float: their time, and that of the conversions around them."""
    layers = list(dict.fromkeys(row.name for row in model.rows if row.name))
    islands = list(_islands(model, layers))
    if not islands or not model.fractions[INT8]:
        if islands and model.fractions[CONVERSION]:
            yield _kernel_reason(model, remedies)
        return
    floats = [row for row in model.rows if row.precision == FLOAT and any(row.name in island for island in islands)]
    near = {name for island in islands for name in _with_neighbours(island, layers)}
    conversions = sum(row.seconds for row in model.rows if row.precision == CONVERSION and row.name in near)
    seconds = sum(row.seconds for row in floats)
    count = "1 float island" if len(islands) == 1 else f"{len(islands)} float islands"
    text = (
        f"{_time(seconds, model)} in {count}, {_names(floats)}, and {format_latency(conversions)} ms in the "
        "conversions around it"
    )
    yield Reason(FLOAT_FALLBACKS, seconds + conversions, text, remedies.quantize("--save-plan", "plan.json"))


def _kernel_reason(model: ModelProfile, remedies: Remedies) -> Reason:
    """Return the reason for an int8 model without a layer in int8."""
    seconds = (model.fractions[FLOAT] + model.fractions[CONVERSION]) * model.seconds
    runtime = model.runtime
    text = (
        f"{_time(seconds, model)} in float layers and in conversions around them: {runtime.name} on {runtime.device} "
        "has no int8 kernel for a layer of this file"
    )
    command = remedies.benchmark("--device", "gpu", runtime="tensorrt") if model.on_gpu else remedies.retarget()
    return Reason(NO_INT8_KERNELS, seconds, text, command)


def _islands(model: ModelProfile, layers: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield runs of float layers with a convolution or matrix product, in the order of the original graph."""
    int8 = {row.name for row in model.rows if row.precision == INT8}
    floats = {row.name: row for row in model.rows if row.precision == FLOAT and row.name not in int8}
    island: list[str] = []
    for name in (*layers, ""):
        if name in floats:
            island.append(name)
            continue
        if any((work := floats[each].work) is not None and work.operations for each in island):
            yield tuple(island)
        island = []


def _with_neighbours(island: tuple[str, ...], layers: list[str]) -> tuple[str, ...]:
    start, end = layers.index(island[0]), layers.index(island[-1])
    return tuple(layers[max(start - 1, 0) : end + 2])


def _instruction_reasons(model: ModelProfile, machine: Machine, remedies: Remedies) -> Iterator[Reason]:
    if machine.isa and not DOT_PRODUCTS & set(machine.isa):
        seconds = model.fractions[INT8] * model.seconds
        text = (
            f"{_time(seconds, model)} in int8 layers on a processor without int8 dot products (VNNI): three "
            "instructions replace one"
        )
        yield Reason(NO_VNNI, seconds, text, remedies.optimize())


def _process_reasons(model: ModelProfile, machine: Machine, remedies: Remedies) -> Iterator[Reason]:
    """Yield the reasons that are settings of the process or limits of its container."""
    if model.threads > model.usable_threads:
        seconds = max(model.oversubscription_seconds, 0.0)
        text = (
            f"{model.threads} threads on {_cpus(model.usable_threads)} cost {format_latency(seconds)} ms of "
            f"{format_latency(model.untraced_seconds)} ms"
        )
        flags = ("--intra-op", str(model.usable_threads), "--inter-op", "1")
        yield Reason(OVERSUBSCRIPTION, seconds, text, remedies.benchmark(*flags))
    if machine.cpu_quota is not None and machine.cpu_quota < (len(machine.affinity) or machine.logical_cores):
        seconds = model.throttled_fraction * model.untraced_seconds
        text = (
            f"the container limits the process to {_cpus(machine.cpu_quota)} of {machine.logical_cores}, and stopped "
            f"it for {100 * model.throttled_fraction:.0f} % of the time"
        )
        yield Reason(QUOTA, seconds, text, remedies.benchmark("--intra-op", str(model.usable_threads)))


def _is_memory_bound(row: ProfileRow, peaks: Peaks) -> bool:
    return row.work is not None and peaks.bound(row.work, row.seconds, row.precision) == MEMORY_BOUND


def _time(seconds: float, model: ModelProfile) -> str:
    return f"{format_latency(seconds)} of {format_latency(model.untraced_seconds)} ms"


def _names(rows: list[ProfileRow]) -> str:
    """Return the slowest layers of rows."""
    ordered = sorted(rows, key=lambda row: -row.seconds)
    names = list(dict.fromkeys(row.name or row.ops[0] for row in ordered))
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"above all {', '.join(names[:MAX_NAMES])}{more}"


def _cpus(count: float) -> str:
    return "1 CPU" if count == 1 else f"{count:g} CPUs"
