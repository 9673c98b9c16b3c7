"""Sweep: search, then confirmation of the fastest setting in new processes."""

import json
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from time import monotonic

from quantkit import formats
from quantkit.arguments import as_names, parse_duration, public, require_duration, require_path
from quantkit.benchmark.host.machine import this_machine
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import Benchmark, openmp_lines
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate, digest
from quantkit.benchmark.sampling.rounds import DEFAULT_PROCESSES, TIME_BUDGET, SamplingOptions, measure
from quantkit.benchmark.sampling.selection import CandidateOptions, select_candidates
from quantkit.benchmark.sampling.worker import read_model
from quantkit.benchmark.sweep.result import BestSettings, ModelSweep, Sweep
from quantkit.benchmark.sweep.search import STAGES, Search
from quantkit.benchmark.sweep.space import Setting, find_settings
from quantkit.benchmark.sweep.state import SweepState
from quantkit.formats.temporary import temporary_folder
from quantkit.ir.graph import Graph
from quantkit.options import option, takes
from quantkit.progress import OnProgress
from quantkit.recipes import parse, run
from quantkit.runtimes import find_runtime

LAYOUT = "NCHW"
# Smallest fraction of the time budget for the confirmation.
MIN_CONFIRMATION = 0.2
# The first measurement, which finds the runtime and its libraries.
PROBE = SamplingOptions(runs=6, warmup=3, processes=1)


@dataclass(frozen=True)
class SweepOptions(CandidateOptions):
    """The arguments of `sweep`."""

    _: KW_ONLY
    time_budget: float | str | None = option(
        None,
        require_duration,
        doc="total time limit in seconds, or a text such as ``5m`` (default: 10 minutes); each model gets a part in "
        "proportion to the number of its settings and to the run time of its first measurement",
    )
    resume: str | os.PathLike[str] | None = option(
        None,
        require_path,
        metavar="FILE.json",
        help="keep the finished trials of --sweep in this file, and resume",
        doc="file for the finished trials; those in it are not measured again",
    )


@public
@takes(SweepOptions)
def sweep(options: SweepOptions) -> Sweep:
    """Find the fastest settings of each model: threads, spinning, CPUs, layout, precision and environment variables.

    Successive halving on speed-ups over the default, which is measured in the same rounds. The winner is measured
    again in new processes; the default is kept unless the whole interval of the speed-up is above 1.

    Options with a value are not varied; with several precisions, the first is the default. ``streams`` makes it a sweep
    of the throughput, over streams and batch sizes.

    Raises:
        UsageError: see `quantkit.benchmark`, or ``resume`` has trials of another machine.
        InputError: a model file is missing or broken, or ``resume`` is another file.
        NotMeasuredError: a model cannot be measured with the default settings.
        BenchmarkInterrupted: Ctrl-C; the finished trials are in the file ``resume``.
    """
    budget, on_progress = parse_duration(options.time_budget or TIME_BUDGET), options.on_progress
    machine = this_machine()
    state = SweepState.read(None if options.resume is None else Path(options.resume).expanduser(), machine)
    first, *others = as_names(options.precision) or ("float32",)
    with temporary_folder() as folder:
        start = monotonic()
        candidates = select_candidates(replace(options, precision=first), folder)
        precisions = [Setting("precision", {"precision": name}) for name in others]
        probing = replace(PROBE, time_budget=budget / len(candidates))
        probes = [_probe(each, precisions, state, probing, folder, on_progress) for each in candidates]
        sweeps = []
        for index, probe in enumerate(probes):
            remaining = max(start + budget - monotonic(), 1.0)
            part = remaining * probe.cost / sum(each.cost for each in probes[index:])
            sweeps.append(_sweep_model(probe, state, part, options.seed, folder, on_progress))
        return Sweep(tuple(sweeps), machine)


@dataclass(frozen=True)
class _Probe:
    """First measurement of a model, which finds the runtime and its libraries.

    Attributes:
        candidate: model in that runtime.
        measurement: its latency with the default settings.
        converted: model in the layout NCHW; None if that changes nothing.
        settings: settings to search.
        seconds: run time of the first measurement.
    """

    candidate: Candidate
    measurement: Measurement
    converted: Candidate | None
    settings: tuple[Setting, ...]
    seconds: float

    @property
    def cost(self) -> float:
        """Estimated relative run time of the search: one process for each setting, and those of the confirmation."""
        return self.seconds * (len(self.settings) + 2 * DEFAULT_PROCESSES)


