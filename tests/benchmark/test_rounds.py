import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from measurements import MACHINE

from quantkit.benchmark.results.report import Benchmark, BenchmarkRow, Failure
from quantkit.benchmark.results.speedup import Speedup
from quantkit.benchmark.sampling import process, rounds
from quantkit.benchmark.sampling.candidate import Candidate, Settings
from quantkit.benchmark.sampling.process import WorkerError
from quantkit.benchmark.sampling.rounds import SamplingOptions, measure
from quantkit.benchmark.statistics.student import LOOKS
from quantkit.errors import InputError

SHORT = SamplingOptions(runs=12, warmup=1, processes=3, rounds=2)


class FakeWorker:
    """Worker that responds at once; the environment variable SECONDS is the duration of a call."""

    requests: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, environment: dict[str, str], cpus: tuple[int, ...]) -> None:
        self.name = environment.get("NAME", "")
        self.seconds = float(environment.get("SECONDS", "1"))
        self.log = ""
        self.failing_request = environment.get("FAIL", "")
        FakeWorker.requests.append((self.name, "start"))

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        do = request["do"]
        FakeWorker.requests.append((self.name, do))
        if do == self.failing_request:
            raise WorkerError("the process was ended by SIGSEGV")
        responses: dict[str, dict[str, Any]] = {
            "open": {
                "runtime": "fake",
                "version": "1",
                "runtime_device": "CPU",
                "skipped_runtimes": [],
                "inputs": {"x": "float (1,)"},
                "batch": 1,
                "load_seconds": 2.0,
            },
            "warm_up": {
                "seconds": [9.0, self.seconds],
                "is_settled": True,
                "openmp": [],
                "placement": [],
                "peak_bytes": 1 << 20,
            },
            "run": {"lead_in": [3.0], "seconds": self.sample(request.get("samples") or 0), "calls": []},
        }
        return responses[do]

    def sample(self, count: int) -> list[float]:
        return [self.seconds] * count

    def close(self) -> None:
        """Return at once."""

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(process, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(rounds, "this_machine", lambda: MACHINE)
    FakeWorker.requests = []
    return FakeWorker


def candidates(path: Path, *environments: dict[str, str]) -> list[Candidate]:
    return [
        Candidate(f"model {index}", path, Settings(environment={"NAME": str(index), **environment}))
        for index, environment in enumerate(environments)
    ]


def names(fake: type[FakeWorker], request: str) -> list[str]:
    """Return the names of the workers that received a request, in order."""
    return [name for name, do in fake.requests if do == request]


def test_each_candidate_runs_once_per_round(fake: type[FakeWorker], tiny_model: Path) -> None:
    seconds = [{"SECONDS": "1"}, {"SECONDS": "2"}, {"SECONDS": "3"}]
    benchmark = measure(candidates(tiny_model, *seconds), SHORT)
    order = names(fake, "run")
    blocks = [tuple(order[start : start + 3]) for start in range(0, len(order), 3)]
    assert [sorted(block) for block in blocks] == [["0", "1", "2"]] * 6
    assert len(set(blocks)) > 1, "the order changes from round to round"
    assert [measurement.seconds for measurement in benchmark.measurements] == [(1.0,) * 12, (2.0,) * 12, (3.0,) * 12]


def test_workload_runs_in_each_round_and_is_not_a_row(fake: type[FakeWorker], tiny_model: Path) -> None:
    model, workload = candidates(tiny_model, {"SECONDS": "1"}, {"SECONDS": "2"})
    benchmark = measure([model], SHORT, workload=workload)
    order = names(fake, "run")
    assert [sorted(order[start : start + 2]) for start in range(0, len(order), 2)] == [["0", "1"]] * 6
    assert [row.label for row in benchmark.rows] == ["model 0"]
    assert benchmark.workload is not None
    assert benchmark.workload.seconds == (2.0,) * 12
    assert benchmark.workload.processes == ((((2.0,) * 2,) * 2),) * 3


def test_failure_of_the_workload_leaves_the_rows(fake: type[FakeWorker], tiny_model: Path) -> None:
    model, workload = candidates(tiny_model, {}, {"FAIL": "warm_up"})
    benchmark = measure([model], SHORT, workload=workload)
    assert benchmark.workload is None
    assert len(benchmark.measurements) == 1


def test_all_are_warm_before_the_first_round_of_each_process(fake: type[FakeWorker], tiny_model: Path) -> None:
    measure(candidates(tiny_model, {}, {}), SHORT)
    requests = [do for _, do in fake.requests]
    process = ["start", "start", "open", "open", "warm_up", "warm_up", *["run"] * 4]
    assert requests == process * 3


def test_candidates_are_opened_again_in_rotated_order(fake: type[FakeWorker], tiny_model: Path) -> None:
    """The process that is opened first or last is up to 3 % faster."""
    measure(candidates(tiny_model, {}, {}, {}), SHORT)
    order = names(fake, "start")
    orders = [order[:3], order[3:6], order[6:]]
    assert sorted(first for first, _, _ in orders) == sorted(last for _, _, last in orders) == ["0", "1", "2"]
    assert orders[1] == [*orders[0][1:], orders[0][0]]
    assert names(fake, "warm_up") == order


def test_load_time_first_call_and_memory_are_kept(fake: type[FakeWorker], tiny_model: Path) -> None:
    (measurement,) = measure(candidates(tiny_model, {}), SHORT).measurements
    assert measurement.load_seconds == (2.0,) * 3
    assert measurement.first_call_seconds == (9.0,) * 3
    assert measurement.peak_bytes == 1 << 20


def test_equal_seeds_give_equal_orders(fake: type[FakeWorker], tiny_model: Path) -> None:
    def order(seed: int) -> list[str]:
        fake.requests = []
        measure(candidates(tiny_model, {}, {}, {}), replace(SHORT, seed=seed))
        return names(fake, "run")

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_size_of_the_environment_varies(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class RecordingWorker(FakeWorker):
        def __init__(self, environment: dict[str, str], cpus: tuple[int, ...]) -> None:
            super().__init__(environment, cpus)
            sizes.append(sum(map(len, environment.values())))

    monkeypatch.setattr(process, "WorkerProcess", RecordingWorker)
    (measurement,) = measure(candidates(tiny_model, {}), SHORT).measurements
    assert len(set(sizes)) == 3
    assert measurement.context.environment == {"NAME": "0"}


def test_measurement_contains_all_calls(fake: type[FakeWorker], tiny_model: Path) -> None:
    (row,) = measure(candidates(tiny_model, {}), SHORT).rows
    assert row.measurement is not None
    assert row.measurement.process_rounds == (2, 2, 2)
    assert row.measurement.block_sizes == (2,) * 6
    assert row.measurement.warmup_seconds == (*(9.0, 1.0) * 3, *(3.0,) * 6)
    assert row.measurement.warmup_calls == 2
    assert row.measurement.calls_per_sample == 1
    assert row.measurement.context.num_bytes == tiny_model.stat().st_size


@pytest.mark.parametrize(
    ("runs", "processes", "sizes"),
    [
        (8, 3, ((2, 1), (2, 1), (1, 1))),
        (2, 1, ((1, 1),)),
        (1, None, ((1,),)),
        (4, None, ((1, 1), (1,), (1,))),
        (24, None, ((3, 3),) * 4),
        (120, None, ((12, 12),) * 5),
    ],
)
def test_samples_are_distributed_over_processes_and_rounds(
    fake: type[FakeWorker], tiny_model: Path, runs: int, processes: int | None, sizes: tuple[tuple[int, ...], ...]
) -> None:
    (row,) = measure(candidates(tiny_model, {}), replace(SHORT, runs=runs, processes=processes)).rows
    assert row.measurement is not None
    assert tuple(tuple(map(len, process)) for process in row.measurement.processes) == sizes


@pytest.mark.parametrize(("seconds", "samples"), [("1", rounds.MIN_SAMPLES), ("0.00001", rounds.MAX_SAMPLES)])
def test_default_number_of_samples(fake: type[FakeWorker], tiny_model: Path, seconds: str, samples: int) -> None:
    (row,) = measure(candidates(tiny_model, {"SECONDS": seconds}), SamplingOptions()).rows
    assert row.measurement is not None
    further = min(samples, rounds.MAX_FURTHER_SAMPLES) * (rounds.DEFAULT_PROCESSES - rounds.MIN_PROCESSES)
    assert len(row.measurement.seconds) == samples * rounds.MIN_PROCESSES + further


def test_all_models_run_in_the_same_rounds(fake: type[FakeWorker], tiny_model: Path) -> None:
    """Rounds of few samples would consist of the calls that restore the caches; the slowest model limits them."""
    options = SamplingOptions(processes=1)
    for slowest, count in (("1", rounds.MIN_ROUNDS), ("0.00001", options.rounds)):
        result = measure(candidates(tiny_model, {"SECONDS": "0.00001"}, {"SECONDS": slowest}), options)
        assert {each.process_rounds for each in result.measurements} == {(count,)}


def test_calls_below_a_millisecond_are_grouped(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[dict[str, Any]] = []
    ask = FakeWorker.ask

    def record(self: FakeWorker, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        requests.append(request)
        return ask(self, request, timeout)

    monkeypatch.setattr(FakeWorker, "ask", record)
    (measurement,) = measure(candidates(tiny_model, {"SECONDS": "0.0003"}), SHORT).measurements
    assert measurement.calls_per_sample == 4
    assert {request["group"] for request in requests if request["do"] == "run"} == {4}


@pytest.mark.parametrize("moment", ["open", "warm_up", "run"])
def test_failed_candidate_is_a_row(fake: type[FakeWorker], tiny_model: Path, moment: str) -> None:
    first, second = measure(candidates(tiny_model, {"FAIL": moment}, {}), SHORT).rows
    assert first.outcome == Failure("the process was ended by SIGSEGV")
    assert second.measurement is not None
    assert len(second.measurement.seconds) == 12


def limit_time(monkeypatch: pytest.MonkeyPatch, num_runs: int) -> None:
    """Exhaust the time budget after a number of measured rounds."""

    def now() -> float:
        return 99.0 if sum(do == "run" for _, do in FakeWorker.requests) >= num_runs else 1.0

    monkeypatch.setattr(rounds, "monotonic", now)


def test_finished_rounds_are_kept_when_the_time_budget_is_exhausted(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_time(monkeypatch, 7)
    benchmark = measure(candidates(tiny_model, {}, {}), replace(SHORT, time_budget=50.0))
    assert not benchmark.is_complete
    assert benchmark.notes == ("time budget of 50 s exhausted after 1 of 3 processes per model",)
    assert sorted(m.process_rounds for m in benchmark.measurements) == [(2, 1), (2, 2)]


def test_candidate_without_a_round_is_a_row(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter([0.0, 1.0, 999.0])
    monkeypatch.setattr(rounds, "monotonic", lambda: next(readings))
    benchmark = measure(candidates(tiny_model, {}, {}), SHORT)
    assert [failure.reason for failure in benchmark.failures] == [
        "time budget of 600 s exhausted before its first round"
    ] * 2


class SimulatedWorker(FakeWorker):
    """Worker whose calls vary within and between processes; SPREAD is the standard deviation between processes."""

    random: ClassVar[np.random.Generator]

    def __init__(self, environment: dict[str, str], cpus: tuple[int, ...]) -> None:
        super().__init__(environment, cpus)
        self.seconds *= np.exp(self.random.normal(0, float(environment["SPREAD"])))
        self.delayed = float(environment.get("DELAYED", "0.1"))

    def sample(self, count: int) -> list[float]:
        factor = 1.5 if self.delayed <= 0.1 else 6.0
        slow_calls = self.random.choice([1.0, factor], count, p=[1 - self.delayed, self.delayed])
        seconds: list[float] = (self.seconds * slow_calls * np.exp(self.random.normal(0, 0.02, count))).tolist()
        return seconds


def simulate(
    monkeypatch: pytest.MonkeyPatch, path: Path, seed: int, spread: float, ratio: float, **options: Any
) -> Speedup:
    """Return the speed-up of a simulated benchmark of two models."""
    monkeypatch.setattr(process, "WorkerProcess", SimulatedWorker)
    SimulatedWorker.random = np.random.default_rng(seed)
    environments = [{"SPREAD": str(spread), "SECONDS": seconds} for seconds in (str(0.02 * ratio), "0.02")]
    speedup = measure(candidates(path, *environments), SamplingOptions(seed=seed, **options)).speedups[1]
    assert isinstance(speedup, Speedup)
    return speedup


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("spread", [0.002, 0.02, 0.08])
def test_intervals_of_equal_models_contain_1(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    """A/A comparisons: the interval contains the spread between processes, also if that decides when to stop."""
    speedups = [simulate(monkeypatch, tiny_model, seed, spread, 1.0) for seed in range(60)]
    assert sum(speedup.low <= 1 <= speedup.high for speedup in speedups) >= 54
    # 3 % are expected: more than 6 of 60 have a probability of 0.2 %.
    assert sum(speedup.outcome in ("faster", "slower") for speedup in speedups) <= 6
    outcomes = {speedup.outcome for speedup in speedups}
    assert ("same" in outcomes) == (spread < 0.05)
    assert ("undecided" in outcomes) == (spread > 0.005)


@pytest.mark.usefixtures("fake")
def test_delays_by_other_programs_are_not_a_difference(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal models of which one is delayed in most of its calls during the whole benchmark, and the other rarely."""
    monkeypatch.setattr(process, "WorkerProcess", SimulatedWorker)
    outcomes = []
    for seed in range(40):
        SimulatedWorker.random = np.random.default_rng(seed)
        environments = [{"SPREAD": "0.01", "SECONDS": "0.02", "DELAYED": delayed} for delayed in ("0.2", "0.7")]
        speedup = measure(candidates(tiny_model, *environments), SamplingOptions(seed=seed)).speedups[1]
        assert isinstance(speedup, Speedup)
        outcomes.append((speedup.outcome, speedup.low <= 1 <= speedup.high))
    assert sum(covers for _, covers in outcomes) >= 36
    assert {outcome for outcome, _ in outcomes} == {"undecided"}


@pytest.mark.usefixtures("fake")
def test_calls_of_one_process_do_not_show_the_spread_between_processes(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intervals over the calls of one process exclude each other; such a measurement is undecided."""
    options = {"runs": 100, "processes": 1}
    speedups = [simulate(monkeypatch, tiny_model, seed, 0.08, 1.0, **options) for seed in range(40)]
    assert sum(speedup.low <= 1 <= speedup.high for speedup in speedups) < 20
    assert {speedup.outcome for speedup in speedups} == {"undecided"}


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("spread", "ratio"), [(0.01, 1.03), (0.03, 1.03), (0.08, 1.25), (0.02, 0.9)])
def test_a_difference_is_found_or_undecided(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, spread: float, ratio: float
) -> None:
    speedups = [simulate(monkeypatch, tiny_model, seed, spread, ratio) for seed in range(60)]
    wrong = "slower" if ratio > 1 else "faster"
    assert not any(speedup.outcome == wrong for speedup in speedups)
    assert not any(speedup.outcome == "same" for speedup in speedups)
    assert sum(speedup.low <= ratio <= speedup.high for speedup in speedups) >= 54
    assert sum(speedup.outcome in ("faster", "slower") for speedup in speedups) > 30


@pytest.mark.usefixtures("fake")
def test_number_of_processes_depends_on_the_spread(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert simulate(monkeypatch, tiny_model, 1, 0.01, 2.0).processes == rounds.MIN_PROCESSES
    assert simulate(monkeypatch, tiny_model, 1, 0.01, 1.1).processes == rounds.DEFAULT_PROCESSES
    assert simulate(monkeypatch, tiny_model, 1, 0.08, 1.01).processes == LOOKS[1]
    assert simulate(monkeypatch, tiny_model, 1, 0.08, 1.06).processes == rounds.MAX_PROCESSES
    assert simulate(monkeypatch, tiny_model, 1, 0.08, 1.01, processes=7).processes == 7


@pytest.mark.usefixtures("fake")
def test_further_processes_end_within_the_time_budget(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only processes that are not required end early, so that the result is complete."""
    monkeypatch.setattr(rounds, "monotonic", lambda: sum(do == "start" for _, do in FakeWorker.requests) * 5.0)
    assert simulate(monkeypatch, tiny_model, 1, 0.08, 1.01, time_budget=85.0).processes == 8
    FakeWorker.requests = []
    budgets = {"time_budget": 300.0, "further_budget": 35.0}
    assert simulate(monkeypatch, tiny_model, 1, 0.08, 1.01, **budgets).processes == 3
    FakeWorker.requests = []
    assert simulate(monkeypatch, tiny_model, 1, 0.08, 1.01, processes=7, **budgets).processes == 7


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("spread", "ratio"), [(0.01, 1.0), (0.03, 1.0), (0.03, 1.03)])
def test_interval_of_a_requested_width_contains_the_speedup(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, spread: float, ratio: float
) -> None:
    speedups = [simulate(monkeypatch, tiny_model, seed, spread, ratio, interval_width=0.06) for seed in range(30)]
    assert sum(speedup.low <= ratio <= speedup.high for speedup in speedups) >= 27
    assert {speedup.processes for speedup in speedups} <= set(LOOKS)
    assert all(speedup.width <= 0.06 or speedup.processes == LOOKS[-1] for speedup in speedups)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("width", "budget", "kind", "processes"),
    [(0.5, 900.0, "interval width", 5), (0.06, 900.0, "interval width", 20), (0.06, 70.0, "time budget", 6)],
)
def test_end_of_a_measurement_with_a_requested_width(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, width: float, budget: float, kind: str, processes: int
) -> None:
    monkeypatch.setattr(process, "WorkerProcess", SimulatedWorker)
    monkeypatch.setattr(rounds, "monotonic", lambda: sum(do == "start" for _, do in FakeWorker.requests) * 5.0)
    SimulatedWorker.random = np.random.default_rng(3)
    options = SamplingOptions(interval_width=width, time_budget=budget)
    result = measure(candidates(tiny_model, {"SPREAD": "0.02"}, {"SPREAD": "0.02"}), options)
    assert result.stop is not None
    assert (result.stop.kind, result.stop.processes, result.is_complete) == (kind, processes, True)
    (speedup,) = rounds.speedups_over_first(result)
    assert result.stop.width == pytest.approx(speedup.width)
    assert f"and {100 * width:.2g} % was requested" in str(result)
    assert result.to_json()["stop"] == {
        "kind": kind,
        "processes": processes,
        "width": speedup.width,
        "requested_width": width,
    }
    assert type(result).from_json(result.to_json()).stop == result.stop


@pytest.mark.usefixtures("fake")
def test_width_of_a_single_model_is_that_of_its_median(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WorkerProcess", SimulatedWorker)
    SimulatedWorker.random = np.random.default_rng(0)
    result = measure(candidates(tiny_model, {"SPREAD": "0.03"}), SamplingOptions(interval_width=0.06))
    assert result.stop is not None
    assert result.stop.kind == "interval width"
    assert result.stop.width == result.measurements[0].summary.width <= 0.06
    assert result.stop.processes > LOOKS[0]


@pytest.mark.parametrize(("high", "processes"), [(1.5, 10), (1.01, 5)])
def test_a_single_model_runs_until_its_comparison_is_clear(
    fake: type[FakeWorker], tiny_model: Path, high: float, processes: int
) -> None:
    """The comparison with a saved benchmark decides, although there is no second row."""

    def compare(result: Benchmark) -> list[Speedup]:
        return [Speedup(1.0, 1 / high, high, False, len(result.measurements[0].processes))]

    result = measure(candidates(tiny_model, {}), SamplingOptions(), compare=compare)
    assert len(result.measurements[0].processes) == processes


def test_rows_that_are_not_selected_end_after_the_first_process(fake: type[FakeWorker], tiny_model: Path) -> None:
    counts = []

    def select(result: Benchmark) -> list[BenchmarkRow]:
        counts.append([len(measurement.processes) for measurement in result.measurements])
        return [row for row in result.rows if row.label != "b"]

    result = measure(labeled_candidates(tiny_model), SHORT, select=select)
    assert [row.label for row in result.rows] == ["a", "c"]
    assert {len(measurement.processes) for measurement in result.measurements} == {SHORT.min_processes}
    assert result.is_complete
    assert counts == [[1, 1, 1], [3, 3]]


def test_rows_that_are_clear_stay_in_the_result(fake: type[FakeWorker], tiny_model: Path) -> None:
    def select(result: Benchmark) -> list[BenchmarkRow]:
        is_first = result.stop is not None and result.stop.processes == 1
        return [row for row in result.rows if row.label != "b" or is_first]

    def compare(result: Benchmark) -> list[Speedup]:
        return [Speedup(1.0, 0.99, 1.01, True, len(result.measurements[0].processes))]

    result = measure(labeled_candidates(tiny_model), SamplingOptions(), compare=compare, select=select)
    assert [len(measurement.processes) for measurement in result.measurements] == [5, 3, 5]


def test_an_empty_selection_keeps_all_rows(fake: type[FakeWorker], tiny_model: Path) -> None:
    def select(result: Benchmark) -> list[BenchmarkRow]:
        return list(result.rows) if result.stop is not None and result.stop.processes == 1 else []

    result = measure(labeled_candidates(tiny_model), SHORT, select=select)
    assert [len(measurement.processes) for measurement in result.measurements] == [3, 3, 3]


def test_rows_are_selected_if_the_time_budget_ends_in_the_first_process(
    fake: type[FakeWorker], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_time(monkeypatch, 4)
    result = measure(
        labeled_candidates(tiny_model),
        replace(SHORT, time_budget=50.0),
        select=lambda result: [row for row in result.rows if row.label != "b"],
    )
    assert not result.is_complete
    assert [row.label for row in result.rows] == ["a", "c"]


def labeled_candidates(path: Path) -> list[Candidate]:
    return [replace(model, label=label) for model, label in zip(candidates(path, {}, {}, {}), "abc", strict=True)]


def test_missing_file_is_an_error_before_the_first_process(fake: type[FakeWorker], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        measure([Candidate("x", tmp_path / "missing.pb")], SHORT)
    assert not fake.requests


def test_real_workers(tiny_model: Path) -> None:
    settings = Settings(runtime="reference")
    benchmark = measure([Candidate("a", tiny_model, settings), Candidate("b", tiny_model, settings)], SHORT)
    assert benchmark.is_complete
    assert all(len(measurement.seconds) == 12 for measurement in benchmark.measurements)
    assert all(measurement.context.runtime == "reference" for measurement in benchmark.measurements)
    assert benchmark.measurements[0].context.digest == benchmark.measurements[1].context.digest


def test_ctrl_c_ends_the_workers_and_keeps_finished_rounds(tiny_model: Path) -> None:
    script = (
        "import json, signal, sys\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "from quantkit.benchmark import BenchmarkInterrupted\n"
        "from quantkit.benchmark.sampling import process, rounds\n"
        "from quantkit.benchmark.sampling.candidate import Candidate, Settings\n"
        "workers = []\n"
        "class Recorded(process.WorkerProcess):\n"
        "    def __init__(self, *arguments):\n"
        "        super().__init__(*arguments)\n"
        "        workers.append(self.pid)\n"
        "process.WorkerProcess = Recorded\n"
        "def on_progress(progress):\n"
        "    if (progress.stage, progress.done) == ('measuring', 3):\n"
        "        print(json.dumps(workers), flush=True)\n"
        "settings = Settings(runtime='reference')\n"
        "candidates = [Candidate(label, Path(sys.argv[1]), settings) for label in 'ab']\n"
        "try:\n"
        "    options = rounds.SamplingOptions(runs=10**7, processes=1, rounds=10**5, warmup=1)\n"
        "    rounds.measure(candidates, options, on_progress)\n"
        "except BenchmarkInterrupted as stopped:\n"
        "    print(json.dumps(stopped.benchmark.to_json()), flush=True)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tiny_model)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = json.loads(parent.stdout.readline())
    parent.send_signal(signal.SIGINT)
    document = json.loads(parent.stdout.read())
    assert parent.wait(timeout=30) == 0
    parent.stdout.close()
    assert document["is_complete"] is False
    assert "interrupted after" in document["notes"][0]
    assert all(len(row["measurement"]["block_sizes"]) >= 3 for row in document["rows"])
    assert len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
