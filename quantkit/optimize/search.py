"""Search for the fastest candidate inside an accuracy bound.

    float       the float model in each runtime, with its own and with fixed sizes; the fastest one is the baseline
    forms       one int8 file after the other, the most promising first, measured at once. The drop is
                measured in the order of the speed, until one is within the bound
    fast parts  the fastest int8 file again, with the layers in float that profiles of both models show to be slow
    float parts if no int8 file is within the bound, the fastest one again with more layers in float
    finals      the best few candidates again, for longer
    settings    threads and other settings of the best two
    new start   the winner, the runner-up and the baseline in new processes

Every measurement is a speed-up over one candidate in the same rounds, so that the load of the machine cancels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from quantkit.benchmark.host.machine import usable_cores
from quantkit.benchmark.results.measurement import Measurement
from quantkit.benchmark.results.report import Benchmark, Failure
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling.candidate import Candidate
from quantkit.benchmark.sampling.rounds import BenchmarkInterrupted, SamplingOptions, measure
from quantkit.benchmark.sweep.search import Search
from quantkit.benchmark.sweep.space import find_settings
from quantkit.benchmark.sweep.state import MeasuredTrial, SweepState
from quantkit.cores import cpu_flags
from quantkit.data import Dataset
from quantkit.errors import QuantkitError
from quantkit.formats.kinds import kind_of
from quantkit.model import Model, load
from quantkit.optimize.deployment import SERVERS
from quantkit.optimize.drop import Drop, compute_alpha, measure_drop
from quantkit.optimize.forms import FIXED, Int8Form, Sizes, fix_sizes, int8_form, int8_forms
from quantkit.optimize.state import Form, SearchState
from quantkit.progress import OnProgress, Progress
from quantkit.quantization.targets import find_target
from quantkit.quantization.workflow import QuantizationResult, quantize
from quantkit.quantization.workflow.description import replace_plan
from quantkit.quantization.workflow.float_reference import FloatReference
from quantkit.quantization.workflow.slow_kernels import find_faster_alternatives
from quantkit.runtimes import find_runtime, open_session

# Number of candidates whose drop is measured on the same samples.
MOST_DROPS = 12
# Instructions for int8 products have at most four times as many products as those for float32: VNNI and AVX-512.
MOST_GAIN = 4.0
# Fractions of the time budget at which no further form is built, and no further setting is measured.
FORMS_END, SETTINGS_END = 0.6, 0.8
# Fraction of the bound that the layers in float are chosen for on the calibration samples.
FLOAT_PARTS_MARGIN = 0.5
# Candidates with a lower fraction of the best speed-up are not measured again.
LEAST_FRACTION = 0.8
FINALISTS, TUNED, MOST_FINALS = 4, 2, 2
# Candidates in one measurement next to the baseline: all are in memory at once.
GROUP = 4
# Shortest time for the last measurement in seconds, also after the end of the budget.
LAST_SECONDS = 10.0
# Time for the first measurement, and for the processes of the last one without which no speed-up is shown, in seconds,
# also after the end of the budget.
COMPARISON_SECONDS = 60.0
OUT_OF_TIME = "time budget exhausted"
SCREEN, FINAL, LAST = range(3)
STAGES = {
    SCREEN: SamplingOptions(processes=1, rounds=2, process_seconds=0.2, warmup_seconds=0.5),
    FINAL: SamplingOptions(processes=3, rounds=4, process_seconds=0.3, warmup_seconds=0.5),
    LAST: SamplingOptions(process_seconds=0.3, warmup_seconds=1.0),
}
# Processor features of each arithmetic that is faster than float32 only with its own instructions.
FEATURES = {"bfloat16": ("avx512_bf16", "amx_bf16"), "float16": ("avx512_fp16", "amx_fp16")}


class OutOfTimeError(Exception):
    """The time budget ended inside a step."""


@dataclass(frozen=True)
class Goal:
    """Objective, bound and candidates of a search.

    Attributes:
        objective: ``latency``, ``throughput`` or ``size``.
        max_drop: largest drop, a fraction, for the upper limit.
        precisions: ``float32``, ``bfloat16``, ``float16`` and ``int8``, those that may be used.
        runtimes: names of the runtimes that may be used.
        suffix: suffix of the output; empty for any.
        seed: seed of the measurements.
        server: name of the server that is to run the file; empty for any.
    """

    objective: str
    max_drop: float
    precisions: tuple[str, ...]
    runtimes: tuple[str, ...]
    suffix: str
    seed: int
    server: str = ""


@dataclass(frozen=True)
class Choice:
    """Measured candidate.

    Attributes:
        form: its file.
        candidate: the file in a runtime with settings.
        settings: text of the settings; empty for the default.
        ratio: speed-up over the baseline.
        seconds: median latency.
        drop: drop of the accuracy; None if it was not measured.
        speedup: speed-up with its interval, in new processes; None before the last measurement.
    """

    form: Form
    candidate: Candidate
    settings: str
    ratio: float
    seconds: float
    drop: Drop | None
    speedup: Speedup | None = None

    @property
    def is_float32(self) -> bool:
        """True if all arithmetic is in float32."""
        return self.form.precision == self.candidate.settings.options.precision == "float32"

    @property
    def name(self) -> str:
        """Form, runtime and settings."""
        return name_of(self.candidate, self.settings)


def name_of(candidate: Candidate, settings: str = "") -> str:
    """Return the name of a candidate in the report."""
    text = f"{candidate.label} in {find_runtime(candidate.settings.runtime).title}"
    return f"{text}, {settings}" if settings else text


@dataclass
class FileSearch:
    """State of a search in this process.

    Attributes:
        goal: objective, bound and candidates.
        model: float model.
        calibration: calibration samples.
        reference: outputs of the float model on held-out samples.
        sizes: sizes of the samples for inputs with dynamic sizes; None if samples differ or all sizes are fixed.
        measured_sizes: sizes of the measured calls for inputs with dynamic sizes: those of the first sample.
        float_files: files of the float model.
        quantize_options: further arguments of `quantize`.
        state: finished work.
        start: start by the clock of `time.monotonic`.
        budget: time limit in seconds.
        on_progress: receives the progress.
        skipped: reason by name of each form that was not built, and each candidate that cannot run on the samples.
        choices: measured candidates by name.
        baseline: fastest float32 candidate with default settings.
        last: last measurement, in new processes.
        is_complete: True at the end of the search.
    """

    goal: Goal
    model: Model
    calibration: Dataset
    reference: FloatReference
    sizes: Sizes | None
    measured_sizes: Sizes
    float_files: Sequence[Form]
    quantize_options: dict[str, Any]
    state: SearchState
    start: float
    budget: float
    on_progress: OnProgress
    skipped: dict[str, str] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    baseline: Candidate | None = None
    last: Benchmark | None = None
    is_complete: bool = False
    _int8_forms: dict[str, Int8Form] = field(default_factory=dict)
    # Name and result of the fastest int8 file that this call built: the results of all would fill the memory.
    _fastest: tuple[str, QuantizationResult] | None = None

    def run(self) -> None:
        """Search until the end or the end of the time budget; the state and the choices have all that is known."""
        self.on_progress(Progress("searching", 0, round(self.budget), seconds=self.remaining))
        self._measure_float()
        self._build_forms()
        self._build_alternatives()
        self._build_float_parts()
        finalists = self._finals()
        finalists = self._tune(finalists)
        self._measure_again(finalists)
        self.is_complete = True

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return monotonic() - self.start

    @property
    def remaining(self) -> float:
        """Seconds until the end of the budget, at least 1."""
        return max(self.budget - self.elapsed, 1.0)

    def rank(self) -> list[Choice]:
        """Return the candidates within the bound, the best first."""
        eligible = [each for each in self.choices.values() if self.is_within(each)]
        if self.goal.objective == "size":
            return sorted(eligible, key=lambda each: (each.form.num_bytes, -each.ratio))
        return sorted(eligible, key=lambda each: -each.ratio)

    def is_within(self, choice: Choice) -> bool:
        """Return True if the candidate may be used, and the upper limit of its drop is known to be within the bound."""
        return (
            (self._may_keep_float or not choice.is_float32)
            and choice.drop is not None
            and choice.drop.high <= self.goal.max_drop
        )

    def _report(self, step: str) -> None:
        best = next(iter(self.rank()), None)
        text = "" if best is None else f"; best so far: {best.ratio:.2f} times as fast, {best.name}"
        self.on_progress(Progress(f"{step}{text}", min(round(self.elapsed), round(self.budget)), round(self.budget)))

    def _measure_float(self) -> None:
        """Measure the float model in all runtimes; the fastest is the baseline."""
        forms = [each for file in self.float_files for each in (file, *self._fix_sizes(file))]
        candidates = [candidate for form in forms for candidate in self._candidates(form)]
        self.state.forms |= {form.name: form for form in forms}
        exact = [each for each in candidates if each.settings.options.precision == "float32"]
        self._report("measuring the float model")
        first = next((trial for trial in self.state.trials if trial.ratio == 1.0 and trial.stage == SCREEN), None)
        if first is None:
            self._screen_float(exact)
            first = next((trial for trial in self.state.trials if trial.ratio == 1.0), None)
        baseline = next((each for each in exact if first is not None and name_of(each) == first.candidate), None)
        if baseline is None:
            reasons = dict.fromkeys(trial.failure for trial in self.state.trials if trial.failure)
            limit = next(filter(None, (self.goal.suffix, self.goal.server)), "")
            without = f"no runtime of the search runs it{f' as {limit}' if limit else ''}"
            raise QuantkitError(
                f"no runtime runs the float model: {next(iter(reasons), without)}",
                hint="quantkit doctor shows the installed runtimes; --runtimes selects them",
            )
        form_of = {form.path: form for form in forms}
        for candidate in exact:
            self._add(form_of[candidate.path], candidate)
        # From here on, an interrupted search has a result.
        self.baseline = baseline
        others = [each for each in candidates if each not in exact]
        self._measure(SCREEN, others)
        for candidate in others:
            self._add(form_of[candidate.path], candidate)
        self._check_drops()

    def _screen_float(self, candidates: Sequence[Candidate]) -> None:
        """Measure the float model once in each runtime; their speed-ups are over the fastest one."""
        trials: list[MeasuredTrial] = []
        for index in range(0, len(candidates), GROUP):
            group = candidates[index : index + GROUP]
            options = self._options(SCREEN)
            result = measure(group, replace(options, time_budget=max(options.time_budget, COMPARISON_SECONDS)))
            trials += [_trial(SCREEN, each, row.outcome) for each, row in zip(group, result.rows, strict=True)]
        self._report_failures(trials)
        fastest = min((trial.seconds for trial in trials if trial.seconds is not None), default=inf)
        self.state.trials += [
            trial if trial.seconds is None else replace(trial, ratio=fastest / trial.seconds) for trial in trials
        ]
        self.state.save()

    def _candidates(self, form: Form) -> list[Candidate]:
        """Return a form in its runtimes, with each arithmetic that the runtime and this processor have."""
        streams = usable_cores(self.state.machine) if self.goal.objective == "throughput" else None
        precisions = ("float32", *(name for name in self.goal.precisions if name in FEATURES))
        return [
            replace(each, settings=replace(each.settings, streams=streams, input_shapes=self.measured_sizes))
            for each in form.candidates(precisions)
            if _has_arithmetic(each) and self._is_served(each)
        ]

    def _is_served(self, candidate: Candidate) -> bool:
        """Return True if the server of the goal, if there is one, runs the file of a candidate in its runtime."""
        server = self.goal.server
        return not server or SERVERS.find(server).runs(candidate.settings.runtime, kind_of(candidate.path))

    def _fix_sizes(self, form: Form) -> Iterator[Form]:
        """Yield the form with fixed sizes, if that is another file."""
        if self.sizes:
            fixed = fix_sizes(form, self.sizes, self.state.folder)
            if fixed is not None:
                yield fixed

    def _build_forms(self) -> None:
        """Build int8 files, measure them, and measure the drop of those that are fastest."""
        if "int8" not in self.goal.precisions:
            return
        seconds = {each.candidate.settings.runtime: each.seconds for each in reversed(self._by_speed())}
        runtimes = sorted(seconds, key=lambda name: seconds[name])
        longest = 0.0
        for form in int8_forms(runtimes, self.goal.suffix):
            best = min(each.seconds for each in self.choices.values())
            own = min(seconds[name] for name in form.runtimes)
            if own / MOST_GAIN > best:
                self.skipped[form.name] = (
                    f"float32 takes {own / best:.1f} times the best there: int8 is at most {MOST_GAIN:g} times as fast"
                )
                continue
            if self.elapsed + longest > FORMS_END * self.budget and form.name not in self.state.forms:
                self.skipped[form.name] = OUT_OF_TIME
                continue
            begin = monotonic()
            self._int8_forms[form.name] = form
            self._keep_if_fastest(form.name, self._try_form(form, form.name))
            longest = max(longest, monotonic() - begin)

    def _keep_if_fastest(self, name: str, result: QuantizationResult | None) -> None:
        if result is not None and next(map(_name_of_file, self._rank_int8()), "") == name:
            self._fastest = name, result

    def _rank_int8(self) -> list[Choice]:
        """Return the candidates with int8 layers, the fastest first."""
        return [each for each in self._by_speed() if each.form.precision == "int8"]

    def _build_alternatives(self) -> None:
        """Build the fastest int8 file again with the float layers that profiles predict to be fastest there."""
        ranked, built, self._fastest = self._rank_int8(), self._fastest, None
        if not ranked or self.goal.objective == "size" or self.elapsed > FORMS_END * self.budget:
            return
        name, runtime = _name_of_file(ranked[0]), ranked[0].candidate.settings.runtime
        title = find_runtime(runtime).title
        prefix = f"{name}, slow layers in float{'' if name.endswith(title) else f' for {title}'}"
        names = self._names_of(prefix)
        if not names and prefix not in self.state.failures:
            self._report(f"measuring the time of the layers: {name}")
            try:
                self._save_alternatives(name, prefix, runtime, built)
            except (OutOfTimeError, QuantkitError) as error:
                if isinstance(error, OutOfTimeError) or self.elapsed > FORMS_END * self.budget:
                    self.skipped[prefix] = OUT_OF_TIME
                else:
                    self._save_failure(prefix, error.message)
            names = self._names_of(prefix)
        for each in names:
            self._add_forms(each)

    def _names_of(self, prefix: str) -> list[str]:
        """Return the names of the built files with a name, or with this name and a number."""
        names = (each for each in self.state.forms if not each.endswith(FIXED))
        return [each for each in names if each == prefix or each.startswith(f"{prefix} (")]

    def _save_alternatives(
        self, name: str, prefix: str, runtime: str, built: tuple[str, QuantizationResult] | None
    ) -> None:
        """Build an int8 file with other float layers, as profiles predict that they make it faster.

        Args:
            name: name of the int8 file.
            prefix: name of the first file to build, and first part of the names of the others.
            runtime: runtime in which the layers are slow.
            built: name and result of the int8 file; it is quantized again if an earlier call built it.
        """
        result = self._quantize(self._int8_forms[name]) if built is None or built[0] != name else built[1]
        seconds = FORMS_END * self.budget - self.elapsed
        conversions = find_faster_alternatives(result.conversion, self.reference.sample_shapes, runtime, seconds)
        if not conversions:
            self._save_failure(prefix, "no other choice of float layers is predicted to save time")
        for number, conversion in enumerate(conversions):
            path = self._new_path(conversion.target.suffixes[0])
            receipt = replace_plan(result.metadata["receipt"], conversion)
            conversion.save(path, {**result.metadata, "receipt": receipt})
            text = f"{prefix}{f' ({number + 1})' if number else ''}"
            self._add_to_state(replace(self.state.forms[name], name=text, path=path, runtimes=(runtime,)))
        self.state.save()

    def _build_float_parts(self) -> None:
        """If no int8 file is within the bound, build the fastest one with more layers in float."""
        ranked = self._rank_int8()
        if not ranked or any(map(self.is_within, ranked)) or self.elapsed > FORMS_END * self.budget:
            return
        checked = [each for each in ranked if each.drop is not None and each.drop.value > 0]
        if not checked:
            return
        fastest = checked[0]
        forms = int8_forms([fastest.candidate.settings.runtime], self.goal.suffix)
        form = replace(forms[0], runtime=fastest.candidate.settings.runtime)
        limit = FLOAT_PARTS_MARGIN * self.goal.max_drop
        name = f"int8 with layers in float, for {find_runtime(form.runtime).title}"
        self._try_form(form, name, max_drop=limit, time_budget=max(FORMS_END * self.budget - self.elapsed, 1.0))

    def _try_form(self, form: Int8Form, name: str, **options: Any) -> QuantizationResult | None:
        """Build an int8 file, measure it and its drop.

        Returns:
            The quantization; None if it failed, or an earlier search built the file.
        """
        self._report(f"quantizing: {name}")
        if name in self.state.failures:
            return None
        result = None
        if name not in self.state.forms:
            path = self._new_path(find_target(form.target).suffixes[0])
            try:
                result = self._quantize(form, output=path, **options)
            except OutOfTimeError:
                self.skipped[name] = OUT_OF_TIME
                return None
            except QuantkitError as error:
                self._save_failure(name, error.message)
                return None
            self._add_to_state(int8_form(form, result, path, name))
            self.state.save()
        self._add_forms(name)
        return result

    def _add_to_state(self, form: Form) -> None:
        """Add a built file, also with fixed sizes, to the state, which is not saved yet."""
        self.state.forms |= {each.name: each for each in (form, *self._fix_sizes(form))}

    def _save_failure(self, name: str, reason: str) -> None:
        self.state.failures[name] = reason
        self.state.save()

    def _add_forms(self, name: str) -> None:
        """Measure a built file, also with fixed sizes, and its drop."""
        forms = [self.state.forms[each] for each in (name, f"{name}{FIXED}") if each in self.state.forms]
        pairs = [(each, candidate) for each in forms for candidate in self._candidates(each)]
        self._measure(SCREEN, [candidate for _, candidate in pairs])
        for each, candidate in pairs:
            self._add(each, candidate)
        self._check_drops()

    def _quantize(self, form: Int8Form, **options: Any) -> QuantizationResult:
        """Quantize the model.

        Raises:
            OutOfTimeError: the time budget is exhausted.
        """
        end = self.start + self.budget

        def check_time(_: Progress) -> None:
            if monotonic() > end:
                raise OutOfTimeError

        return quantize(
            self.model,
            self.calibration,
            target=form.target,
            runtime=form.runtime,
            runs=0,
            on_progress=check_time,
            **(self.quantize_options | options),
        )

    def _new_path(self, suffix: str) -> Path:
        return self.state.folder / f"int8_{len(self.state.forms)}{suffix}"

    def _options(self, stage: int) -> SamplingOptions:
        return replace(STAGES[stage], seed=self.goal.seed + stage, time_budget=self.remaining)

    def _measure(self, stage: int, candidates: Sequence[Candidate]) -> None:
        """Measure candidates next to the baseline, a few at a time."""
        assert self.baseline is not None, "the float model is measured first"
        missing = [each for each in candidates if self.state.find(stage, name_of(each)) is None]
        missing = [each for each in missing if each != self.baseline]
        for index in range(0, len(missing), GROUP):
            group = missing[index : index + GROUP]
            result = measure([self.baseline, *group], self._options(stage))
            for candidate, row, speedup in zip(group, result.rows[1:], result.speedups[1:], strict=True):
                trial = _trial(stage, candidate, row.outcome)
                ratio = speedup.ratio if isinstance(speedup, Speedup) else None
                self.state.trials.append(replace(trial, ratio=ratio))
                self._report_failures([trial])
            self.state.save()

    def _report_failures(self, trials: Sequence[MeasuredTrial]) -> None:
        self.skipped |= {trial.candidate: trial.failure for trial in trials if trial.failure}

    def _add(self, form: Form, candidate: Candidate) -> None:
        """Add a measured candidate to the choices, with the latest of its trials."""
        name = name_of(candidate)
        trials = [trial for trial in self.state.trials if trial.candidate == name and trial.ratio is not None]
        if trials:
            last = max(trials, key=lambda trial: trial.stage)
            assert last.ratio is not None
            assert last.seconds is not None
            self.choices[name] = Choice(form, candidate, "", last.ratio, last.seconds, self.state.drops.get(name))

    def _by_speed(self) -> list[Choice]:
        if self.goal.objective == "size":
            return sorted(self.choices.values(), key=lambda each: (each.form.num_bytes, -each.ratio))
        return sorted(self.choices.values(), key=lambda each: -each.ratio)

    def _check_drops(self) -> None:
        """Measure the drop of the candidates that are faster than the best one within the bound, the fastest first.

        Fixed sizes change no arithmetic: a file that exceeds the bound does so with fixed sizes, too, without a run.
        """
        for choice in self._by_speed():
            if self.is_within(choice):
                return
            if choice.is_float32 and not self._may_keep_float:
                continue
            # Files in float32 are chosen for their speed alone: all are equally accurate.
            earlier = [] if choice.is_float32 else self._drops_within
            if choice.drop is None and len(earlier) < MOST_DROPS:
                self._report(f"measuring the drop: {choice.name}")
                drop = self._find_exceeding_drop(choice) or self._measure_drop(choice.candidate, compute_alpha(earlier))
                if drop is None:
                    if choice.candidate != self.baseline:
                        self.choices.pop(choice.name)
                    continue
                self.state.drops[choice.name] = drop
                self.state.save()
                self.choices[choice.name] = replace(choice, drop=drop)
                if self.is_within(self.choices[choice.name]):
                    return

    @property
    def _may_keep_float(self) -> bool:
        return "float32" in self.goal.precisions

    def _find_exceeding_drop(self, choice: Choice) -> Drop | None:
        """Return the drop of the file with other sizes in the same runtime and arithmetic if it exceeds the bound."""
        is_fixed = choice.form.name.endswith(FIXED)
        name = choice.form.name.removesuffix(FIXED) if is_fixed else f"{choice.form.name}{FIXED}"
        other = self.state.drops.get(choice.name.replace(choice.form.name, name, 1))
        return other if other is not None and other.high > self.goal.max_drop else None

    @property
    def _drops_within(self) -> list[bool]:
        """True for each measured drop within the bound of candidates other than float32, in order."""
        names = {each.name for each in self.choices.values() if each.is_float32}
        return [drop.high <= self.goal.max_drop for name, drop in self.state.drops.items() if name not in names]

    def _measure_drop(self, candidate: Candidate, alpha: float) -> Drop | None:
        """Return the drop of a candidate on the held-out samples; None if it cannot run on them.

        Args:
            candidate: candidate with its session options.
            alpha: probability that its limit is exceeded.
        """
        settings = candidate.settings
        try:
            model = load(candidate.path, inputs=settings.inputs, outputs=settings.outputs)
            with open_session(model.runnable, settings.runtime, settings.options) as session:
                return measure_drop(session, self.reference, alpha)
        except QuantkitError as error:
            self.skipped[name_of(candidate)] = error.message
            return None

    def _finals(self) -> list[Choice]:
        """Measure the best candidates within the bound again, for longer; return the best of them.

        Other candidates may be ahead after that, whose drop is measured then.
        """
        if self.goal.objective == "size":
            return self.rank()[:TUNED]
        self._report("measuring the best candidates again")
        for _ in range(MOST_FINALS):
            ranked = self.rank()
            finalists = [each for each in ranked[:FINALISTS] if each.ratio >= LEAST_FRACTION * ranked[0].ratio]
            self._measure(FINAL, [each.candidate for each in finalists])
            for each in finalists:
                self._add(each.form, each.candidate)
            self._check_drops()
        names = {trial.candidate for trial in self.state.trials if trial.stage == FINAL}
        return [each for each in self.rank() if each.name in names or each.candidate == self.baseline][:TUNED]

    def _tune(self, finalists: list[Choice]) -> list[Choice]:
        """Search the settings of the finalists; return these with their best settings in addition."""
        tuned: list[Choice] = []
        for index, choice in enumerate(finalists):
            part = (SETTINGS_END * self.budget - self.elapsed) / (len(finalists) - index)
            if part < LAST_SECONDS:
                break
            self._report(f"searching the settings: {choice.name}")
            runtime = find_runtime(choice.candidate.settings.runtime)
            varied = find_settings(choice.candidate, runtime, self.state.machine)
            # The user who deploys the file chooses the CPUs of its process.
            settings = [each for each in varied if each.dimension != "cpus"]
            state = SweepState(self.state.machine)
            search = Search(
                choice.candidate,
                None,
                choice.name,
                state,
                monotonic(),
                part / 0.65,
                self.goal.seed,
                choice.seconds,
                lambda _: None,
            )
            best = next(iter(search.run(settings)), None)
            if best is not None:
                trial = max(
                    (each for each in state.of(choice.name) if each.candidate == best.key and each.ratio),
                    key=lambda each: each.stage,
                )
                assert trial.ratio is not None
                candidate = replace(best.apply(choice.candidate), label=choice.candidate.label)
                seconds = choice.seconds / trial.ratio
                tuned.append(
                    replace(
                        choice,
                        candidate=candidate,
                        settings=str(best),
                        ratio=choice.ratio * trial.ratio,
                        seconds=seconds,
                    )
                )
        return sorted([*finalists, *tuned], key=lambda each: -each.ratio)

    def _measure_again(self, finalists: Sequence[Choice]) -> None:
        """Measure finalists and the baseline in new processes: the best ratio of a search is too high."""
        assert self.baseline is not None
        others = [each for each in finalists if each.candidate != self.baseline]
        self._report("measuring in new processes")
        options = replace(
            STAGES[LAST],
            seed=self.goal.seed + LAST,
            time_budget=max(self.remaining, COMPARISON_SECONDS),
            further_budget=max(self.remaining, LAST_SECONDS),
        )
        labelled = [replace(each.candidate, label=each.name) for each in others]
        try:
            self.last = measure([replace(self.baseline, label=name_of(self.baseline)), *labelled], options)
        except BenchmarkInterrupted:
            raise KeyboardInterrupt from None
        for choice, row, speedup in zip(others, self.last.rows[1:], self.last.speedups[1:], strict=True):
            if row.measurement is not None and isinstance(speedup, Speedup):
                median = row.measurement.summary.median
                self.choices[choice.name] = replace(choice, ratio=speedup.ratio, seconds=median, speedup=speedup)
        self._drop_settings(others)
        base = self.last.rows[0].measurement
        if base is not None:
            name = name_of(self.baseline)
            self.choices[name] = replace(self.choices[name], seconds=base.summary.median)

    def _drop_settings(self, choices: Sequence[Choice]) -> None:
        """Drop the settings that are not shown to be faster than the default of the same file in the same runtime."""
        assert self.last is not None
        measured = {choice.name: row.measurement for choice, row in zip(choices, self.last.rows[1:], strict=True)}
        assert self.baseline is not None
        measured[name_of(self.baseline)] = self.last.rows[0].measurement
        for choice in choices:
            default, tuned = measured.get(name_of(choice.candidate)), measured[choice.name]
            if not choice.settings or default is None or tuned is None:
                continue
            if Speedup.of(default, tuned).outcome != "faster":
                self.choices.pop(choice.name, None)
                self.skipped[choice.name] = "not shown to be faster than the default settings"


def _name_of_file(choice: Choice) -> str:
    """Return the name of the file of a candidate, without its fixed sizes."""
    return choice.form.name.removesuffix(FIXED)


def _trial(stage: int, candidate: Candidate, outcome: Measurement | Failure) -> MeasuredTrial:
    if isinstance(outcome, Failure):
        return MeasuredTrial(stage, name_of(candidate), failure=outcome.reason)
    return MeasuredTrial(stage, name_of(candidate), seconds=outcome.summary.median)


def _has_arithmetic(candidate: Candidate) -> bool:
    """Return True if the runtime and this processor compute in the arithmetic of a candidate."""
    name = candidate.settings.options.precision
    features = FEATURES.get(name)
    has_features = features is None or not cpu_flags().isdisjoint(features)
    return has_features and name in find_runtime(candidate.settings.runtime).precisions
