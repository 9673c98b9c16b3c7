"""Settings that are worth measuring for a model in a runtime on this machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from quantkit.benchmark.host.machine import Machine, usable_cores
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.runtimes.openmp import READS_KMP
from quantkit.runtimes.runtime import Runtime
from quantkit.runtimes.session import SessionOptions

SESSION_OPTIONS = frozenset(option.name for option in fields(SessionOptions))
# Instruction set that a processor needs beyond each limit of oneDNN: without it, the limit changes nothing.
ISA_BEYOND = {"AVX2": "avx512bw", "AVX512_CORE": "avx512_vnni", "AVX512_CORE_VNNI": "amx_int8"}
# Values of OpenMP's variables; those of the published advice.
KMP_VARIABLES = {"KMP_AFFINITY": ("granularity=fine,compact,1,0",), "KMP_BLOCKTIME": ("0", "1")}
BATCHES = (1, 4, 16)


@dataclass(frozen=True)
class Setting:
    """Options that differ from the default of a runtime.

    Attributes:
        dimension: name of the option that is varied: ``threads``, ``spinning``, ...; settings of different dimensions
            can be combined.
        values: session options, ``cpus``, ``streams``, ``batch``, ``layout``, and environment variables, by name.
    """

    dimension: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Text that identifies the values."""
        return json.dumps(self.values)

    def __str__(self) -> str:
        """Return the values as in a table.

        >>> str(Setting("threads", {"intra_op": 1, "cpus": (0, 1)}))
        'intra_op=1 cpus=0,1'
        """
        texts = {
            name: ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            for name, value in self.values.items()
        }
        return " ".join(f"{name}={text}" for name, text in texts.items()) or "default"

    def __or__(self, other: "Setting") -> "Setting":
        return Setting(f"{self.dimension} + {other.dimension}", {**self.values, **other.values})

    def apply(self, candidate: Candidate, converted: Candidate | None = None) -> Candidate:
        """Return a candidate with this setting.

        Args:
            candidate: model with the default settings.
            converted: the same model in the layout NCHW; required by a setting of the layout.
        """
        if "layout" in self.values and converted is not None:
            candidate = converted
        settings, values = candidate.settings, dict(self.values)
        values.pop("layout", None)
        options = {name: values.pop(name) for name in SESSION_OPTIONS - {"streams"} if name in values}
        own: dict[str, Any] = {name: values.pop(name) for name in ("streams", "batch") if name in values}
        if "cpus" in values:
            own["cpus"] = tuple(values.pop("cpus"))
        settings = replace(
            settings,
            options=replace(settings.options, **options),
            environment={**settings.environment, **values},
            **own,
        )
        return replace(candidate, label=str(self), settings=settings)


def find_settings(
    candidate: Candidate, runtime: Runtime, machine: Machine, openmp: Sequence[str] = ()
) -> tuple[Setting, ...]:
    """Return the settings to measure in addition to the default, the most promising dimension first.

    Options that the candidate states are not varied.

    Args:
        candidate: model with the default settings.
        runtime: runtime that runs it.
        machine: this host.
        openmp: OpenMP libraries in the process of the runtime.
    """
    settings = candidate.settings
    varied: list[Setting] = []
    if runtime.has_threads and settings.options.intra_op is settings.options.inter_op is None:
        varied += _thread_settings(machine, has_inter_op=runtime.has_inter_op)
    if settings.streams is not None:
        varied += _throughput_settings(machine, batches=BATCHES if settings.batch is None else ())
    for name, values in runtime.tunables.items():
        values = tuple(value for value in values if _has_effect(name, value, machine))
        if getattr(settings.options, name, None) is None and name not in settings.environment:
            varied += [Setting(name, {name: value}) for value in values]
    if not settings.cpus:
        varied += [Setting("cpus", {"cpus": cpus}) for cpus in _cpu_sets(machine)]
    varied += [
        Setting(name, {name: value})
        for name, value in _openmp_variables(runtime, machine, openmp)
        if name not in settings.environment
    ]
    return tuple(varied)


def _thread_settings(machine: Machine, *, has_inter_op: bool) -> list[Setting]:
    """Return 1, half and all cores, and all hardware threads, with 1 and 2 parallel ops."""
    cores = usable_cores(machine)
    threads = len(machine.affinity) or machine.logical_cores
    counts = sorted({1, max(cores // 2, 1), cores, max(threads, cores)})
    if not has_inter_op:
        return [Setting("threads", {"intra_op": intra}) for intra in counts]
    return [Setting("threads", {"intra_op": intra, "inter_op": inter}) for intra in counts for inter in (1, 2)]


def _throughput_settings(machine: Machine, batches: Sequence[int]) -> list[Setting]:
    cores = usable_cores(machine)
    streams = [Setting("streams", {"streams": count}) for count in sorted({1, max(cores // 2, 1), cores, 2 * cores})]
    # One thread in each stream: as many streams as cores.
    streams.append(Setting("streams and threads", {"streams": cores, "intra_op": 1}))
    return streams + [Setting("batch", {"batch": size}) for size in batches]


def _has_effect(name: str, value: object, machine: Machine) -> bool:
    return name != "ONEDNN_MAX_CPU_ISA" or ISA_BEYOND.get(str(value)) in machine.isa


def _cpu_sets(machine: Machine) -> list[tuple[int, ...]]:
    """Return the first half of the CPUs: one of several memory nodes, or of two threads of a core, on most machines."""
    cpus = machine.affinity
    return [cpus[: len(cpus) // 2]] if len(cpus) > 1 else []


def _openmp_variables(runtime: Runtime, machine: Machine, openmp: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that the libraries in the process read, with values to measure."""
    if openmp or "OMP_NUM_THREADS" in runtime.variables:
        for count in sorted({1, usable_cores(machine)}):
            yield "OMP_NUM_THREADS", str(count)
    if READS_KMP.intersection(openmp):
        for name, values in KMP_VARIABLES.items():
            for value in values:
                yield name, value
