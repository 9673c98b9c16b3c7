"""Diagnosis of this machine and installation: which runtimes work, on which devices, and with which thread settings.

Each runtime opens the bundled model in a process of its own, which shows the libraries that it loads and its log.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quantkit.benchmark.host.machine import Machine, this_machine, usable_cores
from quantkit.benchmark.results.report import openmp_text
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.process import WorkerError, WorkerProcess
from quantkit.benchmark.sampling.selection import find_candidate
from quantkit.benchmark.sweep import Sweep, sweep
from quantkit.distribution import find_other_distributions, install_command
from quantkit.errors import UnavailableError
from quantkit.facts import PlainReport, align_columns
from quantkit.formats.temporary import temporary_folder
from quantkit.model import Model, load
from quantkit.progress import OnProgress, Progress, ignore_progress
from quantkit.recipes import parse, run
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import AUTO, REGISTRY, find_runtime, runtimes
from quantkit.runtimes.session import SessionOptions

SCHEMA = "quantkit.doctor/2"
# oneDNN logs its version, instructions and threads. The value "1" would also log each execution, with which OpenVINO's
# build of oneDNN fails.
LOG_ONEDNN = {"ONEDNN_VERBOSE": "dispatch", "TF_CPP_MIN_LOG_LEVEL": "0"}
TIMEOUT = 120.0
# Time limit of the search for the fastest settings.
SWEEP_BUDGET = 120.0


@dataclass(frozen=True)
class RuntimeDiagnosis:
    """State of one runtime on this machine.

    Attributes:
        name: name on the command line.
        version: version of the package; empty if it is not installed.
        problem: reason why the runtime does not work here, with a remedy; empty if it works.
        gpu: ``yes``, or the reason why it cannot use a GPU.
        openmp: OpenMP libraries in its process.
        onednn: version, threads and instructions of oneDNN, if the runtime uses it and logs them.
        build: facts that the package states about its build.
        telemetry: state of its usage reports in the processes of quantkit.
    """

    name: str
    version: str = ""
    problem: str = ""
    gpu: str = ""
    openmp: tuple[str, ...] = ()
    onednn: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    telemetry: str = ""


@dataclass(frozen=True)
class TargetDiagnosis:
    """State of one quantization target on this machine.

    Attributes:
        name: name on the command line.
        runtimes: runtimes that run its models here, the fastest first; empty if none works.
        problem: reason why the target does not work, or is slow; empty if it works.
    """

    name: str
    runtimes: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True)
class Diagnosis(PlainReport):
    """Machine, runtimes, and advice on thread settings.

    Attributes:
        machine: this host.
        runtimes: state of each runtime.
        plugin_problems: a sentence for each plugin that cannot be loaded.
        sweep: search for the fastest settings; None without it.
        targets: state of each quantization target.
        others: other installed distributions with a package ``quantkit``.
    """

    machine: Machine
    runtimes: tuple[RuntimeDiagnosis, ...]
    plugin_problems: tuple[str, ...] = ()
    sweep: Sweep | None = None
    targets: tuple[TargetDiagnosis, ...] = ()
    others: tuple[str, ...] = ()

    def check_runtimes(self) -> None:
        """Check that a runtime works.

        Raises:
            UnavailableError: no runtime works.
        """
        if all(runtime.problem for runtime in self.runtimes):
            raise UnavailableError("no runtime works here", hint=install_command("onnx", "openvino"))

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON document."""
        document = {
            "schema": SCHEMA,
            "machine": self.machine.to_json(),
            "engines": [asdict(runtime) for runtime in self.runtimes],
            "advice": list(thread_advice(self.machine, self.runtimes, self.sweep)),
            "targets": [asdict(target) for target in self.targets],
            "plugin_problems": list(self.plugin_problems),
            "other_distributions": list(self.others),
        }
        if self.sweep is not None:
            document["measured"] = self.sweep.to_json()
        return document

    def __str__(self) -> str:
        sections = [
            _machine_table(self.machine),
            _runtime_table(self.runtimes),
            [line for runtime in self.runtimes for line in _runtime_lines(runtime)],
            _target_lines(self.targets),
            [] if self.sweep is None else [str(self.sweep)],
            thread_advice(self.machine, self.runtimes, self.sweep),
        ]
        if self.plugin_problems:
            sections.append(self.plugin_problems)
        if self.others:
            names, command = ", ".join(self.others), f"pip uninstall {' '.join(self.others)}"
            sections.append((f"warning: {names} installs another package quantkit in the same folder: {command}",))
        return "\n\n".join("\n".join(section) for section in sections if section)