def _probe(
    candidate: Candidate,
    further: Sequence[Setting],
    state: SweepState,
    options: SamplingOptions,
    folder: Path,
    on_progress: OnProgress,
) -> _Probe:
    start = monotonic()
    benchmark = measure([candidate], options, on_progress)
    benchmark.check_measured()
    (measurement,) = benchmark.measurements
    seconds, context = monotonic() - start, measurement.context
    candidate = replace(candidate, settings=replace(candidate.settings, runtime=context.runtime))
    converted = _convert_layout(candidate, folder)
    settings = (
        *find_settings(candidate, find_runtime(context.runtime), state.machine, context.openmp),
        *further,
        *([] if converted is None else [Setting("layout", {"layout": LAYOUT})]),
    )
    return _Probe(candidate, measurement, converted, settings, seconds)


def _sweep_model(
    probe: _Probe, state: SweepState, budget: float, seed: int, folder: Path, on_progress: OnProgress
) -> ModelSweep:
    candidate, latency = probe.candidate, probe.measurement.summary.median
    # The same model with other settings is another search.
    key = f"{probe.measurement.context.digest} {json.dumps(asdict(candidate.settings), sort_keys=True)} seed {seed}"
    search = Search(candidate, probe.converted, key, state, monotonic(), budget, seed, latency, on_progress)
    ranked = search.run(probe.settings)
    name = candidate.label if folder in candidate.path.parents else str(candidate.path)
    best = BestSettings(candidate.label, name, candidate)
    rejected: tuple[str, Speedup | None] | None = None
    seconds = [latency] * 2
    if ranked:
        winner = ranked[0]
        confirmation = _confirm(search, winner, on_progress)
        speedup = confirmation.speedups[1]
        if not isinstance(speedup, Speedup):
            rejected = (str(winner), None)
        else:
            medians = [measurement.summary.median for measurement in confirmation.measurements]
            if speedup.outcome == "faster":
                fastest = winner.apply(candidate, probe.converted)
                best = BestSettings(candidate.label, name, fastest, winner.values.get("layout"), speedup)
                seconds = medians
            else:
                rejected = (str(winner), speedup)
                seconds = medians[:1] * 2
    texts = {setting.key: str(setting) for setting in probe.settings}
    trials = tuple((_text(trial.candidate), trial) for trial in state.of(key))
    measured = {trial.candidate for trial in state.of(key) if trial.stage == 0}
    unmeasured = tuple(text for setting, text in texts.items() if setting not in measured)
    notes = openmp_lines([probe.measurement])
    return ModelSweep(best, seconds[0], seconds[1], rejected, trials, unmeasured, notes)


def _text(key: str) -> str:
    """Return the text of a setting from its key."""
    return str(Setting("", json.loads(key)))


def _confirm(search: Search, winner: Setting, on_progress: OnProgress) -> Benchmark:
    """Measure the winner and the default in new processes: the ratios of the search favor the luckiest setting."""
    remaining = search.start + search.budget - monotonic()
    options = SamplingOptions(
        seed=search.seed + len(STAGES), time_budget=max(remaining, search.budget * MIN_CONFIRMATION)
    )
    return measure([search.default, winner.apply(search.default, search.converted)], options, on_progress)


def _convert_layout(candidate: Candidate, folder: Path) -> Candidate | None:
    """Return the model in the layout NCHW, for TensorFlow; None if the transform changes nothing."""
    if find_runtime(candidate.settings.runtime).native_dialect != "tensorflow":
        return None
    settings = candidate.settings
    inputs, outputs = (None if names is None else list(names) for names in (settings.inputs, settings.outputs))
    graph = read_model(candidate.path, inputs, outputs).runnable
    if not isinstance(graph, Graph):
        return None
    converted, _ = run(parse(f"convert_layout(to={LAYOUT})"), graph)
    if converted.nodes == graph.nodes:
        return None
    path = folder / f"{digest(candidate.path)[0][:16]}.{LAYOUT}.pb"
    formats.save(converted, path)
    settings = replace(settings, inputs=tuple(map(str, converted.inputs)), outputs=tuple(map(str, converted.outputs)))
    return replace(candidate, path=path, settings=settings)
