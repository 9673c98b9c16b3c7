"""Runs of a job under the monitor: attached, started, and repeated with interventions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join
from time import monotonic
from typing import Any

from quantkit.arguments import parse_duration
from quantkit.benchmark.host.machine import Machine, this_machine
from quantkit.formats.temporary import temporary_folder
from quantkit.monitor.bandwidth import probe_memory
from quantkit.monitor.calls import read_calls
from quantkit.monitor.counters import HardwareCounters, PerfStat
from quantkit.monitor.facts import JobFacts, cpu_limit, gather_facts
from quantkit.monitor.gpu import GpuReader
from quantkit.monitor.job import Job, Watch, job_environment
from quantkit.monitor.options import MonitorOptions
from quantkit.monitor.pipeline import KERAS_FIT
from quantkit.monitor.processes import ProcessReader
from quantkit.monitor.prove import Proof, count_steps, launch_with_pipeline
from quantkit.monitor.recorder import Recorder
from quantkit.monitor.report import Monitoring
from quantkit.monitor.sample import JobSample
from quantkit.monitor.snapshot import take_snapshot
from quantkit.monitor.steps import Steps, read_steps
from quantkit.monitor.system import import_psutil
from quantkit.monitor.verdict import COMPUTE_OR_MEMORY, find_bottleneck


@dataclass(frozen=True)
class _Run:
    """Samples of one run of a job, or of a process that already ran."""

    samples: list[JobSample]
    steps: Steps | None
    facts: JobFacts
    seconds: float
    pid: int
    exit_code: int | None
    is_interrupted: bool
    overhead: float
    not_available: tuple[str, ...]


def monitor_job(options: MonitorOptions) -> Monitoring:
    """Run a command, or attach to a process, and return the report; `monitor` has the arguments."""
    psutil, machine = import_psutil(), this_machine()
    command, pipeline = options.command, options.pipeline or (KERAS_FIT if options.prove else "")
    with temporary_folder() as folder:
        session = _Session(psutil, machine, options)
        job = folder / "job"
        run = session.run(command, job, pipeline) if options.pid is None else session.attach(options.pid, folder)
        proof, memory, reason = None, None, ""
        if options.prove and not run.is_interrupted:
            proof, reason = session.prove(run, command, folder, pipeline)
            if find_bottleneck(run.facts, proof).kind == COMPUTE_OR_MEMORY:
                memory = probe_memory(lambda: session.run(command, folder / "memory", ""))
    verdict = find_bottleneck(run.facts, proof, memory, is_tried=options.prove)
    advice = verdict.advice.replace("-- COMMAND", f"-- {join(command)}") if command else verdict.advice
    return Monitoring(
        verdict=replace(verdict, advice=advice),
        facts=run.facts,
        samples=tuple(run.samples),
        seconds=run.seconds,
        command=tuple(command),
        pid=run.pid,
        exit_code=run.exit_code,
        is_interrupted=run.is_interrupted,
        overhead=run.overhead,
        machine=machine,
        not_available=(*run.not_available, *filter(None, [reason])),
        proof=proof,
        memory=memory,
    )


class _Session:
    """Runs of one call of `monitor`."""

    def __init__(self, psutil: Any, machine: Machine, options: MonitorOptions) -> None:
        self._psutil, self._machine, self._options = psutil, machine, options

    def attach(self, pid: int, folder: Path) -> _Run:
        """Monitor a process that already runs."""
        watch = Watch(pid)
        interrupted = False
        with _closing(watch), self._recording(pid, folder) as (recorder, finish):
            limit = self._options.duration
            end = None if limit is None else monotonic() + parse_duration(limit)
            try:
                while not watch.has_ended(recorder.next_delay) and (end is None or monotonic() < end):
                    self._tick(recorder)
            except KeyboardInterrupt:
                interrupted = True
            return finish(None, interrupted)

    def run(self, command: Sequence[str], folder: Path, pipeline: str, mode: str = "") -> _Run:
        """Run a command and monitor it."""
        environment = job_environment(folder, pipeline, mode)
        if pipeline and pipeline != KERAS_FIT:
            command = launch_with_pipeline(command)
        job = Job(command, environment, self._options.on_output)
        try:
            watch = Watch(job.pid)
            with job.forward_signals(), _closing(watch), self._recording(job.pid, folder) as (recorder, finish):
                while not watch.has_ended(recorder.next_delay) and not job.is_overdue:
                    self._tick(recorder)
                job.close()
                return finish(job.exit_code, job.signal is not None)
        finally:
            job.close()

    def prove(self, base: _Run, command: Sequence[str], folder: Path, pipeline: str) -> tuple[Proof | None, str]:
        """Run the interventions; return the proof, or the reason for no proof."""
        steps = base.steps
        if steps is None or not (steps.has_input or pipeline not in ("", KERAS_FIT)):
            return None, "proof: the job has no hook: use quantkit.monitor.batches, or --pipeline FILE.py:FUNCTION"
        count = count_steps(steps)
        runs = [self.run(command, folder / mode, pipeline, f"{mode}:{count}") for mode in ("repeat", "drain")]
        repeated, drained = (run.steps.mean_seconds if run.steps else None for run in runs)
        return Proof(steps.mean_seconds, repeated, drained, count), ""

    def _tick(self, recorder: Recorder) -> None:
        sample = recorder.tick()
        if sample is not None and self._options.on_snapshot and len(recorder.samples) > 1:
            self._options.on_snapshot(take_snapshot(recorder.samples, self._machine, recorder.uses_gpu))

    @contextmanager
    def _recording(self, pid: int, folder: Path) -> Iterator[tuple[Recorder, Callable[[int | None, bool], _Run]]]:
        """Sample a process; the second value ends the sampling and returns the run."""
        start = monotonic()
        gpus = GpuReader()
        perf = PerfStat(pid)
        try:
            recorder = Recorder(self._psutil, ProcessReader(pid), gpus, parse_duration(self._options.interval))
            recorder.sample()

            def finish(exit_code: int | None, is_interrupted: bool) -> _Run:
                recorder.sample()
                counters = perf.stop()
                steps = read_steps(folder)
                facts = gather_facts(
                    recorder.samples,
                    cores=cpu_limit(self._machine),
                    steps=steps,
                    calls=read_calls(folder),
                    counters=counters,
                    uses_gpu=recorder.uses_gpu,
                )
                return _Run(
                    samples=recorder.samples,
                    steps=steps,
                    facts=facts,
                    seconds=monotonic() - start,
                    pid=pid,
                    exit_code=exit_code,
                    is_interrupted=is_interrupted,
                    overhead=recorder.overhead,
                    not_available=_not_available(gpus, counters, facts, self._machine),
                )

            yield recorder, finish
        finally:
            perf.close()
            gpus.close()


def _not_available(gpus: GpuReader, counters: HardwareCounters, facts: JobFacts, machine: Machine) -> tuple[str, ...]:
    """Return the metrics that were not measured, with reasons."""
    reasons = [f"GPU: {gpus.missing}"] if gpus.missing else []
    if facts.gpu is not None and facts.gpu.sm_utilization is None:
        reasons.append("GPU SM utilization: the GPU or its driver has no GPM (Hopper and later)")
    if counters.missing:
        reasons.append(f"hardware counters: {counters.missing}")
    if facts.calls is None:
        reasons.append("calls: only Python programs that the monitor starts are sampled")
    if facts.throttled is None and machine.cpu_quota is not None:
        reasons.append("CPU quota: the control group does not report throttling")
    return tuple(reasons)


@contextmanager
def _closing(watch: Watch) -> Iterator[None]:
    try:
        yield
    finally:
        watch.close()