def diagnose(
    model: str = "digits",
    *,
    measure_settings: bool = False,
    runtime: str = AUTO,
    offline: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Diagnosis:
    """Examine the machine, and run a model in each runtime.

    Args:
        model: path, or name of a model card.
        measure_settings: also search for the fastest settings.
        runtime: runtime of that search; ``auto``: the one of the highest priority that works here.
        offline: never download.
        on_progress: receives the progress.

    Raises:
        UsageError: there is no such model card or runtime.
    """
    if runtime != AUTO:
        find_runtime(runtime)
    machine = this_machine()
    with temporary_folder() as folder:
        prepared = _inference_model(model, offline)
        candidate = find_candidate(prepared, Settings(), folder / "model")
        states = []
        for index, name in enumerate(runtimes()):
            on_progress(Progress(f"running {model} in the runtimes", index, len(runtimes())))
            states.append(_diagnose_runtime(candidate, name, machine))
    result = None
    if measure_settings:
        result = sweep([prepared], runtime=runtime, time_budget=SWEEP_BUDGET, on_progress=on_progress)
    return Diagnosis(machine, tuple(states), REGISTRY.problems(), result, others=find_other_distributions())


def _inference_model(model: str, offline: bool) -> Model:
    """Return a model without its training ops, for which only TensorFlow has kernels."""
    loaded = load(model, offline=offline)
    if isinstance(loaded.runnable, Path):
        return loaded
    recipe = parse(loaded.card.recipe) if loaded.card is not None else find_recipe("inference")
    return loaded.with_graph(run(recipe, loaded.graph)[0])


def thread_advice(machine: Machine, states: Sequence[RuntimeDiagnosis], sweep: Sweep | None = None) -> tuple[str, ...]:
    """Return sentences on thread settings for this machine.

    Args:
        machine: this host.
        states: state of each runtime.
        sweep: search for the fastest settings; None without it.
    """
    cores = usable_cores(machine)
    advice = (
        f"start with --intra-op {cores} --inter-op {min(2, cores)}, and measure: "
        "small int8 models are often fastest with --intra-op 1 --inter-op 2 (quantkit doctor --measure)"
    )
    lines = [
        f"threads: {advice if sweep is None else sweep.models[0].verdict}",
        "a process creates its thread pools once, and reads the variables when the runtime is loaded: "
        "quantkit benchmark starts a process for each setting",
    ]
    with_openmp = [state.name for state in states if state.openmp]
    without = [state.name for state in states if not state.problem and not state.openmp and _has_threads(state.name)]
    if without:
        lines.append(
            f"KMP_AFFINITY, KMP_BLOCKTIME and OMP_NUM_THREADS have no effect in {', '.join(without)}: "
            "these builds do not use OpenMP"
        )
    if with_openmp:
        is_smt = machine.physical_cores is not None and machine.logical_cores > machine.physical_cores
        affinity = "granularity=fine,compact,1,0" if is_smt else "granularity=fine,compact"
        lines.append(
            f"{', '.join(with_openmp)} uses OpenMP: the published advice is OMP_NUM_THREADS={cores}, KMP_BLOCKTIME=0 "
            f"or 1 and KMP_AFFINITY={affinity}; it is slower on some machines, so measure it"
        )
    return tuple(lines)


def _runs_on_cpu(name: str) -> bool:
    runtime = runtimes().get(name)
    return runtime is None or "cpu" in runtime.devices


def _has_threads(name: str) -> bool:
    runtime = runtimes().get(name)
    return runtime is not None and runtime.has_threads


def _diagnose_runtime(candidate: Candidate, name: str, machine: Machine) -> RuntimeDiagnosis:
    available = runtimes()[name].available()
    if not available.ok:
        return RuntimeDiagnosis(name, problem=available.detail)
    device = next(device for device in ("cpu", "gpu") if device in runtimes()[name].devices)
    response, log = _try_open(candidate, name, device)
    if "error" in response:
        return RuntimeDiagnosis(name, available.detail, problem=_error_text(response["error"]))
    return RuntimeDiagnosis(
        name,
        response["version"],
        gpu=_diagnose_gpu(candidate, name, machine),
        openmp=tuple(response["openmp"]),
        onednn=onednn_facts(log),
        build=tuple(response["build"]),
        telemetry=response["telemetry"],
    )


def _diagnose_gpu(candidate: Candidate, name: str, machine: Machine) -> str:
    if not machine.gpus:
        return "this machine has no GPU"
    response, _ = _try_open(candidate, name, "gpu")
    return _error_text(response["error"]) if "error" in response else "yes"


def _try_open(candidate: Candidate, name: str, device: str) -> tuple[Mapping[str, Any], str]:
    """Open and run the model in a worker; return its response and the log of the runtime."""
    settings = replace(candidate.settings, runtime=name, options=SessionOptions(device=device))
    with WorkerProcess(LOG_ONEDNN) as worker:
        try:
            opened = worker.ask(replace(candidate, settings=settings).to_request(seed=0), TIMEOUT)
            if "error" in opened:
                return opened, worker.log
            warm = worker.ask({"do": "warm_up", "calls": 1}, TIMEOUT)
            return opened | warm | worker.ask({"do": "describe"}, TIMEOUT), worker.log
        except WorkerError as error:
            return {"error": {"message": error.message, "hint": error.hint}}, worker.log


def onednn_facts(log: str) -> tuple[str, ...]:
    r"""Return version, threads and instructions from a log of oneDNN.

    >>> onednn_facts("onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)\nonednn_verbose,v1,info,cpu,isa:Intel AVX2\n")
    ('oneDNN v3.7.3', 'isa:Intel AVX2')
    """
    facts = re.findall(
        r"^(?:one)?dnnl?_verbose,(?:v\d+,)?info,(oneDNN v[\d.]+|cpu,(?:runtime|isa):.*)", log, re.MULTILINE
    )
    return tuple(dict.fromkeys(fact.removeprefix("cpu,") for fact in facts))


def _error_text(error: Mapping[str, Any]) -> str:
    return f"{error['message']} (hint: {error['hint']})" if error["hint"] else str(error["message"])


def _machine_table(machine: Machine) -> list[str]:
    cores = f"{machine.physical_cores or '?'} cores, {machine.logical_cores} threads"
    if machine.cpu_quota is not None:
        cores += f", limited to {machine.cpu_quota:g} CPUs"
    memory = f"{machine.memory_bytes / 2**30:.1f} GiB" if machine.memory_bytes else "unknown"
    caches = ", ".join(f"{level} {size >> 10} KiB" for level, size in machine.cache_bytes)
    return align_columns(
        [
            ("processor", f"{machine.cpu}, {cores}"),
            ("instructions", " ".join(machine.isa) or "none that accelerate int8"),
            ("memory", f"{memory}; caches {caches}" if caches else memory),
            ("affinity", ",".join(map(str, machine.affinity)) or "unknown"),
            ("governor", machine.governor or "unknown"),
            ("SMT, NUMA", f"{_smt_text(machine)}; memory nodes: {machine.numa_nodes or 'unknown'}"),
            ("quota", "none" if machine.cpu_quota is None else f"{machine.cpu_quota:g} CPUs"),
            ("gpu", ", ".join(machine.gpus) or "none"),
            ("gpu driver", machine.gpu_driver or "none"),
            ("system", f"{machine.system}, Python {machine.python}"),
            ("load", "unknown" if machine.load is None else f"{machine.load:g}"),
        ]
    )


def _smt_text(machine: Machine) -> str:
    return {None: "unknown", True: "several hardware threads per core", False: "one hardware thread per core"}[
        machine.has_smt
    ]


def _target_lines(targets: Sequence[TargetDiagnosis]) -> list[str]:
    rows = [
        (f"target {target.name}", ", ".join(target.runtimes) or "does not run here", target.problem)
        for target in targets
    ]
    return align_columns(rows) if rows else []


def _runtime_table(states: Sequence[RuntimeDiagnosis]) -> list[str]:
    rows = [("runtime", "version", "cpu", "gpu", "OpenMP")]
    rows += [
        (
            state.name,
            state.version or "-",
            "no" if state.problem or not _runs_on_cpu(state.name) else "yes",
            "yes" if state.gpu == "yes" else "no",
            ", ".join(state.openmp) or "none",
        )
        for state in states
    ]
    return align_columns(rows)


def _runtime_lines(state: RuntimeDiagnosis) -> list[str]:
    if state.problem:
        return [f"{state.name}: {state.problem}"]
    lines = [f"{state.name}: {openmp_text(state.name, state.openmp)}"]
    lines += [f"{state.name}: {fact}" for fact in state.build]
    lines.append(f"{state.name}: telemetry {state.telemetry}")
    if state.onednn:
        lines.append(f"{state.name}: {', '.join(state.onednn)}")
    if state.gpu != "yes":
        lines.append(f"{state.name}: no GPU: {state.gpu}")
    return lines
