"""Successive halving: each stage measures the best settings of the stage before, for longer.

    stage 0    all settings, one process each
    stage 1    the best third, and combinations of the best settings of each dimension
    stage 2    the best two, unless the best one is far ahead

Settings are measured in small groups, each together with the default in the same rounds: their speed-ups over the
default are comparable between groups, although the load of the machine changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from time import monotonic

from quantkit.benchmark.results.report import Failure
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure
from quantkit.benchmark.sweep.space import Setting
from quantkit.benchmark.sweep.state import MeasuredTrial, SweepState
from quantkit.progress import OnProgress, Progress

# Settings of a group next to the default: all are in memory at once.
GROUP = 4
# Processes and rounds of each stage, and the range of the samples in each process: enough for `PROCESS_SECONDS`.
STAGES = (
    SamplingOptions(warmup=1, processes=1, rounds=2),
    SamplingOptions(warmup=3, processes=2, rounds=3),
    SamplingOptions(warmup=3, processes=3, rounds=4),
)
PROCESS_SECONDS = 0.2
MIN_SAMPLES, MAX_SAMPLES = 4, 40
# Fraction of the time budget at which the last group of a stage ends; the rest is for the confirmation.
DEADLINES = (0.45, 0.55, 0.65)
# Fraction of the settings that reaches the next stage.
PROMOTED_FRACTION = 1 / 3
FINALISTS = 2
# Settings with a lower fraction of the best speed-up are not measured again after stage 1.
LEAST_FRACTION = 0.9


@dataclass
class Search:
    """Search of one model.

    Attributes:
        default: model with the default settings.
        converted: the model in the layout NCHW; None if that changes nothing.
        key: name of the model in the state.
        state: finished trials.
        start: start of the search, by the clock of `time.monotonic`.
        budget: time limit of the search with its confirmation, in seconds.
        seed: seed of the rounds.
        latency: latency of the default in seconds; it determines the number of samples.
        on_progress: receives the progress.
    """

    default: Candidate
    converted: Candidate | None
    key: str
    state: SweepState
    start: float
    budget: float
    seed: int
    latency: float
    on_progress: OnProgress

    def run(self, settings: Sequence[Setting]) -> tuple[Setting, ...]:
        """Return the settings of the last stage that are faster than the default, the fastest first."""
        ranked = self._measure_stage(0, settings)
        keep = max(ceil(len(ranked) * PROMOTED_FRACTION), FINALISTS)
        promoted = unique((*(setting for setting, _ in ranked[:keep]), *combine(ranked)))
        ranked = self._measure_stage(1, promoted) or ranked
        finalists = [setting for setting, ratio in ranked[:FINALISTS] if ratio >= LEAST_FRACTION * ranked[0][1]]
        if len(finalists) > 1:
            ranked = self._measure_stage(2, finalists) or ranked
        return tuple(setting for setting, ratio in ranked if ratio > 1)

    def _measure_stage(self, stage: int, settings: Sequence[Setting]) -> list[tuple[Setting, float]]:
        """Return the measured settings of a stage with their speed-ups, the highest first."""
        longest = 0.0
        missing = [setting for setting in settings if self.state.find(self.key, stage, setting.key) is None]
        for index in range(0, len(missing), GROUP):
            begin = monotonic()
            if begin - self.start + longest > self.budget * DEADLINES[stage]:
                break
            self.on_progress(Progress(f"stage {stage + 1} of {len(STAGES)}", index, len(missing)))
            self._measure_group(stage, missing[index : index + GROUP])
            longest = max(longest, monotonic() - begin)
        trials = [(setting, self.state.find(self.key, stage, setting.key)) for setting in settings]
        rows = [(setting, trial.ratio) for setting, trial in trials if trial is not None and trial.ratio is not None]
        return sorted(rows, key=lambda row: -row[1])

    def _measure_group(self, stage: int, settings: Sequence[Setting]) -> None:
        candidates = [self.default, *(setting.apply(self.default, self.converted) for setting in settings)]
        samples = min(max(int(PROCESS_SECONDS / self.latency), MIN_SAMPLES), MAX_SAMPLES)
        options = replace(
            STAGES[stage],
            runs=samples * STAGES[stage].min_processes,
            seed=self.seed + stage,
            time_budget=max(self.start + self.budget - monotonic(), 1.0),
        )
        result = measure(candidates, options)
        if not result.is_complete:
            return
        rows = zip(settings, result.rows[1:], result.speedups[1:], strict=True)
        trials = []
        for setting, row, speedup in rows:
            if row.measurement is not None and isinstance(speedup, Speedup):
                trials.append(MeasuredTrial(stage, setting.key, speedup.ratio, row.measurement.summary.median))
            elif isinstance(row.outcome, Failure):
                trials.append(MeasuredTrial(stage, setting.key, failure=row.outcome.reason))
        self.state.add(self.key, trials)


def combine(ranked: Sequence[tuple[Setting, float]]) -> tuple[Setting, ...]:
    """Combine the best settings of each dimension: the best two, the best three, ...

    Args:
        ranked: settings with their speed-ups, the highest first.
    """
    best: dict[str, Setting] = {}
    for setting, ratio in ranked:
        if ratio > 1:
            best.setdefault(setting.dimension, setting)
    return tuple(accumulate(best.values(), lambda first, other: first | other))[1:]


def unique(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Return the settings without those of equal values."""
    return tuple({setting.key: setting for setting in reversed(settings)}.values())[::-1]
