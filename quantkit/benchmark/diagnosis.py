"""What this machine and installation can run, found out by running it.

Every engine opens the bundled model in a process of its own, so that what it loads and prints is its own.
"""

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from quantkit import formats
from quantkit.benchmark.candidate import Candidate, Settings, find_candidate
from quantkit.benchmark.machine import Machine, this_machine
from quantkit.benchmark.process import WorkerGone, WorkerProcess
from quantkit.benchmark.report import Benchmark, aligned, openmp_text, threads_text
from quantkit.benchmark.rounds import Progress, Schedule, measure
from quantkit.ir.graph import Graph
from quantkit.model import load
from quantkit.recipes import parse, run
from quantkit.recipes.named import find_recipe
from quantkit.runtimes import find_runtime, runtimes
from quantkit.runtimes.session import SessionOptions

# Makes an engine that has oneDNN say so, and with which instructions and threads it computes. Logging each
# execution as well ("1") would make OpenVINO's build of oneDNN fail.
TELL = {"ONEDNN_VERBOSE": "dispatch", "TF_CPP_MIN_LOG_LEVEL": "0"}
ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Engine:
    """An engine as it is found here.

    Attributes:
        name: as ``--runtime`` takes it.
        version: of the package, or empty where it is not installed.
        problem: why it does not run here, and what to do; empty: it does.
        gpu: ``yes``, or why not.
        openmp: OpenMP runtimes in its process.
        onednn: what oneDNN says of itself, where the engine has it and lets it speak.
    """

    name: str
    version: str = ""
    problem: str = ""
    gpu: str = ""
    openmp: tuple[str, ...] = ()
    onednn: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """A machine, its engines, and how to set their threads."""

    machine: Machine
    engines: tuple[Engine, ...]

    @property
    def can_run(self) -> bool:
        """Whether any engine runs."""
        return any(not engine.problem for engine in self.engines)

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as JSON values."""
        return {
            "machine": self.machine.to_json(),
            "engines": [asdict(engine) for engine in self.engines],
            "advice": list(thread_advice(self.machine, self.engines)),
        }

    def __str__(self) -> str:
        return "\n".join(
            (
                *_machine_table(self.machine),
                "",
                *_engine_table(self.engines),
                "",
                *(line for engine in self.engines for line in _engine_lines(engine)),
                "",
                *thread_advice(self.machine, self.engines),
            )
        )


def diagnose(
    model: str = "digits", *, offline: bool = False, progress: Progress = lambda message, share: None
) -> Diagnosis:
    """Look at the machine, and run a model in every engine.

    Args:
        model: what is run.
        offline: fetch nothing.
        progress: told what happens now, and which share (0 to 1) is done.
    """
    machine = this_machine()
    engines = []
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        found = _runnable(model, Path(folder) / "model.pb", offline)
        for index, name in enumerate(runtimes()):
            progress(f"running {model} in {name}", index / len(runtimes()))
            engines.append(_engine(found, name, machine))
    return Diagnosis(machine, tuple(engines))


def _runnable(model: str, path: Path, offline: bool) -> Candidate:
    """The model without the training-time operations that no engine but TensorFlow has."""
    found = find_candidate(model, offline=offline)
    loaded = load(model, offline=offline)
    if not isinstance(loaded.runnable, Graph):
        return found
    recipe = parse(loaded.card.recipe) if loaded.card is not None else find_recipe("inference")
    graph, _ = run(recipe, loaded.runnable)
    formats.save(graph, path)
    ends = Settings(inputs=tuple(map(str, graph.inputs)), outputs=tuple(map(str, graph.outputs)))
    return replace(found, path=path, settings=ends)


def sweep(
    model: str,
    runtime: str,
    machine: Machine,
    schedule: Schedule,
    *,
    offline: bool = False,
    progress: Progress = lambda message, share: None,
) -> Benchmark:
    """Measure one model at several thread settings, each in a process of its own; the engine's default comes first.

    Args:
        model: what is run, made ready for inference.
        runtime: engine.
        machine: whose cores the settings use.
        schedule: how much is measured.
        offline: fetch nothing.
        progress: as for `measure`.

    Raises:
        UsageError: no such runtime.
    """
    find_runtime(runtime)
    with tempfile.TemporaryDirectory(prefix="quantkit-") as folder:
        found = _runnable(model, Path(folder) / "model.pb", offline)
        settings = [SessionOptions(intra_op=intra, inter_op=inter) for intra, inter in thread_settings(machine)]
        candidates = [
            replace(found, settings=replace(found.settings, runtime=runtime, options=options)) for options in settings
        ]
        return measure(candidates, schedule, progress)


def thread_settings(machine: Machine) -> tuple[tuple[int | None, int | None], ...]:
    """Settings (intra, inter) worth trying: the default, then 1, half and all cores, with 1 and 2 operations.

    >>> thread_settings(Machine("a cpu", physical_cores=2, logical_cores=4))
    ((None, None), (1, 1), (1, 2), (2, 1), (2, 2))
    """
    cores = usable_cores(machine)
    intra = sorted({1, max(cores // 2, 1), cores})
    return ((None, None), *((inside, beside) for inside in intra for beside in (1, 2)))


def usable_cores(machine: Machine) -> int:
    """Cores that a process may keep busy: physical ones, as far as affinity and container allow."""
    limits = [machine.physical_cores or machine.logical_cores]
    if machine.affinity:
        limits.append(len(machine.affinity))
    if machine.cpu_quota is not None:
        limits.append(max(int(machine.cpu_quota), 1))
    return min(limits)


def thread_advice(machine: Machine, engines: Sequence[Engine]) -> tuple[str, ...]:
    """What thread settings do here, in sentences."""
    cores = usable_cores(machine)
    lines = [
        f"threads: start from --intra-op {cores} --inter-op {min(2, cores)}, and measure: "
        "small 8-bit models are often fastest with --intra-op 1 --inter-op 2 (quantkit doctor --measure)",
        "thread pools are made once in a process, and the variables are read as the engine loads: "
        "quantkit benchmark starts a process for every setting",
    ]
    heeding = [engine.name for engine in engines if engine.openmp]
    without = [one.name for one in engines if not one.problem and not one.openmp and _has_own_threads(one.name)]
    if without:
        lines.append(
            f"KMP_AFFINITY, KMP_BLOCKTIME and OMP_NUM_THREADS have no effect in {', '.join(without)}: "
            "no OpenMP runtime is loaded, the engine has a thread pool of its own"
        )
    if heeding:
        is_smt = machine.physical_cores is not None and machine.logical_cores > machine.physical_cores
        affinity = "granularity=fine,compact,1,0" if is_smt else "granularity=fine,compact"
        lines.append(
            f"{', '.join(heeding)} has OpenMP: published advice is OMP_NUM_THREADS={cores}, KMP_BLOCKTIME=0 or 1 and "
            f"KMP_AFFINITY={affinity}; it hurts on some machines, so measure it"
        )
    return tuple(lines)


def _has_own_threads(name: str) -> bool:
    runtime = runtimes().get(name)
    return runtime is not None and runtime.has_threads


def sweep_verdict(measured: Benchmark) -> str:
    """Which setting was fastest, and whether this is more than chance."""
    rows = [
        (measurement.summary.median, measurement, comparison)
        for row, comparison in zip(measured.rows, measured.comparisons, strict=True)
        if (measurement := row.measurement) is not None
    ]
    if not rows:
        return "no setting could be measured"
    _, best, comparison = min(rows, key=lambda row: row[0])
    context = best.context
    if comparison is None:
        return f"{context.runtime}: its default setting is the fastest of these"
    words = getattr(comparison, "verdict", str(comparison))
    return f"{context.runtime}: fastest with intra,inter {threads_text(context)}; against the default: {words}"


def _engine(found: Candidate, name: str, machine: Machine) -> Engine:
    available = find_runtime(name).available()
    if not available.ok:
        return Engine(name, problem=available.detail)
    answer, said = _tried(found, name, "cpu")
    if "error" in answer:
        return Engine(name, available.detail, problem=_sentence(answer["error"]))
    return Engine(
        name,
        answer["version"],
        gpu=_gpu(found, name, machine),
        openmp=tuple(answer["openmp"]),
        onednn=onednn_facts(said),
    )


def _gpu(found: Candidate, name: str, machine: Machine) -> str:
    if not machine.gpus:
        return "this machine shows none"
    answer, _ = _tried(found, name, "gpu")
    return _sentence(answer["error"]) if "error" in answer else "yes"


def _tried(found: Candidate, name: str, device: str) -> tuple[Mapping[str, Any], str]:
    """What a worker answers to opening and running the model, and what the engine said meanwhile."""
    candidate = replace(found, settings=replace(found.settings, runtime=name, options=SessionOptions(device=device)))
    with WorkerProcess(TELL) as worker:
        try:
            opened = worker.ask(candidate.to_request(seed=0), ANSWER_SECONDS)
            if "error" in opened:
                return opened, worker.said
            return opened | worker.ask({"do": "warm_up", "calls": 1}, ANSWER_SECONDS), worker.said
        except WorkerGone as gone:
            return {"error": {"message": gone.message, "hint": gone.hint}}, worker.said


def onednn_facts(said: str) -> tuple[str, ...]:
    r"""What oneDNN's own log tells: version, threading, instructions.

    >>> onednn_facts("onednn_verbose,v1,info,oneDNN v3.7.3 (commit N/A)\nonednn_verbose,v1,info,cpu,isa:Intel AVX2\n")
    ('oneDNN v3.7.3', 'isa:Intel AVX2')
    """
    facts = re.findall(
        r"^(?:one)?dnnl?_verbose,(?:v\d+,)?info,(oneDNN v[\d.]+|cpu,(?:runtime|isa):.*)", said, re.MULTILINE
    )
    return tuple(dict.fromkeys(fact.removeprefix("cpu,") for fact in facts))


def _sentence(error: Mapping[str, Any]) -> str:
    return f"{error['message']} (hint: {error['hint']})" if error["hint"] else str(error["message"])


def _machine_table(machine: Machine) -> list[str]:
    cores = f"{machine.physical_cores or '?'} cores, {machine.logical_cores} threads"
    if machine.cpu_quota is not None:
        cores += f", of which a container grants {machine.cpu_quota:g}"
    memory = f"{machine.memory_bytes / 2**30:.1f} GiB" if machine.memory_bytes else "unknown"
    caches = ", ".join(f"{level} {size >> 10} KiB" for level, size in machine.cache_bytes)
    rows = [
        ("processor", f"{machine.cpu}, {cores}"),
        ("instructions", " ".join(machine.isa) or "none of those that speed up 8 bits"),
        ("memory", f"{memory}; caches {caches}" if caches else memory),
        ("affinity", ",".join(map(str, machine.affinity)) or "unknown"),
        ("governor", machine.governor or "not readable"),
        ("gpu", ", ".join(machine.gpus) or "none"),
        ("system", f"{machine.system}, Python {machine.python}"),
        ("load", "unknown" if machine.load is None else f"{machine.load:g}"),
    ]
    return aligned(rows)


def _engine_table(engines: Sequence[Engine]) -> list[str]:
    rows = [("engine", "version", "cpu", "gpu", "OpenMP")]
    rows += [
        (
            engine.name,
            engine.version or "-",
            "no" if engine.problem else "yes",
            "yes" if engine.gpu == "yes" else "no",
            ", ".join(engine.openmp) or "none",
        )
        for engine in engines
    ]
    return aligned(rows)


def _engine_lines(engine: Engine) -> list[str]:
    if engine.problem:
        return [f"{engine.name}: {engine.problem}"]
    lines = [f"{engine.name}: {openmp_text(engine.name, engine.openmp)}"]
    if engine.onednn:
        lines.append(f"{engine.name}: {', '.join(engine.onednn)}")
    if engine.gpu != "yes":
        lines.append(f"{engine.name}: no GPU: {engine.gpu}")
    return lines
